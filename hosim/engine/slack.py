"""The slack of a plan's copies, from its replay: for its file, and for what explains it."""

from collections.abc import Mapping
from dataclasses import replace

from hosim.analysis.slack import Latitude, latitudes
from hosim.cache_plan import Plan
from hosim.engine.replay import times_of
from hosim.hardware import Hardware


def replayed_latitudes(plan: Plan, hardware: Hardware, budget_bytes: int) -> Mapping[int, Latitude]:
    """The latitude of each copy of a plan in its replay, by its place in ``plan.cache_ops``; none
    where :func:`times_of` finds no times.
    """
    times = times_of(plan, hardware, budget_bytes)
    return {} if times is None else latitudes(plan, hardware, budget_bytes, times)


def with_slack(plan: Plan, hardware: Hardware, budget_bytes: int) -> Plan:
    """The plan whose cache ops say their slack on this machine within this budget; those of which
    it is not known say none.

    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", duration_ns=50)
    >>> _ = b.op("g", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=1),
    ...     ),
    ... )
    >>> [c.slack_ns for c in with_slack(plan, load_hardware(find_hardware("toy")), 100).cache_ops]
    [10, None]
    """
    found = replayed_latitudes(plan, hardware, budget_bytes)
    slack = [found[k].slack_ns if k in found else None for k in range(len(plan.cache_ops))]
    said = [
        c if c.slack_ns == ns else replace(c, slack_ns=ns)
        for c, ns in zip(plan.cache_ops, slack, strict=True)
    ]
    return replace(plan, cache_ops=tuple(said))
