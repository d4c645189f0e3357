"""The report of a replay: the figures that docs/contract.md defines, and the timeline they come
from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hosim.base.in_cells import InCells
from hosim.data.draws import Draws, LaterDraws
from hosim.jitter import Jitter
from hosim.plain_text import printable
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from hosim.cache_plan import Plan
    from hosim.data.seen_peaks import SeenPeaks
    from hosim.data.unknown_ops import UnknownOps
    from hosim.hardware import Hardware

SEMANTICS = 7
"""The version of the rules of a replay, which increases with each change that may change a
figure.
"""

STALL_CAUSES = ("dependency", "transfer", "capacity", "runtime")
"""The causes of stalls, in the order in which idle time before an op is divided."""

WORKSPACE = "workspace"
"""The kind under which a peak's composition counts the workspaces of running ops."""

LEDGER, CACHING, EXPANDABLE, STATIC = ALLOCATORS = (
    "ledger",
    "caching",
    "caching-expandable",
    "static",
)
"""The allocators of a replay; ``caching-expandable`` is ``caching`` with expandable segments."""

LOOP, REFERENCE = ENGINES = ("loop", "reference")
"""The engines that replay a plan, to the same figures: with fast paths, or docs/contract.md in
plain SimPy (:mod:`hosim.engine.reference`), or the compiled loop
(:mod:`hosim.engine.replay_by_loop`), which covers less.
"""

IN_TIME, IN_PROGRAM_ORDER = ACCOUNTS = ("time", "program")
"""The two accounts of memory (docs/contract.md, rule 10)."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Division of the makespan of one stream: ``busy_ns + sum(stall_ns) + drain_ns`` is the
    makespan.
    """

    busy_ns: int
    stall_ns: Mapping[str, int]
    drain_ns: int


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """One channel over the replay.

    ``busy_ns`` is the time during which at least one engine holds a transfer, ``queue_ns`` the sum
    of what transfers waited between issue and start, ``contention_ns`` the sum of what sharing cost
    them, ``exposed_ns`` the stall of the main stream that is blamed on the channel and
    ``hidden_ns`` the rest of its busy time.
    """

    transfers: int
    bytes: int
    busy_ns: int
    queue_ns: int
    contention_ns: int
    exposed_ns: int
    hidden_ns: int
    utilization: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The minimum, the lower median and the maximum of a figure."""

    min: int
    median: int
    max: int


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One of several devices: its makespan (``None`` if it does not fit), its stalls together and
    its peaks by tier.
    """

    makespan_ns: int | None
    stall_ns: int
    peak_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Several devices that ran together: how many, how many of them to the end, and the spread of
    their figures.

    Times are of those that did. ``each`` has a line for every device where there are no more than
    :data:`LISTED_DEVICES`.
    """

    count: int
    feasible: int
    makespan_ns: Spread | None
    stall_ns: Spread | None
    peak_bytes: Mapping[str, Spread]
    each: tuple[DeviceLine, ...] = ()


LISTED_DEVICES = 16
"""The most devices that a result has lines for; of more it has only the spread."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One cache op's copy on one channel: issued, started (engine held) and ended, in
    nanoseconds.
    """

    cache_op: int
    tensor: int
    channel: str
    bytes: int
    issue_ns: int
    start_ns: int
    end_ns: int
    contention_ns: int


@dataclass(frozen=True, slots=True)
class Residency:
    """A tensor's bytes held in a tier over ``[start_ns, end_ns)``; ``tensor`` -1 is the workspace
    of op ``op``.

    ``staged`` bytes are a chunk of the tensor on its way through the tier, and no copy.
    """

    tensor: int
    tier: str
    start_ns: int
    end_ns: int
    bytes: int
    op: int = -1
    staged: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """A wait of a stream before op ``op``, from ``start_ns`` to ``end_ns``; ``cause`` is one of
    :data:`STALL_CAUSES`.

    ``transfer`` is the place in :attr:`Timeline.transfers` of the transfer that a transfer stall is
    blamed on (docs/contract.md, rule 8); ``None`` for other causes. For a cache op over several
    channels it is the chunk that arrived last.
    """

    op: int
    cause: str
    start_ns: int
    end_ns: int
    transfer: int | None = None

    @property
    def stall_ns(self) -> int:
        """Return the time that the stream waited."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The start and the end of each op and each transfer of a replay, as in its :class:`Timeline`,
    of which this is a part.
    """

    op_start_ns: tuple[int, ...]
    op_end_ns: tuple[int, ...]
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that happened, for tests, plots and traces: recorded when asked for.

    ``op_start_ns`` and ``op_end_ns`` are indexed by op position; -1 where an op never ran.
    ``stalls`` and ``transfers`` of a replay are in the order of their ends. :mod:`hosim.timeline`
    answers questions about all of it.
    """

    op_start_ns: tuple[int, ...]
    op_end_ns: tuple[int, ...]
    stalls: tuple[Stall, ...]
    transfers: tuple[Transfer, ...]
    residencies: tuple[Residency, ...]


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """An allocator at one moment, in bytes: what is allocated, what is reserved for it, and the
    largest block that is free in that.
    """

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int

    @property
    def fragmentation(self) -> float:
        """(reserved - allocated) / reserved; 0 with nothing reserved."""
        return (
            (self.reserved_bytes - self.allocated_bytes) / self.reserved_bytes
            if self.reserved_bytes
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """An allocator's figures for the device tier.

    ``name`` is one of :data:`ALLOCATORS`, ``account`` one of :data:`ACCOUNTS`. *Allocated* bytes
    are those of the blocks that are held, rounding included; *active* ones add what was freed and
    still waits for another stream's work; *reserved* ones are all that the allocator holds. The
    state ``at_peak`` is that at the first peak of allocated bytes, ``out_of_memory`` the one in
    which it ended, if it did so for want of memory.
    """

    name: str
    account: str
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    at_peak: AllocatorState
    out_of_memory: AllocatorState | None = None


@dataclass(frozen=True)
class Result(InCells):
    """The figures of one replay, in nanoseconds and bytes.

    Where several devices ran together, the result is that of the device that ended last, or of the
    first that does not fit; but the peak of a tier is the largest that any instance of it reached.
    In the result of one of several devices, the peak of a shared tier counts only what that device
    held there.

    Parameters
    ----------
    workload
        The workload's name.
    hardware
        The machine's name.
    policy
        The policy, with its parameters.
    budget_bytes
        Bytes of the device tier that may be used.
    feasible
        Whether the plan fits.
    error
        Why it does not; ``None`` if it does.
    makespan_ns
        Nanoseconds from the start to the end of the last op or transfer; ``None`` if it does not
        fit, like the other times.
    busy_ns
        Nanoseconds during which the stream ``compute`` runs ops (the first stream where none has
        that name).
    stall_ns
        Nanoseconds for which that stream waits, by cause.
    drain_ns
        Nanoseconds between its last op and the end.
    lower_bound_ns
        Nanoseconds that no plan can beat (docs/lower-bound.md); ``None`` where nobody computed it.
    peak_bytes
        The largest number of bytes held, by tier.
    peak_at_ns
        When that was first reached, in nanoseconds, by tier.
    peak_breakdown
        The bytes held then, by tier and kind of tensor.
    channels
        The figures of each channel.
    plan
        How many prefetches, stores and detaches the plan and its runtime policy have, and how many
        ops run again.
    streams
        The figures of the other streams.
    slowed_ns
        Nanoseconds by which copies that use the device's memory bandwidth, or the links that a
        collective crosses, slow ops down, as part of the time that all streams are busy; ``None``
        where the replay does not model it.
    peers_ns
        Nanoseconds for which collectives waited for other devices, as part of that time; ``None``
        where nothing waits for others.
    failed
        Whether the policy, which is not hosim's own, failed instead of making a plan: then
        ``error`` says how, and ``feasible`` is false.
    ideal_ns
        Nanoseconds that the workload takes with everything resident, as if the device had enough
        memory; ``None`` where nobody replayed that.
    unknown_ops
        The ops whose FLOP nobody could count, if there are some.
    guessed_collectives
        How many collectives take the time of their bytes in the device tier, since nothing says how
        fast the links between devices are; ``None`` if there are none.
    unused_bytes
        Bytes that moved to the device or back although no op read or wrote them, since tensors move
        whole; ``None`` if there are none, or no op says what it accesses.
    seen_peaks
        The peak of the device's memory as torch and ``nvidia-smi`` show it, under a runtime;
        ``None`` without one.
    notes
        What a reader of the figures has to know, a line each: of the workload, of its times on the
        machine, and of the plan.
    allocator
        What an allocator made of the device tier, if one placed its bytes.
    devices
        The spread of the figures over several devices.
    jitter
        How times varied, if they did.
    planning_s
        Seconds that planning took here.
    replay_s
        Seconds that the replay took here.
    timeline
        Everything that happened, if the replay was recorded.
    replayed
        The plan and the machine, if they are kept: a timeline's positions and names refer to them.
    by_device
        The result of each of several devices.
    engine
        What replayed it: one of :data:`ENGINES`, whose figures are the same.
    draws
        Gives what the plan does in draws of what is uncertain (:class:`hosim.data.draws.Draws`),
        made when it is first called; ``None`` where every op has a measured duration and no routing
        is drawn. The ends of intervals follow from it: it is about hosim's errors
        (docs/kernels.md), not about a machine's jitter.

    References
    ----------
    ``docs/contract.md`` defines the figures, ``docs/formats.md`` the file.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> result = hosim.replay(
    ...     hosim.Plan(b.build()), hosim.load_hardware(hosim.find_hardware("toy"))
    ... )
    >>> result.makespan_ns, result.peak_bytes["hbm"], result.stall_ns["transfer"]
    (50, 40, 0)
    """

    workload: str
    hardware: str
    policy: str
    budget_bytes: int
    feasible: bool
    error: str | None
    makespan_ns: int | None
    busy_ns: int | None
    stall_ns: Mapping[str, int]
    drain_ns: int | None
    lower_bound_ns: int | None
    peak_bytes: Mapping[str, int]
    peak_at_ns: Mapping[str, int]
    peak_breakdown: Mapping[str, Mapping[str, int]]
    channels: Mapping[str, ChannelFigures]
    plan: Mapping[str, int]
    streams: Mapping[str, StreamFigures] = field(default_factory=dict)
    slowed_ns: int | None = None
    peers_ns: int | None = None
    failed: bool = False
    ideal_ns: int | None = None
    unknown_ops: UnknownOps | None = None
    guessed_collectives: int | None = None
    unused_bytes: int | None = None
    seen_peaks: SeenPeaks | None = field(default=None, repr=False)  # its line is in the notes
    notes: tuple[str, ...] = ()
    allocator: AllocatorFigures | None = None
    devices: DeviceFigures | None = None
    jitter: Jitter | None = None
    planning_s: float = field(default=0.0, compare=False)
    replay_s: float = field(default=0.0, compare=False)
    timeline: Timeline | None = field(default=None, compare=False, repr=False)
    replayed: tuple[Plan, Hardware] | None = field(default=None, compare=False, repr=False)
    by_device: tuple[Result, ...] = field(default=(), compare=False, repr=False)
    engine: str = field(default=LOOP, compare=False, repr=False)
    draws: LaterDraws | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        names = printable(f"{self.policy} on {self.hardware}, {self.workload}")
        if not self.feasible or self.makespan_ns is None:
            return (
                f"<Result of {names}: {'failed' if self.failed else 'does not fit'} within "
                f"{human_size(self.budget_bytes)}>"
            )
        peaks = ", ".join(
            f"{printable(tier)} {human_size(peak)}" for tier, peak in self.peak_bytes.items()
        )
        return f"<Result of {names}: {human_time(self.makespan_ns)}, peak {peaks}>"

    def bounded_by(self, bound: Callable[[], int | None]) -> Result:
        """The result with a lower bound that is worked out when it is first asked for.

        Parameters
        ----------
        bound
            Gives ``lower_bound_ns``; it is called at most once.

        Returns
        -------
        Result
            The same figures.
        """
        found = copy(self)
        state = vars(found)
        del state["lower_bound_ns"]
        state["_bound"] = bound
        return found

    if not TYPE_CHECKING:  # to a type checker it is a field like any other

        def __getattr__(self, name: str) -> int | None:
            """The lower bound when it is first asked for; every other figure is there."""
            if name != "lower_bound_ns" or "_bound" not in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            found = vars(self)[name] = vars(self)["_bound"]()
            return found

    def __getstate__(self) -> dict[str, object]:
        """All figures, for a copy or a pickle: how the bound is found is no part of them."""
        _ = self.lower_bound_ns
        return {name: value for name, value in vars(self).items() if name != "_bound"}

    @property
    def drawn(self) -> Draws | None:
        """The draws, if there are some and the plan fits."""
        return self.draws() if self.draws is not None and self.makespan_ns is not None else None

    @property
    def in_few_draws(self) -> Result:
        """The result with as few draws as an interval takes, for one of many rows; its lower bound
        is not to be known yet.
        """
        return self if self.draws is None else replace(self, draws=self.draws.few)

    @property
    def makespan_low_ns(self) -> int | None:
        """The lower end of the makespan's 90 % interval, in nanoseconds; ``None`` where nothing is
        drawn, or the plan fits in no draw.
        """
        ends = self._ends
        return None if ends is None else ends[0]

    @property
    def makespan_high_ns(self) -> int | None:
        """Its upper end."""
        ends = self._ends
        return None if ends is None else ends[1]

    @property
    def _ends(self) -> tuple[int, int] | None:
        return None if self.drawn is None else self.drawn.makespan_interval

    @property
    def has_waits(self) -> bool:
        """Return whether an op of any stream waits for a transfer or for room."""
        stalls = [self.stall_ns, *(stream.stall_ns for stream in self.streams.values())]
        return any([stall["transfer"] or stall["capacity"] for stall in stalls])

    @property
    def above_bound(self) -> float | None:
        """Return by what share the makespan is above the lower bound, 0.02 for 2 %; ``None`` where
        either is missing.
        """
        if self.makespan_ns is None or not self.lower_bound_ns:
            return None
        return self.makespan_ns / self.lower_bound_ns - 1

    @property
    def slowdown(self) -> float | None:
        """The makespan divided by the one with everything resident (``ideal_ns``); ``None`` where
        either is missing.
        """
        return slowdown(self.makespan_ns, self.ideal_ns)


def slowdown(makespan_ns: int | None, ideal_ns: int | None) -> float | None:
    """A makespan divided by the one with everything resident; ``None`` where either is missing, or
    only the second is 0.

    >>> slowdown(3, 2), slowdown(0, 0), slowdown(3, 0), slowdown(None, 2)
    (1.5, 1.0, None, None)
    """
    if makespan_ns is None or ideal_ns is None:
        return None
    if not ideal_ns:
        return None if makespan_ns else 1.0
    return makespan_ns / ideal_ns
