"""The shipped Llama graph comes from its spec again, byte for byte."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hosim.io import import_spec, load_workload, save_workload  # noqa: E402

NAME = "llama-3.1-8b-prefill-4k"
BEFORE_5_24 = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24)
EXPORTED_NODES = (
    2401 if BEFORE_5_24 else 2412
)  # before, those of rotary positions are in a graph of their own, without gradients


@pytest.mark.long
def test_the_shipped_workload_is_made_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, programs = torch.export.export, []
    monkeypatch.setattr(
        torch.export,
        "export",
        lambda *args, **kwargs: programs.append(export(*args, **kwargs)) or programs[-1],
    )
    graph = import_spec(root / f"workloads/{NAME}.yaml")
    assert [len(program.graph.nodes) for program in programs] == [EXPORTED_NODES]
    shipped = root / f"workloads/{NAME}.json.gz"
    made_with = load_workload(shipped).meta
    here = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    if here != {key: made_with[key] for key in here}:
        pytest.skip(
            f"the workload was made with torch {made_with['torch']} and transformers "
            f"{made_with['transformers']}; here are {here}"
        )
    save_workload(graph, tmp_path / "again.json.gz")
    # unpacked: zlib builds differ in how they pack the same bytes
    assert gzip.decompress((tmp_path / "again.json.gz").read_bytes()) == gzip.decompress(
        shipped.read_bytes()
    )
