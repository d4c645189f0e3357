"""The fit of a step on a device, as frozen data: :func:`hosim.study.searches.memory_fits.memory_fit`
finds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosim.base.in_cells import InCells
from hosim.data.seen_peaks import FITS, MAY_FIT, SeenPeaks
from hosim.units import human_size


@dataclass(frozen=True, slots=True)
class ModulePeak:
    """The bytes of a module at the peak, by kind of tensor. ``count`` modules have this name, whose
    numbers are stars.
    """

    module: str
    count: int
    kinds: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class LargestFit:
    """The largest value of a field that fits, the others as asked; ``None``: not even ``least``
    does, which needs ``needs_bytes`` (``verdict``), or at a ``least`` of 0 what does not depend on
    the field. ``at_end``: the model or the search takes no larger one.
    """

    field: str
    value: int | None
    least: int
    needs_bytes: int
    verdict: str
    at_end: bool = False

    def __str__(self) -> str:
        if self.value is None:
            if not self.least:
                return f"none (without it {human_size(self.needs_bytes)})"
            if self.verdict == MAY_FIT:
                return f"none for sure ({self.least:,} may fit)"
            return f"none ({self.least:,} needs {human_size(self.needs_bytes)})"
        return f"{self.value:,}{' (the most that it takes)' if self.at_end else ''}"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that makes a step need less: ``settings`` of its builder, or a ``policy`` that
    offloads. ``why`` says what is in the way where there is no step.
    """

    name: str
    settings: Mapping[str, Any]
    policy: str | None
    peak_bytes: int | None
    seen: SeenPeaks | None
    verdict: str
    makespan_ns: int | None
    slowdown: float | None
    why: str = ""


@dataclass(frozen=True)
class MemoryFit(InCells):
    """The verdict on whether a step fits a device; ``recipe`` is what its builder was told, if it
    has one.

    ``peak_bytes`` are those of its tensors at the op ``at``,
    ``seen`` what a runtime makes of them; ``usable_bytes`` is the device's memory. ``by_kind`` and
    ``by_module`` divide the peak, the largest first. ``largest`` are the largest batch and sequence
    that fit, ``remedies`` what needs less, where it does not surely fit.
    """

    workload: str
    hardware: str
    runtime: str | None
    recipe: Mapping[str, Any]
    verdict: str
    peak_bytes: int
    seen: SeenPeaks | None
    usable_bytes: int
    makespan_ns: int
    at: str
    by_kind: Mapping[str, int]
    by_module: tuple[ModulePeak, ...]
    largest: tuple[LargestFit, ...]
    remedies: tuple[Remedy, ...]

    @property
    def best(self) -> Remedy | None:
        """The remedy that fits and costs least time."""
        wanted = MAY_FIT if self.runtime is None else FITS
        fitting = [one for one in self.remedies if one.verdict == wanted]
        return min(fitting, key=lambda one: one.makespan_ns or 0, default=None)

    def __str__(self) -> str:
        has = human_size(self.usable_bytes)
        if self.seen is not None:
            said = f"the device uses {self.seen.device} of {has}"
        else:
            said = f"tensors take {human_size(self.peak_bytes)} of {has}"
        best = self.best
        cost = f", {best.slowdown:.2f} times the time" if best and best.slowdown else ""
        helps = f". It {best.verdict} with {best.name}{cost}" if best else ""
        under = f" under {self.runtime}" if self.runtime is not None else ""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}{under}: {said}{helps}"
