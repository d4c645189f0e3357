"""A budget as people write it: bytes, a size, or a share of the peak with everything resident."""

import re
from dataclasses import dataclass
from fractions import Fraction

from hosim.engine.resident_step import resident_step
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import shown
from hosim.units import LARGEST, human_percent, human_size, parse_size, plain_number

_TEXT = "a size such as '40 GiB' or a share of the resident peak such as '75%' or 0.75"
_EXPECTED = f"expected whole bytes, {_TEXT}"
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_NEGATIVE = re.compile(r"\s*-\s*(\d+(?:\.\d+)?\s*%|0?\.\d+)\s*")
_SHARE = re.compile(r"\s*(0?\.\d+|[01]\.0*|\d(?:\.\d+)?e-\d{1,3})\s*")
"""A number with a point, of at most 1: whole ones are bytes."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The bytes of the device tier that may be used: ``wanted_bytes``, or a ``share`` of the peak
    with everything resident, or all of it.

    ``asked`` is what was said, which errors quote.
    """

    wanted_bytes: int | None = None
    share: Fraction | None = None
    asked: int | float | str | None = None

    def of(self, graph: Graph, hardware: Hardware) -> tuple[int, int]:
        """The bytes that it asks for, and those that may be used: at most the device tier's
        capacity.

        Raises :class:`InputError` for a share that is less than a byte.
        """
        capacity = hardware.device.capacity_bytes
        wanted = self.wanted_bytes
        if self.share is not None:
            peak = resident_step(graph, hardware).peak_bytes
            wanted = int(peak * self.share)
            if not peak:
                raise InputError(
                    f"{self.asked} of the workload's memory is nothing, as it has no tensors; "
                    "give a size such as '40 GiB'",
                    source="budget",
                )
            if not wanted:
                raise _nothing(self.asked)
        if wanted is None:
            return capacity, capacity
        _refuse_unknown_uses(wanted, graph, hardware)
        return wanted, min(wanted, capacity)


def read_budget(budget: MemoryBudget | int | float | str | None) -> MemoryBudget:
    """A budget as people write it.

    A whole number is bytes, ``40 GiB`` a size, ``75%`` or 0.75 a share of the graph's resident peak
    (rounded down), ``None`` all of the tier. Raises :class:`InputError` for a text without a unit,
    for anything else, and for 0 bytes or less.

    >>> read_budget("4 KiB").wanted_bytes, read_budget("75%").share
    (4096, Fraction(3, 4))
    """
    if budget is None or isinstance(budget, MemoryBudget):
        return budget or MemoryBudget()
    budget = plain_number(budget)
    if (
        isinstance(budget, bool)
        or not isinstance(budget, int | float | str)
        or (isinstance(budget, float) and not 0 <= budget <= 1)
    ):
        raise InputError(f"{_EXPECTED}, got {shown(budget)}", source="budget")
    if isinstance(budget, int) and abs(budget) > LARGEST:
        raise InputError(f"expected at most 2^63-1 B, got {shown(budget, 60)}", source="budget")
    share = None if isinstance(budget, int) else _share(str(budget))
    if share is not None:
        return MemoryBudget(share=share, asked=budget)
    wanted = budget if isinstance(budget, int) else _size(str(budget))
    if wanted <= 0:
        raise _nothing(budget)
    return MemoryBudget(wanted, asked=budget)


def _nothing(budget: int | float | str | None) -> InputError:
    said = f"{budget} B" if isinstance(budget, int) else budget
    expected = f"expected {_TEXT}" if isinstance(budget, str) else _EXPECTED  # a text has its unit
    return InputError(f"{said} leaves no memory at all; {expected}", source="budget")


def _refuse_unknown_uses(wanted: int, graph: Graph, hardware: Hardware) -> None:
    """Raise :class:`InputError` for less than a recording's peak if too much is not known of what
    its ops use.
    """
    unknown, share = (
        graph.meta.get("unknown_uses_bytes", 0),
        graph.meta.get("unknown_uses_share", 0.0),
    )
    if not isinstance(unknown, int) or not isinstance(share, int | float) or not (unknown or share):
        return
    peak = resident_step(graph, hardware).peak_bytes
    if wanted >= peak:
        return
    below = f"no answer below the peak of {human_size(peak)}"
    most = f"at most {human_percent(MOST_UNKNOWN_USES, 0)} may be unknown"
    if unknown > MOST_UNKNOWN_USES * peak:
        why = (
            f"which ops use {human_size(unknown)} of it, allocated before the recording, is not "
            f"recorded ({most})"
        )
        raise InputError(
            f"{below}: {why}; record shapes and modules, or give --execution-trace",
            source=graph.name,
        )
    if share > MOST_UNKNOWN_USES:
        why = (
            f"what kernels use that take {human_percent(share, 0)} of the time, and have no "
            f"recorded operator, is not known ({most})"
        )
        raise InputError(f"{below}: {why}", source=graph.name)


MOST_UNKNOWN_USES = 0.25
"""The most of a recording's peak, and of its kernels' time, of which the uses may be unknown for
what-ifs below that peak.
"""


def _share(text: str) -> Fraction | None:
    """The share of the resident peak that a text is, if it is one."""
    if _NEGATIVE.fullmatch(text):
        raise InputError(
            f"expected a share of the resident peak above 0, such as '75%', got {shown(text)}",
            source="budget",
        )
    percent, share = _PERCENT.fullmatch(text), _SHARE.fullmatch(text)
    return Fraction(percent[1]) / 100 if percent else Fraction(share[1]) if share else None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(
            f"{error.message} (or a share of the resident peak, such as '75%')", source="budget"
        ) from None
