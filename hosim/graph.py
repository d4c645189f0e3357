"""The workload graph: tensors and ops, as frozen, integer-indexed data.

An op names its tensors by their position in :attr:`Graph.tensors` and its ``deps`` by position in
:attr:`Graph.ops`. The listed order of the ops is the execution order of every stream.
:class:`GraphBuilder` builds a graph by names; :meth:`Graph.to_networkx` is the view for people and
for networkx' algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hosim.base.collector import no_collection
from hosim.base.in_cells import InCells
from hosim.base.whole_numbers import not_whole, whole
from hosim.data.derived import Deriving
from hosim.data.field_kinds import keep_items
from hosim.data.graph_check import check_graph
from hosim.data.graph_parts import DEVICE, KINDS, MAIN_STREAM, PERSISTENT_KINDS, Op, Tensor
from hosim.data.graph_rows import OpRow, TensorRow, make_ops, make_tensors
from hosim.data.graph_users import CompactUsers
from hosim.errors import GraphError
from hosim.plain_text import counted, named, printable, shown
from hosim.units import human_size

if TYPE_CHECKING:
    import networkx

__all__ = [
    "DEVICE",
    "KINDS",
    "MAIN_STREAM",
    "PERSISTENT_KINDS",
    "Graph",
    "GraphBuilder",
    "Op",
    "Tensor",
]

WHOLE = (int, type(None))
TEXT = (str, type(None))


def _kept(value: Any) -> Any:
    """An integer of Python for a whole number; anything else as it is, until the graph is
    checked.
    """
    number = whole(value)
    return value if number is None else number


def _require_texts(where: str, **given: object) -> None:
    """Raise :class:`GraphError` for the first of these that is no text."""
    for key, value in given.items():
        if not isinstance(value, str):
            raise GraphError(f"expected a text, got {shown(value, 60)}", where=f"{where}.{key}")


def _text(name: object) -> str:
    """A name of a processor; raises ``TypeError``, as what is no mapping of names does."""
    if not isinstance(name, str):
        raise TypeError
    return name


def _figure(op: str, field: str, value: Any) -> Any:
    """An integer of Python, or ``None`` for the duration that another processor may have; raises
    :class:`GraphError`.
    """
    number = None if value is None and field == "also_on" else whole(value)
    if number is None and (value is not None or field != "also_on"):
        raise GraphError(not_whole(field, value), where=f"op {named(op)}, {field}")
    return number


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
    ``docs/contract.md``, rule 1, says which op waits for which; ``docs/formats.md`` describes the
    file.

    Examples
    --------
    >>> graph = Graph(
    ...     "toy",
    ...     (Tensor("w", 40, "parameter"),),
    ...     (Op("f", "matmul", inputs=(0,), duration_ns=50),),
    ... )
    >>> graph.streams, graph.users
    (('compute',), ((0,),))
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    meta: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        keep_items(self, GraphError, tensors=Tensor, ops=Op)
        check_graph(self.tensors, self.ops)

    def __repr__(self) -> str:
        held = human_size(sum(self.tensors[t].size_bytes for t in self.initial))
        sizes = (
            f"{counted(len(self.ops), 'op')}, {counted(len(self.tensors), 'tensor')}, {held} "
            "at the start"
        )
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
        """The stream whose figures are a result's: ``compute``, or the first one where none has
        that name.
        """
        return (
            MAIN_STREAM
            if MAIN_STREAM in self.streams
            else self.streams[0]
            if self.streams
            else MAIN_STREAM
        )

    @cached_property
    def elsewhere(self) -> tuple[int, ...]:
        """The ops that run on other processors than the device (docs/contract.md, rule 20),
        ascending.
        """
        return tuple([i for i, op in enumerate(self.ops) if op.processor])

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The ops whose processor a plan may choose (:attr:`Op.also_on`), ascending."""
        return tuple([i for i, op in enumerate(self.ops) if op.also_on])

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the positions of the ops that use it, ascending."""
        return tuple(self.compact_users)

    @cached_property
    def compact_users(self) -> CompactUsers:
        """The same in a tenth of the memory, for who looks at few tensors or at the first and the
        last user alone.
        """
        return CompactUsers(len(self.tensors), self.ops)

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
        positions = (
            self.tensor_index.values() if "tensor_index" in vars(self) else range(len(self.tensors))
        )  # integers that are there
        held = [t for t, tensor in zip(positions, self.tensors, strict=True) if tensor.persistent]
        unseen = {
            t for t, tensor in enumerate(self.tensors) if tensor.home and not tensor.persistent
        }  # the others are produced first
        for op in self.ops if unseen else ():
            early = unseen.intersection(op.inputs + op.mutates)
            held += early
            unseen -= early.union(op.outputs)
        return tuple(sorted(held))

    @cached_property
    def survives(self) -> tuple[bool, ...]:
        """Return whether each tensor outlives the step (:attr:`Tensor.survives`)."""
        return tuple([t.survives for t in self.tensors])

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that must end before it starts, ascending (docs/contract.md, rule
        1).

        The last earlier writer of each tensor that it reads, for what it writes itself every
        earlier user of that tensor, and its ``deps``. Of the earlier users only those since the
        last writer are listed: that writer itself waits for all before it, so the relation is the
        same and its size stays linear.
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
        """Ops as nodes (named, with their fields), producer relations as edges with the tensors
        that carry them.
        """
        import networkx

        view: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        for i, op in enumerate(self.ops):
            view.add_node(
                op.name,
                position=i,
                kind=op.kind,
                stream=op.stream,
                duration_ns=op.duration_ns,
                flops=op.flops,
            )
            touched = set(op.uses)
            for p in self.producers[i]:
                shared = [self.tensors[t].name for t in self.ops[p].uses if t in touched]
                view.add_edge(self.ops[p].name, op.name, tensors=tuple(shared))
        return view


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
        _require_texts("workload", name=name)
        if not isinstance(meta, Mapping | None):
            raise GraphError(f"expected a mapping, got {shown(meta, 60)}", where="meta")
        self.name = name
        self.meta = dict(meta or {})
        self._tensor_index: dict[str, int] = {}
        self._op_index: dict[str, int] = {}
        # Until the graph is built, names are in the indices, in order, what ops name is in one
        # list, and the rest is in rows. Equal rows are one object: a large graph has few of them,
        # and the garbage collector next to nothing to look at again and again.
        self._positions: list[int] = []
        self._tensor_rows: list[TensorRow] = []
        self._op_rows: list[OpRow] = []
        self._alike: dict[Any, Any] = {}
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []

    def tensor(
        self,
        name: str,
        size_bytes: int,
        kind: str = "activation",
        home: str | None = None,
        persistent: bool | None = None,
        of: str = "",
    ) -> str:
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
        of
            The whole that it is a part of.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken.
        """
        index = self._tensor_index
        if (
            not name.__class__ is kind.__class__ is of.__class__ is str
            or home.__class__ not in TEXT
        ):
            _require_texts(
                f"tensors[{len(index)}]",
                name=name,
                kind=kind,
                home="" if home is None else home,
                of=of,
            )
        if name in index:
            raise GraphError(
                f"tensor name {name!r} is listed twice", where=f"tensors[{len(index)}].name"
            )
        if persistent is None:
            persistent = kind in PERSISTENT_KINDS
        elif persistent.__class__ is not bool:
            raise GraphError(
                f"expected true or false, got {shown(persistent, 60)}",
                where=f"tensors[{len(index)}].persistent",
            )
        if size_bytes.__class__ is not int:
            size_bytes = _kept(size_bytes)
        row = size_bytes, kind, home, persistent, of
        if size_bytes.__class__ is int:  # what equals an integer need not be one
            row = self._alike.setdefault(row, row)
        index[name] = len(index)
        self._tensor_rows.append(row)
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
        message: str = "",
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
            Other processors that a plan may let it run on instead (``""``: the device), each with
            its measured duration in nanoseconds there, or ``None``.
        message
            What it sends, receives or exchanges with other stages of a pipeline, by a name that
            their ops have, too.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken, a tensor or an op is unknown, or one name stands in place of a
            list.
        """
        index, tensor_index, positions = self._op_index, self._tensor_index, self._positions
        if (
            not name.__class__
            is kind.__class__
            is stream.__class__
            is dtype.__class__
            is kernel.__class__
            is processor.__class__
            is message.__class__
            is str
        ):
            texts = {
                "kind": kind,
                "stream": stream,
                "dtype": dtype,
                "kernel": kernel,
                "processor": processor,
                "message": message,
            }
            _require_texts(f"ops[{len(index)}]", name=name, **texts)
        if name in index:
            raise GraphError(f"op name {name!r} is listed twice", where=f"ops[{len(index)}].name")
        if str in (inputs.__class__, outputs.__class__, mutates.__class__, deps.__class__):
            given = {"inputs": inputs, "outputs": outputs, "mutates": mutates, "deps": deps}
            label = next(key for key, names in given.items() if isinstance(names, str))
            raise GraphError(
                f"expected a list of names, got {shown(given[label])}",
                where=f"ops[{len(index)}].{label}",
            )
        start = begin = len(positions)
        label, mutated, awaited = "inputs", 0, 0
        try:
            for tensor in inputs:
                positions.append(tensor_index[tensor])
            label, begin = "outputs", len(positions)
            read = begin - start
            for tensor in outputs:
                positions.append(tensor_index[tensor])
            written = len(positions) - begin
            if mutates.__class__ is not tuple or mutates:
                label, begin = "mutates", len(positions)
                positions.extend(map(tensor_index.__getitem__, mutates))
                mutated = len(positions) - begin
            if deps.__class__ is not tuple or deps:
                label, begin = "deps", len(positions)
                positions.extend(map(index.__getitem__, deps))
                awaited = len(positions) - begin
            label = "also_on"
            others = (
                tuple(
                    [(_text(other), _figure(name, "also_on", ns)) for other, ns in also_on.items()]
                )
                if also_on is not None
                else ()
            )
            label = "sizes"
            if sizes.__class__ is not tuple or sizes:
                sizes = tuple([_figure(name, "sizes", size) for size in sizes])
            if duration_ns.__class__ not in WHOLE:
                duration_ns = _kept(duration_ns)
            if not flops.__class__ is bytes_accessed.__class__ is workspace_bytes.__class__ is int:
                flops, bytes_accessed, workspace_bytes = map(
                    _kept, (flops, bytes_accessed, workspace_bytes)
                )
            row: OpRow = (
                kind,
                read,
                written,
                mutated,
                awaited,
                stream,
                duration_ns,
                flops,
                bytes_accessed,
                dtype,
                workspace_bytes,
                kernel,
                sizes,
                processor,
                others,
                message,
            )
            if (
                flops.__class__ is bytes_accessed.__class__ is workspace_bytes.__class__ is int
                and duration_ns.__class__ in WHOLE
            ):
                row = self._alike.setdefault(row, row)
        except BaseException as error:
            place = f"ops[{len(index)}].{label}[{len(positions) - begin}]"
            del positions[start:]
            if isinstance(error, TypeError | AttributeError):
                parts = {
                    "inputs": inputs,
                    "outputs": outputs,
                    "mutates": mutates,
                    "also_on": also_on,
                    "sizes": sizes,
                }
                what = {
                    "also_on": "a mapping of processors to durations",
                    "sizes": "a list of sizes",
                }.get(label, "a list of names")
                raise GraphError(
                    f"expected {what}, got {shown(parts.get(label, deps), 60)}",
                    where=f"ops[{len(index)}].{label}",
                ) from None
            if isinstance(error, KeyError):
                what = "earlier op" if label == "deps" else "tensor"
                raise GraphError(f"unknown {what} {error.args[0]!r}", where=place) from None
            raise
        index[name] = len(index)
        self._op_rows.append(row)
        return name

    def build(self) -> Graph:
        """The graph so far, checked."""
        with no_collection():
            make_tensors(self._tensor_index, self._tensor_rows, self._tensors)
            make_ops(self._op_index, self._op_rows, self._positions, self._ops)
            tensors, ops = tuple(self._tensors), tuple(self._ops)
            check_graph(tensors, ops, self._tensor_index, self._op_index)
            graph = object.__new__(Graph)
            known = {"name": self.name, "tensors": tensors, "ops": ops, "meta": self.meta}
            graph.__dict__.update(known, tensor_index=self._tensor_index.copy())
            return graph
