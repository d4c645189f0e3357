"""The shipped workloads: each is made again, to the byte, by the spec beside it."""

import pytest
from digest_specs import digest
from quick_cases import one_in

from hosim import shipped
from hosim.analysis import static_peak
from hosim.base.files import read
from hosim.io import load_any, load_workload

NAMES = shipped.workloads()


@pytest.mark.parametrize("name", one_in(4, NAMES))
def test_a_spec_gives_its_workload_to_the_byte(name, root):
    path = root / "workloads" / f"{name}.yaml"
    spec = read(path, "spec")
    assert spec["name"] == name
    if "builder" in spec:  # traced ones: tests/importers/test_shipped_again.py
        assert digest(path) == spec["sha256"], (
            "builders give another graph: run tests/models/digest_specs.py if it is meant"
        )
        assert shipped.workload_path(name) == path


def test_a_spec_is_loaded_like_a_workload():
    path = shipped.workload_path("llama-3.1-8b-decode-128k")
    assert load_workload(path) == load_any(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_workload_is_worth_planning(name):
    graph = load_any(shipped.workload_path(name))
    assert graph.name == name
    assert 100 < len(graph.ops) <= 10_000
    assert static_peak(graph).bytes > 2**30
    assert sum(op.flops for op in graph.ops) > 0
