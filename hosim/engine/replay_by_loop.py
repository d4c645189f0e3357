"""A replay by the compiled loop: the table of a plan, and what the loop has counted.

It covers one device, or one that stands for all; static plans, runtime policies, ops on other
processors, collectives, jitter. What raises :class:`UncoveredError` here the reference replays.
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel import copies_compete, op_durations
from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    meeting_ranks,
)
from hosim.cache_plan import AT_START, PREFETCH, Plan, RuntimePolicy
from hosim.engine import result_figures
from hosim.engine.decisions import PLACES_OF_A_TENSOR, Decisions
from hosim.engine.flow_table import FOR_SOME, TOO_LARGE, UncoveredError
from hosim.engine.hops import SEVERAL, Chunk, Hop, initial_tiers, resolve_hop, routed_chunks
from hosim.engine.host_calls import host_calls, host_cells
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.ledger import LEDGER_KINDS, Ledger, composition_of
from hosim.engine.loop_cells import ASYMMETRIC, ENDED, INSPECTS, NEVER, VALID
from hosim.engine.program_base import ProgramBase, base_of, jittered_base
from hosim.engine.program_table import CHANNEL_FIGURES, ProgramTable
from hosim.errors import PlanError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.result import LOOP, STALL_CAUSES, EventTimes, Result, StreamFigures, Transfer
from hosim.units import LARGEST


def check_loop(hardware: Hardware, folded: bool, recorded: bool) -> None:
    """Raise :class:`UncoveredError` where the loop does not cover what is asked for; ``folded``:
    one device may stand for all.
    """
    if recorded:
        raise UncoveredError("timelines and allocators")
    if hardware.devices > 1 and not folded:
        raise UncoveredError("devices that do not do the same")


def looped(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter | None,
    compete: bool | None,
    policy: RuntimePolicy | None,
    error: str | None = None,
) -> Result | None:
    """The result of a plan. That of a plan which does not fit or breaks a rule has the ``error``
    given; without one it is ``None``, and the reference says why. Of several devices one stands for
    all.

    ``policy`` is the one that decides during the replay, if there is one.

    Raises :class:`UncoveredError` for what the loop does not cover.
    """
    replay = LoopReplay(plan, hardware, budget_bytes, jitter, compete, policy)
    well = replay.ends_well()
    if not well and error is None:
        return None
    graph, several = plan.graph, hardware.devices > 1
    modelled = (
        result_figures.tells_slowing(graph, replay.base.sent, compete),
        several and bool(meeting_ranks(graph)),
    )
    did = replay.outcome(None if well else error)
    result = result_figures.of_device(did, plan, hardware, budget_bytes, jitter, modelled, LOOP)
    return (
        result_figures.together([result], [[ledger] for ledger in did.ledgers], hardware, True)
        if several
        else result
    )


def looped_times(plan: Plan, hardware: Hardware, budget_bytes: int) -> EventTimes | None:
    """Return the start and the end of ops and transfers; ``None`` and :class:`UncoveredError` are
    as in :func:`looped`.
    """
    replay = LoopReplay(plan, hardware, budget_bytes, None, None, None)
    return replay.times() if replay.ends_well() else None


class LoopReplay:
    """One replay: a plan in a table of its own."""

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        budget_bytes: int,
        jitter: Jitter | None,
        compete: bool | None,
        policy: RuntimePolicy | None,
    ) -> None:
        graph = plan.graph
        competes = graph.derived(copies_compete) if compete is None else compete
        if jitter is None:
            base = base_of(graph, hardware, competes)
        else:
            times = jittered(plan, op_durations(graph, hardware), jitter, 0, {})
            base = jittered_base(graph, hardware, competes, times)
        self.plan, self.hardware, self.base = plan, hardware, base
        self._factor = None if jitter is None else transfer_factors(jitter, 0, plan.workload)
        columns = _columns(plan, hardware)
        if self._factor is not None and policy is not None and plan.cache_ops:
            raise UncoveredError(
                "jitter of a plan's copies beside a policy's"
            )  # which copy is the next one is known as they are issued
        decisions = 0 if policy is None else PLACES_OF_A_TENSOR * len(graph.tensors) + 1
        room = np.bincount(columns["tensor"], minlength=len(graph.tensors))
        host = host_cells(host_calls(plan, hardware), columns["order"])
        chunks = _chunks(columns, base)
        self.table = ProgramTable(base, budget_bytes, room, True, decisions, host, chunks=chunks)
        self._put(columns)
        self.starts = initial_tiers(plan, hardware)
        self.table.reset(self.starts)
        self.decisions = (
            None if policy is None else Decisions(policy, self.table, hardware, self._decided)
        )

    def _put(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Put the plan into the table."""
        table, moves = self.table, len(columns["tensor"])
        table.fill(columns)
        for k in set(compress(table.cells["move_class"], table.cells["copies"])):
            self._check_class(k)
        if self._factor is not None:
            self._put_volumes(moves)

    def _put_volumes(self, moves: int) -> None:
        """Set the volumes of copies, in order of issue, whichever move is issued first."""
        cells, base = self.table.cells, self.table.base
        for t in sorted(set(cells["move_tensor"][:moves])):
            if any([cells["route"][k] >= 0 for k in range(base[t], base[t + 1])]):
                self._put_volumes_of_chunks(t)
                continue
            cells["next_volume"][t] = base[t] + 1
            copies = sum([cells["copies"][k] for k in range(base[t], base[t + 1])])
            for k in range(base[t], base[t] + copies):
                volume = self._volume(t, cells["move_channel"][k])
                self.table.flow(k, cells["size"][t] * NS_PER_S if volume is None else volume)

    def _put_volumes_of_chunks(self, t: int) -> None:
        """The same for a tensor that takes several channels: its cache ops are issued as listed if
        there is one stream.
        """
        cells, base = self.table.cells, self.table.base
        if cells["streams"] > 1:
            raise UncoveredError("jitter of routes of several channels beside several streams")
        for k in range(base[t], base[t + 1]):
            if not cells["copies"][k]:
                continue
            drawn = 1 if self._factor is None else self._factor(t)
            for place in self.table.places_of(k):
                self.table.flow(place, round(self.table.bytes_of(place) * NS_PER_S * drawn))

    def _decided(self, k: int, t: int, hop: Hop) -> None:
        """Put what a runtime policy has decided on into a place."""
        self.table.place(k, t, hop)
        if hop.channel >= 0:
            self._check_class(self.table.cells["move_class"][k])
            volume = self._volume(t, hop.channel)
            if volume is not None:
                self.table.flow(k, volume)

    def _check_class(self, k: int) -> None:
        """Raise :class:`UncoveredError` where the rate at which transfers of a class flow that
        share nothing is too large for the loop.
        """
        if self.base.best[k] > LARGEST:
            raise UncoveredError(TOO_LARGE)

    def _volume(self, t: int, channel: int) -> int | None:
        """Return the volume of a tensor's next copy on a channel (rule 15); ``None``: its bytes."""
        return (
            None
            if self._factor is None
            else round(self.plan.graph.tensors[t].size_bytes * NS_PER_S * self._factor(t))
        )

    def ends_well(self) -> bool:
        """Return whether all has ended, and what survives is where it was."""
        table = self.table
        if not table.fits:
            return False
        table.loop.begin()
        while (status := table.run(NEVER, NEVER)) >= INSPECTS:
            assert self.decisions is not None
            self.decisions.answer(status, table.loop.wanted)
        if status == ASYMMETRIC:
            raise UncoveredError(FOR_SOME)
        now, transfers = table.cells["scalars"][0], table.cells["scalars"][2]
        if max(now, self._largest, 1) * (transfers + 1) > LARGEST:
            raise UncoveredError(TOO_LARGE)  # sums of waits and of bytes
        return status == ENDED and self._persists()

    @cached_property
    def _largest(self) -> int:
        """Bytes of the largest tensor."""
        return int(np.max(self.table.cells["size"]))

    def _persists(self) -> bool:
        """Return whether what survives the step is valid again where it was at time 0 (rule 2)."""
        return bool(np.all(np.asarray(self.table.cells["here"])[self._survivors] == VALID))

    @cached_property
    def _survivors(self) -> npt.NDArray[np.intp]:
        """Where the table says whether what survives is there."""
        cells, count = self.table.cells, self.table.cells["tensors"]
        surviving = [t for t in self.starts if cells["survives"][t]]
        return np.array([r * count + t for t in surviving for r in self.starts[t]], np.intp)

    def times(self) -> EventTimes:
        """Return the start and the end of each op and transfer; transfers in the order of their
        ends, then of issue.
        """
        cells, machine, count = self.table.cells, self.base.machine, self.table.cells["ops"]
        begun, over, sequence = cells["move_begun"], cells["move_over"], cells["sequence"]
        places = chain(range(self.table.base[-1]), range(cells["chunks_from"], self.table.places))
        ran = [
            k for k in places if cells["copies"][k] and cells["ended"][k] and cells["route"][k] < 0
        ]
        order, issued = cells["move_order"], cells["issued_at"]
        transfers = []
        for k in sorted(ran, key=lambda k: (over[k], sequence[k], issued[k], order[k])):
            t, channel = cells["move_tensor"][k], machine.channels[cells["move_channel"][k]].name
            place, size, issue = order[k], self.table.bytes_of(k), issued[k]
            transfers.append(
                Transfer(place, t, channel, size, issue, begun[k], over[k], cells["move_shared"][k])
            )
        return EventTimes(
            tuple(cells["op_begun"][:count]), tuple(cells["op_over"][:count]), tuple(transfers)
        )

    def outcome(self, error: str | None) -> result_figures.Outcome:
        """Return the counts of the loop; ``error`` says that the plan does not fit."""
        cells, graph = self.table.cells, self.plan.graph
        makespan = max([cells["scalars"][3], *cells["free_since"]])
        streams = {}
        for s, name in enumerate(graph.streams):
            queue = cells["queue"][cells["queue_from"][s] : cells["queue_from"][s + 1]]
            busy = sum([self.base.durations[i] for i in queue]) + cells["slowed"][s]
            stalls = dict(zip(STALL_CAUSES, cells["stalls"][len(STALL_CAUSES) * s :], strict=False))
            streams[name] = StreamFigures(busy, stalls, makespan - cells["free_since"][s])
        channels = []
        for c in range(cells["channels"]):
            exposed, transfers, busy, queued, contention, _, moved, _ = cells["channel_figures"][
                CHANNEL_FIGURES * c : CHANNEL_FIGURES * (c + 1)
            ]
            channels.append(
                result_figures.ChannelCounts(transfers, moved, busy, queued, contention, exposed)
            )
        ledgers = []
        for r, tier in enumerate(self.hardware.tiers):
            ledger = Ledger(tier.capacity_bytes)
            ledger.peak, ledger.peak_at = cells["peak"][r], cells["peak_at"][r]
            by_kind = cells["peak_by_kind"][r * cells["kinds"] : (r + 1) * cells["kinds"]]
            ledger.peak_composition = sum(
                [
                    composition_of(kind, size)
                    for kind, size in zip(LEDGER_KINDS, by_kind, strict=True)
                ]
            )
            ledgers.append(ledger)
        slowed = sum(cells["slowed"][: cells["streams"]])
        made = {} if self.decisions is None else self.decisions.made
        return result_figures.Outcome(
            error, makespan, streams, slowed, 0, ledgers, channels, made, None, None
        )


def _chunks(columns: Mapping[str, npt.NDArray[Any]], base: ProgramBase) -> list[Chunk]:
    """The chunks of the cache ops that take several channels; each of these gets the first one of
    its channels.
    """
    (routed,) = np.nonzero(columns["channel"] == SEVERAL)
    if not len(routed):
        return []
    given = [columns[name][routed].tolist() for name in ("tensor", "source", "target")]
    sizes = [base.cells["size"][t] for t in given[0]]
    chunks = routed_chunks(zip(routed.tolist(), *given, sizes, strict=True), base.machine)
    for chunk in reversed(chunks):
        columns["channel"][chunk.move] = chunk.channel
    return chunks


def _columns(plan: Plan, hardware: Hardware) -> dict[str, npt.NDArray[Any]]:
    """The cache ops, tensor by tensor in order of issue, as columns; :data:`SEVERAL` is the channel
    of a route over several.
    """
    cache_ops = plan.cache_ops
    known: dict[tuple[str, str, str | None], int] = {}
    kinds = [known.setdefault((c.op, c.source, c.destination), len(known)) for c in cache_ops]
    hops = [
        resolve_hop(*kind, hardware, f"cache_ops[{kinds.index(k)}]") for kind, k in known.items()
    ]
    device = hardware.tier_index[hardware.device_tier]
    arrives = [
        hop.destination if hop.destination != device or hop.op == PREFETCH else -1 for hop in hops
    ]
    tensors, after = (
        np.array([c.tensor for c in cache_ops], "q"),
        np.array([c.after for c in cache_ops], "q"),
    )
    for what, numbers, least, count in (
        ("tensor", tensors, 0, len(plan.graph.tensors)),
        ("after", after, AT_START, len(plan.graph.ops)),
    ):
        for k in np.flatnonzero((numbers < least) | (numbers >= count)).tolist():
            raise PlanError(
                f"expected a position below {count}, got {numbers[k]}",
                where=f"cache_ops[{k}].{what}",
            )
    order = np.lexsort((after, tensors)).astype("i")  # stable
    of = np.array(kinds, "i")[order]
    by_hop = {
        "source": [hop.source for hop in hops],
        "target": [hop.destination for hop in hops],
        "channel": [hop.channel for hop in hops],
        "arrives": arrives,
    }
    plain = {
        "tensor": tensors[order].astype("i"),
        "after": after[order].astype("i"),
        "order": order,
    }
    return plain | {name: np.array(each, "i")[of] for name, each in by_hop.items()}
