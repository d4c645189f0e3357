"""A calibration as a hardware profile: the file of a base profile, with fitted figures in place of
its own.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import log
from statistics import NormalDist
from typing import Any

from hosim.errors import InputError
from hosim.hardware import Channel, Hardware
from hosim.io import hardware_from_dict
from hosim.units import (
    exact_rate,
    exact_size,
    exact_time,
    human_percent,
    human_rate,
    human_size,
    human_time,
)
from hosim.validate.calibration import Calibration
from hosim.validate.fits import CONFIDENCE, ChannelFit, Figure, write_kernels
from hosim.validate.op_costs import KindEfficiency, by_kind, scaled_constants, written_kinds

PINNED = ("pinned", "host", "unknown")
"""The kinds of host memory that give the profile's bandwidth, in order of preference; older
recordings do not distinguish them.
"""


def calibrated_profile(
    calibration: Calibration, base: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the profile as in its file. ``base`` is the content of the base profile's file.

    Raises :class:`InputError` if the base has no channel between the device and host memory for a
    fitted direction.
    """
    machine = hardware_from_dict(base)
    data = deepcopy(dict(base))
    data["name"] = name
    device = f" on {calibration.device}" if calibration.device else ""
    data["source"] = (
        f"{machine.name}, calibrated from {', '.join(calibration.sources)}{device}. Before: "
        f"{machine.source or 'no source'}"
    )
    _compute(data, calibration, machine)
    rates: dict[str, int] = {}
    for direction in ("h2d", "d2h"):
        ways = {memory: way for (d, memory), way in calibration.ways.items() if d == direction}
        if ways:
            channel = host_channel(machine, direction)
            rates[channel.name] = _channel(data["channels"][channel.name], channel, ways)
    _fabrics(data, machine, calibration, rates)
    hardware_from_dict(data, source=name)
    return data


def host_channel(machine: Hardware, direction: str) -> Channel:
    """Return the channel between the device and host memory. Raises :class:`InputError` if the
    machine has none.
    """
    device = machine.device_tier
    for tier in sorted(
        (t for t in machine.tiers if t.name != device),
        key=lambda t: (t.name != "ddr", -t.bandwidth_bytes_per_s),
    ):
        channel = machine.channel_between.get(
            (tier.name, device) if direction == "h2d" else (device, tier.name)
        )
        if channel is not None:
            return channel
    raise InputError(
        f"has no {direction} channel between the device and host memory",
        source=machine.name,
        where="channels",
    )


def _compute(data: dict[str, Any], calibration: Calibration, machine: Hardware) -> None:
    compute = dict(data.get("compute", {}))
    said = []
    if calibration.gap is not None and calibration.launch_ns is not None:
        compute["launch"] = exact_time(calibration.launch_ns)
        gap = _time(calibration.gap)
        said.append(
            f"launch from {', '.join(calibration.sources)}: gap {gap}, "
            f"{human_time(calibration.fixed_ns)} of the shortest ops"
        )
    if calibration.efficiencies or calibration.kernels:
        others = written_kinds(calibration.efficiencies, machine)
        written = {kind: dict(of) for kind, of in machine.compute.efficiency_of.items()}
        for (kind, dtype), efficiency in others.items():
            written.setdefault(kind, {})[dtype] = efficiency.value
        for kind, of in by_kind(calibration.efficiencies).items():
            written.setdefault(kind, {}).update(of)
        compute["efficiency_of"] = written
        said += _kinds_said(calibration, others)
    if calibration.kernels:
        write_kernels(
            compute,
            (
                (scale.kernel, scale.dtype, scaled_constants(scale, machine))
                for scale in calibration.kernels
            ),
        )
        listed = (
            f"{k.kernel} x {k.factor:.3g} and {human_time(k.fixed_ns)} (n={k.sizes} sizes)"
            for k in calibration.kernels
        )
        said.append(f"kernels, beside those of tables: {', '.join(listed)}")
    if said:
        before = compute.get("source")
        compute["source"] = ". ".join(
            [*said, _intervals(), *([f"Before: {before}"] if before else [])]
        )
        data["compute"] = compute


def _kinds_said(
    calibration: Calibration, others: Mapping[tuple[str, str], KindEfficiency]
) -> Iterator[str]:
    if calibration.efficiencies:
        listed = (
            f"{e.kind} {e.dtype} {e.fraction.value:.3g} ({e.fraction.low:.3g} to "
            f"{e.fraction.high:.3g}, n={e.fraction.samples})"
            for e in calibration.efficiencies
        )
        yield (
            f"efficiency_of, against {calibration.base}, from {', '.join(calibration.sources)}: "
            f"{'; '.join(listed)}"
        )
    for level, words in (("alike", "as kinds that are alike"), ("assumed", "[assumption]")):
        kinds = dict.fromkeys(
            kind for (kind, _), efficiency in others.items() if efficiency.level == level
        )
        if kinds:
            yield f"efficiency_of, {words}, in dtypes not listed: {', '.join(kinds)}"


def _channel(block: dict[str, Any], channel: Channel, ways: Mapping[str, ChannelFit]) -> int:
    """Write a channel's fitted figures, and return its bandwidth."""
    telling = {memory: way for memory, way in ways.items() if way.tells_bandwidth}
    pinned = next((telling[memory] for memory in PINNED if memory in telling), None)
    pageable = telling.get("pageable")
    if not telling:
        return channel.bandwidth_bytes_per_s
    said = []
    own = channel.bandwidth_bytes_per_s
    if pinned is not None:
        own = max(1, round(1e9 / pinned.byte_ns))
        block["bandwidth"] = exact_rate(own)
        block.pop("curve", None)
        if pinned.latency is not None:
            block["latency"] = exact_time(round(pinned.base_ns))
        points = _points(pinned, own)
        if points:
            block["curve"] = points
        block["spread"] = _spread(pinned.bandwidth)
        said.append(_way(pinned))
    if pageable is not None:
        slow = max(1, round(pageable.bandwidth.value))
        if pinned is None and slow > own:  # a measured rate is possible
            own = slow
            block["bandwidth"] = exact_rate(own)
        block["pageable"] = exact_rate(min(slow, own))
        said.append(_way(pageable))
    elif channel.pageable_bytes_per_s is not None:
        block["pageable"] = exact_rate(min(own, channel.pageable_bytes_per_s))
    if channel.beside:
        block["beside"] = {other: exact_rate(min(own, rate)) for other, rate in channel.beside}
    if channel.curve and pinned is None:
        block["curve"] = [
            {"size": exact_size(size), "bandwidth": exact_rate(min(own, rate))}
            for size, rate in channel.curve
        ]
    before = block.get("source")
    kept = [] if pinned is not None else [f"bandwidth before: {before}"] if before else []
    block["source"] = ". ".join([*said, _intervals(), *kept])
    return own


_LEAST_SPREAD = 0.02
"""[assumption] The least spread of a link's bandwidth from one run to another."""


def _spread(figure: Figure) -> float:
    """The standard deviation of the logarithm of a figure, from its interval."""
    deviations = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    found = log(figure.high / figure.low) / 2 / deviations if figure.low > 0 else 10.0
    return round(min(10.0, max(_LEAST_SPREAD, found)), 3)


def _points(way: ChannelFit, own: int) -> list[dict[str, str]]:
    points: list[dict[str, str]] = []
    size_before, rate_before = 0, own
    for size, time in way.curve:
        rate = min(own, max(1, int(size * 1e9 / max(time, 1e-3))))
        if size_before:  # rates are rounded: a larger copy must not take less time
            rate = min(rate, max(1, size * rate_before // size_before))
        points.append({"size": exact_size(size), "bandwidth": exact_rate(rate)})
        size_before, rate_before = size, rate
    return points


def _fabrics(
    data: dict[str, Any], machine: Hardware, calibration: Calibration, rates: Mapping[str, int]
) -> None:
    """Raise a fabric to the bandwidth measured on each of its channels alone; a fabric over both
    directions gets the rate that both reached together.
    """
    for fabric in machine.fabrics:
        block = data["fabrics"][fabric.name]
        ways = [name for name in rates if name in fabric.channels]
        if calibration.both is not None and len(ways) > 1:
            size, together = calibration.both
            block["bandwidth"] = exact_rate(
                max(round(together.value), *(rates[name] for name in ways))
            )
            block["source"] = (
                f"{', '.join(calibration.sources)}: copies of {human_size(size)} both ways at "
                f"once, {_rate(together)}"
            )
            continue
        least = max((rates[name] for name in ways), default=0)
        if least > fabric.bandwidth_bytes_per_s:
            block["bandwidth"] = exact_rate(least)
            block["source"] = (
                "the fastest of its channels as calibrated; before: "
                f"{block.get('source', 'no source')}"
            )


def _way(way: ChannelFit) -> str:
    latency = (
        f", latency {_time(way.latency)}" if way.latency else ", latency unknown: one size only"
    )
    error = ""
    if way.residuals.median is not None and way.residuals.p95 is not None:
        error = (
            f", residuals median {human_percent(way.residuals.median)} P95 "
            f"{human_percent(way.residuals.p95)}"
        )
    sizes = f"{human_size(way.sizes[0])} to {human_size(way.sizes[1])}"
    curve = "" if not way.curve else ", curve by size"
    return (
        f"{way.memory} memory from {', '.join(way.sources)}: "
        f"{_rate(way.bandwidth)}{latency}{curve}; {sizes}{error}"
    )


def _intervals() -> str:
    return f"Intervals: {human_percent(CONFIDENCE, 0)} by bootstrap"


def _time(figure: Figure) -> str:
    low, high, value = (human_time(round(x)) for x in (figure.low, figure.high, figure.value))
    return f"{value} ({low} to {high}, n={figure.samples})"


def _rate(figure: Figure) -> str:
    low, high, value = (
        human_rate(round(min(x, 1e18))) for x in (figure.low, figure.high, figure.value)
    )
    return f"{value} ({low} to {high}, n={figure.samples})"
