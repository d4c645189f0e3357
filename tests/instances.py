"""Random small workloads on toy machines, for the exact solver and the planners that are measured
against it.

:func:`instance` draws one from its seed and its number; equal arguments give equal instances, on
any machine. Toy scale: 1 byte takes 1 to 2 ns each way, ops take 4 to 20 ns, so that a typical
tensor's transfer takes 0.3 to 5 ops. Budgets reach from the largest working set of a single op
(nothing tighter can run) to the peak with everything resident (nothing has to move). Every lower
tier holds everything, so each instance is feasible. The tighter the budget the fewer the ops, at
most 14 to 40, so that nearly all can be solved exactly.

Families:

``inference_hbm``, ``inference_ddr``
    a chain of layers, one parameter each (at home in the device tier, or below), now and then a
    tied parameter, a residual connection, a cache that the layer updates in place
``training``
    forward, backward in mirrored order with the activations used again, then parameters and
    optimizer states updated in place: at the end of the step or right after each backward op
``dag``
    ops that read any earlier results and parameters of either home, with long and short live
    ranges, in-place updates, workspaces

Three machines in four have one tier below; the others a second, slower one, ``pool``, with channels
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from hosim.data.graph_parts import REST, part_name
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

NS = 10**9
FAMILIES = ("inference_hbm", "inference_ddr", "training", "dag")
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Where a budget lies between the least that runs and the most that helps."""


@dataclass(frozen=True)
class Instance:
    """A graph, a machine and a budget; ``name`` says how to draw it again."""

    name: str
    family: str
    graph: Graph
    hardware: Hardware
    budget_bytes: int


def instances(count: int, seed: int = 0) -> Iterator[Instance]:
    """``count`` instances, the families in turn, of 10 to 40 ops."""
    for number in range(count):
        yield instance(number, seed)


def instance(number: int, seed: int = 0) -> Instance:
    """Instance ``number`` of ``seed``."""
    draw = Random(f"{seed}/{number}")
    family = FAMILIES[number % len(FAMILIES)]
    fraction = draw.choice(FRACTIONS)
    ops = draw.randint(10, min(40, 14 + round(fraction * 45)))
    name = f"{family}-{seed}-{number}"
    graph = {
        "inference_hbm": _inference,
        "inference_ddr": _inference,
        "training": _training,
        "dag": _dag,
    }[family](draw, name, ops, family)
    hardware = _machine(draw, graph)
    floor, peak = working_set(graph), resident_peak(graph)
    budget = floor + round((peak - floor) * fraction)
    return Instance(name, family, graph, hardware, budget)


def instance_on_streams(number: int, seed: int = 0) -> Instance:
    """Instance ``number`` of ``seed`` of one to three streams, in turn, and as many tiers below;
    small where there are several streams.
    """
    draw = Random(f"streams/{seed}/{number}")
    streams = 1 + number % 3
    family = FAMILIES[number // 3 % len(FAMILIES)]
    fraction = draw.choice(FRACTIONS)
    ops = (
        draw.randint(10, min(40, 14 + round(fraction * 45)))
        if streams == 1
        else draw.randint(6, 12)
    )
    name = f"{family}-{streams}-streams-{seed}-{number}"
    graph = {
        "inference_hbm": _inference,
        "inference_ddr": _inference,
        "training": _training,
        "dag": _dag,
    }[family](draw, name, ops, family)
    others = [f"aux{k}" for k in range(1, streams)]
    moved = tuple(
        replace(op, stream=draw.choice(others)) if others and draw.random() < 0.4 else op
        for op in graph.ops
    )
    graph = Graph(name, graph.tensors, moved)
    hardware = _machine(draw, graph, ("ddr", "pool", "nvme")[: draw.choice((1, 1, 2, 3))])
    floor, peak = working_set(graph), resident_peak(graph)
    return Instance(name, family, graph, hardware, floor + round((peak - floor) * fraction))


def instance_of_parts(number: int, seed: int = 0) -> Instance:
    """Instance ``number`` of ``seed`` of steps that use parts of tensors
    (:func:`hosim.data.graph_parts.part_name`), on one stream or two.

    One or two tokens are decoded. The first op reads rows of a table, which the head may read
    whole. A layer writes the new part of a cache, and reads it and the past ones; or it reads the
    parts that were chosen of its experts, in one op or in an op for each. Some tensors begin below.
    """
    draw = Random(f"parts/{seed}/{number}")
    streams = 1 + number % 2
    fraction = draw.choice(FRACTIONS)
    ops = (
        draw.randint(10, min(30, 14 + round(fraction * 45)))
        if streams == 1
        else draw.randint(6, 12)
    )
    name = f"parts-{streams}-streams-{seed}-{number}"
    graph = _parts(draw, name, ops)
    if streams > 1:
        graph = Graph(
            name,
            graph.tensors,
            tuple(replace(op, stream="aux") if draw.random() < 0.4 else op for op in graph.ops),
        )
    hardware = _machine(draw, graph)
    floor, peak = working_set(graph), resident_peak(graph)
    return Instance(name, "parts", graph, hardware, floor + round((peak - floor) * fraction))


def working_set(graph: Graph) -> int:
    """Bytes of the op that uses most, its workspace included: the least budget within which
    anything can run.
    """
    return max(
        op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in op.uses) for op in graph.ops
    )


def resident_peak(graph: Graph) -> int:
    """Peak bytes if everything is in the device tier from the start, or its first use, to the end,
    or its last use.
    """
    peak = 0
    for i, op in enumerate(graph.ops):
        held = op.workspace_bytes
        for t, users in enumerate(graph.users):
            begins = t in graph.initial or (users and users[0] <= i)
            ends = not graph.survives[t] and users and users[-1] < i
            held += graph.tensors[t].size_bytes if begins and not ends else 0
        peak = max(peak, held)
    return peak


def _machine(draw: Random, graph: Graph, below: tuple[str, ...] = ()) -> Hardware:
    everything = (
        sum(tensor.size_bytes for tensor in graph.tensors)
        + sum(op.workspace_bytes for op in graph.ops)
        + 1
    )
    lower = below or (("ddr", "pool") if draw.random() < 0.25 else ("ddr",))
    tiers, channels = [Tier("hbm", everything, NS, "device")], []
    for k, name in enumerate(lower):
        up, down = draw.choice(((1.0, 1.0), (1.0, 0.8), (1.0, 0.5), (0.8, 1.0)))
        slower = draw.choice((0.5, 0.8)) if k else 1.0
        latency = draw.choice((0, 0, 1, 2))
        tiers.append(Tier(name, everything, NS, "global" if k else "host"))
        channels.append(Channel(f"h2d{k or ''}", name, "hbm", int(NS * up * slower), latency))
        channels.append(Channel(f"d2h{k or ''}", "hbm", name, int(NS * down * slower), latency))
    return Hardware("toy-" + "-".join(lower), tuple(tiers), tuple(channels), Compute({}))


def _duration(draw: Random) -> int:
    return draw.randint(4, 20)


def _large(draw: Random) -> int:
    """Bytes of a parameter: 0.3 to 5 ops of transfer, small ones as likely as large ones."""
    return round(4 * 15 ** draw.random())


def _small(draw: Random) -> int:
    return draw.randint(3, 25)


def _workspace(draw: Random) -> int:
    return draw.randint(1, 12) if draw.random() < 0.2 else 0


def _inference(draw: Random, name: str, ops: int, family: str) -> Graph:
    b = GraphBuilder(name)
    home = "ddr" if family == "inference_ddr" else None
    mixed = draw.random() < 0.2
    uniform = _large(draw) if draw.random() < 0.5 else None
    last = b.tensor("x", _small(draw), "input")
    weights: list[str] = []
    results: list[str] = []
    for i in range(ops):
        reads, mutates = [last], []
        if weights and draw.random() < 0.08:
            reads.append(draw.choice(weights))
        elif draw.random() < 0.6:
            where = draw.choice((None, "ddr")) if mixed else home
            weights.append(b.tensor(f"w{i}", uniform or _large(draw), "parameter", where))
            reads.append(weights[-1])
        if len(results) > 2 and draw.random() < 0.12:
            reads.append(draw.choice(results[-6:-1]))
        if draw.random() < 0.1:
            mutates.append(b.tensor(f"kv{i}", _small(draw), "kv_cache"))
        last = b.tensor(f"a{i}", _small(draw), "output" if i == ops - 1 else "activation")
        results.append(last)
        b.op(
            f"f{i}",
            "matmul",
            inputs=reads,
            outputs=[last],
            mutates=mutates,
            duration_ns=_duration(draw),
            workspace_bytes=_workspace(draw),
        )
    return b.build()


def _training(draw: Random, name: str, ops: int, family: str) -> Graph:
    b = GraphBuilder(name)
    layers = max(4, ops // 3)
    offloaded = draw.random() < 0.4  # optimizer states at home below
    interleaved = draw.random() < 0.5  # updates right after each backward op
    share = draw.choice((0, 1, 2))
    b.tensor("x", _small(draw), "input")
    for i in range(layers):
        size = draw.randint(4, 30)
        b.tensor(f"w{i}", size, "parameter")
        if share:
            b.tensor(f"o{i}", share * size, "optimizer_state", "ddr" if offloaded else None)
        b.tensor(f"a{i}", draw.randint(4, 50))
        b.tensor(f"gw{i}", size, "gradient")
        b.tensor(f"g{i}", _small(draw), "gradient")

    def update(i: int) -> None:
        states = [f"w{i}", f"o{i}"] if share else [f"w{i}"]
        b.op(f"update{i}", "adam", inputs=[f"gw{i}"], mutates=states, duration_ns=_duration(draw))

    for i in range(layers):
        before = f"a{i - 1}" if i else "x"
        b.op(
            f"f{i}",
            "matmul",
            inputs=[before, f"w{i}"],
            outputs=[f"a{i}"],
            duration_ns=_duration(draw),
            workspace_bytes=_workspace(draw),
        )
    for i in reversed(range(layers)):
        reads = [f"a{i - 1}" if i else "x", f"w{i}", f"a{i}" if i == layers - 1 else f"g{i + 1}"]
        b.op(
            f"b{i}",
            "matmul",
            inputs=reads,
            outputs=[f"g{i}", f"gw{i}"],
            duration_ns=_duration(draw),
            workspace_bytes=_workspace(draw),
        )
        if interleaved:
            update(i)
    if not interleaved:
        for i in range(layers):
            update(i)
    return b.build()


def _parts(draw: Random, name: str, ops: int) -> Graph:
    b = GraphBuilder(name)
    tokens = draw.choice((1, 1, 2))
    experts, chosen = draw.randint(3, 6), draw.choice((1, 2, 2))
    merged, tied = draw.random() < 0.5, draw.random() < 0.5
    homes = {
        kind: draw.choice((None, "ddr", "ddr")) for kind in ("kv_cache", "expert", "parameter")
    }
    kinds = draw.choice((("kv_cache",), ("expert",), ("kv_cache", "expert")))
    per_layer = max({"kv_cache": 2, "expert": 2 if merged else 2 + chosen}[kind] for kind in kinds)
    layers = max(1, (ops // tokens - 2) // per_layer)
    table = [
        b.tensor(part_name("table", part), size, "parameter", homes["parameter"])
        for part, size in (("read", draw.randint(1, 4)), (REST, _large(draw)))
    ]
    weights = [
        b.tensor(f"w{i}", _large(draw), "parameter", draw.choice((None, homes["parameter"])))
        for i in range(layers)
    ]
    kind_of = [draw.choice(kinds) for _ in range(layers)]
    parts: list[list[str]] = []
    for i, kind in enumerate(kind_of):
        size = max(4, _large(draw) // (1 if kind == "kv_cache" else 2))
        named = ["past"] if kind == "kv_cache" else list(range(experts))
        parts.append(
            [
                b.tensor(part_name(f"{kind}{i}", str(part)), size, kind, homes[kind])
                for part in named
            ]
        )
    for token in range(tokens):
        last = b.tensor(f"x{token}", _small(draw))
        b.op(
            f"embed{token}",
            "embedding",
            inputs=[table[0]],
            outputs=[last],
            duration_ns=_duration(draw),
        )
        for i, kind in enumerate(kind_of):
            before, last = last, b.tensor(f"a{token}_{i}", _small(draw))
            at = f"{token}_{i}"
            if kind == "kv_cache":
                new = b.tensor(
                    part_name(f"{kind}{i}", f"new{token}"), draw.randint(1, 4), kind, homes[kind]
                )
                b.op(
                    f"cache{at}",
                    "copy",
                    inputs=[before],
                    outputs=[new],
                    duration_ns=_duration(draw),
                )
                parts[i].append(new)
                b.op(
                    f"attend{at}",
                    "attention",
                    inputs=[before, weights[i], *parts[i]],
                    outputs=[last],
                    duration_ns=_duration(draw),
                )
                continue
            gate = b.tensor(f"g{at}", draw.randint(1, 4))
            b.op(
                f"gate{at}",
                "topk",
                inputs=[before, weights[i]],
                outputs=[gate],
                duration_ns=_duration(draw),
            )
            taken = draw.sample(parts[i], chosen)
            if merged:
                b.op(
                    f"experts{at}",
                    "grouped_mm",
                    inputs=[before, gate, *taken],
                    outputs=[last],
                    duration_ns=_duration(draw),
                )
                continue
            results = [b.tensor(f"y{at}_{k}", _small(draw)) for k in range(chosen)]
            for k, (part, result) in enumerate(zip(taken, results, strict=True)):
                b.op(
                    f"expert{at}_{k}",
                    "matmul",
                    inputs=[before, gate, part],
                    outputs=[result],
                    duration_ns=_duration(draw),
                )
            b.op(f"sum{at}", "add", inputs=results, outputs=[last], duration_ns=_duration(draw))
        out = b.tensor(f"out{token}", _small(draw), "output")
        b.op(
            f"head{token}",
            "matmul",
            inputs=[last, *(table if tied else table[:1])],
            outputs=[out],
            duration_ns=_duration(draw),
        )
    return b.build()


def _dag(draw: Random, name: str, ops: int, family: str) -> Graph:
    b = GraphBuilder(name)
    reach = draw.choice((4, 12, 40))
    held = [
        b.tensor(f"w{i}", _large(draw), "parameter", draw.choice((None, None, "ddr")))
        for i in range(draw.randint(2, 6))
    ]
    results = [b.tensor("x", _small(draw), "input")]
    for i in range(ops):
        reads = draw.sample(results[-reach:], min(len(results), draw.choice((1, 1, 2, 3))))
        mutates = []
        if draw.random() < 0.5:
            (mutates if draw.random() < 0.25 else reads).append(draw.choice(held))
        if draw.random() < 0.1:
            target = draw.choice(results[-reach:])
            if target not in reads:
                mutates.append(target)
        outputs = [
            b.tensor(f"a{i}_{k}", _small(draw), "output" if draw.random() < 0.05 else "activation")
            for k in range(draw.choice((1, 1, 2)))
        ]
        b.op(
            f"f{i}",
            "op",
            inputs=reads,
            outputs=outputs,
            mutates=mutates,
            duration_ns=_duration(draw),
            workspace_bytes=_workspace(draw),
        )
        results.extend(outputs)
    return b.build()
