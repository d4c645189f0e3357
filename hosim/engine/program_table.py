"""The program table: a graph on a machine as flat arrays, which one plan after another is put into, and the loop that runs it.

It is made once for a graph, a machine and a budget. A plan changes what is issued where, what each op waits for and where tensors are at
time 0; nothing else. What the loop does not cover raises :class:`~hosim.engine.flow_table.UncoveredError` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from hosim.analysis import HappensBefore
from hosim.costmodel import MemoryUse
from hosim.costmodel.transfers import NS_PER_S, crossed_fabrics, pin_ns
from hosim.engine.event_loop import COMPILED, Loop, StateCells, flags, ints, longs
from hosim.engine.flow_table import FOR_SOME, TOO_LARGE, FlowTable, UncoveredError
from hosim.engine.ledger import LEDGER_KINDS
from hosim.engine.loop_cells import LOW, NEVER, OUTPUT, RATES, READS, SPEED, VALID, WRITES
from hosim.engine.transfer_rates import TransferRates
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import STALL_CAUSES

_KIND = {kind: k for k, kind in enumerate(LEDGER_KINDS)}

_WIDE = [
    *("scalars", "held", "pinned", "most_pinned", "op_end", "began", "free_since", "inspected_at", "dependency_met", "residency_met"),
    *("work_since", "work_high", "work_low", "until", "started", "flows_from", "flow_since", "left_high", "left_low", "rate"),
]
"""The arrays of a state that are of 64 bits, of 8 bits, and those that are not 0 at time 0."""

_NARROW = ["here", "ended", "released", "moving"]

CHANNEL_FIGURES = 7
"""Figures of a channel: exposed ns, transfers, busy, queued and contention ns, since when it is busy, and bytes."""


VOLUME_BITS = 122
"""What the volume of a transfer may take, of 128 bits."""


_NONE = dict.fromkeys(("running", "blamed", "paced", "inspected_at", "dependency_met", "residency_met"), -1) | dict.fromkeys(
    ("op_end", "until"), NEVER
)


class TableMove(NamedTuple):
    """A cache op: its tensor, positions of tiers and channel (-1, -1: a detach), after which op it is issued, and its order there."""

    tensor: int
    source: int
    target: int
    channel: int
    after: int
    order: int


class ProgramTable:
    """The arrays of a graph on a machine.

    ``room`` is how many moves each tensor may have: those of a tensor stand together, from ``base`` on.

    ``sent`` are the collectives that cross fabrics, each with its bytes per second at most and its volume, ``decisions`` is how many cache
    ops of a runtime policy may be under way at one time (0: there is none), whose places stand behind the others.

    ``durations`` are nanoseconds by op, ``uses`` the ops that copies slow down, ``machine`` the one of copies
    (:func:`hosim.costmodel.memory_traffic.machine_of_copies`), of whose equal devices one stands for all.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Hardware,
        durations: Sequence[int],
        uses: Mapping[int, MemoryUse],
        budget_bytes: int,
        room: Sequence[int],
        detailed: bool = False,
        sent: Mapping[int, tuple[int, int]] | None = None,
        decisions: int = 0,
    ) -> None:
        self.graph, self.machine = graph, machine
        self._sent = sent or {}
        self.rates = TransferRates(graph, machine, bool(self._sent))
        self._class_of = [self.rates.classes_of(c) for c in range(len(machine.channels))]
        self._sends = {i: self.rates.collective(most) for i, (most, _) in self._sent.items()}
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.where = [tier_of(op, machine) for op in graph.ops]
        crossing = sum([fabric.collectives for fabric in crossed_fabrics(machine)]) * len(graph.streams) if self._sent else 0
        flows = sum([channel.engines for channel in machine.channels]) + crossing
        self.flows = FlowTable(self.rates, flows, uses, self.where, durations)
        self.base = list(accumulate(room, initial=0))
        self.moves: list[TableMove | None] = [None] * max(1, self.base[-1] + decisions)
        self.cells: dict[str, Any] = {"detailed": int(detailed), "deciding": int(decisions > 0), "planned": self.base[-1]}
        self.cells |= graph_cells(graph, durations)
        self.cells |= self._machine_cells(budget_bytes, durations)
        self.cells |= self._plan_cells()
        self.state = StateCells(self._state_sizes(), _WIDE, _NARROW)
        self.cells |= self.state.by_name
        self.cells |= self._link_cells()
        self.cells |= self._figure_cells()
        self._blank = self._without_copies()
        self.loop = Loop(self.cells)

    # -- what no plan changes ----------------------------------------------------------------------------------

    def _machine_cells(self, budget_bytes: int, durations: Sequence[int]) -> dict[str, Any]:
        machine, flows = self.machine, self.flows
        device = machine.tier_index[machine.device_tier]
        capacities = [tier.capacity_bytes for tier in machine.tiers]
        capacities[device] = min(capacities[device], budget_bytes)
        parts = [c // machine.sharers(machine.tier_scope(tier.name)) for c, tier in zip(capacities, machine.tiers, strict=True)]
        pins = [
            0 if tier.name == machine.device_tier else pin_ns(machine, tier.name, kind) for tier in machine.tiers for kind in LEDGER_KINDS
        ]
        engines = sum([channel.engines for channel in machine.channels])
        volumes = [self._scaled(self._sent[i][1]) if i in self._sends else (0, 0) for i in range(len(durations))]
        return {
            "tiers": len(machine.tiers),
            "device": device,
            "where": ints([machine.tier_index[tier] for tier in self.where]),
            "elsewhere": int(any([tier != machine.device_tier for tier in self.where])),
            "channels": len(machine.channels),
            "engines": engines,
            "slots": engines + (len(self.graph.streams) if self._sends else 0),
            "send_class": ints([self._sends.get(i, -1) for i in range(len(durations))]),
            "send_high": longs([high for high, _ in volumes]),
            "send_low": longs([low for _, low in volumes]),
            "classes": flows.classes,
            "paces": flows.paces,
            "capacity": longs(capacities),
            "part": longs(parts),
            "slot_from": ints(accumulate([channel.engines for channel in machine.channels], initial=0)),
            "latency": longs([channel.latency_ns for channel in machine.channels]),
            "pin": longs(pins),
            "pooled": ints([int(tier.pin_pool) for tier in machine.tiers]),
            "pace_of": ints([flows.pace_of.get(i, -1) for i in range(len(durations))]),
            "launch": longs([use.launch_ns for use in flows.uses]),
            "whole_high": longs([whole >> 62 for whole in flows.wholes]),
            "whole_low": longs([whole & LOW for whole in flows.wholes]),
            **flows.cells,
        }

    def _plan_cells(self) -> dict[str, Any]:
        none, uses = [0] * len(self.moves), self.cells["use_from"][len(self.graph.ops)]
        cells = {f"move_{name}": ints(none) for name in ("tensor", "source", "target", "channel", "class")}
        cells["copies"] = ints(none)
        cells |= {f"move_{name}": longs(none) for name in ("order", "high", "low", "best")}
        cells |= {"volume": ints(range(len(none))), "next_volume": ints([-1] * len(self.graph.tensors))}
        cells |= {"issue_head": ints([-1] * (len(self.graph.ops) + 1)), "issue_next": ints([-1] * len(self.moves))}
        return cells | {"need_from": ints([0] * uses), "need_to": ints([0] * uses)}

    def _state_sizes(self) -> dict[str, int]:
        c = self.cells
        of_streams = (
            "done",
            "running",
            "blamed",
            "paced",
            "op_end",
            "began",
            "free_since",
            "inspected_at",
            "dependency_met",
            "residency_met",
        )
        of_slots = (
            "slot_move",
            "slot_phase",
            "slot_class",
            "until",
            "started",
            "flows_from",
            "flow_since",
            "left_high",
            "left_low",
            "rate",
        )
        return {
            "scalars": 5,
            "here": c["tiers"] * c["tensors"],
            "ended": len(self.moves),
            "flowing": c["classes"],
            "busy": c["channels"],
            **dict.fromkeys(("held", "pinned", "most_pinned"), c["tiers"]),
            **dict.fromkeys(("users_left", "users_ended", "released", "moving"), c["tensors"]),
            **dict.fromkeys((*of_streams, "work_since", "work_high", "work_low"), c["streams"]),
            **dict.fromkeys(of_slots, c["slots"]),
        }

    def _link_cells(self) -> dict[str, Any]:
        tensors, channels, moves = self.cells["tensors"], self.cells["channels"], len(self.moves)
        cells = {name: ints([-1] * tensors) for name in ("pending_head", "pending_tail")}
        cells |= {name: ints([-1] * channels) for name in ("queue_head", "queue_tail")}
        cells |= {name: ints([-1] * moves) for name in ("pending_next", "queue_next")}
        return (
            cells
            | {"sequence": longs([0] * moves), "issued_at": longs([0] * moves), "links": ints([0] * (3 * moves + 3))}
            | {
                "changed": flags([0] * tensors),
                "marks": longs([0] * (3 * moves + 3 + 3 * self.cells["tiers"] + 6 * self.cells["streams"] + 5 * self.cells["slots"])),
            }
        )

    def _figure_cells(self) -> dict[str, Any]:
        c = self.cells
        tiers, streams, ops, moves = c["tiers"], c["streams"], c["ops"], len(self.moves)
        cells = {name: longs([0] * tiers) for name in ("peak", "peak_at")}
        cells |= {name: longs([0] * (tiers * c["kinds"])) for name in ("by_kind", "peak_by_kind")}
        cells |= {"stalls": longs([0] * (len(STALL_CAUSES) * streams)), "slowed": longs([0] * streams)}
        cells["channel_figures"] = longs([0] * (CHANNEL_FIGURES * max(1, c["channels"])))
        cells |= {"op_idle": longs([0] * ops), "op_cause": ints([0] * ops), "op_held": longs([0] * ops)}
        cells |= {"due": ints([0] * moves), "recent": ints([0] * moves), "issues": ints([0] * moves)}
        return cells | {"blocked": ints([0] * c["channels"])}

    # -- a plan ------------------------------------------------------------------------------------------------

    def put(self, k: int, move: TableMove | None) -> None:
        """Put a move in the place ``k``, or take it from there."""
        before = self.moves[k]
        if before is not None:
            self.loop.unlink(k, before.after + 1)
        self.moves[k] = move
        if move is None:
            self.cells["copies"][k] = 0
            return
        self.place(k, move)
        self.loop.link(k, move.after + 1)

    def place(self, k: int, move: TableMove) -> None:
        """Let a move have the place ``k``, whoever issues it."""
        cells = self.cells
        t, source, target, channel, _, order = move
        cells["copies"][k] = channel >= 0
        cells["move_tensor"][k], cells["move_source"][k], cells["move_target"][k] = t, source, target
        cells["move_channel"][k], cells["move_order"][k] = channel, order
        if channel >= 0:
            cells["move_class"][k] = self._class_of[channel][t]
            self.flow(k, self._sizes[t] * NS_PER_S)

    def flow(self, k: int, volume: int) -> None:
        """What flows of the transfer in the place ``k``, in bytes times nanoseconds a second."""
        self.cells["move_high"][k], self.cells["move_low"][k] = self._scaled(volume)

    def _scaled(self, volume: int) -> tuple[int, int]:
        """A volume as the loop has it, in two limbs."""
        scaled = volume * self.flows.scale
        if scaled.bit_length() > VOLUME_BITS:
            raise UncoveredError(TOO_LARGE)
        return scaled >> 62, scaled & LOW

    def reset(self, initial: Mapping[int, Sequence[int]]) -> None:
        """The state at time 0, before anything is issued: each tensor is in the ``initial`` tiers given, by position, or nowhere."""
        cells = self.cells
        self.loop.forget()
        self.state.put_back(self._blank)
        for name in ("by_kind", "peak_by_kind", "stalls", "slowed", "channel_figures"):
            for k in range(len(cells[name])):
                cells[name][k] = 0
        for t, tiers in initial.items():
            self.start(t, tiers)
        for r in range(cells["tiers"]):
            cells["peak"][r], cells["peak_at"][r] = cells["held"][r], 0
        cells["peak_by_kind"][:] = cells["by_kind"][:]

    def _without_copies(self) -> Any:
        """The state at time 0 with no tensor anywhere."""
        cells, counts = self.cells, self.cells["user_from"]
        for name, fill in _NONE.items():
            for k in range(len(cells[name])):
                cells[name][k] = fill
        for t in range(len(self.graph.tensors)):
            cells["users_left"][t] = counts[t + 1] - counts[t]
        return self.state.kept()

    def start(self, t: int, tiers: Sequence[int]) -> None:
        """Let a tensor be in these tiers at time 0, in place of those where it is; after :meth:`reset`."""
        cells, tensors, size = self.cells, self.cells["tensors"], self._sizes[t]
        for r in range(cells["tiers"]):
            there, kind = r * tensors + t, r * cells["kinds"] + cells["kind"][t]
            change = size * ((r in tiers) - (cells["here"][there] == VALID))
            cells["here"][there] = VALID if r in tiers else 0
            cells["held"][r] += change
            cells["by_kind"][kind] += change
            if cells["pin"][kind]:
                cells["pinned"][r] += change
                cells["most_pinned"][r] = cells["pinned"][r]

    @property
    def fits(self) -> bool:
        """Whether what is in each tier at time 0 fits; after :meth:`reset`. :class:`UncoveredError` where it does for some devices only."""
        c = self.cells
        if any([c["part"][r] < c["held"][r] <= c["capacity"][r] for r in range(c["tiers"])]):
            raise UncoveredError(FOR_SOME)
        return all([c["held"][r] <= c["capacity"][r] for r in range(c["tiers"])])

    def kept(self) -> tuple[Any, list[int]]:
        """The state between two instants, and what is issued and not over."""
        count = self.loop.note()
        return self.state.kept(), list(self.cells["links"][:count])

    def put_back(self, kept: tuple[Any, list[int]]) -> None:
        """Make the state what it was when it was kept."""
        state, links = kept
        self.loop.forget()
        self.state.put_back(state)
        cells = self.cells["links"]
        for j, number in enumerate(links):
            cells[j] = number
        self.loop.recall()
        self.loop.go_on()

    def mark(self, changed: Iterable[int] = ()) -> Any:
        """What the rest of a run depends on, between two instants: equal ones go on alike. ``None`` where a tensor of ``changed`` moves."""
        cells = self.cells["changed"]
        for t in changed:
            cells[t] = 1
        count = self.loop.mark()
        for t in changed:
            cells[t] = 0
        if count < 0:
            return None
        marks, here = self.cells["marks"][:count], self.cells["here"]
        return (bytes(marks), bytes(here)) if COMPILED else (marks, here.copy())

    def run(self, limit: int, stop: int) -> int:
        """Run the loop, with what it asks for: what it came to (:mod:`hosim.engine.loop`)."""
        while True:
            status = self.loop.run(limit, stop)
            room = len(self.flows.cells["joined"])
            if status == RATES:
                self.flows.add_rates(self.loop.wanted)
            elif status == SPEED:
                self.flows.add_speed(self.loop.wanted)
            else:
                return status
            if len(self.flows.cells["joined"]) != room:
                self.cells |= self.flows.cells
                self.loop.take_machine(self.cells)


def graph_cells(graph: Graph, durations: Sequence[int]) -> dict[str, Any]:
    """The arrays of a graph: its streams, what ops wait for on others, what they use, what each tensor is; and its durations."""
    rest = [0] * len(graph.ops)
    for queue in graph.derived(HappensBefore).queues:
        for i, left in zip(reversed(queue), accumulate([durations[i] for i in reversed(queue)]), strict=True):
            rest[i] = left
    return graph.derived(_shape) | {"duration": longs(durations), "rest": longs(rest)}


def _shape(graph: Graph) -> dict[str, Any]:
    """The arrays that depend on the graph alone; not to be changed, as every table has the same."""
    order = graph.derived(HappensBefore)
    waits = _waits(graph, order)
    uses: list[list[int]] = []
    flags: list[int] = []
    for op in graph.ops:
        mine = dict.fromkeys(op.inputs, READS)
        for t in op.outputs:
            mine[t] = mine.get(t, 0) | WRITES | OUTPUT
        for t in op.mutates:
            mine[t] = mine.get(t, 0) | READS | WRITES
        uses.append(list(mine))
        flags += mine.values()
    users: list[list[int]] = [[] for _ in graph.tensors]
    used = [t for mine in uses for t in mine]
    for u, t in enumerate(used):
        users[t].append(u)
    streams, tensors = list(graph.streams), graph.tensors
    return {
        "ops": len(graph.ops),
        "tensors": len(tensors),
        "streams": len(streams),
        "main": streams.index(graph.main_stream) if streams else -1,
        "kinds": len(LEDGER_KINDS),
        "queue_from": ints(accumulate([len(queue) for queue in order.queues], initial=0)),
        "queue": ints([i for queue in order.queues for i in queue]),
        "stream_of": ints(order.stream_of),
        "place": ints(order.place),
        "wait_from": ints(accumulate(map(len, waits), initial=0)),
        "wait_stream": ints([s for wait in waits for s, _ in wait]),
        "wait_count": ints([count for wait in waits for _, count in wait]),
        "use_from": ints(accumulate(map(len, uses), initial=0)),
        "use_op": ints([i for i, mine in enumerate(uses) for _ in mine]),
        "use_tensor": ints(used),
        "use_flags": ints(flags),
        "user_from": ints(accumulate(map(len, users), initial=0)),
        "user": ints([u for mine in users for u in mine]),
        "survives": ints([int(tensor.survives) for tensor in tensors]),
        "kind": ints([_KIND[tensor.kind] for tensor in tensors]),
        "size": longs([tensor.size_bytes for tensor in tensors]),
        "workspace": longs([op.workspace_bytes for op in graph.ops]),
    }


def _waits(graph: Graph, order: HappensBefore) -> list[list[tuple[int, int]]]:
    """What each op waits for on other streams: producers that need not have ended when the op before on the same stream has.

    Each is a stream, and how many of its ops must have ended.
    """
    waits: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
    for i, producers in enumerate(graph.producers if not order.single else ()):
        known = order.known_before(i)
        missing: dict[int, int] = {}
        for p in producers:
            s, count = order.stream_of[p], order.place[p] + 1
            if known[s] < count:
                missing[s] = max(missing.get(s, 0), count)
        waits[i] = list(missing.items())
    return waits
