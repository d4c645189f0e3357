"""What the verifier says of plans that were damaged at random, a row each, and what the replay
makes of them.

Plans are those of policies for drawn graphs, on one stream, on two, and made for one and then on
two, on the machine of kept_streams.py. A damage is one to three cache ops that are dropped, moved,
doubled or changed, or other tiers at time 0; of an edited graph, ops that are swapped, lost,
renamed or changed. After a change that is meant to alter findings::

    python tests/kept/write.py kept_findings

writes the table anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from random import Random

from instances import Instance, instance
from kept_streams import machine, two_streams
from kept_table import KeptTable, Row, checksum

from hosim.analysis.verifying import Finding, verify
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import GraphError, HosimError
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.policies import own, policy_named

COLUMNS = ("instance", "policy", "damage", "rules", "makespan_ns", "checksum")
SEED = 31
INSTANCES = range(16)
POLICIES = ("g10", "layerwise")
DAMAGES = range(20)
DAMAGED_EDITS = range(12)


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    lots = Random(f"{SEED} {number}")
    policy = policy_named(POLICIES[number // 4 % 2])
    hardware, budget = machine(drawn.graph), drawn.budget_bytes
    cut = replace(hardware, channels=tuple(c for c in hardware.channels if c.name != "write"))
    plain, other = (
        policy.plan(graph, hardware, budget) for graph in (drawn.graph, two_streams(drawn.graph))
    )
    for how, plan in (
        ("one", plain),
        ("two", other),
        ("one on two", replace(plain, graph=other.graph)),
    ):
        for damage in DAMAGES:
            given = plan
            for _ in range(lots.randint(1, 3)):
                given = damaged(given, lots, hardware)
            told = _told(
                given,
                lots.choice((hardware, hardware, cut)),
                lots.choice((None, budget * 2, budget // 2)),
            )
            yield (f"{drawn.name}/{how}", plan.policy, str(damage), *told)
    yield from _of_edits(drawn, lots)


def damaged(plan: Plan, lots: Random, hardware: Hardware) -> Plan:
    """The plan with one thing that is otherwise."""
    cache_ops, initial = list(plan.cache_ops), dict(plan.initial)
    tiers = [*hardware.tier_index, "tape"]
    kind = lots.randrange(9) if cache_ops else 8
    if kind == 8:
        held = plan.graph.initial
        t = (
            lots.choice(held)
            if held and lots.random() < 0.8
            else lots.randrange(len(plan.graph.tensors) + 1)
        )
        initial[t] = tuple(lots.sample(tiers, lots.randint(0, 2)))
        return replace(plan, initial=initial)
    k = lots.randrange(len(cache_ops))
    c = cache_ops[k]
    if kind == 0:
        del cache_ops[k]
    elif kind == 1:
        cache_ops.insert(lots.randrange(len(cache_ops)), c)
    elif kind in (2, 3, 4):
        cache_ops[k] = CacheOp(
            c.op, c.tensor, c.source, c.destination, c.after + lots.randint(-6, 6)
        )
    elif kind == 5:
        cache_ops[k] = CacheOp(c.op, c.tensor, lots.choice(tiers), c.destination, c.after)
    elif kind == 6:
        cache_ops[k] = CacheOp(c.op, c.tensor, c.source, lots.choice([*tiers, None]), c.after)
    else:
        tensor = lots.randint(-1, len(plan.graph.tensors))
        cache_ops[k] = CacheOp(
            lots.choice(("prefetch", "store", "detach", "move")),
            tensor,
            c.source,
            c.destination,
            c.after,
        )
    return replace(plan, cache_ops=tuple(cache_ops))


def _told(plan: Plan, hardware: Hardware, budget: int | None) -> tuple[str, str, str]:
    findings = verify(plan, hardware, budget)
    malformed = any(finding.rule in ("malformed", "tier") for finding in findings)
    makespan, error = (None, None) if malformed else _replayed(plan, hardware, budget)
    return _rules(findings), "" if makespan is None else str(makespan), checksum((findings, error))


def _rules(findings: Iterable[Finding]) -> str:
    return " ".join(
        f"{count} {rule}"
        for rule, count in sorted(Counter(finding.rule for finding in findings).items())
    )


def _replayed(plan: Plan, hardware: Hardware, budget: int | None) -> tuple[int | None, str | None]:
    try:
        result = replay(plan, hardware, budget)
    except HosimError as broken:
        return None, str(broken)
    return result.makespan_ns, result.error


# -- edited graphs
# --------------------------------------------------------------------------------------------------


def _of_edits(drawn: Instance, lots: Random) -> Iterator[Row]:
    plan = own.plan(
        drawn.graph,
        drawn.hardware,
        drawn.budget_bytes,
        effort=0.2,
        seed=0,
        reorder=True,
        recompute=True,
    )
    for damage in DAMAGED_EDITS if plan.edits is not None else ():
        ops = list(plan.graph.ops)
        for _ in range(lots.randint(1, 2)):
            _damage(ops, lots, len(plan.graph.tensors))
        try:
            graph = Graph(plan.graph.name, plan.graph.tensors, tuple(ops))
        except GraphError as error:
            yield (f"{drawn.name}/edited", plan.policy, str(damage), str(error), "", "")
            continue
        findings = verify(replace(plan, graph=graph), drawn.hardware)
        yield (
            f"{drawn.name}/edited",
            plan.policy,
            str(damage),
            _rules(findings),
            "",
            checksum(findings),
        )


def _damage(ops: list[Op], lots: Random, tensors: int) -> None:
    k, other = lots.sample(range(len(ops)), 2)
    op = ops[k]
    kind = lots.randrange(6)
    if kind == 0:
        ops[k], ops[other] = ops[other], op
    elif kind == 1:
        del ops[k]
    elif kind == 2:
        ops[k] = replace(op, name=f"{op.name} again")
    elif kind == 3:
        field = lots.choice(("flops", "bytes_accessed", "workspace_bytes"))
        ops[k] = replace(op, **{field: getattr(op, field) + 1})
    elif kind == 4:
        ops[k] = replace(op, inputs=op.inputs[1:])
    else:
        t = lots.randrange(tensors)
        ops[k] = (
            replace(op, inputs=(t, *op.inputs[1:])) if t not in op.uses else replace(op, mutates=())
        )


TABLE = KeptTable("kept_findings", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
