"""The workload graph: tensors and ops, as frozen, integer-indexed data.

An op names its tensors by their position in :attr:`Graph.tensors` and its ``deps`` by position in
:attr:`Graph.ops`. Each stream runs its ops in the listed order.
:class:`GraphBuilder` builds a graph by names; :meth:`Graph.to_networkx` returns it as a networkx
graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Unpack

from hosim.base.in_cells import InCells
from hosim.data.columns import CompactUsers, Growing, Ops, Tensors
from hosim.data.derived import Deriving
from hosim.data.graph_check import check_graph
from hosim.data.graph_parts import (
    DEVICE,
    KINDS,
    MAIN_STREAM,
    PERSISTENT_KINDS,
    Op,
    OpFields,
    Tensor,
)
from hosim.errors import GraphError
from hosim.plain_text import counted, printable, shown
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


_WHOLE, _FLAG = (int, type(None)), (bool, type(None))


def _check_head(name: object, meta: object, where: str) -> None:
    """Raise :class:`GraphError` unless a graph's name is a text and its ``meta`` a mapping.

    The error gives ``where`` as the place of the name.
    """
    if not isinstance(name, str):
        raise GraphError(f"expected a text, got {shown(name, 60)}", where=where)
    if not isinstance(meta, Mapping | None):
        raise GraphError(f"expected a mapping, got {shown(meta, 60)}", where="meta")


def _new_op(name: Any, key: tuple[Any, ...], named: list[int], more: OpFields) -> Op:
    """Make an op from the arguments of a builder.

    ``named`` has the positions of all its lists, one list after another; ``key`` has the end of
    each list, then the kind, the stream, the duration and the FLOP. Raises :class:`GraphError`.
    """
    *ends, kind, stream, duration_ns, flops = key[:8]
    also_on = more.get("also_on")
    if not isinstance(also_on, Mapping | None) or not all(
        [isinstance(other, str) for other in also_on or ()]
    ):
        raise GraphError(
            f"expected a mapping of processors to durations, got {shown(also_on, 60)}",
            where=f"op {printable(str(name))}, also_on",
        )
    read, made, changed, awaited = [tuple(named[begin:end]) for begin, end in pairwise((0, *ends))]
    others: dict[str, Any] = {**more, "also_on": tuple((also_on or {}).items())}
    return Op(name, kind, read, made, changed, awaited, stream, duration_ns, flops, **others)


def _listed_twice(what: str, position: int, name: str) -> GraphError:
    return GraphError(f"{what} name {name!r} is listed twice", where=f"{what}s[{position}].name")


def _are_plain(more: OpFields) -> bool:
    """Return whether all fields and all ``sizes`` are texts, integers, tuples or ``None``.

    ``True`` and ``1.0`` equal 1, so a dictionary would take them for it.
    """
    values = chain(more.values(), more.get("sizes", ()))
    return {str, int, tuple, type(None)}.issuperset(map(type, values))


@dataclass(frozen=True, init=False)
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
        Its provenance: source, command, model, versions, shapes.

    Raises
    ------
    GraphError
        If the tensors and ops contradict each other.

    References
    ----------
    ``docs/contract.md``, rule 1, defines the order of ops; ``docs/formats.md`` describes the file.

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
    tensors: Tensors
    ops: Ops
    meta: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __init__(
        self,
        name: str,
        tensors: Sequence[Tensor],
        ops: Sequence[Op],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        _check_head(name, meta, "name")
        put = object.__setattr__
        put(self, "name", name)
        put(self, "tensors", Tensors.keep(tensors, "tensors"))
        put(self, "ops", Ops.keep(ops, "ops"))
        put(self, "meta", {} if meta is None else meta)
        check_graph(self.tensors, self.ops)

    def __repr__(self) -> str:
        held = human_size(sum(self.tensors[t].size_bytes for t in self.initial))
        sizes = (
            f"{counted(len(self.ops), 'op')}, {counted(len(self.tensors), 'tensor')}, {held} "
            "at the start"
        )
        return f"<Graph {printable(self.name)}: {sizes}>"

    @property
    def tensor_index(self) -> Mapping[str, int]:
        """The position of each tensor, by name."""
        return self.tensors.positions

    @property
    def op_index(self) -> Mapping[str, int]:
        """The position of each op, by name."""
        return self.ops.positions

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The streams, in the order of their first ops."""
        return tuple(dict.fromkeys([op.stream for op in self.ops.alike]))

    @property
    def main_stream(self) -> str:
        """The stream that results report: ``compute`` if there is one, else the first stream."""
        if MAIN_STREAM in self.streams or not self.streams:
            return MAIN_STREAM
        return self.streams[0]

    @cached_property
    def elsewhere(self) -> tuple[int, ...]:
        """The positions of the ops that do not run on the device (docs/contract.md, rule 20)."""
        return self.ops.those(lambda op: op.processor)

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The positions of the ops whose processor a plan may choose (:attr:`Op.also_on`)."""
        return self.ops.those(lambda op: op.also_on)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the positions of the ops that use it, ascending."""
        return tuple(self.compact_users)

    @cached_property
    def compact_users(self) -> CompactUsers:
        """The same as :attr:`users` in a tenth of the memory.

        It suits callers that need few tensors, or only the first and the last user.
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
        """The tensors that have a valid copy at time 0 by default, in their home tier.

        These are the persistent tensors, and those that an op reads before any op produces them.
        """
        held = [*self.tensors.those(lambda tensor: tensor.persistent)]
        unseen = {*self.tensors.those(lambda tensor: tensor.home and not tensor.persistent)}
        for op in self.ops if unseen else ():
            early = unseen.intersection(op.inputs + op.mutates)
            held += early
            unseen -= early.union(op.outputs)
        return tuple(sorted(held))

    @cached_property
    def survives(self) -> tuple[bool, ...]:
        """Return whether each tensor outlives the step (:attr:`Tensor.survives`)."""
        return tuple(self.tensors.column(lambda tensor: tensor.survives))

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that must end before it starts, ascending (docs/contract.md, rule
        1).

        These are the last writer of each tensor that the op reads, the users of each tensor that
        it writes, and its ``deps``. Users before a tensor's last writer are omitted: that writer
        waits for them already. So the size stays linear.
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
        """Return the graph as a networkx graph.

        Nodes are the ops by name, with their fields. Edges lead from producers to ops and have
        the tensors that both use.
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
    """A builder of a :class:`Graph`: it takes tensors and ops by name, in execution order.

    Parameters
    ----------
    name
        The workload's name.
    meta
        Its provenance.

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
        _check_head(name, meta, "workload.name")
        self.name = name
        self.meta = dict(meta or {})
        self._tensors = Growing[Tensor]()
        self._ops = Growing[Op]()
        self._named: list[int] = []
        self._tensor_at: dict[str, int] = {}
        # Op positions are rarely looked up, and a set takes half the time of a dict.
        self._op_names: list[str] = []
        self._taken = set[str]()
        self._op_at: dict[str, int] = {}

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
            Whether it survives the step; ``None`` stands for the default of the kind.
        of
            The name of the whole if it is a part.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken.
        """
        so_far, key = self._tensors, (size_bytes, kind, home, persistent, of)
        try:
            if not (
                name.__class__ is str
                and size_bytes.__class__ is int
                and persistent.__class__ in _FLAG
            ):
                raise KeyError
            code, made = so_far.known[key], None
        except (KeyError, TypeError):  # new or unhashable
            code, made = len(so_far.alike), Tensor(name, size_bytes, kind, home, persistent, of)
        position = len(so_far.codes)
        if self._tensor_at.setdefault(name, position) != position:
            raise _listed_twice("tensor", position, name)
        if made is not None:
            so_far.new(key, made)
        so_far.codes.append(code)
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
        **more: Unpack[OpFields],
    ) -> str:
        """Add an op after the ops added so far.

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
            Names of earlier ops that must end before it starts, besides the producers that its
            tensors imply.
        stream
            The stream it runs on.
        duration_ns
            Its measured duration in nanoseconds, which takes precedence over the cost model.
        flops
            Floating-point operations.
        **more
            The other fields of an :class:`Op`, with its defaults; ``also_on`` is a mapping here.

        Returns
        -------
        str
            The name.

        Raises
        ------
        GraphError
            If the name is taken, a tensor or an op is unknown, or a list is a single string.
        """
        so_far, named, at, start = self._ops, self._named, self._tensor_at, len(self._named)
        read = written = mutated = awaited = None
        try:
            if inputs.__class__ is str or outputs.__class__ is str:
                raise TypeError
            for tensor in inputs:
                named.append(at[tensor])
            read = len(named) - start
            for tensor in outputs:
                named.append(at[tensor])
            written = len(named) - start
            if mutates.__class__ is tuple is deps.__class__ and not (mutates or deps):
                mutated = awaited = written
            elif mutates.__class__ is str or deps.__class__ is str:
                raise TypeError
            else:
                named.extend(map(at.__getitem__, mutates))
                mutated = len(named) - start
                named.extend(map(self._op_positions().__getitem__, deps))
                awaited = len(named) - start
            key: tuple[object, ...]
            key = read, written, mutated, awaited, kind, stream, duration_ns, flops
            if more:
                key += tuple(more.items())
            try:
                if not (
                    name.__class__ is str
                    and flops.__class__ is int
                    and duration_ns.__class__ in _WHOLE
                    and (not more or _are_plain(more))
                ):
                    raise KeyError
                code, made = so_far.known[key], None
            except (KeyError, TypeError):  # new or unhashable
                code, made = len(so_far.alike), _new_op(name, key, named[start:], more)
            if name in self._taken:
                raise _listed_twice("op", len(so_far.codes), name)
            self._taken.add(name)
        except BaseException as error:
            listed, given = (read, written, mutated, awaited), (inputs, outputs, mutates, deps)
            raise self._refused(error, start, listed, given) from None
        if made is not None:
            so_far.new(key, made)
        so_far.codes.append(code)
        self._op_names.append(name)
        return name

    def _op_positions(self) -> dict[str, int]:
        """Return the position of each op added so far, by name."""
        for position in range(len(self._op_at), len(self._op_names)):
            self._op_at[self._op_names[position]] = position
        return self._op_at

    def _refused(
        self,
        error: BaseException,
        start: int,
        ends: tuple[int | None, ...],
        given: tuple[Sequence[str], ...],
    ) -> BaseException:
        """Discard the positions from ``start`` on, and return the error to raise.

        ``given`` are the lists of names; ``ends`` has the end of each list that was read to its
        end, and ``None`` for the others. A bad name or list becomes a :class:`GraphError`.
        """
        named = self._named
        k = next((k for k, names in enumerate(given) if isinstance(names, str)), None)
        if k is None and None in ends:
            k = ends.index(None)
        place = len(named) - start - max(filter(None, ends), default=0)
        del named[start:]
        if k is None or not isinstance(error, TypeError | KeyError):
            return error
        where = f"ops[{len(self._ops.codes)}].{Ops.lists[k]}"
        if isinstance(error, KeyError):
            what = "earlier op" if Ops.lists[k] == "deps" else "tensor"
            return GraphError(f"unknown {what} {error.args[0]!r}", where=f"{where}[{place}]")
        return GraphError(f"expected a list of names, got {shown(given[k], 60)}", where=where)

    def build(self) -> Graph:
        """Return the graph built so far. Raises :class:`GraphError` if it contradicts itself."""
        tensors, ops = self._tensors, self._ops
        return Graph(
            self.name,
            Tensors(self._tensor_at.copy(), tensors.alike, tensors.codes),
            Ops(self._op_names, ops.alike, ops.codes, self._named),
            self.meta,
        )
