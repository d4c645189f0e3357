"""Routing: ops that run only if a gate chooses them, and a trace of what the gates chose.

A workload with a mixture of experts lists the ops of every expert, or ops that read the tensors of
all. A :class:`Routing` says which: each :class:`Gate` is an op whose end decides among candidate
:class:`Expert` s, each with the tensors and the ops that are its own. :func:`realise` gives the
graph of steps of the trace, in which the experts that were not chosen have no ops, and no op reads
them. The graph's ``meta`` says what may be known of the routing, and when;
:func:`routed` reads it back.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hosim.data.graph_parts import REST, part_name
from hosim.errors import GraphError
from hosim.graph import Graph, Op, Tensor
from hosim.limits import limit, refusal
from hosim.plain_text import shown

META = "routing"
"""The key of a realised graph's ``meta`` that says what was routed."""

Choices = tuple[tuple[int, ...], ...]
"""One step of a trace: for each gate, the numbers of the experts that it chose."""


@dataclass(frozen=True, slots=True)
class Expert:
    """One candidate of a gate: the tensors that only its ops use, and the ops that run only if it
    is chosen, by position.

    Without ops of its own, its tensors are read by ops of several candidates, which run in any
    case.
    """

    tensors: tuple[int, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """An op whose end decides which of ``experts`` run."""

    op: int
    experts: tuple[Expert, ...]


@dataclass(frozen=True)
class Routing:
    """The gates of ``graph`` and a trace, ``steps``, of what they chose. Checked when made; raises
    :class:`GraphError`.

    ``meta`` is free-form: where the trace comes from.
    """

    graph: Graph
    gates: tuple[Gate, ...]
    steps: tuple[Choices, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_gates(self.graph, self.gates)
        if len(self.steps) > limit("routing_steps"):
            raise GraphError(refusal("routing_steps", len(self.steps)).message, where="steps")
        for s, step in enumerate(self.steps):
            if len(step) != len(self.gates):
                raise GraphError(
                    f"expected a list of experts for each of {len(self.gates)} gates, got "
                    f"{len(step)} lists",
                    where=f"steps[{s}]",
                )
            for g, gate in enumerate(self.gates):
                seen: set[int] = set()
                for j, e in enumerate(step[g]):
                    where = f"steps[{s}][{g}][{j}]"
                    if not 0 <= e < len(gate.experts):
                        name = self.graph.ops[gate.op].name
                        raise GraphError(
                            f"gate {name!r} has experts 0 to {len(gate.experts) - 1}, got {e}",
                            where=where,
                        )
                    if e in seen:
                        raise GraphError(f"expert {e} is chosen twice", where=where)
                    seen.add(e)


def gates_of(
    graph: Graph, named: Mapping[str, Sequence[tuple[Sequence[str], Sequence[str]]]]
) -> tuple[Gate, ...]:
    """Gates by names: for each gate's op, its experts as (tensors, ops). Raises :class:`GraphError`
    for an unknown name.
    """

    def positions(names: Sequence[str], index: Mapping[str, int], what: str) -> tuple[int, ...]:
        for name in names:
            if name not in index:
                raise GraphError(f"unknown {what} {name!r}")
        return tuple([index[name] for name in names])

    return tuple(
        Gate(
            positions([gate], graph.op_index, "op")[0],
            tuple(
                Expert(
                    positions(ts, graph.tensor_index, "tensor"),
                    positions(ops, graph.op_index, "op"),
                )
                for ts, ops in experts
            ),
        )
        for gate, experts in named.items()
    )


def _check_gates(graph: Graph, gates: Sequence[Gate]) -> None:
    """Raise :class:`GraphError` at the first contradiction, with its path as in the file format."""
    owner: dict[int, str] = {}
    owned: dict[int, str] = {}
    gate_ops = {gate.op for gate in gates}
    listed: set[int] = set()
    for g, gate in enumerate(gates):
        if not 0 <= gate.op < len(graph.ops):
            raise GraphError(f"no op number {gate.op}", where=f"gates[{g}].op")
        if gate.op in listed:
            raise GraphError(
                f"op {graph.ops[gate.op].name!r} is listed as two gates", where=f"gates[{g}].op"
            )
        listed.add(gate.op)
        for e, expert in enumerate(gate.experts):
            where = f"gates[{g}].experts[{e}]"
            if not expert.tensors:
                raise GraphError("expected at least one tensor to move", where=where)
            for j, i in enumerate(expert.ops):
                at = f"{where}.ops[{j}]"
                if not 0 <= i < len(graph.ops):
                    raise GraphError(f"no op number {i}", where=at)
                if i <= gate.op:
                    raise GraphError(
                        f"op {graph.ops[i].name!r} is not listed after its gate "
                        f"{graph.ops[gate.op].name!r}",
                        where=at,
                    )
                if i in gate_ops:
                    raise GraphError(f"op {graph.ops[i].name!r} is a gate itself", where=at)
                if i in owner:
                    raise GraphError(
                        f"op {graph.ops[i].name!r} is listed for {owner[i]} too", where=at
                    )
                owner[i] = where
            for j, t in enumerate(expert.tensors):
                if t in expert.tensors[:j]:
                    raise GraphError(
                        f"tensor {graph.tensors[t].name!r} is listed twice",
                        where=f"{where}.tensors[{j}]",
                    )
                _check_tensor(graph, t, gate, expert, f"{where}.tensors[{j}]")
                if t in owned:
                    raise GraphError(
                        f"tensor {graph.tensors[t].name!r} is listed for {owned[t]} too",
                        where=f"{where}.tensors[{j}]",
                    )
                owned[t] = where


def _check_tensor(graph: Graph, t: int, gate: Gate, expert: Expert, where: str) -> None:
    if not 0 <= t < len(graph.tensors):
        raise GraphError(f"no tensor number {t}", where=where)
    tensor = graph.tensors[t]
    if not tensor.persistent:
        raise GraphError(
            f"tensor {tensor.name!r} is of one step only; an expert's tensors are persistent",
            where=where,
        )
    if not graph.users[t]:
        raise GraphError(f"tensor {tensor.name!r} is used by none of its expert's ops", where=where)
    for i in graph.users[t]:
        if not expert.ops and i <= gate.op:
            raise GraphError(
                f"tensor {tensor.name!r} is used by op {graph.ops[i].name!r}, which is not listed "
                "after its gate",
                where=where,
            )
        if expert.ops and i not in expert.ops:
            raise GraphError(
                f"tensor {tensor.name!r} is used by op {graph.ops[i].name!r}, which is not its "
                "expert's",
                where=where,
            )
        if t in graph.ops[i].writes:
            raise GraphError(
                f"op {graph.ops[i].name!r} writes tensor {tensor.name!r}; an expert's tensors are "
                "only read",
                where=where,
            )


# -- steps of a trace
# ------------------------------------------------------------------------------------------------


def realise(routing: Routing, steps: int | range) -> Graph:
    """The graph of one step of the trace, or of several one after the other.

    Only the experts that a gate chose have their ops, which then depend on the gate.
    Other ops go without what only an absent op would have given them: a sum of experts' outputs
    adds up those that there are. In a graph of several steps the persistent tensors are shared, ops
    and other tensors are named ``NAME@STEP``, and no step begins before the one before it has
    ended. Parts of one tensor (:attr:`Tensor.of`) that no step chooses are one part, ``[rest]``,
    for each home and kind that they have. Its ``meta`` has the workload's, and what :func:`routed`
    reads. O(steps x uses). Raises :class:`GraphError` for a step that the trace has not.
    """
    wanted = range(steps, steps + 1) if isinstance(steps, int) else steps
    for s in wanted:
        if not 0 <= s < len(routing.steps):
            has = f"steps 0 to {len(routing.steps) - 1}" if routing.steps else "none"
            raise GraphError(f"there is no step {s} in the routing trace, which has {has}")
    base = routing.graph
    ops = len(wanted) * len(base.ops)
    if ops > limit("records"):
        raise GraphError(refusal("records", ops).message, where="steps")
    weave = _Weave(routing, wanted)
    for s in wanted:
        weave.add(s)
    last = f"-{wanted[-1]}" if len(wanted) > 1 else ""
    name = f"{base.name}@{wanted[0]}{last}" if wanted else base.name
    meta = {
        **base.meta,
        META: {
            "experts": [
                [
                    [base.tensors[t].name for t in expert.tensors if t in weave.shared]
                    for expert in gate.experts
                ]
                for gate in routing.gates
            ],
            "visits": weave.visits,
            "history": [
                [list(chosen) for chosen in step]
                for step in routing.steps[: wanted[0] if wanted else 0]
            ],
        },
    }
    return Graph(name, tuple(weave.tensors), tuple(weave.ops), meta)


class _Weave:
    """Steps of a trace being put one after the other."""

    def __init__(self, routing: Routing, steps: range) -> None:
        base = self.base = routing.graph
        self.routing = routing
        self.several = len(steps) > 1
        rest: dict[Tensor, list[int]] = {}  # by what alike parts have in common
        for t in self._rest(steps):
            rest.setdefault(
                replace(base.tensors[t], name=part_name(base.tensors[t].of, REST), size_bytes=0), []
            ).append(t)
        apart = {t for parts in rest.values() for t in parts}
        shared = [
            t for t, tensor in enumerate(base.tensors) if tensor.persistent and t not in apart
        ]
        self.shared = {t: k for k, t in enumerate(shared)}
        self.tensors: list[Tensor] = [base.tensors[t] for t in self.shared]
        taken = set(base.tensor_index)
        for alike, parts in rest.items():
            size = sum([base.tensors[t].size_bytes for t in parts])
            name = next(
                name
                for n in count()
                if (name := part_name(alike.of, REST + str(n or ""))) not in taken
            )
            taken.add(name)
            self.tensors.append(replace(alike, name=name, size_bytes=size))
        self.ops: list[Op] = []
        self.visits: list[list[Any]] = []
        self.last: dict[str, int] = {}  # of each stream, in the steps so far
        self.conditional = {
            i: (g, e)
            for g, gate in enumerate(routing.gates)
            for e, expert in enumerate(gate.experts)
            for i in expert.ops
        }
        self.of_candidate = {
            t: (g, e)
            for g, gate in enumerate(routing.gates)
            for e, x in enumerate(gate.experts)
            for t in x.tensors
        }
        self.gate_number = {gate.op: g for g, gate in enumerate(routing.gates)}
        self.makers: list[list[int]] = [[] for _ in base.tensors]
        for i, op in enumerate(base.ops):
            for t in op.outputs:
                self.makers[t].append(i)
        self.from_start = frozenset(base.initial)

    def _rest(self, steps: range) -> list[int]:
        """The parts of tensors that candidates without ops of their own have, and that no step
        chooses.
        """
        used = [
            {e for s in steps for e in self.routing.steps[s][g]}
            for g in range(len(self.routing.gates))
        ]
        return [
            t
            for chosen, gate in zip(used, self.routing.gates, strict=True)
            for e, expert in enumerate(gate.experts)
            if not expert.ops and e not in chosen
            for t in expert.tensors
            if self.base.tensors[t].of
        ]

    def add(self, step: int) -> None:
        """Append the ops of one step."""
        base, chosen = self.base, [frozenset(choice) for choice in self.routing.steps[step]]
        runs = [
            i not in self.conditional or self.conditional[i][1] in chosen[self.conditional[i][0]]
            for i in range(len(base.ops))
        ]
        suffix = f"@{step}" if self.several else ""
        tensor_at, op_at = dict(self.shared), dict[int, int]()
        before, entered = dict(self.last), set[str]()

        def there(listed: Sequence[int]) -> tuple[int, ...]:
            """Positions of the tensors that exist in this step."""
            found = []
            for t in listed:
                gate, candidate = self.of_candidate.get(t, (-1, -1))
                if gate >= 0 and candidate not in chosen[gate]:
                    continue
                if t not in tensor_at:
                    if t not in self.from_start and not any(runs[i] for i in self.makers[t]):
                        continue
                    tensor_at[t] = len(self.tensors)
                    tensor = base.tensors[t]
                    self.tensors.append(
                        replace(
                            tensor, name=tensor.name + suffix, of=tensor.of and tensor.of + suffix
                        )
                    )
                found.append(tensor_at[t])
            return tuple(found)

        for i, op in enumerate(base.ops):
            if not runs[i]:
                continue
            deps = {op_at[d] for d in self._deps(i, runs)}
            if op.stream not in entered:
                entered.add(op.stream)
                deps.update(last for stream, last in before.items() if stream != op.stream)
            op_at[i] = self.last[op.stream] = len(self.ops)
            if i in self.gate_number:
                self.visits.append([self.gate_number[i], op.name + suffix])
            self.ops.append(
                replace(
                    op,
                    name=op.name + suffix,
                    inputs=there(op.inputs),
                    outputs=there(op.outputs),
                    mutates=there(op.mutates),
                    deps=tuple(sorted(deps)),
                )
            )

    def _deps(self, i: int, runs: Sequence[bool]) -> Iterator[int]:
        """Yield what op ``i`` depends on besides its tensors: its gate, and instead of an absent op
        whatever that depends on.
        """
        if i in self.conditional:
            yield self.routing.gates[self.conditional[i][0]].op
        for d in self.base.ops[i].deps:
            if runs[d]:
                yield d
            else:
                yield from self._deps(d, runs)


# -- how far other draws differ
# --------------------------------------------------------------------------------------

_SPREAD = "spread"


def with_draw_spread(graph: Graph, spread: float) -> Graph:
    """The graph that says by what share other draws of its routing have more or fewer experts that
    come.
    """
    return replace(
        graph, meta={**graph.meta, META: {**graph.meta[META], _SPREAD: round(spread, 4)}}
    )


def draw_spread_of(graph: Graph) -> float:
    """Return the value that :func:`with_draw_spread` recorded; 0 where the routing is no draw, or
    every draw has as many.

    Raises :class:`GraphError` for a file that says something else.
    """
    said = graph.meta.get(META)
    spread = said.get(_SPREAD, 0.0) if isinstance(said, Mapping) else 0.0
    if (
        isinstance(spread, bool)
        or not isinstance(spread, int | float)
        or not 0 <= spread < float("inf")
    ):
        raise GraphError(
            f"expected a share of at least 0, got {shown(spread)}", where=f"meta.{META}.{_SPREAD}"
        )
    return float(spread)


# -- what a realised graph says of its routing
# -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GateDecision:
    """One decision of a gate in a realised graph: gate number ``gate`` is op ``op``, and chose
    ``chosen``, in the order of their first use.

    ``uses`` are the ops that use chosen experts' tensors, by tensor and ascending.
    """

    gate: int
    op: int
    chosen: tuple[int, ...]
    uses: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Routed:
    """The routing of a realised graph: the tensors of each gate's experts, each decision in listed
    order, and the trace before.
    """

    experts: tuple[tuple[tuple[int, ...], ...], ...]
    visits: tuple[GateDecision, ...]
    history: tuple[Choices, ...]

    @property
    def marked(self) -> tuple[int, ...]:
        """The tensors of all experts, ascending."""
        return tuple(sorted(t for gate in self.experts for tensors in gate for t in tensors))


def routed(graph: Graph) -> Routed | None:
    """The routing in a graph that :func:`realise` made, from a file or not; ``None`` if there is
    none.

    Raises :class:`GraphError` if its ``meta`` names what the graph has not.
    """
    return graph.derived(_routed)


def _routed(graph: Graph) -> Routed | None:
    said = graph.meta.get(META)
    if not said:
        return None
    try:
        experts = tuple(
            tuple(tuple(sorted([graph.tensor_index[name] for name in tensors])) for tensors in gate)
            for gate in said["experts"]
        )
        places = [(int(gate), graph.op_index[name]) for gate, name in said["visits"]]
        history = tuple(
            tuple(tuple(map(int, chosen)) for chosen in step) for step in said["history"]
        )
        uses: list[dict[int, list[int]]] = [{} for _ in places]
        for gate, candidates in enumerate(experts):
            mine = [v for v, (g, _) in enumerate(places) if g == gate]
            decided = [places[v][1] for v in mine]
            for t in (t for tensors in candidates for t in tensors):
                for user in graph.users[t]:
                    v = mine[bisect_right(decided, user) - 1]
                    uses[v].setdefault(t, []).append(user)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise GraphError(
            f"does not fit the graph ({type(error).__name__}: {error}); realise it again",
            where=f"meta.{META}",
        ) from None
    visits = []
    for v, (gate, op) in enumerate(places):
        used = {t: tuple(users) for t, users in sorted(uses[v].items(), key=lambda item: item[1])}
        number = {t: e for e, tensors in enumerate(experts[gate]) for t in tensors}
        visits.append(GateDecision(gate, op, tuple(dict.fromkeys(number[t] for t in used)), used))
    return Routed(experts, tuple(visits), history)
