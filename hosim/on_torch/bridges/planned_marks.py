"""The saved activations that a runtime is told to offload: which of them, by hosim's planner under
what the runtime can carry out.

A runtime of others offloads a saved activation whole and once, and places its copies by a rule of
its own. So each activation that it could offload is away between two ops or not at all, and a plan
is a set of them. The planner plans for a graph in which nothing else can move
(:func:`_movable_alone`), and each set that it comes to is judged by a replay of the runtime's own
copies. Its rival is a simple rule: the largest that is idle at the peak, until the peak is within
the budget. The better of the two is taken.

Imports torch 2.13 or later.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hosim.analysis import static_curve
from hosim.analysis.costmodel import op_durations
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.errors import InfeasibleError
from hosim.graph import MAIN_STREAM, Graph, Tensor
from hosim.hardware import Hardware
from hosim.on_torch.bridges.torch_copies import replayed
from hosim.on_torch.lower import TorchProgram
from hosim.policies import own
from hosim.result import Result
from hosim.units import human_size

CarriedOut = tuple[TorchProgram, Sequence[CacheOp]]
"""A program, and the copies that a runtime makes in it."""


@dataclass(frozen=True)
class IdleActivation:
    """A saved activation that can be offloaded, with the copies that the runtime makes of it: down
    after op ``stored``, away after op ``after`` up to op ``before``.
    """

    node: str
    tensor: int
    stored: int
    after: int
    before: int
    copies: tuple[CacheOp, ...]


def marks(
    could: CarriedOut,
    nodes: Iterable[str],
    carry_out: Callable[[frozenset[str]], CarriedOut],
    policy: str,
    hardware: Hardware,
    budget: int,
) -> tuple[frozenset[str], Plan, Result]:
    """The nodes to offload of those that the runtime could, the plan that it then carries out, under
    the name ``policy``, and its replay: ``could`` is what it makes of all of them, and ``carry_out``
    what it makes of some.

    Raises :class:`InfeasibleError` where none fits: also where the runtime copies some back earlier
    than it copies all of them back.
    """
    sets = _sets(could[0], _idle(could, nodes), hardware, budget)
    carried = [carry_out(chosen) for chosen in sets]
    plans = [Plan(program.graph, policy, tuple(copies)) for program, copies in carried]
    results = [replayed(plan, hardware, budget) for plan in plans]
    fitting = [(r.makespan_ns or 0, at) for at, r in enumerate(results) if r.feasible]
    if not fitting:
        raise InfeasibleError(f"where torch copies back what is marked: {results[-1].error}")
    _, at = min(fitting)
    return sets[at], plans[at], results[at]


def _idle(carried: CarriedOut, nodes: Iterable[str]) -> list[IdleActivation]:
    """Those of the nodes whose storage is copied down, released and copied back once, with an op
    between that it need not be there for.
    """
    program, copies = carried
    of: dict[int, list[CacheOp]] = {}
    for copy in copies:
        of.setdefault(copy.tensor, []).append(copy)
    found = []
    for node in nodes:
        made = of.get(program.tensor_of.get(node, -1), [])
        place = {one.op: -1 if one.after is None else one.after for one in made}
        if len(made) == 3 and place.keys() == {STORE, DETACH, PREFETCH} and place[STORE] >= 0:
            after, before = place[DETACH], place[PREFETCH] + 1
            if after + 1 < before < len(program.graph.ops):
                t = made[0].tensor
                found.append(IdleActivation(node, t, place[STORE], after, before, tuple(made)))
    return sorted(found, key=lambda one: (one.stored, one.tensor))


def _sets(
    program: TorchProgram, idle: Sequence[IdleActivation], hardware: Hardware, budget: int
) -> list[frozenset[str]]:
    """The best set that the planner comes to, and that of the rule."""
    largest = _largest(program.graph, idle, hardware.device_tier, budget)
    if not largest:
        return [largest]
    seen: dict[frozenset[str], Result] = {}

    def judge(plan: Plan, *_: object) -> Result:
        tensors = plan.graph.tensors
        away = frozenset(tensors[one.tensor].name for one in plan.cache_ops if one.op == PREFETCH)
        if away not in seen:
            copies = [copy for one in idle if one.node in away for copy in one.copies]
            copies.sort(key=lambda copy: -1 if copy.after is None else copy.after)
            seen[away] = replayed(Plan(program.graph, "", tuple(copies)), hardware, budget)
        return seen[away]

    graph = _movable_alone(program.graph, idle, hardware)
    with suppress(InfeasibleError):
        own.plan(graph, hardware, budget, seed=0, reorder=False, recompute=False, judge=judge)
    fitting = [
        (result.makespan_ns or 0, len(away), sorted(away))
        for away, result in seen.items()
        if result.feasible
    ]
    best = [frozenset(min(fitting)[2])] if fitting else []
    return [*dict.fromkeys([*best, largest])]


def _largest(
    graph: Graph, idle: Sequence[IdleActivation], device: str, budget: int
) -> frozenset[str]:
    """While the peak is above the budget, the largest activation that is idle there.

    Raises :class:`InfeasibleError` where none is.
    """
    curve = static_curve(graph, device)
    left = sorted(idle, key=lambda one: (-graph.tensors[one.tensor].size_bytes, one.after))
    nodes: list[str] = []
    while (peak := max(curve, default=0)) > budget:
        at = curve.index(peak)
        found = next((one for one in left if one.after < at < one.before), None)
        if found is None:
            raise InfeasibleError(
                f"forward and backward hold {human_size(peak)} at op {graph.ops[at].name!r}, "
                "where nothing is idle that torch can offload, and the budget is "
                f"{human_size(budget)}"
            )
        left.remove(found)
        nodes.append(found.node)
        for k in range(found.after + 1, found.before):
            curve[k] -= graph.tensors[found.tensor].size_bytes
    return frozenset(nodes)


def _movable_alone(graph: Graph, idle: Collection[IdleActivation], hardware: Hardware) -> Graph:
    """The same ops with the same bytes held, where only these activations are tensors, each with
    the one gap in which the runtime can have it away. What the device holds besides is workspace of
    the ops.

    Its ops are on one stream, or workspaces would count twice: those of other streams take no time.
    """
    held = static_curve(graph, hardware.device_tier)
    outputs: list[list[int]] = [[] for _ in graph.ops]
    inputs: list[list[int]] = [[] for _ in graph.ops]
    for k, one in enumerate(idle):
        size = graph.tensors[one.tensor].size_bytes
        outputs[one.stored].append(k)
        for i in (*range(one.stored + 1, one.after + 1), one.before):
            inputs[i].append(k)
        for i in range(one.stored, one.before + 1):
            held[i] -= size
    durations = op_durations(graph, hardware)
    ops = [
        replace(
            op,
            inputs=tuple(inputs[i]),
            outputs=tuple(outputs[i]),
            mutates=(),
            deps=(),
            stream=MAIN_STREAM,
            duration_ns=durations[i] if op.stream == graph.main_stream else 0,
            workspace_bytes=held[i],
        )
        for i, op in enumerate(graph.ops)
    ]
    tensors = [Tensor(one.node, graph.tensors[one.tensor].size_bytes) for one in idle]
    return Graph(graph.name, tensors, ops)
