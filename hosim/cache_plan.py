"""A plan: a graph, the cache ops placed in it, and the tiers in which tensors start."""

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
"""The ``after`` of a cache op that is issued at time 0 (``null`` in the file)."""

PREFETCH, STORE, DETACH = "prefetch", "store", "detach"

LAUNCHED_ALONE = "launched_alone"
"""The key of a workload's ``meta`` that names the ops that are each launched alone."""


@dataclass(frozen=True, slots=True)
class CacheOp:
    """A copy of a tensor from one tier to another, or the release of a copy.

    Parameters
    ----------
    op
        ``prefetch`` copies up, ``store`` copies down, ``detach`` releases a copy without moving it.
    tensor
        The tensor's position in the plan's graph.
    source
        The tier to copy from, or the tier whose copy is released.
    destination
        The tier to copy to; ``None`` for a detach.
    after
        The position of the op whose end issues it, or :data:`AT_START` for time 0.
    slack_ns
        The nanoseconds by which the copy may begin and end later at no cost
        (:func:`hosim.analysis.slack.latitudes`); ``None``: unknown. Runtimes may use it as a
        priority, the smallest first. Replays ignore it, and it is not compared.

    Raises
    ------
    InputError
        If a value has the wrong type, or ``slack_ns`` is below 0.

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
    """Make a cache op of valid values without checks, in a third of the time."""
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
    """A solver's proof about all plans of a workload on a machine within a budget that keep its
    order and do not recompute.

    None of them takes less than ``bound_ns`` if it starts tensors in their homes and restores those
    that survive the step.
    """

    workload: Graph
    hardware: Hardware
    budget_bytes: int
    bound_ns: int


@dataclass(frozen=True, slots=True)
class PlanOrigin:
    """The workload, the machine and the budget that a plan was made for.

    ``graph`` is a fingerprint of the workload. ``sizes`` counts its tensors by size in bytes,
    ``ops`` its ops by a fingerprint of their computation. ``hardware`` is the machine's name, and
    ``machine`` a fingerprint of its figures.
    """

    graph: str
    sizes: Mapping[str, int]
    ops: Mapping[str, int]
    hardware: str = ""
    machine: str = ""
    budget_bytes: int | None = None


UNSAID = PlanOrigin("", {}, {})
"""The origin of a policy's plan whose file does not state it, as hosim's older files do not."""


class MemoryView(Protocol):
    """The state of a running replay that a runtime policy may read. Positions are those of the
    plan's graph.
    """

    @property
    def now_ns(self) -> int:
        """The current instant, in nanoseconds."""

    @property
    def capacity_bytes(self) -> int:
        """The bytes of the device tier that the budget allows."""

    @property
    def free_bytes(self) -> int:
        """The bytes of the budget that are free now."""

    def residents(self) -> Iterable[int]:
        """Return the tensors that hold bytes in the device tier now, ascending.

        Tensors in flight are included.
        """

    def is_resident(self, tensor: int) -> bool:
        """Return whether the tensor holds bytes in the device tier now, valid or in flight."""

    def is_busy(self, tensor: int) -> bool:
        """Return whether a running op uses the tensor or a cache op of it is pending."""

    def tiers_of(self, tensor: int) -> Sequence[str]:
        """Return the tiers other than the device tier that hold a valid copy."""


class RuntimePolicy(Protocol):
    """A policy that decides during the replay. Each replay has an object of its own.

    A policy that decides before some ops only has an attribute ``inspected``, a container of their
    positions, which may change during the replay. It is not called before other ops, which spend no
    inspection time.
    """

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """Return the cache ops to issue now, in order, before ``op`` is launched; their ``after``
        is ignored.

        It is called once per op, after the inspection time has passed on the op's stream. The op
        then waits until everything that it reads is resident; the engine calls :meth:`make_room`
        if there is no room for it.
        """

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """Return cache ops that free memory until ``wanted_bytes`` are free for ``op``; empty if
        there are none.

        ``wanted_bytes`` is all that the op still needs: its workspace, and the tensors it uses that
        are not resident. ``view.free_bytes`` counts towards it. It is called if the op, or a
        prefetch it waits for, does not fit and nothing that runs can change that.
        """


MANUAL = "manual"
"""The policy of a plan that names none."""


@dataclass(frozen=True)
class Plan(Deriving, InCells):
    """The plan that a policy returns and the engine replays.

    Parameters
    ----------
    graph
        The ops that run, in order: the workload's graph, or the graph that ``edits`` make of it.
    policy
        The policy that made the plan.
    cache_ops
        The cache ops; those of the same ``after`` are issued in this order.
    initial
        For a tensor's position, the tiers that hold a valid copy at time 0. Other tensors start in
        their home.
    runtime
        A function that makes a runtime policy, called once per replay. Such a plan cannot be saved.
    edits
        The changes that turn the workload's graph into ``graph``, if there are any.
    made_for
        The machine, and the bytes of its device tier, for which :func:`hosim.plan` made it. They
        are not compared.
    origin
        The origin that the plan's file states (:class:`PlanOrigin`). It is not compared.
    notes
        Notes on the policy for readers of replays, a line each. They are neither saved nor
        compared.
    judgement
        The planner's notes on its choices, for explanations. It is neither saved nor compared.
    proof
        A solver's proof about all plans of the workload. It is neither saved nor compared.
    search
        The record of hosim's search that found the plan, with its results where times vary
        (:class:`hosim.base.search_control.SearchRecord`); ``None`` if no search made it. It is
        saved, but not compared.

    Raises
    ------
    InputError
        If a value has the wrong type. Replays check that positions and tiers exist.

    References
    ----------
    ``docs/contract.md`` defines the rules of a replay, ``docs/formats.md`` the file.

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
        """The number of recomputed ops."""
        return 0 if self.edits is None else len(self.edits.recompute)

    @property
    def processors(self) -> dict[str, str]:
        """The processors that the plan chooses, by op name: a tier, or ``""`` for the device."""
        return {} if self.edits is None else dict(self.edits.processors)

    @property
    def moved_ops(self) -> int:
        """The number of ops that do not run on the processor that the workload gives them."""
        index, ops = self.workload.op_index, self.workload.ops
        return sum(
            [ops[index[name]].processor != processor for name, processor in self.processors.items()]
        )

    def residency(self, device_tier: str) -> dict[int, tuple[str, ...]]:
        """Return the tiers that hold a valid copy at time 0, for every tensor that has one.

        Parameters
        ----------
        device_tier
            The home of tensors that name none.

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
        """Return the graph as a networkx graph with the cache ops as nodes (``prefetch:w#0``).

        A cache op follows the op that issues it and the previous cache op of its tensor; each user
        of a tensor follows the last prefetch before it.
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
    """A function that makes the runtime policy of one replay."""

    def __call__(self) -> RuntimePolicy:
        """Return a new policy object."""


def counted_cache_ops(plan: Plan) -> str:
    """Return the number of a plan's cache ops of each kind, in words."""
    return ", ".join(counted(plan.count(op), op) for op in (PREFETCH, STORE, DETACH))


def launched_alone(graph: Graph) -> frozenset[str]:
    """Return the ops that the graph's ``meta`` says are launched alone."""
    return named_ops(graph, LAUNCHED_ALONE) & graph.op_index.keys()


def begin_segments(plan: Plan, device_tier: str, alone: Container[int]) -> list[bool]:
    """Return, for each op, whether it begins a segment.

    A segment is a run of consecutive ops that one call launches (docs/contract.md, rule 23). Each
    op of ``alone`` is a segment. A segment ends before cache ops, before an op that waits for a
    copy, and after the last use of a tensor that the plan moves.

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
