"""Runtime policies beside the loop: what they may see, and their decisions put into the program
table (docs/contract.md, rule 16).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hosim.cache_plan import CacheOp, MemoryView, RuntimePolicy
from hosim.engine.flow_table import UncoveredError
from hosim.engine.hops import SEVERAL, Hop, resolve_hop
from hosim.engine.loop_cells import ABSENT, DECIDES, INSPECTS, VALID
from hosim.engine.program_table import ProgramTable
from hosim.hardware import Hardware

PLACES_OF_A_TENSOR = 4
"""The most cache ops of a policy that may be under way at a time, for each tensor: the reference
replays more.
"""


class Remembering:
    """A runtime policy whose answers are kept: another engine may take the replay over from its
    start, and the policy decides once.

    Engines ask the same of it, in the same order, until the replay goes on where the first one has
    stopped.
    """

    def __init__(self, policy: RuntimePolicy) -> None:
        self._policy = policy
        self._asked: list[tuple[str, int]] = []
        self._answers: list[Any] = []
        self._next = 0
        if getattr(policy, "inspected", None) is not None:
            self.inspected = self

    def again(self) -> Remembering:
        """The replay begins, or begins anew."""
        self._next = 0
        return self

    def __contains__(self, op: object) -> bool:
        """Return whether the policy inspects an op."""
        assert isinstance(op, int)
        found: bool = self._answer(
            "inspected",
            op,
            lambda: op in getattr(self._policy, "inspected"),  # noqa: B009
        )
        return found

    def before_op(self, op: int, view: MemoryView) -> list[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.before_op`."""
        found: list[CacheOp] = self._answer(
            "before_op", op, lambda: list(self._policy.before_op(op, view))
        )
        return found

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> list[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.make_room`."""
        found: list[CacheOp] = self._answer(
            "make_room", op, lambda: list(self._policy.make_room(op, wanted_bytes, view))
        )
        return found

    def _answer(self, what: str, op: int, ask: Callable[[], Any]) -> Any:
        if self._next == len(self._answers):
            self._answers.append(ask())
            self._asked.append((what, op))
        assert self._asked[self._next] == (what, op)
        self._next += 1
        return self._answers[self._next - 1]


class Decisions:
    """Asks a policy what the loop asks for; it is the :class:`hosim.cache_plan.MemoryView` that the
    policy looks at.

    ``put`` puts a move into a place of the table, with what flows of it. ``made`` counts the cache
    ops decided on, by kind.
    """

    def __init__(
        self,
        policy: RuntimePolicy,
        table: ProgramTable,
        hardware: Hardware,
        put: Callable[[int, int, Hop], None],
    ) -> None:
        self._policy, self._table, self._hardware, self._put = policy, table, hardware, put
        self._inspected = getattr(policy, "inspected", None)
        self._cells = table.cells
        if self._inspected is None:
            self._cells["inspect_ns"][0] = hardware.inspect_ns
        self._device: int = self._cells["device"]
        self._free = list(range(self._cells["planned"], self._cells["chunks_from"]))
        self._taken: list[int] = []
        self.made: Counter[str] = Counter()

    def answer(self, status: int, stream: int) -> None:
        """Let the loop go on that has stopped with ``status``, about the next op of a stream if it
        is about one.
        """
        if status == INSPECTS:
            assert self._inspected is not None  # or the loop knows how long
            self._cells["inspected_at"][stream] = self.now_ns + (
                self._hardware.inspect_ns if self._next(stream) in self._inspected else 0
            )
        elif status == DECIDES:
            i = self._next(stream)
            if (self._inspected is None or i in self._inspected) and self._issue(
                self._policy.before_op(i, self)
            ):
                self._table.loop.decided = 1
        elif self._make_room():
            self._table.loop.again()

    def _next(self, stream: int) -> int:
        """The op that a stream is to start next."""
        return int(
            self._cells["queue"][self._cells["queue_from"][stream] + self._cells["done"][stream]]
        )

    def _make_room(self) -> bool:
        """The policy makes room for the first op that waits, if it can; nothing is under way."""
        graph, cells = self._table.graph, self._cells
        for s in range(cells["streams"]):
            if (
                cells["dependency_met"][s] >= 0
                and cells["done"][s] < cells["queue_from"][s + 1] - cells["queue_from"][s]
            ):
                i = self._next(s)
                absent = [
                    graph.tensors[t].size_bytes
                    for t in graph.ops[i].uses
                    if not self.is_resident(t)
                ]
                if self._issue(
                    self._policy.make_room(i, graph.ops[i].workspace_bytes + sum(absent), self)
                ):
                    return True
        return False

    def _issue(self, decisions: Iterable[CacheOp]) -> bool:
        """Issue cache ops, in order; whether there are any."""
        cells, made = self._cells, list(decisions)
        for c in made:
            hop = resolve_hop(c.op, c.source, c.destination, self._hardware, "runtime policy")
            if hop.channel == SEVERAL:
                raise UncoveredError("a runtime policy's routes of several channels")
            if not cells["released"][c.tensor]:
                self.made[c.op] += 1
                k = self._place()
                self._put(k, c.tensor, hop)
                self._table.loop.issue(k)
        return bool(made)

    def _place(self) -> int:
        """A place for a move: one whose move is over, and has been before this instant."""
        cells = self._cells
        if not self._free:
            loop = self._table.loop
            busy = {*cells["blamed"][: cells["streams"]], *cells["recent"][: loop.recent_count]}
            self._free = [k for k in self._taken if cells["ended"][k] and k not in busy]
            self._taken = [k for k in self._taken if not cells["ended"][k] or k in busy]
        if not self._free:
            raise UncoveredError("so many decisions of a policy at a time")
        k = self._free.pop()
        self._taken.append(k)
        cells["ended"][k] = 0
        return k

    @property
    def now_ns(self) -> int:
        """The current instant."""
        return int(self._cells["scalars"][0])

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the device tier under the budget."""
        return int(self._cells["capacity"][self._device])

    @property
    def free_bytes(self) -> int:
        """Bytes of the device tier that nothing holds now."""
        return self.capacity_bytes - int(self._cells["held"][self._device])

    def residents(self) -> list[int]:
        """Tensors that hold bytes in the device tier now, ascending."""
        tensors = self._cells["tensors"]
        first = self._device * tensors
        return [
            t
            for t, state in enumerate(self._cells["here"][first : first + tensors])
            if state != ABSENT
        ]

    def is_resident(self, tensor: int) -> bool:
        """Return whether the tensor holds bytes in the device tier now."""
        return bool(self._cells["here"][self._device * self._cells["tensors"] + tensor] != ABSENT)

    def is_busy(self, tensor: int) -> bool:
        """Return whether an op that runs uses the tensor, or a cache op of it is issued and not yet
        done.
        """
        ops = self._table.graph.ops
        return self._cells["pending_head"][tensor] >= 0 or any(
            [i >= 0 and tensor in ops[i].uses for i in self._cells["running"]]
        )

    def tiers_of(self, tensor: int) -> Sequence[str]:
        """Tiers other than the device tier that hold a valid copy."""
        here, tensors = self._cells["here"], self._cells["tensors"]
        return [
            tier.name
            for r, tier in enumerate(self._hardware.tiers)
            if r != self._device and here[r * tensors + tensor] == VALID
        ]
