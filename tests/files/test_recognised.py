"""What a file of another kind than was expected seems to be, said alike by whatever reads it."""

import gzip
import json
import os
import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hosim.base.files.formats import recognised, unexpected
from hosim.errors import InputError
from hosim.io import load_any, load_hardware, load_plan
from hosim.io.importers.recordings import read_kernel_tables
from hosim.validate import validate

NOTEBOOK = json.dumps({"cells": [], "metadata": {}, "nbformat": 4}).encode()
SAFETENSORS = (8).to_bytes(8, "little") + b'{"w":{} }'


def zipped(*names: str) -> bytes:
    path = Path("archive.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path.read_bytes()


def zipped_64(*names: str) -> bytes:
    """The same with sizes in 64 bits at its end, as of a file with very many names."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
        return zipped(*names)


def database(*tables: str) -> bytes:
    path = Path("database")
    connection = sqlite3.connect(path)
    for table in tables:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    connection.close()
    return path.read_bytes()


FILES: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "README.md": (
        b"# A model\n\n- *fast*: &yes\n```yaml\nformat: hosim.workload/1\n```\n",
        "a document",
    ),
    "weights.bin": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "a pointer of Git LFS",
    ),
    "m.safetensors": (SAFETENSORS, "weights (safetensors)"),
    "weights.pt": (
        lambda: zipped("weights/data.pkl", "weights/version"),
        "weights written by torch.save",
    ),
    "script.pt": (
        lambda: zipped("script/data/0", "script/code/__torch__/linear.py"),
        "a TorchScript program",
    ),
    "last.pt": (
        lambda: zipped(*(f"last/data/{i}" for i in range(2000)), "last/code/__torch__/linear.py"),
        "a TorchScript program",
    ),
    "last in 64 bits.pt": (
        lambda: zipped_64(*(f"a/data/{i}" for i in range(2000)), "a/code/__torch__/linear.py"),
        "a TorchScript program",
    ),
    "mobile.ptl": (
        lambda: zipped("mobile/data.pkl", "mobile/bytecode.pkl"),
        "a TorchScript program",
    ),
    "package.pt": (
        lambda: zipped("package/m.pkl", "package/.data/extern_modules"),
        "a package of torch.package",
    ),
    "old.pt2": (
        lambda: zipped("serialized_exported_program.json", "version"),
        "a program of torch.export in torch 2.7 or older",
    ),
    "results.db": (
        lambda: database("rocpd_kernel_dispatch", "rocpd_string"),
        "a recording of rocprof",
    ),
    "results.json": (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "a recording of rocprof"),
    "kernel_trace.csv": (
        b'"Kind","Agent_Id","Queue_Id"\n"KERNEL_DISPATCH",1,1\n',
        "a table of rocprof",
    ),
    "stats.csv": (b'"Name","Calls","TotalDurationNs"\n"k",1,1\n', "a table of rocprof"),
    "trace_view.json": (
        b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": "1", "dur": 2}]',
        "a recording of Ascend's profiler",
    ),
    "npu.json": (
        b'[{"ph": "M", "name": "process_name", "args": {"name": "Ascend Hardware"}}]',
        "a recording of Ascend's profiler",
    ),
    "chrome.json": (
        b' [ {"name": "a", "ph": "X"} ]',
        "a trace of another program than torch.profiler",
    ),
    "m.memory_timeline.raw": (b"[]", "a memory timeline of torch.profiler"),
    "timeline.raw.json": (
        b"[[-1, 0, 4096, 2], [12, 1, 512, 4]]",
        "a memory timeline of torch.profiler",
    ),
    "timeline.json": (b"[[1, 2], [[0, 0], [5, 0]]]", "a memory timeline of torch.profiler"),
    "a.npz": (lambda: zipped("a.npy"), "arrays of numpy"),
    "x.json": (NOTEBOOK, "a notebook of Jupyter"),
    "model.safetensors.index.json": (
        b'{"metadata": {}, "weight_map": {}}',
        "the index of sharded weights",
    ),
    "w.pkl": (pickle.dumps([1]), "a pickle, which hosim does not execute"),
    "p.png": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "page.json": (b"\n<!DOCTYPE html><html>", "a web page"),
    "train.py": (b"import torch\n", "source code of Python"),
    "a.csv": (b"a,b\n1,2\n", "a table"),
    "run.nsys-rep": (b"\x01\x02", "a recording of Nsight Systems"),
    "nothing.yaml": (b"", "an empty file"),
}
READERS: dict[str, Callable[[str], object]] = {
    "workload": load_any,
    "hardware": load_hardware,
    "plan": lambda path: load_plan(path, None),  # type: ignore[arg-type]
    "recording": validate,
    "kernels": read_kernel_tables,
}


@pytest.mark.parametrize("name", FILES)
def test_every_reader_says_what_it_seems_to_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, what = FILES[name]
    Path(name).write_bytes(content if isinstance(content, bytes) else content())
    for wanted, read in READERS.items():
        if (wanted, name) in (("recording", "w.pkl"), ("kernels", "a.csv")):
            continue  # a snapshot of memory is a pickle, and kernel times are a table
        with pytest.raises(InputError) as caught:
            read(name)
        assert f"; this seems to be {what}" in str(caught.value), wanted
        assert str(caught.value).startswith(f"{name}: expected a ")


def test_packed_and_in_other_letters(tmp_path: Path) -> None:
    (tmp_path / "NOTES.MD.gz").write_bytes(gzip.compress(b"# notes"))
    assert "a document" in str(recognised(os.fspath(tmp_path / "NOTES.MD.gz")))


def test_what_hosim_reads_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"model_type": "llama"}')
    (tmp_path / "m.yaml").write_text("format: hosim.hardware/1\nname: [\n")
    with pytest.raises(
        InputError,
        match=r"this seems to be a model or recording \(config\.json.*give it where a WORKLOAD "
        r"belongs",
    ):
        load_hardware(tmp_path / "c.json")
    with pytest.raises(
        InputError, match="this seems to be a hardware profile of hosim: -H takes it"
    ):
        validate(tmp_path / "m.yaml")
    with pytest.raises(
        InputError,
        match="expected a model, a recording or a workload; this seems to be a hardware profile of "
        "hosim: -H takes it",
    ):
        load_any(tmp_path / "m.yaml")
    with pytest.raises(InputError, match=r"m\.yaml: broken YAML at line "):
        load_hardware(tmp_path / "m.yaml")


def test_nobody_knows(tmp_path: Path) -> None:
    for name, content in (("a", b"hello"), ("b.json", b"{}"), ("c.yaml", b"a: 1\n")):
        (tmp_path / name).write_bytes(content)
        assert unexpected(os.fspath(tmp_path / name), "a plan") is None
    assert recognised(os.fspath(tmp_path / "none")) is None
    assert recognised(os.fspath(tmp_path)) is None
