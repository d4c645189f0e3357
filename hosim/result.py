"""The result of a replay: the figures that docs/contract.md defines, and the timeline."""

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
"""The version of the replay rules. Each change that may change a figure raises it."""

STALL_CAUSES = ("dependency", "transfer", "capacity", "runtime")
"""The causes of stalls, in the order in which rule 8 divides the idle time before an op."""

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
"""The engines that replay a plan, with equal figures: the loop
(:mod:`hosim.engine.replay_by_loop`), which covers fewer plans, and docs/contract.md in plain SimPy
(:mod:`hosim.engine.reference`).
"""

IN_TIME, IN_PROGRAM_ORDER = ACCOUNTS = ("time", "program")
"""The two accounts of memory (docs/contract.md, rule 10)."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The division of a stream's makespan into ``busy_ns + sum(stall_ns.values()) + drain_ns``."""

    busy_ns: int
    stall_ns: Mapping[str, int]
    drain_ns: int


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """The figures of one channel.

    ``busy_ns`` is the time during which at least one engine is taken, ``queue_ns`` the sum of the
    waits between issue and start, ``contention_ns`` the sum of the time that sharing cost,
    ``exposed_ns`` the stall of the main stream that is blamed on the channel, and ``hidden_ns`` the
    rest of the busy time.
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
    """The figures of one of several devices: makespan (``None`` if it does not fit), sum of stalls,
    peaks by tier.
    """

    makespan_ns: int | None
    stall_ns: int
    peak_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The spread of the figures of ``count`` devices, of which ``feasible`` ran to the end.

    Times are those of the feasible devices. ``each`` has a line per device if there are at most
    :data:`LISTED_DEVICES`.
    """

    count: int
    feasible: int
    makespan_ns: Spread | None
    stall_ns: Spread | None
    peak_bytes: Mapping[str, Spread]
    each: tuple[DeviceLine, ...] = ()


LISTED_DEVICES = 16
"""The most devices for which a result has a line each; beyond that it has only the spread."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One cache op's copy on one channel, with its issue, start (engine taken) and end in
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
    """A tensor's bytes in a tier over ``[start_ns, end_ns)``, or, if ``tensor`` is -1, the
    workspace of op ``op``.

    ``staged`` bytes are a chunk of the tensor in an intermediate tier, not a copy.
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

    ``transfer`` is the position in :attr:`Timeline.transfers` of the transfer to blame for a
    transfer stall (docs/contract.md, rule 8); ``None`` for other causes. For a cache op over
    several channels it is the last chunk to arrive.
    """

    op: int
    cause: str
    start_ns: int
    end_ns: int
    transfer: int | None = None

    @property
    def stall_ns(self) -> int:
        """The nanoseconds that the stream waited."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The start and the end of each op and each transfer of a replay: a part of its
    :class:`Timeline`.
    """

    op_start_ns: tuple[int, ...]
    op_end_ns: tuple[int, ...]
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All events of a replay, for tests, plots and traces; recorded on request.

    ``op_start_ns`` and ``op_end_ns`` are indexed by op position, with -1 for an op that never ran.
    ``stalls`` and ``transfers`` are in the order of their ends. :mod:`hosim.timeline` has queries
    on timelines.
    """

    op_start_ns: tuple[int, ...]
    op_end_ns: tuple[int, ...]
    stalls: tuple[Stall, ...]
    transfers: tuple[Transfer, ...]
    residencies: tuple[Residency, ...]


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """An allocator at one moment: the allocated bytes, the reserved bytes, and the largest free
    block of these.
    """

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int

    @property
    def fragmentation(self) -> float:
        """(reserved - allocated) / reserved, or 0 if nothing is reserved."""
        return (
            (self.reserved_bytes - self.allocated_bytes) / self.reserved_bytes
            if self.reserved_bytes
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """An allocator's figures for the device tier.

    ``name`` is one of :data:`ALLOCATORS`, ``account`` one of :data:`ACCOUNTS`. *Allocated* bytes
    are those of the blocks that are held, rounding included. *Active* bytes add freed blocks that
    still wait for another stream's work. *Reserved* bytes are all that the allocator holds.
    ``at_peak`` is the state at the first peak of allocated bytes, ``out_of_memory`` the last state
    if the allocator ran out of memory.
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

    If several devices ran together, the figures are those of the device that ended last, or of the
    first that does not fit; the peak of a tier is the largest of any of its instances. In the
    result of one of several devices, the peak of a shared tier counts only that device's bytes.

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
        The reason that it does not fit; ``None`` if it does.
    makespan_ns
        Nanoseconds from the start to the end of the last op or transfer. Like the other times, it
        is ``None`` if the plan does not fit.
    busy_ns
        Nanoseconds during which the stream ``compute`` runs ops (the first stream if none has that
        name).
    stall_ns
        Nanoseconds for which that stream waits, by cause.
    drain_ns
        Nanoseconds between that stream's last op and the end.
    lower_bound_ns
        Nanoseconds that no plan can beat (docs/lower-bound.md); ``None`` if it was not computed.
    peak_bytes
        The largest number of bytes held, by tier.
    peak_at_ns
        The nanosecond at which the peak was first reached, by tier.
    peak_breakdown
        The bytes held at the peak, by tier and kind of tensor.
    channels
        The figures of each channel.
    plan
        The numbers of prefetches, stores and detaches of the plan and its runtime policy, and of
        recomputed ops.
    streams
        The figures of the other streams.
    slowed_ns
        Nanoseconds by which ops took longer because copies used the device's memory bandwidth or
        the links of a collective, summed over all streams and part of their busy time; ``None`` if
        the replay does not model it.
    peers_ns
        Nanoseconds for which collectives waited for other devices, also part of busy time; ``None``
        if nothing waits for other devices.
    failed
        Whether the policy, which is not hosim's own, failed to make a plan: then ``error`` gives
        the reason, and ``feasible`` is false.
    ideal_ns
        Nanoseconds that the workload takes with everything resident, as if the device had enough
        memory; ``None`` if it was not replayed.
    unknown_ops
        The ops whose FLOP could not be counted, if there are any.
    guessed_collectives
        The number of collectives whose time is that of their bytes in the device tier, because the
        speed of the links between devices is unknown; ``None`` if there are none.
    unused_bytes
        Bytes that moved to or from the device although no op read or wrote them, because tensors
        move whole; ``None`` if there are none, or no op states its accesses.
    seen_peaks
        The peak of the device's memory as torch and ``nvidia-smi`` show it, under a runtime;
        ``None`` without one.
    notes
        Notes for readers of the figures, a line each: on the workload, its times on the machine,
        and the plan.
    allocator
        The figures of the allocator of the device tier, if one placed its bytes.
    devices
        The spread of the figures over several devices.
    jitter
        The jitter of the replay's times, if there was any.
    planning_s
        Seconds that planning took here.
    replay_s
        Seconds that the replay took here.
    timeline
        All events, if the replay was recorded.
    replayed
        The plan and the machine, if they are kept: a timeline's positions and names refer to them.
    by_device
        The result of each of several devices.
    engine
        The engine that replayed the plan: one of :data:`ENGINES`, whose figures are equal.
    draws
        A function that returns the plan's draws (:class:`hosim.data.draws.Draws`) and makes them
        when it is first called; ``None`` if every op has a measured duration and no routing is
        drawn. The intervals come from it. They cover hosim's errors (docs/kernels.md), not a
        machine's jitter.

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
        """Return the result with a lower bound that is computed when it is first read.

        Parameters
        ----------
        bound
            Computes ``lower_bound_ns``; it is called at most once.

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
            """Compute the lower bound when it is first read; other figures are attributes."""
            if name != "lower_bound_ns" or "_bound" not in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            found = vars(self)[name] = vars(self)["_bound"]()
            return found

    def __getstate__(self) -> dict[str, object]:
        """Return all figures for a copy or a pickle, without the function for the lower bound."""
        _ = self.lower_bound_ns
        return {name: value for name, value in vars(self).items() if name != "_bound"}

    @property
    def drawn(self) -> Draws | None:
        """The draws, if there are any and the plan fits."""
        return self.draws() if self.draws is not None and self.makespan_ns is not None else None

    @property
    def in_few_draws(self) -> Result:
        """The result with only as many draws as an interval needs, for tables of many results.

        Its lower bound must not have been computed yet.
        """
        return self if self.draws is None else replace(self, draws=self.draws.few)

    @property
    def makespan_low_ns(self) -> int | None:
        """The lower end of the makespan's 90 % interval, in nanoseconds; ``None`` if nothing is
        drawn or the plan fits in no draw.
        """
        ends = self._ends
        return None if ends is None else ends[0]

    @property
    def makespan_high_ns(self) -> int | None:
        """The upper end of the makespan's 90 % interval, likewise."""
        ends = self._ends
        return None if ends is None else ends[1]

    @property
    def _ends(self) -> tuple[int, int] | None:
        return None if self.drawn is None else self.drawn.makespan_interval

    @property
    def has_waits(self) -> bool:
        """True if an op of any stream waits for a transfer or for room."""
        stalls = [self.stall_ns, *(stream.stall_ns for stream in self.streams.values())]
        return any([stall["transfer"] or stall["capacity"] for stall in stalls])

    @property
    def above_bound(self) -> float | None:
        """The gap of the makespan to the lower bound, 0.02 for 2 %; ``None`` if either is missing
        or the bound is 0.
        """
        if self.makespan_ns is None or not self.lower_bound_ns:
            return None
        return self.makespan_ns / self.lower_bound_ns - 1

    @property
    def slowdown(self) -> float | None:
        """The makespan divided by the one with everything resident (``ideal_ns``); ``None`` if
        either is missing.
        """
        return slowdown(self.makespan_ns, self.ideal_ns)


def slowdown(makespan_ns: int | None, ideal_ns: int | None) -> float | None:
    """Divide a makespan by the one with everything resident; ``None`` if either is missing or only
    the second is 0.

    >>> slowdown(3, 2), slowdown(0, 0), slowdown(3, 0), slowdown(None, 2)
    (1.5, 1.0, None, None)
    """
    if makespan_ns is None or ideal_ns is None:
        return None
    if not ideal_ns:
        return None if makespan_ns else 1.0
    return makespan_ns / ideal_ns
