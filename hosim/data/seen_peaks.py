"""The peak of a device's memory as people see it: what torch allocated, what its allocator held,
and what ``nvidia-smi`` shows.

A replay counts the bytes of tensors. A runtime (:mod:`hosim.data.runtime`) says what comes on top,
each figure with its spread; sums have 90 % intervals, in which the errors of the figures are
independent of one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot

from hosim.data.runtime import DEVIATIONS, Runtime, RuntimeFigure
from hosim.hardware import Hardware
from hosim.units import human_size

DRIVER_BYTES = 460 * 2**20
"""The memory that the driver keeps of what ``nvidia-smi`` calls total, so that CUDA has so much
less.

24,564 MiB of an RTX 4090 are 23.52 GiB for CUDA (480 MiB less), 81,559 of an H100 79.22 GiB (438):
vllm-project/vllm#10511 and others.
"""

FITS, MAY_FIT, DOES_NOT_FIT = VERDICTS = ("fits", "may fit", "does not fit")


@dataclass(frozen=True, slots=True)
class SeenPeak:
    """A peak in bytes, and the ends of its 90 % interval.

    >>> str(SeenPeak(2 * 2**30, 2**30, 3 * 2**30))
    '2.00 GiB (1.00 to 3.00 GiB)'
    """

    bytes: int
    low_bytes: int
    high_bytes: int

    def __str__(self) -> str:
        low, high = human_size(self.low_bytes), human_size(self.high_bytes)
        same = low.split()[-1] == high.split()[-1]
        return f"{human_size(self.bytes)} ({low.split()[0] if same else low} to {high})"


@dataclass(frozen=True, slots=True)
class SeenPeaks:
    """The peaks of the bytes that the allocator hands out, of those that it holds, and of those
    that the device has in use; ``usable_bytes`` is the memory of the device that CUDA has.
    """

    allocated: SeenPeak
    reserved: SeenPeak
    device: SeenPeak
    usable_bytes: int

    @property
    def verdict(self) -> str:
        """One of :data:`VERDICTS`: whether what the device has in use is below what is usable,
        surely, perhaps or surely not.
        """
        if self.device.high_bytes <= self.usable_bytes:
            return FITS
        return MAY_FIT if self.device.low_bytes <= self.usable_bytes else DOES_NOT_FIT

    @property
    def line(self) -> str:
        """All of it in one line."""
        return (
            f"{self.verdict}: the device uses {self.device} of {human_size(self.usable_bytes)}, "
            "of which the allocator holds "
            f"{self.reserved} and hands out {self.allocated}"
        )


def seen_peaks(hardware: Hardware, peak_bytes: int, largest_bytes: int = 0) -> SeenPeaks | None:
    """The peaks of a device whose tensors take ``peak_bytes`` at most, under the machine's runtime;
    ``None`` without one. The largest tensor of a kind that comes up has ``largest_bytes``.

    >>> import hosim
    >>> seen_peaks(hosim.load_hardware(hosim.find_hardware("h100")), 2**30)
    """
    runtime = hardware.software
    if runtime is None:
        return None
    inside = _scaled(RuntimeFigure(float(peak_bytes)), runtime.allocated)
    slots = runtime.copy_buffers
    allocated = [inside, runtime.buffers, replace(slots, value=slots.value * largest_bytes)]
    reserved = [_scaled(part, runtime.reserved) for part in allocated]
    beside = [*reserved, *beside_allocator(runtime, hardware.devices)]
    usable = max(0, hardware.device.capacity_bytes - DRIVER_BYTES)
    return SeenPeaks(
        seen(allocated, least=peak_bytes),
        seen(reserved, least=peak_bytes),
        seen(beside, least=peak_bytes),
        usable,
    )


def beside_allocator(runtime: Runtime, devices: int) -> tuple[RuntimeFigure, ...]:
    """Return the memory in use on the device beside the allocator's."""
    return (runtime.context, runtime.graphs, *([runtime.collectives] if devices > 1 else []))


def seen(parts: Sequence[RuntimeFigure], least: int = 0) -> SeenPeak:
    """The sum of figures that err independently, with its interval; never below ``least``, what is
    known to lie there.
    """
    whole = sum([part.value for part in parts])
    over = hypot(*[part.value * (exp(DEVIATIONS * part.spread) - 1) for part in parts])
    under = hypot(*[part.value * (1 - exp(-DEVIATIONS * part.spread)) for part in parts])
    return SeenPeak(
        max(least, round(whole)), max(least, round(whole - under)), max(least, round(whole + over))
    )


def _scaled(figure: RuntimeFigure, ratio: RuntimeFigure) -> RuntimeFigure:
    return RuntimeFigure(figure.value * ratio.value, hypot(figure.spread, ratio.spread))
