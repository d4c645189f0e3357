"""Comparison with another revision in git, and where a review shows a case."""

import os
import subprocess
from pathlib import Path

import pytest
from gate_toys import machine
from rendered import facts

from hosim.errors import InputError
from hosim.gate import check, load_suite
from hosim.io import save_hardware

CASES = (
    '[cases.net]\nentry = "against_shop.nets:net"\nhardware = "small.yaml"\npolicy = "resident"\n'
)
MORE = (
    '\n[cases.more]\nentry = "against_shop.nets:net"\nhardware = "small.yaml"\npolicy = '
    '"memory_peak"\n'
)
NETS = """
from hosim import GraphBuilder

SIZE = 100


def net():
    b = GraphBuilder("net")
    b.tensor("w", SIZE, "parameter")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    return b.build()
"""


def git(folder: Path, *arguments: str) -> None:
    own = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, env=own, capture_output=True
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository with a case, committed, whose model is twice as large in the working folder."""
    folder = tmp_path / "repository" / "gate"
    (folder / "against_shop").mkdir(parents=True)
    (folder / "against_shop" / "__init__.py").touch()
    (folder / "against_shop" / "nets.py").write_text(NETS)
    save_hardware(machine(), folder / "small.yaml")
    (folder / "hosim.toml").write_text(CASES)
    git(folder.parent, "init", "-b", "main")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-m", "one")
    (folder / "against_shop" / "nets.py").write_text(NETS.replace("100", "200"))
    return folder


def test_what_is_not_committed_is_compared_with_a_revision(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSIM_CACHE_KEY", "k")
    kept = tmp_path / "kept"
    (shop / "hosim.toml").write_text(CASES + MORE)
    for _ in range(2):  # measured, then from what was kept
        worse, new = check(load_suite(shop / "hosim.toml"), against="main", kept=kept)
        assert (worse.verdict, new.verdict, new.note) == ("regression", "new", "not at main")
        assert worse.explanation[0] == "`w` (parameter) has 200 B, had 100 B (doubled)"
        assert list(map(set, worse.curves)) == [{100}, {200}]  # committed baselines keep none
        assert worse.place == ((shop / "against_shop" / "nets.py").as_posix(), 7)
        (text,) = kept.glob("*")
        assert b"case = " in text.read_bytes()
        os.utime(text, ns=(0, 0))
    assert text.stat().st_mtime_ns == 0
    assert not (shop / "hosim-baselines").exists()
    (shop / "hosim.toml").write_text(MORE)
    new, gone = check(load_suite(shop / "hosim.toml"), against="main")
    assert (gone.case, gone.verdict, facts(gone.note, "main")) == ("net", "drift", "main")
    assert not new.fails()
    assert not gone.fails()


def test_what_is_wrong_with_a_revision_is_one_line(shop: Path, tmp_path: Path) -> None:
    suite = load_suite(shop / "hosim.toml")
    with pytest.raises(InputError, match="no revision 'nope'; expected a branch, tag or commit"):
        check(suite, against="nope")
    with pytest.raises(InputError, match="no revision '--help'"):
        check(suite, against="--help")
    outside = tmp_path / "hosim.toml"
    outside.write_text(CASES.replace("small.yaml", "h100"))
    with pytest.raises(InputError, match="not a git repository"):
        check(load_suite(outside), against="main")
    git(shop.parent, "rm", "-rf", "--cached", "gate/hosim.toml")
    git(shop.parent, "commit", "-m", "two")
    (new,) = check(suite, against="main")
    assert (new.verdict, new.note) == ("new", "not at main: it has no gate/hosim.toml")
