"""Graphs kept by content: never stale, and safe to damage or to delete."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gate_toys import machine, put, step

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.gate import graph_of_entry, graph_of_file, kept_in
from hosim.graph import Graph
from hosim.io import save_workload


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the key with which graphs are signed, which this test alone has."""
    monkeypatch.delenv("HOSIM_CACHE_KEY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hosim" / "cache.key"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    put(tmp_path, Plan(step()), machine(), offloads=False)
    return tmp_path / "step.json"


def test_it_is_imported_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    first = graph_of_file(source, kept)
    (file,) = kept.iterdir()
    monkeypatch.setattr("hosim.io.load_any", lambda path: pytest.fail("imported again"))
    assert graph_of_file(source, kept) == first == step()
    assert list(kept.iterdir()) == [file]


@pytest.mark.usefixtures("key")
def test_its_name_is_a_digest_of_name_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder, all of its files and their names, whatever the order in which they were written,
    and wherever it lies.
    """
    monkeypatch.setattr("hosim.io.load_any", lambda path: step())
    kept = tmp_path / "kept"

    def name_of(place: str, **files: str) -> str:
        folder = tmp_path / place / "folder"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content)
        before = {file.name for file in kept.iterdir()} if kept.exists() else set[str]()
        graph_of_file(folder, kept)
        new = {file.name for file in kept.iterdir()} - before
        return new.pop() if new else ""

    first = name_of("0", a="a", b="b")
    assert len(first) == 32
    assert name_of("1", b="b", a="a") == ""
    others = [
        {"a": "a", "c": "b"},
        {"a": "b", "b": "a"},
        {"a": "a", "b": "bb"},
        {"a": "a"},
        {"a": "a", "b": "b", "c": ""},
        {"ab": "ab"},
    ]
    assert all(name_of(f"{k + 2}", **files) for k, files in enumerate(others))


def test_a_file_that_cannot_be_read_is_the_importers_to_refuse(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        graph_of_file(tmp_path / "none.json", tmp_path / "kept")


def test_where_graphs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kept_in() == tmp_path / "own"
    monkeypatch.delenv("HOSIM_CACHE")
    assert kept_in() == tmp_path / "cache" / "hosim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_in() == tmp_path / ".cache" / "hosim"


def test_what_an_entry_may_raise_is_one_short_line(tmp_path: Path) -> None:
    def raised(code: str) -> str:
        name = f"gate_entry_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{name}.py").write_text(code)
        with pytest.raises(InputError) as refused:
            graph_of_entry(f"{name}:f", str(tmp_path))
        return str(refused.value).partition(": ")[2]

    assert raised("def f(): raise ValueError('x' * 300)") == f"raised ValueError: {'x' * 200}"
    assert raised("def f(): raise ValueError(' \\n ')") == "raised ValueError: ValueError"
    assert raised("def f(): raise ValueError('one\\ntwo')") == "raised ValueError: one"
    assert raised("g = 3") == "module gate_entry_3 has no 'f'"
    expected = (
        "expected the function to return a model and its example inputs (and the loss and the "
        "optimizer, for a training step), or a hosim.Graph"
    )
    assert raised("def f(): return 1, 2, 3") == raised("def f(): return [1, 2]") == expected
    assert (
        raised(
            "from hosim.errors import InputError\ndef f(): raise InputError('own', source='here')"
        )
        == "own"
    )
    assert str(tmp_path) not in sys.path


def test_another_content_or_another_torch_is_another_graph(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    save_workload(step(2), source)
    assert graph_of_file(source, kept) == step(2)
    code = (
        "import sys; from importlib import metadata; from pathlib import Path; metadata.version = "
        "lambda name: 'another'; "
        "from hosim.gate import graph_of_file; graph_of_file(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, source, kept], check=True)
    assert len(list(kept.iterdir())) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"{",
        b'{"format": "hosim.workload/1", "name": "x"}'[:20],
        b'{"format": "hosim.plan/1"}',
    ],
)
def test_a_damaged_one_is_imported_again(source: Path, tmp_path: Path, content: bytes) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert graph_of_file(source, kept) == step()
    assert file.read_bytes() == whole


def test_a_folder_that_is_gone_or_cannot_be_written_to_costs_only_time(
    source: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    shutil.rmtree(kept)
    assert graph_of_file(source, kept) == step()
    no_folder = tmp_path / "file"
    no_folder.write_text("x")
    loaded: Graph = graph_of_file(source, no_folder / "kept")
    assert loaded == step()


def test_a_graph_that_somebody_else_put_there_is_not_believed(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    (file,) = kept.iterdir()
    own = file.read_bytes()
    save_workload(step(2), file.with_name("other.json"))
    other = file.with_name("other.json").read_bytes()
    for forged in (other, own.partition(b"\n")[0] + b"\n" + other, own.replace(b"step", b"stop")):
        assert forged != own
        file.write_bytes(forged)
        assert graph_of_file(source, kept) == step()
        assert file.read_bytes() == own


def test_a_graph_under_the_name_of_another_is_not_believed(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    (first,) = kept.iterdir()
    save_workload(step(2), source)
    graph_of_file(source, kept)
    (second,) = set(kept.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert graph_of_file(source, kept) == step(2)


def test_the_key_is_the_users_alone(
    source: Path, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    graph_of_file(source, kept)
    assert key.stat().st_mode & 0o777 == 0o600
    (file,) = kept.iterdir()
    key.chmod(0o644)  # others may have read it: nothing is believed, and nothing is kept
    file.write_bytes(b"")
    assert graph_of_file(source, kept) == step()
    assert file.read_bytes() == b""
    monkeypatch.setenv("HOSIM_CACHE_KEY", "a secret of the pipeline")
    assert graph_of_file(source, kept) == step()
    assert file.read_bytes() != b""
