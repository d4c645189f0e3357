"""The golden replays that were published with the first contract: every figure of each."""

import json

import pytest
import yaml

from hosim.engine import replay
from hosim.io import hardware_from_dict, plan_from_dict, workload_from_dict

FIELDS = ("makespan_ns", "peak_bytes", "peak_at_ns", "peak_breakdown")


@pytest.fixture(scope="module")
def cases(shared):
    path = shared / "golden" / "cases.json"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    return json.loads(path.read_text())["cases"]


@pytest.mark.parametrize("record", [False, True])
def test_every_figure(cases, record):
    assert len(cases) >= 14
    for case in cases:
        graph = workload_from_dict(case["workload"])
        hardware = hardware_from_dict(yaml.safe_load(case["hardware_yaml"]))
        result = replay(plan_from_dict(case["plan"], graph), hardware, record=record)
        assert _figures(result, case["expected"]) == case["expected"], graph.name


def _figures(result, expected):
    """The figures of a result that ``expected`` has, worded as it words them."""
    if "error" in expected:
        assert not result.feasible
        return {
            "error": "out of memory" if result.error.startswith("out of memory: ") else result.error
        }
    assert result.feasible
    streams = {"compute": result, **result.streams}
    causes = ("dependency", "transfer", "capacity")
    figures = {field: getattr(result, field) for field in FIELDS}
    figures["busy_ns"] = {name: s.busy_ns for name, s in streams.items()}
    figures["stall_ns"] = {
        name: {cause: s.stall_ns[cause] for cause in causes} for name, s in streams.items()
    }
    figures["drain_ns"] = {name: s.drain_ns for name, s in streams.items()}
    figures["channels"] = {
        name: {key: getattr(channel, key) for key in expected["channels"][name]}
        for name, channel in result.channels.items()
    }
    return figures
