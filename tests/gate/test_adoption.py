"""The GitHub Action and the pre-commit hook run commands that there are; the action's script is run as it stands."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_toys import write_config

from hosim.gate.cases import load_suite
from hosim.gate.checking import write


@pytest.fixture
def step(root: Path) -> dict[str, Any]:
    """The last step of the action."""
    action = yaml.safe_load((root / ".github/actions/check/action.yml").read_text())
    *_, last = action["runs"]["steps"]
    assert {name for name in action["inputs"] if f"inputs.{name}" not in str(last)} == set()
    return dict(last)


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command beside a program ``hosim`` of this interpreter."""
    program = folder / "bin" / "hosim"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\nfrom hosim.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    program.chmod(0o755)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOSIM_CACHE": str(folder / "kept"), **environment}
    here["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=600, check=False)


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
    failed = run(script, tmp_path, **given | {"HOSIM_CONFIG": "my cases.toml", "HOSIM_ARGUMENTS": ""})
    assert failed.returncode == 1
    assert failed.stderr.startswith("::error file=hosim-baselines/planned.toml,line=1,title=planned%3A missing")


def test_the_hook_runs_the_check(root: Path, tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    write_config(tmp_path)
    ended = run(hook["entry"].split(), tmp_path)
    assert ended.returncode == 1
    assert "no baseline" in ended.stdout
