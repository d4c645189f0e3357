"""Graphs kept by content: never stale, and safe to damage or to delete."""

import shutil
from pathlib import Path

import pytest
from gate_toys import machine, put, step

from hosim.cache_plan import Plan
from hosim.gate import imports
from hosim.graph import Graph
from hosim.io import save_workload


@pytest.fixture
def source(tmp_path: Path) -> Path:
    put(tmp_path, Plan(step()), machine(), offloads=False)
    return tmp_path / "step.json"


def test_it_is_imported_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    first = imports.graph_of_file(source, kept)
    (file,) = kept.iterdir()
    monkeypatch.setattr("hosim.importers.load_any", lambda path: pytest.fail("imported again"))
    assert imports.graph_of_file(source, kept) == first == step()
    assert list(kept.iterdir()) == [file]


def test_another_content_or_another_hosim_is_another_graph(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    save_workload(step(2), source)
    assert imports.graph_of_file(source, kept) == step(2)
    monkeypatch.setattr(imports, "_code", lambda: "other")
    imports.graph_of_file(source, kept)
    assert len(list(kept.iterdir())) == 3


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"{", b'{"format": "hosim.workload/1", "name": "x"}'[:20], b'{"format": "hosim.plan/1"}']
)
def test_a_damaged_one_is_imported_again(source: Path, tmp_path: Path, content: bytes) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert imports.graph_of_file(source, kept) == step()
    assert file.read_bytes() == whole


def test_a_folder_that_is_gone_or_cannot_be_written_to_costs_only_time(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    shutil.rmtree(kept)
    assert imports.graph_of_file(source, kept) == step()
    no_folder = tmp_path / "file"
    no_folder.write_text("x")
    loaded: Graph = imports.graph_of_file(source, no_folder / "kept")
    assert loaded == step()
