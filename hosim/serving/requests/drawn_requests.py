"""Requests as a user asks for them: a file, or requests that are drawn. How drawn ones arrive
(Poisson, gamma, bursts), how long they are, whether they are turns of conversations, and the seed
that gives them again.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, repeat, takewhile
from random import Random
from typing import Any

from hosim.errors import InputError, UnitError
from hosim.io.options import check_known
from hosim.limits import Budget, limit, within
from hosim.serving.requests.request import Request
from hosim.serving.requests.request_files import RequestRows, read_request_rows, read_requests
from hosim.units import parse_time

_SECOND = 10**9
_MOST = 1 << 40
_COUNT = 1000
_SETTING = re.compile(r":(?=[a-z_]+=)")
_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")

_Gaps = Callable[[Random], Iterator[float]]


@dataclass(frozen=True)
class _Process:
    """A process of arrivals: its parameters beside :data:`_COMMON` with their defaults, and its
    gaps in multiples of their mean.
    """

    gaps: Callable[[Mapping[str, float]], _Gaps]
    own: Mapping[str, float] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    """Parameters of conversations, as texts."""


def _poisson(own: Mapping[str, float]) -> _Gaps:
    return lambda draw: iter(lambda: -math.log(1 - draw.random()), None)


def _gamma(own: Mapping[str, float]) -> _Gaps:
    """Gaps with a coefficient of variation of ``cv``: 1 is Poisson's, less is more regular, more
    comes in clusters.
    """
    shape = own["cv"] ** -2
    return lambda draw: iter(lambda: draw.gammavariate(shape, 1 / shape), None)


def _bursts(own: Mapping[str, float]) -> _Gaps:
    """Bursts of ``size`` requests at one instant, which arrive as Poisson's do."""
    size = int(own["size"])

    def gaps(draw: Random) -> Iterator[float]:
        while True:
            yield from repeat(0.0, size - 1)
            yield -size * math.log(1 - draw.random())

    return gaps


PROCESSES: Mapping[str, _Process] = {
    "poisson": _Process(_poisson),
    "gamma": _Process(_gamma, {"cv": 2.0}),
    "bursts": _Process(_bursts, {"size": 8}),
    "conversations": _Process(
        _poisson,
        told={"turns": "1..8", "system": "0", "think": "10s", "tools": "0", "tool": "1s"},
    ),
}
"""The processes by which requests can arrive."""

_COMMON = ("rate", "count", "duration", "prompt", "output", "lengths", "priority", "seed")


def is_drawn(text: str) -> bool:
    """Return whether a text names a process of arrivals and not a file.

    >>> is_drawn("poisson:rate=10"), is_drawn("poisson.jsonl")
    (True, False)
    """
    return text.partition(":")[0] in PROCESSES


def setting_of(text: str, name: str) -> str | None:
    """Return the value of a parameter in a text that draws requests; ``None`` if it does not name
    it.

    >>> setting_of("poisson:rate=10:count=3", "count")
    '3'
    """
    return next(
        (
            part.partition("=")[2]
            for part in _SETTING.split(text)[1:]
            if part.startswith(f"{name}=")
        ),
        None,
    )


def draw_requests(text: str) -> tuple[Request, ...]:
    """The requests that a text such as
    ``poisson:rate=10:count=500:prompt=100..2000:output=128:seed=1`` asks for.

    ``poisson``, ``gamma`` (``cv``: the gaps' coefficient of variation, 2) and ``bursts`` (``size``
    requests at one instant, 8) arrive at ``rate`` a second on average, the first one at time 0:
    ``count`` of them (1000), or those of a ``duration`` such as ``60s``. ``prompt`` (512) and
    ``output`` (128) are tokens, or a range from which each is drawn; ``lengths`` is a file of
    requests whose pairs of lengths are drawn instead, without the prefixes that they share.
    ``priority`` (0) is a whole number, or a range from which each is drawn. ``conversations`` begin
    as Poisson's requests arrive, ``count`` of them, and have ``turns`` (1..8): each prompt begins
    with ``system`` tokens (0) that all conversations share and all that was said before, has
    ``prompt`` tokens more, and arrives after the answer before it, when the user has thought for
    ``think`` (10s) on average, or a tool has taken ``tool`` (1s), which a share ``tools`` (0) of the
    answers call. Equal texts give equal requests. Raises :class:`InputError`.

    >>> [request.arrival_ns for request in draw_requests("poisson:rate=10:count=3")]
    [0, 10473017, 174588404]
    >>> draw_requests("bursts:rate=10:size=2:count=2:prompt=7:output=1") == (Request(0, 7, 1),) * 2
    True
    """
    name, *settings = _SETTING.split(text)
    process = PROCESSES.get(name)
    if process is None:
        raise InputError(
            f"expected NAME:PARAMETER=VALUE with {', '.join(PROCESSES)}, as in poisson:rate=10, "
            f"got {text!r}",
            source="requests",
        )
    asked = _settings(name, settings, parameters_of_process(text))
    rate = _number(name, "rate", asked.get("rate", ""), 1e-9, 1e9)
    if "count" in asked and "duration" in asked:
        raise InputError("give one of count and duration", source=f"requests {name}")
    ends = _nanoseconds(name, asked["duration"]) if "duration" in asked else None
    count = within(
        "records", _whole(name, "count", asked.get("count", str(_COUNT))), source=f"requests {name}"
    )
    own = {
        key: _own(name, key, asked.get(key, str(default))) for key, default in process.own.items()
    }
    draw = Random(_whole(name, "seed", asked.get("seed", "0"), 0))
    arrivals = _arrivals(process.gaps(own), Random(draw.getrandbits(64)), _SECOND / rate)
    if ends is None:
        listed = list(islice(arrivals, count))
    else:
        within("records", math.ceil(rate * ends / _SECOND), source=f"requests {name}")
        listed = list(
            islice(takewhile(lambda arrival: arrival < ends, arrivals), limit("records") + 1)
        )  # bursts may be many at once
        within("records", len(listed), source=f"requests {name}")
    if not listed:
        raise InputError(
            f"no request arrives within {asked['duration']}", source=f"requests {name}"
        )
    lengths = _lengths(name, asked)
    requests = (
        _conversations(name, asked, listed, draw, lengths)
        if process.told
        else tuple(Request(arrival, *lengths(draw)) for arrival in listed)
    )
    if "priority" not in asked:
        return requests
    priorities = _range(name, "priority", asked["priority"], 0)
    return tuple(
        replace(request, priority=priorities[_below(draw, len(priorities))]) for request in requests
    )


def parameters_of_process(text: str) -> tuple[str, ...]:
    """The parameters of the process that a text names."""
    process = PROCESSES[text.partition(":")[0]]
    return (*_COMMON, *process.own, *process.told)


def _conversations(
    name: str,
    asked: Mapping[str, str],
    begins_ns: Sequence[int],
    draw: Random,
    lengths: Callable[[Random], tuple[int, int]],
) -> tuple[Request, ...]:
    """All turns of conversations that begin at some times: first those that follow none."""
    told = {**PROCESSES[name].told, **asked}
    each = Conversation(
        _range(name, "system", told["system"], 0),
        _range(name, "turns", told["turns"]),
        _nanoseconds(name, told["think"], "think"),
        _number(name, "tools", told["tools"], 0, 1),
        _nanoseconds(name, told["tool"], "tool"),
    )
    firsts: list[Request] = []
    later: list[Request] = []
    ids, budget = each.system[-1], Budget("records")
    for place, begins in enumerate(begins_ns):
        numbers = place, len(begins_ns) + len(later)
        turns = each.requests(begins, draw, lengths, ids, numbers, budget)
        ids = max(ids, *[turn.prefix[-1] + 1 for turn in turns if turn.prefix])
        firsts += turns[:1]
        later += turns[1:]
    return (*firsts, *later)


def changed_text(text: str, changes: Mapping[str, Any]) -> str:
    """The text of a process with other values of some parameters.

    >>> changed_text("poisson:rate=10:seed=1", {"rate": 20, "count": 5})
    'poisson:rate=20:seed=1:count=5'
    """
    name, *settings = _SETTING.split(text)
    kept = {key: value for key, _, value in (setting.partition("=") for setting in settings)}
    return ":".join([name, *(f"{key}={value}" for key, value in {**kept, **changes}.items())])


def _arrivals(gaps: _Gaps, draw: Random, mean_ns: float) -> Iterator[int]:
    now = 0.0
    for gap in gaps(draw):
        yield round(now)
        now += gap * mean_ns


def _lengths(name: str, asked: Mapping[str, str]) -> Callable[[Random], tuple[int, int]]:
    """Return a function that draws the tokens of a prompt and of its answer."""
    if "lengths" in asked:
        if "prompt" in asked or "output" in asked:
            raise InputError("give lengths, or prompt and output", source=f"requests {name}")
        listed = [
            (request.prompt_tokens, request.output_tokens)
            for request in read_requests(asked["lengths"])
        ]
        return lambda draw: listed[_below(draw, len(listed))]
    prompt, output = (
        _range(name, key, asked.get(key, default))
        for key, default in (("prompt", "512"), ("output", "128"))
    )
    return lambda draw: (prompt[_below(draw, len(prompt))], output[_below(draw, len(output))])


def _below(draw: Random, count: int) -> int:
    return min(int(draw.random() * count), count - 1)


def _settings(name: str, settings: list[str], known: tuple[str, ...]) -> dict[str, str]:
    asked: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        check_known("parameter", key, known, f"requests {name}")
        if key in asked:
            raise InputError("is given twice; keep one", source=f"requests {name}", where=key)
        asked[key] = value.strip()
    return asked


def _range(name: str, key: str, text: str, least: int = 1) -> range:
    found = _RANGE.fullmatch(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found and len(text) < 40 else (-1, -1)
    if not least <= low <= high < _MOST:
        what = (
            "tokens such as 512, or a range such as 100..2000"
            if least
            else "a whole number such as 1, or a range such as 0..2"
        )
        raise InputError(f"expected {what}, got {text!r}", source=f"requests {name}", where=key)
    return range(low, high + 1)


def _whole(name: str, key: str, text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 13 and int(text) >= least):
        raise InputError(
            f"expected a whole number of at least {least}, got {text!r}",
            source=f"requests {name}",
            where=key,
        )
    return int(text)


def _own(name: str, key: str, text: str) -> float:
    return _whole(name, key, text) if key == "size" else _number(name, key, text, 0.01, 100)


def _number(name: str, key: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        what = (
            "requests a second, as in rate=10"
            if key == "rate"
            else f"a number from {least:g} to {most:g}"
        )
        raise InputError(f"expected {what}, got {text!r}", source=f"requests {name}", where=key)
    return value


def _nanoseconds(name: str, text: str, key: str = "duration") -> int:
    try:
        return parse_time(text)
    except UnitError as error:
        raise InputError(str(error), source=f"requests {name}", where=key) from None


# -- conversations ---------------------------------------------------------------------------------

_PART = 16
"""Tokens that an id of a prefix stands for."""


@dataclass(frozen=True)
class Conversation:
    """The figures from which conversations are drawn: the ``system`` tokens that all begin with, the number of
    ``turns``, the mean time in nanoseconds that a user ``think_ns`` after an answer, the share of
    answers that call a tool instead (``tools``), and what a ``tool_ns`` call takes on average.

    Times are exponential.
    """

    system: range
    turns: range
    think_ns: int
    tools: float
    tool_ns: int

    def requests(
        self,
        begins_ns: int,
        draw: Random,
        lengths: Callable[[Random], tuple[int, int]],
        ids: int,
        numbers: tuple[int, int],
        budget: Budget,
    ) -> list[Request]:
        """The turns of one that begins at a time; its own ids of prefixes are from ``ids`` on,
        ``numbers`` are those of its first turn and of its second, and turns and ids are drawn from
        the ``budget``.
        """
        first, second = numbers
        count = _one_of(self.turns, draw)
        budget.draw(count, source="requests conversations", where="turns")
        told = [lengths(draw) for _ in range(count)]
        alike = _one_of(self.system, draw) // _PART
        said = list(accumulate((sum(turn) for turn in told), initial=alike * _PART))
        found = []
        for turn, (asked, answer) in enumerate(told):
            prompt = said[turn] + asked
            parts = -(-(prompt + answer) // _PART)
            budget.draw(parts, source="requests conversations", where="prefixes")
            prefix = (*range(alike), *range(ids + alike, ids + parts))
            mean = self.tool_ns if draw.random() < self.tools else self.think_ns
            wait = round(draw.expovariate(1) * mean)
            before = None if not turn else first if turn == 1 else second + turn - 2
            arrival = wait if turn else begins_ns
            found.append(Request(arrival, prompt, answer, prefix, _PART, follows=before))
        return found


def _one_of(numbers: range, draw: Random) -> int:
    return numbers[int(draw.random() * len(numbers))]


# -- as a user asks for them -----------------------------------------------------------------------


def asked_requests(text: str | os.PathLike[str]) -> RequestRows:
    """The requests of a file (``request_files.read_requests``), or drawn ones, which are rows with
    an answer each.

    What is drawn is as ``poisson:rate=10``
    (:func:`hosim.serving.requests.drawn_requests.draw_requests`). Raises :class:`hosim.InputError`.

    >>> asked_requests("poisson:rate=10:count=2").places
    (0, 1)
    """
    if isinstance(text, str) and is_drawn(text):
        drawn = draw_requests(text)
        return RequestRows(drawn, tuple(range(len(drawn))), len(drawn))
    if isinstance(text, str) and "=" in text and not os.path.exists(text):
        raise InputError(
            f"expected a file, or one of {', '.join(PROCESSES)} with parameters, as in "
            "poisson:rate=10",
            source=text,
        )
    return read_request_rows(text)


def changed_requests(text: str | os.PathLike[str], changes: Mapping[str, Any]) -> RequestRows:
    """Like :func:`asked_requests`, with other parameters of a process; of a file, ``rate`` moves
    the arrivals closer together or apart, but not those of later turns of conversations.

    The mean rate of a file is that from its first to its last arrival. Raises
    :class:`hosim.InputError`.

    >>> changed_requests("poisson:rate=10", {"count": 3, "rate": 20}).requests == asked_requests(
    ...     "poisson:rate=20:count=3"
    ... ).requests
    True
    """
    if not changes:
        return asked_requests(text)
    if isinstance(text, str) and is_drawn(text):
        return asked_requests(changed_text(text, changes))
    rows = asked_requests(text)
    if unknown := set(changes) - {*changeable(text)}:
        raise InputError(
            f"of a file only the rate can be changed, not {min(unknown)}", source="requests"
        )
    timed = [one for one in rows.requests if one.follows is None]
    rate, last = changes["rate"], timed[-1].arrival_ns
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 1e-9 <= rate <= 1e9:
        raise InputError(
            f"expected requests a second, got {rate!r}", source="requests", where="rate"
        )
    if not last:
        raise InputError("all requests arrive at once: they have no rate", source=os.fspath(text))
    factor = (len(timed) - 1) * 1e9 / last / rate
    return replace(
        rows,
        requests=tuple(
            one
            if one.follows is not None
            else replace(one, arrival_ns=round(one.arrival_ns * factor))
            for one in rows.requests
        ),
    )


def changeable(text: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the settings that :func:`changed_requests` can change: of a file the rate alone.

    >>> changeable("requests.jsonl"), "size" in changeable("bursts:rate=10")
    (('rate',), True)
    """
    return parameters_of_process(text) if isinstance(text, str) and is_drawn(text) else ("rate",)
