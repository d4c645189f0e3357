"""A recording beside its execution trace: storages from before it, by their ids."""

import json
from pathlib import Path

import pytest
from kineto_toys import (
    KERNEL,
    call,
    device_op,
    execution_trace,
    graph_of,
    memory,
    span,
    step,
    trace,
)
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import load_workload
from hosim.io.importers.recordings import import_kineto
from hosim.io.importers.torch_programs import recorded_calls

SIZE = 512  # of 32 floats, as the allocator rounds


def written(folder: Path, document: dict, name: str = "e.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def before(graph: Graph) -> dict[str, list[int]]:
    found = {i: t.name for i, t in enumerate(graph.tensors) if t.name.startswith("before")}
    return {
        name: [place for place, op in enumerate(graph.ops) if i in op.inputs]
        for i, name in found.items()
    }


def products(*names: str) -> list[dict]:
    """Operators of one kernel each, 20 us apart."""
    events = []
    for i, name in enumerate(names):
        events += [
            span("cpu_op", name, 20 * i, 15),
            call("cudaLaunchKernel", 20 * i + 1, 2, i),
            device_op(KERNEL, "k", 20 * i + 5, 4, i),
        ]
    return events


def test_storages_that_nobody_returned_were_there_before(tmp_path: Path) -> None:
    """Storages 1 and 2 were there; 3 is made by the first, and 2 is made again by the second, which
    the third takes.
    """
    recorded = trace(
        memory(-1, 512, 1, 4 * SIZE + 512), *products("aten::mm", "aten::t", "aten::add")
    )
    calls = ("aten::mm", [1, 2], [3]), ("aten::t", [3, 1], [2]), ("aten::add", [2, 4], [])
    graph = graph_of(recorded, execution_trace=written(tmp_path, execution_trace(*calls)))
    assert before(graph) == {
        "before1.storage": [0],
        "before0.storage": [0, 1],
        "before2.storage": [2],
    }
    assert [t.size_bytes for t in graph.tensors if t.name.startswith("before")] == [SIZE] * 3
    assert graph.meta["unknown_uses_bytes"] == SIZE
    assert "execution trace" in graph.meta["missing"][-1]


def test_a_block_that_the_recording_frees_is_not_counted_twice(tmp_path: Path) -> None:
    """Storage 1 is used first and then freed: a block of the recording. Storage 2 is used later, so
    that it cannot be that block.
    """
    freed = memory(18, -SIZE, 99, SIZE + 512)
    recorded = trace(memory(-1, 512, 1, 2 * SIZE + 512), freed, *products("aten::mm", "aten::add"))
    calls = ("aten::mm", [1], []), ("aten::add", [2], [])
    graph = graph_of(recorded, execution_trace=written(tmp_path, execution_trace(*calls)))
    assert before(graph) == {"before1.storage": [1]}
    assert graph.meta["unknown_uses_bytes"] == 0


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (
            (("aten::mm", [1], []),),
            "has no thread that calls the 2 operators of thread 11 of the recording: another run?",
        ),
        (
            (("aten::add", [1], []), ("aten::mm", [1], [])),
            "has no thread that calls the 2 operators of thread 11 of the recording: another run?",
        ),
        (
            (("aten::mm", [1, 2, 3], []), ("aten::add", [4], [])),
            "shows 2,048 bytes from before the recording, which began with 1,536: another run?",
        ),
    ],
)
def test_an_execution_trace_of_another_run_is_refused(
    tmp_path: Path, calls: tuple, problem: str
) -> None:
    recorded = written(
        tmp_path,
        trace(memory(-1, 512, 1, 3 * SIZE + 512), *products("aten::mm", "aten::add")),
        "t.json",
    )
    beside = written(tmp_path, execution_trace(*calls))
    with pytest.raises(InputError) as caught:
        import_kineto(recorded, beside)
    assert str(caught.value) == f"{beside}: {problem}"


def test_the_commands_take_an_execution_trace(tmp_path: Path) -> None:
    document = step()
    document["deviceProperties"][0]["name"] = "NVIDIA H100 80GB HBM3"
    recorded, beside = written(tmp_path, document, "t.json"), written(tmp_path, execution_trace())
    out = tmp_path / "out.json"
    result = CliRunner().invoke(
        app, ["import", str(recorded), "-o", str(out), "--execution-trace", str(beside)]
    )
    assert result.exit_code == 0, result.output
    assert before(load_workload(out)) == {"before0.storage": [1], "before1.storage": [1]}
    options = ["-H", "h100", "-p", "resident", "--execution-trace", str(beside)]
    assert CliRunner().invoke(app, ["compare-policies", str(recorded), *options]).exit_code == 0
    both = CliRunner().invoke(
        app,
        ["import", str(recorded), "-o", str(out), "--execution-trace", str(beside), "--dim", "a=1"],
    )
    assert both.exit_code == 2
    assert (
        "--dim and --execution-trace exclude each other: they are of different formats"
        in both.stderr
    )
    damaged = written(tmp_path, {"nodes": [{"name": "x"}]}, "bad.json")
    with pytest.raises(InputError, match=r"bad\.json: nodes\[0\]\.id: expected a whole number"):
        recorded_calls(damaged)


def test_a_recorded_step_with_its_execution_trace(shared: Path) -> None:
    """26 parameters with two states of Adam each, the images and the labels."""
    folder = shared / "data" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: it has the recording that this test reads")
    graph = import_kineto(
        folder / "h100_vgg13_training.json.gz", folder / "h100_vgg13_execution_graph.json.gz"
    )
    assert len(before(graph)) == 3 * 26 + 2
    assert graph.meta["unknown_uses_bytes"] < 0.03 * 39_343_881_216
