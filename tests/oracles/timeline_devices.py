"""The check of what several devices share: bandwidth, room and the figures over all of them
(docs/contract.md, rules 4, 6 and 9).

As with one device, nothing is shared with the engine: who shares what is read off the profile's
scopes anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timeline_memory import occupancy, rounds_of
from timeline_transfers import check_bandwidth

from hosim.analysis.verifying import Finding
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.result import Result, Spread, Timeline

_WIDTHS = {"device": 0, "host": 1, "global": 2}


def check_together(plan: Plan, hardware: Hardware, result: Result) -> Iterator[Finding]:
    """Findings on what all devices of a recorded ``result`` take together, and on the figures over
    them.
    """
    timelines = [device.timeline for device in result.by_device if device.timeline is not None]
    if len(timelines) == hardware.devices:
        if result.jitter is None or not result.jitter.transfer_sigma:
            yield from _bandwidth(hardware, timelines)
        yield from _room(hardware, result, timelines)
    yield from _figures(result)


def _sharers(hardware: Hardware, scope: str) -> list[list[int]]:
    """The devices that share something of a scope, by instance."""
    everyone = list(range(hardware.devices))
    size = {
        "device": 1,
        "host": hardware.devices_per_host or hardware.devices,
        "global": hardware.devices,
    }[scope]
    return [everyone[first : first + size] for first in everyone[::size]]


def _scope(hardware: Hardware, tier_name: str) -> str:
    tier = next(tier for tier in hardware.tiers if tier.name == tier_name)
    return "device" if tier_name == hardware.device_tier else tier.scope


def _bandwidth(hardware: Hardware, timelines: Sequence[Timeline]) -> Iterator[Finding]:
    """What flows through a fabric, or a channel between tiers that devices share, is not more than
    it carries.
    """
    shared = [(f.name, f.bandwidth_bytes_per_s, f.channels, f.scope) for f in hardware.fabrics]
    for channel in hardware.channels:
        scope = min(
            _scope(hardware, channel.source),
            _scope(hardware, channel.destination),
            key=_WIDTHS.__getitem__,
        )
        shared.append((channel.name, channel.bandwidth_bytes_per_s, (channel.name,), scope))
    for name, bandwidth, members, scope in shared:
        for devices in _sharers(hardware, scope):
            yield from check_bandwidth(
                hardware,
                name,
                bandwidth,
                [x for d in devices for x in timelines[d].transfers if x.channel in members],
            )


def _room(hardware: Hardware, result: Result, timelines: Sequence[Timeline]) -> Iterator[Finding]:
    """All devices together hold no more than a shared tier has, and its peak is the largest of its
    instances.
    """
    rounds = set().union(*map(rounds_of, timelines))
    for tier in hardware.tiers:
        least = most = 0
        peak, at = result.peak_bytes.get(tier.name, 0), result.peak_at_ns.get(tier.name, 0)
        for devices in _sharers(hardware, _scope(hardware, tier.name)):
            curve = occupancy(
                [r for d in devices for r in timelines[d].residencies if r.tier == tier.name],
                rounds,
            )
            held, now = max(((low, now) for now, low, _ in curve), default=(0, 0))
            if held > tier.capacity_bytes:
                names = ", ".join(map(str, devices))
                yield Finding(
                    "capacity",
                    f"devices {names} hold {held} bytes in {tier.name} at {now} ns; it has "
                    f"{tier.capacity_bytes}",
                )
            least, most = max(least, held), max([most, *(high for _, _, high in curve)])
            if peak and any(now < at and low >= peak for now, low, _ in curve):
                yield Finding(
                    "peak",
                    f"the peak of {tier.name}, {peak} bytes, is reached before {at} ns on devices "
                    f"{devices}",
                )
        if not least <= peak <= most:
            yield Finding(
                "peak",
                f"the peak of {tier.name} is given as {peak} bytes; the devices together reach "
                f"{least}",
            )


def _figures(result: Result) -> Iterator[Finding]:
    """The result is that of the device that ended last, and the spread is that of all."""
    each = result.by_device
    ended = [device for device in each if device.feasible]
    if result.feasible != (len(ended) == len(each)):
        yield Finding(
            "devices",
            f"{len(ended)} of {len(each)} devices ran to the end, and the result says feasible: "
            f"{result.feasible}",
        )
    last = max((device.makespan_ns or 0 for device in ended), default=0)
    if result.feasible and result.makespan_ns != last:
        yield Finding(
            "devices",
            f"the makespan is given as {result.makespan_ns} ns; the last device ends at {last} ns",
        )
    makespans, stalls = (
        sorted(d.makespan_ns or 0 for d in ended),
        sorted(sum(d.stall_ns.values()) for d in ended),
    )
    figures = result.devices
    given = figures and (figures.count, figures.feasible, figures.makespan_ns, figures.stall_ns)
    expected = (len(each), len(ended), _spread(makespans), _spread(stalls))
    if given != expected:
        yield Finding(
            "devices", f"the spread over devices is given as {given}; their results say {expected}"
        )


def _spread(ordered: Sequence[int]) -> Spread | None:
    return Spread(ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]) if ordered else None
