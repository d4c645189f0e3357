"""What the hand-derived timelines have in common: a machine of one byte a nanosecond, and a replay
put into words.

``replayed`` gives ``ops`` {name: (start, end)} and ``moves`` [(cache op, tensor, issue, start,
end)] in order of end, next to the result; it runs both with and without a record, which must not
differ.
"""

from dataclasses import dataclass

from both_engines import replay

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.result import Result

GB = 10**9  # bytes a second: one byte a nanosecond


def machine(
    hbm=100, ddr=1000, nvme=None, h2d=GB, d2h=GB, latency=0, engines=1, fabric=None, inspect=0
) -> Hardware:
    tiers = [Tier("hbm", hbm, 10**12, "device"), Tier("ddr", ddr, 10**11)]
    channels = [
        Channel("h2d", "ddr", "hbm", h2d, latency, engines),
        Channel("d2h", "hbm", "ddr", d2h, latency, engines),
    ]
    if nvme is not None:
        tiers.append(Tier("nvme", nvme, 10**10))
        channels += [
            Channel("n2d", "nvme", "hbm", GB),
            Channel("d2n", "hbm", "nvme", GB),
            Channel("n2h", "nvme", "ddr", GB),
        ]
    fabrics = (Fabric("pcie", fabric, ("h2d", "d2h")),) if fabric else ()
    return Hardware(
        "by hand", tuple(tiers), tuple(channels), Compute({}), fabrics=fabrics, inspect_ns=inspect
    )


def workload(tensors: dict[str, tuple], ops: dict[str, dict]) -> Graph:
    """Tensors as name: (bytes, kind, home), kind and home with defaults; ops as name: fields, in
    listed order.
    """
    b = GraphBuilder("by hand")
    for name, given in tensors.items():
        b.tensor(name, *given)
    for name, given in ops.items():
        b.op(name, given.pop("kind", "any"), duration_ns=given.pop("ns"), **given)
    return b.build()


def plan(graph: Graph, *cache_ops: tuple[str, str, str | None], initial=None, runtime=None) -> Plan:
    """Cache ops as ("prefetch w" or "store w ddr" or "detach w hbm" ..., after); see ``_cache_op``
    for the words.
    """
    placed = tuple(_cache_op(graph, words.split(), after) for words, after in cache_ops)
    return Plan(
        graph,
        "by hand",
        placed,
        {graph.tensor_index[t]: tuple(w) for t, w in (initial or {}).items()},
        runtime,
    )


def _cache_op(graph: Graph, words: list[str], after: str | None) -> CacheOp:
    """``prefetch w [from] [to]`` (from ddr to hbm), ``store w [to]`` (from hbm to ddr), ``detach w
    [tier]`` (hbm).
    """
    op, name, *places = words
    position = AT_START if after is None else graph.op_index[after]
    if op == "prefetch":
        source, destination = (
            [*places, "ddr", "hbm"][:2] if len(places) != 1 else (places[0], "hbm")
        )
    elif op == "store":
        source, destination = "hbm", [*places, "ddr"][0]
    else:
        source, destination = [*places, "hbm"][0], None
    return CacheOp(op, graph.tensor_index[name], source, destination, position)


@dataclass
class Replayed:
    """A result in words."""

    result: Result
    ops: dict[str, tuple[int, int]]
    moves: list[tuple[str, str, int, int, int]]

    @property
    def stalls(self) -> dict[str, int]:
        """Stalls of the main stream, those of no length left out."""
        return {cause: ns for cause, ns in self.result.stall_ns.items() if ns}


def replayed(the_plan: Plan, hardware: Hardware, budget: int | None = None) -> Replayed:
    result = replay(the_plan, hardware, budget, record=True)
    assert replay(the_plan, hardware, budget) == result
    graph, timeline = the_plan.graph, result.timeline
    ops = {
        op.name: (timeline.op_start_ns[i], timeline.op_end_ns[i]) for i, op in enumerate(graph.ops)
    }
    moves = []
    for x in timeline.transfers:
        op = the_plan.cache_ops[x.cache_op].op if x.cache_op >= 0 else x.channel
        moves.append((op, graph.tensors[x.tensor].name, x.issue_ns, x.start_ns, x.end_ns))
    return Replayed(result, ops, moves)


def blames(the_plan: Plan, result: Result) -> list[tuple[str, int, int, str, str]]:
    """Transfer stalls of all streams as (op, from, until, tensor, channel) of the transfer that
    each is blamed on.
    """
    found = []
    for stall in result.timeline.stalls:
        if stall.cause == "transfer":
            x = result.timeline.transfers[stall.transfer]
            found.append(
                (
                    the_plan.graph.ops[stall.op].name,
                    stall.start_ns,
                    stall.end_ns,
                    the_plan.graph.tensors[x.tensor].name,
                    x.channel,
                )
            )
    return found
