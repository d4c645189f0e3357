"""Malformed workloads, profiles, plans and budgets: each one clear line on stderr, nothing on
stdout, exit code 2.
"""

import gzip
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_files import GOOD, write_toy
from typer.testing import CliRunner

from hosim.cli.main import app


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets what stands at ``path``."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    """A change that removes what stands at ``path``."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


def replay(folder: Path, *more: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a replay of the files in ``folder``."""
    files = [str(folder / name) for name in ("plan.json", "workload.json")]
    outcome = CliRunner().invoke(
        app, ["replay", *files, "--hardware", str(folder / "hw.yaml"), *more]
    )
    return outcome.exit_code, outcome.stdout, outcome.stderr


def assert_line(stderr: str, message: str) -> None:
    """``stderr`` is the one line ``error: message``; of a message that ends in dots, more
    follows.
    """
    assert stderr.count("\n") == 1
    line = stderr.removesuffix("\n")
    assert (
        line[: len(message) + 4] + "..." if message.endswith("...") else line
    ) == f"error: {message}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The toy of docs/formats.md: a workload, a machine and a plan."""
    write_toy(tmp_path)
    return tmp_path


CHANGED = [
    (
        "workload.json",
        drop("format"),
        "workload.json: its format is unknown; a graph can be read from: workload "
        "(hosim.workload/1)...",
    ),
    (
        "workload.json",
        put("format", value="hosim.workload/9"),
        "workload.json: format: 'hosim.workload/9' is from a newer hosim, and this one reads "
        "hosim.workload/1: update hosim, or write the file again with this one",
    ),
    (
        "workload.json",
        put("format", value="hosim.plan/1"),
        "workload.json: expected a model, a recording or a workload; this seems to be a plan of "
        "hosim: hosim replay takes PLAN, then WORKLOAD",
    ),
    (
        "workload.json",
        put("colour", value="red"),
        "workload.json: colour: unknown key 'colour' (known: format, name, meta, tensors, ops)",
    ),
    (
        "workload.json",
        put("tensors", 0, "bytes", value=-1),
        "workload.json: tensors[0].bytes: expected at least 0, got -1",
    ),
    (
        "workload.json",
        put("tensors", 0, "bytes", value="40 B"),
        "workload.json: tensors[0].bytes: expected an integer, got '40 B'",
    ),
    (
        "workload.json",
        put("tensors", 0, "bytes", value=1.5),
        "workload.json: tensors[0].bytes: expected an integer, got 1.5",
    ),
    (
        "workload.json",
        put("tensors", 0, "kind", value="weight"),
        "workload.json: tensors[0].kind: expected 'parameter', 'gradient', 'optimizer_state', "
        "'activation', "
        "'kv_cache', 'expert', 'input', 'output' or 'buffer', got 'weight'",
    ),
    (
        "workload.json",
        put(
            "tensors",
            value=[{"name": "w", "bytes": 1}, {"name": "a", "bytes": 1}, {"name": "w", "bytes": 2}],
        ),
        "workload.json: tensors[2].name: tensor name 'w' is listed twice",
    ),
    (
        "workload.json",
        drop("tensors", 0, "bytes"),
        "workload.json: tensors[0].bytes: missing; expected the keys name, bytes, kind, home, "
        "persistent, of",
    ),
    (
        "workload.json",
        put("ops", 0, "inputs", value=["v"]),
        "workload.json: ops[0].inputs[0]: unknown tensor 'v' (known: w, a)",
    ),
    (
        "workload.json",
        put("ops", 0, "inputs", value=["a"]),
        "workload.json: ops[0].inputs[0]: op 'f' uses tensor 'a' before any op produces it; list "
        "its "
        "producer first, or give the tensor a home if it is there from the start",
    ),
    (
        "workload.json",
        put("ops", 0, "inputs", value="w"),
        "workload.json: ops[0].inputs: expected a list, got 'w'",
    ),
    (
        "workload.json",
        put("ops", 0, "deps", value=["g"]),
        "workload.json: ops[0].deps[0]: unknown earlier op 'g'; there is no earlier op at all",
    ),
    (  # 40 ns of prefetch come on top
        "workload.json",
        put("ops", 0, "duration_ns", value=2**63 - 1),
        "toy: the replay takes more than 2^63-1 ns (292 years); check the rates of its channels "
        "and its compute",
    ),
    (
        "workload.json",
        put(
            "ops",
            0,
            value={"name": "f", "kind": "matmul", "outputs": ["a"], "flops": 9, "dtype": "int3"},
        ),
        "compute.peak: op 'f' computes in 'int3', for which 'toy' has no peak (it has: bf16); add "
        "the dtype "
        "to the profile, or give the op a duration_ns",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "capacity", value=100),
        "hw.yaml: tiers.hbm.capacity: expected a size with its unit, such as '80 GiB', got 100",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "capacity", value="100"),
        "hw.yaml: tiers.hbm.capacity: expected a size with its unit, such as '80 GiB', got '100'",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "capacity", value="100 Gb"),
        "hw.yaml: tiers.hbm.capacity: expected a size such as '80 GiB', got '100 Gb': unknown "
        "unit 'Gb'; 'b' "
        "would be bits: write 'B' for bytes",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "capacity", value="1 GB/s"),
        "hw.yaml: tiers.hbm.capacity: expected a size such as '80 GiB', got '1 GB/s': unknown "
        "unit 'GB/s'",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "capacity", value="0 B"),
        "hw.yaml: tiers.hbm.capacity: expected a capacity above 0 B",
    ),
    (
        "hw.yaml",
        put("tiers", "hbm", "scope", value="room"),
        "hw.yaml: tiers.hbm.scope: expected 'device', 'host' or 'global', got 'room'",
    ),
    (
        "hw.yaml",
        put("channels", "h2d", "from", value="dram"),
        "hw.yaml: channels.h2d.from: no tier 'dram' (tiers: ddr, hbm)",
    ),
    (
        "hw.yaml",
        put("channels", "h2d", "engines", value=0),
        "hw.yaml: channels.h2d.engines: expected at least 1, got 0",
    ),
    (
        "hw.yaml",
        put("channels", "h2d", "latency", value="5 GB"),
        "hw.yaml: channels.h2d.latency: expected a time such as '10 us', got '5 GB': unknown unit "
        "'GB'",
    ),
    (
        "hw.yaml",
        put("channels", "h2d", "width", value=16),
        "hw.yaml: channels.h2d.width: unknown key 'width'; did you mean 'bandwidth'?",
    ),
    (
        "hw.yaml",
        put("device_tier", value="vram"),
        "hw.yaml: device_tier: no tier 'vram' (tiers: ddr, hbm)",
    ),
    (
        "hw.yaml",
        put("compute", "efficiency", value=1.5),
        "hw.yaml: compute.efficiency: expected at most 1, got 1.5",
    ),
    (
        "hw.yaml",
        put("fabrics", value={"pcie": {"bandwidth": "1 GB/s", "channels": ["h3d"]}}),
        "hw.yaml: fabrics.pcie.channels[0]: no channel 'h3d' (channels: d2h, h2d)",
    ),
    (
        "plan.json",
        put("workload", value="other"),
        "plan.json: workload: this plan is for the workload 'other', not for 'toy'; plan again "
        "for this one",
    ),
    (
        "plan.json",
        put("cache_ops", 0, "op", value="fetch"),
        "plan.json: cache_ops[0].op: expected 'prefetch', 'store' or 'detach', got 'fetch'",
    ),
    (
        "plan.json",
        put("cache_ops", 0, "tensor", value="v"),
        "plan.json: cache_ops[0].tensor: unknown tensor 'v' (known: w, a)",
    ),
    (
        "plan.json",
        put("cache_ops", 0, "to", value="vram"),
        "plan.json: cache_ops[0].to: unknown tier 'vram' (known: hbm, ddr); the hardware is 'toy'",
    ),
    (
        "plan.json",
        put("cache_ops", 0, "after", value="g"),
        "plan.json: cache_ops[0].after: unknown op 'g' (known: f)",
    ),
    (
        "plan.json",
        drop("cache_ops", 0, "to"),
        "plan.json: cache_ops[0].to: missing; a prefetch names the tier it copies to",
    ),
    (
        "plan.json",
        put("initial", value={"v": ["ddr"]}),
        "plan.json: initial.v: unknown tensor 'v' (known: w, a)",
    ),
    (
        "plan.json",
        put("initial", value={"w": ["disk"]}),
        "plan.json: initial.w[0]: unknown tier 'disk' (known: hbm, ddr); the hardware is 'toy'",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    CHANGED,
    ids=[f"{name}-{message}"[:60] for name, _, message in CHANGED],
)
def test_a_contradiction_names_file_place_and_what_was_expected(
    name: str, change: Callable[[dict[str, Any]], None], message: str, folder: Path
) -> None:
    data = deepcopy(GOOD[name])
    change(data)
    (folder / name).write_text(yaml.safe_dump(data) if name.endswith("yaml") else json.dumps(data))
    code, stdout, stderr = replay(folder)
    assert (code, stdout) == (2, "")
    assert_line(stderr.replace(f"{folder}/", ""), message)


BROKEN = [
    (
        "workload.json",
        b"",
        "workload.json: expected a model, a recording or a workload; this seems to be an empty "
        "file:...",
    ),
    (
        "workload.json",
        b'{"format": "hosim.workload/1",',
        "workload.json: broken JSON at line 1, column 31: Expecting property name enclosed in "
        "double quotes",
    ),
    (
        "workload.json",
        b"[1,2",
        "workload.json: broken JSON at line 1, column 5: Expecting ',' delimiter",
    ),
    (
        "workload.json",
        b"[1, 2]",
        "workload.json: its format is unknown; a graph can be read from: workload "
        "(hosim.workload/1)...",
    ),
    (
        "workload.json",
        b'{"format": "hosim.workload/1", "format": "hosim.workload/1"}',
        "workload.json: key 'format' is given twice in one object; keep one of them",
    ),
    (
        "workload.json",
        bytes([0, 159, 146, 150]),
        "workload.json: its format is unknown; a graph can be read from: workload "
        "(hosim.workload/1)...",
    ),
    (
        "workload.json",
        gzip.compress(b'{"format": "hosim.workload/1"}' * 100, mtime=0)[:30],
        "workload.json: damaged gzip file (Compressed file ended before the end-of-stream marker "
        "was reached); write or download it again",
    ),
    (
        "hw.yaml",
        b"format: hosim.hardware/1\n\ttiers: {}",
        "hw.yaml: broken YAML at line 2, column 1: found a tab character that violates indentation",
    ),
    (
        "hw.yaml",
        b"format: hosim.hardware/1\nname: [a",
        "hw.yaml: broken YAML at line 3, column 1: did not find expected ',' or ']'",
    ),
    (
        "hw.yaml",
        b"just words",
        "hw.yaml: expected a hardware profile (a mapping with format: hosim.hardware/1), got str "
        "'just words'",
    ),
    (
        "plan.json",
        b"null",
        "plan.json: expected a plan (a mapping with format: hosim.plan/1), got nothing",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    BROKEN,
    ids=[f"{name}-{content[:20]!r}" for name, content, _ in BROKEN],
)
def test_a_file_that_cannot_be_read_says_why(
    name: str, content: bytes, message: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    code, stdout, stderr = replay(folder)
    assert (code, stdout) == (2, "")
    assert_line(stderr.replace(f"{folder}/", ""), message)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("40", "budget: expected a size with its unit, such as '80 GiB', got '40'"),
        (
            "40 Gb",
            "budget: expected a size such as '80 GiB', got '40 Gb': unknown unit 'Gb'; 'b' would "
            "be bits: write 'B' for bytes",
        ),
        ("40 GB/s", "budget: expected a size such as '80 GiB', got '40 GB/s': unknown unit 'GB/s'"),
        ("-1 GiB", "budget: expected a size from 0 to 2^63-1 B, got '-1 GiB'"),
        ("lots", "budget: expected a size such as '80 GiB', got 'lots'"),
    ],
)
def test_a_budget_without_its_unit_or_sense_is_refused(
    budget: str, said: str, folder: Path
) -> None:
    assert replay(folder, "--budget", budget) == (
        2,
        "",
        f"error: {said} (or a share of the resident peak, such as '75%')\n",
    )


def test_a_budget_of_nothing_is_refused(folder: Path) -> None:
    message = (
        "expected a size such as '40 GiB' or a share of the resident peak such as '75%' or 0.75"
    )
    assert replay(folder, "--budget", "0 B") == (
        2,
        "",
        f"error: budget: 0 B leaves no memory at all; {message}\n",
    )


def test_a_budget_that_is_too_small_is_infeasible_with_the_report(folder: Path) -> None:
    code, stdout, stderr = replay(folder, "--budget", "69 B", "--json")
    assert code == 3
    assert (
        stderr
        == "warning: capacity: op 'f' needs 70 B of hbm for what it uses and its workspace; there "
        "are 69 B\n"
    )
    result = json.loads(stdout)
    assert result["feasible"] is False
    assert result["makespan_ns"] is None
    assert (
        result["error"]
        == "out of memory: op 'f' wants 30 B of hbm at 40 ns, where 40 B of 69 B are held; "
        "largest residents: w 40 B"
    )


def test_a_budget_above_the_capacity_is_noted(folder: Path) -> None:
    code, stdout, stderr = replay(folder, "--budget", "1 GiB", "--json")
    assert code == 0
    assert json.loads(stdout)["budget_bytes"] == 100
    assert stderr == "note: using 100 B, all that the device has\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["hardware", "show", "h100-80gb"],
            "h100-80gb: no file and no shipped hardware profile of that name; did you mean "
            "'h100-80gb-cxl' or 'h100-80gb-sxm'?",
        ),
        (
            ["compare-policies", "nonesuch", "-H", "toy", "--allocator", "buddy"],
            "allocator: unknown allocator 'buddy' (known: ledger, caching, caching-expandable, "
            "static)",
        ),
        (
            ["replay", "plan.json", "nonesuch", "-H", "toy"],
            "nonesuch: no file and no shipped workload of that name (shipped: ",
        ),
        (
            ["compare-policies", "nonesuch", "-H", "toy"],
            "nonesuch: no file and no shipped workload of that name (shipped: ",
        ),
        (
            ["compare-policies", "x", "-H", "tay"],
            "tay: no file and no shipped hardware profile of that name; did you mean 'toy'? "
            "(shipped: ",
        ),
        (["schema", "wrkload"], "unknown format 'wrkload'; did you mean 'workload'?"),
    ],
)
def test_a_name_that_nothing_has_suggests_those_that_exist(arguments: list[str], said: str) -> None:
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"error: {said}")
    assert outcome.stderr.count("\n") == 1


def test_of_many_broken_rules_the_first_are_listed_and_the_rest_counted(folder: Path) -> None:
    plan = deepcopy(GOOD["plan.json"])
    plan["cache_ops"] += [{"op": "detach", "tensor": "w", "from": "hbm", "after": "f"}] * 50
    (folder / "plan.json").write_text(json.dumps(plan))
    for name in ("workload.json", "hw.yaml"):
        (folder / name).write_text(json.dumps(GOOD[name]))
    _, _, stderr = replay(folder)
    warnings = [line for line in stderr.splitlines() if line.startswith("warning: ")]
    assert (len(warnings), warnings[-1]) == (4, "warning: absent: and 47 more like these")
