"""What a file is, by its contents and not by its name."""

import gzip
import re

import pytest
from typer.testing import CliRunner

from hosim.base.files.formats import known_formats
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.io import load_any, save_workload


def toy():
    builder = GraphBuilder("toy", {"made": "here"})
    builder.tensor("w", 40, "parameter")
    builder.tensor("a", 30)
    builder.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50)
    return builder.build()


@pytest.mark.parametrize("name", ["toy.json", "toy.json.gz", "toy.yaml"])
def test_a_workload(tmp_path, name):
    save_workload(toy(), tmp_path / name)
    assert load_any(tmp_path / name) == toy()


def test_the_name_does_not_matter(tmp_path):
    save_workload(toy(), tmp_path / "toy.json")
    (tmp_path / "toy.pt2").write_bytes((tmp_path / "toy.json").read_bytes())
    assert load_any(tmp_path / "toy.pt2") == toy()


@pytest.mark.parametrize(
    "content",
    [b"\n", b"hello", b'{"nodes": []}', b"\x00\x01\x02", gzip.compress(b"hello", mtime=0)],
)
def test_an_unknown_file_is_answered_with_what_is_known(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_any(tmp_path / "x")
    assert all(title in str(caught.value) for title in known_formats())
    assert str(tmp_path / "x") in str(caught.value)


@pytest.mark.parametrize(("beyond", "code"), [(-10, 0), (10, 2)])
def test_what_stands_after_64_kib_says_nothing_of_the_format(tmp_path, beyond, code):
    """The line with the format ends ``beyond`` bytes after them."""
    line = "format: hosim.workload/1\n"
    (tmp_path / "w.yaml").write_text(
        "#" * (64 * 1024 + beyond - len(line)) + "\n" + line + "name: w\ntensors: []\nops: []\n"
    )
    outcome = CliRunner().invoke(
        app, ["import", str(tmp_path / "w.yaml"), "-o", str(tmp_path / "out.json")]
    )
    assert (outcome.exit_code, "its format is unknown" in outcome.stderr) == (code, code == 2)


def test_another_file_of_hosim(tmp_path):
    (tmp_path / "x.yaml").write_text("format: hosim.hardware/1\nname: toy\n")
    with pytest.raises(InputError, match="seems to be a hardware profile of hosim: -H takes it"):
        load_any(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text("format: hosim.nonesuch/1\nname: toy\n")
    with pytest.raises(InputError, match="its format is unknown; a graph can be read from"):
        load_any(tmp_path / "y.yaml")


def test_broken_json_says_where(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama",\n "hidden_size" 64}')
    with pytest.raises(InputError, match="broken JSON at line 2, column"):
        load_any(tmp_path / "config.json")
    (tmp_path / "other").write_text('{"hidden_size": 64')
    with pytest.raises(InputError, match="broken JSON at line 1, column"):
        load_any(tmp_path / "other")


def test_a_folder_of_nothing(tmp_path):
    with pytest.raises(
        InputError, match="this folder holds no graph: that of a checkpoint has its config"
    ):
        load_any(tmp_path)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_any(tmp_path / "none.json")


def test_damaged_gzip(tmp_path):
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'{"format": "hosim.workload/1"}')[:-6])
    with pytest.raises(InputError, match="damaged gzip"):
        load_any(tmp_path / "x.json.gz")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(path, mode, opener):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError) as caught:
        load_any(tmp_path / "x")
    assert str(caught.value) == f"{tmp_path / 'x'}: cannot be read: Permission denied"
    monkeypatch.undo()
    with pytest.raises(
        InputError, match=r"^a\\x00b: cannot be read: embedded null (byte|character)"
    ):
        load_any("a\0b")


def test_a_model_whose_figures_no_workload_could_hold(tmp_path):
    spec = tmp_path / "huge.yaml"
    spec.write_text(
        "format: hosim.spec/1\nname: huge\nbuilder: {model: gpt2, phase: train, layers: 1, batch: "
        "4294967296, sequence: 64}\n"
    )
    with pytest.raises(InputError) as refused:
        load_any(spec)
    start = f"{spec}: the graph that it describes is not a valid one: ops["
    assert str(refused.value).startswith(start)
    assert re.fullmatch(
        r"\d+\]\.flops: expected an integer up to 2\^63-1, got \d{20}",
        str(refused.value).removeprefix(start),
    )
