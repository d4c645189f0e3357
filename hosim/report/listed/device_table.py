"""Table of the spread over several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from hosim.hardware import Hardware
from hosim.report.printing import NOTHING, open_table
from hosim.result import Result, Spread
from hosim.units import human_size, human_time


def devices(results: Sequence[Result], hardware: Hardware) -> Table:
    """One row per result of several devices: the minimum, the median and the maximum of makespan,
    stall and peak.
    """
    figures = [(result.policy, result.devices) for result in results if result.devices is not None]
    peak = f"peak\n{hardware.device_tier}"
    table = open_table(
        "Devices: least, median and most",
        "policy",
        "devices",
        *["makespan"] * 3,
        *["stall"] * 3,
        *[peak] * 3,
    )
    for policy, spread in figures:
        count = (
            str(spread.count)
            if spread.feasible == spread.count
            else f"{spread.feasible} of {spread.count} fit"
        )
        held = spread.peak_bytes.get(hardware.device_tier)
        cells = [
            *_three(spread.makespan_ns, human_time),
            *_three(spread.stall_ns, human_time),
            *_three(held, human_size),
        ]
        table.add_row(policy, count, *cells)
    return table


def _three(spread: Spread | None, human: Callable[[int], str]) -> list[str]:
    if spread is None:
        return [NOTHING] * 3
    return [human(value) if value else NOTHING for value in (spread.min, spread.median, spread.max)]
