"""A budget as people write it: bytes, a size, or a share of the peak with everything resident."""

from __future__ import annotations

import re
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


def parse_budget(
    budget: int | float | str | None, graph: Graph, hardware: Hardware
) -> tuple[int, int]:
    """The bytes of the device tier that ``budget`` asks for, and those that may be used: at most
    the tier's capacity.

    A whole number is bytes, ``40 GiB`` a size, ``75%`` or 0.75 a share of the graph's resident peak
    (rounded down), ``None`` the capacity. Raises :class:`InputError` for a text without a unit, for
    anything else, and for a budget of 0 bytes or less.
    """
    capacity = hardware.device.capacity_bytes
    if budget is None:
        return capacity, capacity
    budget = plain_number(budget)
    if (
        isinstance(budget, bool)
        or not isinstance(budget, int | float | str)
        or (isinstance(budget, float) and not 0 <= budget <= 1)
    ):
        raise InputError(f"{_EXPECTED}, got {shown(budget)}", source="budget")
    if isinstance(budget, int) and abs(budget) > LARGEST:
        raise InputError(f"expected at most 2^63-1 B, got {shown(budget, 60)}", source="budget")
    wanted = budget if isinstance(budget, int) else _bytes(str(budget), graph, hardware)
    if (
        wanted <= 0
        and not resident_step(graph, hardware).peak_bytes
        and (_PERCENT.fullmatch(str(budget)) or _SHARE.fullmatch(str(budget)))
    ):
        raise InputError(
            f"{budget} of the workload's memory is nothing, as it has no tensors; give a size "
            "such as '40 GiB'",
            source="budget",
        )
    if wanted <= 0:
        said = f"{budget} B" if isinstance(budget, int) else budget
        expected = (
            f"expected {_TEXT}" if isinstance(budget, str) else _EXPECTED
        )  # a text has its unit
        raise InputError(f"{said} leaves no memory at all; {expected}", source="budget")
    _refuse_unknown_uses(wanted, graph, hardware)
    return wanted, min(wanted, capacity)


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


def _bytes(text: str, graph: Graph, hardware: Hardware) -> int:
    if _NEGATIVE.fullmatch(text):
        raise InputError(
            f"expected a share of the resident peak above 0, such as '75%', got {shown(text)}",
            source="budget",
        )
    percent, share = _PERCENT.fullmatch(text), _SHARE.fullmatch(text)
    if percent:
        return int(resident_step(graph, hardware).peak_bytes * Fraction(percent[1]) / 100)
    return (
        int(resident_step(graph, hardware).peak_bytes * Fraction(share[1]))
        if share
        else _size(text)
    )


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(
            f"{error.message} (or a share of the resident peak, such as '75%')", source="budget"
        ) from None
