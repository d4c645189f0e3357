"""The GitHub Action and the pre-commit hook run commands that there are; the action's script is run
as it stands.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_toys import write_config

from hosim.errors import InputError
from hosim.gate import graph_of_entry, load_suite, write

pytestmark = pytest.mark.slow


@pytest.fixture
def step(root: Path) -> dict[str, Any]:
    """The last step of the action."""
    action = yaml.safe_load((root / ".github/actions/check/action.yml").read_text())
    *_, last = action["runs"]["steps"]
    assert {
        name for name in action["inputs"] if f"inputs.{name}" not in str(action["runs"])
    } == set()
    return dict(last)


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command beside a program ``hosim`` of this interpreter."""
    program = folder / "bin" / "hosim"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nfrom hosim.cli.main import main\nif __name__ == '__main__':\n    "
        "main()\n"
    )
    program.chmod(0o755)
    here = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOSIM_CACHE": str(folder / "kept"),
        **environment,
    }
    here["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=here, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_action_passes_annotates_and_fails(step: dict[str, Any], tmp_path: Path) -> None:
    write_config(tmp_path)
    write(load_suite(tmp_path / "hosim.toml"))
    script = ["bash", "-e", "-o", "pipefail", "-u", "-c", step["run"]]
    told = tmp_path / "summary.md"
    given = {"HOSIM_CONFIG": "", "HOSIM_ARGUMENTS": "--jobs 1", "GITHUB_STEP_SUMMARY": str(told)}
    assert set(step["env"]) == {"HOSIM_CONFIG", "HOSIM_ARGUMENTS", "HOSIM_CACHE_KEY"}
    passed = run(script, tmp_path, **given)
    assert passed.returncode == 0, passed.stderr
    assert "2 same" in told.read_text()
    (tmp_path / "hosim-baselines" / "planned.toml").unlink()
    (tmp_path / "hosim.toml").rename(tmp_path / "my cases.toml")
    failed = run(
        script, tmp_path, **given | {"HOSIM_CONFIG": "my cases.toml", "HOSIM_ARGUMENTS": ""}
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("::error file=my cases.toml,line=6,title=planned%3A missing")


@pytest.mark.long
def test_the_hook_runs_the_check(root: Path, tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    write_config(tmp_path)
    ended = run(hook["entry"].split(), tmp_path)
    assert ended.returncode == 1
    assert "no baseline" in ended.stdout


def test_the_action_installs_what_an_entry_needs(root: Path, tmp_path: Path) -> None:
    """pip is a stand-in that prints its arguments; that there are these extras is what
    pyproject.toml says.
    """
    action = yaml.safe_load((root / ".github/actions/check/action.yml").read_text())
    install = next(step for step in action["runs"]["steps"] if step.get("name") == "Install hosim")
    assert action["inputs"]["extras"]["default"] == "torch"
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)

    def installed(extras: str, requirements: str) -> list[str]:
        given = {"HOSIM_SOURCE": "/a b", "HOSIM_EXTRAS": extras, "HOSIM_REQUIREMENTS": requirements}
        assert set(given) | {"PIP_EXTRA_INDEX_URL"} == set(install["env"])
        said = run(
            ["bash", "-e", "-o", "pipefail", "-u", "-c", install["run"]], tmp_path, **given
        ).stdout.splitlines()
        assert said[:4] == ["-m", "pip", "install", "--quiet"]
        return said[4:]

    assert installed("torch", "") == ["/a b[torch]"]
    assert installed("", "my list.txt") == ["/a b", "-r", "my list.txt"]
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"torch", "onnx"} <= set(known)


@pytest.mark.long
def test_the_recipe_of_gitlab_installs_torch_and_writes_what_it_keeps(
    root: Path, tmp_path: Path
) -> None:
    text = re.search(
        r'```yaml title=".gitlab-ci.yml"\n(.*?)```', (root / "docs/ci.md").read_text(), re.DOTALL
    )
    assert text is not None
    job = yaml.safe_load(text[1])["hosim"]
    install, check = job["script"]
    assert install == 'pip install "hosim[torch]@git+URL"'
    write_config(tmp_path)
    write(load_suite(tmp_path / "hosim.toml"))
    ended = run(["bash", "-e", "-c", check], tmp_path)
    assert ended.returncode == 0, ended.stderr
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((tmp_path / name).stat().st_size > 100 for name in kept)


def test_an_entry_without_its_package_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacks_torch.py").write_text("import torch\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"torch.*; pip install 'hosim\[torch\]' installs it$"):
        graph_of_entry("lacks_torch:example", str(tmp_path))
