"""How many bytecode instructions a replay of 2,000 ops executes, compiling the plan included: the
same on every machine with one Python.

    python tests/bench/replay_instructions.py [--path CHECKOUT]

Run it on two checkouts to see what a change costs replays that do not use it. With Python 3.11,
before ops could run on other processors (revision f7bdc27) and with that:

    streams  durations  before     with       more
    1        measured   2,129,290  2,148,415  0.9 %
    1        modelled   2,944,323  2,988,480  1.5 %
    2        measured   3,078,882  3,098,013  0.6 %
    2        modelled   4,013,466  4,057,629  1.1 %
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parents[2]


def instructions_run(function: Callable[..., object], *arguments: Any) -> int:
    """How many instructions of Python's bytecode the call executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    gc.disable()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(None)
        gc.enable()
    return count


def counts(ops: int = 2000) -> list[tuple[int, str, int]]:
    """(Streams, where durations are from, instructions) of each way."""
    from long_chain import MACHINE, chain_and_branches, modelled

    from hosim.engine import replay

    found = []
    for streams in (1, 2):
        for way in ("measured", "modelled"):
            first, plan = (chain_and_branches(n, streams) for n in (8, ops))
            if way == "modelled":
                first, plan = modelled(first), modelled(plan)
            replay(first, MACHINE)  # what is imported on first use does not count
            found.append((streams, way, instructions_run(replay, plan, MACHINE)))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--path", type=Path, default=HERE, help="the checkout whose hosim to run")
    sys.path[:0] = [str(parser.parse_args().path), str(HERE / "tests")]
    for streams, way, count in counts():
        print(f"{streams}  {way}  {count:,}")
