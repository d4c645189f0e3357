"""Options of llama.cpp as a line for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from hosim.plain_text import printable
from hosim.units import human_percent, human_size, human_time


def command_line(data: Mapping[str, Any]) -> str:
    """The line of what ``hosim export --llama-cpp --json`` prints, under comments that say how far
    it is from the plan.
    """
    ours, theirs = data["of_plan"], data["of_options"]
    comments = [
        f"{data['workload']} on {data['hardware']} within {human_size(data['budget_bytes'])}",
        f"plan of {data['policy']}: makespan {human_time(ours['makespan_ns'])}, peak "
        f"{human_size(ours['peak_bytes'])}",
    ]
    if theirs is not None:
        share = (
            f" ({human_percent(theirs['makespan_ns'] / ours['makespan_ns'] - 1, signed=True)})"
            if ours["makespan_ns"]
            else ""
        )
        comments.append(
            f"with these options: makespan {human_time(theirs['makespan_ns'])}{share}, peak "
            f"{human_size(theirs['peak_bytes'])}"
        )
    comments += [f"not said: {line}" for line in data["unsaid"]]
    words = ["llama-server", "-m", "MODEL.gguf"]
    if data["context"] is not None:
        words += ["-c", str(data["context"])]
    words += ["-ngl", str(data["n_gpu_layers"])]
    if data["n_cpu_moe"]:
        words += ["--n-cpu-moe", str(data["n_cpu_moe"])]
    if data["override_tensor"]:
        words += ["-ot", ",".join(data["override_tensor"])]
    return "\n".join([*(f"# {printable(text)}" for text in comments), shlex.join(words)]) + "\n"
