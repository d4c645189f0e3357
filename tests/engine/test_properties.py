"""What is always true of a replay (docs/contract.md), over random graphs, machines and plans."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import cases, graphs, hardware, sized, wild_plans
from timeline_check import check_result

from hosim.analysis import idle_below, static_peak
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns
from hosim.analysis.verifying import verify
from hosim.cache_plan import DETACH, LAUNCHED_ALONE, Plan
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import result_to_dict, to_json

anything = cases(max_ops=9, max_streams=3, fabrics=True, roomy=None, measured=False, uneven=True)


@given(anything)
def test_time_is_divided_without_remainder(case):
    _, machine, plan = case
    result = replay(plan, machine)
    assume(result.feasible)
    for stream in (result, *result.streams.values()):
        assert (
            stream.busy_ns + sum(stream.stall_ns.values()) + stream.drain_ns == result.makespan_ns
        )
        assert min(stream.busy_ns, *stream.stall_ns.values(), stream.drain_ns) >= 0


@given(anything)
def test_occupancy_stays_within_capacity(case):
    _, machine, plan = case
    result = replay(plan, machine, record=True)
    assume(
        "initial residents" not in (result.error or "")
    )  # more at time 0 than there is room for: nothing is replayed
    for tier in machine.tiers:
        assert result.peak_bytes[tier.name] <= tier.capacity_bytes
        assert sum(result.peak_breakdown[tier.name].values()) == result.peak_bytes[tier.name]
        held = [
            x for x in result.timeline.residencies if x.tier == tier.name and x.start_ns < x.end_ns
        ]
        for at in {x.start_ns for x in held}:
            assert sum(x.bytes for x in held if x.start_ns <= at < x.end_ns) <= tier.capacity_bytes


@given(anything)
def test_bytes_move_whole(case):
    graph, machine, plan = case
    result = replay(plan, machine, record=True)
    assume(result.feasible)
    for name, channel in result.channels.items():
        moved = [x for x in result.timeline.transfers if x.channel == name]
        for key in {(x.cache_op, x.tensor) for x in moved}:
            parts = [x.bytes for x in moved if (x.cache_op, x.tensor) == key]
            assert sum(parts) == graph.tensors[key[1]].size_bytes
            assert max(parts) <= machine.chunk_bytes or len(parts) == 1
        assert (len(moved), sum(x.bytes for x in moved)) == (channel.transfers, channel.bytes)
        assert all(x.issue_ns <= x.start_ns <= x.end_ns and x.contention_ns >= 0 for x in moved)


@given(anything)
def test_two_runs_are_identical_and_a_record_changes_nothing(case):
    _, machine, plan = case
    first, second, unrecorded = (
        replay(plan, machine, record=True),
        replay(plan, machine, record=True),
        replay(plan, machine),
    )
    assert first == second == unrecorded
    assert first.timeline == second.timeline
    assert unrecorded.timeline is None
    texts = {to_json(result_to_dict(replace(r, replay_s=0.0))) for r in (first, second, unrecorded)}
    assert len(texts) == 1  # to the byte


@given(st.data())
def test_everything_resident_is_the_static_account(data):
    machine = data.draw(hardware())
    graph = data.draw(graphs(12, measured=False))
    machine = sized(machine, graph)
    resident = {
        t: ("hbm",) for t in graph.initial if t not in idle_below(graph, "hbm")
    }  # what starts below and nobody uses stays there
    result = replay(Plan(graph, initial=resident), machine)
    assert result.makespan_ns == sum(op_durations(graph, machine))
    assert (result.peak_bytes["hbm"], result.peak_breakdown["hbm"]) == (
        static_peak(graph).bytes,
        static_peak(graph).breakdown,
    )


def _in_one_order(case: tuple[Graph, Hardware, Plan]) -> bool:
    """Whether a faster channel cannot change what goes first. A store that starts sooner may hold
    back an op that writes the tensor, and the chunks of a route may come sooner into a queue.
    """
    graph, machine, plan = case
    written = {t for op in graph.ops for t in op.writes}
    return all(
        c.op == DETACH
        or (
            (c.source, c.destination) in machine.channel_between
            and (c.tensor not in written or c.after >= graph.users[c.tensor][-1])
        )
        for c in plan.cache_ops
    )


# One stream, so that the order of issue does not depend on the bandwidth.
@given(cases(max_ops=9, roomy=True).filter(_in_one_order), st.data())
def test_more_bandwidth_lengthens_nothing(case, data):
    _, machine, plan = case
    machine = replace(machine, channels=tuple(replace(c, engines=1) for c in machine.channels))
    k = data.draw(st.sampled_from(range(len(machine.channels))))
    faster = replace(
        machine.channels[k],
        bandwidth_bytes_per_s=data.draw(st.integers(1, 5))
        * machine.channels[k].bandwidth_bytes_per_s,
    )
    quick = replace(machine, channels=(*machine.channels[:k], faster, *machine.channels[k + 1 :]))
    slow_result, quick_result = replay(plan, machine), replay(plan, quick)
    assert slow_result.stall_ns["capacity"] == 0
    assert quick_result.makespan_ns <= slow_result.makespan_ns


@given(cases(max_ops=9, roomy=True).filter(_in_one_order), st.integers(1, 40), st.data())
def test_segments_lengthen_nothing(case, host_ns, data):
    """Nothing is called later where one call launches several ops, and each cut has its price."""
    graph, machine, plan = case
    called = Runtime("drawn", host=RuntimeFigure(float(host_ns)))
    machine = replace(
        machine,
        channels=tuple(replace(c, engines=1) for c in machine.channels),
        software=replace(called, host_copy=RuntimeFigure(float(data.draw(st.integers(0, 9))))),
    )
    alone = data.draw(st.sets(st.sampled_from([op.name for op in graph.ops])))
    cut = replace(plan, graph=replace(graph, meta={LAUNCHED_ALONE: sorted(alone)}))
    grouped = replace(machine, software=replace(machine.software, segments=True))
    runs = replay(plan, grouped), replay(cut, grouped), replay(plan, machine)
    assert all(run.stall_ns["capacity"] == 0 for run in runs)
    assert runs[0].makespan_ns <= runs[1].makespan_ns <= runs[2].makespan_ns


@given(anything, st.data())
def test_names_and_the_order_of_tensors_change_nothing(case, data):
    graph, machine, plan = case
    order = data.draw(st.permutations(range(len(graph.tensors))))
    place = {t: k for k, t in enumerate(order)}

    def moved(tensors):
        return tuple(place[t] for t in tensors)

    other = Graph(
        graph.name,
        tuple(replace(graph.tensors[t], name=f"x{graph.tensors[t].name}") for t in order),
        tuple(
            replace(
                op,
                name=f"y{op.name}",
                inputs=moved(op.inputs),
                outputs=moved(op.outputs),
                mutates=moved(op.mutates),
            )
            for op in graph.ops
        ),
    )
    cache_ops = tuple(replace(c, tensor=place[c.tensor]) for c in plan.cache_ops)
    renamed = replay(
        Plan(other, plan.policy, cache_ops, {place[t]: where for t, where in plan.initial.items()}),
        machine,
    )
    result = replay(plan, machine)

    def without_names(lines, names):
        for name in sorted(names, key=len, reverse=True):
            lines = [line.replace(name, "one") for line in lines]
        return list(lines)

    assert renamed.feasible == result.feasible
    assert replace(renamed, error=None, notes=()) == replace(result, error=None, notes=())
    of_renamed, of_result = (
        [one.name for one in (*which.tensors, *which.ops)] for which in (other, graph)
    )
    assert without_names(renamed.notes, of_renamed) == without_names(result.notes, of_result)


@given(anything)
def test_never_faster_than_the_lower_bound(case):
    graph, machine, plan = case
    result = replay(plan, machine)
    assume(result.feasible)
    assert result.makespan_ns >= lower_bound_ns(
        graph, op_durations(graph, machine), machine, plan.residency("hbm")
    )


@given(anything)
def test_the_timeline_keeps_every_rule(case):
    _, machine, plan = case
    assert check_result(plan, machine, replay(plan, machine, record=True)) == ()


@given(st.data())
def test_what_the_verifier_accepts_breaks_no_rule(data):
    machine = data.draw(hardware(fabrics=True))
    graph = data.draw(graphs(8, 3, homes=[tier.name for tier in machine.tiers]))
    machine = sized(machine, graph)
    plan = data.draw(wild_plans(graph, machine, max_cache_ops=3))
    try:
        result = replay(plan, machine)
        broken = "in vain" in (result.error or "")
    except PlanError:
        broken = True
    if broken:
        assert verify(plan, machine)


@given(anything)
def test_legal_plans_may_be_short_of_memory_and_nothing_else(case):
    _, machine, plan = case
    assume(not verify(plan, machine))
    result = replay(plan, machine)
    assert result.feasible or "wants" in result.error
