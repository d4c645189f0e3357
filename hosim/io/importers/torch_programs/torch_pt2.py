"""The program in a ``.pt2`` archive as a graph of torch, without ``torch.export.load``. Imports
torch.

``torch.export.load`` runs code from a file: it unpickles constants and example inputs, lets sympy
evaluate size expressions, imports the modules that a description of containers names, and writes
Python code with the names of values. Therefore
:mod:`hosim.io.importers.torch_programs.pt2_archive` and
:mod:`hosim.io.importers.torch_programs.pt2_program`, which do not import torch, read the archive,
and only this module looks up its ops:

- registered ops of a few libraries, by their exact names; their text arguments are never names of
  files (:data:`_WORDS`),
- arithmetic on sizes, from a list,
- the two higher-order ops that set a mode around a subgraph.

A dynamic size is that of the example, which the file has beside its expression. Of weights only
sizes and strides are used, and the length of the record that contains them. A program that was
saved with its parameters on the meta device has none of their bytes, so the file does not say which
of them share a storage. They count as separate; a parameter that no node uses, such as the second
name of a tied one, shares the storage of the first other one of equal shape.
"""

import keyword
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx import Node

from hosim.errors import InputError
from hosim.io.importers.op_kinds import kind_of
from hosim.io.importers.torch_programs import torchao_ops
from hosim.io.importers.torch_programs.pt2_archive import read_archive
from hosim.io.importers.torch_programs.pt2_graph import (
    Pt2Constant,
    Pt2Graph,
    Pt2Node,
    Pt2Subgraph,
    Pt2Tensor,
    Pt2Value,
)
from hosim.io.importers.torch_programs.pt2_program import Pt2Payload, Pt2Program, read_program
from hosim.io.importers.torch_programs.torch_run import PlaceholderInput, RunnableProgram

_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    34: "uint32",
    35: "uint64",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
}
_CONSTANTS: Mapping[str, Mapping[int, Any]] = {
    "dtype": {number: getattr(torch, name) for number, name in _DTYPES.items()},
    "layout": {7: torch.strided},
    "memory_format": {
        1: torch.contiguous_format,
        2: torch.channels_last,
        3: torch.channels_last_3d,
        4: torch.preserve_format,
    },
    "device": {0: torch.device("cpu")},
}
"""Arguments that are objects of torch, by their numbers in the schema."""

_SIZES: Mapping[str, Any] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos")
    },
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "abs")
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_not", "sym_int", "sym_float", "sym_ite", "sym_max", "sym_min", "sym_sqrt")
    },
    "torch.sym_sum": torch.sym_sum,
}
"""Arithmetic on sizes."""

_AROUND = ("wrap_with_set_grad_enabled", "wrap_with_autocast")

_WORDS = frozenset(
    (
        "padding",
        "rounding_mode",
        "equation",
        "norm",
        "approximate",
        "reduce",
        "UPLO",
        "driver",
        "ord",
        "p",
        "mode",
        "indexing",
        "side",
    )
) | {
    "interpolation",
    "padding_side",
    "mapping_type",
    "pad_mode",
    "activation",
    "assert_msg",
    "source",
    "destination",
    "tiers",
}
"""Names of arguments that may be text. A text under another name, such as ``filename``,
is refused.
"""


def load(source: str) -> RunnableProgram:
    """Return the program in the file ``source``. Raises :class:`InputError` if it is damaged, or
    has something that other readers would execute.
    """
    return program_of(read_program(read_archive(source)), source)


def program_of(program: Pt2Program, source: str) -> RunnableProgram:
    """Return a checked program as a graph of torch. Raises :class:`InputError` for an op that is
    not registered.
    """
    names = [spec.name or f"arg{i}" for i, spec in enumerate(program.inputs)]
    try:
        if any(node.target.startswith("torch.ops.transformers.") for node in program.graph.nodes):
            _register_transformers()
        module = _module(program.graph, names, frozenset(torch._C._dispatch_get_all_op_names()))
        taken = _taken(program, names)
        updates = [
            None if one is None else (_updated(program, *one), f"update.{one[1]}")
            for one in program.updates
        ]
    except InputError as error:
        raise InputError(error.message, source=source, where=error.where) from error
    return RunnableProgram(module, taken, updates, kernels=False)


def _register_transformers() -> None:
    if find_spec("transformers") is None:
        raise InputError(
            "this program has ops of transformers, which is not installed; run: pip install "
            "'hosim[torch]'"
        )
    import transformers.integrations.moe  # noqa: F401


def _updated(program: Pt2Program, role: str, name: str) -> str:
    """The placeholder that an output updates."""
    for spec in program.inputs:
        if name == (spec.target if role == "held" else spec.name):
            return spec.name
    raise InputError(
        f"an output updates {name!r}, which is no input of the program",
        where="signature.output_specs",
    )


def _taken(program: Pt2Program, names: Sequence[str]) -> list[PlaceholderInput]:
    """Return the input that each placeholder takes."""
    if len(set(names)) != len(names):
        raise InputError("two inputs have one name", where="signature.input_specs")
    storages: dict[str, torch.Tensor] = {}
    found = []
    for spec, name in zip(program.inputs, names, strict=True):
        payload, known = program.held.get(spec.target or ""), spec.target or name
        if spec.kind == "constant":
            found.append(PlaceholderInput(name, _constant(spec.value, name)))
        elif payload is not None:
            found.append(
                PlaceholderInput(
                    name,
                    _held_tensor(payload, name, storages),
                    known,
                    kind_of(spec.kind, known),
                    own=True,
                )
            )
        elif name in program.graph.tensors:
            found.append(
                PlaceholderInput(
                    name,
                    _lone_tensor(program.graph.tensors[name], name),
                    known,
                    kind_of(spec.kind, known),
                )
            )
        else:
            found.append(PlaceholderInput(name, _known(program.graph.numbers.get(name), name)))
    return _untangled(program, found)


def _untangled(program: Pt2Program, taken: Sequence[PlaceholderInput]) -> list[PlaceholderInput]:
    """Return ``taken``; tensors of the meta device that no node uses share the storage of one that
    is used (see the module).
    """
    used = _used(program.graph)
    lost = [
        i
        for i, spec in enumerate(program.inputs)
        if (held := program.held.get(spec.target or "")) and not held.nbytes
    ]
    found = list(taken)
    alike: dict[Any, torch.Tensor] = {}
    for i in sorted(lost, key=lambda i: found[i].placeholder not in used):
        value = found[i].value
        shape = value.dtype, value.size(), value.stride()
        if found[i].placeholder not in used and shape in alike:
            found[i] = replace(found[i], value=alike[shape])
        alike.setdefault(shape, value)
    return found


def _used(graph: Pt2Graph) -> set[str]:
    """The names of the values that a node or an output of the graph uses."""
    found: set[str] = set()

    def note(value: Any) -> None:
        if isinstance(value, Pt2Value):
            found.add(value.name)
        elif isinstance(value, (list, tuple)):
            for item in value:
                note(item)

    note(graph.outputs)
    for node in graph.nodes:
        note([value for _, _, value in node.arguments])
    return found


def _held_tensor(payload: Pt2Payload, name: str, storages: dict[str, torch.Tensor]) -> torch.Tensor:
    """A tensor without contents in the storage of its record, which others may share; in a storage
    of its own if the file has no bytes of it.
    """
    if not payload.nbytes:
        return _lone_tensor(payload.tensor, name)
    tensor, dtype = payload.tensor, _constant(Pt2Constant("dtype", payload.tensor.dtype), name)
    sizes, strides = (
        [_known(n, name) for n in tensor.sizes],
        [_known(n, name) for n in tensor.strides],
    )
    last = tensor.offset + sum(
        stride * (size - 1) for size, stride in zip(sizes, strides, strict=True)
    )
    if 0 not in sizes and (last + 1) * dtype.itemsize > payload.nbytes:
        raise InputError(
            f"{name!r} is larger than its record of {payload.nbytes} bytes; write it again with "
            "torch.export.save"
        )
    base = storages.setdefault(
        payload.record, torch.empty(payload.nbytes, dtype=torch.uint8, device="meta")
    )
    typed = base[: payload.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
    return typed.as_strided(sizes, strides, tensor.offset)


def _lone_tensor(known: Pt2Tensor, name: str) -> torch.Tensor:
    """A tensor without contents in a storage of its own."""
    sizes, strides = (
        [_known(n, name) for n in known.sizes],
        [_known(n, name) for n in known.strides],
    )
    try:
        return torch.empty_strided(
            sizes, strides, dtype=_constant(Pt2Constant("dtype", known.dtype), name), device="meta"
        )
    except RuntimeError as error:
        raise InputError(
            f"{name!r} cannot be a tensor: {str(error).splitlines()[0][:100]}"
        ) from None


def _known(number: Any, name: str) -> Any:
    if number is None:
        raise InputError(
            f"{name!r} has a size of which the program keeps no example; export it with static "
            "shapes"
        )
    return number


def _constant(value: Any, where: str) -> Any:
    """A constant of Python or torch."""
    if not isinstance(value, Pt2Constant):
        return value
    known = _CONSTANTS[value.kind]
    if value.number not in known:
        raise InputError(f"unknown {value.kind} {value.number}", where=where)
    return known[value.number]


def _module(graph: Pt2Graph, names: Sequence[str], registered: frozenset[str]) -> torch.nn.Module:
    """Return a module with the ``graph``, and a submodule for each subgraph. Its placeholders have
    the ``names``.

    It is not a ``GraphModule``, because that writes and compiles Python code.
    """
    module, made = torch.nn.Module(), torch.fx.Graph()
    values: dict[str, Node] = {}
    for one, name in zip(graph.inputs, names, strict=True):
        placeholder = made.placeholder(name)
        placeholder.name = name  # fx would choose another name, as for ``input``
        if isinstance(one, Pt2Value):
            values[one.name] = placeholder

    def argument(value: Any, where: str) -> Any:
        if isinstance(value, Pt2Value):
            return values[value.name]
        if isinstance(value, Pt2Subgraph):
            inner = [
                one.name if isinstance(one, Pt2Value) else f"arg{i}"
                for i, one in enumerate(value.graph.inputs)
            ]
            module.register_module(value.name, _module(value.graph, inner, registered))
            return made.create_node("get_attr", value.name, name=value.name)
        return (
            [argument(item, where) for item in value]
            if isinstance(value, list)
            else _constant(value, where)
        )

    for node in graph.nodes:
        target = _target(node, registered)
        args, kwargs = _arguments(
            node,
            target,
            [(name, how, argument(value, node.name)) for name, how, value in node.arguments],
        )
        call = made.create_node("call_function", target, args, kwargs, node.name)
        call.name = node.name
        if isinstance(node.outputs, list):
            call.meta["pieces"] = len(node.outputs)
        _name_items(made, call, node.outputs, values)
    results = tuple(argument(value, "outputs") for value in graph.outputs)
    made.output(results[0] if graph.single and len(results) == 1 else results)
    module.graph = made
    return module


def _name_items(made: torch.fx.Graph, call: Node, outputs: Any, values: dict[str, Node]) -> None:
    """Store the value of a call by its name, or the items of the value by theirs."""
    if isinstance(outputs, str):
        values[outputs] = call
        return
    for i, item in enumerate(outputs or ()):
        if item is not None:
            one = made.create_node(
                "call_function",
                operator.getitem,
                (call, i),
                name=item if isinstance(item, str) else None,
            )
            one.name = item if isinstance(item, str) else one.name
            _name_items(made, one, item, values)


def _target(node: Pt2Node, registered: frozenset[str]) -> Any:
    """Return the target that a node calls."""
    if node.target in _SIZES:
        return _SIZES[node.target]
    parts = node.target.split(".")
    if parts[:3] == ["torch", "ops", "higher_order"] and parts[-1] in _AROUND:
        return getattr(torch.ops.higher_order, parts[-1])
    if parts[:3] == ["torch", "ops", "higher_order"]:
        raise InputError(
            f"node {node.name!r} calls the higher-order op {parts[-1]!r}, which hosim does not "
            "import; export without it"
        )
    if parts[:2] == ["torch", "ops"]:
        library = parts[2]
        if library in torchao_ops.LIBRARIES:
            library, parts[4] = (
                torchao_ops.NAMESPACE,
                torchao_ops.overload(parts[3], [argument for argument, _, _ in node.arguments]),
            )
        name = f"{library}::{parts[3]}" + ("" if parts[4] == "default" else f".{parts[4]}")
        if name in registered:
            return getattr(getattr(getattr(torch.ops, library), parts[3]), parts[4])
    raise InputError(
        f"node {node.name!r} calls {node.target[:60]!r}, which is not a registered op nor "
        "arithmetic on sizes"
    )


def _arguments(
    node: Pt2Node, target: Any, given: Sequence[tuple[str, bool | None, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position and by keyword, as the schema of an op orders them."""
    if node.target in _SIZES:
        return tuple(value for _, _, value in given), {}
    if not isinstance(target, torch._ops.OpOverload):
        by_name = {name: value for name, how, value in given if how and name}
        return tuple(value for name, how, value in given if not how or not name), by_name
    found = {name: (how, value) for name, how, value in given}
    wanted = [one.name for one in target._schema.arguments]
    for name, (_, value) in found.items():
        if name not in wanted or len(found) != len(given):
            raise InputError(
                f"node {node.name!r} gives {node.target} an argument {name[:60]!r} that it does "
                "not take once"
            )
        if name not in _WORDS and any(
            isinstance(item, str) for item in (value if isinstance(value, list) else [value])
        ):
            raise InputError(
                f"node {node.name!r} gives {node.target} the text {name!r}; only words for a way "
                "of computing can be imported"
            )
    args, kwargs = [], {}
    for one in target._schema.arguments:
        if one.name not in found:
            continue
        how, value = found[one.name]
        by_keyword = one.kwarg_only or one.has_default_value() if how is None else how
        if by_keyword and not keyword.iskeyword(one.name):
            kwargs[one.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs
