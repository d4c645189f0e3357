"""The copies of a tensor that each op using it waits for (docs/contract.md, rule 1: *Resident* and
*Before*).
"""

from collections.abc import Iterator, Sequence

from hosim.cache_plan import PREFETCH, Plan


def awaited_copies(
    plan: Plan, t: int, copies: Sequence[int], where: Sequence[str]
) -> Iterator[tuple[int, int | None, Sequence[int]]]:
    """For each op that uses tensor ``t``, in listed order: what it waits for of the ``copies`` of
    the tensor that are listed before it.

    ``copies`` are places in ``plan.cache_ops``, by ``after`` and then by place; ``where`` is the
    tier that each op reads and writes. An op comes with the copy that brings what it reads
    (``None``: none does), and with those that it waits for because it writes the tensor: the op
    that wrote it before has waited for the others.
    """
    graph, cache_ops = plan.graph, plan.cache_ops
    last: dict[
        tuple[str, bool], int
    ] = {}  # the last one into a tier so far, of all and of prefetches alone
    passed = awaited = 0
    for i in graph.users[t]:
        op = graph.ops[i]
        while passed < len(copies) and cache_ops[copies[passed]].after < i:
            k = copies[passed]
            into = cache_ops[k].destination or ""
            last[into, False] = k
            if cache_ops[k].op == PREFETCH:
                last[into, True] = k
            passed += 1
        arriving = last.get((where[i], not op.processor)) if t in op.reads else None
        before: Sequence[int] = ()
        if t in op.writes:
            before, awaited = copies[awaited:passed], passed
        yield i, arriving, before
