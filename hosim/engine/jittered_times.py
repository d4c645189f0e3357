"""The effect of jitter on the times of one device's ops and transfers (docs/contract.md, rule
15).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from hosim.analysis import canonical_places
from hosim.analysis.costmodel.transfers import first_of_group
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.jitter import Jitter


def jittered(
    plan: Plan, durations: Sequence[int], jitter: Jitter, device: int, meetings: Mapping[int, int]
) -> tuple[int, ...]:
    """The durations of one device's ops. An op has the factor of its place in the workload; one
    that runs again has one beyond.

    A collective of several devices has that of the first of them.
    """
    ops, base = plan.graph.ops, plan.workload.op_index
    beyond = count(len(base))
    places = (
        range(len(ops))
        if plan.edits is None
        else [base[op.name] if op.name in base else next(beyond) for op in ops]
    )
    whose = [
        first_of_group(meetings[i], device) if i in meetings else device for i in range(len(ops))
    ]
    return tuple(
        [
            round(d * jitter.op_factor(who, i))
            for d, who, i in zip(durations, whose, places, strict=True)
        ]
    )


def transfer_factors(jitter: Jitter, device: int, workload: Graph) -> Callable[[int], float] | None:
    """Return a function that gives the factor of each tensor's next transfer on a device; ``None``
    if none has any.

    A tensor has that of its place in the canonical order of the workload's; those of ops that run
    again come after these.
    """
    if not jitter.transfer_sigma:
        return None
    copies: defaultdict[int, Iterator[int]] = defaultdict(count)
    places = workload.derived(canonical_places)
    return lambda t: jitter.transfer_factor(
        device, places[t] if t < len(places) else t, next(copies[t])
    )
