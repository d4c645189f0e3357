"""The exchanges between the stages of a pipeline, the ops of each, and whether the order of these
lets all exchanges happen (docs/contract.md, rule 21).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hosim.edits import COLLECTIVE_KINDS
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.plain_text import counted
from hosim.result import Timeline

SEND, RECV = "send", "recv"

_LISTED = 3


@dataclass(frozen=True, slots=True)
class StageExchange:
    """The ops that have one message: ``members`` are (stage, position of the op), in the order of
    the stages.
    """

    message: str
    members: tuple[tuple[int, int], ...]


def exchanges(graphs: Sequence[Graph]) -> tuple[Mapping[int, StageExchange], ...]:
    """The exchanges of each stage, by the position of its op.

    Raises :class:`InputError` for a message that no other stage has or whose ops do not fit
    together, and for stages that wait for one another for ever, whatever the times and sizes.
    """
    members: dict[str, list[tuple[int, int]]] = {}
    for stage, graph in enumerate(graphs):
        for i, op in enumerate(graph.ops):
            if op.message:
                if op.kind not in COLLECTIVE_KINDS or op.kind == "wait_tensor":
                    known = ", ".join(sorted(COLLECTIVE_KINDS - {"wait_tensor"}))
                    raise InputError(
                        f"op {op.name!r} of kind {op.kind!r} has a message; only exchanges have "
                        f"({known})",
                        source=_source(stage),
                    )
                members.setdefault(op.message, []).append((stage, i))
            elif op.kind in (SEND, RECV):
                raise InputError(
                    f"the {op.kind} {op.name!r} has no message, so nothing says which op of "
                    "another stage it belongs to; give both one, "
                    "or a model alone, which stands for all of its stages",
                    source=_source(stage),
                )
    of_stage: list[dict[int, StageExchange]] = [{} for _ in graphs]
    for message, found in members.items():
        exchange = StageExchange(message, tuple(found))
        _check(exchange, graphs)
        for stage, i in found:
            of_stage[stage][i] = exchange
    _check_order(graphs, of_stage)
    return tuple(of_stage)


def _source(stage: int) -> str:
    return f"stage {stage}"


def _check(exchange: StageExchange, graphs: Sequence[Graph]) -> None:
    """Check that the ops of one message are one exchange."""
    ops = [graphs[stage].ops[i] for stage, i in exchange.members]
    stages = [stage for stage, _ in exchange.members]
    first, source, message = ops[0], _source(stages[0]), exchange.message
    twice = next((k for k in range(1, len(stages)) if stages[k] == stages[k - 1]), None)
    if twice is not None:
        pair = f"{ops[twice - 1].name!r} and {ops[twice].name!r}"
        raise InputError(
            f"the ops {pair} have the same message {message!r}; a stage has a message once",
            source=_source(stages[twice]),
        )
    if len(ops) == 1:
        missing = {SEND: "no other stage receives", RECV: "no other stage sends"}.get(
            first.kind, "no other stage exchanges"
        )
        raise InputError(
            f"{missing} the message {message!r} of the {first.kind} {first.name!r}", source=source
        )
    if first.kind not in (SEND, RECV):
        other = next(
            (
                op
                for op in ops
                if (op.kind, op.kernel, op.sizes) != (first.kind, first.kernel, first.sizes)
            ),
            None,
        )
        if other is not None:
            raise InputError(
                f"the ops {first.name!r} and {other.name!r} have the message {message!r}, but not "
                "the same kind, kernel and sizes",
                source=source,
            )
        return
    if sorted(op.kind for op in ops) != [RECV, SEND]:
        kinds = ", ".join(
            f"{op.kind} {op.name!r} of stage {stage}" for op, stage in zip(ops, stages, strict=True)
        )
        raise InputError(
            f"expected one send and one recv of the message {message!r}, got {kinds}", source=source
        )
    sent, received = sorted(zip(ops, stages, strict=True), key=lambda pair: pair[0].kind != SEND)
    out = sum([graphs[sent[1]].tensors[t].size_bytes for t in sent[0].reads])
    into = sum([graphs[received[1]].tensors[t].size_bytes for t in received[0].writes])
    if out != into:
        raise InputError(
            f"the message {message!r} has {out} B where {sent[0].name!r} of stage {sent[1]} sends "
            "it, "
            f"and {into} B where {received[0].name!r} of stage {received[1]} receives it",
            source=source,
        )


def _check_order(graphs: Sequence[Graph], of_stage: Sequence[Mapping[int, StageExchange]]) -> None:
    """Play the stages through without times and sizes: raises :class:`InputError` if some op can
    never start.
    """
    awaited: list[list[int]] = []  # how many ops each op waits for
    following: list[list[list[int]]] = []
    for graph in graphs:
        behind: list[list[int]] = [[] for _ in graph.ops.each()]
        last: dict[str, int] = {}
        waits = []
        for i, op in enumerate(graph.ops.each()):
            before = set(graph.producers[i])
            if op.stream in last:
                before.add(last[op.stream])
            last[op.stream] = i
            for j in before:
                behind[j].append(i)
            waits.append(len(before))
        awaited.append(waits)
        following.append(behind)
    arrived: dict[str, int] = {}
    ready = [
        (stage, i)
        for stage, waits in enumerate(awaited)
        for i, count in enumerate(waits)
        if not count
    ]
    ended = 0
    while ready:
        stage, i = ready.pop()
        exchange = of_stage[stage].get(i)
        if exchange is not None:
            arrived[exchange.message] = arrived.get(exchange.message, 0) + 1
            if arrived[exchange.message] < len(exchange.members):
                continue
        for at, place in exchange.members if exchange is not None else ((stage, i),):
            ended += 1
            for j in following[at][place]:
                awaited[at][j] -= 1
                if not awaited[at][j]:
                    ready.append((at, j))
    if ended == sum([len(graph.ops) for graph in graphs]):
        return
    stuck = []
    for stage, found in enumerate(of_stage):
        for i, exchange in found.items():
            if not awaited[stage][i] and arrived[exchange.message] < len(exchange.members):
                missing = next((at, j) for at, j in exchange.members if awaited[at][j])
                other = graphs[missing[0]].ops[missing[1]].name
                stuck.append(
                    f"{graphs[stage].ops[i].name!r} of stage {stage} waits for {other!r} of stage "
                    f"{missing[0]}"
                )
    more = f", and {counted(len(stuck) - _LISTED, 'op')} more" if len(stuck) > _LISTED else ""
    raise InputError(
        f"the stages wait for one another for ever: {', '.join(stuck[:_LISTED])}{more}; send and "
        "receive in another order",
        source="stages",
    )


# -- pipeline bubble
# --------------------------------------------------------------------------------------------------
# For how long a stage of a pipeline waits for other stages (docs/contract.md, rule 21).


def bubbles(
    graphs: Sequence[Graph],
    timelines: Sequence[Timeline],
    tied: Sequence[Mapping[int, StageExchange]],
) -> tuple[int, ...]:
    """The bubble of each stage, in nanoseconds, from what was recorded of each."""
    ends = [_end(timeline) for timeline in timelines]
    step = max(ends)
    found = []
    for stage, (graph, timeline) in enumerate(zip(graphs, timelines, strict=True)):
        began = {
            i: max([timelines[s].op_start_ns[j] for s, j in exchange.members])
            for i, exchange in tied[stage].items()
        }
        found.append(step - ends[stage] + _Waits(graph, timeline, began).of_main(ends[stage]))
    return tuple(found)


def _end(timeline: Timeline) -> int:
    return max([0, *timeline.op_end_ns, *[x.end_ns for x in timeline.transfers]])


class _Waits:
    """The way back from the end of a wait; ``began`` is when each exchange of the stage did."""

    def __init__(self, graph: Graph, timeline: Timeline, began: Mapping[int, int]) -> None:
        self._graph = graph
        self._start, self._end = timeline.op_start_ns, timeline.op_end_ns
        self._stalls = timeline.stalls
        self._began = began
        self._before: list[int] = []
        self._last: dict[str, int] = {}
        for i, op in enumerate(graph.ops.each()):
            self._before.append(self._last.get(op.stream, -1))
            self._last[op.stream] = i

    def of_main(self, end: int) -> int:
        """Return the time for which the main stream waits for other stages, until the end of the
        stage.
        """
        ops, main = self._graph.ops, self._graph.main_stream
        waits = [
            stall
            for stall in self._stalls
            if stall.cause == "dependency" and ops[stall.op].stream == main
        ]
        found = sum(
            [
                self._waited(self._graph.producers[stall.op], stall.start_ns, stall.end_ns)
                for stall in waits
            ]
        )
        if main not in self._last:
            return found
        return found + self._waited(self._last.values(), self._end[self._last[main]], end)

    def _waited(self, candidates: Iterable[int], begin: int, until: int) -> int:
        """Of the time from ``begin`` to ``until``, what exchanges waited on the way back from the
        candidate that ended last.
        """
        found = 0
        while until > begin:
            last = max(candidates, key=lambda i: (self._end[i], i in self._began, i), default=-1)
            if last < 0 or self._end[last] != until:  # copies or room were late
                break
            start = self._start[last]
            if last in self._began:
                found += max(0, self._began[last] - max(begin, start))
            until = start
            before = self._before[last]
            candidates = (
                self._graph.producers[last]
                if before < 0
                else (*self._graph.producers[last], before)
            )
        return found
