"""README, CONTRIBUTING and docs/ say what is so: commands run as they stand, print what is shown,
and links lead somewhere.

The blocks of one page are run in order, in one empty folder:

- a block with a title is a file of that name;
- a ``console`` block has commands after ``$``, each with what it prints, if the page shows that
  (``...`` stands for any lines);
- a ``python`` block is executed, its names those of the page;
- in a ``sh`` block are the commands of a shell at the top of a checkout: ``make`` and its targets,
  git, pip;
- a ``text`` block is no command.

A block after ``<!-- long -->`` is run by the long tests alone. In the folder is what a reader has
of his own: :data:`OF_THE_READER`.
"""

import functools
import gzip
import importlib.util
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from doc_pages import (
    LONG,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    commands,
    inline_commands,
    links,
    without_blocks,
)
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.io import load_hardware, load_workload, schema
from hosim.io.gate_files import load_cases
from hosim.io.runtimes import load_runtime
from hosim.policies import package_of, policy_names

pytestmark = pytest.mark.slow

ILLUSTRATIVE = {
    "pip install hosim@git+URL": "the URL is the reader's",
}
"""Commands and first lines of Python blocks that are not run, with the reason."""

OF_THE_READER = {
    "recording.json": ROOT.parent / "shared" / "data" / "traces" / "h100_bert_small.json.gz"
}
"""Files that a page takes for granted, by their names: recordings of a GPU. Where one is missing,
blocks that name it are not run.
"""

IN_A_CHECKOUT = "first-policy.md"
"""The page whose folder is a checkout: its files are hosim's, and its commands run them."""

OF_A_CHECKOUT = (
    "changelog.d",
    "hosim",
    "tests",
    "docs",
    "hardware_profiles",
    "runtimes",
    "workloads",
    "pyproject.toml",
    "mkdocs.yml",
)

TIMED = "Planning + replay took"
"""How the one paragraph begins that no two runs share."""

IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]


def paragraphs(text: str) -> list[str]:
    """Paragraphs without trailing blanks, and without the one of seconds."""
    plain = "\n".join(line.rstrip() for line in text.splitlines())
    return [
        part.strip("\n")
        for part in re.split(r"\n{2,}", plain.strip("\n"))
        if not part.startswith(TIMED)
    ]


def agrees(shown: str, printed: str) -> bool:
    """Whether a command printed what is shown of it."""
    parts = ["\n\n".join(paragraphs(part)) for part in re.split(r"^\.\.\.$", shown, flags=re.M)]
    pattern = r"(?:.*\n)?".join(rf"\n*{re.escape(part)}\n+" if part else "" for part in parts)
    return re.fullmatch(pattern, "\n\n".join(paragraphs(printed)) + "\n", re.DOTALL) is not None


def test_what_agrees() -> None:
    assert agrees("a\n\nb  c", "a  \n\n\nPlanning + replay took 3 s.\n\nb  c\n")
    assert agrees("a\n...\nd", "a\nb\nc\nd")
    assert not agrees("a\n...\nd", "a\nb\nc\ne")
    assert not agrees("12 ms", "112 ms")
    assert not agrees("a", "a\nb")
    assert agrees("a\n...", "a\nb")
    assert agrees("...\n b\n...", "a\n b\n\nc")
    assert agrees("...\nb", "a\nb")
    assert not agrees("a\n...\nd", "ab\nd")


INSTALLED = ".installed"
"""Where what a page installs says so; it is on the path then, as the page's folder is."""


class Session:
    """What one page does, in a folder of its own; ``names`` are those of its Python blocks."""

    def __init__(self, folder: Path, checkout: bool = False) -> None:
        self.folder = folder
        self.checkout = checkout
        self.names: dict[str, Any] = {"__name__": "__page__"}
        for name, path in OF_THE_READER.items():
            if path.exists():
                (folder / name).write_bytes(gzip.decompress(path.read_bytes()))
        program = folder / ".bin" / "hosim"
        program.parent.mkdir()
        program.write_text(
            f"#!{sys.executable}\nfrom hosim.cli.main import main\nif __name__ == '__main__':\n   "
            " main()\n"
        )
        program.chmod(0o755)
        paths = os.pathsep.join(
            [str(folder), str(folder / INSTALLED), str(ROOT), *filter(None, sys.path)]
        )
        here = {
            "PYTHONPATH": paths,
            "COLUMNS": "120",
            "HOSIM_CACHE": str(folder / ".cache"),
            "MPLBACKEND": "agg",
        }
        search = os.pathsep.join(
            [str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        self.environment = {**os.environ, **here, "PATH": search}

    def run(self, block: Block) -> None:
        """Do what a block says."""
        missing = [
            str(path)
            for name, path in OF_THE_READER.items()
            if name in block.text and not path.exists()
        ]
        if missing:
            pytest.skip(f"no file {missing[0]}")
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            if block.title == "pyproject.toml":
                self.install(tomllib.loads(block.text)["project"])
        elif block.language == "console":
            for command in commands(block):
                if command.line not in ILLUSTRATIVE:
                    printed = self.printed(command.line)
                    if command.shown and not agrees(command.shown, printed):
                        raise AssertionError(f"{command.line} prints\n{printed}")
        elif block.language == "python" and block.text.splitlines()[0] not in ILLUSTRATIVE:
            exec(compile(block.text, f"block in line {block.line}", "exec"), self.names)

    def install(self, project: dict[str, Any]) -> None:
        """What installing a project of the page in place does: its entry points are announced, its
        packages are on the path already.
        """
        information = (
            self.folder
            / INSTALLED
            / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        )
        information.mkdir(parents=True)
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = [
            line
            for group, points in project["entry-points"].items()
            for line in (f"[{group}]", *map(" = ".join, points.items()))
        ]
        (information / "entry_points.txt").write_text("\n".join(lines))
        sys.path.append(str(self.folder / INSTALLED))

    def printed(self, line: str) -> str:
        """What a command prints on stdout. It has to end with exit code 0."""
        if re.match(r"hosim [^|&;<>$*]*$", line) and not self.checkout:
            ended = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "120"})
            code, stdout, stderr = ended.exit_code, ended.stdout, ended.stderr
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            code, stdout, stderr = done.returncode, done.stdout, done.stderr
        if code:
            raise AssertionError(f"{line} ends with exit code {code}\n{stdout}\n{stderr}")
        return stdout


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_a_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        page, tmp_path, monkeypatch, [block for block in blocks(page.read_text()) if not block.long]
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in PAGES if LONG in page.read_text()], ids=lambda page: page.name
)
def test_a_page_does_what_it_says_of_long_work_too(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(page, tmp_path, monkeypatch, blocks(page.read_text()))


def run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, listed: Iterable[Block]) -> None:
    """Do what the blocks of a page say."""
    if page.name == IN_A_CHECKOUT:
        check_out(folder)
    session = Session(folder, page.name == IN_A_CHECKOUT)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for block in listed:
        try:
            session.run(block)
        except Exception as error:
            pytest.fail(f"{page.name}:{block.line}: {type(error).__name__}: {error}", pytrace=False)


def check_out(folder: Path) -> None:
    """A copy of the checkout, with what is compiled."""
    for name in OF_A_CHECKOUT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)


def test_a_block_is_long_where_a_comment_says_so() -> None:
    found = blocks(f"{LONG}```console\n$ a\n```\n\n```console\n$ b\n```\n")
    assert [block.long for block in found] == [True, False]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_blocks_are_of_a_language_that_is_known(page: Path) -> None:
    for block in blocks(page.read_text()):
        known = {"console", "json", "python", "sh", "text", "toml", "yaml"}
        assert block.language in known, (
            f"{page.name}:{block.line}: {block.language or 'no language'}"
        )


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_shell_commands_are_such_as_there_are(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    for block in blocks(page.read_text()):
        for line in block.text.splitlines() if block.language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                named = [word for word in words[1:] if "=" not in word]
                assert set(named) <= targets, f"{page.name}:{block.line}: {line}"
            elif words and line.partition(" #")[0].strip() not in ILLUSTRATIVE:
                assert words[0] in {"git", "cd", "pip", "python3", ".", "source"}, (
                    f"{page.name}:{block.line}: {line}; use a console block"
                )


@functools.cache
def command_line() -> Any:
    """Made once: it takes longer than all that is asked of it."""
    return typer.main.get_command(app)


def known_options(words: Iterable[str]) -> tuple[set[str], list[str]]:
    """The options that the command has which ``words`` call, and the words that begin with a
    dash.
    """
    command = command_line()
    given = list(words)
    if given[0] not in command.commands and "-H" in given:  # a question without a command
        given.insert(0, "compare-policies")
    while given and hasattr(command, "commands"):
        assert given[0] in command.commands, f"no command {given[0]!r}"
        command = command.commands[given.pop(0)]
    options = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return options | {"--help", "-h"}, [
        word.partition("=")[0] for word in given if re.match(r"--?[a-z]", word, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_in_the_text_have_the_options_that_they_name(page: Path) -> None:
    text = page.read_text()
    synopses = [
        line
        for block in blocks(text)
        if block.language == "text"
        for line in block.text.splitlines()
        if line.startswith("hosim ")
    ]
    for line in inline_commands(text) + synopses:
        words = re.sub(r"[\[\]()|]", " ", line.partition("  ")[0]).split()[1:]
        options, named = known_options(words)
        assert set(named) <= options, f"{page.name}: {line}"


def test_the_page_of_the_shell_lists_every_command() -> None:
    def named(command: Any, name: str) -> list[str]:
        below = getattr(command, "commands", {})
        return [
            line for part, child in below.items() for line in named(child, f"{name} {part}")
        ] or [name]

    listed = blocks((ROOT / "docs/shell.md").read_text())[-1].text
    every = named(command_line(), "hosim")
    assert len(every) > 20
    assert {name for name in every if not re.search(rf"^{name}( |$)", listed, re.M)} == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name}: {target}"
        if page.parent == ROOT / "docs":
            assert path.is_relative_to(ROOT / "docs"), (
                f"{page.name}: {target} is not part of the site"
            )
        if anchor:
            assert anchor in anchors(path.read_text()), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_places_in_the_code_are_there(page: Path) -> None:
    """Paths, and the functions named behind a path in the same sentence or cell:
    `hosim/engine/stream.py`, `Stream.divide`.
    """
    text = without_blocks(page.read_text())
    for name in re.findall(
        r"`((?:hosim|tests|notebooks|workloads|hardware_profiles|docs)/[\w./-]*)`", text
    ):
        assert (ROOT / name).exists(), f"{page.name}: {name}"
    for path, names in re.findall(r"`(hosim/[\w/]+\.py)`((?:,| and| `[\w.]+`)+)", text):
        for name in re.findall(r"`((?:\w+\.)?(?!py`)\w+)`", names):
            for part in name.split("."):
                assert re.search(rf"(?:def|class) {part}\b", (ROOT / path).read_text()), (
                    f"{page.name}: {name} in {path}"
                )


def test_files_of_the_table_of_our_own_code_are_there() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## What is written by hand")[2]
    named = re.findall(r"`([\w/]+\.(?:py|js|pxd))`", table.partition("\n## ")[0])
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists() or [*(ROOT / "hosim").rglob(name)], name


OF_TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: page.name)
def test_dotted_names_resolve(page: Path) -> None:
    """Modules, functions, classes, fields: `hosim.Result.makespan_ns`. The changelog names what has
    gone.
    """
    for name in re.findall(r"`(hosim(?:\.\w+)+)(?:\([^`]*\))?`", without_blocks(page.read_text())):
        if name.rpartition(".")[2] not in NO_NAMES:
            assert resolves(name), f"{page.name}: {name}"


NO_NAMES = {"toml", "NAME"}
"""Last parts of what looks like a name in the code and is none: a file, and a placeholder."""


def resolves(name: str) -> bool:
    """Whether the façades have a dotted name."""
    *path, last = name.split(".")
    if len(path) > 1 and not resolves(".".join(path)):
        return False
    try:
        owner = pkgutil.resolve_name(".".join(path))
        return (
            hasattr(owner, last)
            or last in getattr(owner, "__dataclass_fields__", {})
            or bool(import_module(name))
        )
    except ImportError:
        return False


def test_names_that_are_not_there_do_not_resolve() -> None:
    assert resolves("hosim.result.Stall")
    assert resolves("hosim.engine.reference.Simulation")
    assert resolves("hosim.Result.makespan_ns")
    assert not resolves("hosim.Result.makespan")
    assert not resolves("hosim.results.Stall")


def test_the_picture_of_the_architecture_fits_and_names_what_is_there() -> None:
    picture, *_ = [
        block.text
        for block in blocks((ROOT / "docs/architecture.md").read_text())
        if block.language == "text"
    ]
    assert max(map(len, picture.splitlines())) <= 80
    named = set(re.findall(r"[\w*]+(?:/|\.py)", picture)) - {"docs/"}
    assert len(named) > 15
    for name in named:
        there = [
            *(ROOT / "hosim").glob(f"{name}"),
            *(ROOT / "hosim/engine").glob(name),
            *ROOT.glob(name),
        ]
        assert there, name


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_tests_that_are_named_are_there(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), (
            f"{page.name}: {path}::{name}"
        )


def test_every_rule_says_where_it_is_from_where_it_is_and_what_holds_it() -> None:
    text = (ROOT / "docs/contract.md").read_text().partition("## What always holds")[0]
    _, *rules = re.split(r'<a id="rule-\d+"></a>', text)
    assert len(rules) > 20
    for rule in rules:
        heading = rule.strip().splitlines()[0]
        assert re.findall(r"^- \*(\w+)\.\*", rule, re.M)[-3:] == ["Origin", "Code", "Tests"], (
            heading
        )
        *_, code, tests = re.split(r"^- \*\w+\.\*", rule, flags=re.M)
        assert re.search(r"`hosim/[\w/]+\.py`", code), heading
        assert re.search(r"`tests/[\w/]+\.py::\w+`", tests), heading


def test_the_table_of_rooms_has_every_room() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| floor |")[2].partition("\n\n")[0]
    rooms = {path.name for path in (ROOT / "hosim").iterdir() if (path / "__init__.py").exists()}
    assert (
        set(re.findall(r"`(\w+)/`", table))
        - {path.name for path in (ROOT / "hosim/planner").iterdir()}
        == rooms
    )


def test_rules_and_pages_that_code_cites_are_there() -> None:
    rules = {
        name
        for name in anchors((ROOT / "docs/contract.md").read_text())
        if re.fullmatch(r"rule-\d+", name)
    }
    cited = 0
    for path in [
        *(ROOT / "hosim").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
    ]:
        text = re.sub(r"\s+", " ", path.read_text())
        for numbers in re.findall(r"contract\.md, rules? ((?:\d+(?:, | and )?)+)", text):
            for number in re.findall(r"\d+", numbers):
                assert f"rule-{number}" in rules, f"{path}: rule {number}"
                cited += 1
        for name in re.findall(r"\bdocs/[a-z-]+\.md", text):
            assert (ROOT / name).exists(), f"{path}: {name}"
    assert cited > 20


def test_the_page_of_the_planner_has_a_row_for_every_policy() -> None:
    table = (ROOT / "docs/planner.md").read_text().partition("## The other policies")[2]
    rows = [
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.M)
        for name in re.findall(r"`(\w+)`", row)
    ]
    ours = {name for name in policy_names() if package_of(name) == "hosim"}
    assert sorted(rows) == sorted(ours - {"hyperoffload"})


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(named) == sorted(page.name for page in PAGES if page.parent == ROOT / "docs")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().replace(LONG, "").splitlines()) <= 150


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".github/workflows/release.yml", "vendor.github-workflows"),
        (".github/workflows/test.yml", "vendor.github-workflows"),
        (".github/actions/check/action.yml", "vendor.github-actions"),
        ("CITATION.cff", "vendor.citation-file-format"),
        (".github/ISSUE_TEMPLATE/config.yml", "vendor.github-issue-config"),
        (".github/ISSUE_TEMPLATE/bug.yml", "vendor.github-issue-forms"),
        (".github/ISSUE_TEMPLATE/request.yml", "vendor.github-issue-forms"),
        (".github/ISSUE_TEMPLATE/wrong-figure.yml", "vendor.github-issue-forms"),
    ],
)
def test_files_for_others_keep_the_published_schemas(path: str, name: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", name, path]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_workflow_runs_the_commands_of_the_readme() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    first = next(
        block for block in blocks((ROOT / "README.md").read_text()) if block.language == "sh"
    )
    told = [line.partition("#")[0].strip() for line in first.text.splitlines()]
    assert (
        [step["run"] for step in job["steps"] if "run" in step]
        == told
        == ["make demo", "make test"]
    )
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert job["strategy"]["matrix"]["python"] == [
        c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)
    ]


def test_make_demo_runs_the_command_that_the_readme_shows_for_some_policies() -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (demo,) = re.findall(r"^\.venv/bin/(hosim .*)$", recipe, re.M)
    assert f"$ {demo} --policies hyperoffload," in (ROOT / "README.md").read_text()


def test_the_readme_has_the_five_rows_of_the_accuracy_page() -> None:
    def rows(name: str) -> list[str]:
        table = (ROOT / name).read_text().partition("| what | error |")[2].partition("\n\n")[0]
        return table.splitlines()[2:]

    assert len(rows("README.md")) == 5
    assert rows("README.md") == rows("docs/accuracy.md")


TYPES = ("added", "changed", "removed", "fixed")


def test_the_changelog_has_the_form_it_names() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    (newest, *_) = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", text, re.M)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert newest == hosim.__version__ == cited[1]
    assert {heading.lower() for heading in re.findall(r"^### (.+)$", text, re.M)} <= {*TYPES}
    notes = text.partition(f"## {newest}")[2].partition("\n## ")[0]
    assert len(notes.splitlines()) <= 60, "the notes of a release fit a screen"


def test_fragments_have_names_that_the_next_release_takes() -> None:
    fragments = {path.name for path in (ROOT / "changelog.d").iterdir()} - {"README.md"}
    assert [
        name
        for name in fragments
        if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})\.md", name)
    ] == []
    assert tuple(type_["directory"] for type_ in CONFIGURED["type"]) == TYPES


CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]


@pytest.mark.skipif(importlib.util.find_spec("towncrier") is None, reason="needs the extra 'dev'")
def test_fragments_become_the_next_section(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    folder = tmp_path / CONFIGURED["directory"]
    folder.mkdir()
    (folder / "+save-on-cpu.added.md").write_text("Policy `save_on_cpu`.\n")
    (folder / "51.fixed.md").write_text("A figure.\n")
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--yes",
        "--version",
        "9.9.0",
        "--date",
        "2030-01-02",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    before, _, after = (
        (tmp_path / "CHANGELOG.md").read_text().partition("\n## 9.9.0 (2030-01-02)\n")
    )
    assert before.endswith("<!-- the next release -->\n")
    assert after.startswith(
        "\n### Added\n\n- Policy `save_on_cpu`.\n\n### Fixed\n\n- A figure. (#51)\n\n"
    )


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocstrings") is None, reason="needs the extra 'docs'"
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    page = (tmp_path / "api/index.html").read_text()
    assert "makespan_ns" in page
    assert ":class:" not in page


FORMATS = {
    block.title: block.text
    for block in blocks((ROOT / "docs/formats.md").read_text())
    if block.title
}
"""The files on the page of the formats."""


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder with the files of the page of the formats."""
    for name, text in FORMATS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def plain(value: Any) -> Any:
    """Data without what a file may leave out, and without seconds."""
    if isinstance(value, dict):
        kept = {key: plain(part) for key, part in value.items() if not key.endswith("_s")}
        return {key: part for key, part in kept.items() if part not in (0, None, {}, [])}
    return value


def test_the_result_on_the_formats_page_is_that_of_its_plan(examples: Path) -> None:
    command = ["replay", "plan.json", "toy.json", "--hardware", "toy.yaml", "--json"]
    printed = CliRunner().invoke(
        app, [str(examples / word) if "." in word else word for word in command]
    )
    assert printed.exit_code == 0
    assert plain(json.loads(printed.stdout)) == plain(json.loads(FORMATS["result.json"]))


def test_the_other_examples_on_the_formats_page_load(examples: Path) -> None:
    examples_of = {
        "toy.json",
        "toy.yaml",
        "plan.json",
        "result.json",
        "my-training-step.yaml",
        "routing.json",
        "hosim.toml",
    }
    assert set(FORMATS) == {*examples_of, "two-sockets.yaml", "mine.yaml"}
    assert (
        load_hardware(examples / "two-sockets.yaml").channel_between["ddr-far", "hbm"].name
        == "far_h2d"
    )
    assert len(load_workload(examples / "my-training-step.yaml").ops) > 100
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema("routing")).validate(json.loads(FORMATS["routing.json"]))
    assert load_runtime(examples / "mine.yaml").speed.one_row
    cases = load_cases(examples / "hosim.toml")
    assert list(cases["cases"]) == ["prefill"]
    assert list(cases["matrix"]) == ["wide"]


@pytest.mark.parametrize("name", ["workload", "hardware", "plan", "result", "runtime"])
def test_the_formats_page_has_every_key(name: str) -> None:
    def keys(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(keys, node))
        if not isinstance(node, dict):
            return set()
        return set(node.get("properties", {})) | set().union(
            *(keys(part) for part in node.values())
        )

    found = schema(name)
    named = keys(found)
    if name == "result":  # what is below its channels is for the schema to say
        channel = found["properties"]["channels"]["additionalProperties"]
        channel = (
            found["$defs"][channel["$ref"].rpartition("/")[2]] if "$ref" in channel else channel
        )
        named = set(found["properties"]) | set(channel["properties"])
    text = without_blocks((ROOT / "docs/formats.md").read_text())
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"^\|(.+?)\|", text, re.M))))
    explained |= set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert len(named) > 7
    assert named <= explained
