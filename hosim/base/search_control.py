"""The limits that end a plan search early (work, a clock, Ctrl-C or a callback), and the progress
that it reports.

A search asks at its checkpoints, between two pieces of its work (:meth:`Planning.ends`). The clock
and Ctrl-C are looked at nowhere else. What was done until then is counted as work, which makes the
same plan again anywhere.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import current_thread, main_thread
from types import FrameType
from typing import TypedDict

from hosim.units import human_percent, human_time

DONE, BY_WORK, BY_BOUND, BY_TIME, BY_CTRL_C, BY_CALLBACK = (
    "done",
    "work",
    "within",
    "time",
    "ctrl_c",
    "callback",
)
"""Why a search ended: nothing was to be gained, or its effort was spent; or what ended it
before.
"""


class EndFields(TypedDict, total=False):
    """Where a search ends, as keywords (:class:`hosim.planner.hyperoffload.search.Ends`)."""

    effort: float
    work: int | None
    within: float


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The progress of the search for a plan, at one of its checkpoints.

    Parameters
    ----------
    makespan_ns
        The makespan of the best plan so far in nanoseconds; ``None``: none fits yet.
    bound_ns
        What no plan beats that keeps the order of the ops or, if the best plan changes it, in any
        order, in nanoseconds; ``None``: no plan fits yet.
    work
        What was done, in the units of ``--work``.
    share
        The part of the work that may be done, or of the time where that is more.

    References
    ----------
    docs/planner.md describes the search.

    Examples
    --------
    >>> str(SearchProgress(1_034_000, 1_000_000, 5_000_000, 0.25))
    '1.03 ms, 3.4 % above the bound, 25 % of the work'
    """

    makespan_ns: int | None
    bound_ns: int | None
    work: int
    share: float

    @property
    def above_bound(self) -> float | None:
        """Return the gap between the best plan and the bound, as a fraction of the bound."""
        return (
            None
            if self.makespan_ns is None or not self.bound_ns
            else self.makespan_ns / self.bound_ns - 1
        )

    def __str__(self) -> str:
        found = "no plan yet" if self.makespan_ns is None else human_time(self.makespan_ns)
        above = (
            ""
            if self.above_bound is None
            else f", {human_percent(max(0.0, self.above_bound))} above the bound"
        )
        return f"{found}{above}, {human_percent(min(1.0, self.share), 0)} of the work"


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """The record that a plan keeps of the search that found it.

    Its ``work``, why it ``ended``, and the policy with its parameters that makes the plan
    ``again``. The plan fits in all but ``failed`` of so many ``draws`` of op and transfer times,
    and takes ``lost`` more than planned in these on average, as a part of its makespan; ``None``
    where none were drawn, or none fits. It was the best in them of so many plans that are ``alike``
    in makespan; 0: there was no other.
    """

    work: int = 0
    ended: str = DONE
    again: str = ""
    draws: int = 0
    failed: int = 0
    lost: float | None = None
    alike: int = 0


Tell = Callable[[SearchProgress], object]
"""Is told of each checkpoint; what is true ends the search there."""


class SearchControl:
    """A caller's settings for the searches in a ``with`` block: the seconds for each planning, and
    the function to tell of progress.

    ``interrupted`` says whether Ctrl-C has ended a search.
    """

    def __init__(self, seconds: float | None = None, tell: Tell | None = None) -> None:
        self.seconds, self.tell = seconds, tell
        self.interrupted = False
        self.planning: Planning | None = None

    def on_ctrl_c(self, number: int, frame: FrameType | None) -> None:
        """The first one ends the search that has a plan in hand; any other raises
        :class:`KeyboardInterrupt`.
        """
        if self.interrupted or self.planning is None or not self.planning.has_plan:
            signal.default_int_handler(number, frame)
        self.interrupted = True


class Planning:
    """The searches for one plan: what they did together, and what has ended them."""

    def __init__(self, control: SearchControl | None = None) -> None:
        self._control = control
        self._begun = time.monotonic()
        self._before = 0
        self._ended: tuple[int, str] | None = None
        self.has_plan = False

    @property
    def telling(self) -> bool:
        """Return whether anybody wants to know how far it is."""
        return self._control is not None and self._control.tell is not None

    def ends(self, progress: SearchProgress, most: int | None, near: bool) -> bool:
        """Return whether the search ends here with its plan: it is ``near`` enough to the bound,
        did ``most`` work, or somebody ends it.
        """
        self.has_plan = progress.makespan_ns is not None
        if self.has_plan and self._ended is not None:
            return True
        work = self._before + progress.work
        why = self._told(progress, work, most) or (BY_BOUND if near else None)
        if self.has_plan and self._ended is None and why is not None:
            self._ended = work, why
        return self.has_plan and self._ended is not None

    def _told(self, progress: SearchProgress, work: int, most: int | None) -> str | None:
        """Return the reason for the search to end; tells how far it is."""
        control, shares = self._control, [progress.share, work / most if most else 0.0]
        why = BY_WORK if most is not None and work >= most else None
        if control is None:
            return why
        if control.seconds is not None:
            shares.append((time.monotonic() - self._begun) / max(control.seconds, 1e-9))
            why = BY_TIME if shares[-1] >= 1 else why
        if control.tell is not None and control.tell(
            SearchProgress(progress.makespan_ns, progress.bound_ns, work, min(1.0, max(shares)))
        ):
            why = BY_CALLBACK
        return BY_CTRL_C if control.interrupted else why

    def add(self, work: int) -> None:
        """A search has ended that did so much."""
        self._before += work

    @property
    def record(self) -> SearchRecord:
        """Return the record of the work done until the search was ended, or in all."""
        return SearchRecord(*(self._ended or (self._before, DONE)))


_control: ContextVar[SearchControl | None] = ContextVar("control", default=None)
_planning: ContextVar[Planning | None] = ContextVar("planning", default=None)


@contextmanager
def searches(seconds: float | None = None, tell: Tell | None = None) -> Iterator[SearchControl]:
    """Searches in this block end by a clock, by Ctrl-C and by what ``tell`` says. A second Ctrl-C
    is a :class:`KeyboardInterrupt`.
    """
    control = SearchControl(seconds, tell)
    token = _control.set(control)
    ours = (
        current_thread() is main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, control.on_ctrl_c)
    try:
        yield control
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _control.reset(token)


def control_of_searches() -> SearchControl | None:
    """Return the settings of this block's caller for searches."""
    return _control.get()


@contextmanager
def one_planning() -> Iterator[Planning]:
    """The searches of this block are for one plan."""
    control = _control.get()
    planning = Planning(control)
    token, outer = _planning.set(planning), None
    if control is not None:
        outer, control.planning = control.planning, planning
    try:
        yield planning
    finally:
        _planning.reset(token)
        if control is not None:
            control.planning = outer


def present_planning() -> Planning:
    """Return the planning that this search is a part of; of none, one of its own, which nothing but
    its work ends.
    """
    return _planning.get() or Planning()
