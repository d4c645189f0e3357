"""``hosim doctor`` and ``hosim notebooks``."""

import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.report.listed import EXTRAS, TRIED
from hosim.version import __version__


def fake_packages(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """What is installed, in place of what is."""

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    needs = [
        "numpy>=1.26",
        "torch>=2.13; extra == 'torch'",
        "transformers>=5; extra == 'torch'",
        "onnx>=1.22; extra == 'onnx'",
    ]
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: needs)


def test_the_doctor_says_what_is_missing_for_what(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """transformers is too old, ortools, distributed, pyarrow and ipywidgets are not there, and 2.130.0 is more
    than 2.13.
    """
    fake_packages(
        monkeypatch,
        {"numpy": "2.0", "torch": "2.130.0+cpu", "transformers": "4.57", "onnx": "1.22.0rc1"},
    )
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").write_bytes(b"12345")
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert (found["hosim"], found["packages"]) == (__version__, {"numpy": "2.0"})
    assert found["at"] == str(Path(hosim.__file__).resolve().parent)
    assert found["cache"] == {"folder": str(tmp_path), "files": 1, "bytes": 5}
    assert {extra["extra"]: extra["missing"] for extra in found["extras"]} == {
        "torch": ["transformers>=5"],
        "onnx": [],
        "solver": ["ortools"],
        "dask": ["distributed"],
        "parquet": ["pyarrow"],
        "widgets": ["ipywidgets"],
    }
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "120"}).stdout
    assert "pip install 'hosim[torch,solver,dask,parquet,widgets]'" in shown
    tried = " to ".join(TRIED["torch"])
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "250"}).stdout
    assert f"transformers 4.57; tried with torch {tried}, transformers " in shown
    assert "; missing: transformers>=5 " in shown


def test_the_extras_are_those_of_the_package(root: Path) -> None:
    import tomllib

    given = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {
        extra: {requirement.partition(">=")[0] for requirement in given[extra]}
        for extra in given.keys() - {"dev", "docs"}
    }
    assert {extra: set(names) for extra, (names, _) in EXTRAS.items()} == packages


def test_the_lowest_version_that_was_tried_is_the_least_that_is_asked_for(root: Path) -> None:
    import tomllib

    asked = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    least = dict(requirement.split(">=") for requirement in asked["torch"])
    assert least.keys() == TRIED.keys()
    for package, (lowest, newest) in TRIED.items():
        assert f"{lowest}.".startswith(f"{least[package]}.")
        assert lowest != newest


def test_the_notebooks_are_written_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = {path.name: path.read_bytes() for path in (root / "notebooks").iterdir()}
    count = sum(name.endswith(".ipynb") for name in there)
    for _ in range(2):
        done = CliRunner().invoke(app, ["notebooks", "a/b"])
        assert (done.exit_code, done.stdout) == (0, "")
        assert {path.name: path.read_bytes() for path in Path("a/b").iterdir()} == there
    assert (
        done.stderr
        == f"wrote {count} notebooks to a/b; jupyter lab a/b/{min(there)} opens the first "
        "one\n"
    )
    own = Path("a/b") / min(there)
    own.write_text("mine")
    done = CliRunner().invoke(app, ["notebooks", "a/b"])
    assert (done.exit_code, own.read_text()) == (2, "mine")
    assert (
        done.stderr
        == f"error: {own}: there is another file of that name: move it away, or name another "
        "folder\n"
    )
