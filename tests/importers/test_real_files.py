"""Files that torch, ONNX exporters and MindSpore wrote, just now or once, with the FLOP of torch's counter; see ``real_files.py``."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")
import real_files

from hosim.importers import load_any
from hosim.unknown_ops import unknown_ops

QUICK = ("distilbert_free.pt2", "mlp.et.json", "mindir_embedded.mindir")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", QUICK)
def test_a_file_of_each_kind(name: str, tmp_path: Path) -> None:
    written = dict(real_files.all_files(tmp_path))[name]()
    graph = load_any(written.path, written.sizes)
    assert sum(op.flops for op in graph.ops) == written.flops
    assert unknown_ops(graph) is None


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, _ in real_files.all_files(Path()) if name not in QUICK])
def test_every_file(name: str, tmp_path: Path) -> None:
    text, well = real_files.line(name, dict(real_files.all_files(tmp_path))[name])
    assert well, text
