"""The channels of a machine, from a sweep of copies (``bandwidth.json`` of the kit for GPU
machines).
"""

from hosim.errors import InputError
from hosim.hardware import Channel
from hosim.validate.kit.kit_files import BandwidthSweep


def swept_channels(sweep: BandwidthSweep, *, host: str, device: str) -> tuple[Channel, Channel]:
    """Return ``h2d`` and ``d2h``: pinned copies by size, and the bandwidth of each while the other
    is busy.

    Raises `InputError` if a direction is missing.
    """
    return _channel(sweep, "h2d", host, device, "d2h"), _channel(sweep, "d2h", device, host, "h2d")


def _channel(
    sweep: BandwidthSweep, name: str, source: str, destination: str, other: str
) -> Channel:
    curve = _curve(sweep, name)
    if not curve:
        raise InputError(
            f"expected pinned copies of direction {name}", source="bandwidth.json", where="copies"
        )
    best = max(rate for _, rate in curve)
    beside = tuple((other, rate) for _, rate in _curve(sweep, "both")[-1:] if rate < best)
    return Channel(name, source, destination, best, curve=curve, beside=beside)


def _curve(sweep: BandwidthSweep, direction: str) -> tuple[tuple[int, int], ...]:
    """Return (bytes, bytes per second) of pinned copies, by size; a larger copy never takes less
    time than a smaller one.
    """
    rows = sorted(
        (row.size_bytes, row.median_ns)
        for row in sweep.copies
        if row.direction == direction and row.pinned
    )
    curve: list[tuple[int, int]] = []
    for size, time in rows:
        rate = max(1, size * 10**9 // max(1, time))
        if curve:
            smaller, its_rate = curve[-1]
            rate = min(rate, size * its_rate // smaller)
        curve.append((size, rate))
    return tuple(curve)
