"""The program table: a graph on a machine as flat arrays, which one plan after another is put into, and the loop that runs it.

It is made once for a graph, a machine and a budget. A plan changes what is issued where, what each op waits for and where tensors are at
time 0; nothing else. What the loop does not cover raises :class:`~hosim.engine.flow_table.UncoveredError` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from hosim.costmodel.transfers import NS_PER_S
from hosim.engine.event_loop import COMPILED, Loop, StateCells, fill, flags, ints, longs
from hosim.engine.flow_table import FOR_SOME, UncoveredError
from hosim.engine.loop_cells import NEVER, RATES, SPEED, VALID
from hosim.engine.program_base import ProgramBase
from hosim.result import STALL_CAUSES

_WIDE = [
    *("scalars", "held", "pinned", "most_pinned", "op_end", "began", "free_since", "inspected_at", "dependency_met", "residency_met"),
    *("work_since", "work_high", "work_low", "until", "started", "flows_from", "flow_since", "left_high", "left_low", "rate"),
]
"""The arrays of a state that are of 64 bits, of 8 bits, and those that are not 0 at time 0."""

_NARROW = ["here", "ended", "released", "moving"]

CHANNEL_FIGURES = 7
"""Figures of a channel: exposed ns, transfers, busy, queued and contention ns, since when it is busy, and bytes."""


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
    """The arrays of a graph on a machine, and those of a plan.

    ``room`` is how many moves each tensor may have: those of a tensor stand together, from ``base`` on. ``decisions`` is how many cache
    ops of a runtime policy may be under way at one time (0: there is none), whose places stand behind the others. ``detailed``: all figures
    are counted.
    """

    def __init__(self, whole: ProgramBase, budget_bytes: int, room: Sequence[int], detailed: bool = False, decisions: int = 0) -> None:
        self.graph, self.machine, self.flows = whole.graph, whole.machine, whole.flows
        self._class_of, self._sizes = whole.class_of, whole.sizes
        self.base = list(accumulate(room, initial=0))
        self.moves: list[TableMove | None] = [None] * max(1, self.base[-1] + decisions)
        self.cells: dict[str, Any] = whole.cells | whole.flows.cells
        self.cells |= {"detailed": int(detailed), "deciding": int(decisions > 0), "planned": self.base[-1]}
        self.cells |= self._room_cells(budget_bytes)
        self.cells |= self._plan_cells()
        self.state = StateCells(self._state_sizes(), _WIDE, _NARROW)
        self.cells |= self.state.by_name
        self.cells |= self._link_cells()
        self.cells |= self._figure_cells()
        self._blank = self._without_copies()
        self.loop = Loop(self.cells)

    def _room_cells(self, budget_bytes: int) -> dict[str, Any]:
        machine, device = self.machine, self.cells["device"]
        capacities = [tier.capacity_bytes for tier in machine.tiers]
        capacities[device] = min(capacities[device], budget_bytes)
        parts = [c // machine.sharers(machine.tier_scope(tier.name)) for c, tier in zip(capacities, machine.tiers, strict=True)]
        return {"capacity": longs(capacities), "part": longs(parts)}

    def _plan_cells(self) -> dict[str, Any]:
        none, uses = [0] * len(self.moves), self.cells["use_from"][len(self.graph.ops)]
        cells = {f"move_{name}": ints(none) for name in ("tensor", "source", "target", "channel", "class", "after", "arrives")}
        cells["move_from"] = ints(self.base)
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
        cells |= {"op_over": longs([0] * ops), **{name: longs([0] * moves) for name in ("move_begun", "move_over", "move_shared")}}
        cells |= {"due": ints([0] * moves), "recent": ints([0] * moves), "issues": ints([0] * moves)}
        return cells | {"blocked": ints([0] * c["channels"]), "latest": ints([0] * tiers)}

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

    def fill(self, columns: Mapping[str, Sequence[int]]) -> None:
        """Put a whole plan into an empty table: its moves tensor by tensor, in order of issue, as columns.

        They are those of :class:`TableMove`, ``order`` being the place in the plan; ``arrives``, the tier to whose ops each brings its
        tensor (-1: none); ``best``, its rate where it shares nothing.
        """
        cells, sizes = self.cells, self._sizes
        for name, values in columns.items():
            fill(cells[f"move_{name}"], values)
        tensors, channels = columns["tensor"], columns["channel"]
        flows = {size: self.flows.scaled(size * NS_PER_S) for size in {sizes[t] for t in tensors}}
        fill(cells["copies"], [int(c >= 0) for c in channels])
        fill(cells["move_class"], [self._class_of[c][t] if c >= 0 else 0 for c, t in zip(channels, tensors, strict=True)])
        fill(cells["move_high"], [flows[sizes[t]][0] for t in tensors])
        fill(cells["move_low"], [flows[sizes[t]][1] for t in tensors])
        self.loop.plan(len(tensors))

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
        self.cells["move_high"][k], self.cells["move_low"][k] = self.flows.scaled(volume)

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
        for name, none in _NONE.items():
            for k in range(len(cells[name])):
                cells[name][k] = none
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
            if status == RATES:
                self.flows.add_rates(self.loop.wanted)
            elif status == SPEED:
                self.flows.add_speed(self.loop.wanted)
            else:
                return status
            if self.flows.cells["joined"] is not self.cells["joined"]:
                self.cells |= self.flows.cells
                self.loop.take_machine(self.cells)
