"""``make fuzz N=2000 SEED=1``: commands on inputs that are changed at random, each in children of a
process that has everything imported.

Prints how many inputs of each kind ended with which code, and how fast; then each way in which the
contract was broken, once, with the smallest input of it, which lies in ``found/`` from then on and
is tried by ``make test``. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_case import Case
from fuzz_minimise import smaller
from fuzz_seeds import of_commands
from fuzz_server import Bounds, Outcome, Server
from fuzz_targets import Target, targets

FOUND = Path(__file__).parent / "found"
TOGETHER = 24
"""How many commands run in one child: what fails is run again alone."""
BOUNDS = Bounds(cpu_s=20, wall_s=300, memory_bytes=1 << 30)


def started(bounds: Bounds, wanted: str = "") -> tuple[Server, list[Target]]:
    """A server, and the targets whose names begin with ``wanted``."""
    server = Server(bounds)

    def run(arguments: list[str], files: dict[str, bytes]) -> Outcome:
        (outcome,) = server.run([Case("seed", tuple(arguments), files)], keep=True)
        assert outcome.code == 0, (arguments, outcome.stderr, outcome.wrong)
        return outcome

    return server, [
        target for target in targets(of_commands(run)) if target.name.startswith(wanted)
    ]


def problem(case: Case, outcome: Outcome) -> tuple[str, ...]:
    """What tells one failure from another."""
    return (case.target, *sorted(outcome.wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "-n", type=int, default=2000, help="how many inputs, of all formats together"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose names begin so")
    parser.add_argument(
        "--tries", type=int, default=150, help="how often a failing input is made smaller"
    )
    parser.add_argument("--show", action="store_true", help="print what each failing command said")
    asked = parser.parse_args()
    server, listed = started(BOUNDS, asked.only)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    found: dict[tuple[str, ...], tuple[Case, Outcome]] = {}
    taken = [0.0, 0.0]
    try:
        for heavy in (False, True):  # a process that has torch forks more slowly
            some = [target for target in listed if target.heavy == heavy]
            server.learn([case for target in some for case in target.valid()])
            begin = time.monotonic(), _cpu()
            try:
                for first in range(0, round(asked.n * len(some) / len(listed)), TOGETHER):
                    numbered = [divmod(first + i, len(some)) for i in range(TOGETHER)]
                    cases = [
                        some[at].case(asked.seed * 10_000_000 + round_, quick=False)
                        for round_, at in numbered
                    ]
                    for case, outcome, (place, _) in zip(
                        cases, server.run(cases, together=True), numbered, strict=True
                    ):
                        counts[case.target][
                            "died" if outcome.code is None else str(outcome.code)
                        ] += 1
                        if outcome.wrong and problem(case, outcome) not in found:
                            (alone,) = server.run([case])
                            found[problem(case, outcome)] = case, alone if alone.wrong else outcome
                            _tell(
                                case,
                                outcome,
                                asked.seed * 10_000_000 + place,
                                whole=asked.show,
                                alone=bool(alone.wrong),
                            )
            finally:
                taken = [taken[0] + time.monotonic() - begin[0], taken[1] + _cpu() - begin[1]]
    except KeyboardInterrupt:
        print("interrupted")
    _print(counts, *taken)
    for key, (case, outcome) in found.items():
        least = smaller(server, case, outcome, lambda c, o: problem(c, o), asked.tries)
        path = FOUND / f"{_slug(key[:2])}-{hashlib.sha256(repr(key).encode()).hexdigest()[:6]}.json"
        path.write_text(least.to_text() + "\n")
        print(f"{path}: {'; '.join(outcome.wrong)}\n  hosim {' '.join(least.arguments)}")
    server.close()
    print(f"{len(found)} found")
    return 1 if found else 0


def _tell(case: Case, outcome: Outcome, number: int, *, whole: bool, alone: bool) -> None:
    print(
        f"{case.target} {number}: {'; '.join(outcome.wrong)}{'' if alone else ' (not alone)'}",
        flush=True,
    )
    if whole:
        print(
            f"  hosim {' '.join(case.arguments)!r}\n  "
            f"{outcome.stderr[-1500:].decode('utf-8', 'replace')}",
            flush=True,
        )


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _slug(words: Iterable[str]) -> str:
    return "".join(c if c.isalnum() else "-" for c in "-".join(words))[:60].strip("-")


def _print(counts: dict[str, Counter[str]], taken: float, used: float) -> None:
    codes = sorted({code for counter in counts.values() for code in counter})
    print(f"{'target':24}" + "".join(f"{code:>8}" for code in codes))
    for name, counter in counts.items():
        print(f"{name:24}" + "".join(f"{counter[code]:8}" for code in codes))
    total = sum(counter.total() for counter in counts.values())
    print(
        f"{total} inputs in {taken:.0f} s: {total / max(taken, 1e-9):.1f} a second, "
        f"{total / max(used, 1e-9):.1f} a second of CPU"
    )


if __name__ == "__main__":
    sys.exit(main())
