"""A plan in draws of what is uncertain: replays by the loop with other times, without a new table
for each.

What a draw changes are the times of ops and the volumes of copies, as integers in the table, as if
the bandwidth of a link were less or more (:mod:`hosim.analysis.costmodel.spreads.drawn_times`). Latencies
stay. Of a plan that the loop does not cover, the makespan in a draw is the time along the chain of
ops and copies that ended last in its one replay (:mod:`hosim.analysis.slack.step_path`), each as
long as the draw says.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.spreads import DrawnTimes, Factor, has_draws
from hosim.analysis.costmodel.transfers import NS_PER_S
from hosim.analysis.slack import step_path
from hosim.base.collector import no_collection
from hosim.cache_plan import Plan, RuntimePolicy
from hosim.data.draws import FEW_DRAWS, Draws, LaterDraws, UncertainPart
from hosim.engine.cells import fill, longs
from hosim.engine.decisions import Remembering
from hosim.engine.flow_table import TOO_LARGE, WORK_BITS, UncoveredError
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.program_base import LONGEST_NS, one_for_all
from hosim.engine.replay_by_loop import LoopReplay, check_loop
from hosim.errors import PlanError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.result import STALL_CAUSES, Timeline

_LONG = 10_000
"""So many ops and cache ops take long to replay."""

DECIDED_ANEW, ALONG_THE_PATH = (
    "its runtime policy decides anew in each draw",
    "along the chain of ops and copies that ends last",
)
"""The way in which draws are made where no whole plan is replayed in each."""

Recorded = Callable[[], Timeline | None]
"""Gives the timeline of the one replay."""

_Figures = tuple[int | None, int | None, int | None]
"""The makespan, the main stream's stalls and the device tier's peak of one draw; ``None`` where the
plan does not fit.
"""

_LEAST_SHARE = 0.005


def later_draws(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    compete: bool | None,
    recorded: Recorded,
) -> LaterDraws | None:
    """The draws of a plan's replay, made when they are asked for; ``None`` where all times are
    measured and no routing is drawn.
    """
    if not has_draws(plan.graph, hardware):
        return None
    return LaterDraws(partial(_draws, plan, hardware, budget_bytes, jitter, compete, recorded))


def jittered_makespans(
    plan: Plan, hardware: Hardware, budget_bytes: int, jitters: Iterable[Jitter]
) -> list[int | None]:
    """The makespans of a plan without a runtime, one for each jitter; ``None`` where it does not fit
    or breaks a rule. Raises :class:`UncoveredError` for what the loop does not cover.
    """
    with no_collection():
        check_loop(hardware, False, False)
        replay = _JitteredReplay(plan, hardware, budget_bytes)
        return [replay.makespan_ns(jitter) for jitter in jitters]


def stage_draws(plan: Plan, hardware: Hardware, timeline: Timeline | None) -> LaterDraws | None:
    """The draws of one of several stages that ran together, along the chain of its own ops and
    copies.
    """
    if not has_draws(plan.graph, hardware):
        return None
    return LaterDraws(
        lambda most: _summed(_along(plan, hardware, timeline, most), plan, hardware, ALONG_THE_PATH)
    )


def _draws(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    compete: bool | None,
    recorded: Recorded,
    most: int,
) -> Draws | None:
    long = len(plan.graph.ops) + len(plan.cache_ops) > _LONG
    count = FEW_DRAWS if long or plan.runtime is not None or jitter is not None else most
    with no_collection():
        try:
            check_loop(
                hardware, hardware.devices > 1 and jitter is None and one_for_all(hardware), False
            )
            figures = _replayed(plan, hardware, budget_bytes, jitter, compete, count)
            return _summed(figures, plan, hardware, "" if plan.runtime is None else DECIDED_ANEW)
        except (
            UncoveredError,
            PlanError,
        ):  # with other times streams may overtake one another, which is against a rule
            figures = _along(plan, hardware, recorded(), most)
            return _summed(figures, plan, hardware, ALONG_THE_PATH)


def _summed(figures: Sequence[_Figures], plan: Plan, hardware: Hardware, kind: str) -> Draws | None:
    """All draws; ``None`` without figures."""
    if not figures:
        return None
    makespans, stalls, peaks = zip(*figures, strict=True)
    if kind == ALONG_THE_PATH:
        stalls = peaks = ()
    factors = plan.graph.derived_on(hardware, DrawnTimes).factors(
        op_durations(plan.graph, hardware)
    )
    return Draws(makespans, stalls, peaks, _sources(makespans, factors), kind)


# -- by the loop
# --------------------------------------------------------------------------------------------------


def _replayed(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    compete: bool | None,
    count: int,
) -> list[_Figures]:
    """The figures of each draw. Raises :class:`UncoveredError` for what the loop does not cover."""
    times = plan.graph.derived_on(hardware, DrawnTimes)

    def new() -> _DrawnReplay:
        policy = None if plan.runtime is None else Remembering(plan.runtime())
        return _DrawnReplay(plan, hardware, budget_bytes, jitter, compete, policy, times, count)

    replay, figures = new(), list[_Figures]()
    durations = times.durations(replay.base.durations, count)
    replay.check(durations)
    durations = replay.least(durations)
    again = (
        plan.runtime is not None or jitter is not None
    )  # what such a replay has changed is not all put back
    for d in range(count):
        if again and d:
            replay = new()
        figures.append(replay.drawn(d, durations[d]))
    return figures


class _RepeatedReplay(LoopReplay):
    """One replay after another of a plan, with other times each."""

    def _own(self, *names: str) -> None:
        """Let arrays that all plans share be this table's own, to be changed."""
        cells = self.table.cells
        for name in names:
            cells[name] = longs(np.array(cells[name], "q"))
        self.table.loop.take(cells)

    def _flowing(self, what: str) -> npt.NDArray[np.float64]:
        """The volume of each transfer or collective, or the work of ops of each pace."""
        limbs = [self.table.cells[f"{what}_{limb}"] for limb in ("high", "low")]
        return np.array([float((high << 62) + low) for high, low in zip(*limbs, strict=True)])

    def check(self, durations: npt.NDArray[np.int64]) -> None:
        """Raise :class:`UncoveredError` where the work of an op may become too large in one of
        these draws.
        """
        cells = self.table.cells
        pace = np.asarray(cells["pace_of"])[: cells["ops"]]
        whole = self._flowing("whole")
        works = [0.0, *(durations.max(axis=0)[pace >= 0] * whole[pace[pace >= 0]])]
        if max(works) >= 2.0**WORK_BITS or durations.sum(axis=1).max(initial=0) >= LONGEST_NS:
            raise UncoveredError(TOO_LARGE)

    def _again(self, begun: tuple[Any, Any]) -> None:
        """Put the table back to where nothing has begun."""
        cells = self.table.cells
        self.table.put_back(begun)
        fill(cells["stalls"], [0] * len(cells["stalls"]))
        fill(cells["peak"], cells["held"])


class _JitteredReplay(_RepeatedReplay):
    """Replays of a plan without a runtime, with jitter."""

    def __init__(self, plan: Plan, hardware: Hardware, budget_bytes: int) -> None:
        super().__init__(plan, hardware, budget_bytes, None, None, None)
        if self.base.sent:
            raise UncoveredError("jitter of collectives without a table for each")
        self._begun = self.table.kept()
        self._own("duration")

    def makespan_ns(self, jitter: Jitter) -> int | None:
        """The makespan with a jitter, or ``None``."""
        durations = np.array(jittered(self.plan, self.base.durations, jitter, 0, {}), "q")
        self.check(durations[None, :])
        fill(self.table.cells["duration"], durations)
        self._factor = transfer_factors(jitter, 0, self.plan.workload)
        self._put_volumes(len(self.plan.cache_ops))
        self._again(self._begun)
        cells = self.table.cells
        return max([cells["scalars"][3], *cells["free_since"]]) if self.ends_well() else None


class _DrawnReplay(_RepeatedReplay):
    """One replay after another of a plan, with the times of one draw after another."""

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        budget_bytes: int,
        jitter: Jitter | None,
        compete: bool | None,
        policy: RuntimePolicy | None,
        times: DrawnTimes,
        count: int,
    ) -> None:
        self._copies: Callable[[int, int], float] | None = None
        self._calls = times.calls(count)
        super().__init__(plan, hardware, budget_bytes, jitter, compete, policy)
        cells, tensors = self.table.cells, plan.graph.tensors
        self._begun = self.table.kept()
        self._factors = {
            (c, kind): times.copies(channel, kind, count)
            for c, channel in enumerate(hardware.channels)
            for kind in {tensor.kind for tensor in tensors.alike}
        }
        self._host_ns, self._host_copies = (
            np.array(cells[name], "q") for name in ("host_ns", "host_copies")
        )
        self._said = np.array(self.base.durations, "q")
        sends = np.asarray(cells["send_class"])[: len(self._said)] >= 0
        self._sent = np.where(sends, self._flowing("send"), 0.0) if sends.any() else None
        (copied,) = np.nonzero(np.asarray(cells["copies"])[: self.table.base[len(tensors)]])
        chunks = np.arange(cells["chunks_from"], self.table.places)
        planned = np.concatenate([copied, chunks])
        channels, of_tensors = (
            np.asarray(cells[f"move_{name}"])[planned] for name in ("channel", "tensor")
        )
        after = np.asarray(cells["move_after"])[copied]
        self._called = np.bincount(after + 1, minlength=len(self._host_copies))
        kinds = tensors.column(lambda tensor: tensor.kind)
        rows = zip(
            self._flowing("move")[planned].tolist(),
            channels.tolist(),
            [kinds[t] for t in of_tensors.tolist()],
            strict=True,
        )
        alike: dict[tuple[float, int, str], int] = {}
        self._of = np.zeros(self.table.places, np.intp)
        self._of[planned] = [alike.setdefault(row, len(alike)) for row in rows]
        self._moved = np.array(
            [flowing * self._factors[c, kind] for flowing, c, kind in alike] or [np.zeros(count)]
        )
        """The volume of each kind of transfer, by draw."""
        self._own("duration", *([] if self._sent is None else ["send_high", "send_low"]))

    def _volume(self, t: int, channel: int) -> int | None:
        volume, size = super()._volume(t, channel), self.plan.graph.tensors[t].size_bytes
        if self._copies is None:
            return volume
        return round((size * NS_PER_S if volume is None else volume) * self._copies(channel, t))

    def least(self, durations: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Nanoseconds of each op by draw, but more than its launch where copies slow down what comes
        after that.
        """
        cells, said = self.table.cells, self._said
        pace = np.asarray(cells["pace_of"])[: cells["ops"]]
        launched = np.where(pace < 0, 0, np.asarray(cells["launch"])[np.maximum(pace, 0)] + 1)
        return np.maximum(durations, np.where(said > 0, np.minimum(launched, said), 0))

    def drawn(self, d: int, durations: npt.NDArray[np.int64]) -> _Figures:
        """The figures of a draw, with these nanoseconds of each op."""
        cells = self.table.cells
        fill(cells["duration"], durations)
        if cells["hosted"]:
            said = self._host_ns.max(initial=0)  # the first op always has a call of its own
            ns = round(said * self._calls[d])
            fill(cells["host_ns"], np.where(self._host_ns > 0, ns, 0))
            fill(cells["host_copies"], self._host_copies + self._called * (ns - said))
        self._copies = lambda channel, t: self._factors[channel, self.plan.graph.tensors[t].kind][d]
        self._put_limbs("move", self._moved[:, d], self._of)
        if self._sent is not None:
            longer = durations / np.maximum(self._said, 1)
            self._put_limbs("send", self._sent * np.where(self._said > 0, longer, 1.0))
        self._again(self._begun)
        if not self.ends_well():
            return None, None, None
        makespan, main = (
            max([cells["scalars"][3], *cells["free_since"]]),
            len(STALL_CAUSES) * cells["main"],
        )
        stalls = sum(cells["stalls"][main : main + len(STALL_CAUSES)]) if main >= 0 else 0
        return makespan, stalls, cells["peak"][cells["device"]]

    def _put_limbs(
        self, what: str, volumes: npt.NDArray[np.float64], of: npt.NDArray[np.intp] | None = None
    ) -> None:
        """Set volumes, in two limbs each; ``of`` has the number of the volume of each place."""
        whole = np.rint(volumes)
        if whole.max(initial=0.0) >= 2.0**WORK_BITS:
            raise UncoveredError(TOO_LARGE)
        high = np.floor(whole / 2.0**62)
        for limb, numbers in (("high", high), ("low", whole - high * 2.0**62)):  # both are exact
            number = numbers.astype("q")
            fill(self.table.cells[f"{what}_{limb}"], number if of is None else number[of])


# -- along the chain
# -------------------------------------------------------------------------------------------------


def _along(plan: Plan, hardware: Hardware, timeline: Timeline | None, count: int) -> list[_Figures]:
    """The figures of each draw where the chain that ends last stays the same and each of its parts
    takes what the draw says.
    """
    if timeline is None:
        return []
    times, nominal = (
        plan.graph.derived_on(hardware, DrawnTimes),
        op_durations(plan.graph, hardware),
    )
    drawn = times.durations(nominal, count)
    channels = {channel.name: channel for channel in hardware.channels}
    whole = np.zeros(count)
    for part in step_path(plan, hardware, timeline):
        ns = float(part.end_ns - part.start_ns)
        if part.op >= 0 and nominal[part.op]:
            whole += ns * drawn[:, part.op] / nominal[part.op]
        elif part.transfer >= 0:
            whole += ns * times.copies(
                channels[part.where],
                plan.graph.tensors[timeline.transfers[part.transfer].tensor].kind,
                count,
            )
        elif hardware.software is not None and hardware.software.has_host:
            whole += ns * times.calls(count)
        else:
            whole += ns
    return [(round(ns), None, None) for ns in whole.tolist()]


# -- where it is from
# ------------------------------------------------------------------------------------------------


def _sources(
    makespans: Sequence[int | None], factors: Sequence[Factor]
) -> tuple[UncertainPart, ...]:
    """The share of each factor in the variance of the makespan's logarithm, the largest first.

    By forward regression: the factor that explains most of what those before it have left is next,
    until what it explains is no more than chance (three standard errors of a correlation of half as
    many draws, as they come in opposite pairs).
    """
    there = [d for d, ns in enumerate(makespans) if ns]
    left = np.log(np.array([makespans[d] for d in there], float))
    left = left - left.mean() if len(there) else left
    whole = float(left @ left)
    if len(there) < FEW_DRAWS or not whole:
        return ()
    rows = {
        factor: factor.logs[there] - factor.logs[there].mean()
        for factor in factors
        if factor.logs[there].std() > 0
    }
    found: dict[str, UncertainPart] = {}
    while rows:
        explained = {
            factor: float(left @ row) ** 2 / float(row @ row) for factor, row in rows.items()
        }
        best = max(explained, key=explained.__getitem__)
        if (
            explained[best] <= 18 / len(there) * float(left @ left)
            or explained[best] < _LEAST_SHARE * whole
        ):
            break
        row = rows.pop(best)
        left = left - float(left @ row) / float(row @ row) * row
        before = found[best.what].share if best.what in found else 0.0
        found[best.what] = UncertainPart(
            best.what, round(before + explained[best] / whole, 4), best.remedy
        )
    return tuple(sorted(found.values(), key=lambda source: -source.share))
