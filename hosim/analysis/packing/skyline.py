"""Static allocation by exact search for a packing that is no higher than a target.

Time is cut into *sections* between whose ends nothing starts or ends. The search fills memory from
the bottom: its state is the *skyline*, the lowest offset still free in each section, and the
tensors that are not placed yet. It branches at the edge of a *valley*, a run of sections of one
height between higher ones: next to the wall, either one of the tensors that fit into the valley and
reach the wall lies on its bottom, or nothing does and that bottom is wasted. Every packing can be
pushed down until each tensor lies on the ground or on another one, so only such offsets are tried,
and nothing is lost.

Four things keep it small (some known from google/minimalloc, ASPLOS 2024; the code is hosim's own):

* The bound: a tensor starts no lower than the skyline's highest point over its life. If those of a
  section that start at some height or above do not fit between it and the target, the state is
  hopeless. And the skyline rises to the lowest start in each section.
* Parts of the remaining problem that no tensor joins are solved one by one, and one hopeless part
  is enough.
* Hopeless parts are remembered by what matters for them, skyline and tensors, however these came
  about.
* Restarts with another order of edges and choices, mostly short ones, some longer and longer; what
  was remembered stays.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

import numpy as np
import numpy.typing as npt

from hosim.analysis.packing.restarts import restart_length

_Ints = npt.NDArray[np.int64]
_OVERHEAD = 20_000
_PER_CELL = 3
"""Steps that a state takes however small it is, and for each section and tensor of it; a step takes
about 5 ns.
"""
_ATTEMPT = 300 * _OVERHEAD
"""Steps of the shortest attempt."""
_REMEMBERED = 1_000_000


@dataclass(slots=True)
class _State:
    """The tensors to place, ascending; by section the top of what is placed; and by tensor the
    lowest start (no skyline is lower).
    """

    tensors: _Ints
    tops: _Ints
    starts: _Ints


@dataclass(slots=True)
class _Edge:
    """A section at the edge of the valley ``[a, b)`` of ``height``: one of ``choices`` lies there,
    or nothing if the slack allows.
    """

    section: int
    a: int
    b: int
    height: int
    wall: int
    choices: list[int]
    slack: int


class _OutOfEffortError(Exception):
    pass


class SkylineSearch:
    """The search for a packing of tensors of ``size``, living over sections ``[first, last)``, that
    is no higher than ``target``.

    ``duration`` and ``seed`` only guide the order of choices. ``exhausted`` says that the search
    ended without a packing: there is none.
    """

    def __init__(
        self, first: _Ints, last: _Ints, size: _Ints, duration: _Ints, target: int, seed: int
    ) -> None:
        sections = np.arange(int(last.max()))
        self._first, self._last, self._size, self._duration = first, last, size, duration
        self._target = target
        self._wall = target + 1
        self._load = np.where(
            (first[:, None] <= sections) & (sections < last[:, None]), size[:, None], 0
        )
        self._meets = (first[:, None] < last) & (first < last[:, None])
        self._starting: list[list[int]] = [
            np.flatnonzero(first == section).tolist() for section in range(len(sections))
        ]
        self._ending: list[list[int]] = [
            np.flatnonzero(last == section + 1).tolist() for section in range(len(sections))
        ]
        self._firsts: list[int] = first.tolist()
        self._lasts: list[int] = last.tolist()
        self._sizes: list[int] = size.tolist()
        self._hopeless: set[bytes] = set()
        self._offsets = np.zeros(len(size), np.int64)
        self._rng = random.Random(seed)
        self._attempts = count()
        self._rank: list[float] = []
        self._low_first = False
        self._left = 0
        self.exhausted = False

    def run(self, effort: int) -> tuple[_Ints | None, int]:
        """The offsets of a packing, or None, and the steps spent, which exceed ``effort`` by one
        state at most.

        Called again, it goes on with further attempts.
        """
        spent = 0
        for number in self._attempts:
            attempt, self._low_first = number // 2, number % 2 == 1
            self._rank = self._ranks(attempt)
            limit = min(restart_length(attempt) * _ATTEMPT, effort - spent)
            self._left = limit
            try:
                found = self._search()
            except _OutOfEffortError:
                found = False
            else:
                self.exhausted = not found
            spent += limit - self._left
            if found:
                return self._offsets, spent
            if self.exhausted or spent >= effort:
                break
        return None, spent

    def _ranks(self, attempt: int) -> list[float]:
        """The order of choices of an attempt: the longest, the largest area or the largest first,
        with noise, or just any.
        """
        weights = (self._duration, self._duration * self._size, self._size, None)[attempt % 4]
        if weights is None:
            return [self._rng.random() for _ in self._sizes]
        return [-weight * self._rng.uniform(0.5, 2) for weight in weights.tolist()]

    def _search(self) -> bool:
        """Depth first, without recursion: all parts of a choice have to be solved, for one of the
        choices at each edge.
        """
        zeros = np.zeros(len(self._starting), np.int64)
        root = _State(np.arange(len(self._size)), zeros, np.zeros(len(self._size), np.int64))
        parts = [self._parts(root)]
        choices: list[tuple[bytes, Iterator[_State]]] = []
        solved = True  # so far: the parts taken off the last entry of ``parts``
        while True:
            if solved and parts[-1]:
                expanded = self._expand(parts[-1].pop())
                if expanded is None:
                    solved = False
                else:
                    choices.append(expanded)
                    solved = self._choose(choices, parts)
                continue
            # All parts of a choice are solved, and with them the part it was made in; or one is
            # hopeless, and the next choice is due.
            parts.pop()
            if not choices:
                return solved
            if solved:
                choices.pop()
            else:
                solved = self._choose(choices, parts)

    def _choose(
        self, choices: list[tuple[bytes, Iterator[_State]]], parts: list[list[_State]]
    ) -> bool:
        """Go into the next choice of the last edge; without one, remember its state as hopeless,
        drop it, and return False.
        """
        key, states = choices[-1]
        state = next(states, None)
        if state is not None:
            parts.append(self._parts(state))
            return True
        choices.pop()
        if len(self._hopeless) < _REMEMBERED:
            self._hopeless.add(key)
        return False

    def _parts(self, state: _State) -> list[_State]:
        """The parts of a state that no tensor joins, the largest first."""
        tensors = state.tensors
        if not len(tensors):
            return []
        sorted_ = tensors[np.argsort(self._first[tensors], kind="stable")]
        reach = np.maximum.accumulate(self._last[sorted_])
        cuts = np.flatnonzero(self._first[sorted_][1:] >= reach[:-1]) + 1
        if not len(cuts):
            return [state]
        return [
            _State(np.sort(group), state.tops, state.starts)
            for group in sorted(np.split(sorted_, cuts), key=len, reverse=True)
        ]

    def _expand(self, state: _State) -> tuple[bytes, Iterator[_State]] | None:
        """The key of a part and the states of the choices at its best edge; None if it is
        hopeless.
        """
        tensors, starts = state.tensors, state.starts
        low, high = int(self._first[tensors].min()), int(self._last[tensors].max())
        tops: list[int] = state.tops[low:high].tolist()
        while True:
            if self._left <= 0:
                raise _OutOfEffortError
            order = tensors[np.argsort(-starts[tensors], kind="stable")]
            lowest = starts[order][:, None]
            load = self._load[order, low:high]
            self._left -= _PER_CELL * load.size + _OVERHEAD
            needed = load.cumsum(axis=0)
            rest: list[int] = needed[-1].tolist()
            needed += lowest
            if needed.max() > self._target:
                return None
            skyline = np.where(load > 0, lowest, self._wall).min(axis=0)
            heights: list[int] = skyline.tolist()
            valleys = _valleys(heights, self._wall)
            drowned = next(
                (
                    valley
                    for valley in valleys
                    if heights[valley[0]] not in tops[valley[0] : valley[1]]
                ),
                None,
            )
            if drowned is None:
                break
            # Nothing can lie on this valley's bottom, for nothing holds it up: all above it starts
            # at the lower wall at least.
            a, b, wall = drowned
            if wall >= self._wall:
                return None
            raised = order[(load[:, a:b] > 0).any(axis=1)]
            starts = starts.copy()
            starts[raised] = np.maximum(starts[raised], wall)
        edge = self._best_edge(set(tensors.tolist()), low, heights, tops, rest, valleys)
        if edge is None:
            return None
        supported = bytes(map(int.__eq__, heights, tops))
        key = blake2b(tensors.tobytes() + skyline.tobytes() + supported, digest_size=16).digest()
        return (
            None
            if key in self._hopeless
            else (key, self._choices(_State(tensors, state.tops, starts), edge))
        )

    def _best_edge(
        self,
        tensors: set[int],
        low: int,
        heights: list[int],
        tops: list[int],
        rest: list[int],
        valleys: list[tuple[int, int, int]],
    ) -> _Edge | None:
        """The edge to branch at, by the attempt's rule: one with only one way, else the tightest or
        the lowest. None if one has none.
        """
        best: tuple[tuple[int, int, int], _Edge] | None = None
        for a, b, wall in valleys:
            height = heights[a]
            for section in (a, b - 1) if b - a > 1 else (a,):
                slack = self._target - height - rest[section]
                touching = self._starting[low + a] if section == a else self._ending[low + b - 1]
                choices = [
                    tensor
                    for tensor in touching
                    if tensor in tensors
                    and self._firsts[tensor] >= low + a
                    and self._lasts[tensor] <= low + b
                    and height in tops[self._firsts[tensor] - low : self._lasts[tensor] - low]
                ]
                ways = len(choices) + (slack > 0)
                if not ways:
                    return None
                # Where there is only one way, nothing can be lost by going it first.
                score = (min(ways, 2), height if self._low_first else slack, ways)
                if best is None or score < best[0]:
                    best = (
                        score,
                        _Edge(low + section, low + a, low + b, height, wall, choices, slack),
                    )
        return best[1] if best is not None else None

    def _choices(self, state: _State, edge: _Edge) -> Iterator[_State]:
        """The states after each choice at the edge: each tensor that may lie there, then none."""
        tensors = state.tensors
        for tensor in sorted(edge.choices, key=self._rank.__getitem__):
            top = edge.height + self._sizes[tensor]
            tops = state.tops.copy()
            tops[self._firsts[tensor] : self._lasts[tensor]] = top
            starts = state.starts.copy()
            np.maximum(starts, top, out=starts, where=self._meets[tensor])
            self._offsets[tensor] = edge.height
            yield _State(tensors[tensors != tensor], tops, starts)
        # What starts here then lies on a wall, or on a tensor in the valley beside it.
        first, last = self._first[tensors], self._last[tensors]
        beside = (
            (first >= edge.a) & (last <= edge.b) & ((first > edge.section) | (last <= edge.section))
        )
        lowest = int(self._size[tensors][beside].min()) if beside.any() else self._wall
        raised = min(edge.wall, edge.height + lowest)
        if raised - edge.height <= edge.slack:
            here = tensors[(first <= edge.section) & (edge.section < last)]
            starts = state.starts.copy()
            starts[here] = np.maximum(starts[here], raised)
            yield _State(tensors, state.tops, starts)


def _valleys(heights: list[int], outside: int) -> list[tuple[int, int, int]]:
    """The runs ``[a, b)`` of equal height between higher ones, with the height of the lower wall;
    beyond the ends it is ``outside``.
    """
    valleys = []
    a = 0
    while a < len(heights):
        b = a + 1
        while b < len(heights) and heights[b] == heights[a]:
            b += 1
        wall = min(heights[a - 1] if a else outside, heights[b] if b < len(heights) else outside)
        if heights[a] < wall:
            valleys.append((a, b, wall))
        a = b
    return valleys
