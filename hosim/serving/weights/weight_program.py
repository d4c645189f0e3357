"""An iteration with weights that a policy has planned: which layers stay in the device, and when
the others come up.

A plan is for one iteration, and all iterations do the same. What it leaves in the device at the end
beyond what it began with is dropped there. Weights are not written, so the copy below stays valid
and no store is needed.

*Room.* A prefetch is issued where the plan says, or after the first later op at whose end there is
room for it, counted in program order: from its issue on, until its detach. Prefetches of a channel
keep their order. So none of them waits for room when its turn has come.

*The border of iterations.* What the plan prefetches at its beginning comes up in the iteration
before, as soon as the last of the others has been issued, the layer is no longer needed there, and
there is room to the end. At the latest it is issued when that iteration ends.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hosim.analysis.verifying import verify
from hosim.cache_plan import DETACH, PREFETCH, STORE, Plan
from hosim.errors import InfeasibleError, InputError
from hosim.hardware import Hardware
from hosim.units import human_size


@dataclass(frozen=True, slots=True)
class WeightCopy:
    """A layer comes up from a tier."""

    layer: int
    source: str


@dataclass(frozen=True, slots=True)
class WeightStep:
    """Visit number ``visit`` of an iteration, which needs ``layer`` if that has come up, and issues
    ``copies`` when it ends.
    """

    visit: int
    layer: int | None
    copies: tuple[WeightCopy, ...]


@dataclass(frozen=True)
class WeightProgram:
    """The visits at which something is waited for or issued, in order.

    ``across`` are the copies for an iteration that the one before issues. ``peak_bytes`` is the
    most that the device holds of the layers, and ``below`` what the tiers below do.
    """

    sizes: tuple[int, ...]
    visits: int
    steps: tuple[WeightStep, ...]
    across: tuple[WeightCopy, ...]
    peak_bytes: int
    below: Mapping[str, int]

    @property
    def copied_bytes(self) -> int:
        """Bytes that come up for each iteration."""
        return sum(self.sizes[copy.layer] for step in self.steps for copy in step.copies)


@dataclass(frozen=True, slots=True)
class _LayerStay:
    """A layer is in the device from ``begin`` to before ``end``: places after so many ops.
    ``source``: it is copied from there.
    """

    layer: int
    begin: int
    end: int
    source: str | None
    first_read: int


def weight_program(plan: Plan, hardware: Hardware, budget_bytes: int) -> WeightProgram:
    """Return the program of iterations that follow a plan with one op for each visit of a layer;
    ``hardware`` has the devices of one engine.

    Raises :class:`InputError` for a plan that decides during the replay, changes the graph, breaks
    a rule, or moves layers otherwise than over a channel to the device; and
    :class:`InfeasibleError` for one that does not fit in program order.
    """
    _check(plan, hardware, budget_bytes)
    stays, below = _stays(plan, hardware.device_tier)
    sizes = tuple(tensor.size_bytes for tensor in plan.graph.tensors)
    ops = len(plan.graph.ops)
    placed, occupied = _with_room(stays, sizes, ops, hardware, budget_bytes, plan.policy)
    last = max((place for place, stay in placed if place and stay.source is not None), default=1)
    issued: defaultdict[int, list[WeightCopy]] = defaultdict(list)
    for place, stay in placed:
        if place and stay.source is not None:
            issued[place].append(WeightCopy(stay.layer, stay.source))
    across = []
    for place, stay in placed:
        if place or stay.source is None:
            continue
        free = max((other.end for other in stays if other.layer == stay.layer), default=0)
        last = max(last, min(free, ops))
        while last < ops and any(
            held + sizes[stay.layer] > budget_bytes for held in occupied[last:ops]
        ):
            last += 1
        for held in range(last, ops):
            occupied[held] += sizes[stay.layer]
        across.append(WeightCopy(stay.layer, stay.source))
        issued[last].append(across[-1])
    moves = {copy.layer for copies in issued.values() for copy in copies}
    steps = []
    for number, op in enumerate(plan.graph.ops):
        layer, copies = op.inputs[0], tuple(issued[number + 1])
        if layer in moves or copies:
            steps.append(WeightStep(number, layer if layer in moves else None, copies))
    return WeightProgram(
        sizes, ops, tuple(steps), tuple(across), max(occupied[:ops], default=0), below
    )


def _check(plan: Plan, hardware: Hardware, budget_bytes: int) -> None:
    """Raise :class:`InputError` for a plan that iterations cannot follow."""
    if plan.runtime is not None:
        raise InputError(
            f"{plan.policy} decides while it runs; weights of a served model need a policy that "
            "plans, such as hyperoffload",
            source="weights",
        )
    if plan.edits is not None:
        raise InputError(
            f"{plan.policy} changes what runs; weights of a served model need a policy that does "
            "not",
            source="weights",
        )
    wrong = verify(plan, hardware.fair_share, budget_bytes)
    if wrong:
        raise InputError(
            f"{plan.policy} made no legal plan for the weights: {wrong[0]}", source="weights"
        )
    for cache_op in plan.cache_ops:
        device = cache_op.source if cache_op.op in (STORE, DETACH) else cache_op.destination
        if device != hardware.device_tier and cache_op.op != DETACH:
            raise InputError(
                f"{plan.policy} copies between tiers below ({cache_op.source} to "
                f"{cache_op.destination}), which hosim does not serve",
                source="weights",
            )


def _stays(plan: Plan, device: str) -> tuple[list[_LayerStay], Mapping[str, int]]:
    """Return the stays of layers in the device, in order of issue, and bytes below by tier."""
    ops, users = len(plan.graph.ops), plan.graph.users
    residency = plan.residency(device)
    homes = {
        t: next((tier for tier in where if tier != device), None) for t, where in residency.items()
    }
    open_: dict[int, _LayerStay] = {}
    stays: list[_LayerStay] = []

    def begin(t: int, place: int, source: str | None) -> None:
        read = bisect_left(users[t], place)
        first = users[t][read] if read < len(users[t]) else ops
        open_[t] = _LayerStay(t, place, ops, source, first)
        stays.append(open_[t])

    for t, where in residency.items():
        if device in where:
            begin(t, 0, None)
    for cache_op in sorted(plan.cache_ops, key=lambda cache_op: cache_op.after):
        t, place = cache_op.tensor, cache_op.after + 1
        if cache_op.op == PREFETCH and t not in open_:
            begin(t, place, cache_op.source)
        elif cache_op.op == DETACH and cache_op.source == device and t in open_:
            stay = open_.pop(t)
            stays[stays.index(stay)] = replace(stay, end=place)
        elif cache_op.op == STORE:
            homes[t] = homes.get(t) or cache_op.destination
    kept = {
        t for t in open_ if device in residency[t]
    }  # it is there again when the next iteration begins
    ended = [
        replace(stay, end=ops + 1) if stay.layer in kept and open_.get(stay.layer) == stay else stay
        for stay in stays
    ]
    below: defaultdict[str, int] = defaultdict(int)
    for t, tier in homes.items():
        if tier is not None:
            below[tier] += plan.graph.tensors[t].size_bytes
    # a copy that comes up and is dropped unread is of no use, and what is dropped at once takes no
    # room
    return [
        stay
        for stay in ended
        if (stay.source is None and stay.end) or stay.first_read < stay.end or stay.end > ops
    ], dict(below)


def _with_room(
    stays: list[_LayerStay],
    sizes: tuple[int, ...],
    ops: int,
    hardware: Hardware,
    budget_bytes: int,
    policy: str,
) -> tuple[list[tuple[int, _LayerStay]], list[int]]:
    """The place at which each stay begins, in order of issue, and the bytes that are held after
    each place.
    """
    held = 0
    waiting: defaultdict[object, list[_LayerStay]] = defaultdict(list)
    began: dict[_LayerStay, int] = {}
    occupied = []
    for place in range(ops + 1):
        held -= sum(sizes[stay.layer] for stay in began if stay.end == place)
        for stay in stays:
            if stay.begin == place:
                channel = (
                    None
                    if stay.source is None
                    else hardware.channel_between[stay.source, hardware.device_tier].name
                )
                waiting[channel].append(stay)
        while True:
            heads = [
                queue[0]
                for queue in waiting.values()
                if queue and held + sizes[queue[0].layer] <= budget_bytes
            ]
            if not heads:
                break
            first = min(heads, key=stays.index)
            next(queue for queue in waiting.values() if queue and queue[0] == first).pop(0)
            began[first] = place
            held += sizes[first.layer]
        late = next(
            (stay for queue in waiting.values() for stay in queue if stay.first_read <= place), None
        )
        if late is not None:
            raise InfeasibleError(
                f"out of memory: {policy} needs more than the {human_size(budget_bytes)} that "
                f"weights have in {hardware.device_tier} "
                f"(weights_memory): {human_size(held)} are held when "
                f"{human_size(sizes[late.layer])} have to come up"
            )
        occupied.append(held)
    return sorted(
        ((place, stay) for stay, place in began.items()),
        key=lambda one: (one[0], stays.index(one[1])),
    ), occupied
