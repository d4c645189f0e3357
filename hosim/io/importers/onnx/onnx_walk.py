"""Follow the nodes of an ONNX model and record the effect of each on storages. Imports onnx; see
:mod:`hosim.io.importers.onnx.onnx_graph`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io.importers.onnx.onnx_operators import (
    Answer,
    ContribCall,
    contrib,
    onnx_flops,
    onnx_kernel,
)
from hosim.io.importers.onnx.onnx_values import (
    OnnxValue,
    attributes_of,
    compute,
    constant,
    dtype_of,
    infer,
    of_type,
)
from hosim.io.importers.op_kinds import operator_kind
from hosim.io.importers.stored import (
    LARGEST,
    Recording,
    StaticTensor,
    UsedPart,
    ViewedBytes,
    region,
)
from hosim.limits import limit, refusal, within

# -- onnx parts
# --------------------------------------------------------------------------------------------------
# The part of its first input that an ONNX operator reads, if constants determine it.


def shown_of(
    operator: str, inputs: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> ViewedBytes | None:
    """Return the bytes that a ``Gather`` or a ``Slice`` reads of a tensor; ``None`` if they are not
    one block, not known, or empty.
    """
    first = inputs[0] if inputs else None
    if first is None or first.tensor is None or first.tensor.bits % 8 or not first.shape:
        return None
    find = {"Gather": _gathered, "Slice": _sliced}.get(operator)
    bounds = None if find is None else find(first.shape, list(inputs[1:]), attributes)
    if bounds is None or not all(map(len, bounds)):
        return None
    strides = [*accumulate(reversed(first.shape[1:]), int.__mul__, initial=1)][::-1]
    offset = sum(axis.start * stride for axis, stride in zip(bounds, strides, strict=True))
    steps = [axis.step * stride for axis, stride in zip(bounds, strides, strict=True)]
    return region(offset, [len(axis) for axis in bounds], steps, first.tensor.bits // 8)


def _gathered(
    shape: Sequence[int], given: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> list[range] | None:
    axis, rows = int(attributes.get("axis", 0)), _numbers(given, 0)
    if not rows or not -len(shape) <= axis < len(shape):
        return None
    chosen = sorted({row % shape[axis] for row in rows if -shape[axis] <= row < shape[axis]})
    if not chosen or chosen[-1] - chosen[0] >= len(chosen):
        return None
    bounds = [range(size) for size in shape]
    bounds[axis] = range(chosen[0], chosen[-1] + 1)
    return bounds


def _sliced(
    shape: Sequence[int], given: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> list[range] | None:
    found = [
        attributes.get(name, _numbers(given, place))
        for place, name in enumerate(("starts", "ends", "axes", "steps"))
    ]
    if any(
        numbers is None and (place < 2 or given[place : place + 1] not in ([], [None]))
        for place, numbers in enumerate(found)
    ):
        return None
    starts, ends, axes, steps = found
    bounds = [range(size) for size in shape]
    for axis, start, end, step in zip(
        axes or range(len(shape)), starts, ends, steps or [1] * len(shape), strict=False
    ):
        if not -len(shape) <= axis < len(shape) or step < 1:
            return None
        bounds[axis] = range(*slice(start, end, step).indices(shape[axis]))
    return bounds


def _numbers(given: Sequence[OnnxValue | None], place: int) -> list[int] | None:
    value = given[place] if place < len(given) else None
    return (
        None if value is None or value.known is None else [int(n) for n in value.known.reshape(-1)]
    )


# -- functions -------------------------------------------------------------------------------------


_Key = tuple[str, str, str]


def check_calls(model: onnx.ModelProto) -> None:
    """Raise :class:`InputError` if functions call each other in a circle, too deeply, or so often
    that there are too many nodes.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {
        key: {_called(node) for node in _nodes(f.node)} & functions.keys()
        for key, f in functions.items()
    }
    sizes: dict[_Key, int] = {}
    depths: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            depths[key] = within(
                "nesting_depth",
                1 + max((depths[called] for called in calls[key]), default=0),
                where=key[1][:100],
            )
            sizes[key] = _size(functions[key].node, sizes)
    except CycleError as error:
        raise InputError(
            "function calls itself, directly or indirectly; export the model again",
            where=error.args[1][0][1][:100],
        ) from None
    if _size(model.graph.node, sizes) > limit("nodes"):
        raise refusal("nodes", where="functions, written out where they are called")


def _size(nodes: Sequence[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    """Return the number of nodes with the called functions inlined; any number beyond the limit if
    there are more.
    """
    total, most = 0, limit("nodes")
    for node in _nodes(nodes):
        total += sizes.get(_called(node), 1)
        if total > most:
            break
    return total


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield these nodes and those of the graphs in their attributes."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                pending += graph.node


def _called(node: onnx.NodeProto) -> _Key:
    """The function that a node calls, if there is one of this name."""
    return node.domain, node.op_type, node.overload


# -- the walk --------------------------------------------------------------------------------------


_NOTES = {
    "durations": "not in the file; the cost model estimates them from FLOP and bytes",
    "workspaces": "not in the file",
    "sizes": "as inferred by the onnx package; views share the tensor that they show",
}
_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Cast"}
_REFUSED = {"Loop", "Scan", "SequenceMap"}
_GATHERS = {"Gather", "GatherElements", "GatherND", "Slice", "Compress"}
_OWN = ("", "ai.onnx", "ai.onnx.ml")
_FLOATING = (1, 10, 11, 16)
_WHOLE = (6, 7, 9)  # int32, int64 and bool: never weights


def walk(content: bytes, name: str, dims: Mapping[str, int]) -> Graph:
    """Return the workload graph of the model with these contents. Raises :class:`InputError`."""
    try:
        model = onnx.ModelProto.FromString(content)
        if len(model.functions):
            check_calls(model)
            model = inliner.inline_local_functions(model)
        return _OnnxWalk(model).graph(name, dims)
    except InputError:
        raise
    except (DecodeError, UnicodeDecodeError):
        raise InputError("damaged or cut off; expected protobuf of ONNX, export it again") from None
    except (
        RuntimeError,
        ValueError,
        TypeError,
        MemoryError,
        OverflowError,
        onnx.checker.ValidationError,
    ) as error:
        raise InputError(
            f"damaged model: {' '.join(str(error).split())[:200]}; export it again"
        ) from None


@dataclass(slots=True)
class _OnnxWalk:
    model: onnx.ModelProto
    recording: Recording = field(default_factory=Recording)
    opsets: dict[str, int] = field(default_factory=dict)
    declared: dict[str, OnnxValue] = field(default_factory=dict)

    def graph(self, name: str, dims: Mapping[str, int]) -> Graph:
        main = self.model.graph
        self.opsets = {
            "" if o.domain == "ai.onnx" else o.domain: min(int(o.version), 1 << 30)
            for o in self.model.opset_import
        }
        sizes = _sizes(main, dims)
        values = self._constants(main)
        for given in main.input:
            if given.name not in values:
                values[given.name] = self._input(given, sizes)
        if not sizes:  # given sizes of free dimensions invalidate the exporter's shapes
            self._declare(main)
        results = self._run(main, values, "")
        producer = f"{self.model.producer_name} {self.model.producer_version}".strip()
        meta: dict[str, Any] = {"source": "ONNX", "onnx": onnx.__version__, "producer": producer}
        if dims:
            meta["dims"] = dict(sorted(dims.items()))
        meta |= {**self.recording.missing(), **_NOTES}
        return self.recording.graph(name, meta, [v.tensor for v in results if v.tensor is not None])

    def _declare(self, graph: onnx.GraphProto) -> None:
        for given in (*graph.value_info, *graph.output):
            value = of_type(given.type)
            if value is not None:
                self.declared[given.name] = value

    def _constants(self, graph: onnx.GraphProto) -> dict[str, OnnxValue]:
        values = {
            tensor.name: self._held(tensor.name, constant(tensor)) for tensor in graph.initializer
        }
        for sparse in graph.sparse_initializer:
            raise InputError(
                "sparse initializers cannot be imported; export the model with dense ones",
                where=sparse.values.name[:100],
            )
        return values

    def _held(self, name: str, value: OnnxValue) -> OnnxValue:
        """A constant: a number, or a tensor that exists from the start."""
        if value.is_number:
            return value
        kind = "expert" if "experts" in name.split(".") else "parameter"
        if value.element in _WHOLE:
            kind = "buffer"
        return replace(
            value,
            tensor=self.recording.tensor(name, value.shape, dtype_of(value.element, name), kind),
        )

    def _input(self, given: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> OnnxValue:
        tensor = given.type.tensor_type
        shape = [
            sizes[_label(given, i)] if _is_free(dim) else dim.dim_value
            for i, dim in enumerate(tensor.shape.dim)
        ]
        element = int(tensor.elem_type)
        made = self.recording.tensor(given.name, shape, dtype_of(element, given.name), "input")
        return OnnxValue(made.shape, element, tensor=made)

    def _run(
        self, graph: onnx.GraphProto, values: dict[str, OnnxValue], prefix: str
    ) -> Sequence[OnnxValue]:
        """Return the results of a graph; ``values`` are those of its inputs and outer names."""
        for i, node in enumerate(graph.node):
            self._node(node, values, f"{prefix}{node.name or f'{node.op_type}_{i}'}"[:200])
        missing = [given.name for given in graph.output if given.name not in values]
        if missing:
            raise InputError(
                f"output {missing[0][:100]!r} has no node that makes it; export the model again"
            )
        return [values[given.name] for given in graph.output]

    def _node(self, node: onnx.NodeProto, values: dict[str, OnnxValue], where: str) -> None:
        operator = node.op_type
        unknown = [name for name in node.input if name and name not in values]
        if unknown:
            raise InputError(
                f"uses {unknown[0][:100]!r} before any node makes it; export the model again",
                where=where,
            )
        attributes = attributes_of(node)
        if operator == "If":
            values.update(
                zip(node.output, self._branch(node, attributes, values, where), strict=False)
            )
            return
        if operator in _REFUSED or any(a.HasField("g") or a.graphs for a in node.attribute):
            raise InputError(
                f"operator {operator[:50]} is a loop over a graph; export the model unrolled, "
                "without it",
                where=where,
            )
        inputs = [values[name] if name else None for name in node.input]
        if operator == "Constant":
            values.update(self._constant_node(node, attributes, where))
            return
        given = {name: values[name] for name in node.input if name}
        try:
            made = infer(node, given, self.opsets, self.model.ir_version, where)
        except InputError as error:
            raise InputError(f"{error.message}{self._fixed(node, given)}", where=where) from None
        outputs = [name for name in node.output if name]
        theirs = None if made else _contributed(node, inputs, attributes)
        for place, name in enumerate(node.output):
            if name and name not in made and name in self.declared:
                made[name] = self.declared[name]
            elif name and name not in made and theirs is not None and place < len(theirs[0]):
                made[name] = OnnxValue(theirs[0][place], _element(node.op_type, inputs))
        for name in outputs:
            if name not in made:
                what = (
                    f"the shape of what operator {operator[:50]} returns is not known without "
                    "data; export the model with fixed shapes"
                )
                raise InputError(f"{what}{self._fixed(node, given)}", where=where)
        known = compute(node, given, made, self.opsets)
        found = {name: replace(made[name], known=known.get(name)) for name in outputs}
        if all(value.is_number for value in found.values()):
            values.update(found)
            return
        self._step(node, inputs, found, attributes, where, None if theirs is None else theirs[1])
        values.update(found)

    def _fixed(self, node: onnx.NodeProto, given: Mapping[str, OnnxValue]) -> str:
        """Return a hint at the sizes that the file fixes, for given sizes that do not fit: those of
        the node's values, or else of the model's.
        """
        main = self.model.graph
        if not any(_is_free(dim) for one in main.input for dim in one.type.tensor_type.shape.dim):
            return ""
        said = {
            one.name: _shape_text(one)
            for one in (*main.input, *main.value_info, *main.output)
            if one.name
        }
        here = [
            f"{name[:40]!r} is {list(value.shape)}, in the file {said[name]}"
            for name, value in given.items()
            if name in said
        ]
        held = {tensor.name: list(tensor.dims) for tensor in main.initializer}
        here += [f"{name[:40]!r} is {held[name]} in the file" for name in given if name in held]
        whole = [
            f"{one.name[:40]!r} {said[one.name]}"
            for one in (*main.input, *main.output)
            if one.name not in held
        ]
        listed = here if any(name in said for name in given) else [*here, *whole]
        return f"; give sizes that fit what the file fixes: {', '.join(listed[:6])}"

    def _constant_node(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str
    ) -> dict[str, OnnxValue]:
        if len(node.output) != 1 or len(attributes) != 1:
            raise InputError("a constant has one output and one value", where=where)
        ((key, value),) = attributes.items()
        if key == "value" and isinstance(value, onnx.TensorProto):
            return {node.output[0]: self._held(node.output[0], constant(value))}
        made = infer(node, {}, self.opsets, self.model.ir_version, where).get(node.output[0])
        if made is None or key not in ("value_int", "value_ints", "value_float", "value_floats"):
            raise InputError(
                f"a constant with {key[:50]!r} cannot be imported; expected a tensor or numbers",
                where=where,
            )
        import numpy as np

        known = np.array(value, dtype=np.float32 if "float" in key else np.int64)
        return {node.output[0]: self._held(node.output[0], replace(made, known=known))}

    def _branch(
        self,
        node: onnx.NodeProto,
        attributes: Mapping[str, Any],
        values: Mapping[str, OnnxValue],
        where: str,
    ) -> Sequence[OnnxValue]:
        """Return the outputs of an ``If``: those of the branch that its condition chooses, or of
        the larger one if it depends on data.
        """
        ways = [attributes.get("then_branch"), attributes.get("else_branch")]
        first, second = ways
        if (
            len(node.input) != 1
            or not isinstance(first, onnx.GraphProto)
            or not isinstance(second, onnx.GraphProto)
        ):
            raise InputError("an If has one condition and two branches", where=where)

        def follow(graph: onnx.GraphProto) -> Sequence[OnnxValue]:
            return self._run(graph, {**values, **self._constants(graph)}, f"{where}/")

        condition = values[node.input[0]].known if node.input[0] else None
        if condition is not None and condition.size == 1:
            return follow(first if bool(condition.reshape(-1)[0]) else second)
        before = dict(self.declared)
        self._declare(first)
        self._declare(second)
        try:
            results: Sequence[OnnxValue] = self.recording.larger(
                lambda: follow(first), lambda: follow(second)
            )
        finally:
            self.declared = before
        return [
            replace(value, known=None) if value.tensor is not None else value for value in results
        ]

    def _step(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[OnnxValue | None],
        found: dict[str, OnnxValue],
        attributes: Mapping[str, Any],
        where: str,
        flops: int | None,
    ) -> None:
        """Give every output its tensor, as a view or as the result of an op. ``flops`` are those of
        an operator outside the ONNX standard.
        """
        first = inputs[0] if inputs else None
        if (
            node.op_type in _VIEWS
            and len(found) == 1
            and first is not None
            and first.tensor is not None
        ):
            ((name, value),) = found.items()
            view = StaticTensor(first.tensor.storage, value.shape, *dtype_of(value.element, name))
            if view.size_bytes == first.tensor.size_bytes and value.element == first.element:
                found[name] = replace(value, tensor=view)
                return
        for name, value in list(found.items()):
            found[name] = replace(
                value,
                tensor=self.recording.tensor(name, value.shape, dtype_of(value.element, name)),
            )
        shapes = [None if value is None else value.shape for value in inputs]
        made = next(iter(found.values())).shape
        foreign = flops is None and node.domain not in _OWN
        if flops is None:
            flops = onnx_flops(node.op_type, shapes, made, attributes)
        self.recording.step(
            where,
            operator_kind(node.op_type),
            [value.tensor for value in inputs if value is not None and value.tensor is not None],
            [value.tensor for value in found.values() if value.tensor is not None],
            flops=flops,
            kernel=onnx_kernel(node.op_type, shapes, made, flops),
            part=UsedPart(
                gathers=node.op_type in _GATHERS,
                shown=shown_of(node.op_type, inputs, attributes) if node.domain in _OWN else None,
            ),
            unknown=foreign,
        )


def _contributed(
    node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], attributes: Mapping[str, Any]
) -> Answer | None:
    """Return the result shapes and FLOP of an operator of onnxruntime; some of these are in ONNX's
    own domain.
    """
    if node.domain != "com.microsoft" and not (
        node.domain in _OWN and node.op_type.endswith("LayerNormalization")
    ):
        return None
    return contrib(
        node.op_type,
        ContribCall([None if value is None else value.shape for value in inputs], attributes),
    )


def _element(operator: str, inputs: Sequence[OnnxValue | None]) -> int:
    """The element type of an onnxruntime operator's result: that of the first
    floating-point input.
    """
    elements = [value.element for value in inputs if value is not None]
    if operator == "QuantizeLinear":
        return elements[2] if len(elements) > 2 else 2
    return next((element for element in elements if element in _FLOATING), elements[0])


def _label(given: onnx.ValueInfoProto, axis: int) -> str:
    """The name of a free dimension: the model's, else ``x[0]``."""
    name = given.type.tensor_type.shape.dim[axis].dim_param
    return name if name.strip("?") else f"{given.name}[{axis}]"


def _shape_text(given: onnx.ValueInfoProto) -> str:
    """The shape that a model declares for a value, with the names of free sizes: ``[batch, 3, 224,
    224]``.
    """
    sizes = (
        ("?" if not dim.dim_param.strip("?") else dim.dim_param) if _is_free(dim) else dim.dim_value
        for dim in given.type.tensor_type.shape.dim
    )
    return f"[{', '.join(str(size)[:20] for size in sizes)}]"


def _is_free(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Return whether a size is free; some exporters write -1 for it."""
    return not dim.HasField("dim_value") or dim.dim_value == -1


def _sizes(graph: onnx.GraphProto, dims: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes of the inputs' free dimensions. Raises :class:`InputError` for one without a
    size, and for unknown ``dims``.
    """
    held = {tensor.name for tensor in graph.initializer}
    free: dict[str, None] = {}
    for given in graph.input:
        if given.name in held:
            continue
        if not given.type.HasField("tensor_type") or not given.type.tensor_type.HasField("shape"):
            raise InputError(
                f"input {given.name[:100]!r} is not a tensor with a shape; export the model with "
                "one"
            )
        for i, dim in enumerate(given.type.tensor_type.shape.dim):
            if _is_free(dim):
                free[_label(given, i)] = None
    wrong = [name for name in dims if name not in free]
    if wrong:
        there = f"its free ones are: {', '.join(free)}" if free else "it has no free ones"
        raise InputError(f"the model has no dimension {wrong[0]!r}; {there}")
    if any(not 0 <= size < LARGEST for size in dims.values()):
        raise InputError("the size of a dimension is a whole number of at least 0")
    open_ = [name for name in free if name not in dims]
    if open_:
        options = " ".join(
            f"--dim '{name}=1'" if "[" in name else f"--dim {name}=1" for name in open_
        )
        raise InputError(
            f"dimensions without a size: {', '.join(open_)}; give them: hosim import MODEL "
            f"{options} -o FILE"[:500]
        )
    return dict(dims)
