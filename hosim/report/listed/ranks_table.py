"""Table of what ``hosim validate RANK0 RANK1 ...`` finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from hosim.report.of_studies import signed_time, time_and_share
from hosim.report.printing import open_table
from hosim.units import human_percent


def ranks_table(data: Mapping[str, Any]) -> RenderableType:
    """A ``hosim.ranks/1`` as a table: a row a rank, replayed with the others and alone, beside the
    two predictions without a model.
    """
    columns = (
        "makespan",
        *(
            f"{of}\nstart, P95"
            for of in ("together:", "alone:", "launches alone:", "launches and waits:")
        ),
    )
    table = open_table(
        "Ranks that wait for each other", "rank", "clock", "collectives", "validated", *columns
    )
    for rank in data["ranks"]:
        starts = (_start(rank[key]) for key in ("errors", "alone", "by_launches", "by_held_host"))
        table.add_row(
            rank["trace"],
            signed_time(rank["offset_ns"]),
            f"{rank['collectives']:,}",
            "yes" if rank["explained"] else "no",
            human_percent(rank["errors"]["makespan"], 2, signed=True),
            *starts,
        )
    return table


def _start(errors: Mapping[str, Any]) -> str:
    return time_and_share(errors["p95_start_ns"], errors["span_ns"])
