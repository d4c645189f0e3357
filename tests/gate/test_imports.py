"""Graphs kept by content: never stale, and safe to damage or to delete."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from gate_toys import machine, put, step

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.gate import imports
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
    first = imports.graph_of_file(source, kept)
    (file,) = kept.iterdir()
    monkeypatch.setattr("hosim.io.load_any", lambda path: pytest.fail("imported again"))
    assert imports.graph_of_file(source, kept) == first == step()
    assert list(kept.iterdir()) == [file]


def test_its_name_is_a_digest_of_code_name_and_content(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder, all of its files in the order of their paths; each with its name."""
    monkeypatch.setattr(imports, "_code", lambda: "code")
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    part = b"\0step.json\0" + hashlib.sha256(source.read_bytes()).digest()
    assert [file.name for file in kept.iterdir()] == [hashlib.sha256(b"code" + part).hexdigest()[:32]]
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    for name in ("b/a", "a"):
        (folder / name).write_text(name)
    monkeypatch.setattr("hosim.io.load_any", lambda path: step())
    imports.graph_of_file(folder, kept)
    parts = b"".join(b"\0folder/" + name + b"\0" + hashlib.sha256(name).digest() for name in (b"a", b"b/a"))
    assert (kept / f"{hashlib.sha256(b'code' + parts).hexdigest()[:32]}").is_file()


def test_a_file_that_cannot_be_read_is_the_importers_to_refuse(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        imports.graph_of_file(tmp_path / "none.json", tmp_path / "kept")


def test_where_graphs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert imports.kept_in() == tmp_path / "own"
    monkeypatch.delenv("HOSIM_CACHE")
    assert imports.kept_in() == tmp_path / "cache" / "hosim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert imports.kept_in() == tmp_path / ".cache" / "hosim"


def test_what_an_entry_may_raise_is_one_short_line(tmp_path: Path) -> None:
    def raised(code: str) -> str:
        name = f"gate_entry_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(code)
        with pytest.raises(InputError) as refused:
            imports.graph_of_entry(f"{name}:f", str(tmp_path))
        return str(refused.value).partition(": ")[2]

    assert raised("def f(): raise ValueError('x' * 300)") == f"raised ValueError: {'x' * 200}"
    assert raised("def f(): raise ValueError(' \\n ')") == "raised ValueError: ValueError"
    assert raised("def f(): raise ValueError('one\\ntwo')") == "raised ValueError: one"
    assert raised("g = 3") == "module gate_entry_3 has no 'f'"
    expected = "expected the function to return a model and its example inputs, or a hosim.Graph"
    assert raised("def f(): return 1, 2, 3") == raised("def f(): return [1, 2]") == expected
    assert raised("from hosim.errors import InputError\ndef f(): raise InputError('own', source='here')") == "own"
    assert str(tmp_path) not in sys.path


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


def test_a_graph_that_somebody_else_put_there_is_not_believed(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    (file,) = kept.iterdir()
    own = file.read_bytes()
    save_workload(step(2), file.with_name("other.json"))
    other = file.with_name("other.json").read_bytes()
    for forged in (other, own.partition(b"\n")[0] + b"\n" + other, own.replace(b"step", b"stop")):
        assert forged != own
        file.write_bytes(forged)
        assert imports.graph_of_file(source, kept) == step()
        assert file.read_bytes() == own


def test_a_graph_under_the_name_of_another_is_not_believed(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    (first,) = kept.iterdir()
    save_workload(step(2), source)
    imports.graph_of_file(source, kept)
    (second,) = set(kept.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert imports.graph_of_file(source, kept) == step(2)


def test_the_key_is_the_users_alone(source: Path, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    imports.graph_of_file(source, kept)
    assert key.stat().st_mode & 0o777 == 0o600
    (file,) = kept.iterdir()
    key.chmod(0o644)  # others may have read it: nothing is believed, and nothing is kept
    file.write_bytes(b"")
    assert imports.graph_of_file(source, kept) == step()
    assert file.read_bytes() == b""
    monkeypatch.setenv("HOSIM_CACHE_KEY", "a secret of the pipeline")
    assert imports.graph_of_file(source, kept) == step()
    assert file.read_bytes() != b""
