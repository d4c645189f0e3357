"""When requests arrive at engines: at times of their own, or after the last token of the request
that they follow.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from hosim.serving.requests import Request


class Arrivals:
    """The requests of a run, each of which is offered, by its number, when it arrives.

    ``requests`` are those that have arrived with the time at which they did, and all others as they
    were asked for. ``order`` says for each that has arrived how many came before it.
    """

    def __init__(
        self, env: simpy.Environment, requests: Sequence[Request], offer: Callable[[int], None]
    ) -> None:
        self._env = env
        self._offer = offer
        self.requests = list(requests)
        self.order: dict[int, int] = {}
        self._timed = [i for i, request in enumerate(requests) if request.follows is None]
        self._turns: defaultdict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            if request.follows is not None:
                self._turns[request.follows].append(number)

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Requests that follow none arrive."""
        for number in self._timed:
            yield from self._at(number, self.requests[number].arrival_ns)

    def ended(self, number: int) -> None:
        """A request has its last token: those that follow it are on their way."""
        for turn in self._turns.pop(number, ()):
            then = int(self._env.now) + self.requests[turn].arrival_ns
            self._env.process(self._at(turn, then))

    def _at(self, number: int, arrival_ns: int) -> Generator[simpy.Event, Any, None]:
        if arrival_ns > self._env.now:
            yield self._env.timeout(arrival_ns - int(self._env.now))
        request = self.requests[number]
        if request.follows is not None:
            self.requests[number] = replace(request, arrival_ns=arrival_ns, follows=None)
        self.order[number] = len(self.order)
        self._offer(number)
