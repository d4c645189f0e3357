"""Which tests of ``make test`` reach which lines of hosim: made by one run of them under
coverage.py, kept, and carried over to later text.

The tests run on a copy of the tree. The map lies with that copy under ``build/mutants/map``; when
files have changed since, unchanged lines keep their tests, new lines of a function have those of
the function, and only tests whose own text is new are run again.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = ("tests/bench", "tests/mutants", "tests/test_packaging.py")
"""Tests that hold no figure of hosim's, or run it where coverage.py does not see it."""


@dataclass
class Reached:
    """``lines[path][test]`` has bit ``n`` set if the test reaches line ``n`` of the file; seconds
    are those under coverage.py.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def tests(self, path: str, mask: int) -> set[str]:
        """Who reaches any of the lines in the mask."""
        return {test for test, reached in self.lines.get(path, {}).items() if reached & mask}

    def save(self, path: Path) -> None:
        """Writes it, compressed."""
        names = list(self.seconds)
        numbers = {test: i for i, test in enumerate(names)}
        lines = {
            file: {numbers[t]: f"{mask:x}" for t, mask in reached.items()}
            for file, reached in self.lines.items()
        }
        data = {
            "tests": names,
            "seconds": list(self.seconds.values()),
            "lines": lines,
            "failed": self.failed,
        }
        with gzip.open(path, "wt", compresslevel=3) as file:
            json.dump(data, file)

    @classmethod
    def load(cls, path: Path) -> Reached:
        """Reads what :meth:`save` wrote."""
        with gzip.open(path, "rt") as file:
            data = json.load(file)
        names = data["tests"]
        lines = {
            f: {names[int(i)]: int(mask, 16) for i, mask in reached.items()}
            for f, reached in data["lines"].items()
        }
        return cls(dict(zip(names, data["seconds"], strict=True)), lines, data["failed"])


def copy_tree(root: Path, to: Path) -> Path:
    """A copy of the repository's files as they are, in ``to/tree``, with what lies beside the
    repository beside it.
    """
    tree = to / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
    beside, link = root.parent / "shared", to / "shared"
    if beside.is_dir() and not link.exists():
        link.symlink_to(beside.resolve())
    return tree


def environment(tree: Path) -> dict[str, str]:
    """That of a process that imports hosim from the copy."""
    return os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}


def update(
    root: Path, work: Path, processes: int, fresh: bool = False, stale: bool = False
) -> Reached:
    """The map for the tree as it is; runs those tests of which it knows nothing yet, unless a
    ``stale`` one will do.
    """
    place = work / "map"
    kept, known = place / "reached.json.gz", Reached()
    before = place / "tree"
    files = test_files(root)
    todo = files
    if kept.exists() and not fresh:
        known = Reached.load(kept)
        todo = [
            f
            for f in files
            if not (before / f).exists() or (before / f).read_bytes() != (root / f).read_bytes()
        ]
        same = (
            {f: unchanged(before / f, root / f) for f in todo if (before / f).exists()}
            if todo
            else {}
        )
        gone = {
            t
            for t in known.seconds
            if (f := t.partition("::")[0]) not in files
            or (f in todo and _function(t) not in same.get(f, ()))
        }
        known = carried(known if stale else _without(known, gone), before, root)
        if stale:
            return known
    tree = copy_tree(root, place / "next")
    if todo:
        known = _merged(known, record(tree, todo, place, processes, known.seconds))
    kept.unlink(missing_ok=True)  # never a map beside another text than its own
    shutil.rmtree(before, ignore_errors=True)
    tree.rename(before)
    known.save(kept)
    return known


def unchanged(before: Path, after: Path) -> set[str]:
    """Functions of a test file whose text is the same: they reach what they reached."""
    old, new = (
        {
            n.name: ast.dump(n)
            for n in ast.parse(path.read_text()).body
            if isinstance(n, ast.FunctionDef)
        }
        for path in (before, after)
    )
    return {name for name, text in new.items() if old.get(name) == text}


def _function(test: str) -> str:
    return test.partition("::")[2].partition("[")[0]


def test_files(root: Path) -> list[str]:
    """Every file of tests, but those left out."""
    files = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
    return [f for f in files if not f.startswith(LEFT_OUT)]


def record(
    tree: Path, files: list[str], place: Path, processes: int, known: Iterable[str] = ()
) -> Reached:
    """Runs test files under coverage.py, but for the tests that are known."""
    data = place / "records"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    settings = data / "coverage.ini"
    settings.write_text(
        f"[run]\nsource = {tree}/hosim\ndata_file = {data}/coverage\nparallel = true\ncontext = "
        f"${{HOSIM_MUTANTS_CONTEXT-}}\n"
        "disable_warnings = no-data-collected, module-not-measured, module-not-imported, "
        "no-sysmon, couldnt-parse\n"
    )
    (data / "known.txt").write_text("\n".join(known))
    told = {
        "COVERAGE_PROCESS_START": str(settings),
        "HOSIM_MUTANTS_RECORDS": str(data),
        "HOSIM_MUTANTS_CONTEXT": "",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        "-q",
        "--tb=short",
        "-m",
        "not long",  # what `make test` runs
        "-p",
        "no:cacheprovider",
        "-p",
        "recording",
    ]
    if processes > 1:
        command += [f"--numprocesses={processes}", "--dist=loadfile"]
    env = environment(tree) | told
    env["PYTHONPATH"] += f"{os.pathsep}{HERE}"
    with (place / "output.txt").open("w") as output:
        subprocess.run(
            command,
            cwd=tree,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    found = _read(data, tree)
    if not found.seconds and not known:
        raise SystemExit(f"no test ran: see {place / 'output.txt'}")
    if found.seconds and not found.lines:
        raise SystemExit(
            "coverage.py saw no line of hosim: install it, with its .pth file, into the "
            "environment that runs this"
        )
    return found


def _read(data: Path, tree: Path) -> Reached:
    uses: dict[str, list[str]] = {}
    found = Reached()
    for path in sorted(data.glob("records-*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            uses.setdefault(one["context"], []).extend(one["uses"])
            if one.get("test"):
                found.seconds[one["context"]] = one["seconds"]
                if one["failed"]:
                    found.failed.append(one["context"])
    masks: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted(data.glob("coverage.*")):
        if path.name == "coverage.ini":
            continue
        with sqlite3.connect(path) as base:
            query = (
                "select file.path, context.context, numbits from line_bits "
                "join file on file.id = file_id join context on context.id = context_id"
            )
            for file, context, bits in base.execute(query):
                masks[context][str(Path(file).relative_to(tree))] |= int.from_bytes(bits, "little")
    for test in found.seconds:
        for context in _closure(test, uses):
            for file, mask in masks.get(context, {}).items():
                reached = found.lines.setdefault(file, {})
                reached[test] = reached.get(test, 0) | mask
    return found


def _closure(context: str, uses: dict[str, list[str]]) -> set[str]:
    seen, todo = {context}, [context]
    while todo:
        for other in uses.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


# -- what has changed since
# --------------------------------------------------------------------------------------------


def _without(known: Reached, tests: set[str]) -> Reached:
    lines = {
        file: {t: mask for t, mask in reached.items() if t not in tests}
        for file, reached in known.lines.items()
    }
    return Reached(
        {t: s for t, s in known.seconds.items() if t not in tests},
        lines,
        [t for t in known.failed if t not in tests],
    )


def _merged(known: Reached, new: Reached) -> Reached:
    files = {*known.lines, *new.lines}
    lines = {f: known.lines.get(f, {}) | new.lines.get(f, {}) for f in sorted(files)}
    return Reached(known.seconds | new.seconds, lines, known.failed + new.failed)


def carried(known: Reached, before: Path, after: Path) -> Reached:
    """The map of one text of hosim as a map of another, of which files may have other names and
    lines other numbers.
    """
    old = {
        str(p.relative_to(before)): p.read_text() for p in sorted((before / "hosim").rglob("*.py"))
    }
    new = {
        str(p.relative_to(after)): p.read_text() for p in sorted((after / "hosim").rglob("*.py"))
    }
    lines: dict[str, dict[str, int]] = {}
    for file, source in _pairs(old, new):
        reached = known.lines.get(source, {})
        lines[file] = (
            reached if old[source] == new[file] else _moved(reached, old[source], new[file])
        )
    return Reached(known.seconds, lines, known.failed)


def _pairs(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Files and what they were: the same name, or else the file most like it of those that are
    gone.
    """
    gone = {f: set(text.splitlines()) for f, text in old.items() if f not in new}
    for file, text in new.items():
        if file in old:
            yield file, file
            continue
        lines = set(text.splitlines())
        shares = {
            f: len(lines & others) / max(1, len(lines | others)) for f, others in gone.items()
        }
        best = max(shares, key=lambda f: shares[f], default=None)
        if best is not None and shares[best] > 0.2:
            yield file, best


def _moved(reached: dict[str, int], old: str, new: str) -> dict[str, int]:
    now = {}
    was, text = old.splitlines(), new.splitlines()
    for a, b, size in SequenceMatcher(None, was, text, autojunk=False).get_matching_blocks():
        now |= {b + k + 1: a + k + 1 for k in range(size)}
    sources: list[tuple[int, list[int]]] = [(line, [there]) for line, there in now.items()]
    for first, last in _functions(new):
        kept = [now[line] for line in range(first, last + 1) if line in now]
        sources += [(line, kept) for line in range(first, last + 1) if line not in now]
    bits = [(1 << line, _mask(there)) for line, there in sources]
    return {
        test: sum_
        for test, mask in reached.items()
        if (sum_ := _sum(bit for bit, there in bits if mask & there))
    }


def _functions(source: str) -> list[tuple[int, int]]:
    """First and last line of each function, innermost last; their ranges may lie in one another."""
    found = [
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [(n.lineno, n.end_lineno or n.lineno) for n in found]


def _mask(lines: Iterable[int]) -> int:
    return _sum(1 << line for line in lines)


def _sum(bits: Iterable[int]) -> int:
    total = 0
    for bit in bits:
        total |= bit
    return total
