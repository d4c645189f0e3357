"""The limits that end searches early (``--within``, ``--time`` and ``--work``), and the report of
their progress.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hosim.base.search_control import SearchControl, Tell, searches
from hosim.base.whole_numbers import whole
from hosim.errors import InputError, UnitError
from hosim.plain_text import shown
from hosim.study.asked.policy_choice import PolicyChoice
from hosim.units import parse_share, parse_time, plain_number

AS_LONG = 1000.0
"""The ``effort`` of a search with a time or work limit, unless the policy sets it."""


@dataclass(frozen=True, slots=True)
class SearchEnds:
    """The limits of each search: it ends at a plan ``within`` this share of the lower bound, after
    ``seconds``, or after an amount of ``work``.
    """

    within: float | None = None
    seconds: float | None = None
    work: int | None = None

    def of(self, choices: Sequence[PolicyChoice]) -> list[PolicyChoice]:
        """Return the choices with these limits set on the policies that search.

        Raises :class:`InputError` if there are limits and no policy searches, or if a policy sets a
        limit itself.
        """
        asked: dict[str, Any] = {
            key: value for key in ("within", "work") if (value := getattr(self, key)) is not None
        }
        if self == SearchEnds():
            return list(choices)
        if not any(["work" in choice.policy.settings for choice in choices]):
            raise InputError(
                "within, time and work end the search of hyperoffload, which is not asked "
                "for; leave them out",
                source="policy",
            )
        effort = {"effort": AS_LONG} if self.seconds is not None or self.work is not None else {}
        return [
            _with(choice, asked, effort) if "work" in choice.policy.settings else choice
            for choice in choices
        ]


def _with(choice: PolicyChoice, asked: dict[str, Any], unless_set: dict[str, Any]) -> PolicyChoice:
    twice = next((key for key in asked if key in choice.parameters), None)
    if twice is not None:
        raise InputError(
            f"{twice} is given twice, in the policy and beside it; keep one",
            source=f"policy {choice.label}",
        )
    new = {
        **{key: value for key, value in unless_set.items() if key not in choice.parameters},
        **asked,
    }
    label = ":".join([choice.label, *(f"{key}={value}" for key, value in new.items())])
    return replace(choice, parameters={**choice.parameters, **new}, label=label)


def read_search_ends(within: object = None, time: object = None, work: object = None) -> SearchEnds:
    """Read the limits: a share such as ``1%``, a time such as ``2s`` or a number of seconds, and a
    whole number. Raises :class:`InputError`.

    >>> read_search_ends("1%", "500ms")
    SearchEnds(within=0.01, seconds=0.5, work=None)
    """
    try:
        share = parse_share(within) if isinstance(within, str) else plain_number(within)
    except UnitError as error:
        raise InputError(error.message, source="within") from None
    if share is not None and (
        isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1
    ):
        raise InputError(
            f"expected a share above 0, at most 1, such as '1%', got {shown(within, 60)}",
            source="within",
        )
    try:
        seconds = parse_time(time) / 1e9 if isinstance(time, str) else plain_number(time)
    except UnitError as error:
        raise InputError(error.message.replace("10 us", "2 s"), source="time") from None
    if seconds is not None and (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds < float("inf")
    ):
        raise InputError(
            f"expected a time above 0 such as '2 s', or a number of seconds, got {shown(time, 60)}",
            source="time",
        )
    number = None if work is None else whole(work)
    if work is not None and (number is None or number < 1):
        raise InputError(
            f"expected a whole number of at least 1, got {shown(work, 60)}", source="work"
        )
    return SearchEnds(share, seconds, number)


@contextmanager
def searching(
    ends: SearchEnds, tell: Callable[[str], None], progress: Tell | None = None
) -> Iterator[tuple[SearchControl, Callable[[str], None]]]:
    """Yield the control of the searches in this block, and a function that takes the name of the
    next step.

    ``tell`` gets lines: the step, and the progress of its search. ``progress`` is called at each
    checkpoint, and ends the search if it returns true.
    """
    doing = [""]

    def begins(line: str) -> None:
        doing[:] = [line]
        tell(line)

    def told(at: Any) -> object:
        line = f"{doing[0]}: {at}"
        if line != doing[-1]:
            doing[1:] = [line]
            tell(line)
        return progress is not None and progress(at)

    with searches(ends.seconds, told) as control:
        yield control, begins
