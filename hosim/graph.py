"""The workload graph: tensors and ops, as frozen, integer-indexed data.

An op names its tensors by their position in :attr:`Graph.tensors` and its ``deps`` by position in :attr:`Graph.ops`.
The listed order of the ops is the execution order of every stream. :class:`GraphBuilder` builds a graph by names;
:meth:`Graph.to_networkx` is the view for people and for networkx' algorithms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from hosim.collector import no_collection
from hosim.derived import Deriving
from hosim.errors import GraphError
from hosim.frozen_twins import twin_of
from hosim.in_cells import InCells
from hosim.plain_text import counted, printable
from hosim.units import LARGEST, human_size

if TYPE_CHECKING:
    import networkx

T = TypeVar("T")
N = TypeVar("N")

KINDS = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "kv_cache",
    "expert",
    "input",
    "output",
    "buffer",
)
"""Every kind of tensor, in the order in which tables and plots list them."""

_KNOWN_KINDS = frozenset(KINDS)

PERSISTENT_KINDS = frozenset({"parameter", "optimizer_state", "expert", "kv_cache", "input", "buffer"})
"""Kinds that hold their contents at time 0 and survive the step, unless a tensor says otherwise."""


MAIN_STREAM = "compute"
"""The stream that ops are in unless they say otherwise."""

DEVICE = "device"
"""What files and messages call the processor of the device."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One storage; views of it are the same tensor.

    Parameters
    ----------
    name
        Its name, unique in the graph.
    size_bytes
        The bytes it occupies.
    kind
        One of :data:`KINDS`.
    home
        The tier of its valid copy at time 0; ``None``: the device tier, or no tier for a tensor that the step itself produces.
    persistent
        Whether it is valid at time 0 and survives the step. ``None`` takes the default of the kind; after construction it is a bool.

    References
    ----------
    ``docs/formats.md`` describes workloads.

    Examples
    --------
    >>> Tensor("w", 40, "parameter").persistent, Tensor("a", 30).persistent
    (True, False)
    """

    name: str
    size_bytes: int
    kind: str = "activation"
    home: str | None = None
    persistent: bool | None = None

    def __post_init__(self) -> None:
        if self.persistent is None:
            object.__setattr__(self, "persistent", self.kind in PERSISTENT_KINDS)


@dataclass(frozen=True, slots=True)
class Op:
    """One computation.

    Parameters
    ----------
    name
        Its name, unique in the graph.
    kind
        What it computes, such as ``matmul``.
    inputs
        The positions of the tensors it reads.
    outputs
        The positions of the tensors it produces.
    mutates
        The positions of the tensors it changes in place.
    deps
        The positions of ops that must end before it starts, beyond those that tensors imply.
    stream
        The stream it runs on.
    duration_ns
        Its measured duration in nanoseconds, which wins over the cost model.
    flops
        Floating-point operations.
    bytes_accessed
        Bytes read and written in the tier of its processor.
    dtype
        The data type, which chooses the peak of the processor.
    workspace_bytes
        Bytes held in the tier of its processor while it runs.
    kernel
        The class of kernels that it is one of, such as ``gemm``; empty: none that hosim knows.
    sizes
        The sizes of that class, in its order.
    processor
        The tier whose processor runs it; empty: the device.
    also_on
        Other processors that a plan may let it run on instead, each with its measured duration there, or ``None``: what the cost model
        says.

    References
    ----------
    :mod:`hosim.costmodel.op_time` estimates its time if ``duration_ns`` is ``None``.

    Examples
    --------
    >>> Op("f", "matmul", inputs=(0,), mutates=(1,), outputs=(2,)).uses
    (0, 2, 1)
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    deps: tuple[int, ...] = ()
    stream: str = MAIN_STREAM
    duration_ns: int | None = None
    flops: int = 0
    bytes_accessed: int = 0
    dtype: str = "bf16"
    workspace_bytes: int = 0
    kernel: str = ""
    sizes: tuple[int, ...] = ()
    processor: str = ""
    also_on: tuple[tuple[str, int | None], ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """Tensors that must be resident when the op starts: its inputs and what it mutates, each once."""
        return self.inputs if not self.mutates else tuple(dict.fromkeys(self.inputs + self.mutates))

    @property
    def writes(self) -> tuple[int, ...]:
        """Tensors whose contents the op sets: its outputs and what it mutates, each once."""
        return self.outputs if not self.mutates else tuple(dict.fromkeys(self.outputs + self.mutates))

    @property
    def uses(self) -> tuple[int, ...]:
        """Every tensor the op touches (input, output or mutated), each once."""
        return tuple(dict.fromkeys(self.inputs + self.outputs + self.mutates))


_TensorTwin, _OpTwin = twin_of(Tensor), twin_of(Op)


@dataclass(frozen=True)
class Graph(Deriving, InCells):
    """A workload: tensors, and ops in the order in which each stream runs them.

    Parameters
    ----------
    name
        The workload's name.
    tensors
        The tensors; ops refer to them by position.
    ops
        The ops, in execution order.
    meta
        Anything about where it came from: source, command, model, versions, shapes.

    Raises
    ------
    GraphError
        If it contradicts itself.

    References
    ----------
    ``docs/contract.md``, rule 1, says which op waits for which; ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> graph = Graph("toy", (Tensor("w", 40, "parameter"),), (Op("f", "matmul", inputs=(0,), duration_ns=50),))
    >>> graph.streams, graph.users
    (('compute',), ((0,),))
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    meta: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check(self)

    def __repr__(self) -> str:
        held = human_size(sum(self.tensors[t].size_bytes for t in self.initial))
        sizes = f"{counted(len(self.ops), 'op')}, {counted(len(self.tensors), 'tensor')}, {held} at the start"
        return f"<Graph {printable(self.name)}: {sizes}>"

    @cached_property
    def tensor_index(self) -> Mapping[str, int]:
        """Position of each tensor by name."""
        return {tensor.name: i for i, tensor in enumerate(self.tensors)}

    @cached_property
    def op_index(self) -> Mapping[str, int]:
        """Position of each op by name."""
        return {op.name: i for i, op in enumerate(self.ops)}

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """Streams in the order of their first op."""
        return tuple(dict.fromkeys(op.stream for op in self.ops))

    @property
    def main_stream(self) -> str:
        """The stream whose figures are a result's: ``compute``, or the first one where none has that name."""
        return MAIN_STREAM if MAIN_STREAM in self.streams else self.streams[0] if self.streams else MAIN_STREAM

    @cached_property
    def elsewhere(self) -> tuple[int, ...]:
        """The ops that run on other processors than the device (docs/contract.md, rule 20), ascending."""
        return tuple([i for i, op in enumerate(self.ops) if op.processor])

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The ops whose processor a plan may choose (:attr:`Op.also_on`), ascending."""
        return tuple([i for i, op in enumerate(self.ops) if op.also_on])

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the positions of the ops that use it, ascending."""
        users: list[Any] = [()] * len(self.tensors)  # tuples while they are short: most are, and lists take more room
        for i, op in enumerate(self.ops):
            for t in op.inputs + op.outputs + op.mutates:
                known = users[t]
                if known and known[-1] == i:
                    continue
                if len(known) < 4:
                    users[t] = (*known, i)
                elif len(known) == 4:
                    users[t] = [*known, i]
                else:
                    known.append(i)
        return tuple(map(tuple, users))

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the positions of the ops that write it, ascending."""
        writers: list[list[int]] = [[] for _ in self.tensors]
        for i, op in enumerate(self.ops):
            for t in op.writes:
                writers[t].append(i)
        return tuple(map(tuple, writers))

    @cached_property
    def initial(self) -> tuple[int, ...]:
        """Tensors that hold a valid copy at time 0 by default, at their home.

        These are the persistent ones, and those that are used before the step produces them.
        """
        held = bytearray([bool(tensor.persistent) for tensor in self.tensors])
        seen = bytearray(len(self.tensors))
        for op in self.ops:
            for t in op.inputs + op.mutates:
                if not seen[t]:
                    seen[t] = held[t] = 1
            for t in op.outputs:
                seen[t] = 1
        return tuple([t for t, is_held in enumerate(held) if is_held])

    @cached_property
    def survives(self) -> tuple[bool, ...]:
        """Whether each tensor outlives the step: persistent ones and those of kind ``output``."""
        return tuple(bool(t.persistent) or t.kind == "output" for t in self.tensors)

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that must end before it starts, ascending (docs/contract.md, rule 1).

        The last earlier writer of each tensor that it reads, for what it writes itself every earlier user of that
        tensor, and its ``deps``. Of the earlier users only those since the last writer are listed: that writer itself
        waits for all before it, so the relation is the same and its size stays linear.
        """
        writer: list[int] = [-1] * len(self.tensors)
        readers: list[list[int]] = [[] for _ in self.tensors]
        all_producers = []
        for i, op in enumerate(self.ops):
            before = set(op.deps)
            for t in op.inputs:
                before.add(writer[t])
            for t in op.writes:
                before.add(writer[t])
                before.update(readers[t])
            before.discard(-1)
            for t in op.inputs:
                readers[t].append(i)
            for t in op.writes:
                writer[t] = i
                readers[t] = []
            all_producers.append(tuple(sorted(before)))
        return tuple(all_producers)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """Ops as nodes (named, with their fields), producer relations as edges with the tensors that carry them."""
        import networkx

        view: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        for i, op in enumerate(self.ops):
            view.add_node(op.name, position=i, kind=op.kind, stream=op.stream, duration_ns=op.duration_ns, flops=op.flops)
            touched = set(op.uses)
            for p in self.producers[i]:
                shared = [self.tensors[t].name for t in self.ops[p].uses if t in touched]
                view.add_edge(self.ops[p].name, op.name, tensors=tuple(shared))
        return view


def _check(graph: Graph) -> None:
    """Raise :class:`GraphError` at the first contradiction, with its path as in the file format."""
    if not _consistent(graph.tensors, graph.ops):
        _explain(graph)


def _consistent(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> bool:
    """Whether nothing contradicts itself: the rules of :func:`_explain` in a quarter of its time, without saying which is broken."""
    names = {tensor.name for tensor in tensors}
    op_names = {op.name for op in ops}
    mixed = len({op.processor for op in ops}) > 1 and len({(op.stream, op.processor) for op in ops}) > len({op.stream for op in ops})
    if mixed or len(names) < len(tensors) or len(op_names) < len(ops) or "" in names or "" in op_names:
        return False
    sizes = [tensor.size_bytes for tensor in tensors]
    if not {tensor.kind for tensor in tensors} <= _KNOWN_KINDS or min(sizes, default=0) < 0 or max(sizes, default=0) > LARGEST:
        return False
    there = [bool(tensor.persistent or tensor.home) for tensor in tensors]
    count = len(tensors)
    for i, op in enumerate(ops):
        inputs, outputs, mutates = op.inputs, op.outputs, op.mutates
        for t in inputs:
            if not 0 <= t < count or not there[t]:
                return False
        for t in mutates:
            if not 0 <= t < count or not there[t]:
                return False
        for t in outputs:
            if not 0 <= t < count:
                return False
            there[t] = True
        if (len(inputs) > 1 and len(set(inputs)) < len(inputs)) or (len(outputs) > 1 and len(set(outputs)) < len(outputs)):
            return False
        if len(mutates) > 1 and len(set(mutates)) < len(mutates):
            return False
        if op.deps and not (min(op.deps) >= 0 and max(op.deps) < i):
            return False
        if not (0 <= op.flops <= LARGEST and 0 <= op.bytes_accessed <= LARGEST and 0 <= op.workspace_bytes <= LARGEST):
            return False
        if op.duration_ns is not None and not 0 <= op.duration_ns <= LARGEST:
            return False
        if op.also_on and _wrong_processors(op):
            return False
    return True


def _wrong_processors(op: Op) -> str:
    """What is wrong with the other processors of an op; empty if nothing is."""
    names = [op.processor, *[name for name, _ in op.also_on]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"lists the processor {twice or DEVICE!r} twice (its own is {op.processor or DEVICE!r})"
    wrong = [ns for _, ns in op.also_on if ns is not None and not 0 <= ns <= LARGEST]
    return f"expected a duration of at least 0 and up to 2^63-1, got {wrong[0]!r:.30}" if wrong else ""


def _too_large(figure: int) -> str:
    return f"expected an integer up to 2^63-1, got {figure if figure < 10**30 else 'one of more than 30 digits'}"


def _explain(graph: Graph) -> None:
    """Raise :class:`GraphError` for the first contradiction."""
    names: set[str] = set()
    for i, tensor in enumerate(graph.tensors):
        if not tensor.name or tensor.name in names:
            raise GraphError(f"tensor name {tensor.name!r} is {'listed twice' if tensor.name else 'empty'}", where=f"tensors[{i}].name")
        names.add(tensor.name)
        if tensor.kind not in KINDS:
            raise GraphError(f"unknown kind {tensor.kind!r}; expected one of {', '.join(KINDS)}", where=f"tensors[{i}].kind")
        if tensor.size_bytes < 0:
            raise GraphError(f"expected bytes of at least 0, got {tensor.size_bytes}", where=f"tensors[{i}].bytes")
        if tensor.size_bytes > LARGEST:
            raise GraphError(_too_large(tensor.size_bytes), where=f"tensors[{i}].bytes")
    names.clear()
    written, processors = bytearray(len(graph.tensors)), dict[str, str]()
    for i, op in enumerate(graph.ops):
        if not op.name or op.name in names:
            raise GraphError(f"op name {op.name!r} is {'listed twice' if op.name else 'empty'}", where=f"ops[{i}].name")
        names.add(op.name)
        if processors.setdefault(op.stream, op.processor) != op.processor:
            message = f"op {op.name!r} is on the stream {op.stream!r} with ops of another processor; give it a stream of its own"
            raise GraphError(message, where=f"ops[{i}].processor")
        for label in ("duration_ns", "flops", "bytes_accessed", "workspace_bytes"):
            value = getattr(op, label)
            if value is not None and value < 0:
                raise GraphError(f"expected at least 0, got {value}", where=f"ops[{i}].{label}")
            if value is not None and value > LARGEST:
                raise GraphError(_too_large(value), where=f"ops[{i}].{label}")
        if op.also_on and (wrong := _wrong_processors(op)):
            raise GraphError(f"op {op.name!r}: {wrong}", where=f"ops[{i}].also_on")
        for label in ("inputs", "outputs", "mutates"):
            listed: tuple[int, ...] = getattr(op, label)
            for j, t in enumerate(listed):
                if not 0 <= t < len(graph.tensors):
                    raise GraphError(f"no tensor number {t}", where=f"ops[{i}].{label}[{j}]")
                tensor = graph.tensors[t]
                if label != "outputs" and not (written[t] or tensor.persistent or tensor.home):
                    raise GraphError(
                        f"op {op.name!r} uses tensor {tensor.name!r} before any op produces it; "
                        "list its producer first, or give the tensor a home if it is there from the start",
                        where=f"ops[{i}].{label}[{j}]",
                    )
            if len(set(listed)) != len(listed):
                raise GraphError(f"op {op.name!r} lists a tensor twice", where=f"ops[{i}].{label}")
        for t in op.outputs:
            written[t] = 1
        for j, d in enumerate(op.deps):
            if not 0 <= d < i:
                raise GraphError(f"op {op.name!r} depends on an op that is not listed before it", where=f"ops[{i}].deps[{j}]")


class GraphBuilder:
    """Builds a :class:`Graph` by names, in execution order.

    Parameters
    ----------
    name
        The workload's name.
    meta
        Anything about where it came from.

    References
    ----------
    ``docs/formats.md`` describes workloads.

    Examples
    --------
    >>> b = GraphBuilder("toy")
    >>> b.tensor("w", 40, "parameter")
    'w'
    >>> b.tensor("a", 30)
    'a'
    >>> b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50)
    'f'
    >>> b.build().ops[0].inputs
    (0,)
    """

    def __init__(self, name: str, meta: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.meta = dict(meta or {})
        # rows of fields until the graph is built: unlike objects, the garbage collector need not look at them again and again
        self._tensors: list[Any] = []
        self._ops: list[Any] = []
        self._tensor_index: dict[str, int] = {}
        self._op_index: dict[str, int] = {}
        self._numbers: dict[Any, Any] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    def tensor(self, name: str, size_bytes: int, kind: str = "activation", home: str | None = None, persistent: bool | None = None) -> str:
        """Add a tensor.

        Parameters
        ----------
        name
            Its name.
        size_bytes
            The bytes it occupies.
        kind
            One of :data:`KINDS`.
        home
            The tier of its valid copy at time 0 (see :class:`Tensor`).
        persistent
            Whether it survives the step; ``None`` takes the default of the kind.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken.
        """
        if name in self._tensor_index:
            raise GraphError(f"tensor name {name!r} is listed twice", where=f"tensors[{len(self._tensors)}].name")
        self._tensor_index[name] = len(self._tensors)
        if persistent is None:
            persistent = kind in PERSISTENT_KINDS
        self._tensors.append((name, self._same(size_bytes), kind, home, persistent))
        return name

    def op(
        self,
        name: str,
        kind: str,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        mutates: Sequence[str] = (),
        deps: Sequence[str] = (),
        stream: str = MAIN_STREAM,
        duration_ns: int | None = None,
        flops: int = 0,
        bytes_accessed: int = 0,
        dtype: str = "bf16",
        workspace_bytes: int = 0,
        kernel: str = "",
        sizes: tuple[int, ...] = (),
        processor: str = "",
        also_on: Mapping[str, int | None] | None = None,
    ) -> str:
        """Add an op after those already there.

        Parameters
        ----------
        name
            Its name.
        kind
            What it computes, such as ``matmul``.
        inputs
            Names of the tensors it reads.
        outputs
            Names of the tensors it produces.
        mutates
            Names of the tensors it changes in place.
        deps
            Names of earlier ops that must end before it starts, beyond those that tensors imply.
        stream
            The stream it runs on.
        duration_ns
            Its measured duration in nanoseconds, which wins over the cost model.
        flops
            Floating-point operations.
        bytes_accessed
            Bytes read and written in the tier of its processor.
        dtype
            The data type.
        workspace_bytes
            Bytes held in the tier of its processor while it runs.
        kernel
            The class of kernels that it is one of.
        sizes
            The sizes of that class, in its order.
        processor
            The tier whose processor runs it; empty: the device.
        also_on
            Other processors that a plan may let it run on instead (``""``: the device), each with its measured duration in nanoseconds
            there, or ``None``.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken, or a tensor or an op is unknown.
        """
        if name in self._op_index:
            raise GraphError(f"op name {name!r} is listed twice", where=f"ops[{len(self._ops)}].name")
        read = self._found("inputs", inputs, self._tensor_index) if inputs else ()
        written = self._found("outputs", outputs, self._tensor_index) if outputs else ()
        mutated = self._found("mutates", mutates, self._tensor_index) if mutates else ()
        awaited = self._found("deps", deps, self._op_index) if deps else ()
        row = (
            name,
            kind,
            read,
            written,
            mutated,
            awaited,
            stream,
            duration_ns and self._same(duration_ns),
            flops and self._same(flops),
            bytes_accessed and self._same(bytes_accessed),
            dtype,
            workspace_bytes and self._same(workspace_bytes),
            kernel,
            sizes and self._shared.setdefault(sizes, sizes),
            processor,
            tuple(also_on.items()) if also_on else (),
        )
        self._op_index[name] = len(self._ops)
        self._ops.append(row)
        return name

    def _found(self, label: str, names: Iterable[str], index: Mapping[str, int]) -> tuple[int, ...]:
        """The positions of what an op names."""
        names = tuple(names)  # an iterator has its names once
        try:
            return tuple([index[name] for name in names])
        except KeyError:
            what, j = "earlier op" if label == "deps" else "tensor", next(j for j, name in enumerate(names) if name not in index)
            raise GraphError(f"unknown {what} {names[j]!r}", where=f"ops[{len(self._ops)}].{label}[{j}]") from None

    def _same(self, number: N) -> N:
        """The number, as one object with those that equal it: a large graph has few sizes and durations."""
        return self._numbers.setdefault(number, number) if type(number) is int else number

    def build(self) -> Graph:
        """The graph so far, checked."""
        _make_of_rows(self._tensors, _TensorTwin, Tensor)
        _make_of_rows(self._ops, _OpTwin, Op)
        return Graph(self.name, tuple(self._tensors), tuple(self._ops), self.meta)


def _make_of_rows(rows: list[Any], twin: type[Any], frozen: type[Any]) -> None:
    """Make what is still a row of fields in a list an object of the class whose twin is given, in its place."""
    with no_collection():
        for i, row in enumerate(rows):
            if type(row) is tuple:
                rows[i] = made = twin(*row)
                made.__class__ = frozen
