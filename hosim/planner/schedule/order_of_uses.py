"""Plans that do not depend on the order in which a workload lists its tensors.

Policies break ties by a tensor's position. So they plan for the workload in an order that follows
from what its ops do (:mod:`hosim.analysis.canonical`), and the plan is then told in the positions
of the workload as it is.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from hosim.analysis import ascend, canonical, inverse
from hosim.cache_plan import CacheOp, MemoryView, Plan, RuntimeFactory, RuntimePolicy
from hosim.graph import Graph


def planned_in_order_of_uses(make: Callable[[Graph], Plan], graph: Graph) -> Plan:
    """The plan that ``make`` makes for the graph in the order of its uses, for the graph as it
    is.
    """
    return plan_for(make(graph.derived(canonical)), graph)


def plan_for(plan: Plan, workload: Graph) -> Plan:
    """The same plan for ``workload``, which lists the tensors of the plan's workload in another
    order.

    The planner's notes (``judgement``) keep the positions of the graph in the order of its uses.
    """
    if plan.workload is workload:
        return plan
    edits = None if plan.edits is None else replace(plan.edits, base=workload)
    graph = workload if edits is None else edits.graph()
    index = graph.tensor_index
    place = [index[name] for name in plan.graph.tensors.names]
    return replace(
        plan,
        graph=graph,
        edits=edits,
        cache_ops=tuple(
            [
                CacheOp(c.op, place[c.tensor], c.source, c.destination, c.after, c.slack_ns)
                for c in plan.cache_ops
            ]
        ),
        initial={place[t]: tiers for t, tiers in plan.initial.items()},
        runtime=None if plan.runtime is None else _decided_elsewhere(plan.runtime, place),
        proof=None if plan.proof is None else replace(plan.proof, workload=workload),
    )


def _decided_elsewhere(make: RuntimeFactory, place: Sequence[int]) -> RuntimeFactory:
    """Return a runtime that makes the same decisions about tensors that stand at ``place``."""
    first, to = (
        (make.make, [place[t] for t in make.place])
        if isinstance(make, Repositioned)
        else (make, place)
    )
    return first if ascend(to) else Repositioned(first, tuple(to))


@dataclass(frozen=True)
class Repositioned:
    """Makes the runtime policies of ``make`` for a graph whose tensors stand elsewhere: tensor
    ``t`` of theirs at ``place[t]``.
    """

    make: RuntimeFactory
    place: tuple[int, ...]

    def __call__(self) -> RuntimePolicy:
        """A fresh policy object."""
        return _Elsewhere(self.make(), self.place)


class _Elsewhere:
    """A :class:`~hosim.cache_plan.RuntimePolicy` whose tensors stand elsewhere in the graph that is
    replayed.
    """

    def __init__(self, inner: RuntimePolicy, place: Sequence[int]) -> None:
        self._inner = inner
        self._place = place
        self._listed = inverse(place)
        inspected: Container[int] | None = getattr(inner, "inspected", None)
        if inspected is not None:
            self.inspected = inspected

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.before_op`."""
        return self._told(
            self._inner.before_op(op, _InOrderOfUses(view, self._place, self._listed))
        )

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.make_room`."""
        return self._told(
            self._inner.make_room(op, wanted_bytes, _InOrderOfUses(view, self._place, self._listed))
        )

    def _told(self, decisions: Iterable[CacheOp]) -> list[CacheOp]:
        return [
            CacheOp(c.op, self._place[c.tensor], c.source, c.destination, c.after)
            for c in decisions
        ]


class _InOrderOfUses:
    """A :class:`~hosim.cache_plan.MemoryView` in the positions of a policy whose tensors stand at
    ``place``.
    """

    def __init__(self, view: MemoryView, place: Sequence[int], listed: Sequence[int]) -> None:
        self._view = view
        self._place = place
        self._listed = listed

    @property
    def now_ns(self) -> int:
        return self._view.now_ns

    @property
    def capacity_bytes(self) -> int:
        return self._view.capacity_bytes

    @property
    def free_bytes(self) -> int:
        return self._view.free_bytes

    def residents(self) -> Iterable[int]:
        return sorted([self._listed[t] for t in self._view.residents()])

    def is_resident(self, tensor: int) -> bool:
        return self._view.is_resident(self._place[tensor])

    def is_busy(self, tensor: int) -> bool:
        return self._view.is_busy(self._place[tensor])

    def tiers_of(self, tensor: int) -> Sequence[str]:
        return self._view.tiers_of(self._place[tensor])
