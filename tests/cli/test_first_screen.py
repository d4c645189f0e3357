"""Each command answers on one screen of 80 columns: at most 25 lines, as a terminal shows them."""

import json
from contextlib import chdir
from math import ceil
from pathlib import Path

import pytest
import screens
import typer
from typer.testing import CliRunner

from hosim.cli.main import app

COLUMNS, LINES = 80, 25
SERVED = "gpt2 -H h100 --requests poisson:rate=10:count=3:prompt=64:output=3"
USUAL = (
    """
fits meta-llama/Llama-3.1-8B --batch 8 --sequence 4096 --optimizer adamw --runtime hf-trainer -H h100
compare-policies w.json -H toy -b 60B
compare-policies w.json -H toy
compare-policies w.json -H toy,h100 -b 90B -p layerwise,resident
w.json -H toy
plan w.json -H toy -b 60B -o p.json
plan w.json -H toy -b 60B --explain
replay plan.json w.json -H toy
replay plan.json w.json -H toy -b 40B
blame w.json -H toy -b 80B -p layerwise
diff hyperoffload layerwise -w w.json -H toy -b 60B
robustness w.json -H toy -b 60B -p layerwise,resident --runs 2
pipeline first.json last.json -H toy -p layerwise
sweep w.json -H toy -p layerwise --vary budget=20..100B:30 --jobs 1
sweep w.json -H toy -p layerwise --vary channels.h2d.bandwidth=1..2GB/s:3 --vary budget=20..100B:9 --jobs 1
frontier w.json -H toy -p layerwise
fit w.json -H toy -b 80B -p layerwise --smallest channels.h2d.bandwidth=0.1..0.9GB/s:9 --slowdown 3
atlas gpt2 -H h100 --contexts 512
serve SERVED
serve SERVED --limit ttft=2s --kv lru:tiers=ddr
serve gpt2 -H h100 --requests r.jsonl --measured m.jsonl
serve-sweep SERVED --vary requests.rate=5,6 --seeds 2 --jobs 1
serve-sweep SERVED --vary blocks=50,500 --vary requests.rate=5,6 --jobs 1 --limit ttft=2s
serve-fit SERVED --largest requests.rate=1..50 --within ttft.p95=2s
serve-frontier SERVED --vary blocks=20,30,500 --jobs 1
baseline write -c cases.toml
check -c cases.toml
baseline show toy -c cases.toml
baseline update -c cases.toml
import trace.json -o traced.json
workload show traced.json
workload show bert-large-train -H h100
workload list
workload models
import-kernels measured.csv -o k.csv
export w.json -H toy -b 80B --mindspore --trials 2
validate trace.json
calibrate trace.json
policies
policies --kv
notebooks nbs
doctor
hardware list
hardware show h100
runtime list
runtime show vllm
runtime fit my.log --base torchtune
""".strip()
    .replace("SERVED", SERVED)
    .splitlines()
)
"""A usual question to each command, in the folder that :func:`screens.files` fills."""
LEFT_OUT = {"schema", "ci init"}
"""A command that prints a file for a program, as ``--json`` does, and one that prints nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("asked")
    with chdir(made), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSIM_CACHE", str(made / "cache"))
        patch.setenv("HOSIM_PROGRESS", "off")
        screens.files()
        asked = [{"arrival_s": i / 10, "prompt_tokens": 64, "output_tokens": 8} for i in range(6)]
        real = [
            {"queued_s": i / 10, "first_token_s": i / 10 + 0.02, "last_token_s": i / 10 + 0.05}
            for i in range(6)
        ]
        _lines("r.jsonl", asked)
        _lines("m.jsonl", [{**one, "output_tokens": 8} for one in real])
        Path("measured.csv").write_text(
            "kernel,machine,dtype,m,n,k,latency_us\ngemm,h100,bfloat16,1024,1024,1024,10\n"
        )
        Path("my.log").write_text("run gpt2:phase=train -H h100\nstep: 1 loss: 2.0 tps: 560,000\n")
        yield made


def _lines(name, rows):
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_every_command_has_a_usual_question():
    asked = [line.split() for line in USUAL]
    known = list(commands(typer.main.get_command(app)))
    assert {" ".join(name) for name in known} - LEFT_OUT == {
        " ".join(name)
        for name in known
        if any([tuple(words[: len(name)]) == name for words in asked])
    }


def commands(group, before=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


@pytest.mark.parametrize("line", USUAL)
def test_the_answer_fits_a_screen(folder, line):
    shown = CliRunner().invoke(app, line.split(), env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"})
    assert shown.exit_code in (0, 3), shown.output
    wide = [one for one in shown.stdout.splitlines() if len(one) > COLUMNS]
    assert not [one for one in wide if not one.startswith("next: ")]  # commands are copied
    assert sum(max(1, ceil(len(one) / COLUMNS)) for one in shown.stdout.splitlines()) <= LINES
