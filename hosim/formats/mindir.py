"""MindIR, the graph format of MindSpore, as workload graphs. MindSpore is not needed.

The mapping:

- The main graph's parameters are tensors of kind ``parameter`` (``expert`` if a part of the name is
  ``experts``). The other tensors that an optimizer writes are of kind ``optimizer_state``, and the
  gradient that it reads is a ``gradient``. Only shapes are read, never weights.
- ``Load``, ``Depend``, ``UpdateState``, ``MakeTuple``, ``TupleGetItem`` and the like compute
  nothing. ``Reshape``, ``ExpandDims``, ``Squeeze`` and ``Flatten`` are views, as in
  :mod:`hosim.io.importers.torch_programs.torch_export`; ``Transpose`` and ``Split`` are copies. Every
  other primitive is an op.
- Constants that are numbers (scalars, tuples of sizes) are not tensors; other constants are of kind
  ``buffer``.
- Functions are inlined where they are called. For a ``Switch`` whose condition depends on data, the
  branch with more FLOP is taken, and ``meta["missing"]`` has the number of such cases. A function
  that calls itself (a loop over data) is refused.

``flops`` are two for each multiplication of products and convolutions, and 4 times queries times
keys times width for attention; other operators are bound by the bytes that they read and write.
Shapes are those in the file; none is inferred.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosim.analysis.costmodel.kernels import UNKNOWN, KernelSizes, product_kernel
from hosim.base.files import mapped
from hosim.errors import InputError
from hosim.formats.mindir_file import Function, MindirModel, Node, Shape, read_model
from hosim.graph import Graph
from hosim.io.importers import convolution_flops, matmul_flops, operator_kind
from hosim.io.importers.stored import Recording, StaticTensor, UsedPart
from hosim.limits import Budget, within

_NOTES = {
    "durations": "not in the file; the cost model estimates them from FLOP and bytes",
    "workspaces": "not in the file",
    "sizes": "as exported; views share the tensor that they show",
}
_VIEWS = {
    "Reshape",
    "ExpandDims",
    "Squeeze",
    "Flatten",
    "FlattenExt",
    "Identity",
    "ViewAs",
    "View",
    "Unsqueeze",
    "SqueezeExt",
}
_PASSES = {"Load", "Depend", "StopGradient", "InsertGradientOf"}
_SILENT = {"UpdateState", "Return"}
_TUPLES = {"MakeTuple", "make_tuple", "MakeList"}
_ITEMS = {"TupleGetItem", "tuple_getitem", "ListGetItem"}
_NUMERIC = {"Shape", "DType", "Rank", "Size", "TupleToTensor", "ScalarToTensor", "TensorShape"}
_GATHERS = {
    "Gather",
    "GatherD",
    "GatherNd",
    "Embedding",
    "EmbeddingLookup",
    "IndexSelect",
    "GatherV2",
}

_OPTIMIZERS = {
    "ApplyMomentum": ((0, 1), 3),
    "Adam": ((0, 1, 2), 9),
    "FusedAdam": ((0, 1, 2), 9),
    "AdamWeightDecay": ((0, 1, 2), 8),
    "AdamW": ((0, 1, 2), 5),
    "SGD": ((0, 3), 1),
    "ApplyAdagrad": ((0, 1), 3),
    "ApplyRMSProp": ((0, 1, 2), 4),
    "ApplyGradientDescent": ((0,), 2),
}
"""The inputs that an optimizer's primitive overwrites, the parameter first, and the input that is
the gradient.
"""

_MATMULS = {"MatMul", "BatchMatMul", "MatMulExt", "BatchMatMulExt", "Mm", "Dense", "BMM"}
_SEQUENCE_AXIS = {"BSH": 1, "BSND": 1, "SBH": 0, "BNSD": 2, "TND": 0}


def import_mindir(path: str | os.PathLike[str]) -> Graph:
    """Return the graph of the MindIR file at ``path`` (plain or gzip), named after the file. Sizes
    are in bytes; no op has a duration.

    Raises :class:`InputError` for a damaged or encrypted file, for unknown shapes, and for loops
    over data.
    """
    source = os.fspath(path)
    try:
        with mapped(source) as content:
            model = read_model(content)
        return _MindirWalk(model).graph(Path(path).name.split(".")[0])
    except InputError as error:
        # a damaged name may contain any characters
        raise InputError(
            " ".join(error.message.split()),
            source=source,
            where=" ".join((error.where or "").split()),
        ) from None


@dataclass(frozen=True, slots=True)
class _Closure:
    """A function with its first arguments."""

    function: Function
    given: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Choice:
    """The value of a ``Switch``: one of these functions, depending on data."""

    ways: tuple[_Closure, _Closure]


@dataclass(slots=True)
class _MindirWalk:
    """Follows the nodes of the main graph. A value is a tensor, a tuple of values, a function, a
    number, or nothing (for monads).
    """

    model: MindirModel
    recording: Recording = field(default_factory=Recording)
    constants: dict[str, Any] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)
    nodes: Budget = field(default_factory=lambda: Budget("nodes"))
    values: Budget = field(default_factory=lambda: Budget("records"))
    """A limit, because functions that call each other, or tuples of tuples, make a small file
    arbitrarily large.
    """

    def graph(self, name: str) -> Graph:
        main = self.model.main
        values: dict[str, Any] = {}
        for parameter in main.parameters:
            self.parameters.add(parameter.name)
            label = _short(parameter.name)
            kind = "expert" if "experts" in label.split(".") else "parameter"
            values[parameter.name] = self.recording.tensor(
                label, parameter.shape.dims, parameter.shape.dtype, kind
            )
        for given in main.inputs:
            values.setdefault(given.name, self._made(_short(given.name), given.shape, "input"))
        # a constant is listed in one function and visible in all
        for function in (main, *self.model.functions.values()):
            for node in function.nodes:
                if node.operator == "Constant":
                    self.constants[node.output] = self._constant(node)
        result = self._run(main, values, (main.name,))
        meta = {
            "source": "MindIR",
            "mindspore": self.model.version[:100],
            **_NOTES,
            **self.recording.missing(),
        }
        return self.recording.graph(name, meta, self._tensors(result))

    def _made(
        self, name: str, shape: Shape | tuple[Any, ...] | None, kind: str = "activation"
    ) -> Any:
        """Return a new value with a shape: a tensor, a tuple of tensors, or None if the shape is
        not that of a tensor.
        """
        if isinstance(shape, Shape):
            if any(n < 0 for n in shape.dims):
                raise InputError(
                    f"{name!r} has the shape {list(shape.dims)}, which is not fixed; export the "
                    "model with inputs of fixed shapes"
                )
            return self.recording.tensor(name, shape.dims, shape.dtype, kind)
        if isinstance(shape, tuple):
            return tuple(self._made(f"{name}.{i}", part, kind) for i, part in enumerate(shape))
        return None

    def _run(self, function: Function, values: dict[str, Any], stack: tuple[str, ...]) -> Any:
        """Return the result of a function whose inputs have these values."""
        within("nesting_depth", len(stack), where=function.name[:100])
        for node in function.nodes:
            if len(stack) > 1:
                self.nodes.draw(where=node.label)
            values[node.output] = self._node(node, values, stack)
        results = tuple(self._value(name, values, function.name) for name in function.outputs)
        return results[0] if len(results) == 1 else results

    def _value(self, name: str, values: Mapping[str, Any], where: str) -> Any:
        if name in values:
            return values[name]
        if name in self.constants:
            return self.constants[name]
        if name in self.model.functions:
            return _Closure(self.model.functions[name])
        raise InputError(
            f"{name[:100]!r} is used before any node makes it; export the model again",
            where=where[:100],
        )

    def _node(self, node: Node, values: Mapping[str, Any], stack: tuple[str, ...]) -> Any:
        where = node.label
        if node.operator == "Constant":
            return self.constants[node.output]
        inputs = [self._value(name, values, where) for name in node.inputs]
        if node.callee is not None:
            return self._call(self._value(node.callee, values, where), inputs, stack, where)
        operator = node.operator
        if operator in _SILENT:
            return None
        if operator in _TUPLES:
            return tuple(inputs)
        if operator in _PASSES:
            return _nth(inputs, 0, where)
        if operator in _ITEMS:
            items, index = _nth(inputs, 0, where), _nth(inputs, 1, where)
            if (
                not isinstance(items, tuple)
                or not isinstance(index, int)
                or not -len(items) <= index < len(items)
            ):
                raise InputError("expected a tuple and the place of an item in it", where=where)
            return items[index]
        if operator == "Partial":
            function = _nth(inputs, 0, where)
            if not isinstance(function, _Closure):
                raise InputError("expected a function as the first input", where=where)
            self.values.draw(len(function.given), where=where)
            return _Closure(function.function, (*function.given, *inputs[1:]))
        if operator in ("Switch", "switch"):
            condition, *ways = inputs or [None]
            if len(ways) != 2 or not all(isinstance(way, _Closure) for way in ways):
                raise InputError("expected a condition and two functions", where=where)
            return (
                ways[0 if condition else 1]
                if isinstance(condition, (bool, int))
                else _Choice((ways[0], ways[1]))
            )
        return self._operator(node, inputs)

    def _constant(self, node: Node) -> Any:
        value = node.value
        if isinstance(value, Shape) and value.dims:
            return self._made(_short(node.output), value, "buffer")
        return None if isinstance(value, Shape) else value

    def _call(
        self, called: Any, arguments: Sequence[Any], stack: tuple[str, ...], where: str
    ) -> Any:
        if isinstance(called, _Choice):
            first, second = called.ways
            return self.recording.larger(
                lambda: self._call(first, arguments, stack, where),
                lambda: self._call(second, arguments, stack, where),
            )
        if not isinstance(called, _Closure):
            raise InputError("calls something that is not a function", where=where)
        function = called.function
        if function.name in stack:
            raise InputError(
                f"function {function.name[:100]!r} calls itself: a loop over data, whose length "
                "is unknown; export it unrolled",
                where=where,
            )
        given = (*called.given, *arguments)
        if len(given) != len(function.inputs):
            raise InputError(
                f"function {function.name[:100]!r} takes {len(function.inputs)} values, not "
                f"{len(given)}",
                where=where,
            )
        names = [value.name for value in function.inputs]
        return self._run(function, dict(zip(names, given, strict=True)), (*stack, function.name))

    def _operator(self, node: Node, inputs: Sequence[Any]) -> Any:
        """Record the step of a primitive that computes, and return its result."""
        reads = self._tensors(inputs)
        first = inputs[0] if inputs else None
        if (
            node.operator in _VIEWS
            and isinstance(first, StaticTensor)
            and isinstance(node.shape, Shape)
            and -1 not in node.shape.dims
        ):
            view = StaticTensor(first.storage, node.shape.dims, *node.shape.dtype)
            if view.size_bytes == first.size_bytes:
                return view
        if node.operator in _NUMERIC and not isinstance(node.shape, Shape):
            return None
        if node.operator in _OPTIMIZERS or (
            node.writes and node.operator.startswith(("Assign", "Scatter"))
        ):
            return self._update(node, inputs)
        result = self._made(_short(node.output), node.shape)
        makes = self._tensors(result)
        # others, such as BatchNorm in training, overwrite the inputs that they take directly, not
        # through a Load
        direct = zip(node.inputs, inputs, strict=True) if node.writes else ()
        writes = [
            value
            for name, value in direct
            if name in self.parameters and isinstance(value, StaticTensor)
        ]
        if not makes and not writes:
            return result  # arithmetic on sizes
        flops = _flops(node, inputs, makes[0]) if makes else 0
        self.recording.step(
            node.label,
            operator_kind(node.operator),
            reads,
            makes,
            writes,
            flops=flops,
            kernel=_kernel(node.operator, inputs, makes[0], flops) if makes else UNKNOWN,
            part=UsedPart(gathers=node.operator in _GATHERS),
            unknown=node.operator == "Custom",
        )
        return result

    def _tensors(self, value: Any) -> list[StaticTensor]:
        """Return the tensors in nested tuples, in order."""
        found, pending = [], [value]
        while pending:
            part = pending.pop()
            if isinstance(part, StaticTensor):
                found.append(part)
            elif isinstance(part, (tuple, list)):
                self.values.draw(len(part))
                pending += reversed(part)
        return found

    def _update(self, node: Node, inputs: Sequence[Any]) -> Any:
        """Record a primitive that overwrites inputs, and return the first of them."""
        places, gradient = _OPTIMIZERS.get(node.operator, ((0,), None))
        written = [
            inputs[i] for i in places if i < len(inputs) and isinstance(inputs[i], StaticTensor)
        ]
        kind = operator_kind(node.operator)
        if not written:
            result = self._made(_short(node.output), node.shape)
            self.recording.step(node.label, kind, self._tensors(inputs), self._tensors(result))
            return result
        for state in written[1:]:
            if self.recording.kind_of(state) == "parameter":
                self.recording.turn(state, "optimizer_state")
        taken = inputs[gradient] if gradient is not None and gradient < len(inputs) else None
        if isinstance(taken, StaticTensor) and self.recording.kind_of(taken) == "activation":
            self.recording.turn(taken, "gradient")
        new = (
            inputs[2] if node.operator.startswith("Scatter") and len(inputs) > 2 else None
        )  # after the indices
        part = UsedPart(scatters=new.size_bytes) if isinstance(new, StaticTensor) else None
        self.recording.step(node.label, kind, self._tensors(inputs), (), written, part=part)
        return tuple(written) if isinstance(node.shape, tuple) else written[0]


def _flops(node: Node, inputs: Sequence[Any], made: StaticTensor) -> int:
    """Return the FLOP of a product, a convolution or attention; 0 for the rest, and for operands
    that are no tensors of the expected ranks.
    """
    tensors = [value for value in inputs if isinstance(value, StaticTensor)]
    if len(tensors) < 2:
        return 0
    a, b = tensors[:2]
    operator = node.operator
    if operator in _MATMULS and a.shape:
        numbers = [value for value in inputs[2:] if not isinstance(value, StaticTensor)]
        transposed = bool(
            node.attributes.get(
                "transpose_a",
                numbers[0] if numbers and operator in ("MatMul", "BatchMatMul") else False,
            )
        )
        return matmul_flops(made.shape, a.shape[-2 if transposed and len(a.shape) > 1 else -1])
    if operator in ("Addmm", "Baddbmm", "Addbmm") and b.shape:
        return matmul_flops(made.shape, b.shape[-1])
    if operator.startswith(
        ("Conv2DBackpropInput", "Conv2DTranspose", "Conv3DTranspose", "Conv3DBackpropInput")
    ):
        return convolution_flops(a.shape, b.shape)
    if operator.startswith(("Conv2DBackpropFilter", "Conv3DBackpropFilter")):
        return convolution_flops(a.shape, made.shape)
    if operator_kind(operator) == "convolution":
        return convolution_flops(made.shape, b.shape)
    if operator_kind(operator) == "attention":
        axis = _SEQUENCE_AXIS.get(str(node.attributes.get("input_layout", "BSH")), 1)
        length = b.shape[axis] if axis < len(b.shape) else 0
        return (10 if operator.endswith("Grad") else 4) * a.elements * length
    return 0


def _kernel(operator: str, inputs: Sequence[Any], made: StaticTensor, flops: int) -> KernelSizes:
    """Return the class of kernels of a product with one matrix, and its sizes; else
    :data:`UNKNOWN`.
    """
    second = 2 if operator == "Addmm" else 1
    if (
        operator not in {*_MATMULS, "Addmm"}
        or len(inputs) <= second
        or not isinstance(inputs[second], StaticTensor)
    ):
        return UNKNOWN
    return product_kernel(made.shape, inputs[second].shape, flops)


def _nth(inputs: Sequence[Any], place: int, where: str) -> Any:
    if place >= len(inputs):
        raise InputError(f"has {len(inputs)} inputs, expected more", where=where)
    return inputs[place]


def _short(name: str) -> str:
    """``fc.weight`` from ``22_1_Net_construct_8:fc.weight``: the name without its function."""
    return name.partition(":")[2] or name
