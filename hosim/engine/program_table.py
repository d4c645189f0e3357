"""The program table: a graph on a machine as flat arrays, which one plan after another is put into,
and the loop that runs it.

It is made once for a graph, a machine and a budget. A plan changes what is issued where, what each
op waits for and where tensors are at time 0; nothing else. What the loop does not cover raises
:class:`~hosim.engine.flow_table.UncoveredError` here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.transfers import NS_PER_S
from hosim.cache_plan import AT_START
from hosim.engine.cells import Cells, StateCells, copied, fill, ints, longs, made_cells
from hosim.engine.event_loop import Loop
from hosim.engine.flow_table import FOR_SOME, UncoveredError
from hosim.engine.hops import Chunk, Hop
from hosim.engine.host_calls import NO_HOST
from hosim.engine.loop_cells import NOWHERE, RATES, SPEED, LoopCells
from hosim.engine.program_base import ProgramBase, rest_of

CHANNEL_FIGURES = 8
"""Figures of a channel: exposed ns, transfers, busy, queued and contention ns, since when it is
busy, bytes, and how many are under way.
"""


_COLUMNS = ("tensor", "source", "target", "channel", "after", "order", "class", "high", "low")


class ProgramTable:
    """The arrays of a graph on a machine, and those of a plan.

    ``room`` is how many moves each tensor may have: those of a tensor stand together, from ``base``
    on. ``decisions`` is how many cache ops of a runtime policy may be under way at one time (0:
    there is none), whose places stand behind the others. ``detailed``: all figures are counted.
    ``host`` has the calls of a host (:func:`~hosim.engine.host_calls.host_cells`), which are those
    of one plan. ``chunks`` are those of its cache ops that take several channels. ``kept`` is how
    many snapshots of a run may be kept at a time.
    """

    def __init__(
        self,
        whole: ProgramBase,
        budget_bytes: int,
        room: Sequence[int] | npt.NDArray[Any],
        detailed: bool = False,
        decisions: int = 0,
        host: Mapping[str, Any] = NO_HOST,
        kept: int = 0,
        chunks: Sequence[Chunk] = (),
    ) -> None:
        self.graph, self.machine, self.flows, self._class_of = (
            whole.graph,
            whole.machine,
            whole.flows,
            whole.class_of,
        )
        self._class_of_chunk, self._chunks = whole.class_of_chunk, chunks
        self.base = ints(np.concatenate([[0], np.cumsum(room)]))
        planned = self.base[len(room)]
        self.places = max(1, planned + decisions) + len(chunks)
        self.cells: dict[str, Any] = whole.cells | whole.flows.cells
        self.cells |= {
            "detailed": int(detailed),
            "deciding": int(decisions > 0),
            "planned": planned,
            "chunks_from": self.places - len(chunks),
            **self._room_cells(budget_bytes),
            **host,
            "chunk_move": ints([chunk.move for chunk in chunks]),
            "chunk_bytes": longs([chunk.size for chunk in chunks]),
            "first_on_hop": ints([chunk.first_on_hop for chunk in chunks]),
            "onward": ints([chunk.onward for chunk in chunks]),
        }
        self.cells |= {"move_from": self.base, "volume": ints(np.arange(self.places))}
        numbers = self.cells | {
            "moves": self.places,
            "uses": self.cells["use_from"][self.cells["ops"]],
            "kept": kept,
            "chunks": len(chunks),
        }
        self.state = StateCells(LoopCells, numbers)
        self.cells |= made_cells(LoopCells, numbers) | self.state.by_name
        if not detailed:
            fill(self.cells["rest"], rest_of(self.cells))
        self.loop = Loop(self.cells)

    def _room_cells(self, budget_bytes: int) -> dict[str, Any]:
        machine, device = self.machine, self.cells["device"]
        capacities = [tier.capacity_bytes for tier in machine.tiers]
        capacities[device] = min(capacities[device], budget_bytes)
        parts = [
            c // machine.sharers(machine.tier_scope(tier.name))
            for c, tier in zip(capacities, machine.tiers, strict=True)
        ]
        return {"capacity": longs(capacities), "part": longs(parts)}

    # -- a plan
    # ----------------------------------------------------------------------------------------------

    def flow_of(self, t: int, channel: int) -> tuple[int, int, int]:
        """A tensor's class of flows on a channel and, in two limbs, what flows."""
        if channel < 0:
            return 0, 0, 0
        return self._class_of[channel][t], *self.flows.scaled(self.cells["size"][t] * NS_PER_S)

    def flow_cells(self) -> dict[str, Cells]:
        """Return the volume that flows of each tensor that has places, in two limbs, and its class of
        flows on each channel, channel by channel.
        """
        sizes = np.asarray(self.cells["size"])[: len(self.base) - 1]
        known, alike = np.unique(np.where(np.diff(self.base) > 0, sizes, 0), return_inverse=True)
        flows = np.array([self.flows.scaled(size * NS_PER_S) for size in known.tolist()], "q")
        limbs = flows.reshape(-1, 2)[alike]
        return {
            "flow_class": ints(np.array(self._class_of, "i").reshape(-1)),
            "flow_high": longs(limbs[:, 0]),
            "flow_low": longs(limbs[:, 1]),
        }

    def fill(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Put a whole plan into an empty table: its moves tensor by tensor, in order of issue, as
        columns.

        They are the tensor, the tiers and the channel by position (-1, -1: a detach), ``after``
        which op, ``order``, the place in the plan, and ``arrives``, the tier to whose ops each
        brings its tensor (-1: none). They are taken away: of a large plan they are much.
        """
        cells, moves = self.cells, len(columns["tensor"])
        for name in list(columns):
            fill(cells[f"move_{name}"], columns.pop(name))
        tensors, channels = (
            np.asarray(cells[f"move_{name}"])[:moves] for name in ("tensor", "channel")
        )
        classes = np.zeros(moves, "i")
        for c, of in enumerate(self._class_of):
            classes[channels == c] = np.asarray(of)[tensors[channels == c]]
        sizes, alike = np.unique(np.asarray(cells["size"])[tensors], return_inverse=True)
        flows = np.array(
            [self.flows.scaled(size * NS_PER_S) for size in sizes.tolist()], "q"
        ).reshape(-1, 2)[alike]
        fill(cells["copies"], channels >= 0)
        fill(cells["move_class"], classes)
        fill(cells["move_high"], flows[:, 0])
        fill(cells["move_low"], flows[:, 1])
        for k, chunk in enumerate(self._chunks, cells["chunks_from"]):
            self._place_chunk(k, chunk)
        self.loop.plan(moves)

    def _place_chunk(self, k: int, chunk: Chunk) -> None:
        """Let a chunk have the place ``k``, as a move that its cache op issues."""
        cells, kind = self.cells, self.graph.tensors[chunk.tensor].kind
        if cells["route"][chunk.move] < 0:
            cells["route"][chunk.move] = k - cells["chunks_from"]
        self._put(
            k,
            chunk.tensor,
            chunk.source,
            chunk.target,
            chunk.channel,
            NOWHERE,
            cells["move_order"][chunk.move],
            self._class_of_chunk[chunk.channel, chunk.size, kind],
            *self.flows.scaled(chunk.size * NS_PER_S),
        )

    def place(self, k: int, t: int, hop: Hop) -> None:
        """Let the move of a tensor have the place ``k``, whoever issues it."""
        _, *where = hop
        self._put(k, t, *where, AT_START, k, *self.flow_of(t, hop.channel))

    def _put(self, k: int, *row: int) -> None:
        """Set the figures of the move in place ``k``, in the order of :data:`_COLUMNS`."""
        for name, number in zip(_COLUMNS, row, strict=True):
            self.cells[f"move_{name}"][k] = number
        self.cells["copies"][k] = self.cells["move_channel"][k] >= 0

    def places_of(self, k: int) -> Sequence[int]:
        """Return the places of what flows of a copy: its own, or those of its chunks, which stand
        together.
        """
        first, begin = self.cells["chunks_from"], self.cells["route"][k]
        if begin < 0:
            return [k]
        end = begin
        while end < len(self._chunks) and self._chunks[end].move == k:
            end += 1
        return range(first + begin, first + end)

    def bytes_of(self, k: int) -> int:
        """The bytes that flow in place ``k``."""
        cells, first = self.cells, self.cells["chunks_from"]
        return int(
            cells["size"][cells["move_tensor"][k]] if k < first else self._chunks[k - first].size
        )

    def flow(self, k: int, volume: int) -> None:
        """Set the volume of the transfer in place ``k``, in bytes times nanoseconds a second."""
        self.cells["move_high"][k], self.cells["move_low"][k] = self.flows.scaled(volume)

    def reset(self, initial: Mapping[int, Sequence[int]]) -> None:
        """Make a new table's state that at time 0, before anything is issued: each tensor is in the
        ``initial`` tiers given, by position, or nowhere.
        """
        cells = self.cells
        fill(cells["users_left"], np.diff(cells["user_from"]))
        for name in ("by_kind", "stalls", "slowed", "channel_figures"):
            fill(cells[name], [0] * len(cells[name]))
        for t, tiers in initial.items():
            for r in tiers:
                self.loop.begin_with(r, t, 1)
        for r in range(cells["tiers"]):
            cells["peak"][r], cells["peak_at"][r] = cells["held"][r], 0
        cells["peak_by_kind"][:] = cells["by_kind"][:]

    @property
    def fits(self) -> bool:
        """Return whether what is in each tier at time 0 fits; after :meth:`reset`.
        :class:`UncoveredError` where it does for some devices only.
        """
        c = self.cells
        if any([c["part"][r] < c["held"][r] <= c["capacity"][r] for r in range(c["tiers"])]):
            raise UncoveredError(FOR_SOME)
        return all([c["held"][r] <= c["capacity"][r] for r in range(c["tiers"])])

    def kept(self) -> tuple[Any, Any]:
        """The state between two instants, and what is issued and not over."""
        count = self.loop.note()
        return self.state.kept(), copied(self.cells["links"], count)

    def keep(self) -> tuple[Any, Any]:
        """Keep a snapshot of the run, for :meth:`~hosim.engine.loop.Loop.follow`, and return the
        state.
        """
        loop, cells = self.loop, self.cells
        loop.kept_marks.append(copied(cells["marks"], loop.mark()))
        loop.kept_here.append(copied(cells["here"], len(cells["here"])))
        loop.keep()
        return self.kept()

    def forget(self, count: int) -> None:
        """Forget the snapshots from a number on."""
        loop = self.loop
        loop.snapshots = count
        del loop.kept_marks[count:], loop.kept_here[count:]

    def put_back(self, kept: tuple[Any, Any]) -> None:
        """Make the state what it was when it was kept."""
        state, links = kept
        self.loop.forget()
        self.state.put_back(state)
        self.cells["links"][: len(links)] = links
        self.loop.recall()
        self.loop.go_on()

    def run(self, limit: int, stop: int) -> int:
        """Run the loop, with what it asks for: what it came to (:mod:`hosim.engine.loop`)."""
        status = self.loop.run(limit, stop)
        while self._is_answered(status):
            status = self.loop.run(limit, stop)
        return status

    def answers(self, status: int) -> bool:
        """Put what the loop asks for into the table, as far as it can be computed; whether it is
        there now.
        """
        try:
            return self._is_answered(status)
        except UncoveredError:
            return False

    def _is_answered(self, status: int) -> bool:
        if status == RATES:
            self.flows.add_rates(self.loop.wanted)
        elif status == SPEED:
            self.flows.add_speed(self.loop.wanted)
        else:
            return False
        if self.flows.cells["joined"] is not self.cells["joined"]:
            self.cells |= self.flows.cells
            self.loop.take(self.cells)
        return True
