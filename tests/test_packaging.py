"""The wheel, installed alone in an empty environment outside the checkout, has everything and
runs.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import hosim

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # nothing of this checkout may leak into the empty environment
    clean = {
        key: value
        for key, value in os.environ.items()
        if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    } | {"COLUMNS": "120"}
    clean |= environment
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def built(root: Path, folder: Path, *options: str, **environment: str) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *options,
        "--wheel-dir",
        folder,
        root,
        cwd=folder,
        **environment,
    )
    (made,) = folder.glob("hosim-*.whl")
    return made


@pytest.fixture(scope="module")
def pure(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the compiled loop, by the tools that are here: a few seconds."""
    return built(
        root, tmp_path_factory.mktemp("pure"), "--no-build-isolation", HOSIM_COMPILE="never"
    )


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a user builds it."""
    return built(root, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Callable[..., str]:
    """Runs the installed ``hosim`` in an empty folder; gives its stdout."""
    folder = wheel.parent
    run(sys.executable, "-m", "venv", "env", cwd=folder)
    run("env/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=folder)
    empty = folder / "elsewhere"
    empty.mkdir()
    return lambda *arguments: run(folder / "env/bin/hosim", *arguments, cwd=empty).stdout


@pytest.mark.parametrize("kind", ["pure", pytest.param("wheel", marks=pytest.mark.long)])
def test_it_contains_the_package_the_shipped_data_and_the_licence(
    root: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    names = zipfile.ZipFile(request.getfixturevalue(kind)).namelist()
    for folder in ("hardware_profiles", "notebooks", "runtimes", "workloads"):
        for path in (root / folder).iterdir():
            assert f"hosim/{folder}/{path.name}" in names
    assert {
        "hosim/__init__.py",
        "hosim/py.typed",
        "hosim/cli/main.py",
        "hosim/report/timeline.js",
    } <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "hosim",
        f"hosim-{hosim.__version__}.dist-info",
    }
    assert len(names) == len(set(names))


@pytest.mark.long
def test_uvx_runs_the_wheel(pure: Path, tmp_path: Path) -> None:
    uv = pytest.importorskip("uv")
    ran = run(uv.find_uv_bin(), "tool", "run", "--from", pure, "hosim", "--version", cwd=tmp_path)
    assert ran.stdout.strip() == f"hosim {hosim.__version__}"


@pytest.mark.long
def test_installed_alone_it_knows_what_it_ships(root: Path, installed: Callable[..., str]) -> None:
    assert installed("--version").strip() == f"hosim {hosim.__version__}"
    listed = installed("hardware", "list")
    assert all(path.stem in listed for path in (root / "hardware_profiles").glob("*.yaml"))
    assert "llama-3.1-8b-prefill-4k" in installed("workload", "list")


@pytest.mark.long
def test_installed_alone_it_compares_policies(installed: Callable[..., str]) -> None:
    arguments = (
        "llama-3.1-8b-prefill-4k",
        "--hardware",
        "h100-80gb-sxm",
        "--budget",
        "75%",
        "--json",
    )
    printed = json.loads(installed("compare-policies", *arguments))
    assert printed["format"] == "hosim.comparison/1"
    assert any(result["feasible"] for result in printed["results"])
