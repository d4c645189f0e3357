"""What commands print on a terminal, with its colours and empty lines, for a chain of eight layers
that trains on the toy machine.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from hosim.api import plan
from hosim.cli.main import app
from hosim.graph import GraphBuilder
from hosim.io import save_plan, save_workload
from hosim.version import __version__

KEPT = Path(__file__).parent / "screens.txt"
SCREENS = (
    "workload show w.json --detail",
    "hardware show toy --detail",
    "plan w.json -H toy -b 60B --explain",
    "plan w.json -H toy -b 60B --explain --top 2",
    "plan w.json -H toy -b 100B --explain --top 1",
    "replay plan.json w.json -H toy --detail",
    "replay plan.json w.json -H toy -b 40B --detail",
    "replay plan.json w.json -H toy --devices 2 --detail",
    "replay plan.json w.json -H toy --allocator caching --detail",
    "compare-policies w.json -H toy -b 60B -p hyperoffload,belady,layerwise,resident --detail",
    "compare-policies w.json -H toy -b 60B -p hyperoffload,layerwise --devices 2 --detail",
    "compare-policies w.json -H toy,h100 -b 90B -p layerwise,resident --detail",
    "compare-policies w.json -H toy,h100 -p static_split:weights=0.5 --detail  # 80 columns",
    "blame w.json -H toy -b 60B --detail",
    "blame w.json -H toy -b 60B --plan plan.json --top 1 --detail",
    "diff hyperoffload layerwise -w w.json -H toy -b 60B --detail",
    "diff plan.json layerwise -w w.json -H toy -b 60B --top 1 --detail",
    "sweep w.json -H toy --vary channels.h2d.bandwidth=1..2GB/s:2 --vary budget=20B,60B --jobs "
    "1 --detail",
    "frontier w.json -H toy -p layerwise --points 3 --refine 1 --detail",
    "fit w.json -H toy -b 80B -p layerwise --smallest channels.h2d.bandwidth=0.1..0.9GB/s:9 "
    "--slowdown 3 --detail",
    "fit w.json -H toy -b 20B --smallest channels.h2d.bandwidth=1..9GB/s:9 --detail",
    "robustness w.json -H toy -b 60B -p hyperoffload,resident --runs 3 --detail",
    "pipeline first.json last.json -H toy -p layerwise --detail",
    "validate trace.json --detail",
    "calibrate trace.json",
    "import trace.json -o traced.json && workload show traced.json --detail",
    "check -c cases.toml && baseline write -c cases.toml && check -c cases.toml && baseline "
    "show toy -c cases.toml --detail",
    "hardware list --detail  # 80 columns",
    "policies --detail  # 80 columns",
    "pipeline first.json last.json -H toy -p layerwise -b 45B --detail  # 80 columns",
    "plan w.json -H toy -b 60B --explain  # 60 columns",
    "plan w.json -H toy -b 60B --explain --top 2  # 80 columns",
    "compare-policies w.json -H toy -b 60B -p hyperoffload,belady --devices 2 --detail  # 80 "
    "columns",
    "blame w.json -H toy -b 80B -p layerwise --detail  # 80 columns",
    "diff hyperoffload layerwise -w w.json -H toy -b 60B --top 2 --detail  # 80 columns",
    "robustness w.json -H toy -b 60B -p hyperoffload,resident --runs 3 --detail  # 60 columns",
    "workload show w.json  # 80 columns",
    "hardware show toy  # 80 columns",
    "pipeline first.json last.json -H toy -p layerwise  # 80 columns",
    "validate trace.json  # 80 columns",
    "policies  # 80 columns",
    "replay plan.json w.json -H toy --allocator caching",
    "compare-policies w.json -H toy -b 60B -p hyperoffload,belady,layerwise,resident  # 80 columns",
    "compare-policies w.json -H toy -b 60B --all  # 80 columns",
    "compare-policies w.json -H toy -b 40B -p layerwise",
    "compare-policies w.json -H toy  # 80 columns",
    "compare-policies w.json -H toy,h100 -b 90B -p layerwise,resident --enough  # 80 columns",
    "sweep w.json -H toy --vary channels.h2d.bandwidth=1..2GB/s:2 --vary budget=20B,60B --jobs "
    "1  # 80 columns",
    "sweep w.json -H toy --vary budget=20..100B:9 --jobs 1  # 80 columns",
    "frontier w.json -H toy -p layerwise --points 3 --refine 1  # 80 columns",
    "fit w.json -H toy -b 80B -p layerwise --smallest channels.h2d.bandwidth=0.1..0.9GB/s:9 "
    "--slowdown 3  # 80 columns",
    "fit w.json -H toy -b 20B --smallest channels.h2d.bandwidth=1..9GB/s:9  # 80 columns",
    "robustness w.json -H toy -b 60B -p hyperoffload,resident --runs 3  # 80 columns",
    "blame w.json -H toy -b 80B -p layerwise  # 80 columns",
    "diff hyperoffload layerwise -w w.json -H toy -b 60B  # 80 columns",
)
"""Each for itself; ``&&`` separates commands that follow one another. A terminal has 120 columns
unless it says otherwise.
"""
_STYLE = re.compile("\x1b\\[([0-9;]*)m")
_TOOK = re.compile(r"(?:Replay|Planning \+ replay) took.*?s\.(?:\x1b\[0m)?\s*\n", re.DOTALL)


def files() -> None:
    """The workload, a plan, a case and a recording, in this folder."""
    from kineto_toys import step

    b = GraphBuilder("chain")
    last = b.tensor("x", 5, "input")
    for i in range(4):
        weight = b.tensor(f"w{i}", 10 + i, "parameter", home="ddr" if i % 2 else None)
        inputs, last = [last, weight], b.tensor(f"a{i}", 12 - i, "activation")
        b.op(
            f"f{i}",
            "matmul",
            inputs=inputs,
            outputs=[last],
            duration_ns=20 + i,
            flops=1000 * i,
            bytes_accessed=33,
        )
    for i in reversed(range(4)):
        b.op(
            f"b{i}",
            "matmul_grad",
            inputs=[f"a{i}", f"w{i}"],
            outputs=[b.tensor(f"g{i}", 7, "gradient")],
            duration_ns=30,
        )
        b.op(f"u{i}", "update", inputs=[f"g{i}"], mutates=[f"w{i}"], duration_ns=3)
    graph = b.build()
    save_workload(graph, "w.json")
    save_plan(plan(graph, "toy", budget="60B"), "plan.json")
    _stages()
    Path("trace.json").write_text(json.dumps(step()))
    Path("cases.toml").write_text(
        '[cases.toy]\nworkload = "w.json"\nhardware = "toy"\npolicy = "hyperoffload"\nbudget = '
        '"60B"\n'
    )


def _stages() -> None:
    """Two stages of a pipeline, one of which sends to the other."""
    first, last = GraphBuilder("first"), GraphBuilder("last")
    for b in (first, last):
        b.tensor("x", 30)
    first.op("f", "matmul", outputs=["x"], duration_ns=50)
    first.op("put", "send", inputs=["x"], stream="comm", message="x", duration_ns=10)
    weight = last.tensor("w", 40, "parameter", "ddr")
    last.op("get", "recv", outputs=["x"], stream="comm", message="x", duration_ns=10)
    last.op("g", "matmul", inputs=["x", weight], duration_ns=70)
    for b in (first, last):
        graph = b.build()
        save_workload(graph, f"{graph.name}.json")


def screen(commands: str) -> str:
    """What commands write on both streams, and their exit codes. Behind a line stand the styles in
    it; how long it took is left out.
    """
    line, _, width = commands.partition("  # ")
    terminal = {
        "COLUMNS": width.partition(" ")[0] or "120",
        "FORCE_COLOR": "1",
        "TERM": "xterm",
        "NO_COLOR": None,
    }
    lines = [f"$ hosim {commands}"]
    for command in line.split(" && "):
        shown = CliRunner().invoke(app, command.split(), env=terminal, color=True)
        written = _TOOK.sub("", shown.output.replace(f"hosim {__version__}", "hosim VERSION"))
        lines += [*map(_line, written.splitlines()), f"[{shown.exit_code}]"]
    return "\n".join([*lines, "", ""])


def _line(line: str) -> str:
    styles = sorted(set(_STYLE.findall(line)) - {"0"})
    return f"{_STYLE.sub('', line).rstrip()}{f'  <{chr(32).join(styles)}>' if styles else ''}"


def kept() -> dict[str, str]:
    """The screens of the file, by command."""
    return {
        text.partition("\n")[0]: f"$ hosim {text}"
        for text in KEPT.read_text().split("$ hosim ")[1:]
    }


if __name__ == "__main__":
    import tempfile

    sys.path[:0] = [str(KEPT.parents[1])]
    with tempfile.TemporaryDirectory() as made, chdir(made):
        os.environ["HOSIM_CACHE"], os.environ["HOSIM_PROGRESS"] = made, "off"
        files()
        KEPT.write_text("".join(map(screen, SCREENS)))
