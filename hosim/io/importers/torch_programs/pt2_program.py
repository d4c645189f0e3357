"""The program in a ``.pt2`` archive as plain data, without torch.

It has the graph, the records of the storages, and the inputs and outputs. The format is schema 8 of
``torch/_export/serde/schema.py``; a key that the schema does not have is an error. Comments and
guards are not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosim.base.files import content_of
from hosim.errors import InputError
from hosim.io.importers.torch_programs.pt2_archive import CONSTANTS, MODEL, WEIGHTS, Pt2Archive
from hosim.io.importers.torch_programs.pt2_graph import (
    Pt2Graph,
    Pt2Tensor,
    Pt2Value,
    read_argument,
    read_graph,
    read_tensor,
)
from hosim.io.importers.torch_programs.pt2_text import (
    check_containers,
    fields,
    flag,
    items,
    mapping,
    only,
    text,
    texts,
    whole,
    word,
)

_SCHEMA = 8

_HELD = {
    "parameter": ("parameter_name", "parameter"),
    "buffer": ("buffer_name", "buffer"),
    "tensor_constant": ("tensor_constant_name", "buffer"),
}
"""Inputs that the program holds: the key of their qualified name, and hosim's kind."""

_RESULTS = {
    "user_output": ("", ""),
    "loss_output": ("", ""),
    "gradient_to_parameter": ("parameter_name", ""),
    "gradient_to_user_input": ("user_input_name", ""),
    "buffer_mutation": ("buffer_name", "held"),
    "parameter_mutation": ("parameter_name", "held"),
    "user_input_mutation": ("user_input_name", "input"),
}
"""Outputs: the key of the input that they belong to, and the kind of that name if they
update it.
"""


@dataclass(frozen=True, slots=True)
class Pt2Payload:
    """A tensor of the program's own, and the record with its storage; ``nbytes`` is the record's
    size.
    """

    tensor: Pt2Tensor
    record: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pt2Input:
    """An input of the program. Its kind is ``parameter``, ``buffer`` (also a constant tensor),
    ``input`` or ``constant``.

    ``target`` is the qualified name of a tensor that the program holds.
    """

    kind: str
    name: str
    target: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Pt2Program:
    """A program. ``updates`` has, for each output, the input that it updates, as (``input`` or
    ``held``, name); ``None`` for a result.

    ``ranges`` are the smallest and the largest size that a symbol may have, ``None`` without such a
    bound.
    """

    graph: Pt2Graph
    inputs: tuple[Pt2Input, ...]
    updates: tuple[tuple[str, str] | None, ...]
    held: Mapping[str, Pt2Payload]
    ranges: Mapping[str, tuple[int | None, int | None]]


def read_program(archive: Pt2Archive) -> Pt2Program:
    """Return the program in an archive. Raises :class:`InputError` for anything that the schema
    does not have.
    """
    try:
        model = _json(archive, MODEL, archive.model)
        held = {
            **_payloads(archive, WEIGHTS, archive.weights),
            **_payloads(archive, CONSTANTS, archive.constants),
        }
        return _program(model, held)
    except InputError as error:
        raise (
            error
            if error.source
            else InputError(error.message, source=archive.source, where=error.where)
        ) from None
    except RecursionError:
        raise InputError(
            "nested too deeply; export the program again", source=archive.source
        ) from None


def _json(archive: Pt2Archive, record: str, content: bytes) -> Any:
    return content_of(content, f"{archive.source}: {record}")


def _program(model: Any, held: Mapping[str, Pt2Payload]) -> Pt2Program:
    keys = fields(
        model,
        "program",
        ("graph_module", "opset_version", "range_constraints", "schema_version"),
        ("verifiers", "torch_version", "guards_code"),
    )
    if fields(keys["schema_version"], "schema_version", ("major", "minor"))["major"] != _SCHEMA:
        raise InputError(
            f"expected schema {_SCHEMA}, got another; write it again with torch 2.13",
            where="schema_version",
        )
    module = fields(
        keys["graph_module"],
        "graph_module",
        ("graph", "signature", "module_call_graph"),
        ("metadata", "treespec_namedtuple_fields"),
    )
    for entry in items(module["module_call_graph"], "module_call_graph"):
        _check_call(entry, "module_call_graph")
    texts(keys.get("guards_code") or [], "guards_code")
    graph = read_graph(module["graph"], "graph")
    signature = fields(module["signature"], "signature", ("input_specs", "output_specs"))
    inputs = tuple(
        _input(spec, f"input_specs[{i}]")
        for i, spec in enumerate(items(signature["input_specs"], "input_specs"))
    )
    updates = tuple(
        _update(spec, f"output_specs[{i}]")
        for i, spec in enumerate(items(signature["output_specs"], "output_specs"))
    )
    if len(inputs) != len(graph.inputs) or len(updates) != len(graph.outputs) or graph.single:
        raise InputError("expected as many inputs and outputs as the graph has", where="signature")
    for spec, taken in zip(inputs, graph.inputs, strict=True):
        if isinstance(taken, Pt2Value) != (spec.kind != "constant") or (
            isinstance(taken, Pt2Value) and taken.name != spec.name
        ):
            raise InputError(
                f"expected the inputs of the graph in their order, got {spec.name!r}",
                where="signature.input_specs",
            )
    ranges = {
        text(name, "range_constraints"): _range(found)
        for name, found in mapping(keys["range_constraints"], "range_constraints").items()
    }
    return Pt2Program(graph, inputs, updates, held, ranges)


def _range(data: Any) -> tuple[int | None, int | None]:
    where = "range_constraints"
    keys = fields(data, where, ("min_val", "max_val"))
    low, high = (
        None if keys[key] is None else whole(keys[key], where) for key in ("min_val", "max_val")
    )
    return low, high


def _check_call(entry: Any, where: str) -> None:
    """Check the containers of a submodule's arguments and results, which are not used."""
    signature = fields(entry, where, ("fqn",), ("signature",)).get("signature")
    if signature is not None:
        found = fields(
            signature, where, ("inputs", "outputs", "in_spec", "out_spec"), ("forward_arg_names",)
        )
        for key in ("in_spec", "out_spec"):
            check_containers(text(found[key], where), f"{where}.{key}")


def _input(data: Any, where: str) -> Pt2Input:
    kind, value = only(data, where)
    if kind == "user_input":
        found = read_argument(fields(value, where, ("arg",))["arg"], where)
        return (
            Pt2Input("input", found.name)
            if isinstance(found, Pt2Value)
            else Pt2Input("constant", "", value=found)
        )
    if kind == "constant_input":
        keys = fields(value, where, ("name", "value"))
        return Pt2Input(
            "constant", word(keys["name"], where), value=read_argument(keys["value"], where)
        )
    if kind not in _HELD:
        raise InputError(
            f"the input is {kind[:40]!r}; only tensors and numbers can be imported", where=where
        )
    key, role = _HELD[kind]
    keys = fields(value, where, ("arg", key), ("persistent",) if kind == "buffer" else ())
    return Pt2Input(
        role, word(fields(keys["arg"], where, ("name",))["name"], where), text(keys[key], where)
    )


def _update(data: Any, where: str) -> tuple[str, str] | None:
    kind, value = only(data, where)
    if kind not in _RESULTS:
        raise InputError(
            f"the output is {kind[:40]!r}; only tensors and numbers can be imported", where=where
        )
    key, role = _RESULTS[kind]
    keys = fields(value, where, ("arg", key) if key else ("arg",))
    return (role, text(keys[key], where)) if role else None


def _payloads(archive: Pt2Archive, record: str, content: bytes) -> dict[str, Pt2Payload]:
    """Return parameters, buffers or constants by their qualified names."""
    config = fields(_json(archive, record, content), record, ("config",))["config"]
    folder = record.rpartition("/")[0]
    found = {}
    for name, data in mapping(config, record).items():
        where = f"{record}: {text(name, record)[:60]}"
        keys = fields(data, where, ("path_name", "is_param", "use_pickle", "tensor_meta"))
        if flag(keys["use_pickle"], where) or keys["tensor_meta"] is None:
            raise InputError(
                "is a pickle, which would make torch run code from this file; export the program "
                "with plain tensors "
                "(of torchao's, by torchao.utils.unwrap_tensor_subclass)",
                where=where,
            )
        path = f"{folder}/{text(keys['path_name'], where)}"
        if path not in archive.sizes or path.endswith(".json"):
            raise InputError(
                "expected the name of its record; write it again with torch.export.save",
                where=where,
            )
        found[name] = Pt2Payload(read_tensor(keys["tensor_meta"], where), path, archive.sizes[path])
    return found
