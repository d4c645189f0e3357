"""The ops of one device: what they wait for, when a detach is legal, and the division of time
(docs/contract.md, rules 1, 2, 5, 8, 20).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import simpy

from hosim.analysis.costmodel import copy_uses, op_durations
from hosim.analysis.costmodel.transfers import sent_bytes
from hosim.analysis.slack import awaited_copies
from hosim.cache_plan import DETACH, Plan
from hosim.engine.hops import initial_tiers, resolve_hop
from hosim.engine.reference.cache_op_queues import Issued, Piece, Transfers
from hosim.engine.reference.storage import VALID, WRITING, Storage
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import STALL_CAUSES, StreamFigures
from hosim.units import human_time

NOT_YET = -1


Tensors = list[tuple[int, ...]]
"""For each op, the positions of tensors."""


def tensors_of(graph: Graph) -> tuple[Tensors, Tensors, Tensors]:
    """Return the tensors that each op reads, writes and uses."""
    return (
        [op.reads for op in graph.ops],
        [op.writes for op in graph.ops],
        [op.uses for op in graph.ops],
    )


class PlannedOps:
    """The plan's data on each op, the same for all devices.

    ``where`` is the tier in which an op reads and writes (rule 20). ``slowed`` has the ops that
    copies slow down (rules 13 and 22), ``sent`` the bytes that ops send over links (rule 19).
    ``after`` has the cache ops that the end of an op issues, ``awaited`` those that must end before
    an op starts (rule 1), and ``arriving``, by tensor and op, the one that brings what the op
    reads.
    """

    def __init__(self, plan: Plan, hardware: Hardware, competes: bool) -> None:
        self.plan, self.graph = plan, plan.graph
        self.starts = initial_tiers(plan, hardware)
        ops = plan.graph.ops
        self.where = [tier_of(op, hardware) for op in ops]
        self.reads, self.writes, self.uses = plan.graph.derived(tensors_of)
        self.durations: Sequence[int] = op_durations(plan.graph, hardware)
        self.slowed = copy_uses(plan.graph, hardware, self.durations, competes)
        self.sent = plan.graph.derived_on(hardware, sent_bytes)
        self.queues: dict[str, list[int]] = {name: [] for name in plan.graph.streams}
        for i, op in enumerate(ops):
            self.queues[op.stream].append(i)
        self.after: dict[int, list[int]] = {}
        self.awaited: list[list[int]] = [[] for _ in ops]
        self.arriving: dict[tuple[int, int], int] = {}
        copies: dict[int, list[tuple[int, int]]] = {}
        resolved = set[tuple[str, str, str | None]]()
        for k, c in enumerate(plan.cache_ops):
            if (kind := (c.op, c.source, c.destination)) not in resolved:
                resolve_hop(*kind, hardware, f"cache_ops[{k}]")
                resolved.add(kind)
            self.after.setdefault(c.after, []).append(k)
            if c.op != DETACH:
                copies.setdefault(c.tensor, []).append((c.after, k))
        for t, listed in copies.items():
            for i, arriving, before in awaited_copies(
                plan, t, [k for _, k in sorted(listed)], self.where
            ):
                if arriving is not None:
                    self.arriving[t, i] = arriving
                    self.awaited[i].append(arriving)
                self.awaited[i] += before


@dataclass(eq=False, slots=True)
class OpStream:
    """The ops of one stream: ``running`` or, if none runs, ``head``; ``ahead`` are the later ones.

    The event ``begins`` starts the head. The fields from ``free_since`` to ``residency_met`` are
    the instants in ns by which rule 8 divides the head's wait.
    """

    name: str
    ahead: Iterator[int]
    begins: simpy.Event
    head: int | None = None
    running: int | None = None
    free_since: int = 0
    inspected_at: int = NOT_YET
    dependency_met: int = NOT_YET
    residency_met: int = NOT_YET
    blamed: Piece | None = None
    busy_ns: int = 0
    slowed_ns: int = 0
    peers_ns: int = 0
    stalls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STALL_CAUSES, 0))

    def free(self, now: int) -> None:
        """End the running op at ``now`` and make the next one the head."""
        self.running, self.head, self.free_since = None, next(self.ahead, None), now
        self.inspected_at = self.dependency_met = self.residency_met = NOT_YET

    def figures(self, makespan_ns: int) -> StreamFigures:
        """Return the division of the stream's time, in ns."""
        return StreamFigures(self.busy_ns, dict(self.stalls), makespan_ns - self.free_since)


class Rules:
    """The rules for the ops of one device."""

    def __init__(self, program: PlannedOps, storage: Storage, transfers: Transfers) -> None:
        self.program, self.graph, self.storage, self.transfers = (
            program,
            program.graph,
            storage,
            transfers,
        )
        self.where = [storage.rooms[tier] for tier in program.where]
        self.reads, self.writes, self.uses = program.reads, program.writes, program.uses
        self.ended: set[int] = set()
        env = storage.device.env
        self.streams = [
            OpStream(name, iter(queue), env.event()) for name, queue in program.queues.items()
        ]
        for stream in self.streams:
            stream.free(0)
        self.users_left = [len(users) for users in program.graph.users]
        self.users_ended = [0] * len(program.graph.tensors)

    # -- starts and ends (rule 1)
    # ------------------------------------------------------------------------------------

    def is_resident(self, i: int) -> bool:
        """Return whether an op need not wait for a transfer."""
        transfers, copies = self.transfers, self.where[i].copies
        if not transfers.done.issuperset(self.program.awaited[i]):
            return False
        for t in self.reads[i]:
            if copies.get(t) != VALID:
                return False
        return not (transfers.pending and any([transfers.is_under_way(t) for t in self.writes[i]]))

    def begin(self, i: int) -> bool:
        """Start an op if there is room, and return whether it started.

        It holds its workspace, and what it writes is invalid until it ends.
        """
        there = self.where[i]
        if not there.begin_op(i, [t for t in self.graph.ops[i].outputs if t not in there.copies]):
            return False
        for t in self.writes[i]:
            for other in self.storage.everywhere:
                if other is not there and t in other.copies:  # stale (rule 5)
                    other.drop(t)
                    other.freed()
            there.hold(t, WRITING)
        there.note_pinned()  # pinning by ops takes no time (rule 20)
        return True

    def end(self, i: int) -> list[int]:
        """End an op, and return the tensors that no later op uses and that do not survive."""
        there, left, survives, dead = self.where[i], self.users_left, self.graph.survives, []
        self.ended.add(i)
        there.end_op(i)
        for t in self.writes[i]:
            there.copies[t] = VALID
        for t in self.uses[i]:
            left[t] -= 1
            if not left[t] and not survives[t]:
                dead.append(t)
        return dead

    def running(self) -> list[int]:
        """Return the ops that run now."""
        return [stream.running for stream in self.streams if stream.running is not None]

    # -- detaches (rule 5)
    # -----------------------------------------------------------------------------------------

    def detach(self, move: Issued) -> None:
        """Release the copy, or raise :class:`hosim.errors.PlanError` if that is illegal."""
        room, t, graph = self.storage.rooms[move.cache_op.source], move.cache_op.tensor, self.graph
        if t not in room.copies:
            if move.behind:
                return  # an op has written the tensor since the issue, which freed this copy
            raise self._illegal(t, ": it holds no bytes there")
        using = next(
            (i for i in self.running() if self.where[i] is room and t in self.uses[i]), None
        )
        if using is not None:
            raise self._illegal(t, f": op {graph.ops[using].name!r} is using it")
        following = self._next_user(t)
        needed = graph.survives[t] if following is None else t in self.reads[following]
        if needed and not any(
            [other.copies.get(t) == VALID for other in self.storage.everywhere if other is not room]
        ):
            raise self._illegal(t, " would drop its last valid copy")
        if (
            following is not None
            and self.program.plan.runtime is None
            and self.where[following] is room
            and needed
        ):
            coming = self.program.arriving.get((t, following))
            if coming is None or coming in self.transfers.done:
                name = graph.ops[following].name
                raise self._illegal(
                    t, f": op {name!r} awaits it, and no prefetch brings it back before"
                )
        room.drop(t)

    def _illegal(self, t: int, why: str) -> PlanError:
        """Return the error of a detach that a rule forbids."""
        name, now = self.graph.tensors[t].name, human_time(self.storage.device.env.now)
        return PlanError(f"detach of tensor {name!r} at {now}{why}")

    def _next_user(self, t: int) -> int | None:
        """Return the first op in listed order that uses a tensor and has not ended."""
        users = self.graph.users[t]
        while self.users_ended[t] < len(users) and users[self.users_ended[t]] in self.ended:
            self.users_ended[t] += 1
        return users[self.users_ended[t]] if self.users_ended[t] < len(users) else None

    # -- blame (rule 8), the end of the step (rule 2)
    # ------------------------------------------------------------------

    def blamed(self, i: int) -> Piece | None:
        """Return the last-issued transfer that an op waited for and that arrived at this instant,
        or ``None``.
        """
        reads, writes, there = self.reads[i], self.writes[i], self.where[i]
        found = [
            x
            for x in self.transfers.arrivals
            if x.tensor in writes or (x.tensor in reads and x.lane.destination is there)
        ]
        return max(found, key=lambda x: x.order, default=None)

    def check_end(self) -> None:
        """Check that tensors that survive the step are valid in the tiers in which they started.

        Raises :class:`hosim.errors.PlanError`, which names the first one that is not.
        """
        storage = self.storage
        restored = [
            (t, at)
            for t, tiers in self.program.starts.items()
            if self.graph.survives[t]
            for at in tiers
        ]
        missing = [(t, at) for t, at in restored if storage.everywhere[at].copies.get(t) != VALID]
        if missing:
            t, at = min(missing)
            raise PlanError(
                f"tensor {self.graph.tensors[t].name!r} has no valid copy in "
                f"{list(storage.rooms)[at]} at the end of the step, where it was at its start: "
                "store it back, or change the plan's initial residency"
            )
