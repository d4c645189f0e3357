"""The workflow and the hook that ``hosim ci init`` writes."""

import json
import re
import shlex
from email.message import Message
from importlib import resources
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.gate import load_suite
from hosim.gate.ci import CiFiles, ci_files, installed_from, root_of, with_extras

URL = "git+https://example.org/hosim@0123abc"


def made(folder: Path, cases: str, **files: str) -> CiFiles:
    """The files of a repository with these cases and other files, by their names."""
    (folder / ".git").mkdir(exist_ok=True)
    place = folder / "gate files"
    place.mkdir(exist_ok=True)
    (place / "hosim.toml").write_text(cases)
    for name, text in files.items():
        (folder / f"{name.replace('_', '.')}").write_text(text)
    suite = load_suite(place / "hosim.toml")
    return ci_files(suite, root_of(suite.source), "hosim==0.1.0", "3.12")


TWO = """
[cases.shop]
entry = "shop.model:step"
hardware = "h100"
[cases.file]
workload = "it's.onnx"
hardware = "h100"
"""


def test_the_workflow_is_a_valid_one_whose_actions_are_pinned(tmp_path: Path) -> None:
    jsonschema, schemas = (pytest.importorskip(name) for name in ("jsonschema", "check_jsonschema"))
    text = made(tmp_path, TWO, requirements_txt="").workflow
    workflow = {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}
    schema = resources.files(schemas) / "builtin_schemas" / "vendor" / "github-workflows.json"
    jsonschema.validate(workflow, json.loads(schema.read_text()))
    steps = workflow["jobs"]["check"]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert len(used) == 4
    assert workflow["permissions"] == {"contents": "read"}
    by_name = {step.get("name"): step for step in steps}
    assert by_name["Install"]["env"]["HOSIM"] == "hosim[onnx,torch]==0.1.0"
    assert by_name["Install"]["run"].endswith('"$HOSIM" -r requirements.txt')
    ran = by_name["Check"]["run"].splitlines()
    asked = ["--against", "FETCH_HEAD", "--github", "--summary", "hosim.md"]
    assert shlex.split(ran[1]) == ["hosim", "check", "--config", "gate files/hosim.toml", *asked]
    # what somebody else may name reaches a shell as a variable alone
    assert "${{" not in by_name["Check"]["run"]


def test_the_hook_runs_on_push_for_files_of_cases(tmp_path: Path) -> None:
    (tmp_path / "gate files").mkdir()
    (tmp_path / "gate files" / "it's.onnx").touch()
    ((repo),) = yaml.safe_load("repos:\n" + made(tmp_path, TWO).hook)["repos"]
    (hook,) = repo["hooks"]
    assert hook["stages"] == ["pre-push"]
    shell, option, command = shlex.split(hook["entry"])
    assert (shell, option) == ("sh", "-c")
    assert shlex.split(command)[:5] == [
        "exec",
        "hosim",
        "check",
        "--config",
        "gate files/hosim.toml",
    ]
    found = re.compile(hook["files"])
    listed = ("hosim.toml", "shop/model.py", "shop.py", "it's.onnx")
    assert all(found.search(f"gate files/{name}") for name in listed)
    others = ("README.md", "gate files/shopping.py", "shop/model.py", "gate files/other.onnx")
    assert not any(found.search(name) for name in others)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("hosim", "hosim[torch]"),
        ("hosim==0.1.0", "hosim[torch]==0.1.0"),
        (f"hosim @ {URL}", f"hosim[torch] @ {URL}"),
        (f"hosim[onnx]@{URL}", f"hosim[onnx,torch] @{URL}"),
        (URL, f"hosim[torch] @ {URL}"),
        ("hosim-fork==1", "hosim[torch] @ hosim-fork==1"),
    ],
)
def test_extras_of_a_requirement(requirement: str, expected: str) -> None:
    assert with_extras(requirement, ["torch"]) == expected
    plain = expected.replace("[torch]", "").replace(",torch]", "]")
    assert with_extras(requirement, []) == plain


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        (None, "hosim==1.2"),
        ({"url": "https://example.org/hosim.whl", "archive_info": {}}, "hosim @ "
            "https://example.org/hosim.whl"),
        ({"url": "https://a.org/h", "vcs_info": {"vcs": "git", "commit_id": "0a"}}, "hosim @ "
            "git+https://a.org/h@0a"),
        ({"url": "file:///work", "dir_info": {}}, ""),
        ({"url": "file:///work", "at": "https://a.org/h"}, "hosim @ git+https://a.org/h@v1.2"),
    ],
)  # fmt: skip
def test_where_ci_installs_hosim_from(
    direct: object, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        version = "1.2"
        metadata = Message()
        if isinstance(direct, dict) and "at" in direct:
            metadata["Project-URL"] = f"Homepage, {direct['at']}/x"
            metadata["Project-URL"] = f"Repository, {direct['at']}"

        def read_text(self, name: str) -> str | None:
            return None if direct is None else json.dumps(direct)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Found())
    assert installed_from() == expected


def test_from_a_folder_there_is_no_workflow_until_it_is_said_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hosim.gate.ci.installed_from", lambda: "")
    (tmp_path / ".git").mkdir()
    done = CliRunner().invoke(app, ["ci", "init", "shop.model:step"])
    said = done.stderr.splitlines()
    assert (done.exit_code, said[:2]) == (0, ["wrote hosim.toml", "wrote .pre-commit-config.yaml"])
    assert "hosim ci init --install" in said[2]
    assert not (tmp_path / ".github").exists()
    done = CliRunner().invoke(app, ["ci", "init", "--install", URL])
    assert (done.exit_code, done.stderr) == (0, "wrote .github/workflows/hosim.yml\n")


def test_a_first_case_and_its_files_are_written_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def init(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["ci", "init", "--install", URL, *arguments])
        return done.exit_code, done.stderr + done.stdout

    assert "expected a file in a repository of git" in init("shop.model:step")[1]
    assert not (tmp_path / "hosim.toml").exists()
    (tmp_path / ".git").mkdir()
    assert init("shop.model:step")[0] == 0
    assert (tmp_path / "hosim.toml").read_text() == (
        '[cases.shop]\nentry = "shop.model:step"\nhardware = "h100-80gb-sxm"\n'
    )
    assert init()[1] == "wrote .github/workflows/hosim.yml\n"  # the same again
    assert init("shop.model:step") == (
        2, "error: hosim.toml: it is there already: add a case to it\n",
    )  # fmt: skip
    assert init("shop", "-c", "new.toml")[0] == 2
    assert not (tmp_path / "new.toml").exists()
    hooks, workflow = tmp_path / ".pre-commit-config.yaml", tmp_path / ".github/workflows/hosim.yml"
    hooks.write_text("repos: []\n")
    assert "add this to its repos\n  - repo: local\n" in init()[1]
    assert hooks.read_text() == "repos: []\n"
    workflow.write_text("name: own\n")
    assert "there is another file of that name" in init()[1]
    assert workflow.read_text() == "name: own\n"
