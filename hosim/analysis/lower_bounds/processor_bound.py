"""A lower bound where ops run on other processors, or may: a linear program over what share of each
op runs where.

Whatever processors a plan chooses, each stream runs its ops one at a time, a chain of ops takes the
sum of their times and of the copies of what one of them makes on one side and the next reads on the
other, and the channels carry all that crosses. What an op of the device reads has been there since
time 0, in room that all such tensors share, or has come in. A plan is a solution in which each
share is 0 or 1, so that the minimum over all shares is no more than what any plan takes. Chains are
added as long as the shares found leave one longer than the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from hosim.analysis.lower_bounds.any_processor import durations_by_processor, fits_on
from hosim.analysis.lower_bounds.linear_program import LinearProgram, SolverStopped, Term, whole_ns
from hosim.analysis.lower_bounds.passages import Passages
from hosim.base.groups import grouped, summed
from hosim.data.stream_order import stream_predecessors
from hosim.graph import MAIN_STREAM, Graph
from hosim.hardware import Hardware
from hosim.processors import others_of

MOST_OPS = 10_000
"""Larger graphs have the longest chain alone."""

_ROUNDS = 12
"""The number of times that the longest chain is added."""

_ROUNDING = 1e-6

_START = -1
"""The number that stands for the writer of contents of time 0."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of terms and a number."""

    terms: tuple[Term, ...] = ()
    number: float = 0.0

    def times(self, factor: float) -> _Sum:
        return _Sum(
            tuple([(variable, factor * value) for variable, value in self.terms]),
            factor * self.number,
        )

    def at(self, values: Sequence[float]) -> float:
        return self.number + sum([value * values[variable] for variable, value in self.terms])


@dataclass(frozen=True, slots=True)
class _Read:
    """Op ``reader`` reads what ``writer`` (or :data:`_START`) has written to ``tensor``."""

    tensor: int
    writer: int
    reader: int


def processor_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    starts: Mapping[int, Sequence[str]],
    capacity_bytes: int,
    *,
    repeats: bool,
) -> int:
    """Nanoseconds below which no plan of ``graph`` ends that keeps the order of its ops.

    ``durations`` are those on the processors that ops name, ``starts`` is as in
    :func:`hosim.analysis.lower_bounds.bounds.lower_bound_ns`. 0 for graphs of more than
    :data:`MOST_OPS` ops.
    """
    if len(graph.ops) > MOST_OPS or not graph.ops:
        return 0
    program = _ShareProgram(graph, durations, hardware, starts, capacity_bytes, repeats)
    try:
        return program.bound_ns()
    except SolverStopped:
        return 0


class _ShareProgram:
    """The linear program of one graph, machine and room."""

    def __init__(
        self,
        graph: Graph,
        durations: Sequence[int],
        hardware: Hardware,
        starts: Mapping[int, Sequence[str]],
        capacity_bytes: int,
        repeats: bool,
    ) -> None:
        self.graph, self.hardware = graph, hardware
        self.program = LinearProgram()
        self.passages = Passages(hardware)
        self.found = durations_by_processor(graph, hardware)
        most = sum(durations) + sum(
            [max([0, *[by.get(i, 0) for by in self.found.values()]]) for i in graph.movable]
        )
        for t, tensor in enumerate(graph.tensors):
            crossings = 2 * (len(graph.writers[t]) + 1)
            most += crossings * ceil(
                sum(
                    [
                        self.passages.time(c, tensor)
                        for c in (*self.passages.into, *self.passages.out)
                    ]
                )
            )
        self.makespan = self.program.variable(0.0, 2.0 * most + 1.0)
        self.taken: list[_Sum] = []
        self.on_device: list[_Sum] = []
        self._ops(durations, capacity_bytes)
        self.crossing: dict[tuple[int, int], _Sum] = {}
        """By writer and reader: nanoseconds that the reader waits for copies of what the writer
        made.
        """
        self._channels(list(self._carried(starts, capacity_bytes, repeats)))

    def bound_ns(self) -> int:
        """The bound, after chains have been added as long as they make it larger."""
        bound = 0.0
        for _ in range(_ROUNDS):
            found = self.program.floor(self.makespan)
            if found is None:
                return 0  # nothing fits, which is not for the bound to say
            bound, values = max(bound, found[0]), found[1]
            length, chain = self._longest(values)
            if length <= values[self.makespan] * (1 + _ROUNDING):
                break
            self._at_least_makespan(chain)
        return max(0, whole_ns(bound))

    def _at_least_makespan(self, sums: Sequence[_Sum]) -> None:
        terms = [(variable, -value) for one in sums for variable, value in one.terms]
        joined = summed([(self.makespan, 1.0), *terms])
        self.program.at_least(joined.items(), sum([one.number for one in sums]))

    # -- ops
    # ----------------------------------------------------------------------------------------------

    def _ops(self, durations: Sequence[int], capacity_bytes: int) -> None:
        """The time of each op, and its part on the device. All ops of a stream take no longer than
        the step.
        """
        graph, by_stream = self.graph, dict[str, list[_Sum]]()
        free = set(graph.movable)
        for i, op in enumerate(graph.ops):
            if i not in free:
                self.taken.append(_Sum((), durations[i]))
                self.on_device.append(_Sum((), float(not op.processor)))
                by_stream.setdefault(op.stream, []).append(self.taken[i])
                continue
            shares = {
                each: self.program.variable(
                    0.0, fits_on(graph, i, each, self.hardware, capacity_bytes)
                )
                for each in (op.processor, *others_of(op, self.hardware))
            }
            self.program.at_least([(share, 1.0) for share in shares.values()], 1.0)
            self.program.at_least([(share, -1.0) for share in shares.values()], -1.0)
            self.taken.append(
                _Sum(
                    tuple([(share, float(self.found[where][i])) for where, share in shares.items()])
                )
            )
            self.on_device.append(_Sum(((shares[""], 1.0),) if "" in shares else ()))
            for where, share in shares.items():
                stream = op.stream if where == op.processor else where or MAIN_STREAM
                by_stream.setdefault(stream, []).append(
                    _Sum(((share, float(self.found[where][i])),))
                )
        for listed in by_stream.values():
            self._at_least_makespan(listed)

    def _longest(self, values: Sequence[float]) -> tuple[float, list[_Sum]]:
        """The longest chain of ops and of copies between them."""
        graph, free = self.graph, set(self.graph.movable)
        ends: list[float] = []
        via: list[int] = []
        for i, (before, producers) in enumerate(
            zip(stream_predecessors(graph), graph.producers, strict=True)
        ):
            follows = dict.fromkeys(producers, 0.0)
            if before >= 0 and i not in free and before not in free:
                follows.setdefault(before, 0.0)
            arrived = {
                p: ends[p] + (self.crossing[p, i].at(values) if (p, i) in self.crossing else 0.0)
                for p in follows
            }
            last = max(arrived, key=lambda p: (arrived[p], -p), default=_START)
            via.append(last)
            ends.append((arrived[last] if last >= 0 else 0.0) + self.taken[i].at(values))
        i = max(range(len(ends)), key=lambda j: (ends[j], -j))
        length, chain = ends[i], []
        while i >= 0:
            chain.append(self.taken[i])
            if (via[i], i) in self.crossing:
                chain.append(self.crossing[via[i], i])
            i = via[i]
        return length, chain

    # -- tensors
    # ----------------------------------------------------------------------------------------------

    def _carried(
        self, starts: Mapping[int, Sequence[str]], capacity_bytes: int, repeats: bool
    ) -> Iterator[tuple[int, bool, int]]:
        """(tensor, whether it comes in, what share of it) of all that crosses; and the room of what
        is in the device tier at time 0.
        """
        graph, program, device = self.graph, self.program, self.hardware.device_tier
        there = {
            t: program.variable(0.0, float(device in starts.get(t, (device,))))
            for t in set(graph.initial)
            if graph.users[t]
        }
        program.at_least(
            [(share, -float(graph.tensors[t].size_bytes)) for t, share in there.items()],
            -float(capacity_bytes),
        )
        reads = grouped(((read.tensor, read.writer), read) for read in self._reads())
        for (t, writer), listed in reads.items():
            into, out = program.variable(), program.variable()
            for read in listed:
                reader = self.on_device[read.reader]
                if writer == _START:
                    share = there.get(t)
                    self._covers([into, *([share] if share is not None else [])], reader)
                else:
                    self._cross(t, writer, read.reader, into, out)
            yield from ((t, True, into), (t, False, out))
        for t, share in there.items():
            writers = graph.writers[t]
            returns = (
                t in starts or t in graph.ops[graph.users[t][0]].reads
            )  # if it is written first, it may start and end anywhere
            # what is read after its last write may cross for that
            if (
                repeats
                and returns
                and graph.tensors[t].persistent
                and writers
                and (t, writers[-1]) not in reads
            ):
                into, out, last = (
                    program.variable(),
                    program.variable(),
                    self.on_device[writers[-1]],
                )
                program.at_least([(into, 1.0), (share, -1.0), *last.terms], -last.number)
                program.at_least([(out, 1.0), (share, 1.0), *last.times(-1.0).terms], last.number)
                yield from ((t, True, into), (t, False, out))

    def _reads(self) -> Iterator[_Read]:
        last: dict[int, int] = {}
        for i, op in enumerate(self.graph.ops):
            for t in [t for t in op.reads if self.graph.tensors[t].size_bytes]:
                yield _Read(t, last.get(t, _START), i)
            for t in op.writes:
                last[t] = i

    def _covers(self, shares: Sequence[int], wanted: _Sum) -> None:
        """The shares are together at least ``wanted``."""
        self.program.at_least(
            [*[(share, 1.0) for share in shares], *wanted.times(-1.0).terms], wanted.number
        )

    def _cross(self, t: int, writer: int, reader: int, into: int, out: int) -> None:
        """Tensor t, as ``writer`` makes it, crosses where writer and reader are on different sides,
        and ``reader`` waits for it.
        """
        source, end = self.on_device[writer], self.on_device[reader]
        if not source.terms and not end.terms and source.number == end.number:
            return
        waits = []
        for share, first, second, channels in (
            (into, source, end, self.passages.into),
            (out, end, source, self.passages.out),
        ):
            crosses = self.program.variable()
            self.program.at_least(
                [(crosses, 1.0), *second.times(-1.0).terms, *first.terms],
                second.number - first.number,
            )
            self.program.at_least([(share, 1.0), (crosses, -1.0)], 0.0)
            least = min(
                [self.passages.time(channel, self.graph.tensors[t]) for channel in channels],
                default=0.0,
            )
            waits.append((crosses, least))
        known = self.crossing.get((writer, reader))
        if known is None or sum([value for _, value in known.terms]) < sum(
            [value for _, value in waits]
        ):
            self.crossing[writer, reader] = _Sum(tuple(waits))

    def _channels(self, carried: Sequence[tuple[int, bool, int]]) -> None:
        """Channels share the tensors that cross, and carry them by the end of the step."""
        loads: dict[str, list[tuple[int, int]]] = {}
        for t, comes_in, share in carried:
            channels = self.passages.into if comes_in else self.passages.out
            parts = {channel: self.program.variable() for channel in channels}
            if parts:
                self.program.at_least(
                    [*[(part, 1.0) for part in parts.values()], (share, -1.0)], 0.0
                )
            for channel, part in parts.items():
                loads.setdefault(channel, []).append((t, part))
        for limit in self.passages.limits:
            if limit.sharers > 1:
                continue
            terms = [(self.makespan, float(limit.engines or 1))]
            for channel in limit.channels:
                for t, part in loads.get(channel, ()):
                    tensor = self.graph.tensors[t]
                    flow = (
                        self.passages.time(channel, tensor)
                        if limit.engines
                        else tensor.size_bytes * 1e9 / limit.bandwidth_bytes_per_s
                    )
                    terms.append((part, -flow))
            self.program.at_least(terms, 0.0)
