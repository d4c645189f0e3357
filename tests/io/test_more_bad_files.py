"""Specs, cases and results at the limits of what they may say; places that are no files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hosim.base.files import unknown_name, write_bytes
from hosim.errors import InputError
from hosim.io import check_spec, result_from_dict
from hosim.io.gate_files import load_cases

SPEC: dict[str, Any] = {
    "format": "hosim.spec/1",
    "name": "s",
    "importer": "torch_train",
    "model": {"class": "Llama"},
    "training": {"micro_batches": 1024},
    "inputs": {"x": {"shape": [1, 2**40, *[1] * 6], "dtype": "int64"}},
}


def shaped(*shape: int) -> dict[str, Any]:
    return {"inputs": {"x": {"shape": list(shape), "dtype": "int64"}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (shaped(0), "inputs.x.shape[0]: expected at least 1, got 0"),
        (shaped(2**40 + 1), "inputs.x.shape[0]: expected at most 1099511627776, got 1099511627777"),
        (
            shaped(),
            "inputs.x.shape: List should have at least 1 item after validation, not 0, got a list",
        ),
        (
            shaped(*[1] * 9),
            "inputs.x.shape: List should have at most 8 items after validation, not 9, got a list",
        ),
        (
            {"inputs": {}},
            "inputs: Dictionary should have at least 1 item after validation, not 0, got a mapping",
        ),
        ({"training": {"micro_batches": 0}}, "training.micro_batches: expected at least 1, got 0"),
        (
            {"training": {"micro_batches": 1025}},
            "training.micro_batches: expected at most 1024, got 1025",
        ),
        (
            {"training": {"batches": 1}},
            "training.batches: unknown key 'batches'; did you mean 'micro_batches'?",
        ),
        ({"model": {}}, "model.class: missing; expected the keys class, config, dtype, attention"),
        (
            {"sha256": "0"},
            "sha256: unknown key 'sha256' (known: format, name, importer, model, training, "
            "inputs, versions)",
        ),
    ],
)
def test_specs(changes: dict[str, Any], message: str) -> None:
    assert check_spec(SPEC, "s") == SPEC
    with pytest.raises(InputError) as caught:
        check_spec({**SPEC, **changes}, "s")
    assert str(caught.value) == f"s: {message}"


DEEP = (
    'expected at most 200 levels of nesting, got more; HOSIM_LIMITS="nesting_depth=400" raises '
    "this limit"
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hosim.toml", "a = [", "broken TOML: Invalid value (at end of document)"),
        ("hosim.toml", "a = " + "[" * 100_000, DEEP),
        ("hosim.toml", "[case]", "case: unknown key 'case'; did you mean 'cases'?"),
        (
            "hosim.toml",
            "[cases.a]",
            "cases.a.hardware: missing; "
            "expected the keys workload, entry, hardware, policy, plan, strict, rescale, budget, "
            "serve, tolerance",
        ),
        ("pyproject.toml", "", "no table [tool.hosim]; add one, or write a hosim.toml"),
        ("pyproject.toml", "[tool.other]", "no table [tool.hosim]; add one, or write a hosim.toml"),
    ],
)
def test_cases(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        load_cases(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {message}"


def test_cases_of_a_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hosim]\nbaselines = "b"\n')
    assert load_cases(tmp_path / "pyproject.toml") == {"format": "hosim.cases/1", "baselines": "b"}


def test_a_key_below_one_that_may_be_null() -> None:
    data = {
        "format": "hosim.result/1",
        "workload": "w",
        "hardware": "h",
        "policy": "p",
        "budget_bytes": 1,
        "feasible": True,
    }
    devices = {
        "count": 1,
        "feasible": 1,
        "stall_ns": None,
        "peak_bytes": {},
        "each": [],
        "makespan_ns": {"mena": 1},
    }
    with pytest.raises(InputError) as caught:
        result_from_dict(data | {"devices": devices}, "r")
    assert (
        str(caught.value)
        == "r: devices.makespan_ns.min: missing; expected the keys min, median, max (and 3 more)"
    )


def test_a_pipe_is_not_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"pipe: cannot be written: this is a pipe; name a file$"):
        write_bytes(pipe, b"abc")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_unknown_names() -> None:
    assert unknown_name("op", "f", []) == "unknown op 'f'; there is no op at all"
    assert (
        unknown_name("op", "softmax", ["softmax_1", "x"])
        == "unknown op 'softmax'; did you mean 'softmax_1'?"
    )
    eight = [f"{n}{n}" for n in range(8)]
    assert unknown_name("op", "f", eight) == f"unknown op 'f' (known: {', '.join(eight)})"
    assert (
        unknown_name("op", "f", [*eight, "88", "99"])
        == f"unknown op 'f' (known: {', '.join(eight)}, and 2 more)"
    )
