"""Shadow prices: how much time more of each resource would save. Each is found by a replay with it,
and none is estimated.

One list has them all: device memory, the rooms below, channels, fabrics, the bandwidth of memories,
the FLOP/s of processors, and whether host memory is pinned. The plan stays as it is, except for
device memory: of that a policy makes a plan for each amount.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hosim import engine
from hosim.analysis.costmodel import copies_compete
from hosim.analysis.costmodel.transfers import sent_bytes, taken_as_pinned
from hosim.base.groups import grouped
from hosim.cache_plan import Plan
from hosim.data.runtime import NONE
from hosim.errors import InputError, PlanError, UnitError
from hosim.graph import KINDS
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.processors import tier_of
from hosim.result import Result
from hosim.study.wider_channels import widened
from hosim.units import human_rate, human_size, human_time, parse_rate, parse_size

MORE_MEMORY_BYTES = 10**9
MORE_BANDWIDTH_BYTES_PER_S = 10 * 10**9

Answer = Callable[[Hardware, int], Result]
"""Gives the result on a machine within a budget, of a policy that plans for it or of one plan."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one resource: the change (``added``), the makespan with it, and the time that it
    saves (negative: costs).

    ``added`` is an amount with its unit, or a change such as ``twice the bandwidth``.
    ``makespan_ns`` is ``None`` if the workload does not fit, or if the effect of the change is
    unknown; ``note`` has the reason. ``together`` names fabrics that were raised too, because they
    would limit the channel.
    """

    what: str
    added: str
    makespan_ns: int | None
    saves_ns: int | None
    together: tuple[str, ...] = ()
    note: str = ""

    @property
    def change(self) -> str:
        """The text of the change, with its resource and the fabrics that change with it."""
        beside = f" (with {', '.join(self.together)})" if self.together else ""
        return f"{'+' if self.added[0].isdigit() else ''}{self.added} of {self.what}{beside}"

    def __str__(self) -> str:
        if self.saves_ns is None:
            return f"{self.change}: {self.note or 'does not fit'}"
        verb = "saves" if self.saves_ns >= 0 else "costs"
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.change} {verb} "
            f"{human_time(abs(self.saves_ns)) if self.saves_ns else 'nothing'}{note}"
        )


def lines(found: Sequence[Price]) -> list[str]:
    """Return a line for each change that matters, one for all changes with the same note, and one
    for those that save nothing.
    """
    matter = [
        str(price) for price in found if price.saves_ns or not (price.note or price.saves_ns == 0)
    ]
    same = grouped(
        (price.note, price.change)
        for price in found
        if not price.saves_ns and (price.note or price.saves_ns == 0)
    )
    idle = [
        f"Nothing is saved by {'; '.join(changes)}" for changes in [same.pop("", [])] if changes
    ]
    return [*matter, *[f"{'; '.join(changes)}: {note}" for note, changes in same.items()], *idle]


def steps_of(more_memory: object, more_bandwidth: object) -> tuple[int, int]:
    """Read the memory and the bandwidth to price, in bytes and bytes per second.

    Raises :class:`UnitError` with the argument's name.

    >>> steps_of("1 GB", "10 GB/s")
    (1000000000, 10000000000)
    """
    read = []
    for argument, parse, text in (
        ("more_memory", parse_size, more_memory),
        ("more_bandwidth", parse_rate, more_bandwidth),
    ):
        try:
            read.append(parse(text))
        except UnitError as error:
            raise UnitError(error.message, source=argument) from None
    return read[0], read[1]


@dataclass(frozen=True, slots=True)
class _MoreOf:
    """A machine with more of a resource. If there is no machine there is no price, and ``note`` has
    the reason.
    """

    what: str
    added: str
    hardware: Hardware | None
    together: tuple[str, ...] = ()
    note: str = ""


def prices(
    plan: Plan,
    hardware: Hardware,
    result: Result,
    more_memory_bytes: int = MORE_MEMORY_BYTES,
    more_bandwidth_bytes_per_s: int = MORE_BANDWIDTH_BYTES_PER_S,
    progress: Callable[[str], None] = lambda doing: None,
    planned: Answer | None = None,
) -> list[Price]:
    """Return the price of each resource of the machine that the plan uses, the most useful first;
    ``result`` is the plan's replay.

    ``planned`` plans again for other amounts of device memory; without it, the unchanged plan is
    replayed. A channel's fabrics get as much more bandwidth as the channel
    (:mod:`hosim.study.wider_channels`). Raises :class:`InputError` for a step below 1.
    """
    if more_memory_bytes < 1 or more_bandwidth_bytes_per_s < 1:
        raise InputError("expected at least 1 B of memory and 1 B/s of bandwidth", source="prices")

    def as_it_is(machine: Hardware, within: int) -> Result | str:
        try:
            return engine.replay(plan, machine, within)
        except PlanError:  # with other times, streams may overtake each other
            return "then the plan breaks a rule"

    found = []
    device, budget = hardware.device, result.budget_bytes
    for added, more in ((_size(more_memory_bytes), more_memory_bytes), ("twice the room", budget)):
        progress(f"with {human_size(more)} more of {device.name}")
        roomier = _with_tier(hardware, replace(device, capacity_bytes=device.capacity_bytes + more))
        found.append(
            _price(
                _MoreOf(device.name, added, roomier),
                (planned or as_it_is)(roomier, budget + more),
                result,
            )
        )
    for change in _changes(plan, hardware, result, more_bandwidth_bytes_per_s):
        progress(f"with {change.added} of {change.what}")
        found.append(
            _price(
                change,
                change.note if change.hardware is None else as_it_is(change.hardware, budget),
                result,
            )
        )
    return sorted(found, key=lambda price: -(price.saves_ns or 0))


def _changes(plan: Plan, hardware: Hardware, result: Result, more: int) -> Iterator[_MoreOf]:
    """Yield every change except that of device memory."""
    used = [channel for channel in hardware.channels if result.channels[channel.name].bytes]
    for channel in used:
        for added, step in (
            (human_rate(more), more),
            ("twice the bandwidth", channel.bandwidth_bytes_per_s),
        ):
            yield _MoreOf(channel.name, added, *widened(hardware, {channel.name: step}))
    sends = bool(plan.graph.derived_on(hardware, sent_bytes))
    for fabric in hardware.fabrics:
        if (fabric.collectives and sends) or any(
            [channel.name in fabric.channels for channel in used]
        ):
            for added, step in (
                (human_rate(more), more),
                ("twice the bandwidth", fabric.bandwidth_bytes_per_s),
            ):
                wider = replace(fabric, bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s + step)
                yield _MoreOf(
                    fabric.name,
                    added,
                    replace(
                        hardware,
                        fabrics=tuple([wider if f is fabric else f for f in hardware.fabrics]),
                    ),
                )
    computing = {plan.graph.ops[i].processor for i in plan.graph.elsewhere}
    ends = {name for channel in used for name in (channel.source, channel.destination)}
    for tier in hardware.tiers:
        if tier.name in computing | ends or result.peak_bytes.get(tier.name):
            yield from _memory_and_processor(plan, hardware, tier, more)
            yield from _host_memory(hardware, tier, used)
    yield from _host(hardware)


def _host(hardware: Hardware) -> Iterator[_MoreOf]:
    """Yield the machine without each runtime setting that delays its host or its copies
    (docs/contract.md, rules 23 and 14).
    """
    runtime = hardware.software
    if runtime is None:
        return
    for name, other in {
        "host": replace(runtime, host=NONE, host_copy=NONE, segments=False),
        "ahead": replace(runtime, ahead=NONE),
        "gathers": replace(runtime, gathers=NONE),
        "stores": replace(runtime, stores=NONE),
        "blocks": replace(runtime, blocks=()),
        "pins": replace(runtime, pins=(), pins_once=False),
        "cache_copy": replace(runtime, cache_copy=NONE, copy_time=NONE),
    }.items():
        if other != runtime:
            yield _MoreOf(runtime.name, f"no {name}", replace(hardware, software=other))


def _memory_and_processor(
    plan: Plan, hardware: Hardware, tier: Tier, more: int
) -> Iterator[_MoreOf]:
    graph = plan.graph
    ops = [op for op in graph.ops if tier_of(op, hardware) == tier.name]
    given = sum([op.duration_ns is not None for op in ops])
    note = (
        f"the times of {'all' if given == len(ops) else f'{given:,} of {len(ops):,}'} of its ops "
        "are given"
        if given
        else ""
    )
    if tier.name != hardware.device_tier:
        roomier = replace(tier, capacity_bytes=2 * tier.capacity_bytes)
        yield _MoreOf(tier.name, "twice the room", _with_tier(hardware, roomier))
    if copies_compete(graph):
        for added, step in (
            (human_rate(more), more),
            ("twice the bandwidth", tier.bandwidth_bytes_per_s),
        ):
            faster = _with_tier(
                hardware, replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s + step)
            )
            yield _MoreOf(tier.name, added, faster, note=note)
    elif ops:
        yield _MoreOf(tier.name, "twice the bandwidth", None, note=note)
    compute = hardware.compute if tier.name == hardware.device_tier else tier.compute
    if ops and compute is not None:
        twice = replace(
            compute, peak_flops={dtype: 2 * peak for dtype, peak in compute.peak_flops.items()}
        )
        if compute.processor is not None:
            best = {dtype: 2 * most for dtype, most in compute.processor.best_flops.items()}
            twice = replace(twice, processor=replace(compute.processor, best_flops=best))
        machine = _with_compute(hardware, tier, twice)
        note = note or _other_kernels(hardware, machine)
        yield _MoreOf(
            tier.name, "twice the FLOP/s", None if given == len(ops) else machine, note=note
        )


def _other_kernels(hardware: Hardware, faster: Hardware) -> str:
    """Return a note if the machine with more FLOP/s is most like a different one of the machines
    whose kernels were measured.
    """
    if hardware.compute.processor is None:
        return ""
    from hosim.analysis.costmodel.kernels import most_like  # here, as numpy takes long to import

    return (
        ""
        if most_like(faster) == most_like(hardware)
        else f"kernels are then timed as those of {most_like(faster)}"
    )


def _host_memory(hardware: Hardware, tier: Tier, used: Sequence[Channel]) -> Iterator[_MoreOf]:
    """Yield the machine with a host tier that the copies use pinned, pageable, or with reuse of
    pinned memory.
    """
    links = [
        channel
        for channel in used
        if {channel.source, channel.destination} == {tier.name, hardware.device_tier}
    ]
    if tier.name == hardware.device_tier or tier.scope != "host" or not links:
        return
    if tier.pageable:
        yield _MoreOf(tier.name, "pinning", _with_tier(hardware, replace(tier, pageable=())))
    else:
        known = all([channel.pageable_bytes_per_s is not None for channel in links])
        note = "" if known else taken_as_pinned(hardware, tier, [channel.name for channel in links])
        pageable = _with_tier(hardware, replace(tier, pageable=tuple(KINDS))) if known else None
        yield _MoreOf(tier.name, "pageable memory", pageable, note=note)
    if tier.pin_ns and not tier.pin_pool:
        yield _MoreOf(
            tier.name, "reuse of pinned memory", _with_tier(hardware, replace(tier, pin_pool=True))
        )


def _size(value: int) -> str:
    return f"{value // 10**9} GB" if value % 10**9 == 0 else human_size(value)


def _price(change: _MoreOf, then: Result | str, now: Result) -> Price:
    """Return the price of a change from its result, or from the reason why there is none."""
    if (
        isinstance(then, str)
        or not then.feasible
        or then.makespan_ns is None
        or now.makespan_ns is None
    ):
        return Price(
            change.what,
            change.added,
            None,
            None,
            change.together,
            then if isinstance(then, str) else "",
        )
    return Price(
        change.what,
        change.added,
        then.makespan_ns,
        now.makespan_ns - then.makespan_ns,
        change.together,
        change.note,
    )


def _with_tier(hardware: Hardware, tier: Tier) -> Hardware:
    return replace(
        hardware, tiers=tuple([tier if own.name == tier.name else own for own in hardware.tiers])
    )


def _with_compute(hardware: Hardware, tier: Tier, compute: Compute) -> Hardware:
    return (
        replace(hardware, compute=compute)
        if tier.name == hardware.device_tier
        else _with_tier(hardware, replace(tier, compute=compute))
    )
