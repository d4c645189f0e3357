"""The mutants drawn are small errors of the kinds meant, and the map finds the tests that reach
them.
"""

import ast
import json
import random
import subprocess
from pathlib import Path

import pytest
from operators import differs, mutants_of
from reached import Reached, carried, record
from reaching import Reaching
from waits_and_bounds import ERRORS, LOWER

MODULE = '''
"""Not this 1."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LIMIT: int = 2
SIZE = 7

def total(a: int, b: int = 3) -> int:
    """Nor this 2."""
    kept = [a]
    if a < b and not kept:
        kept[0] = min(a, (b + 1) * 2)
    kept.append(sorted(kept, key=abs)[0])
    return kept[-1] if a else f"{a + 1} {b}"
'''


def changed(line: int) -> set[str]:
    found = [m for m in mutants_of("hosim/toy.py", MODULE) if m.line == line and differs(m, MODULE)]
    return {m.apply(MODULE).split("\n")[line - 1].strip() for m in found}


@pytest.mark.parametrize("line", [2, 3, 4, 5, 9, 10])
def test_what_is_left_alone(line: int) -> None:
    assert not changed(line)


def test_every_kind_of_change() -> None:
    assert changed(6) == {"SIZE = 8"}
    assert changed(8) == {"def total(a: int, b: int = 4) -> int:"}
    assert changed(11) == {
        "if a <= b and not kept:",
        "if a >= b and not kept:",
        "if a < b or not kept:",
        "if a < b and (kept):",
    }
    after = {
        "max(a, (b + 1) * 2)",
        "min(a, (b - 1) * 2)",
        "min(a, (b + 2) * 2)",
        "min(a, (b + 1) // 2)",
        "min(a, (b + 1) * 3)",
    }
    assert changed(12) == {
        "pass",
        *(f"kept[0] = {value}" for value in after),
        "kept[1] = min(a, (b + 1) * 2)",
        "kept[-1] = min(a, (b + 1) * 2)",
    }
    assert changed(13) == {
        "pass",
        "kept.append(sorted(kept, key=abs, reverse=True)[0])",
        "kept.append(sorted(kept)[0])",
        "kept.append(sorted(kept, key=abs)[1])",
        "kept.append(sorted(kept, key=abs)[-1])",
    }
    assert changed(14) == {
        "return None",
        'return kept[0] if a else f"{a + 1} {b}"',
        "return (kept[-1])",
        'return (f"{a + 1} {b}")',
    }


def test_keywords_that_only_guard_are_left_alone_with_their_values() -> None:
    text = (
        'zip(a, b, strict=True); open(a, encoding="utf-8", newline=""); Option(help="more" if '
        'a else "less", min=0)\n'
    )
    found = {
        m.apply(text).rstrip("\n") for m in mutants_of("hosim/toy.py", text) if differs(m, text)
    }
    assert found == {
        text.replace(', newline=""', "").rstrip("\n"),
        text.replace("min=0", "min=1").rstrip("\n"),
        text.replace(", min=0", "").rstrip("\n"),
    }


@pytest.mark.long
def test_mutants_of_hosim_parse_and_differ(root: Path) -> None:
    lots = random.Random(0)
    for path in lots.sample(sorted((root / "hosim").rglob("*.py")), 12):
        source = path.read_text()
        found = mutants_of(path.name, source)
        for mutant in lots.sample(found, min(8, len(found))):
            after = mutant.apply(source)
            assert after != source
            assert not differs(mutant, source) or ast.parse(after)
            assert mutant.shown(source).count("  ->  ") == 1


def test_the_tests_of_a_line_and_of_a_constant() -> None:
    reached = Reached(
        {"one": 0.1, "two": 0.1, "broken": 0.1},
        {"a.py": {"one": 1 << 3}, "b.py": {"two": 1 << 4, "broken": 1 << 4}},
        ["broken"],
    )
    sources = {
        "a.py": "SIZE = 7\ndef f():\n    return SIZE + 1\n",
        "b.py": "from a import SIZE\n\ndef g():\n    return SIZE - 1\n",
    }
    reaching = Reaching(sources, reached)
    by_line = {
        (path, m.line): reaching.tests(m)
        for path in sources
        for m in mutants_of(path, sources[path])
    }
    assert by_line == {("a.py", 1): {"one", "two"}, ("a.py", 3): {"one"}, ("b.py", 4): {"two"}}


def test_lines_keep_their_tests_when_files_move(tmp_path: Path) -> None:
    before, after = (
        "def f(x):\n    y = x\n    return y\n",
        "Z = 1\n\ndef f(x):\n    y = x\n    y += Z\n    return y\n",
    )
    for tree, name, text in (("old", "one.py", before), ("new", "two.py", after)):
        (tmp_path / tree / "hosim").mkdir(parents=True)
        (tmp_path / tree / "hosim" / name).write_text(text)
    known = Reached({"t": 1.0, "u": 1.0}, {"hosim/one.py": {"t": 1 << 2 | 1 << 3, "u": 1 << 1}}, [])
    found = carried(known, tmp_path / "old", tmp_path / "new")
    assert found.lines == {"hosim/two.py": {"t": 1 << 4 | 1 << 5 | 1 << 6, "u": 1 << 3 | 1 << 5}}


def test_a_run_of_the_tests_that_coverage_did_not_see_is_no_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, every mutant would be one that no test reaches."""

    def tests_run(*command: object, **options: object) -> None:
        line = json.dumps(
            {"context": "t", "uses": [], "test": True, "seconds": 1.0, "failed": False}
        )
        (tmp_path / "records/records-1.jsonl").write_text(line)

    monkeypatch.setattr(subprocess, "run", tests_run)
    with pytest.raises(SystemExit, match=r"coverage\.py saw no line of hosim"):
        record(tmp_path / "tree", ["test_a.py"], tmp_path, 1)


def test_the_errors_of_waits_and_bounds_change_what_is_there(root: Path) -> None:
    assert len(set(ERRORS)) == len(ERRORS) == 26
    for error in ERRORS:
        text = (root / LOWER / error.path).read_text()
        assert error.apply(text) != text
        assert ast.parse(error.apply(text))
