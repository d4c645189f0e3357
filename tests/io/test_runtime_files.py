"""Runtimes as files: what ships, what a file says wrongly, and what they do to a builder's
workload.
"""

import json

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.errors import HardwareError, InputError
from hosim.io import load_named
from hosim.io.runtimes import (
    load_runtime,
    runtime_from_dict,
    runtime_to_dict,
    runtimes_for,
    under_runtime,
)
from hosim.shipped import find_runtime, runtimes

NAMED = (
    "torchtitan-compiled", "torchtitan-eager", "hf-deepspeed", "hf-trainer", "megatron-te", "torchtune", "prime-rl", "vllm", "gpt-fast",
    "llama-cpp", "accelerate", "flexgen", "ktransformers", "mindspore-2.11",
)  # fmt: skip
STEP = "gpt2:phase=train:sequence=64:layers=1"


def run(*words: str):
    return CliRunner().invoke(app, list(words))


def test_the_shipped_ones() -> None:
    assert set(NAMED) <= set(runtimes())
    for name in runtimes():
        found = load_runtime(find_runtime(name))
        assert found.name == name
        assert runtime_from_dict(runtime_to_dict(found)) == found
        assert all(figure.source and figure.spread for figure in found.known.values()), name


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"speed": {"value": 0}}, "speed.value"),
        ({"speed": {"value": 0.5, "spread": -1}}, "speed.spread"),
        ({"speed": 0.5}, "speed"),
        ({"context": {"value": 5}}, "context.value"),
        ({"host": {"value": "5 GiB"}}, "host.value"),
        ({"cpu_optimizer": {"value": 1.5}}, "cpu_optimizer.value"),
        ({"speed": {"value": 1.0, "one_row": "yes"}}, "speed.one_row"),
        ({"fast": {"value": 1.0}}, "fast"),
        ({"ahead": {"value": 1.5}}, "ahead.value"),
        ({"gathers": {"value": 0}}, "gathers.value"),
        ({"pads": {"hidden": 0, "intermediate": 128}}, "pads.hidden"),
        ({"pads": {"hidden": 256}}, "pads.intermediate"),
        ({"pins": ["detach"]}, "pins[0]"),
        ({"pins_once": True}, "pins_once"),
        ({"segments": True}, "segments"),
        ({"segments": "yes", "host": {"value": "5 us"}}, "segments"),
        ({"copy_time": {"value": "1 us"}}, "copy_time"),
        ({"copy_buffers": {"value": 0}}, "copy_buffers.value"),
        ({"graph_sizes": [1, 0]}, "graph_sizes[1]"),
        ({"graph_sizes": [2, 1]}, "graph_sizes"),
        ({"blocks": "prefetch"}, "blocks"),
        ({"runs": ["sleep"]}, "runs[0]"),
        ({"options": {"fused": [1]}}, "options.fused"),
    ],
)
def test_what_is_wrong_is_named(change, where) -> None:
    with pytest.raises(InputError) as caught:
        runtime_from_dict(
            {"format": "hosim.runtime/1", "name": "mine", **change}, source="mine.yaml"
        )
    assert caught.value.source == "mine.yaml"
    assert str(caught.value.where).startswith(where)


@pytest.mark.parametrize(
    "words",
    [
        ("runtime", "show", "torchtitn"),
        ("compare-policies", STEP, "-H", "h100", "--runtime", "nobody"),
    ],
)
def test_an_unknown_one_is_refused_in_a_line(words) -> None:
    shown = run(*words)
    assert shown.exit_code == 2
    assert len(shown.output.strip().splitlines()) == 1


def test_list_and_show() -> None:
    listed = json.loads(run("runtime", "list", "--json").stdout)["runtimes"]
    assert [each["name"] for each in listed] == runtimes()
    assert json.loads(run("runtime", "show", "vllm", "--json").stdout) == next(
        each for each in listed if each["name"] == "vllm"
    )
    assert run("runtime", "list").exit_code == run("runtime", "show", "hf-deepspeed").exit_code == 0


def test_a_runtime_sets_what_the_user_does_not() -> None:
    alone, fused = load_named(STEP), load_named(f"{STEP}:fused=true:attention_kernel=flash2")
    under = under_runtime(alone, "torchtitan-compiled")
    assert (under.ops, under.tensors) == (fused.ops, fused.tensors)
    kept = under_runtime(load_named(f"{STEP}:fused=false"), "torchtitan-compiled")
    assert kept.ops == load_named(f"{STEP}:attention_kernel=flash2").ops
    decoding = load_named(
        "gpt2:phase=decode:context=64:runtime=torchtune"
    )  # has no loss, no states and no flash2
    assert decoding.ops == load_named("gpt2:phase=decode:context=64:fused=true").ops


def test_the_name_in_a_workload_and_the_option_are_the_same() -> None:
    ways = [
        hosim.compare(f"{STEP}:runtime=torchtitan-eager", "h100", "resident"),
        hosim.compare(STEP, "h100", "resident", runtime="torchtitan-eager"),
        hosim.compare(
            STEP,
            "h100",
            "resident",
            runtime=runtime_to_dict(load_runtime(find_runtime("torchtitan-eager"))),
        ),
    ]
    assert len({table.makespan_ns[0] for table in ways}) == 1
    assert (
        ways[0].makespan_ns[0]
        > hosim.compare(f"{STEP}:attention_kernel=flash2", "h100", "resident").makespan_ns[0]
    )
    assert any(note.startswith("runtime: ") for note in ways[0].attrs["notes"])
    assert any(note.startswith("memory: fits") for note in ways[0].attrs["notes"])


def test_the_json_has_the_peaks() -> None:
    found = json.loads(
        run(
            "compare-policies",
            STEP,
            "-H",
            "h100",
            "-p",
            "resident",
            "--runtime",
            "torchtitan-compiled",
            "--json",
        ).stdout
    )
    seen = found["results"][0]["seen_peaks"]
    assert seen["verdict"] == "fits"
    for name in ("allocated", "reserved", "device"):
        assert seen[name]["low_bytes"] <= seen[name]["bytes"] <= seen[name]["high_bytes"]
    assert found["results"][0]["peak_bytes"]["hbm"] == seen["allocated"]["low_bytes"]
    assert (
        "seen_peaks"
        not in json.loads(
            run("compare-policies", STEP, "-H", "h100", "-p", "resident", "--json").stdout
        )["results"][0]
    )


def test_a_graph_that_no_builder_made_has_the_runtimes_times_alone() -> None:
    builder = hosim.GraphBuilder("one norm")
    builder.op("norm", "norm", bytes_accessed=10**6)
    made = builder.build()
    slower = hosim.compare(made, "toy", "resident", runtime="torchtitan-eager").makespan_ns[0]
    assert slower > hosim.compare(made, "toy", "resident").makespan_ns[0]


def test_fit_takes_it() -> None:
    fitted = run(
        "fit",
        STEP,
        "-H",
        "h100",
        "--largest",
        "workload.batch=1..2",
        "-p",
        "resident",
        "--runtime",
        "torchtune",
        "--json",
    )
    assert fitted.exit_code == 0
    assert any(note.startswith("runtime: torchtune") for note in json.loads(fitted.stdout)["notes"])


def test_a_question_without_a_runtime_names_those_that_run_such_steps() -> None:
    """Only of a builder's step; one that names a runtime, and one that nobody built, has none."""
    trains = runtimes_for(load_named(STEP))
    assert [each.name for each in trains if each.name in ("torchtune", "vllm")] == ["torchtune"]
    assert [each.speed.value for each in trains] == sorted(each.speed.value for each in trains)
    assert runtimes_for(under_runtime(load_named(STEP), "torchtune")) == []
    shown = run("compare-policies", STEP, "-H", "h100", "-p", "resident").output
    assert "No runtime" in shown
    named = run(
        "compare-policies", STEP, "-H", "h100", "-p", "resident", "--runtime", "torchtune"
    ).output
    assert "No runtime" not in named


@pytest.mark.parametrize(
    "wrong",
    [
        {"pins": ("detach",)},
        {"pads": {"hidden": 256}},
        {"pads": {"hidden": 0, "intermediate": 1}},
        {"pads": {"hidden": True, "intermediate": 1}},
        {"ahead": RuntimeFigure(0.5)},
        {"blocks": "prefetch"},
        {"blocks": (1,)},
        {"graph_sizes": (1, 1)},
        {"graph_sizes": (True,)},
    ],
)
def test_what_is_no_runtime_is_refused_as_it_is_made(wrong) -> None:
    with pytest.raises(HardwareError):
        Runtime("mine", **wrong)


def test_stages_are_under_the_runtime_that_they_name() -> None:
    """Each device's host takes a millisecond for a call, more than any op; stages under different
    runtimes are refused.
    """
    slow = {"format": "hosim.runtime/1", "name": "slow", "host": {"value": "1 ms"}}
    step = {"model": "gpt2", "phase": "train", "sequence": 16, "layers": 2, "pipeline": 2}
    plans = hosim.plan_stages({**step, "runtime": slow}, "h100", "resident")
    found = hosim.replay_stages(plans, "h100").whole
    assert found.makespan_ns >= max(len(plan.graph.ops) for plan in plans) * 10**6
    _, last = hosim.plan_stages(step, "h100", "resident")
    with pytest.raises(InputError, match="several runtimes"):
        hosim.replay_stages([plans[0], last], "h100")


def test_show_says_what_the_host_waits_for_and_pins(tmp_path) -> None:
    assert "waits for  prefetch\n" in run("runtime", "show", "accelerate", "--detail").output
    once = "format: hosim.runtime/1\nname: mine\npins: [prefetch, store]\npins_once: true\n"
    (tmp_path / "mine.yaml").write_text(once)
    mine = str(tmp_path / "mine.yaml")
    assert "pins for   prefetch, store, once\n" in run("runtime", "show", mine, "--detail").output
    assert "pins for prefetch, store, once.\n" in run("runtime", "show", mine).output
    launched = "format: hosim.runtime/1\nname: mine\nhost: {value: 5 us}\nsegments: true\n"
    (tmp_path / "mine.yaml").write_text(launched)
    shown = run("runtime", "show", mine, "--detail").output
    assert "launches   ops between cache ops as one\n" in shown
