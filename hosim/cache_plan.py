"""A plan: a graph, the cache ops placed in it, and where each tensor lies at time 0."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from hosim.base.in_cells import InCells
from hosim.base.search_control import SearchRecord
from hosim.base.whole_numbers import keep_whole, whole
from hosim.data.derived import Deriving
from hosim.data.field_kinds import keep_kinds
from hosim.edits import Edits, named_ops
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.plain_text import counted, named, printable, shown

if TYPE_CHECKING:
    import networkx

    from hosim.hardware import Hardware

AT_START = -1
"""``after`` of a cache op that is issued at time 0 (``null`` in the file)."""

PREFETCH, STORE, DETACH = "prefetch", "store", "detach"

LAUNCHED_ALONE = "launched_alone"
"""The key of a workload's ``meta`` that names ops that are in no segment."""


@dataclass(frozen=True, slots=True)
class CacheOp:
    """A copy between two tiers, or the release of one.

    Parameters
    ----------
    op
        ``prefetch`` copies up, ``store`` copies down, ``detach`` releases a copy without moving it.
    tensor
        The tensor's position in the plan's graph.
    source
        The tier to copy from, or whose copy is released.
    destination
        The tier to copy to; ``None`` for a detach.
    after
        The position of the op at whose end it is issued, or :data:`AT_START` for time 0.
    slack_ns
        How much later a copy may begin and end at no cost, in nanoseconds
        (:func:`hosim.analysis.slack.latitudes`), for runtimes to use as a priority, the least
        first; ``None`` where nobody said it. Replays ignore it, and it is not compared.

    Raises
    ------
    InputError
        If one of these is of another kind, or ``slack_ns`` is below 0.

    References
    ----------
    ``docs/contract.md``, rules 2 to 6.

    Examples
    --------
    >>> CacheOp("prefetch", 0, "ddr", "hbm").after == AT_START
    True
    """

    op: str
    tensor: int
    source: str
    destination: str | None
    after: int = AT_START
    slack_ns: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (
            self.tensor.__class__ is not int
            or self.after.__class__ is not int
            or self.slack_ns.__class__ not in (int, type(None))
        ):
            keep_whole(self, InputError, f"cache op {named(self.op)}")
        if self.slack_ns is not None and self.slack_ns < 0:
            raise InputError(
                f"expected 0 ns or more, got {self.slack_ns}",
                where=f"cache op {named(self.op)}, slack_ns",
            )
        if (
            not self.op.__class__ is self.source.__class__ is str
            or self.destination.__class__ not in (str, type(None))
        ):
            keep_kinds(self, InputError, f"cache op {named(self.op)}")


_PUT_OP, _PUT_TENSOR, _PUT_SOURCE, _PUT_DESTINATION, _PUT_AFTER, _PUT_SLACK = [
    vars(CacheOp)[each.name].__set__ for each in fields(CacheOp)
]


def plain_cache_op(
    op: str, tensor: int, source: str, destination: str | None, after: int
) -> CacheOp:
    """A cache op of values that are known to be what they should: in a third of the time."""
    made = object.__new__(CacheOp)
    _PUT_OP(made, op)
    _PUT_TENSOR(made, tensor)
    _PUT_SOURCE(made, source)
    _PUT_DESTINATION(made, destination)
    _PUT_AFTER(made, after)
    _PUT_SLACK(made, None)
    return made


@dataclass(frozen=True, slots=True)
class Proof:
    """A solver's proof about all plans of a workload on a machine within a budget, in its order and
    without recomputation.

    ``bound_ns``: none of them takes less, if it starts what the workload puts below there and
    restores what lives on.
    """

    workload: Graph
    hardware: Hardware
    budget_bytes: int
    bound_ns: int


@dataclass(frozen=True, slots=True)
class PlanOrigin:
    """The workload, the machine and the budget that a plan was made for.

    ``graph`` is a fingerprint of the workload; ``sizes`` says how many of its tensors have each
    size in bytes, ``ops`` how many of its ops have each fingerprint, which is that of what they
    compute. ``machine`` is a fingerprint of the figures of ``hardware``, a name.
    """

    graph: str
    sizes: Mapping[str, int]
    ops: Mapping[str, int]
    hardware: str = ""
    machine: str = ""
    budget_bytes: int | None = None


UNSAID = PlanOrigin("", {}, {})
"""That of a file that a policy made and that does not say it, as hosim's files did not before."""


class MemoryView(Protocol):
    """The state of a replay that a runtime policy may read while it runs. Positions are those of
    the plan's graph.
    """

    @property
    def now_ns(self) -> int:
        """The current instant."""

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the device tier under the budget."""

    @property
    def free_bytes(self) -> int:
        """Bytes of the device tier that nothing holds now."""

    def residents(self) -> Iterable[int]:
        """Tensors that hold bytes in the device tier now, including those still in flight,
        ascending.
        """

    def is_resident(self, tensor: int) -> bool:
        """Return whether the tensor holds bytes in the device tier now, valid or in flight."""

    def is_busy(self, tensor: int) -> bool:
        """Return whether an op that runs now uses the tensor, or a cache op of it is issued and not
        yet done.
        """

    def tiers_of(self, tensor: int) -> Sequence[str]:
        """Tiers other than the device tier that hold a valid copy."""


class RuntimePolicy(Protocol):
    """Decisions taken during the replay, one object a replay.

    One that decides before some ops only has them as a container of positions, ``inspected``, which
    may change as it learns: before the others it is not asked, and no inspection time is spent.
    """

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """Cache ops to issue now, in order, just before ``op`` is launched; their ``after`` is
        ignored.

        Called once an op, after the runtime's inspection time has passed on the op's stream. The
        engine then holds the op until all that it reads is resident, and makes room by asking
        :meth:`make_room`.
        """

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """Cache ops after which at least ``wanted_bytes`` are free for ``op``; empty if there are
        none.

        ``wanted_bytes`` are all that the op still needs: its workspace, and the tensors it uses
        that are not there. What ``view.free_bytes`` says is free already counts. Called when the
        op, or a prefetch it waits for, does not fit and nothing is under way that could change it.
        """


MANUAL = "manual"
"""The policy of a plan that does not say which one made it."""


@dataclass(frozen=True)
class Plan(Deriving, InCells):
    """The plan that a policy returns and the engine replays.

    Parameters
    ----------
    graph
        The ops that run, in order: the workload's graph, or what ``edits`` made of it.
    policy
        Which policy made the plan.
    cache_ops
        The cache ops; those of the same ``after`` are issued in the order given here.
    initial
        For a tensor's position, the tiers that hold a valid copy at time 0. Other tensors lie at
        their home.
    runtime
        Makes the object that decides during the replay, a fresh one per replay. Such a plan cannot
        be saved.
    edits
        How ``graph`` came from the workload, if it is not the workload's own.
    made_for
        The machine, and the bytes of its device tier, that :func:`hosim.plan` made it for. They are
        not compared.
    origin
        What its file says that it was made for (:class:`PlanOrigin`). It is not compared.
    notes
        What a reader of its replays has to know of the policy, a line each. They are neither saved
        nor compared.
    judgement
        What hosim's planner noted about its choices, for an explanation. It is neither saved nor
        compared.
    proof
        What a solver has proved about all plans of the workload. It is neither saved nor compared.
    search
        What the search did that found it, and how it does where times vary
        (:class:`hosim.base.search_control.SearchRecord`); ``None`` where no search of hosim's made
        it. It is saved, and not compared.

    Raises
    ------
    InputError
        If one of these is something else altogether. Whether its positions and tiers exist, the
        replay says.

    References
    ----------
    ``docs/contract.md`` has the rules of a replay, ``docs/formats.md`` the file.

    Examples
    --------
    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> plan.count("prefetch"), plan.residency("hbm")
    (1, {0: ('ddr',)})
    """

    graph: Graph
    policy: str = MANUAL
    cache_ops: tuple[CacheOp, ...] = ()
    initial: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    runtime: RuntimeFactory | None = field(default=None, compare=False)
    edits: Edits | None = None
    made_for: tuple[Hardware, int] | None = field(default=None, compare=False, repr=False)
    origin: PlanOrigin | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    judgement: object = field(default=None, compare=False, repr=False)
    proof: Proof | None = field(default=None, compare=False, repr=False)
    search: SearchRecord | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, expected, right in (
            ("graph", "a hosim.Graph", isinstance(self.graph, Graph)),
            ("policy", "a text", isinstance(self.policy, str)),
            ("cache_ops", "a tuple of hosim.CacheOp", _all_are(self.cache_ops, CacheOp)),
            (
                "initial",
                "a mapping from positions of tensors to tuples of tiers",
                _are_tiers(self.initial),
            ),
            (
                "edits",
                "hosim.edits.Edits or None",
                self.edits is None or isinstance(self.edits, Edits),
            ),
            (
                "runtime",
                "a function that makes a runtime policy, or None",
                self.runtime is None or callable(self.runtime),
            ),
        ):
            if not right:
                raise InputError(
                    f"expected {expected}, got {shown(getattr(self, name), 100)}",
                    source="plan",
                    where=name,
                )

    def __repr__(self) -> str:
        decides = (
            "decides during the replay" if self.runtime is not None else counted_cache_ops(self)
        )
        return f"<Plan of {printable(self.policy)} for {printable(self.graph.name)}: {decides}>"

    @property
    def workload(self) -> Graph:
        """The graph that the plan is for, before edits."""
        return self.graph if self.edits is None else self.edits.base

    @property
    def recomputes(self) -> int:
        """Return the number of recomputed ops."""
        return 0 if self.edits is None else len(self.edits.recompute)

    @property
    def processors(self) -> dict[str, str]:
        """The processor of each op that may run on several, where the plan chooses one: a tier, or
        ``""`` for the device.
        """
        return {} if self.edits is None else dict(self.edits.processors)

    @property
    def moved_ops(self) -> int:
        """Return the number of ops that run on another processor than the workload's first choice
        for them.
        """
        index, ops = self.workload.op_index, self.workload.ops
        return sum(
            [ops[index[name]].processor != processor for name, processor in self.processors.items()]
        )

    def residency(self, device_tier: str) -> dict[int, tuple[str, ...]]:
        """The tiers with a valid copy at time 0, for every tensor that has one.

        Parameters
        ----------
        device_tier
            The tier of tensors that have no home.

        Returns
        -------
        dict of int to tuple of str
            Tiers by the tensor's position.
        """
        homes = [(tensor.home or device_tier,) for tensor in self.graph.tensors.alike]
        codes = self.graph.tensors.codes
        tiers: dict[int, tuple[str, ...]] = {t: homes[codes[t]] for t in self.graph.initial}
        tiers.update((t, tuple(where)) for t, where in self.initial.items())
        return {t: where for t, where in sorted(tiers.items()) if where} if self.initial else tiers

    def count(self, op: str) -> int:
        """Return the number of the plan's cache ops of one kind.

        Parameters
        ----------
        op
            ``prefetch``, ``store`` or ``detach``.

        Returns
        -------
        int
            Their number.
        """
        return sum(cache_op.op == op for cache_op in self.cache_ops)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """The graph with the cache ops inserted as nodes (``prefetch:w#0``), and the dependencies
        that order them.

        A cache op follows the op it is issued after and the cache op of the same tensor before it;
        every later user of the tensor follows its last prefetch.
        """
        view = self.graph.to_networkx()
        ops, tensors = self.graph.ops, self.graph.tensors
        order = sorted(range(len(self.cache_ops)), key=lambda c: (self.cache_ops[c].after, c))
        last: dict[int, str] = {}
        ready: dict[int, list[tuple[int, str]]] = {}
        for c in order:
            cache_op = self.cache_ops[c]
            node = f"{cache_op.op}:{tensors[cache_op.tensor].name}#{c}"
            view.add_node(
                node,
                kind=cache_op.op,
                source=cache_op.source,
                destination=cache_op.destination,
                cache_op=c,
            )
            if cache_op.after != AT_START:
                view.add_edge(ops[cache_op.after].name, node, tensors=())
            if cache_op.tensor in last:
                view.add_edge(last[cache_op.tensor], node, tensors=(tensors[cache_op.tensor].name,))
            last[cache_op.tensor] = node
            if cache_op.op == PREFETCH:
                ready.setdefault(cache_op.tensor, []).append((cache_op.after, node))
        for t, prefetches in ready.items():
            for user in self.graph.users[t]:
                before = [node for after, node in prefetches if after < user]
                if before:
                    view.add_edge(before[-1], ops[user].name, tensors=(tensors[t].name,))
        return view


def _all_are(given: object, kind: type) -> bool:
    return isinstance(given, tuple | list) and all(
        [issubclass(each, kind) for each in {*map(type, given)}]
    )


def _are_tiers(given: object) -> bool:
    if not isinstance(given, Mapping):
        return False
    plain = {*map(type, given)} <= {int} and {*map(type, given.values())} <= {tuple}
    if plain and {*map(type, chain.from_iterable(given.values()))} <= {str}:
        return True  # plans of large graphs have many
    return all([whole(t) is not None and _all_are(tiers, str) for t, tiers in given.items()])


class RuntimeFactory(Protocol):
    """Makes the runtime policy of one replay."""

    def __call__(self) -> RuntimePolicy:
        """A fresh policy object."""


def counted_cache_ops(plan: Plan) -> str:
    """Return the number of a plan's cache ops of each kind, in words."""
    return ", ".join(counted(plan.count(op), op) for op in (PREFETCH, STORE, DETACH))


def launched_alone(graph: Graph) -> frozenset[str]:
    """The ops that the graph's ``meta`` names as those that no segment has."""
    return named_ops(graph, LAUNCHED_ALONE) & graph.op_index.keys()


def begin_segments(plan: Plan, device_tier: str, alone: Container[int]) -> list[bool]:
    """Return whether each op begins a segment: ops that follow one another in the graph's list and
    are launched by one call (docs/contract.md, rule 23). Those of ``alone`` are each by themselves.

    A segment ends before cache ops, before an op that waits for a copy, and after the last use of a
    tensor that the plan moves.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> for name in "fghi":
    ...     _ = b.op(name, "m", outputs=[b.tensor(f"of {name}", 4)])
    >>> plan = Plan(b.build(), cache_ops=(CacheOp(STORE, 0, "hbm", "ddr", 1),))
    >>> begin_segments(plan, "hbm", ()), begin_segments(plan, "hbm", {2})
    ([True, True, True, False], [True, True, True, True])
    """
    graph = plan.graph
    moved = {cache_op.tensor for cache_op in plan.cache_ops}
    brought: dict[int, set[int]] = {}
    for cache_op in plan.cache_ops:
        there = brought.setdefault(cache_op.after, set())
        if cache_op.destination == device_tier:
            there.add(cache_op.tensor)
    arriving = set(brought.get(AT_START, ()))
    found, is_next = [], True
    for i, op in enumerate(graph.ops):
        waits = not (arriving.isdisjoint(op.reads) and moved.isdisjoint(op.writes))
        found.append(is_next or waits or i in alone)
        arriving.difference_update(op.reads)
        arriving.update(brought.get(i, ()))
        is_next = i in alone or i in brought
        is_next |= any([t in moved and graph.users[t][-1] == i for t in op.uses])
    return found
