"""Plans and results of one revision, to hold another revision against: a hash of each, for every
shipped workload on six machines.

    python tests/bench/before_after.py record before.jsonl          # in the checkout of the one revision
    python tests/bench/before_after.py record after.jsonl           # in that of the other
    python tests/bench/before_after.py compare before.jsonl after.jsonl

A case is a workload, a machine, a policy and a budget. Its plan and its result are those that the
command line gives; the result is hashed without ``planning_s`` and ``replay_s``. ``record`` appends
one line a case and skips the cases that its file already has, so it can be interrupted. It takes
the cases in an order that depends on their names' hashes alone, so that a run that ends early is a
fair sample. ``--path`` names a checkout whose hosim to run (default: this one).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import sys
import tempfile
from pathlib import Path

MACHINES = (
    "a100-80gb-sxm",
    "ascend-910c-supernode",
    "gh200-96gb",
    "h100-80gb-sxm",
    "h200-141gb-sxm",
    "rtx-4090",
)
POLICIES = ("hyperoffload", "layerwise", "g10")
BUDGETS = ("40%", "60%", "75%", "90%")
HERE = Path(__file__).resolve().parents[2]


def cases(root: Path) -> list[str]:
    workloads = sorted(
        {path.name.split(".yaml")[0].split(".json")[0] for path in (root / "workloads").iterdir()}
    )
    names = [" ".join(parts) for parts in itertools.product(workloads, MACHINES, POLICIES, BUDGETS)]
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def command(arguments: list[str]) -> tuple[int, str]:
    """The exit code and stdout of ``hosim`` with these arguments, run in this process."""
    from hosim.cli.main import app

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            app(arguments, prog_name="hosim")
            code: object = 0
        except SystemExit as end:
            code = end.code
    return int(code) if isinstance(code, int) else 0, out.getvalue()


def record(case: str, folder: Path) -> dict[str, object]:
    workload, machine, policy, budget = case.split()
    file = folder / "plan.json"
    file.unlink(missing_ok=True)
    common = ["--hardware", machine, "--budget", budget]
    code, _ = command(["plan", workload, *common, "--policy", policy, "-o", str(file)])
    line: dict[str, object] = {"case": case, "plan_exit": code}
    if not file.exists():
        return line
    line["plan"] = hashlib.sha256(file.read_bytes()).hexdigest()
    code, printed = command(["replay", str(file), workload, *common, "--json"])
    line["replay_exit"] = code
    if printed:
        result = json.loads(printed)
        result.pop("planning_s"), result.pop("replay_s")
        line["result"] = hashlib.sha256(json.dumps(result).encode()).hexdigest()
        line["makespan_ns"], line["hbm"] = result["makespan_ns"], result["peak_bytes"]
    return line


def read(file: Path) -> dict[str, dict[str, object]]:
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    return {line["case"]: line for line in lines}


def write(file: Path, root: Path) -> int:
    known = read(file)
    todo = [case for case in cases(root) if case not in known]
    with tempfile.TemporaryDirectory() as folder, file.open("a") as out:
        for done, case in enumerate(todo):
            print(json.dumps(record(case, Path(folder))), file=out, flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(todo)}", file=sys.stderr, flush=True)
    return 0


def compare(before: Path, after: Path) -> int:
    one, other = read(before), read(after)
    both = sorted(one.keys() & other.keys())
    if not both:
        sys.exit("the two files have no case in common")
    differ = [case for case in both if one[case] != other[case]]
    for case in differ:
        print(case)
        for key in sorted(one[case].keys() | other[case].keys()):
            if one[case].get(key) != other[case].get(key):
                print(f"  {key}: {one[case].get(key)} -> {other[case].get(key)}")
    missing = len(one) + len(other) - 2 * len(both)
    print(
        f"{len(both)} cases in both files, {len(differ)} differ"
        + (f"; {missing} are in one file only" if missing else "")
    )
    return 1 if differ or missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    recording = what.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--path", type=Path, default=HERE)
    comparing = what.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.what == "compare":
        return compare(given.before, given.after)
    sys.path.insert(0, str(given.path))
    return write(given.file, given.path)


if __name__ == "__main__":
    sys.exit(main())
