"""Files that torch, ONNX exporters and MindSpore wrote, just now or once, with the FLOP of torch's
counter; see ``real_files.py``.
"""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")
import real_files

from hosim.data.unknown_ops import unknown_ops
from hosim.io import load_any

QUICK = ("mlp.et.json", "mindir_embedded.mindir")
SIZES = {"input_ids[0]": 2, "input_ids[1]": 64}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def test_a_program_of_free_sizes(tmp_path: Path) -> None:
    """With those of its example, and with two prompts of 64 tokens."""
    written = real_files.pt2("distilbert", tmp_path, free=True)
    assert sum(op.flops for op in load_any(written.path).ops) == written.flops
    with_others(written.path, "distilbert")


def with_others(path: Path, name: str) -> None:
    given = {key: value[:2, :64] for key, value in real_files.inputs(name).items()}
    module = real_files.model(name)
    assert sum(op.flops for op in load_any(path, SIZES).ops) == real_files.counted(
        lambda: module(**given), module
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in real_files.DYNAMIC if name not in ("distilbert", "clip")]
)
def test_other_sizes(name: str, tmp_path: Path) -> None:
    with_others(real_files.pt2(name, tmp_path, free=True).path, name)


@pytest.mark.parametrize("name", QUICK)
def test_a_file_of_each_kind(name: str, tmp_path: Path) -> None:
    written = dict(real_files.all_files(tmp_path))[name]()
    graph = load_any(written.path, written.sizes)
    assert sum(op.flops for op in graph.ops) == written.flops
    assert unknown_ops(graph) is None


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, _ in real_files.all_files(Path()) if name not in QUICK]
)
def test_every_file(name: str, tmp_path: Path) -> None:
    text, well = real_files.line(name, dict(real_files.all_files(tmp_path))[name])
    assert well, text
