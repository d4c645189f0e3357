"""``hosim plan`` end to end: what it writes replays to the same figures, and --explain says why."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hosim.cli.main import app

pytestmark = pytest.mark.slow

MACHINE = ("--hardware", "h100-80gb-sxm", "--budget", "50%")


QUICK = ("--policy", "hyperoffload:effort=1")
"""What hyperoffload does by default."""


def hosim(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "120"}
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Six layers of Llama, a machine and a budget, as arguments."""
    path = tmp_path_factory.mktemp("workload") / "llama.yaml"
    path.write_text(
        "format: hosim.spec/1\nname: llama\nbuilder: {model: llama-3.1-8b, phase: prefill, "
        "sequence: 4096, layers: 6}\n"
    )
    return str(path), *MACHINE


@pytest.fixture(scope="module")
def planned(
    llama: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The default policy's plan of the Llama workload: its file, and its explanation."""
    path = tmp_path_factory.mktemp("plan") / "plan.json.gz"
    outcome = hosim("plan", *llama, *QUICK, "-o", path, "--explain", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stderr.startswith(f"wrote {path}: ")
    return path, json.loads(outcome.stdout)


def test_the_plan_that_is_written_replays_to_the_figures_of_the_comparison(
    llama: tuple[str, ...], planned: tuple[Path, dict[str, Any]]
) -> None:
    path, why = planned
    workload, *rest = llama
    replayed = json.loads(hosim("replay", path, workload, *rest, "--json").stdout)
    (compared,) = json.loads(
        hosim("compare-policies", *llama, "--policies", QUICK[1], "--json").stdout
    )["results"]
    for result in (replayed, compared):
        del (
            result["planning_s"],
            result["replay_s"],
            result["policy"],
        )  # one is named with its effort
    assert replayed == compared
    assert replayed["feasible"]
    assert replayed["peak_bytes"]["hbm"] <= replayed["budget_bytes"]
    assert why["makespan_ns"] == replayed["makespan_ns"]
    assert why["stall_ns"] == replayed["stall_ns"]
    assert why["plan"] == replayed["plan"]
    assert why["peak"]["after_bytes"] == replayed["peak_bytes"]["hbm"]
    for name, channel in replayed["channels"].items():
        assert {key: why["channels"][name][key] for key in channel if key != "utilization"} == {
            key: value for key, value in channel.items() if key != "utilization"
        }


def test_the_plan_that_is_written_says_the_slack_of_its_copies(
    planned: tuple[Path, dict[str, Any]],
) -> None:
    path, why = planned
    cache_ops = json.loads(gzip.decompress(path.read_bytes()))["cache_ops"]
    assert all(("slack_ns" in c) == (c["op"] != "detach") for c in cache_ops)
    slack = sorted(c["slack_ns"] for c in cache_ops if c["op"] != "detach")
    assert sorted(x["latest_ns"] - x["start_ns"] for x in why["transfers"]) == slack
    assert all(x["earliest_ns"] <= x["start_ns"] <= x["latest_ns"] for x in why["transfers"])


def test_the_explanation_accounts_for_every_transfer_and_every_byte_off_the_peak(
    planned: tuple[Path, dict[str, Any]],
) -> None:
    _, why = planned
    tensors = why["tensors"]
    assert len(why["transfers"]) == why["plan"]["prefetches"] + why["plan"]["stores"]
    assert sum(len(line["transfers"]) for line in tensors) == len(why["transfers"])
    assert (
        sum(line["saved_bytes"] for line in tensors)
        >= why["peak"]["before_bytes"] - why["budget_bytes"]
    )
    assert [line["saved_bytes"] for line in tensors] == sorted(
        (line["saved_bytes"] for line in tensors), reverse=True
    )
    assert all(line["why"].startswith("moved" if line["moved"] else "kept") for line in tensors)
    # one stream: the plan is what was taken, but for what the search changed
    assert all(
        line["judged"]["taken"] == line["moved"] or "by local search" in line["why"]
        for line in tensors
    )
    assert sum(line["judged"]["taken"] == line["moved"] for line in tensors) > len(tensors) / 2
    # prefill keeps no activation for later
    assert {line["kind"] for line in tensors if line["moved"]} <= {
        "parameter",
        "buffer",
        "input",
        "kv_cache",
    }


@pytest.mark.long
def test_two_explanations_are_the_same(
    llama: tuple[str, ...], planned: tuple[Path, dict[str, Any]]
) -> None:
    assert json.loads(hosim("plan", *llama, *QUICK, "--explain", "--json").stdout) == planned[1]


@pytest.mark.long
def test_top_shows_the_first_lines(
    llama: tuple[str, ...], planned: tuple[Path, dict[str, Any]]
) -> None:
    why = json.loads(hosim("plan", *llama, *QUICK, "--explain", "--json", "--top", 3).stdout)
    assert why["tensors"] == planned[1]["tensors"][:3]
    output = hosim("plan", *llama, *QUICK, "--explain", "--top", 3).stdout
    assert max(map(len, output.splitlines())) <= 120


def test_the_default_fits_a_screen_and_says_how_to_see_all(llama: tuple[str, ...]) -> None:
    output = hosim("plan", *llama, *QUICK, "--explain").stdout.splitlines()
    assert len(output) <= 50
    assert max(map(len, output)) <= 120
    assert output[0].startswith("Selection")
    end = " ".join(" ".join(output[-2:]).split())  # it wraps
    assert end.endswith("--top N prints every table with N rows, --all with every row.")
    everything = hosim("plan", *llama, *QUICK, "--explain", "--all").stdout.splitlines()
    assert len(everything) > 3 * len(output)
    assert not any(line.startswith("and ") and line.endswith(" more") for line in everything)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            [],
            2,
            "error: plan: requires --output or --explain",
        ),
        (["-o", "x.json", "--json"], 2, "error: plan: --json requires --explain"),
        (["-o", "x.json", "--top", "3"], 2, "error: plan: --top requires --explain"),
        (["-o", "x.json", "--all"], 2, "error: plan: --all requires --explain"),
        (
            ["--explain", "--all", "--top", "3"],
            2,
            "error: plan: --top and --all exclude each other: give one of them",
        ),
        (
            ["--explain", "--policy", "on_demand"],
            2,
            "error: policy on_demand decides during the replay: there is no plan to explain",
        ),
        (
            ["--explain", "--policy", "resident"],
            3,
            "error: the plan of resident cannot be explained, it does not fit: out of memory",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    arguments = [str(tmp_path / text) if text == "x.json" else text for text in arguments]
    workload = tmp_path / "toy.json"
    b = {"name": "w", "bytes": 40, "kind": "parameter"}
    ops = [
        {
            "name": f"f{i}",
            "kind": "op",
            "inputs": ["w"] if i == 0 else [],
            "workspace_bytes": 50 * i,
            "duration_ns": 50,
        }
        for i in range(2)
    ]
    workload.write_text(
        json.dumps({"format": "hosim.workload/1", "name": "toy", "tensors": [b], "ops": ops})
    )
    outcome = hosim("plan", workload, "--hardware", "toy", "--budget", "60 B", *arguments)
    assert (outcome.exit_code, outcome.stdout) == (code, "")
    error = outcome.stderr.removeprefix("note: durations: times as given for all 2 ops\n")
    assert error.startswith(said)
    assert error.count("\n") == 1


@pytest.mark.parametrize("policy", ["layerwise", "distance", "memory_peak", "g10"])
def test_plans_of_other_policies_are_explained_too(llama: tuple[str, ...], policy: str) -> None:
    outcome = hosim("plan", *llama, "--policy", policy, "--explain", "--json", "--top", 5)
    assert outcome.exit_code in (0, 3), outcome.stderr
    if outcome.exit_code == 0:
        why = json.loads(outcome.stdout)
        assert why["policy"].startswith(policy)
        assert len(why["tensors"]) == 5
        assert why["origin"].startswith(f"Plan of {why['policy']}: ")
        assert all(line["judged"] is None for line in why["tensors"])
    else:
        assert "does not fit" in outcome.stderr or "out of memory" in outcome.stderr


def test_an_explanation_fits_a_screen_of_80_columns_with_a_line_a_tensor(
    llama: tuple[str, ...],
) -> None:
    shown = (
        CliRunner()
        .invoke(app, ["plan", *llama, "--explain"], env={"COLUMNS": "80"})
        .stdout.splitlines()
    )
    assert len(shown) <= 50
    assert max(map(len, shown)) <= 80
    tensors = [line.split()[0] for line in shown if line.startswith(" model.")]
    assert len(set(tensors[:5])) == 5  # names that are cut to fit differ still
    assert tensors[5:] == tensors[:5]  # in the second block of columns
    assert any(line.startswith("... ") and " more tensors; " in line for line in shown)


def test_ops_on_other_processors_are_not_explained() -> None:
    outcome = hosim(
        "plan",
        "gpt2:layers=1:phase=train:sequence=16:optimizer_on=ddr",
        "-H",
        "h100",
        "-p",
        "layerwise",
        "--explain",
    )
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert (
        "runs on the processor of 'ddr': plans are explained only if all ops run on "
        "the device" in outcome.stderr
    )
