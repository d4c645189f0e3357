"""Recordings of several ranks of one program, replayed together: their collectives wait for each
other.

In one rank's recording, a collective includes its wait for the other ranks. Here it takes as long
as on the rank that came last, and begins when all given ranks have arrived. Collectives are matched
by process group and number in it (by their order, if the recordings have no numbers), and the
clocks of the ranks by the ends of these collectives. Waits of one rank's kernels for room on their
device are not modelled.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from hosim.base.groups import grouped
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import Graph, Op
from hosim.io.importers.recordings import KinetoTrace, ProgramOrder
from hosim.validate.recorded_steps import RECORDING, StartErrors, Structure, start_errors
from hosim.validate.replay_verdicts import (
    UnexplainedSpan,
    best_structure,
    beyond,
    errors_to_dict,
    explains,
    judge,
)

Numbered = tuple[str, int]
"""A process group, and the number of a collective in it."""


@dataclass(frozen=True, slots=True)
class ReplayedRank:
    """One rank: its recording, the nanoseconds by which its clock is ahead of the first rank's, and
    the errors of the replay and of the simpler predictions.

    ``spans`` are the parts that the rank alone does not explain.
    """

    trace: str
    offset_ns: int
    collectives: int
    explained: bool
    errors: StartErrors
    alone: StartErrors
    launches: StartErrors
    held_host: StartErrors
    spans: tuple[UnexplainedSpan, ...]


def replay_ranks(traces: Sequence[KinetoTrace]) -> tuple[ReplayedRank, ...]:
    """Replay the ranks of a program together. Raises :class:`InputError` if no collective is in two
    of the recordings.
    """
    judged = [best_structure(trace) for trace in traces]
    structures = [built for built, _, _ in judged]
    matched = _matched(structures)
    offsets = _offsets(traces, matched)
    starts, ends = _replayed(structures, matched, offsets)
    ranks = []
    for r, (built, alone, rivals) in enumerate(judged):
        errors = start_errors(built.trace.ops, starts[r], ends[r])
        verdict = judge(built, alone, rivals)
        ranks.append(
            ReplayedRank(
                built.trace.name,
                offsets[r],
                sum(r in members for members in matched),
                explains(errors, *rivals),
                errors,
                verdict.errors,
                *rivals,
                verdict.spans,
            )
        )
    return tuple(ranks)


def ranks_to_dict(ranks: Sequence[ReplayedRank]) -> dict[str, Any]:
    """Return the figures as ``hosim validate RANK0 RANK1 ... --json`` prints them."""
    rows = [
        {
            "trace": rank.trace,
            "offset_ns": rank.offset_ns,
            "collectives": rank.collectives,
            "explained": rank.explained,
            "errors": errors_to_dict(rank.errors),
            "alone": errors_to_dict(rank.alone),
            "by_launches": errors_to_dict(rank.launches),
            "by_held_host": errors_to_dict(rank.held_host),
            "causes": list(dict.fromkeys(span.cause for span in rank.spans)),
        }
        for rank in ranks
    ]
    return {"format": "hosim.ranks/1", "ranks": rows}


def rank_complaint(rank: ReplayedRank, bound: float) -> str:
    """Return the reason that a rank fails a test with this bound, as a share of its span; empty if
    it passes.
    """
    if not rank.explained:
        causes = dict.fromkeys(span.cause for span in rank.spans)
        return (
            "not validated with the other ranks: "
            f"{', '.join(causes) or 'a collective that waits for other ranks'}"
        )
    return beyond(rank.errors, bound)


def _numbered(trace: KinetoTrace, order: ProgramOrder) -> Mapping[Numbered, int]:
    """Return the collectives of a rank by group and number."""
    found: dict[Numbered, int] = {}
    counted: defaultdict[str, int] = defaultdict(int)
    for i in order.order:
        collective = trace.ops[i].collective
        if collective is not None:
            number = (
                counted[collective.group] if collective.sequence is None else collective.sequence
            )
            counted[collective.group] += 1
            found.setdefault((collective.group, number), i)
    return found


def _matched(structures: Sequence[Structure]) -> Sequence[Mapping[int, int]]:
    """Return the collectives of several ranks, each as its positions by rank."""
    ranks = [_numbered(built.trace, built.order) for built in structures]
    for built, numbered in zip(structures, ranks, strict=True):
        for group, unnumbered in _unnumbered(built.trace).items():
            for other, others in zip(structures, ranks, strict=True):
                count = sum(key[0] == group for key in others)
                if unnumbered and count and count != sum(key[0] == group for key in numbered):
                    raise InputError(
                        f"it has another number of collectives of process group {group} than "
                        f"{built.trace.name}, and these have no "
                        "numbers; record the same steps on all ranks",
                        source=other.trace.name,
                    )
    together = grouped(
        (key, (r, i)) for r, numbered in enumerate(ranks) for key, i in numbered.items()
    )
    matched = [dict(members) for members in together.values() if len(members) > 1]
    if not matched:
        raise InputError(
            "no collective is in two of the recordings, by its process group; record ranks of one "
            "program with PyTorch 2.3 or newer",
            source=", ".join(built.trace.name for built in structures),
        )
    return matched


def _unnumbered(trace: KinetoTrace) -> Mapping[str, bool]:
    """Return the process groups, each with True if a collective of it has no number."""
    numbers = grouped(
        (op.collective.group, op.collective.sequence)
        for op in trace.ops
        if op.collective is not None
    )
    return {group: None in listed for group, listed in numbers.items()}


def _offsets(traces: Sequence[KinetoTrace], matched: Sequence[Mapping[int, int]]) -> list[int]:
    """Return how far the clock of each rank is ahead of the first rank's: the median difference of
    the ends of collectives.
    """
    offsets: dict[int, int] = {0: 0}
    while len(offsets) < len(traces):
        gained: defaultdict[int, list[int]] = defaultdict(list)
        for members in matched:
            known = [r for r in members if r in offsets]
            for r in members.keys() - offsets.keys():
                gained[r] += [
                    traces[r].ops[members[r]].end_ns - traces[k].ops[members[k]].end_ns + offsets[k]
                    for k in known
                ]
        found = {r: median_low(times) for r, times in gained.items() if times}
        if not found:
            raise InputError(
                "it has no collective with the other ranks; leave it out",
                source=next(t.name for r, t in enumerate(traces) if r not in offsets),
            )
        offsets |= found
    return [offsets[r] for r in range(len(traces))]


def _replayed(
    structures: Sequence[Structure], matched: Sequence[Mapping[int, int]], offsets: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the starts and ends of the ops of each rank, on its own clock."""
    later = [max(offsets) - offset for offset in offsets]
    joint = _Joint(structures, matched, later)
    timeline = replay(
        Plan(Graph("ranks", (), tuple(joint.ops), {"source": "ranks of a program"})),
        RECORDING,
        record=True,
    ).timeline
    if timeline is None:
        raise InputError("the replay of the ranks did not end", source="ranks")
    starts, ends = [], []
    for r, built in enumerate(structures):
        begun = [timeline.op_start_ns[joint.at[r][head]] - later[r] for head in built.heads]
        over = [timeline.op_end_ns[joint.done[r][head]] - later[r] for head in built.heads]
        together = {members[r] for members in matched if r in members}
        ends.append(
            [
                over[i] if i in together else begun[i] + duration
                for i, duration in enumerate(built.durations_ns)
            ]
        )
        starts.append(begun)
    return starts, ends


class _Joint:
    """The graph of all ranks. Each collective is an op without duration on each rank, and one more
    that begins when all ranks have arrived.

    ``at`` has the position in this graph of each op of a rank, ``done`` that of the op with whose
    end it is over.
    """

    def __init__(
        self,
        structures: Sequence[Structure],
        matched: Sequence[Mapping[int, int]],
        later_ns: Sequence[int],
    ) -> None:
        self.ops: list[Op] = []
        self.at = [[-1] * len(built.graph.ops) for built in structures]
        self.done = [[-1] * len(built.graph.ops) for built in structures]
        self._graphs = [built.graph.ops for built in structures]
        self._later = later_ns
        self._collective = {
            (r, structures[r].heads[i]): m
            for m, members in enumerate(matched)
            for r, i in members.items()
        }
        self._takes = [
            min(structures[r].trace.ops[i].duration_ns for r, i in members.items())
            for members in matched
        ]
        self._missing = [len(members) for members in matched]
        self._entered: list[list[tuple[int, int]]] = [[] for _ in matched]
        self._inside: set[tuple[int, str]] = set()
        self._begun: set[str] = set()
        pending = [list(range(len(ops))) for ops in self._graphs]
        left = -1
        while left != sum(map(len, pending)):
            left = sum(map(len, pending))
            pending = [self._advance(r, positions) for r, positions in enumerate(pending)]
        stuck = [structures[r].trace.name for r, positions in enumerate(pending) if positions]
        if stuck:
            raise InputError(
                "its collectives come in another order than on the other ranks; are these ranks "
                "of one run?",
                source=stuck[0],
            )

    def _advance(self, r: int, positions: Sequence[int]) -> list[int]:
        """Add the ops of a rank that can run, and return the rest."""
        held: set[str] = set()
        left = []
        for at in positions:
            op = self._graphs[r][at]
            stream = str(op.stream)
            if (
                stream in held
                or (r, stream) in self._inside
                or any(self.done[r][d] < 0 for d in op.deps)
            ):
                left.append(at)
                held.add(stream)
                continue
            deps = [self.done[r][d] for d in op.deps]
            m = self._collective.get((r, at))
            self.at[r][at] = self._add(r, op, deps, op.duration_ns or 0 if m is None else 0)
            if m is None:
                self.done[r][at] = self.at[r][at]
            else:
                self._enter(m, r, at)
        return left

    def _enter(self, m: int, r: int, at: int) -> None:
        self._entered[m].append((r, at))
        self._inside.add((r, str(self._graphs[r][at].stream)))
        if len(self._entered[m]) == self._missing[m]:
            come = [self.at[other][place] for other, place in self._entered[m]]
            for other, place in self._entered[m]:
                op = self._graphs[other][place]
                self.done[other][place] = self._add(other, op, come, self._takes[m])
                self._inside.discard((other, str(op.stream)))

    def _add(self, r: int, op: Op, deps: Sequence[int], duration: int) -> int:
        stream = f"rank{r}.{op.stream}"
        if not deps and stream not in self._begun:
            duration += self._later[r]
        self._begun.add(stream)
        self.ops.append(
            replace(
                op,
                name=f"rank{r}.{len(self.ops)}",
                deps=tuple(sorted(set(deps))),
                stream=stream,
                duration_ns=duration,
                workspace_bytes=0,
            )
        )
        return len(self.ops) - 1
