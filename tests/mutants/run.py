"""``make mutants N=300 SEED=1``: how many small errors in hosim the tests notice.

Lines are drawn at random with the seed, all over hosim, and for each one of its mutants. A mutant
is tried in a copy of the tree, by the tests that reach its line: those of the same room first, the
quickest first, until one fails. The tests run in processes forked from one that has imported the
libraries but nothing of hosim. What survives is printed, one line each, with how many tests had
reached it; all figures lie in ``build/mutants/N-SEED.json``. An interrupted run goes on where it
was unless the files drawn from have changed; ``--again`` tries only those mutants that survived
before, by the tests that there are now.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from chosen import Chosen
from operators import Mutant, differs, mutants_of
from reached import Reached, copy_tree, environment, update
from reaching import Reaching

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/mutants"
WARM = (
    "numpy",
    "pandas",
    "pytest",
    "hypothesis",
    "networkx",
    "simpy",
    "pydantic",
    "typer.testing",
    "rich.table",
    "yaml",
    "torch",
)
BATCHES_S = (2.0, 15.0, 60.0)
"""Seconds of tests in each process but the last: most mutants die in the first."""
MEMORY_BYTES = 6 << 30


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. ``by`` is the test that failed, or was stopped; ``reached`` counts
    those that run its line.
    """

    mutant: Mutant
    change: str
    state: str  # killed, timeout, survived, unreached
    by: str
    reached: int
    tried: int
    cpu_s: float

    @property
    def alive(self) -> bool:
        """Whether no test noticed."""
        return self.state in ("survived", "unreached")

    def line(self) -> str:
        """The verdict, for people."""
        left = "" if self.tried == self.reached else f" of {self.reached}"
        why = (
            "never reached by a test"
            if self.state == "unreached"
            else f"{self.tried}{left} tests reached it"
        )
        return f"{self.mutant.path}:{self.mutant.line}: {self.change}  [{why}]"


def draw(sources: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """So many lines at random, and of each a mutant at random."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path, source in sorted(sources.items()):
        for mutant in mutants_of(path, source):
            by_line.setdefault((path, mutant.line), []).append(mutant)
    lots = random.Random(seed)
    drawn: list[Mutant] = []
    for line in lots.sample(sorted(by_line), len(by_line)):
        if len(drawn) == count:
            break
        choices = lots.sample(by_line[line], len(by_line[line]))
        drawn += [m for m in choices if differs(m, sources[m.path])][:1]
    return drawn


# -- one mutant
# --------------------------------------------------------------------------------------------------


class Trial:
    """Tries mutants in one copy of the tree."""

    def __init__(self, folder: Path, reached: Reached, limit_s: float) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self.seconds, self.limit_s = reached.seconds, limit_s

    def verdict(self, mutant: Mutant, tests: set[str], number: int) -> Verdict:
        """Runs the tests until one fails that passes without the change."""
        source = (self.tree / mutant.path).read_text()
        change, begun = mutant.shown(source), _cpu_s()
        order = self._order(mutant, tests)
        left, tried = list(order), 0
        state, by = ("survived" if tests else "unreached"), ""
        while left:
            batch = self._batch(left, tried)
            with _Changed(self.tree / mutant.path, mutant.apply(source), number):
                by, stopped = self._run(batch)
            if not by:
                tried += len(batch)
                left = left[len(batch) :]
                continue
            if by in order and self._run([by])[0]:
                left = [t for t in left if t != by]  # fails without the change, too
                by = ""
                continue
            state = "timeout" if stopped else "killed"
            break
        return Verdict(mutant, change, state, by, len(tests), tried, round(_cpu_s() - begun, 2))

    def _order(self, mutant: Mutant, tests: Iterable[str]) -> list[str]:
        """Those of the mutant's room first, then the quickest; as many as the limit has time
        for.
        """
        room = f"tests/{mutant.path.split('/')[1]}/"
        listed = sorted(tests, key=lambda t: (not t.startswith(room), self.seconds[t], t))
        total, order = 0.0, []
        for test in sorted(listed, key=lambda t: self.seconds[t]):
            total += self.seconds[test] + 0.02
            if order and total > self.limit_s:
                break
            order.append(test)
        kept = set(order)
        return [t for t in listed if t in kept]

    def _batch(self, left: list[str], tried: int) -> list[str]:
        size = BATCHES_S[0] if not tried else BATCHES_S[1] if tried < 100 else BATCHES_S[2]
        total, batch = 0.0, []
        for test in left:
            total += self.seconds[test] + 0.02
            if batch and total > size:
                break
            batch.append(test)
        return batch

    def _run(self, tests: list[str]) -> tuple[str, bool]:
        """The test that failed, or "" if none did; and whether it was stopped."""
        note = self.folder / "note.txt"
        note.write_text("")
        child = os.fork()
        if not child:
            try:
                self._child(tests, note)
            finally:
                os._exit(98)
        wall_s = 60 + 10 * sum(self.seconds[t] for t in tests)
        code = _wait(child, wall_s)
        words = note.read_text().splitlines()
        if code == 0:
            return "", False
        last = words[-1] if words else "import"
        return last.partition(" ")[2] or last, code is None or code in (
            -signal.SIGPROF,
            -signal.SIGXCPU,
        )

    def _child(self, tests: list[str], note: Path) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        os.environ.update(environment(self.tree))
        os.chdir(self.tree)
        output = os.open(self.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        sys.path[:] = [str(self.tree), *(p for p in sys.path if p != str(Path(__file__).parent))]
        sys.argv = ["pytest"]
        files = list(dict.fromkeys(t.partition("::")[0] for t in tests))
        options = [
            "-x",
            "-q",
            "--tb=line",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
        ]
        code = 99
        try:
            code = int(
                pytest.main(
                    [*files, *options], plugins=[Chosen({t: self.seconds[t] for t in tests}, note)]
                )
            )
        finally:
            sys.stdout.flush()
            os._exit(0 if code == 5 and not note.read_text() else code)


class _Changed:
    """A file with other contents for a while, and with a time that no compiled version of it
    has.
    """

    def __init__(self, path: Path, text: str, number: int) -> None:
        self.path, self.text, self.time = path, text, 1_000_000_000 + number
        self.kept = path.with_suffix(".kept")

    def __enter__(self) -> None:
        shutil.copy2(self.path, self.kept)
        self.path.write_text(self.text)
        os.utime(self.path, (self.time, self.time))

    def __exit__(self, *_: object) -> None:
        os.replace(self.kept, self.path)


def _wait(child: int, wall_s: float) -> int | None:
    """The exit code of a process; None if it had to be killed. Whatever it had started is gone,
    too.
    """
    end = time.monotonic() + wall_s
    code: int | None = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code


def _cpu_s() -> float:
    """CPU time of this process and of those that it has waited for."""
    own, others = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


# -- all of them
# --------------------------------------------------------------------------------------------------


def try_all(
    mutants: dict[int, tuple[Mutant, set[str]]],
    reached: Reached,
    results: Path,
    jobs: int,
    limit_s: float,
) -> None:
    """Tries every mutant that has no result yet, each in a process of its own; ``jobs`` at a
    time.
    """
    todo = [i for i in mutants if not (results / f"{i}.json").exists()]
    free = [WORK / f"copy{k}" for k in range(jobs)]
    if todo:
        for folder in free:
            copy_tree(ROOT, folder)
        for name in WARM:
            __import__(name)
        assert not any(name.partition(".")[0] == "hosim" for name in sys.modules), (
            "hosim must not be imported here"
        )
    running: dict[int, Path] = {}
    done = len(mutants) - len(todo)
    try:
        while todo or running:
            if todo and free:
                i, folder = todo.pop(0), free.pop()
                child = os.fork()
                if not child:
                    _one(i, *mutants[i], Trial(folder, reached, limit_s), results)
                running[child] = folder
                continue
            child, status = os.wait()
            free.append(running.pop(child))
            if status:
                raise SystemExit(f"a trial failed: see {free[-1]}")
            done += 1
            print(f"\r{done}/{len(mutants)}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        for child in running:
            os.waitpid(child, 0)
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)


def _one(number: int, mutant: Mutant, tests: set[str], trial: Trial, results: Path) -> None:
    code = 1
    try:
        verdict = trial.verdict(mutant, tests, number)
        part = results / f"{number}.part"
        part.write_text(json.dumps(asdict(verdict)))
        part.rename(results / f"{number}.json")
        code = 0
    except KeyboardInterrupt:
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def read(results: Path, count: int) -> dict[int, Verdict]:
    """The verdicts that there are."""
    found = {}
    for i in range(count):
        path = results / f"{i}.json"
        if path.exists():
            data: dict[str, Any] = json.loads(path.read_text())
            found[i] = Verdict(**data | {"mutant": Mutant(**data["mutant"])})
    return found


def report(verdicts: list[Verdict]) -> str:
    """The survivors, and the score by room and in total."""
    lines = [
        v.line() for v in sorted(verdicts, key=lambda v: (v.mutant.path, v.mutant.line)) if v.alive
    ]
    rooms = {v.mutant.path: v.mutant.path.split("/")[1].removesuffix(".py") for v in verdicts}
    total, killed = (
        Counter(rooms[v.mutant.path] for v in verdicts),
        Counter(rooms[v.mutant.path] for v in verdicts if not v.alive),
    )
    lines += [
        "",
        *(
            f"{room:12} {killed[room]:4} of {total[room]:4}  {killed[room] / total[room]:6.1%}"
            for room in sorted(total)
        ),
    ]
    lines.append(
        f"{'all':12} {killed.total():4} of {total.total():4}  "
        f"{killed.total() / max(1, total.total()):6.1%}"
    )
    return "\n".join(lines)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="hosim/", help="where: a path, or its beginning")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--limit", type=float, default=240.0, help="seconds of tests for one mutant, at most"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="make the map of tests anew, from all of them"
    )
    parser.add_argument("--map", action="store_true", help="make the map, and stop")
    parser.add_argument(
        "--stale",
        action="store_true",
        help="use the map that there is, without the tests that are new since",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="try the survivors of the last run once more, by what tests there are now",
    )
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    reached = update(ROOT, WORK, options.jobs, options.fresh, options.stale)
    print(
        f"{len(reached.seconds)} tests in the map; {len(reached.failed)} fail by themselves and "
        "are left out",
        *reached.failed,
        sep="\n  ",
    )
    if options.map:
        return
    sources = {
        str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "hosim").rglob("*.py"))
    }
    drawn = draw(
        {path: text for path, text in sources.items() if path.startswith(options.only)},
        options.n,
        options.seed,
    )
    reaching = Reaching(sources, reached)
    mutants = {i: (m, reaching.tests(m)) for i, m in enumerate(drawn)}
    tag = f"{options.n}-{options.seed}" + (
        "" if options.only == "hosim/" else f"-{options.only.strip('/').replace('/', '.')}"
    )
    results = WORK / "results" / f"{tag}-{_state(drawn)}"
    if options.again:
        for i, verdict in read(results, len(drawn)).items():
            if verdict.alive:
                (results / f"{i}.json").unlink()
    results.mkdir(parents=True, exist_ok=True)
    try_all(mutants, reached, results, options.jobs, options.limit)
    verdicts = read(results, len(drawn))
    print(f"\n{report(list(verdicts.values()))}")
    print(f"{sum(v.cpu_s for v in verdicts.values()) / 60:.1f} minutes of CPU")
    (WORK / f"{tag}.json").write_text(json.dumps([asdict(v) for v in verdicts.values()], indent=1))


def _state(drawn: list[Mutant]) -> str:
    """Names the text of the files drawn from: results for another text are no results."""
    digest = hashlib.sha256()
    for path in sorted({m.path for m in drawn}):
        digest.update(ast.dump(ast.parse((ROOT / path).read_text())).encode())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    main()
