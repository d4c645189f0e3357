"""The verifier: what is wrong with a plan, found without running it.

Nothing here is shared with the planner or the engine; who must wait for whom is derived anew from
the graph (:mod:`hosim.analysis.verifying.verifier_walk`). A finding is followed as if the plan had
been right there, so that one cause gives one finding. The rules, and what each objects to:

``malformed``
    a cache op of no known sort, of a tensor or after an op that does not exist, with a destination
    too few or too many
``tier``
    a tier that the machine does not have
``channel``
    a copy between tiers that neither a channel nor a route of several joins
``direction``
    a prefetch out of the device tier, a store into it, a copy from a tier to itself
``initial``
    an initial residency of a tensor that the step itself produces, or none of one whose contents it
    needs
``processor``
    an op that runs on the processor of a tier that has none
``capacity``
    an op that cannot fit whatever the timing; initial residents that exceed their tier
``source``
    a copy from a tier where the tensor has no valid copy then: there never was one, or it is stale
``read``
    an op that reads a tensor while it is not resident in the tier of its processor: detached, or
    never brought there
``absent``
    a detach from a tier where the tensor is not
``last-copy``
    a detach of the last valid copy of a tensor still needed: read later, or to survive the step
``dead``
    a cache op of a tensor that no later op uses and that does not survive the step
``end-of-step``
    a tensor that survives the step and is not valid at the end in each tier where it was at time 0
    (rule 2)
``edit``
    an edited graph that does not compute what the workload computes: an op lost or added, or one
    that sees other contents
``race``
    on several streams, what the plan's order suggests and nothing ensures: a detach that an earlier
    user may not have ended before, a store that an earlier write may overtake, a copy that may be
    issued when its tensor is gone, two cache ops of a tensor issued in either order

Of a plan with a runtime policy, which moves tensors as it sees fit, the first seven are checked.
What depends on timing, such as an out of memory, is for the replay to find.
"""

from collections.abc import Iterable, Iterator, Mapping

from hosim.analysis.verifying.finding import Finding
from hosim.analysis.verifying.verifier_walk import walk
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.edits import Edits
from hosim.graph import MAIN_STREAM, Graph, Op
from hosim.hardware import Hardware

# -- edits check
# --------------------------------------------------------------------------------------------------
# Tell whether an edited graph still computes what the workload computes: every op sees the
# contents that it saw there.
#
# Independent of how edits are applied (:mod:`hosim.edits`): both graphs are walked with a name
# for the contents of each tensor, which says which op of the workload made them, as its how-
# manieth output. A recomputed op makes the contents that its original made.

Contents = tuple[str, str, int]
"""Contents of a tensor: the op that made them, whether as an output or in place, and its place
there; ``("", tensor, 0)`` at time 0.
"""


def check_edits(graph: Graph, edits: Edits) -> Iterator[Finding]:
    """Yield what ``graph`` computes otherwise than the workload of ``edits``; O(uses)."""
    base = edits.base
    original = {entry.name: entry.op for entry in edits.recompute}
    chosen = dict(edits.processors)
    expected = {op.name: (op, seen) for op, seen in _walk(base, {})}
    runs = dict.fromkeys(expected, 0)
    for i, (op, seen) in enumerate(_walk(graph, original)):
        name = original.get(op.name, op.name)
        if name not in expected:
            yield Finding(
                "edit", f"op {op.name!r} is neither one of {base.name!r} nor a recomputed one", i
            )
            continue
        runs[name] += op.name == name
        first, should_see = expected[name]
        if op.name != name and op.mutates:
            yield Finding(
                "edit", f"op {op.name!r} runs {name!r} again, which changes a tensor in place", i
            )
        if (op.kind, op.flops, op.bytes_accessed, op.workspace_bytes, op.kernel, op.sizes) != (
            first.kind, first.flops, first.bytes_accessed, first.workspace_bytes, first.kernel, first.sizes
        ) or (op.processor, op.stream, op.duration_ns) != _runs_on(first, chosen.get(name, first.processor)):  # fmt: skip
            yield Finding("edit", f"op {op.name!r} is not the op {name!r} of {base.name!r}", i)
        if _made(graph, op) != _made(base, first):
            yield Finding(
                "edit",
                f"op {op.name!r} makes other tensors, or follows other ops, than op {name!r} of "
                f"{base.name!r}",
                i,
            )
        if len(seen) != len(should_see):
            yield Finding(
                "edit",
                f"op {op.name!r} reads {len(seen)} tensors, op {name!r} of {base.name!r} "
                f"{len(should_see)}",
                i,
            )
        elif seen != should_see:
            t = next(t for t, a, b in zip(op.reads, seen, should_see, strict=True) if a != b)
            tensor = graph.tensors[t].name
            yield Finding(
                "edit",
                f"op {op.name!r} reads other contents in tensor {tensor!r} than op {name!r} of "
                f"{base.name!r} does",
                i,
                t,
            )
    for t, (here, there) in enumerate(zip(graph.tensors, base.tensors, strict=False)):
        if here != there:
            yield Finding(
                "edit",
                f"tensor {here.name!r} is not tensor {there.name!r} of {base.name!r}",
                tensor=t,
            )
    for name, count in runs.items():
        if count != 1:
            yield Finding("edit", f"op {name!r} of {base.name!r} is listed {count} times, not once")
    yield from _at_the_end(graph, base, original)


def _made(graph: Graph, op: Op) -> tuple[list[int], set[str]]:
    """The sizes of what an op makes, and the ops that it names as those it follows."""
    return [graph.tensors[t].size_bytes for t in op.outputs], {graph.ops[d].name for d in op.deps}


def _runs_on(op: Op, processor: str) -> tuple[str, str, int | None] | None:
    """Processor, stream and measured duration of an op of the workload on a processor; None if it
    may not run there.
    """
    if processor == op.processor:
        return processor, op.stream, op.duration_ns
    for other, duration_ns in op.also_on:
        if other == processor:
            return processor, processor or MAIN_STREAM, duration_ns
    return None


def _at_the_end(graph: Graph, base: Graph, original: Mapping[str, str]) -> Iterator[Finding]:
    """Tensors that survive the step with other contents than the workload's."""
    ends = []
    for g, names in ((base, {}), (graph, original)):
        contents = _start(g)
        for op in g.ops:
            _write(op, names.get(op.name, op.name), contents)
        ends.append(
            {g.tensors[t].name: contents[t] for t, survives in enumerate(g.survives) if survives}
        )
    for name in ends[0]:
        if ends[1].get(name) != ends[0][name]:
            yield Finding(
                "edit",
                f"tensor {name!r} survives the step with other contents than in {base.name!r}",
                tensor=graph.tensor_index.get(name),
            )


def _walk(graph: Graph, original: Mapping[str, str]) -> Iterator[tuple[Op, tuple[Contents, ...]]]:
    """Each op with the contents that it reads."""
    contents = _start(graph)
    for op in graph.ops:
        yield op, tuple([contents[t] for t in op.reads])
        _write(op, original.get(op.name, op.name), contents)


def _start(graph: Graph) -> list[Contents]:
    return [("", tensor.name, 0) for tensor in graph.tensors]


def _write(op: Op, name: str, contents: list[Contents]) -> None:
    listed: Iterable[tuple[str, tuple[int, ...]]] = (
        ("output", op.outputs),
        ("in place", op.mutates),
    )
    for how, tensors in listed:
        for k, t in enumerate(tensors):
            contents[t] = (name, how, k)


def verify(plan: Plan, hardware: Hardware, budget_bytes: int | None = None) -> tuple[Finding, ...]:
    """Find every rule of docs/contract.md that a plan breaks and that shows without running it.

    Parameters
    ----------
    plan
        The plan, whoever made it.
    hardware
        The machine that it is for.
    budget_bytes
        Bytes of the device tier that may be used, if that is less than its capacity.

    Returns
    -------
    tuple[Finding, ...]
        One finding per broken rule and place: ``rule`` is one of those that this module lists,
        ``message`` says what is wrong. If there is none, the replay breaks no rule on the way; it
        may still run out of memory.

    Notes
    -----
    O(ops x streams + uses + cache ops). The verifier shares no code with the engine and the
    planners.

    References
    ----------
    docs/contract.md defines the rules.

    Examples
    --------
    >>> import hosim
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> machine = hosim.load_hardware(hosim.find_hardware("toy"))
    >>> [finding.rule for finding in verify(hosim.Plan(b.build()), machine)]
    ['read']
    """
    findings = [*_initial(plan, hardware), *_capacity(plan, hardware, budget_bytes)]
    well_formed = []
    for c, cache_op in enumerate(plan.cache_ops):
        wrong = _malformed(cache_op, c, plan.graph)
        if wrong is None:
            well_formed.append(c)
            wrong = _impossible(cache_op, c, plan.graph, hardware)
        if wrong is not None:
            findings.append(wrong)
    if plan.edits is not None:
        findings += check_edits(plan.graph, plan.edits)
    if plan.runtime is None:
        findings += walk(plan, hardware, well_formed)
    return tuple(findings)


def _malformed(cache_op: CacheOp, c: int, graph: Graph) -> Finding | None:
    """Return the finding that makes the cache op meaningless, if there is one."""
    tensors, ops = len(graph.tensors), len(graph.ops)
    if cache_op.op not in (PREFETCH, STORE, DETACH):
        wrong = f"unknown sort {cache_op.op!r}; expected {PREFETCH}, {STORE} or {DETACH}"
    elif not 0 <= cache_op.tensor < tensors:
        wrong = f"no tensor number {cache_op.tensor}; the graph has {tensors}"
    elif not AT_START <= cache_op.after < ops:
        wrong = f"no op number {cache_op.after} to be issued after; the graph has {ops}"
    elif cache_op.op == DETACH and cache_op.destination is not None:
        wrong = f"a detach copies nothing, so it has no destination; got {cache_op.destination!r}"
    elif cache_op.op != DETACH and cache_op.destination is None:
        wrong = f"a {cache_op.op} needs a destination"
    else:
        return None
    return Finding("malformed", f"cache op {c}: {wrong}", cache_op=c)


def _impossible(cache_op: CacheOp, c: int, graph: Graph, hardware: Hardware) -> Finding | None:
    """Return the finding that keeps the machine from executing it, if there is one."""
    tensor, source, destination = (
        graph.tensors[cache_op.tensor],
        cache_op.source,
        cache_op.destination,
    )
    what = f"cache op {c} ({cache_op.op} of tensor {tensor.name!r})"

    def finding(rule: str, message: str) -> Finding:
        return Finding(rule, f"{what} {message}", tensor=cache_op.tensor, cache_op=c)

    for tier in (source, destination):
        if tier is not None and tier not in hardware.tier_index:
            return finding(
                "tier", f"names tier {tier!r}; {hardware.name} has {', '.join(hardware.tier_index)}"
            )
    if destination is None:
        return None
    if source == destination:
        return finding("direction", f"copies from {source} to itself")
    if cache_op.op == PREFETCH and source == hardware.device_tier:
        return finding("direction", f"copies down, from {source} to {destination}: that is a store")
    if cache_op.op == STORE and destination == hardware.device_tier:
        return finding(
            "direction", f"copies up, from {source} to {destination}: that is a prefetch"
        )
    if not _joined(hardware, source, destination):
        return finding(
            "channel",
            f"has no way: no channels of {hardware.name} lead from {source} to {destination}",
        )
    return None


def _joined(hardware: Hardware, source: str, destination: str) -> bool:
    """Return whether a channel, or several one after the other, lead from tier to tier."""
    if (source, destination) in hardware.channel_between:
        return True
    reached, pending = {source}, [source]
    while pending:
        tier = pending.pop()
        for channel in hardware.channels:
            if channel.source == tier and channel.destination not in reached:
                reached.add(channel.destination)
                pending.append(channel.destination)
    return destination in reached


def _initial(plan: Plan, hardware: Hardware) -> Iterator[Finding]:
    """The plan's own initial residency, where it does not fit the graph or the machine."""
    graph = plan.graph
    held = set(graph.initial)
    for t, where in sorted(plan.initial.items()):
        if not 0 <= t < len(graph.tensors):
            yield Finding(
                "malformed",
                f"initial residency of tensor number {t}; the graph has {len(graph.tensors)}",
            )
        elif where and t not in held:
            message = (
                f"tensor {graph.tensors[t].name!r} is given a copy in {', '.join(where)} at "
                "time 0, but the step produces it"
            )
            yield Finding("initial", message, tensor=t)
    for t, where in plan.residency(hardware.device_tier).items():
        for tier in where:
            if tier not in hardware.tier_index and 0 <= t < len(graph.tensors):
                known = ", ".join(hardware.tier_index)
                message = (
                    f"tensor {graph.tensors[t].name!r} is in tier {tier!r} at time 0; "
                    f"{hardware.name} has {known}"
                )
                yield Finding("tier", message, tensor=t)


def _capacity(plan: Plan, hardware: Hardware, budget_bytes: int | None) -> Iterator[Finding]:
    """Yield a finding for everything that cannot fit."""
    graph = plan.graph
    capacity = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
    device = hardware.device_tier
    if budget_bytes is not None:
        capacity[device] = min(capacity[device], budget_bytes)
    held = dict.fromkeys(capacity, 0)
    for t, where in plan.residency(device).items():
        for tier in set(where) & set(held):
            if 0 <= t < len(graph.tensors):
                held[tier] += graph.tensors[t].size_bytes
    for tier, size in held.items():
        if size > capacity[tier]:
            yield Finding(
                "capacity",
                f"at time 0 {tier} would hold {size:,} B of tensors, and it has "
                f"{capacity[tier]:,} B",
            )
    sizes = [tensor.size_bytes for tensor in graph.tensors.each()]
    able = {device, *[tier.name for tier in hardware.tiers if tier.compute is not None]}
    for i, op in enumerate(graph.ops):
        needed, tier = sum([sizes[t] for t in op.uses]) + op.workspace_bytes, op.processor or device
        if tier not in able:
            yield Finding(
                "processor",
                f"op {op.name!r} runs on the processor of {tier!r}, which {hardware.name} has not",
                op=i,
            )
        elif needed > capacity[tier]:
            yield Finding(
                "capacity",
                f"op {op.name!r} needs {needed:,} B of {tier} for what it uses and its "
                f"workspace; there are {capacity[tier]:,} B",
                op=i,
            )
