"""``hosim fits``: the peak and what it consists of, the largest that fits, and what would make it
fit. Truth is the graph itself, built for each value, and the other commands.
"""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import hosim
from hosim.analysis import static_peak
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io import hardware_from_dict
from hosim.units import LARGEST

SMALL = {"model": "gpt2", "layers": 2, "phase": "train", "sequence": 64}


def machine(capacity: int) -> Hardware:
    return hardware_from_dict(
        {
            "format": "hosim.hardware/1",
            "name": "small",
            "device_tier": "hbm",
            "compute": {"peak": {"bf16": "100 TFLOP/s", "fp32": "50 TFLOP/s"}, "efficiency": 0.5},
            "tiers": {
                "hbm": {"capacity": f"{capacity} B", "bandwidth": "1 TB/s", "scope": "device"},
                "ddr": {"capacity": "100 GiB", "bandwidth": "100 GB/s", "scope": "host"},
            },
            "channels": {
                "h2d": {"from": "ddr", "to": "hbm", "bandwidth": "20 GB/s"},
                "d2h": {"from": "hbm", "to": "ddr", "bandwidth": "20 GB/s"},
            },
        },
        source="small",
    )


PEAKS = [static_peak(hosim.load({**SMALL, "batch": n}), "hbm").bytes for n in range(1, 25)]


@settings(max_examples=10)
@given(st.integers(0, len(PEAKS) - 2), st.integers(0, 100), st.integers(1, 24))
def test_the_largest_batch_is_that_of_trying_each(place: int, percent: int, asked: int) -> None:
    """Whatever batch is asked, and however the peaks bend between the values."""
    low, high = PEAKS[place], PEAKS[place + 1]
    capacity = low + (high - low - 1) * percent // 100
    answer = hosim.fits({**SMALL, "batch": asked}, machine(capacity))
    assert answer.largest[0].value == sum([peak <= capacity for peak in PEAKS])
    assert answer.verdict == ("may fit" if PEAKS[asked - 1] <= capacity else "does not fit")
    assert answer.peak_bytes == PEAKS[asked - 1]


def test_a_device_as_large_as_a_file_can_say() -> None:
    assert hosim.fits(SMALL, machine(LARGEST)).largest[0].value == 2**20  # the most there is


def test_the_peak_is_divided_by_kind_and_by_module() -> None:
    answer = hosim.fits("gpt2", "rtx-4090", optimizer="adamw", batch=2, runtime="hf-trainer")
    graph = hosim.load("gpt2:phase=train:batch=2:runtime=hf-trainer")
    alone = hosim.compare(graph, "rtx-4090", "resident")
    assert answer.peak_bytes == alone.hbm_peak_bytes[0]
    assert answer.makespan_ns == alone.makespan_ns[0]
    assert sum(answer.by_kind.values()) == answer.peak_bytes
    assert sum(module.bytes for module in answer.by_module) == answer.peak_bytes
    learned = 124_439_808  # parameters of GPT-2, as its publication counts them
    assert answer.by_kind["parameter"] == 2 * learned
    assert answer.by_kind["optimizer_state"] == 12 * learned
    mlp = next(one for one in answer.by_module if one.module == "transformer.h.*.mlp")
    assert (mlp.count, mlp.kinds["parameter"]) == (12, 12 * 2 * (8 * 768 * 768 + 5 * 768))
    assert answer.verdict == "fits"
    assert answer.remedies == ()


def test_states_are_in_the_module_of_their_weight() -> None:
    """Adam has a copy of 4 bytes and two moments of 4 for each weight of 2 bytes; the head of Llama
    is a module of its own, one name long.
    """
    asked = {"model": "llama-3.1-8b", "layers": 1, "phase": "train", "sequence": 64}
    held = {one.module: one.kinds for one in hosim.fits(asked, machine(10**11)).by_module}
    assert held["lm_head"]["optimizer_state"] > 0
    for kinds in held.values():
        assert kinds.get("optimizer_state", 0) == 6 * kinds.get("parameter", 0)


def test_remedies_are_what_the_other_commands_say() -> None:
    answer = hosim.fits({**SMALL, "batch": 8}, machine(9 * 10**8))
    assert answer.verdict == "does not fit"
    by_name = {one.name: one for one in answer.remedies}
    for name, changed in (
        ("checkpointing", "checkpoint=true"),
        ("8-bit optimizer states", "states_dtype=int8"),
        ("loss in chunks", "loss=chunked"),
    ):
        spec = f"gpt2:layers=2:phase=train:batch=8:sequence=64:{changed}"
        alone = hosim.compare(spec, machine(10**11), "resident")
        assert by_name[name].peak_bytes == alone.hbm_peak_bytes[0]
        assert by_name[name].makespan_ns == alone.makespan_ns[0]
        assert by_name[name].slowdown == pytest.approx(alone.makespan_ns[0] / answer.makespan_ns)
    below = by_name["offload (states in ddr)"]
    spec = "gpt2:layers=2:phase=train:batch=8:sequence=64:states_home=ddr"
    moved = hosim.compare(spec, machine(9 * 10**8), "static_split")
    assert (below.peak_bytes, below.makespan_ns) == (
        moved.hbm_peak_bytes[0],
        moved.makespan_ns[0],
    )
    assert answer.best is min(
        [one for one in answer.remedies if one.verdict == "may fit"],
        key=lambda one: one.makespan_ns,
    )


def test_nothing_is_surely_there_without_a_runtime() -> None:
    """The interval of a runtime decides: the same step surely fits, may fit or does not."""
    asked = {**SMALL, "batch": 2}
    verdicts = []
    for capacity in (10**9, 14 * 10**8, 2 * 10**9):
        seen = hosim.fits(asked, machine(capacity), runtime="torchtune")
        verdicts.append(seen.verdict)
        assert seen.seen is not None
        assert hosim.fits(asked, machine(capacity)).verdict == "may fit"
    assert verdicts == ["does not fit", "may fit", "fits"]


def run(*given: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["fits", *given], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done.stdout


def test_the_answer_is_a_screen_and_ends_in_a_command() -> None:
    given = ("meta-llama/Llama-3.1-8B", "--batch", "8", "--optimizer", "adamw")
    shown = run(*given, "--runtime", "hf-trainer", "-H", "rtx-4090", code=3)
    lines = shown.splitlines()
    assert len(lines) <= 25
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[1].startswith("Does not fit under hf-trainer: ")
    *_, command, workload, _, profile, _, runtime = lines[-1].split()
    assert (command, profile, runtime) == ("compare-policies", "rtx-4090", "hf-trainer")
    assert hosim.load(workload).name.startswith("llama-3.1-8b-train:batch=8:checkpoint=true")


def test_json_and_python_say_the_same() -> None:
    given = ("gpt2", "--batch", "2", "--optimizer", "adamw", "-H", "t4", "--json")
    data = json.loads(run(*given))
    answer = hosim.fits("gpt2", "t4", batch=2, optimizer="adamw")
    assert (data["format"], data["verdict"]) == ("hosim.fits/1", answer.verdict)
    assert data["peak_bytes"] == answer.peak_bytes
    assert [one["value"] for one in data["largest"]] == [one.value for one in answer.largest]
    assert "h.*.mlp (12x)" in answer._repr_html_()


MODULE = """
import torch

def step():
    net = torch.nn.Linear(64, 64)
    return net, torch.zeros(4, 64), lambda m, g: m(g["input"]).sum(), torch.optim.SGD(net.parameters())
"""


def test_an_entry_of_the_gate_is_a_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "own_step.py").write_text(MODULE)
    net = torch.nn.Linear(64, 64)
    wanted = hosim.fits(
        net,
        "t4",
        torch.zeros(4, 64),
        loss=lambda m, g: m(g["input"]).sum(),
        optimizer=torch.optim.SGD(net.parameters()),
    )
    said = json.loads(run(str(tmp_path / "own_step.py:step"), "-H", "t4", "--json"))
    assert said["peak_bytes"] == wanted.peak_bytes
    monkeypatch.delitem(sys.modules, "own_step")
    done = CliRunner().invoke(app, ["fits", f"{tmp_path}/own_step.py:other", "-H", "t4"])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: own_step:other: module own_step has no 'other'\n",
    )
    with pytest.raises(InputError, match="fits: batch: a module has the sizes of its inputs"):
        hosim.fits(net, "t4", torch.zeros(4, 64), batch=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("gpt2:batch=4", "--batch", "3"), "batch: is 4 in the workload and 3 beside it"),
        (("gpt2:phase=decode", "--optimizer", "adamw"), "phase: is decode in the workload and"),
        (("gpt2", "--optimizer", "adam"), "optimizer: expected one of adamw, none; got 'adam'"),
        (("gpt2:batch", "--sequence", "64"), "expected parameter=value after the colon"),
        (("nothing.py:step",), "error: nothing.py: no such file"),
        (("gpt2", "--optimizer", "adamw", "--runtime", "vllm"), "vllm is for inference, and this"),
        (
            ("gpt2", "--runtime", "hf-trainer"),
            "hf-trainer is for train, and this step is for inference",
        ),
        (("gpt2", "--sequence", "4096"), "sequence: the model has 1024 positions, got 4096"),
        (("gpt2", "--runtime", "vlm"), "vlm: no file and no shipped runtime of that name"),
        (("vit-l-16", "--sequence", "5"), "sequence: vit-l-16 takes no 'sequence'"),
        (("g.json", "--batch", "2"), "batch: only a model of hosim's has this setting"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    given: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    b = hosim.GraphBuilder("own")
    b.op("f", "matmul", outputs=[b.tensor("a", 40)], duration_ns=50)
    hosim.save_workload(b.build(), "g.json")
    done = CliRunner().invoke(app, ["fits", *given, "-H", "t4"])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_config_and_a_length_are_asked_beside_the_workload() -> None:
    """As a config.json, as parameters, and as a graph that was made of them."""

    def found(workload: object, **beside: object) -> tuple[object, ...]:
        answer = hosim.fits(workload, "t4", **beside)
        return answer.peak_bytes, answer.largest, answer.by_module

    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 96}
    whole = {"model": config, "phase": "train", "batch": 2, "sequence": 64}
    trained = {"batch": 2, "sequence": 64, "optimizer": "adamw"}
    for workload in (config, {"model": config}, whole):
        assert found(workload, **trained) == found(whole)
    assert found(hosim.load({**whole, "batch": 1}), batch=2) == found(whole)
    decode = {"model": config, "phase": "decode", "batch": 2}
    longer = {**decode, "context": 96}
    for workload in (decode, longer, hosim.load({**decode, "context": 32})):
        assert found(workload, sequence=96) == found(longer)
    assert found(longer) != found(decode, sequence=32)
    with pytest.raises(InputError, match="context: is 96 in the workload and 32 beside it"):
        found(longer, sequence=32)
