"""Shadow prices: how much time a little more of each resource would save, found by planning and replaying again (finite differences)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hosim.errors import InputError, UnitError
from hosim.hardware import Hardware
from hosim.result import Result
from hosim.study.wider_channels import widened
from hosim.units import human_rate, human_size, human_time, parse_rate, parse_size

MORE_MEMORY_BYTES = 10**9
MORE_BANDWIDTH_BYTES_PER_S = 10 * 10**9

Answer = Callable[[Hardware, int], Result]
"""Gives the result on a machine within a budget, of a policy that plans for it or of one plan."""


@dataclass(frozen=True, slots=True)
class Price:
    """One resource: how much more of it (``added``, with its unit), the makespan then, and the time saved (below 0: lost).

    ``makespan_ns`` is ``None`` if the workload does not fit. ``together`` names fabrics that were raised as well, because they would limit
    the channel.
    """

    what: str
    added: str
    makespan_ns: int | None
    saves_ns: int | None
    together: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.saves_ns is None:
            return f"+{self.added} of {self.what}: does not fit"
        verb = "saves" if self.saves_ns >= 0 else "costs"
        beside = f" (with {', '.join(self.together)})" if self.together else ""
        return f"+{self.added} of {self.what}{beside} {verb} {human_time(abs(self.saves_ns)) if self.saves_ns else 'nothing'}"


def steps_of(more_memory: object, more_bandwidth: object) -> tuple[int, int]:
    """The memory and the bandwidth to price, in bytes and bytes per second, of the texts that people write.

    Raises :class:`UnitError` that names the argument.

    >>> steps_of("1 GB", "10 GB/s")
    (1000000000, 10000000000)
    """
    read = []
    for argument, parse, text in (("more_memory", parse_size, more_memory), ("more_bandwidth", parse_rate, more_bandwidth)):
        try:
            read.append(parse(text))
        except UnitError as error:
            raise UnitError(error.message, source=argument) from None
    return read[0], read[1]


def prices(
    answer: Answer,
    hardware: Hardware,
    result: Result,
    more_memory_bytes: int = MORE_MEMORY_BYTES,
    more_bandwidth_bytes_per_s: int = MORE_BANDWIDTH_BYTES_PER_S,
    progress: Callable[[str], None] = lambda doing: None,
) -> list[Price]:
    """The price of device memory and of the bandwidth of each channel that ``result`` used, the one that saves most first.

    Raises a channel's bandwidth together with that of the fabrics it is part of (:mod:`hosim.study.wider_channels`). Raises
    :class:`InputError` for a step below 1.
    """
    if more_memory_bytes < 1 or more_bandwidth_bytes_per_s < 1:
        raise InputError("expected at least 1 B of memory and 1 B/s of bandwidth", source="prices")
    progress(f"with {human_size(more_memory_bytes)} more of {hardware.device_tier}")
    with_memory = answer(_roomier(hardware, more_memory_bytes), result.budget_bytes + more_memory_bytes)
    found = [_price(hardware.device_tier, _size(more_memory_bytes), with_memory, result)]
    for name, used in result.channels.items():
        if used.bytes:
            progress(f"with {human_rate(more_bandwidth_bytes_per_s)} more of {name}")
            faster, fabrics = widened(hardware, {name: more_bandwidth_bytes_per_s})
            wider = answer(faster, result.budget_bytes)
            found.append(_price(name, human_rate(more_bandwidth_bytes_per_s), wider, result, fabrics))
    return sorted(found, key=lambda price: -(price.saves_ns or 0))


def _size(value: int) -> str:
    return f"{value // 10**9} GB" if value % 10**9 == 0 else human_size(value)


def _price(what: str, added: str, then: Result, now: Result, together: Sequence[str] = ()) -> Price:
    if not then.feasible or then.makespan_ns is None or now.makespan_ns is None:
        return Price(what, added, None, None, tuple(together))
    return Price(what, added, then.makespan_ns, now.makespan_ns - then.makespan_ns, tuple(together))


def _roomier(hardware: Hardware, more: int) -> Hardware:
    tiers = tuple(replace(t, capacity_bytes=t.capacity_bytes + more) if t.name == hardware.device_tier else t for t in hardware.tiers)
    return replace(hardware, tiers=tiers)
