"""Placement: the tiers below the device tier as one memory, and the rule that picks a tier for each
tensor.

A placement rule puts the tiers in an order of preference for each tensor; the first one with room
for as long as the tensor needs it takes it, so that what fills up spills to the next. The rules:

* ``nearest``: ``ddr``, ``pool``, ``nvme``, then others, the quickest to read first; the caller's
  order.
* ``fastest``: by the time that the tensor takes there and back.
* ``balanced``: the tier whose channels will be done first with all that was put there and this:
  bytes spread as bandwidth does.
* ``by_kind``: what each step uses once goes far (``optimizer_state`` to ``nvme``), parameters and
  experts to the ``pool``, what is short-lived to ``ddr``; the rest, and where there is no such
  tier, as ``fastest``. ``by_kind/KIND=TIER/...`` names other tiers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import route, way_ns
from hosim.errors import InputError
from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware
from hosim.units import human_size

NEAREST, FASTEST, BALANCED, BY_KIND = PLACEMENTS = ("nearest", "fastest", "balanced", "by_kind")

PLANNED = "planned"
"""What is no rule: each tensor goes where the planner of a policy puts it, to the tier where most
of its transfers is hidden.
"""

KIND_TIERS: Mapping[str, str] = MappingProxyType({
    "optimizer_state": "nvme",
    "parameter": "pool",
    "expert": "pool",
    "gradient": "ddr",
    "activation": "ddr",
    "kv_cache": "ddr",
})  # fmt: skip
"""Where ``by_kind`` puts each kind, if there is such a tier and it has room."""

_BUCKETS = 4096
"""Room is kept by so many spans of ops at most: graphs with more ops than this are rounded up to
whole spans.
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """A rule of :data:`PLACEMENTS`, and the tiers that ``by_kind`` was told for some kinds."""

    rule: str = FASTEST
    kinds: Mapping[str, str] = field(default_factory=dict)


def read_placement(text: str, hardware: Hardware) -> Placement:
    """The placement that a policy's parameter asks for; raises :class:`InputError` on an unknown
    rule, kind or tier.
    """
    rule, *pairs = text.split("/")
    if rule not in PLACEMENTS or (pairs and rule != BY_KIND):
        raise InputError(
            f"expected one of {', '.join(PLACEMENTS)}, or by_kind/KIND=TIER/..., got {text!r}",
            source="placement",
        )
    kinds = {}
    for pair in pairs:
        kind, _, tier = pair.partition("=")
        check_kind(kind, "placement")
        if tier not in hardware.tier_index or tier == hardware.device_tier:
            below = ", ".join(t.name for t in hardware.tiers if t.name != hardware.device_tier)
            raise InputError(f"no tier {tier!r} below (tiers: {below})", source="placement")
        kinds[kind] = tier
    return Placement(rule, kinds)


def planned_placement(text: str, hardware: Hardware) -> Placement | None:
    """Like :func:`read_placement`, but none for :data:`PLANNED`."""
    return None if text == PLANNED else read_placement(text, hardware)


def check_kind(kind: str, parameter: str) -> None:
    """Raise :class:`InputError` unless there are tensors of that kind; ``parameter`` is where
    somebody named it.
    """
    if kind not in KINDS:
        raise InputError(
            f"no kind {kind!r} of tensors (kinds: {', '.join(KINDS)})", source=parameter
        )


class TierSpace:
    """Room in the tiers below over the step: bytes held by op position, from what starts there and
    what is put there.

    The account is that of the plan's order: a copy counts from the op after which it is stored to
    the end of its tensor's life. A tier on the way to others keeps room for a chunk in each
    direction (docs/contract.md, rule 7): when it is full without that, nothing passes it. ``tiers``
    are those of the caller's choice, the preferred one first; ``initial`` has what is where at time
    0. ``free`` has by tier the room in each ``span`` of so many ops, ``ample`` whether a tier has
    room for all at once, ``refused`` the tiers that had none for something, ``load`` the time that
    the channels of a tier are busy (with what is placed, too, if the rule is ``balanced``).
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        tiers: Sequence[str],
        initial: Mapping[int, Sequence[str]],
        placement: Placement | None = None,
    ) -> None:
        self._graph = graph
        self._hardware = hardware
        self._end = len(graph.ops)
        self.span = -(-(self._end + 1) // _BUCKETS)
        self.tiers = tuple(tiers)
        self._placement = placement or Placement()
        self.capacity = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
        self._sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
        chunk = min(hardware.chunk_bytes, max(self._sizes, default=0))
        for name in _passed_through(hardware, tiers):
            self.capacity[name] -= chunk
        spans = self._end // self.span + 1
        self.free = {name: np.full(spans, self.capacity[name], dtype=np.int64) for name in tiers}
        self._placed: dict[int, tuple[str, int]] = {}
        self.load = dict.fromkeys(tiers, 0)
        self._times = graph.derived_on(hardware, _RoundTrips)
        self._quickest: dict[int, Sequence[str]] = {}
        held = dict.fromkeys(tiers, 0)
        for t, where in initial.items():
            for tier in where:
                if tier in held:
                    held[tier] += self._sizes[t]
                    self.use(t, tier)
        for name, taken in held.items():
            self.free[name] -= taken
        self._initial = initial
        total = sum(self._sizes)
        self.ample = {
            name: self.capacity[name] >= 2 * total for name in tiers
        }  # room for all at once, beside what starts there
        self.refused: set[str] = set()

    def order(self, tensor: int) -> Sequence[str]:
        """The tiers in the order in which the placement rule prefers them for a tensor, now; all of
        them.
        """
        rule, size = self._placement.rule, self._sizes[tensor]
        if rule == NEAREST:
            return self.tiers
        if rule == BALANCED:
            spent = {tier: self.round_trip(tier, size) for tier in self.tiers}
            return sorted(self.tiers, key=lambda tier: (self.load[tier] + spent[tier], spent[tier]))
        quickest = self._quickest.get(size)
        if quickest is None:
            quickest = sorted(self.tiers, key=lambda tier: self.round_trip(tier, size))
            self._quickest[size] = quickest
        if rule == BY_KIND:
            kind = self._graph.tensors[tensor].kind
            wanted = self._placement.kinds.get(kind, KIND_TIERS.get(kind))
            return sorted(quickest, key=lambda tier: tier != wanted)
        return quickest

    def fits(self, tensor: int, start: int, tier: str) -> bool:
        """Return whether the tier has room for the tensor from op position ``start`` on (or has it
        already).
        """
        if self.ample[tier] or tier in self._initial.get(tensor, ()):
            return True
        begin, end = self._spans(tensor, start)
        if tensor in self._placed:
            placed, since = self._placed[tensor]
            if placed != tier:
                return False
            end = min(end, since // self.span)
        free = self.free[tier][begin:end]
        if not len(free) or int(free.min()) >= self._sizes[tensor]:
            return True
        self.refused.add(tier)
        return False

    def place(self, tensor: int, start: int, tiers: Iterable[str] | None = None) -> str | None:
        """The tier that takes the tensor from op position ``start`` on, the first in :meth:`order`,
        or of ``tiers``, with room.

        ``None`` if none has it. What is placed stays placed: asked again, it is the same tier, from
        the earlier start on.
        """
        size = self._sizes[tensor]
        if tensor in self._placed:
            tier, since = self._placed[tensor]
            if start < since:
                if not self.fits(tensor, start, tier):
                    return None
                begin, _ = self._spans(tensor, start)
                self.free[tier][begin : since // self.span] -= size
                self._placed[tensor] = (tier, max(start, 0))
            return tier
        for tier in self.order(tensor) if tiers is None else tiers:
            if tier in self._initial.get(tensor, ()):
                return tier  # its own place is kept for it
            if self.fits(tensor, start, tier):
                begin, end = self._spans(tensor, start)
                self.free[tier][begin:end] -= size
                if self._placement.rule == BALANCED:
                    self.use(tensor, tier)
                self._placed[tensor] = (tier, max(start, 0))
                return tier
        return None

    def use(self, tensor: int, tier: str) -> None:
        """Count the tensor's round trip towards the load of the tier's channels, which the rule
        ``balanced`` evens out.

        What no op uses makes none.
        """
        if self._graph.users[tensor]:
            self.load[tier] += self.round_trip(tier, self._sizes[tensor])

    def full(self) -> str:
        """In words, the tiers that had no room for something, and what they hold at most."""
        lines = []
        for tier in self.tiers:
            if tier in self.refused:
                held = self.capacity[tier] - int(self.free[tier].min(initial=self.capacity[tier]))
                lines.append(
                    f"{tier} is full: {human_size(held)} of {human_size(self.capacity[tier])} are "
                    "taken"
                )
        return "; ".join(lines)

    def _spans(self, tensor: int, start: int) -> tuple[int, int]:
        """The spans of ops that the tensor's copy is there for, if it is put there at ``start``."""
        users = self._graph.users[tensor]
        end = self._end + 1 if self._graph.survives[tensor] or not users else users[-1] + 1
        return max(start, 0) // self.span, -(-end // self.span)

    def round_trip(self, tier: str, size: int) -> int:
        """Nanoseconds there and back, alone; a direction without a way counts nothing."""
        return self._times[tier, size]


def _passed_through(hardware: Hardware, tiers: Sequence[str]) -> list[str]:
    """Return the tiers on the way from the device tier to each of ``tiers`` and back, once for each
    way.
    """
    device = hardware.device_tier
    ways = [way for name in tiers for way in ((device, name), (name, device))]
    return [c.source for way in ways for c in route(hardware, *way, hardware.chunk_bytes)[1:]]


class _RoundTrips(dict[tuple[str, int], int]):
    """Nanoseconds from the device tier to a tier and back for so many bytes, alone; a direction
    without a way counts nothing. Each is computed once.
    """

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._machine = machine_of_copies(graph, hardware)

    def __missing__(self, key: tuple[str, int]) -> int:
        tier, size = key
        machine, device = self._machine, self._machine.device_tier
        there, back = way_ns(machine, device, tier, size), way_ns(machine, tier, device, size)
        self[key] = found = (there or 0) + (back or 0)
        return found
