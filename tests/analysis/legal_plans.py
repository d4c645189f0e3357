"""Random graphs, machines and legal plans: what the bounds, the verifier and the timeline check are tried on.

A plan is made tensor by tensor: in some gaps the tensor is stored (if its contents are nowhere else), detached and prefetched again
before it is read, each at a random place in the gap. On several streams the places are such that what they must follow has surely ended. It
is legal by construction, whatever its timing; whether it fits is for the replay to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan

GB = 10**9
KINDS = ["parameter", "parameter", "optimizer_state", "activation", "gradient", "output", "kv_cache"]


@dataclass(frozen=True)
class Case:
    """A legal plan on a machine with a budget."""

    plan: Plan
    hardware: Hardware
    budget_bytes: int


def cases(max_ops: int = 10, max_streams: int = 3) -> st.SearchStrategy[Case]:
    """Legal plans, as a hypothesis strategy."""
    return st.randoms(use_true_random=False).map(lambda rng: random_case(rng, max_ops, max_streams))


def random_case(rng, max_ops=10, max_streams=3) -> Case:
    graph = random_graph(rng, max_ops, max_streams)
    hardware = random_hardware(rng)
    plan = random_plan(rng, graph)
    least = max((sum(graph.tensors[t].size_bytes for t in op.uses) + op.workspace_bytes for op in graph.ops), default=1)
    most = sum(t.size_bytes for t in graph.tensors) + 10
    tight = rng.choice([0.1, 0.3, 0.6, 1.0])
    return Case(plan, hardware, int(least + tight * rng.random() * max(0, most - least)) + 1)


def random_graph(rng, max_ops=10, max_streams=3) -> Graph:
    streams = ["compute", "side", "third"][: rng.choice([1, 1, max_streams])]
    held = [
        Tensor(f"w{i}", rng.randint(0, 60), rng.choice([k for k in KINDS if k not in ("output",)]), rng.choice(["hbm", "ddr", "nvme"]))
        for i in range(rng.randint(0, 4))
    ]
    count = rng.randint(1, max_ops)
    tensors = held + [Tensor(f"a{i}", rng.randint(0, 60), rng.choice(["activation", "activation", "output"])) for i in range(count)]
    rng.shuffle(tensors)
    known = [t for t, tensor in enumerate(tensors) if tensor.name.startswith("w")]
    fresh = [t for t, tensor in enumerate(tensors) if not tensor.name.startswith("w")]
    ops = []
    for i in range(count):
        inputs = rng.sample(known, min(len(known), rng.randint(0, 3)))
        mutates = [t for t in known if rng.random() < 0.1]
        outputs = [fresh.pop()] if rng.random() < 0.8 else []
        outputs += [t for t in known if t not in inputs and t not in mutates and rng.random() < 0.05]
        deps = [j for j in range(i) if rng.random() < 0.15]
        known = sorted({*known, *outputs})
        ops.append(
            Op(
                f"f{i}",
                "any",
                tuple(inputs),
                tuple(outputs),
                tuple(mutates),
                tuple(deps),
                rng.choice(streams),
                rng.choice([0, 1, 5, 20, 80]) + rng.randint(0, 9) * rng.randint(0, 1),
                workspace_bytes=rng.choice([0, 0, 15]),
            )
        )
    # the last op follows all others, so that what is written on any stream can be stored after it
    last = Op("join", "any", deps=tuple(range(count)), stream="compute", duration_ns=rng.choice([0, 3]))
    return Graph("random", tuple(tensors), (*ops, last))


def random_hardware(rng) -> Hardware:
    def channel(name, source, destination):
        return Channel(name, source, destination, rng.choice([1, 2, 3, 4]) * GB, rng.choice([0, 0, 3, 11]), rng.choice([1, 1, 2]))

    channels = [channel("h2d", "ddr", "hbm"), channel("d2h", "hbm", "ddr"), channel("n2d", "nvme", "hbm"), channel("d2n", "hbm", "nvme")]
    rng.shuffle(channels)
    fabrics = []
    if rng.random() < 0.4:
        fabrics.append(
            Fabric("root", rng.choice([GB, 3 * GB // 2, 5 * GB]), tuple(rng.sample([c.name for c in channels], rng.randint(1, 4))))
        )
    tiers = (Tier("hbm", 10**6, 10**12, "device"), Tier("ddr", 10**6, 10**12), Tier("nvme", 10**6, 10**12))
    return Hardware("random", tiers, tuple(channels), Compute({"bf16": 10**12}), fabrics=tuple(fabrics))


def ordered_before(graph: Graph) -> list[set[int]]:
    """For each op, the ops that have surely ended when it ends, itself included: the closure of producers and streams."""
    before: list[set[int]] = []
    last: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        ended = {i}
        for p in (*graph.producers[i], *([last[op.stream]] if op.stream in last else [])):
            ended |= before[p]
        before.append(ended)
        last[op.stream] = i
    return before


def random_plan(rng, graph: Graph) -> Plan:
    eager = rng.choice([0.2, 0.6, 0.95])
    before = ordered_before(graph)
    initial = {t: tuple(rng.sample(["hbm", "ddr", "nvme"], rng.randint(1, 2))) for t in graph.initial if rng.random() < 0.3}
    queues = [_moves(rng, graph, before, t, initial, eager) for t in range(len(graph.tensors))]
    merged = []
    while any(queues):  # each tensor's moves in their own order, those of several tensors in any
        queue = rng.choice([q for q in queues if q])
        merged.append(queue.pop(0))
    return Plan(graph, "random", tuple(merged), initial)


def _moves(rng, graph: Graph, before, t: int, initial, eager) -> list[CacheOp]:
    users, count = graph.users[t], len(graph.ops)
    tensor = graph.tensors[t]
    start = initial.get(t, (tensor.home or "hbm",)) if t in graph.initial else ()
    valid = set(start)
    moves: list[CacheOp] = []
    anchor = AT_START

    def places(low: int, high: int) -> list[int]:
        """Places in [low, high) that surely follow every user before them and the tensor's last cache op."""
        earlier = {u for u in users if u <= low}
        found = [k for k in range(max(low, 0), high) if earlier <= before[k] and (anchor == AT_START or anchor in before[k])]
        return [AT_START, *found] if low == AT_START and anchor == AT_START else found

    def place(op: str, at: int, source: str, destination: str | None = None) -> None:
        nonlocal anchor
        moves.append(CacheOp(op, t, source, destination, at))
        anchor = at
        if op == DETACH:
            valid.discard(source)
        else:
            valid.add(destination)

    def leave(low: int, high: int) -> bool:
        """Take the tensor out of the device tier at some place, storing it first if its contents are nowhere else."""
        open_places = places(low, high)
        if not open_places or "hbm" not in valid:
            return False
        first = rng.choice(open_places)
        if valid == {"hbm"} or rng.random() < 0.1:
            spare = [tier for tier in ("ddr", "nvme") if tier not in valid]
            if spare:
                place(STORE, first, "hbm", rng.choice(spare))
        place(DETACH, rng.choice(places(max(first, low), high) if first != AT_START else open_places), "hbm")
        return True

    def come(low: int, high: int) -> None:
        at = rng.choice(places(max(anchor, low), high))
        place(PREFETCH, at, rng.choice(sorted(valid)), "hbm")

    last = AT_START
    for u in users:
        op = graph.ops[u]
        reads = t in op.inputs or t in op.mutates
        if reads and valid and "hbm" in valid and rng.random() < eager:
            leave(last, u)
        if reads and "hbm" not in valid:
            come(last, u)
        if t in op.outputs or t in op.mutates:
            valid = {"hbm"}
        else:
            valid.add("hbm")
        last = u
    if not graph.survives[t] or not valid:
        return moves
    wanted = set(start) if tensor.persistent else set()
    for tier in sorted(wanted - valid - {"hbm"}):
        place(STORE, rng.choice(places(max(last, anchor), count)), "hbm", tier)
    if "hbm" in valid and rng.random() < eager:
        leave(max(last, anchor), count)
    if "hbm" in wanted and "hbm" not in valid:
        come(last, count)
    return moves
