"""How much a call does, counted: the same on every machine, however busy it is. What takes how long
is for ``make bench`` to measure.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """How many lines of Python the call executes, each time round a loop anew; what runs in C or in
    another thread is not counted.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    collecting = gc.isenabled()
    gc.disable()  # hypothesis has a callback on each collection, whose lines would count
    sys.settrace(trace)
    try:
        function(*arguments, **named)
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count


def calls_run(function: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """How many functions written in Python the call calls: less exact than lines, and a tenth of
    the work.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(profile)
    try:
        function(*arguments, **named)
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return count
