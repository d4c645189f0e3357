"""Requests as a user asks for them: a file, or a process of arrivals."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hosim.errors import InputError
from hosim.serving.requests.drawn_requests import (
    PROCESSES,
    changed_text,
    draw_requests,
    is_drawn,
    parameters_of_process,
)
from hosim.serving.requests.request_files import RequestRows, read_request_rows


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
