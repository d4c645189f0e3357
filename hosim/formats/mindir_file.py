"""The computation in a MindIR file: functions, nodes, primitives and shapes, read by protobuf's
wire format.

The messages are those of MindSpore's ``mind_ir.proto`` (``ModelProto``, ``GraphProto``,
``NodeProto``, ``TensorProto``, ``AttributeProto``, ``PrimitiveProto``), as of MindSpore 2.10. The
bytes of weights are skipped.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hosim.base.files import formats
from hosim.errors import InputError
from hosim.io.importers.stored import ELEMENTS

_DTYPES = {
    **ELEMENTS,
    17: ("fp64", 64),
    18: ("int4", 8),  # two numbers in each element
}
_FLOAT, _STRING, _BOOL, _DOUBLE, _TUPLE, _LIST, _TENSOR, _SCALAR = 1, 8, 9, 11, 20, 21, 19, 39
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
_DEEPEST = 40
"""The deepest nesting of tuples; real files have a few levels."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes and the element type (hosim's name, bits) of a tensor; unknown sizes
    are negative.
    """

    dims: tuple[int, ...]
    dtype: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter or an input of a function. ``shape`` is a tuple for a tuple, and ``None`` for
    anything but a tensor.
    """

    name: str
    shape: Any


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``callee`` is the value or function that it calls (``None`` for a primitive),
    ``value`` the value of a constant.
    """

    label: str
    operator: str
    inputs: Sequence[str]
    output: str
    callee: str | None
    attributes: Mapping[str, Any]
    shape: Any
    value: Any

    @property
    def writes(self) -> bool:
        """Return whether the primitive declares that it changes memory."""
        return bool(self.attributes.get("side_effect_mem"))


@dataclass(frozen=True, slots=True)
class Function:
    """A graph: nodes in order, and the names of its inputs and outputs. Only the main graph has
    ``parameters``.
    """

    name: str
    parameters: Sequence[Named]
    inputs: Sequence[Named]
    outputs: Sequence[str]
    nodes: Sequence[Node]


@dataclass(frozen=True, slots=True)
class MindirModel:
    """A file: its main graph, the functions by name, and the version of MindSpore that wrote it."""

    version: str
    main: Function
    functions: Mapping[str, Function]


@dataclass(frozen=True, slots=True)
class _Primitive:
    operator: str
    attributes: Mapping[str, Any]


def read_model(content: formats.Part) -> MindirModel:
    """Return the model in the contents of a MindIR file. Raises :class:`InputError` for a damaged
    file.
    """
    try:
        return _File(formats.Reader()).model(content)
    except formats.WireError:
        raise InputError(
            "damaged or cut off; expected protobuf of MindIR, export it again"
        ) from None


class _File:
    """The messages of a file."""

    def __init__(self, reader: formats.Reader) -> None:
        self._fields = reader.fields
        self._primitives: dict[str, _Primitive] = {}

    def model(self, content: formats.Part) -> MindirModel:
        """Read the whole file."""
        model = self._fields(content)
        if not formats.parts(model, 7):
            raise InputError("expected a graph; the file is cut off or encrypted, export it again")
        for raw in formats.parts(model, 12):
            message = self._fields(raw)
            self._primitives[formats.text(message, 1)] = _Primitive(
                formats.text(message, 2), self._attributes(message, 3)
            )
        listed = [self._function(raw) for raw in formats.parts(model, 8)]
        main = self._function(formats.parts(model, 7)[-1])
        return MindirModel(
            formats.text(model, 5), main, {function.name: function for function in listed}
        )

    def _function(self, raw: formats.Part) -> Function:
        graph = self._fields(raw)
        return Function(
            name=formats.text(graph, 2),
            parameters=[self._parameter(part) for part in formats.parts(graph, 3)],
            inputs=[self._input(part) for part in formats.parts(graph, 5)],
            outputs=[formats.text(self._fields(part), 1) for part in formats.parts(graph, 6)],
            nodes=[self._node(part) for part in formats.parts(graph, 1)],
        )

    def _parameter(self, raw: formats.Part) -> Named:
        tensor = self._fields(raw)
        return Named(formats.text(tensor, 7), _shape(tensor))

    def _input(self, raw: formats.Part) -> Named:
        value = self._fields(raw)
        name = formats.text(value, 1)
        tensors = [_shape(self._fields(part)) for part in formats.parts(value, 2)]
        if len(tensors) == 1:
            return Named(name, tensors[0])
        inside = formats.parts(value, 5)
        return Named(
            name, tuple(tensors) or (self._typed(self._fields(inside[-1])) if inside else None)
        )

    def _node(self, raw: formats.Part) -> Node:
        node = self._fields(raw)
        named, output = formats.text(node, 4), (formats.parts(node, 2) or (b"",))[0]
        attributes = self._attributes(node, 5)
        shape = value = None
        for part in formats.parts(node, 5):
            attribute = self._fields(part)
            if formats.text(attribute, 1) == "shape":
                shape = self._typed(attribute)
            elif formats.text(attribute, 1) == "value":
                value = self._constant(attribute)
        operator, callee = named, None
        if named.startswith("REF::"):
            primitive = self._primitives.get(named[5:])
            callee = None if primitive else named[5:]
            operator = primitive.operator if primitive else ""
            attributes = {**(primitive.attributes if primitive else {}), **attributes}
        label = formats.text(node, 7)
        try:
            inputs = [bytes(part).decode() for part in formats.parts(node, 1)]
            made = bytes(output).decode()
        except UnicodeDecodeError:
            raise formats.WireError from None
        label = label if len(label) > 1 else formats.text(node, 3)
        return Node(
            label.removeprefix("Default/"), operator, inputs, made, callee, attributes, shape, value
        )

    def _typed(self, attribute: formats.Fields, depth: int = 0) -> Any:
        """Return the shape of a node's result from its attribute ``shape``: a :class:`Shape`, a
        tuple of them, or ``None`` for anything but a tensor.
        """
        kind = formats.number(attribute, 16)
        if kind == _TENSOR:
            tensors = tuple(_shape(self._fields(part)) for part in formats.parts(attribute, 12))
            return tensors[0] if len(tensors) == 1 else tensors or None
        if kind in (_TUPLE, _LIST):
            if depth == _DEEPEST:
                raise formats.WireError
            return tuple(
                self._typed(self._fields(part), depth + 1) for part in formats.parts(attribute, 17)
            )
        return None

    def _constant(self, attribute: formats.Fields, depth: int = 0) -> Any:
        """Return the value of a constant: a number, a string, a tuple of values, the :class:`Shape`
        of a tensor, or ``None`` for anything else.
        """
        kind = formats.number(attribute, 16)
        if kind == _BOOL:
            return bool(formats.number(attribute, 3) or any(formats.numbers(attribute, 10)))
        if kind in _INTEGERS:
            return (
                formats.number(attribute, 3)
                if 3 in attribute
                else (formats.numbers(attribute, 10) or [0])[0]
            )
        if kind == _STRING:
            return formats.text(attribute, 5)
        if kind in (_FLOAT, _DOUBLE):
            return _floating(attribute, kind)
        if kind in (_TUPLE, _LIST):
            if depth == _DEEPEST:
                raise formats.WireError
            return tuple(
                self._constant(self._fields(part), depth + 1)
                for part in formats.parts(attribute, 17)
            )
        if kind == _TENSOR:
            tensors = formats.parts(attribute, 12) or formats.parts(attribute, 6)
            return _shape(self._fields(tensors[0])) if tensors else None
        return None

    def _attributes(self, message: formats.Fields, number: int) -> Mapping[str, Any]:
        """Return the attributes of a primitive, or of a node that has its own, by name."""
        found: dict[str, Any] = {}
        for part in formats.parts(message, number):
            attribute = self._fields(part)
            name = formats.text(attribute, 1)
            if name not in ("shape", "value"):
                found[name] = self._constant(attribute)
        return found


def _shape(tensor: formats.Fields) -> Shape:
    kind = formats.number(tensor, 2)
    if kind not in _DTYPES:
        raise InputError(
            f"tensor {formats.text(tensor, 7)[:100]!r} has the element type {kind}, which is not "
            "numeric"
        )
    return Shape(tuple(formats.numbers(tensor, 1)), _DTYPES[kind])


def _floating(attribute: formats.Fields, kind: int) -> float:
    raw = (formats.parts(attribute, 2 if kind == _FLOAT else 4) or (b"",))[-1]
    try:
        value: float = struct.unpack("<f" if kind == _FLOAT else "<d", raw)[0]
    except struct.error:
        return 0.0
    return value
