"""A budget as people write it: a size, or a share of the peak with everything resident."""

from __future__ import annotations

import re
from fractions import Fraction

from hosim.analysis.liveness import static_peak
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import parse_size

_EXPECTED = "expected a size such as '40 GiB' or a share of the resident peak such as '75%'"
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def parse_budget(text: str | None, graph: Graph, hardware: Hardware) -> tuple[int, int]:
    """Bytes of the device tier that ``text`` asks for, and those that count: never more than the tier's capacity.

    ``40 GiB`` is a size, ``75%`` a share of the graph's resident peak (rounded down), ``None`` the capacity. Raises
    :class:`InputError` on a text without its unit and on a budget of nothing.
    """
    capacity = hardware.device.capacity_bytes
    if text is None:
        return capacity, capacity
    share = _SHARE.fullmatch(text)
    wanted = int(static_peak(graph).bytes * Fraction(share[1]) / 100) if share else _size(text)
    if wanted == 0:
        raise InputError(f"{text} leaves no memory at all; {_EXPECTED}", source="budget")
    return wanted, min(wanted, capacity)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(f"{error.message} (or a share of the resident peak, such as '75%')", source="budget") from None
