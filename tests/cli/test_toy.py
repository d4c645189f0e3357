"""The toy of docs/formats.md, from its files to its result, through the commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from rendered import facts
from typer.testing import CliRunner

from hosim.cli.main import app

WORKLOAD = """{"format": "hosim.workload/1", "name": "toy",
 "tensors": [{"name": "w", "bytes": 40, "kind": "parameter", "home": "hbm"}, {"name": "a", "bytes": 30, "kind": "activation"}],
 "ops": [{"name": "f", "kind": "matmul", "stream": "compute", "inputs": ["w"], "outputs": ["a"], "mutates": [],
          "deps": [], "duration_ns": 50, "flops": 0, "bytes_accessed": 0, "dtype": "bf16", "workspace_bytes": 0}]}"""

HARDWARE = """format: hosim.hardware/1
name: toy
devices: 1                      # devices that share the fabrics, all running the same program
device_tier: hbm
compute: {peak: {bf16: 1 TFLOP/s}, efficiency: 1.0, launch: 0 ns}
runtime: {inspect: 20 us}       # CPU time a runtime policy spends per op
tiers:
  hbm: {capacity: 100 B, bandwidth: 1 TB/s, scope: device}     # scope: device | host | global
  ddr: {capacity: 1000 B, bandwidth: 100 GB/s, scope: host}
channels:
  h2d: {from: ddr, to: hbm, bandwidth: 1 GB/s, latency: 0 ns, engines: 1}
  d2h: {from: hbm, to: ddr, bandwidth: 1 GB/s, latency: 0 ns, engines: 1}
fabrics:
  pcie: {bandwidth: 1.5 GB/s, channels: [h2d, d2h]}
"""

PLAN = """{"format": "hosim.plan/1", "workload": "toy", "policy": "manual", "initial": {"w": ["ddr"]},
 "cache_ops": [{"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": null},
               {"op": "detach", "tensor": "w", "from": "hbm", "after": "f"}]}"""

RESULT = """{"format": "hosim.result/1", "workload": "toy", "hardware": "toy", "policy": "manual", "budget_bytes": 100, "feasible": true,
 "error": null,
 "makespan_ns": 90, "busy_ns": 50, "stall_ns": {"dependency": 0, "transfer": 40, "capacity": 0, "runtime": 0}, "drain_ns": 0,
 "lower_bound_ns": 50, "ideal_ns": 50, "peak_bytes": {"hbm": 70, "ddr": 40}, "peak_at_ns": {"hbm": 40, "ddr": 0},
 "peak_breakdown": {"hbm": {"parameter": 40, "activation": 30}},
 "channels": {"h2d": {"transfers": 1, "bytes": 40, "busy_ns": 40, "queue_ns": 0, "contention_ns": 0, "exposed_ns": 40, "hidden_ns": 0,
                      "utilization": 0.44}},
 "plan": {"prefetches": 1, "stores": 0, "detaches": 1}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"toy.json": WORKLOAD, "toy.yaml": HARDWARE, "plan.json": PLAN}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def hosim(*arguments: object, code: int = 0) -> str:
    outcome = CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "120"}
    )
    assert outcome.exit_code == code, outcome.stderr
    return outcome.stdout


def shown(expected: Any, actual: Any) -> Any:
    """``actual`` without the zeros and tiers that the example of docs/formats.md leaves out."""
    if isinstance(expected, dict):
        return {key: shown(value, actual[key]) for key, value in expected.items()}
    return actual


def test_replay_gives_exactly_the_result_of_the_formats_page(folder: Path) -> None:
    actual = json.loads(
        hosim(
            "replay",
            folder / "plan.json",
            folder / "toy.json",
            "--hardware",
            folder / "toy.yaml",
            "--json",
        )
    )
    expected = json.loads(RESULT)
    assert shown(expected, actual) == expected
    assert set(actual) - set(expected) <= {"planning_s", "replay_s", "streams", "notes"}
    assert actual["peak_breakdown"]["ddr"] == {"parameter": 40}
    assert actual["channels"]["d2h"]["bytes"] == 0


def test_replay_shows_the_same_as_a_table(folder: Path) -> None:
    output = hosim(
        "replay",
        folder / "plan.json",
        folder / "toy.json",
        "--hardware",
        folder / "toy.yaml",
        "--detail",
    )
    words = [" ".join(line.split()) for line in output.splitlines()]
    assert "manual 90 ns +80 % 1.800x - 40 ns - - 70 B 70 %" in words
    assert "manual hbm 70 B 40 ns 40 B 30 B" in words
    assert "manual h2d 1 40 B 44 % 0 % 40 ns - -" in words


def test_a_rule_that_a_plan_breaks_is_a_warning_and_the_replay_runs_until_it_meets_it(
    folder: Path,
) -> None:
    plan = json.loads(PLAN)
    del plan["cache_ops"][0]
    plan["cache_ops"][0]["after"] = None
    plan["initial"] = {"w": ["hbm", "ddr"]}
    (folder / "plan.json").write_text(json.dumps(plan))
    outcome = CliRunner().invoke(
        app,
        [
            "replay",
            str(folder / "plan.json"),
            str(folder / "toy.json"),
            "--hardware",
            str(folder / "toy.yaml"),
            "--json",
        ],
    )
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    warning, error = outcome.stderr.splitlines()
    assert warning.startswith("warning: read: op 'f' reads tensor 'w' after cache op 0")
    assert (
        error
        == "error: detach of tensor 'w' at 0 ns: op 'f' awaits it, and no prefetch brings it back "
        "before"
    )


def test_compare_policies_prints_one_result_a_policy(folder: Path) -> None:
    arguments = ("compare-policies", folder / "toy.json", "--hardware", folder / "toy.yaml")
    every = json.loads(hosim(*arguments, "--json"))
    assert every["format"] == "hosim.comparison/1"
    assert {"resident", "on_demand", "lookahead", "layerwise"} <= {
        result["policy"] for result in every["results"]
    }
    two = json.loads(hosim(*arguments, "--policies", "layerwise, resident", "--json"))
    assert [result["policy"] for result in two["results"]] == ["layerwise", "resident"]
    assert two["results"][1]["makespan_ns"] == 50
    again = json.loads(hosim(*arguments, "--policies", "layerwise,resident", "--json"))
    for result in (*two["results"], *again["results"]):
        del result["planning_s"], result["replay_s"]
    assert two == again


def test_every_lower_bound_is_one(folder: Path) -> None:
    printed = json.loads(
        hosim("compare-policies", folder / "toy.json", "--hardware", folder / "toy.yaml", "--json")
    )
    for result in printed["results"]:
        if result["feasible"]:
            assert result["lower_bound_ns"] <= result["makespan_ns"]


def test_what_plan_writes_replay_reads(folder: Path) -> None:
    machine = ("--hardware", folder / "toy.yaml")
    hosim(
        "plan",
        folder / "toy.json",
        *machine,
        "--policy",
        "layerwise",
        "--budget",
        "70 B",
        "-o",
        folder / "made.json.gz",
    )
    replayed = json.loads(
        hosim(
            "replay",
            folder / "made.json.gz",
            folder / "toy.json",
            *machine,
            "--budget",
            "70 B",
            "--json",
        )
    )
    compared = json.loads(
        hosim(
            "compare-policies",
            folder / "toy.json",
            *machine,
            "-p",
            "layerwise",
            "--budget",
            "70 B",
            "--json",
        )
    )
    assert replayed["policy"] == "layerwise"
    assert replayed["makespan_ns"] == compared["results"][0]["makespan_ns"]


def test_nothing_fits_is_exit_code_3_with_every_report(folder: Path) -> None:
    output = hosim(
        "compare-policies",
        folder / "toy.json",
        "--hardware",
        folder / "toy.yaml",
        "--budget",
        "39 B",
        "--detail",
        code=3,
    )
    assert "Nothing fits within 39 B" in output
    said = " ".join(output.split())
    assert " do not fit: out of memory" in said
    assert said.count("out of memory: op 'f' needs") == 1  # one report for all


def test_a_runtime_policy_has_no_plan_to_write(folder: Path) -> None:
    arguments = [
        "plan",
        folder / "toy.json",
        "-H",
        folder / "toy.yaml",
        "-p",
        "on_demand",
        "-o",
        folder / "made.json",
    ]
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "on_demand" in outcome.stderr
    assert not (folder / "made.json").exists()


def test_import_of_a_workload_file_writes_it_again(folder: Path) -> None:
    outcome = CliRunner().invoke(
        app, ["import", str(folder / "toy.json"), "-o", str(folder / "again.json.gz")]
    )
    assert outcome.exit_code == 0
    assert outcome.stderr.endswith(
        "again.json.gz: toy: 1 op, 2 tensors, peak in listed order 70 B (parameter 40 B, "
        "activation 30 B)\n"
    )
    assert "toy: 1 op, 2 tensors" in hosim("workload", "show", folder / "again.json.gz")


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ("nonesuch", "unknown policy 'nonesuch'"),
        (
            "lookahead:k=many",
            "policy lookahead: k: expected a whole number of at least 0, got 'many'",
        ),
        ("lookahead:depth=4", "policy lookahead: no parameter 'depth' (parameters: k="),
        ("lookahead:k", "policy lookahead: expected parameter=value after the colon, got 'k'"),
        (",", "policies: no policy named; expected some of "),
    ],
)
def test_a_policy_or_parameter_that_there_is_not(policies: str, said: str, folder: Path) -> None:
    arguments = [
        "compare-policies",
        str(folder / "toy.json"),
        "-H",
        str(folder / "toy.yaml"),
        "--policies",
        policies,
    ]
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_what_there_is_to_compare(folder: Path) -> None:
    output = hosim("policies")
    assert all(name in output for name in ("resident", "on_demand", "lookahead", "layerwise"))
    assert "k=" in output


def test_an_allocator_adds_its_figures(folder):
    plain = json.loads(
        hosim(
            "replay", folder / "plan.json", folder / "toy.json", "-H", folder / "toy.yaml", "--json"
        )
    )
    wide = folder / "wide.yaml"
    wide.write_text(HARDWARE.replace("100 B", "100 MiB"))
    arguments = (
        "replay",
        folder / "plan.json",
        folder / "toy.json",
        "-H",
        wide,
        "--allocator",
        "caching",
    )
    placed = json.loads(hosim(*arguments, "--json"))
    state = {
        "allocated_bytes": 1024,
        "reserved_bytes": 2 << 20,
        "largest_free_bytes": (2 << 20) - 1024,
        "fragmentation": 0.9995,
    }
    assert placed["allocator"] == {
        "name": "caching",
        "account": "time",
        "peak_allocated_bytes": 1024,
        "peak_active_bytes": 1024,
        "peak_reserved_bytes": 2 << 20,
        "at_peak": state,
        "out_of_memory": None,
    }
    assert "allocator" not in plain
    assert (placed["makespan_ns"], placed["peak_bytes"]) == (
        plain["makespan_ns"],
        plain["peak_bytes"],
    )
    assert "2.00 MiB" in facts(" ".join(hosim(*arguments).split()))
    shown_to_people = hosim(*arguments, "--detail")
    assert "Allocator: caching" in shown_to_people
    assert "2.00 MiB" in shown_to_people
    tight = json.loads(
        hosim(*arguments[:3], "-H", folder / "toy.yaml", "--allocator", "caching", "--json", code=3)
    )
    assert tight["allocator"]["out_of_memory"]["reserved_bytes"] == 0
    compared = hosim(
        "compare-policies",
        folder / "toy.json",
        "-H",
        wide,
        "-p",
        "resident",
        "--allocator",
        "static",
        "--json",
    )
    assert json.loads(compared)["results"][0]["allocator"]["peak_reserved_bytes"] == 512 + 30


def test_the_account_in_program_order(folder):
    arguments = (
        "replay",
        folder / "plan.json",
        folder / "toy.json",
        "-H",
        folder / "toy.yaml",
        "--account",
        "program",
        "--json",
    )
    figures = json.loads(hosim(*arguments))["allocator"]
    assert (figures["name"], figures["account"], figures["peak_allocated_bytes"]) == (
        "ledger",
        "program",
        70,
    )
    compared = hosim(
        "compare-policies",
        folder / "toy.json",
        "-H",
        folder / "toy.yaml",
        "--account",
        "program",
        "--json",
    )
    accounts = {
        result["policy"]: result.get("allocator", {}).get("account")
        for result in json.loads(compared)["results"]
    }
    assert accounts["layerwise"] == "program"
    assert accounts["on_demand"] is None  # decides during the replay


def test_plans_against_reserved_bytes(folder):
    wide = folder / "wide.yaml"
    wide.write_text(HARDWARE.replace("100 B", "100 MiB"))
    arguments = (folder / "toy.json", "-H", wide, "--plan-against", "reserved")
    outcome = CliRunner().invoke(
        app, ["plan", *map(str, arguments), "-p", "resident", "-o", str(folder / "made.json")]
    )
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith(
        "note: the plan allocates 1.00 KiB and the allocator caching reserves 2.00 MiB of 100 "
        "MiB; planned within 100 MiB\n"
    )
    assert json.loads((folder / "made.json").read_text())["policy"] == "resident"
    results = json.loads(
        hosim(
            "compare-policies",
            *arguments,
            "-p",
            "resident,layerwise",
            "--allocator",
            "static",
            "--json",
        )
    )["results"]
    assert [result["allocator"]["name"] for result in results] == ["static", "static"]
    tight = CliRunner().invoke(
        app,
        [
            "plan",
            *map(str, arguments),
            "-p",
            "resident",
            "-o",
            str(folder / "x.json"),
            "-b",
            "1MiB",
        ],
    )
    assert tight.exit_code == 3
    assert "the allocator caching reserves at most" in tight.stderr
    lost = CliRunner().invoke(
        app,
        ["plan", *map(str, arguments[:3]), "-o", str(folder / "x.json"), "--allocator", "caching"],
    )
    assert (lost.exit_code, lost.stderr.count("\n")) == (2, 1)
