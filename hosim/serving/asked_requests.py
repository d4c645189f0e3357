"""Requests as a user asks for them: a file, or a process of arrivals."""

from __future__ import annotations

import os

from hosim.serving.drawn_requests import draw_requests, is_drawn
from hosim.serving.request_files import RequestRows, read_request_rows


def asked_requests(text: str | os.PathLike[str]) -> RequestRows:
    """The requests of a file (:func:`hosim.serving.request_files.read_requests`), or drawn ones, which are rows with an answer each.

    What is drawn is as ``poisson:rate=10`` (:func:`hosim.serving.drawn_requests.draw_requests`). Raises :class:`hosim.InputError`.

    >>> asked_requests("poisson:rate=10:count=2").places
    (0, 1)
    """
    if isinstance(text, str) and is_drawn(text):
        drawn = draw_requests(text)
        return RequestRows(drawn, tuple(range(len(drawn))), len(drawn))
    return read_request_rows(text)
