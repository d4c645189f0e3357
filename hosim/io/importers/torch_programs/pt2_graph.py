"""The graph of a program in a ``.pt2`` archive: its nodes with their arguments, and the known
properties of its values.

The schema is checked key by key, and only the parts that hosim needs are kept. Nothing of torch is
looked up yet.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hosim.errors import InputError
from hosim.io.importers.torch_programs.pt2_text import (
    check_expression,
    fields,
    flag,
    items,
    mapping,
    number,
    only,
    symbol_of,
    text,
    whole,
    word,
)
from hosim.limits import within

TARGET = re.compile(
    r"torch\.ops\.(aten|prims|hosim|transformers|torchvision)\.[A-Za-z_]\w*\.[A-Za-z_]\w*"
    r"|torch\.ops\.torchao\.(quantize|dequantize|choose_qparams)_affine\.default"
    r"|torch\.ops\.(mslk|fbgemm)\.bf16i4bf16_(rowwise|shuffled)\.default"
    r"|torch\.ops\.higher_order\.[a-z_]+|torch\.sym_[a-z]+|_operator\.[a-z_]+|math\.[a-z]+",
    re.ASCII,
)
"""The targets that a node may call: a registered op of these libraries, arithmetic on sizes, or an
op around a subgraph.
"""


_STRIDED = 7


@dataclass(frozen=True, slots=True)
class Pt2Value:
    """The value of a node or a placeholder, as an argument."""

    name: str


@dataclass(frozen=True, slots=True)
class Pt2Constant:
    """An argument that is a ``dtype``, a ``layout``, a ``memory_format`` or a ``device``;
    ``number`` is its number in the schema.
    """

    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class Pt2Tensor:
    """The known properties of a tensor. A size is ``None`` if the program keeps no example of it.
    ``dtype`` is the schema's number.

    ``symbols`` are the names of dynamic sizes: empty for a size that is computed from others,
    ``None`` for a fixed one.
    """

    dtype: int
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    offset: int
    symbols: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Pt2Node:
    """A call. Each of ``arguments`` has a name, True if it is passed by keyword (``None``: by the
    schema of the op), and a value.

    ``outputs`` is the name of the result, a list of names for its items, which may be nested, or
    ``None`` without names.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, bool | None, Any], ...]
    outputs: Any


@dataclass(frozen=True, slots=True)
class Pt2Graph:
    """Nodes in their order. An input is a :class:`Pt2Value` or a constant; ``outputs`` is a single
    argument if ``single``.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[Pt2Node, ...]
    tensors: Mapping[str, Pt2Tensor]
    numbers: Mapping[str, Any]
    single: bool


@dataclass(frozen=True, slots=True)
class Pt2Subgraph:
    """A graph as an argument."""

    name: str
    graph: Pt2Graph


def read_graph(data: Any, where: str) -> Pt2Graph:
    """Return the graph in ``data``. Raises :class:`InputError` for anything that the schema does
    not have.
    """
    keys = fields(
        data,
        where,
        ("inputs", "outputs", "nodes", "tensor_values", "sym_int_values", "sym_bool_values"),
        ("is_single_tensor_return", "custom_obj_values", "sym_float_values"),
    )
    numbers: dict[str, Any] = {}
    for key, kind in (
        ("sym_int_values", "int"),
        ("sym_bool_values", "bool"),
        ("sym_float_values", "float"),
    ):
        for name, value in mapping(keys.get(key) or {}, key).items():
            numbers[word(name, key)] = _symbol(value, f"{where}.{key}.{name}", kind)
    tensors = {
        word(n, "tensor_values"): read_tensor(t, f"{where}.tensor_values.{n}")
        for n, t in mapping(keys["tensor_values"], where).items()
    }
    within("records", len(items(keys["nodes"], where)), where=f"{where}.nodes")
    graph = Pt2Graph(
        tuple(read_argument(value, f"{where}.inputs") for value in items(keys["inputs"], where)),
        tuple(read_argument(value, f"{where}.outputs") for value in items(keys["outputs"], where)),
        tuple(_node(node, f"{where}.nodes[{i}]") for i, node in enumerate(keys["nodes"])),
        tensors,
        numbers,
        flag(keys.get("is_single_tensor_return", False), where),
    )
    _check_names(graph, where)
    return graph


def _check_names(graph: Pt2Graph, where: str) -> None:
    """Raise :class:`InputError` unless every value is made once, and before it is used."""
    made = {one.name for one in graph.inputs if isinstance(one, Pt2Value)}
    count = sum(isinstance(one, Pt2Value) for one in graph.inputs)
    for i, node in enumerate(graph.nodes):
        _check_known([value for _, _, value in node.arguments], made, f"{where}.nodes[{i}]")
        names = _names(node.outputs)
        made.update(names)
        count += len(names)
    _check_known(graph.outputs, made, f"{where}.outputs")
    if count != len(made):
        raise InputError("expected every value of the graph to be made once", where=where)


def _check_known(value: Any, made: set[str], where: str) -> None:
    if isinstance(value, Pt2Value) and value.name not in made:
        raise InputError(f"uses {value.name!r}, which nothing before it makes", where=where)
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_known(item, made, where)


def _names(outputs: Any) -> list[str]:
    if isinstance(outputs, list):
        return [name for item in outputs for name in _names(item)]
    return [] if outputs is None else [outputs]


def _node(data: Any, where: str) -> Pt2Node:
    keys = fields(
        data,
        where,
        ("target", "inputs", "outputs", "metadata"),
        ("is_hop_single_tensor_return", "name"),
    )
    target = text(keys["target"], where)
    if not TARGET.fullmatch(target):
        raise InputError(_no_op(target), where=where)
    for note in mapping(keys["metadata"], where).values():
        text(note, where, any_length=True)
    arguments = []
    for one in items(keys["inputs"], where):
        named = fields(one, where, ("name", "arg"), ("kind",))
        kind = named.get("kind")
        if kind not in (None, 0, 1, 2):
            raise InputError(
                "expected the kind 1 (by position) or 2 (by keyword) of an argument", where=where
            )
        arguments.append(
            (
                text(named["name"], where),
                None if not kind else kind == 2,
                read_argument(named["arg"], where),
            )
        )
    outputs = [_output(one, where) for one in items(keys["outputs"], where)]
    single = len(outputs) == 1 and not isinstance(outputs[0], list)
    if (
        single
        and ".higher_order." in target
        and keys.get("is_hop_single_tensor_return") is False
        and outputs[0] is not None
    ):
        single = False  # a tuple of one
    elif len(outputs) == 1 and not single:
        outputs = outputs[0]
    name = (outputs[0] if single else None) or keys.get("name") or target.split(".")[-2]
    return Pt2Node(
        word(name, where), target, tuple(arguments), outputs[0] if single else outputs or None
    )


def _no_op(target: str) -> str:
    """Return the reason that a target is refused."""
    shown = target[:60]
    if re.fullmatch(r"torch\.ops\.\w+\.\w+(\.\w+)?", target):
        return (
            f"op {shown!r} is of a library that hosim does not run from a file; load the "
            "program and give it to import_exported"
        )
    return (
        f"target {shown!r} is not a registered op, nor arithmetic on sizes; export the program "
        "without it"
    )


def _output(data: Any, where: str) -> Any:
    """The name that an output gives its value, ``None`` without a name, or a list of these."""
    kind, value = only(data, where)
    reader = _OUTPUTS.get(kind)
    if reader is None:
        raise InputError(
            f"hosim does not import an output that is {kind!r}; export the program without it",
            where=where,
        )
    return reader(value, where)


def _name(data: Any, where: str) -> str:
    return word(fields(data, where, ("name",))["name"], where)


def _symbol_name(data: Any, where: str) -> str | None:
    kind, value = only(data, where)
    return word(value, where) if kind == "as_name" else None


def read_argument(data: Any, where: str) -> Any:
    """The value of an argument: plain Python data, which may contain objects of this module."""
    kind, value = only(data, where)
    reader = _ARGUMENTS.get(kind)
    if reader is None:
        raise InputError(
            f"the argument is {kind[:40]!r}; only tensors, numbers and words can be imported",
            where=where,
        )
    return reader(value, where)


def _reference(data: Any, where: str) -> Pt2Value:
    return Pt2Value(_name(data, where))


def _symbolic(data: Any, where: str) -> Any:
    """A number, or the value of a node that makes one."""
    kind, value = only(data, where)
    if kind == "as_name":
        return Pt2Value(word(value, where))
    reader = {"as_int": whole, "as_float": number, "as_bool": flag}.get(kind)
    if reader is None:
        raise InputError(f"expected a number, got {kind[:40]!r}", where=where)
    return reader(value, where)


def _optional(data: Any, where: str) -> Pt2Value | None:
    kind, value = only(data, where)
    if kind not in ("as_none", "as_tensor"):
        raise InputError(f"expected a tensor or none, got {kind[:40]!r}", where=where)
    return None if kind == "as_none" else _reference(value, where)


def _complex(data: Any, where: str) -> complex:
    parts = fields(data, where, ("real", "imag"))
    return complex(number(parts["real"], where), number(parts["imag"], where))


def _subgraph(data: Any, where: str) -> Pt2Subgraph:
    keys = fields(data, where, ("name", "graph"))
    name = word(keys["name"], where)
    return Pt2Subgraph(name, read_graph(keys["graph"], f"{where}.{name}"))


def _nothing(data: Any, where: str) -> None:
    flag(data, where)


def _device(data: Any, where: str) -> Pt2Constant:
    keys = fields(data, where, ("type",), ("index",))
    if not re.fullmatch(r"[a-z]{1,20}", text(keys["type"], where)):
        raise InputError("expected the name of a device", where=where)
    return Pt2Constant("device", 0)  # every program is imported for the CPU


def _numbered(kind: str) -> Callable[[Any, str], Pt2Constant]:
    return lambda data, where: Pt2Constant(kind, whole(data, where))


def _each(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda data, where: [read(item, where) for item in items(data, where)]


def read_tensor(data: Any, where: str) -> Pt2Tensor:
    """Return the known properties of a tensor. It must be strided, on any device, without negative
    sizes.
    """
    keys = fields(
        data,
        where,
        ("dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"),
    )
    flag(keys["requires_grad"], where)
    _device(keys["device"], where)
    if keys["layout"] != _STRIDED:
        raise InputError(
            "a tensor is not strided, so it has no single storage; export the model with strided "
            "tensors",
            where=where,
        )
    sizes = tuple(_symbol(one, where, "int") for one in items(keys["sizes"], where))
    strides = tuple(_symbol(one, where, "int") for one in items(keys["strides"], where))
    offset = _symbol(keys["storage_offset"], where, "int")
    if len(sizes) != len(strides) or any(
        n is not None and n < 0 for n in (*sizes, *strides, offset)
    ):
        raise InputError("expected as many strides as sizes, none of them below 0", where=where)
    symbols = tuple(
        symbol_of(one["as_expr"]["expr_str"]) if "as_expr" in one else None for one in keys["sizes"]
    )
    return Pt2Tensor(whole(keys["dtype"], where), sizes, strides, offset or 0, symbols)


def _symbol(data: Any, where: str, kind: str) -> Any:
    """The number of a size, that of the example if it is an expression; ``None`` if the program
    keeps no example.
    """
    name, value = only(data, where)
    if name == "as_expr":
        found = fields(value, where, ("expr_str",), ("hint",))
        check_expression(text(found["expr_str"], where, any_length=True), where)
        if found.get("hint") is None:
            return None
        name, value = only(found["hint"], where)
    reader = {"as_int": whole, "as_bool": flag, "as_float": number}.get(name)
    if reader is None or (kind == "int" and name != "as_int"):
        raise InputError(f"expected the number of a size, got {name[:40]!r}", where=where)
    return reader(value, where)


_ARGUMENTS: Mapping[str, Callable[[Any, str], Any]] = {
    "as_none": _nothing,
    "as_tensor": _reference,
    "as_tensors": _each(_reference),
    "as_int": whole,
    "as_ints": _each(whole),
    "as_float": number,
    "as_floats": _each(number),
    "as_string": text,
    "as_strings": _each(text),
    "as_sym_int": _symbolic,
    "as_sym_ints": _each(_symbolic),
    "as_scalar_type": _numbered("dtype"),
    "as_memory_format": _numbered("memory_format"),
    "as_layout": _numbered("layout"),
    "as_device": _device,
    "as_bool": flag,
    "as_bools": _each(flag),
    "as_sym_bool": _symbolic,
    "as_sym_bools": _each(_symbolic),
    "as_graph": _subgraph,
    "as_optional_tensors": _each(_optional),
    "as_sym_float": _symbolic,
    "as_sym_floats": _each(_symbolic),
    "as_optional_tensor": _optional,
    "as_complex": _complex,
    "as_nested_tensors": _each(_each(_reference)),
    "as_int_lists": _each(_each(whole)),
    "as_float_lists": _each(_each(number)),
}
"""The reader of each kind of argument. Custom objects, operators and dicts as arguments are not
imported.
"""

_OUTPUTS: Mapping[str, Callable[[Any, str], Any]] = {
    "as_tensor": _name,
    "as_tensors": _each(_name),
    **dict.fromkeys(("as_sym_int", "as_sym_float", "as_sym_bool"), _symbol_name),
    **dict.fromkeys(("as_sym_ints", "as_sym_floats", "as_sym_bools"), _each(_symbol_name)),
    **dict.fromkeys(
        ("as_none", "as_int", "as_float", "as_bool", "as_string"), lambda data, where: None
    ),
    **dict.fromkeys(
        ("as_ints", "as_floats", "as_bools", "as_strings"), _each(lambda item, where: None)
    ),
    "as_optional_tensor": _output,
    "as_optional_tensors": _each(_output),
}
"""The reader of each kind of output."""
