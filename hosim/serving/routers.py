"""Routers: to which of several engines a request goes when it arrives."""

from collections.abc import Callable, Mapping, Sequence

from hosim.serving.requests import Request
from hosim.serving.scheduler import Scheduler

Router = Callable[[int, Request, Sequence[Scheduler]], int]
"""The place of the engine for a request, given how many arrived before it and the schedulers of all
engines.
"""


def round_robin(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """One engine after the other."""
    return number % len(engines)


def least_load(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """The engine with the fewest requests that run or wait; of several the first."""
    return min(
        range(len(engines)), key=lambda i: (len(engines[i].running) + len(engines[i].waiting), i)
    )


def prefix(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """The engine that has the fewest tokens of prompts to compute up to this one's last: those that
    are ahead of it there, and its own.

    Blocks of its prompt that the engine's cache holds now need not be computed; those that wait
    there count in full. So equal prefixes meet, unless it takes longer there.
    """
    return min(
        range(len(engines)),
        key=lambda i: (
            engines[i].tokens_ahead() + request.prompt_tokens - engines[i].cached(request),
            i,
        ),
    )


ROUTERS: Mapping[str, Router] = {
    "round_robin": round_robin,
    "least_load": least_load,
    "prefix": prefix,
}
"""The routers by name."""
