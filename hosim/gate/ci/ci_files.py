"""A workflow of GitHub and a hook of pre-commit that run the gate, as text.

Every pull request is checked against the branch that it is to go to: nothing has to be committed
for that. One comment says what changed, and is written anew by later commits.
"""

import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hosim.base.files import write_bytes
from hosim.errors import InputError
from hosim.gate.cases import FILES, Suite, load_suite
from hosim.gate.reports import COMMENT

_NAMED = re.compile(r"\s*hosim\s*(\[(?P<extras>[^\]]*)\])?\s*(?P<rest>(@|[=<>~!]).*)?", re.DOTALL)


def installed_from() -> str:
    """The requirement by which this hosim was installed (PEP 610): a release, or a URL. For one that
    is installed from a folder, which no other machine has, the version at the project's address;
    empty while that has none.
    """
    found = metadata.distribution("hosim")
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    url, vcs = str(direct.get("url", "")), direct.get("vcs_info", {})
    if not url:
        return f"hosim=={found.version}"
    if url.startswith("file:"):
        named = found.metadata.get_all("Project-URL") or []
        address = dict(line.split(", ", 1) for line in named).get("Repository", "")
        return address and f"hosim @ git+{address}@v{found.version}"
    return f"hosim @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"hosim @ {url}"


def with_extras(requirement: str, extras: Collection[str]) -> str:
    """The requirement with these extras, beside those that it has.

    >>> with_extras("hosim==0.1.0", ["torch"])
    'hosim[torch]==0.1.0'
    >>> with_extras("git+URL@main", ["torch"])
    'hosim[torch] @ git+URL@main'
    """
    match = _NAMED.fullmatch(requirement)
    rest = (match["rest"] or "") if match else f"@ {requirement.strip()}"
    own = match["extras"] or "" if match else ""
    listed = sorted({*filter(None, map(str.strip, own.split(","))), *extras})
    name = f"hosim[{','.join(listed)}]" if listed else "hosim"
    return f"{name} {rest}" if rest.startswith("@") else f"{name}{rest}"


WORKFLOW = ".github/workflows/hosim.yml"
HOOKS = ".pre-commit-config.yaml"

_CHECKOUT = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"
_PYTHON = "actions/setup-python@a309ff8b426b58ec0e2a45f0f869d46889d02405 # v6.2.0"
_CACHE = "actions/cache@cdf6c1fa76f9f475f3d7449005a359c84ca0f306 # v5.0.3"
_SCRIPT = "actions/github-script@ed597411d8f924073f98dfc5c65a23a2325f34cd # v8.0.0"

_TEMPLATE = """\
# Written by 'hosim ci init': what a change does to simulated peak memory, as a check and a comment.
name: hosim

on:
  pull_request:

permissions:
  contents: read

concurrency:
  group: ${{ github.workflow }}-${{ github.ref }}
  cancel-in-progress: true

jobs:
  check:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    permissions:
      contents: read
      pull-requests: write # the comment
    steps:
      - uses: {checkout}
        with:
          persist-credentials: true # the branch to compare with is fetched below
      - uses: {setup_python}
        with:
          python-version: {python}
          cache: pip
          cache-dependency-path: {workflow}
      - uses: {cache}
        with:
          path: ~/.cache/hosim
          key: hosim-${{ runner.os }}-${{ github.sha }}
          restore-keys: hosim-${{ runner.os }}-
      - name: Install
        env:
          HOSIM: {requirement}
          PIP_EXTRA_INDEX_URL: https://download.pytorch.org/whl/cpu # torch without CUDA
        run: python -m pip install "$HOSIM"{more}
      - name: Check
        env:
          BASE: ${{ github.base_ref }}
          HOSIM_CACHE_KEY: ${{ secrets.HOSIM_CACHE_KEY }} # any secret text; without it nothing is reused
        run: |
          git fetch --no-tags --depth=1 origin "$BASE"
          hosim check{config} --against FETCH_HEAD --github --summary hosim.md
      - name: Comment
        # a pull request from a fork has no right to comment; its check and its annotations are there
        if: always() && hashFiles('hosim.md') != '' && github.event.pull_request.head.repo.full_name == github.repository
        uses: {script}
        with:
          script: |
            const body = require('fs').readFileSync('hosim.md', 'utf8').slice(0, 65000)
            const {owner, repo} = context.repo
            const issue_number = context.issue.number
            const all = await github.paginate(github.rest.issues.listComments, {owner, repo, issue_number})
            const own = all.find(one => one.body.startsWith('{comment}'))
            if (own) await github.rest.issues.updateComment({owner, repo, comment_id: own.id, body})
            else await github.rest.issues.createComment({owner, repo, issue_number, body})
"""

_HOOK = """\
  - repo: local
    hooks:
      - id: hosim-check
        name: hosim check
        entry: sh -c 'exec hosim check{config} --against "${PRE_COMMIT_FROM_REF:-HEAD}"'
        language: system
        pass_filenames: false
        stages: [pre-push]
        files: {files}
"""


@dataclass(frozen=True, slots=True)
class CiFiles:
    """The text of :data:`WORKFLOW`, empty for none, and of a repository's part of :data:`HOOKS`."""

    workflow: str
    hook: str


def ci_files(suite: Suite, root: Path, requirement: str, python: str) -> CiFiles:
    """The files for the cases of a suite in the repository ``root``, with hosim by its requirement
    and a version of Python. Without a requirement there is no workflow.
    """
    config = Path(suite.source).resolve().relative_to(root.resolve())
    extras = {"torch" for case in suite.cases if case.entry is not None}
    extras |= {"onnx" for case in suite.cases if (case.workload or "").endswith(".onnx")}
    said = {
        "checkout": _CHECKOUT,
        "setup_python": _PYTHON,
        "cache": _CACHE,
        "script": _SCRIPT,
        "python": json.dumps(python),
        "workflow": WORKFLOW,
        "requirement": json.dumps(with_extras(requirement, extras)),
        "more": _also_installed(root),
        "config": ""
        if config.as_posix() == "hosim.toml"
        else f" --config {_word(config.as_posix())}",
        "comment": COMMENT,
        "files": f"'{_files(suite, config.parent)}'",
    }
    return CiFiles(_filled(_TEMPLATE, said) if requirement else "", _filled(_HOOK, said))


def _filled(template: str, said: dict[str, str]) -> str:
    """The template with its ``{name}``; other braces are GitHub's and JavaScript's own."""
    return re.sub(r"\{(\w+)\}", lambda match: said.get(match[1], match[0]), template)


def _word(text: str) -> str:
    """A path as a word of a shell, inside single quotes as well."""
    return re.sub(r"[^\w./-]", lambda match: f"\\{match[0]}", text)


def _also_installed(root: Path) -> str:
    """The packages that an entry of the repository imports: its requirements, or the project itself."""
    from hosim.io.gate_files import read_toml

    if (root / "requirements.txt").is_file():
        return " -r requirements.txt"
    project = root / "pyproject.toml"
    return " ." if project.is_file() and "project" in read_toml(os.fspath(project)) else ""


def _files(suite: Suite, folder: Path) -> str:
    """The files that a case depends on, as a regular expression: packages of entries, files that
    cases name, the file of the cases.
    """
    parts = {f"{re.escape(Path(suite.source).name)}$"}
    for case in suite.cases:
        if case.entry is not None:
            package = re.escape(re.split(r"[.:]", case.entry)[0])
            parts.add(rf"{package}(/|\.py$)")
        for named in (case.workload, case.hardware, case.plan):
            if named is not None and os.path.exists(os.path.join(case.folder, named)):
                parts.add(f"{re.escape(Path(named).as_posix())}$")
    within = "" if folder == Path() else f"{re.escape(folder.as_posix())}/"
    escaped = "|".join(sorted(parts)).replace("'", "''")  # for a scalar of YAML in single quotes
    return f"^{within}({escaped})"


def begin_cases(config: Path | None, entry: str, hardware: str) -> Path:
    """Write a file of cases with one case, named after the package of its entry; returns its path.
    Raises :class:`InputError` if it is there, and for an entry that cannot be one.
    """
    path = config or Path(FILES[0])
    if path.exists():
        raise InputError("it is there already: add a case to it", source=os.fspath(path))
    root_of(path)
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in {"entry": entry, "hardware": hardware}.items()
    ]
    name = re.split(r"[.:]", entry)[0]
    write_bytes(path, "\n".join([f"[cases.{name}]", *lines, ""]).encode())
    try:
        load_suite(path)
    except InputError:
        path.unlink()
        raise
    return path


def root_of(config: str | Path) -> Path:
    """The repository that a file of cases is in. Raises :class:`InputError` if it is in none."""
    folder = Path(config).resolve().parent
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            return root
    raise InputError(
        "expected a file in a repository of git, which CI could check out: run 'git init'",
        source=os.fspath(config),
    )


def write_ci_files(files: CiFiles, root: Path) -> tuple[list[str], str]:
    """Write the workflow, and the configuration of pre-commit if there is none; returns what was
    written, as told to people, and the hook that is to be added by hand, if any.

    Raises :class:`InputError` for another workflow of that name.
    """
    workflow, hooks = root / WORKFLOW, root / HOOKS
    texts = {workflow: files.workflow} if files.workflow else {}
    if texts and workflow.exists() and workflow.read_text(encoding="utf-8") != files.workflow:
        raise InputError(
            "there is another file of that name: move it away first",
            source=os.path.relpath(workflow),
        )
    there = hooks.read_text(encoding="utf-8") if hooks.exists() else None
    if there is None:
        texts[hooks] = f"repos:\n{files.hook}"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    by_hand = there is not None and files.hook not in there
    return [os.path.relpath(path) for path in texts], files.hook if by_hand else ""
