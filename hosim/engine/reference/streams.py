"""The ops of one device: when they start, how long they take, what their stalls are blamed on (docs/contract.md, rules 1, 5, 8, 16, 20)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hosim.cache_plan import PREFETCH, STORE, Plan
from hosim.engine.reference.cache_op_queues import Issued, Piece, Transfers
from hosim.engine.reference.storage import VALID, WRITING, Storage
from hosim.errors import PlanError
from hosim.hardware import Hardware
from hosim.result import STALL_CAUSES

NOT_YET = -1


@dataclass(eq=False)
class OpStream:
    """The ops of one stream, and since when the next one has what rule 8 divides its wait by."""

    name: str
    ops: Sequence[int]
    next: int = 0
    running: bool = False
    free_since: int = 0
    inspected_at: int = NOT_YET
    dependency_met: int = NOT_YET
    residency_met: int = NOT_YET
    blamed: Piece | None = None
    busy_ns: int = 0
    slowed_ns: int = 0
    peers_ns: int = 0
    stalls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STALL_CAUSES, 0))

    @property
    def head(self) -> int | None:
        """The op that is to start next, if the stream is free for it."""
        return None if self.running or self.next == len(self.ops) else self.ops[self.next]


class Rules:
    """What rules 1, 5 and 20 say of the ops of one device: what they wait for, and which detaches are legal."""

    def __init__(self, plan: Plan, hardware: Hardware, storage: Storage, transfers: Transfers) -> None:
        self.plan, self.graph, self.device = plan, plan.graph, hardware.device_tier
        self.storage, self.transfers = storage, transfers
        self.ended = [False] * len(plan.graph.ops)
        self.starts: list[int] = [NOT_YET] * len(plan.graph.ops)
        self.streams: list[OpStream] = []
        copies: dict[int, list[tuple[int, int]]] = {}
        for k, c in enumerate(plan.cache_ops):
            if c.destination is not None:
                copies.setdefault(c.tensor, []).append((c.after, k))
        self.copies = {t: sorted(listed) for t, listed in copies.items()}
        self.awaited = [self._awaited(i) for i in range(len(plan.graph.ops))]

    def where(self, i: int) -> str:
        """The tier that an op reads and writes (rule 20)."""
        return self.graph.ops[i].processor or self.device

    def arriving(self, t: int, i: int) -> int | None:
        """The copy that makes an input resident for an op: the last one into its tier that counts (rule 1, *Resident*)."""
        kinds = (PREFETCH, STORE) if self.graph.ops[i].processor else (PREFETCH,)
        ops, there = self.plan.cache_ops, self.where(i)
        found = [k for after, k in self.copies.get(t, ()) if after < i and ops[k].op in kinds and ops[k].destination == there]
        return found[-1] if found else None

    def _awaited(self, i: int) -> set[int]:
        """The cache ops that have to have ended before an op starts (rule 1, *Resident* and *Before*)."""
        op = self.graph.ops[i]
        found = {k for t in op.writes for after, k in self.copies.get(t, ()) if after < i}
        return found | {k for t in op.reads if (k := self.arriving(t, i)) is not None}

    def is_resident(self, i: int) -> bool:
        """Whether an op waits for no transfer any more."""
        op, there = self.graph.ops[i], self.where(i)
        return (
            self.awaited[i] <= self.transfers.done
            and all([self.storage.copies.get((t, there)) == VALID for t in op.reads])
            and not any([self.transfers.is_under_way(t) for t in op.writes])
        )

    def wanted(self, i: int) -> int:
        """The bytes that an op allocates when it starts."""
        op, there = self.graph.ops[i], self.where(i)
        return op.workspace_bytes + sum([self.graph.tensors[t].size_bytes for t in op.outputs if (t, there) not in self.storage.copies])

    def begin(self, i: int) -> None:
        """An op starts: its workspace is held, and what it writes is invalid until it ends."""
        op, there = self.graph.ops[i], self.where(i)
        self.starts[i] = self.storage.env.now
        self.storage.work(there, op.workspace_bytes)
        for t in op.writes:
            self.storage.write(t, there)

    def end(self, i: int) -> list[int]:
        """An op ends: the tensors that nobody uses any more."""
        op, there = self.graph.ops[i], self.where(i)
        self.ended[i] = True
        self.storage.unwork(there, op.workspace_bytes)
        for t in op.writes:
            self.storage.copies[t, there] = VALID
        return [t for t in op.uses if not self.graph.survives[t] and all([self.ended[u] for u in self.graph.users[t]])]

    def running(self) -> list[int]:
        """The ops that run."""
        return [stream.ops[stream.next] for stream in self.streams if stream.running]

    # -- detaches (rule 5) -----------------------------------------------------------------------------------------

    def detach(self, move: Issued) -> None:
        """Release the copy, or raise :class:`PlanError` if that is illegal."""
        t, tier = move.cache_op.tensor, move.cache_op.source
        copies = self.storage.copies
        if (t, tier) not in copies:
            if move.behind:
                return  # it was there at the issue; an op has written the tensor since
            raise self._illegal(t, "holds no bytes there")
        if any([self.where(i) == tier and t in self.graph.ops[i].uses for i in self.running()]):
            raise self._illegal(t, "an op is using it")
        following = next((i for i in self.graph.users[t] if not self.ended[i]), None)
        needed = self.graph.survives[t] if following is None else t in self.graph.ops[following].reads
        elsewhere = any([(t, other) in copies and copies[t, other] == VALID for other in self.storage.rooms if other != tier])
        if needed and not elsewhere:
            raise self._illegal(t, "it would drop its last valid copy")
        if following is not None and self.plan.runtime is None and self.where(following) == tier and needed:
            coming = self.arriving(t, following)
            if coming is None or coming in self.transfers.done:
                raise self._illegal(t, "an op awaits it, and no prefetch brings it back before")
        self.storage.drop(t, tier)

    def _illegal(self, t: int, why: str) -> PlanError:
        return PlanError(f"detach of tensor {self.graph.tensors[t].name!r} at {self.storage.env.now} ns: {why}")

    def bury(self, t: int) -> None:
        """A tensor whose last user has ended is released on all tiers, once its cache ops have taken effect (rule 1)."""
        if t in self.transfers.dead and not self.transfers.pending.get(t):
            for tier in self.storage.rooms:
                self.storage.drop(t, tier)

    # -- blame (rule 8) --------------------------------------------------------------------------------------------

    def blamed(self, i: int) -> Piece | None:
        """Of the transfers that have arrived at this instant, the last one that an op waited for."""
        op, there = self.graph.ops[i], self.where(i)
        found = [
            chunk
            for chunk in self.transfers.arrivals
            if (t := chunk.move.cache_op.tensor) in op.writes or (t in op.reads and chunk.move.cache_op.destination == there)
        ]
        return max(found, key=lambda chunk: chunk.order, default=None)

    def check_end(self) -> None:
        """Rule 2: what survives is valid again wherever it was at time 0."""
        for t, where in self.plan.residency(self.device).items():
            for tier in where if self.graph.survives[t] else ():
                if self.storage.copies.get((t, tier), WRITING) != VALID:
                    raise PlanError(f"tensor {self.graph.tensors[t].name!r} has no valid copy in {tier} at the end of the step")
