"""Settings of MindSpore as lines for a shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.plain_text import printable
from hosim.units import human_percent, human_size, human_time


def shell(data: Mapping[str, Any]) -> str:
    """``export`` lines of what ``hosim export --mindspore --json`` prints, under comments that say
    what is left to the plan.
    """
    ours, theirs, gap = data["of_plan"], data["of_settings"], data["gap"]
    share = (
        f", {human_percent(gap['makespan_ns'] / ours['makespan_ns'], signed=True)}"
        if ours["makespan_ns"]
        else ""
    )
    more = ("-" if gap["peak_bytes"] < 0 else "+") + human_size(abs(gap["peak_bytes"]))
    comments = [
        f"{data['workload']} on {data['hardware']} within {human_size(data['budget_bytes'])}",
        f"MindSpore's strategy {data['strategy']}, the best of {data['trials']:,} settings in the "
        "simulator",
        f"makespan {human_time(theirs['makespan_ns'])} (plan of {data['policy']}: "
        f"{human_time(ours['makespan_ns'])}{share})",
        f"peak {human_size(theirs['peak_bytes'])} (plan: {human_size(ours['peak_bytes'])}, {more})",
        f'to be used with jit(..., auto_offload="{data["auto_offload"]}")',
    ]
    lines = [
        *(f"# {printable(text)}" for text in comments),
        *(f"export {name}={v}" for name, v in data["environment"].items()),
    ]
    return "\n".join(lines) + "\n"
