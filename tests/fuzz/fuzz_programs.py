"""Changes to a ``.pt2`` archive that leave it valid more often than not, so that what follows its
checks is tried: its ops run.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from fuzz_values import TEXTS

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
WORDS = (
    "x1",
    "self",
    "input",
    "add_",
    "é",
    "_",
    "output",
    "relu",
    "p_b",
    "lambda",
    "None",
    "x" * 300,
    "torch",
    "mul",
    "graph",
    "a" * 9_990,
)
SIZES = (0, 1, 2, 3, 4, 7, 64, 4096, 2**20, 2**31, 2**40, 2**62)
NUMBERS = (*SIZES, -1, -2, 5, 100, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-5, 1e300, -1e308, 5e-324, "NaN", "Infinity", "-Infinity", 3)
EXPRESSIONS = (
    "Symbol('s77', positive=True, integer=True)",
    "Mul(Integer(2), Symbol('s77', positive=True, integer=True))",
    "Integer(2)",
    "s77",
    "2*s77 + 1",
    "floor(Rational(1, 2))",
    "Max(1, Min(s77, 64))",
    "Mod(s77, 3)",
    "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "Float('1.5', precision=53)",
    "s77 == 3",
    "oo",
)
UNARY = (
    *(
        "relu",
        "neg",
        "abs",
        "exp",
        "sqrt",
        "sigmoid",
        "tanh",
        "gelu",
        "silu",
        "isnan",
        "clone",
        "detach",
        "t",
        "sum",
        "mean",
        "numel",
    ),
    *(
        "contiguous",
        "unique_dim",
        "nonzero",
        "cumsum",
        "argmax",
        "sort",
        "item",
        "view_as_real",
        "relu_",
        "zero_",
        "bernoulli",
        "dropout",
    ),
    *(
        "tril",
        "inverse",
        "det",
        "svd",
        "linalg_qr",
        "cholesky",
        "softmax",
        "flatten",
        "unbind",
        "numpy_T",
        "is_nonzero",
        "data",
        "to_sparse",
    ),
)
BINARY = (
    "add",
    "mul",
    "sub",
    "div",
    "matmul",
    "mm",
    "bmm",
    "maximum",
    "pow",
    "eq",
    "kron",
    "cat",
    "add_",
    "copy_",
    "outer",
    "dot",
    "where",
)
ARGUMENTS: Mapping[str, Sequence[Any]] = {
    "dim": NUMBERS,
    "size": NUMBERS,
    "repeats": NUMBERS,
    "split_size": NUMBERS,
    "chunks": NUMBERS,
    "dims": NUMBERS,
    "shape": NUMBERS,
    "n": NUMBERS,
    "k": NUMBERS,
    "diagonal": NUMBERS,
    "start": NUMBERS,
    "end": NUMBERS,
    "step": NUMBERS,
    "steps": NUMBERS,
    "pad": NUMBERS,
    "kernel_size": NUMBERS,
    "stride": NUMBERS,
    "output_size": NUMBERS,
    "num_classes": NUMBERS,
}
CALLS = (
    *(
        ("view", "size*"),
        ("expand", "size*"),
        ("repeat", "repeats*"),
        ("reshape", "shape*"),
        ("permute", "dims*"),
        ("zeros", "size*"),
    ),
    *(
        ("split.Tensor", "split_size", "dim"),
        ("chunk", "chunks", "dim"),
        ("unbind.int", "dim"),
        ("diff", "n", "dim"),
        ("topk", "k", "dim"),
    ),
    *(
        ("select.int", "dim", "start"),
        ("slice.Tensor", "dim", "start", "end", "step"),
        ("tril", "diagonal"),
        ("diag_embed", "diagonal"),
    ),
    *(
        ("narrow", "dim", "start", "size"),
        ("roll", "dims*"),
        ("arange", "end"),
        ("eye", "n"),
        ("one_hot", "num_classes"),
        ("pad", "pad*"),
    ),
    *(
        ("unfold", "dim", "size", "step"),
        ("avg_pool2d", "kernel_size*"),
        ("matrix_power", "n"),
        ("combinations", "k"),
        ("flip", "dims*"),
    ),
    *(
        ("repeat_interleave.self_int", "repeats"),
        ("as_strided", "size*", "stride*"),
        ("cumsum", "dim"),
        ("unsqueeze", "dim"),
        ("full", "size*"),
    ),
    *(
        ("adaptive_avg_pool2d", "output_size*"),
        ("linspace", "start", "end", "steps"),
        ("randperm", "n"),
        ("rot90", "k"),
        ("vander", "n"),
    ),
)
"""Ops of aten with the names of arguments that follow the tensor; a star is a list."""


def changed_program(draw: Random, content: bytes) -> bytes:
    """The archive with one to four changes to its program."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    top = next(iter(records)).partition("/")[0]
    for _ in range(draw.choice((1, 1, 2, 4))):
        model, weights = (
            json.loads(records[f"{top}/{MODEL}"]),
            json.loads(records[f"{top}/{WEIGHTS}"]),
        )
        changed = draw.choice(CHANGES)(draw, model, weights)
        records[f"{top}/{MODEL}"], records[f"{top}/{WEIGHTS}"] = (
            json.dumps(one).encode() for one in changed or (model, weights)
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in records.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def _graph(model: Any) -> Any:
    return model["graph_module"]["graph"]


def _everywhere(old: str, new: str, *trees: Any) -> list[Any]:
    """The trees with a text replaced wherever it is a key or a value."""
    return [
        json.loads(json.dumps(tree).replace(json.dumps(old), json.dumps(new))) for tree in trees
    ]


def _other_name(draw: Random, model: Any, weights: Any) -> Any:
    old = draw.choice(sorted(_graph(model)["tensor_values"]))
    return _everywhere(old, draw.choice(WORDS), model, weights)


def _other_weight(draw: Random, model: Any, weights: Any) -> Any:
    old = draw.choice(sorted(weights["config"]))
    return _everywhere(old, draw.choice((*TEXTS, "a.experts.0.w", "a.bias", "x")), model, weights)


def _other_sizes(draw: Random, model: Any, weights: Any) -> Any:
    """Another size where it stands, in the example of an expression, or as a stride or offset."""
    found = [
        one
        for value in _graph(model)["tensor_values"].values()
        for one in (*value["sizes"], *value["strides"], value["storage_offset"])
    ]
    one = draw.choice(found)
    target = one["as_expr"]["hint"] if "as_expr" in one else one
    target["as_int"] = draw.choice(SIZES)
    return None


def _other_batch(draw: Random, model: Any, weights: Any) -> Any:
    text, number = json.dumps(model), draw.choice(SIZES)
    return json.loads(
        text.replace('"hint": {"as_int": 2}', f'"hint": {{"as_int": {number}}}')
    ), weights


def _other_expression(draw: Random, model: Any, weights: Any) -> Any:
    return _everywhere(EXPRESSIONS[0], draw.choice(EXPRESSIONS), model, weights)


def _other_text(draw: Random, model: Any, weights: Any) -> Any:
    node = draw.choice(_graph(model)["nodes"])
    way = draw.randrange(5)
    if way < 2 and node["metadata"]:
        node["metadata"][draw.choice(sorted(node["metadata"]))] = draw.choice(TEXTS)
    elif way == 2:
        model["torch_version"] = draw.choice(TEXTS)
    elif way == 3:
        model["graph_module"]["module_call_graph"][-1]["fqn"] = draw.choice(TEXTS)
    else:
        model["range_constraints"] = {
            draw.choice(("s77", "s1", "u0")): {
                "min_val": draw.choice(NUMBERS),
                "max_val": draw.choice(NUMBERS),
            }
        }
    return None


def _other_op(draw: Random, model: Any, weights: Any) -> Any:
    node = draw.choice(_graph(model)["nodes"])
    pair = len(node["inputs"]) > 1
    name, overload = (
        draw.choice(BINARY if pair else UNARY),
        draw.choice(("default", "default", "Tensor", "int", "dim")),
    )
    node["target"] = f"torch.ops.aten.{name}.{overload}"
    return None


def _more_ops(draw: Random, model: Any, weights: Any) -> Any:
    """One more node, whose value is a result as well, or the input of the next."""
    graph = _graph(model)
    of = draw.choice(sorted(graph["tensor_values"]))
    name, *wanted = draw.choice((*CALLS, *((op,) for op in UNARY)))
    arguments = [{"name": "self", "arg": {"as_tensor": {"name": of}}, "kind": 1}]
    if name in ("zeros", "arange", "eye", "linspace", "randperm", "full"):
        arguments = []
    for one in wanted:
        numbers = ARGUMENTS[one.rstrip("*")]
        value = (
            {"as_ints": draw.choices(numbers, k=draw.choice((1, 2, 3)))}
            if one[-1] == "*"
            else {"as_int": draw.choice(numbers)}
        )
        arguments.append({"name": one.rstrip("*"), "arg": value, "kind": 1})
    if draw.random() < 0.1:
        arguments.append(
            {
                "name": draw.choice(("p", "eps", "value")),
                "arg": {"as_float": draw.choice(FLOATS)},
                "kind": 2,
            }
        )
    made = f"more{len(graph['nodes'])}"
    several = draw.random() < 0.15
    outputs = (
        [{"as_tensors": [{"name": f"{made}_{i}"} for i in range(draw.choice((1, 2, 4)))]}]
        if several
        else [{"as_tensor": {"name": made}}]
    )
    target = f"torch.ops.aten.{name}" + ("" if "." in name else ".default")
    graph["nodes"].append(
        {
            "target": target,
            "inputs": arguments,
            "outputs": outputs,
            "metadata": {},
            "is_hop_single_tensor_return": None,
            "name": made,
        }
    )
    for one in [made] if not several else [item["name"] for item in outputs[0]["as_tensors"]]:
        graph["tensor_values"][one] = graph["tensor_values"][of]
    return None


def _other_outputs(draw: Random, model: Any, weights: Any) -> Any:
    of = draw.choice(sorted(_graph(model)["tensor_values"]))
    _graph(model)["outputs"].append({"as_tensor": {"name": of}})
    how = draw.choice(
        ("user_output", "user_output", "buffer_mutation", "user_input_mutation", "loss_output")
    )
    spec: dict[str, Any] = {
        "arg": {"name": of}
        if how.endswith("mutation") or how == "loss_output"
        else {"as_tensor": {"name": of}}
    }
    spec |= (
        {"buffer_name": "m"}
        if how == "buffer_mutation"
        else {"user_input_name": "x"}
        if how == "user_input_mutation"
        else {}
    )
    model["graph_module"]["signature"]["output_specs"].append({how: spec})
    return None


def _fewer_nodes(draw: Random, model: Any, weights: Any) -> Any:
    nodes = _graph(model)["nodes"]
    if draw.random() < 0.5:
        nodes.append(nodes.pop(draw.randrange(len(nodes))))
    else:
        nodes.insert(0, nodes.pop())
    return None


CHANGES: Sequence[Callable[[Random, Any, Any], Any]] = (
    *(_other_name, _other_weight, _other_sizes, _other_batch, _other_expression, _other_text),
    *(_other_op, _other_op, _more_ops, _more_ops, _more_ops, _other_outputs, _fewer_nodes),
)
