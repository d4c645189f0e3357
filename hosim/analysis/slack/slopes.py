"""What the makespan of a replay depends on, in first order: one walk backwards, and no other
replay.

Along the chain of ops and copies that ends last (:mod:`hosim.analysis.slack.step_path`) each part
began when the one before it ended, so that its length is part of the makespan. As long as the chain
stays the same, the makespan changes as the sum of its parts does. How late each copy may be at no
cost is its slack (:mod:`hosim.analysis.slack.transfer_slack`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hosim.analysis.slack.step_path import step_path
from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import Timeline


@dataclass(frozen=True, slots=True)
class Slopes:
    """The derivatives of a makespan.

    Parameters
    ----------
    bandwidth
        Nanoseconds for each byte per second more of a channel, by its name: below 0.
    latency
        Nanoseconds for each nanosecond more of a channel's latency: how many of its copies are in
        the chain.
    processor
        Nanoseconds for each 100 % more of the time of all ops of a processor, by its tier: how much
        of the chain they are.
    kind
        The same for the ops of each kind.
    """

    bandwidth: Mapping[str, float]
    latency: Mapping[str, int]
    processor: Mapping[str, int]
    kind: Mapping[str, int]


def slopes(plan: Plan, hardware: Hardware, timeline: Timeline) -> Slopes:
    """The slopes of a replay's makespan, from its timeline.

    They hold as long as the same chain ends last; at a change of chains the makespan has a corner.
    What is left out: where copies share a fabric or a memory, how a change of one moves the rate of
    others.

    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.engine import replay
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr")
    >>> _ = b.op("g", "matmul", inputs=["w"], duration_ns=50)
    >>> moves = CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)
    >>> plan, toy = Plan(b.build(), cache_ops=moves), load_hardware(find_hardware("toy"))
    >>> slopes(plan, toy, replay(plan, toy, record=True).timeline)
    Slopes(bandwidth={'h2d': -4e-08}, latency={'h2d': 1}, processor={'hbm': 50}, kind={'matmul': 50})
    """
    channels = {channel.name: channel for channel in hardware.channels}
    flows, copies = Counter[str](), Counter[str]()
    processors, kinds = Counter[str](), Counter[str]()
    for part in step_path(plan, hardware, timeline):
        ns = part.end_ns - part.start_ns
        if part.op >= 0:
            op = plan.graph.ops[part.op]
            processors[tier_of(op, hardware)] += ns
            kinds[op.kind] += ns
        elif part.transfer >= 0:
            copies[part.where] += 1
            flows[part.where] += max(0, ns - channels[part.where].latency_ns)
    rates = {name: -ns / channels[name].bandwidth_bytes_per_s for name, ns in flows.items()}
    return Slopes(rates, dict(copies), dict(processors), dict(kinds))
