"""Measured runs of the executor beside replays: makespan, stalls, and which transfers are hidden.

Ops sleep, and so do throttled copies: what is measured is the mechanism, not what else the machine does. ``agreement.py`` measures with
real matrix products.
"""

import pytest

torch = pytest.importorskip("torch")

from agreement import Case  # noqa: E402

STALLED = Case(layers=8, width=256, batch=4, rate=20e6, lead=1, activations=False, op_ns=6_000_000)
HIDDEN = Case(layers=8, width=256, batch=4, rate=60e6, lead=2, activations=False, op_ns=8_000_000)
DOWN_AND_UP = Case(layers=5, width=256, batch=256, rate=20e6, lead=1, activations=True, op_ns=5_000_000)


def attempts(case):
    """Runs until one is not disturbed, three at most. What disturbs them makes them longer, never shorter."""
    for _ in range(3):
        plan, result, real = case.run()
        if abs(real.makespan_ns / result.makespan_ns - 1) <= 0.1:
            break
    return plan, result, real


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", [STALLED, DOWN_AND_UP], ids=["stalled", "down-and-up"])
def test_makespan_and_stall_are_those_of_the_replay(case):
    plan, result, real = attempts(case)
    assert real.makespan_ns == pytest.approx(result.makespan_ns, rel=0.1)
    assert result.stall_ns["transfer"] > result.makespan_ns // 4  # there is something to agree about
    assert real.stall_ns["transfer"] == pytest.approx(result.stall_ns["transfer"], rel=0.15)
    check_order(plan, result, real)


def test_what_the_replay_calls_hidden_is_hidden():
    plan, result, real = attempts(HIDDEN)
    assert real.makespan_ns == pytest.approx(result.makespan_ns, rel=0.1)
    first = [plan.graph.ops[op].name for op, *_ in result.timeline.stalls]
    assert first == ["mm"]  # all but the first weight, which nothing can hide
    waited = {plan.graph.ops[op].name: end - start for op, _, start, end in real.timeline.stalls}
    late = {name: wait for name, wait in waited.items() if name != "mm" and wait > 4_000_000}  # half an op
    assert len(late) <= 1, late
    check_order(plan, result, real)


def test_a_measured_run_can_be_shown_as_a_replay_can():
    from layers import machine

    from hosim.report.perfetto import trace

    case = Case(layers=2, width=16, batch=4, rate=1e9, lead=1, activations=True)
    plan, _, real = case.run()
    events = trace(plan, machine(int(case.rate), case.latency_ns), real)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices if event["cat"] == "op"} == {op.name for op in plan.graph.ops}
    assert sum(event["cat"] == "transfer" for event in slices) == len([c for c in plan.cache_ops if c.op != "detach"])


def check_order(plan, result, real):
    """What must hold of a real run whatever the machine does: transfers in the replay's order, none before its issue, ops after theirs."""
    for name in {x.channel for x in result.timeline.transfers}:
        ours, theirs = ([x.cache_op for x in r.timeline.transfers if x.channel == name] for r in (result, real))
        assert ours == theirs
    ends = {x.cache_op: x.end_ns for x in real.timeline.transfers}
    for x in real.timeline.transfers:
        after = plan.cache_ops[x.cache_op].after
        assert x.start_ns >= x.issue_ns >= (real.timeline.op_end_ns[after] if after >= 0 else 0)
    for k, c in enumerate(plan.cache_ops):
        users = [i for i in plan.graph.users[c.tensor] if i > c.after]
        if c.op == "prefetch" and users:
            assert real.timeline.op_start_ns[users[0]] >= ends[k]
    assert beside_ops(real) == beside_ops(result)


def beside_ops(result):
    """Whether any transfer is under way while an op runs."""
    spans = [(x.start_ns, x.end_ns) for x in result.timeline.transfers]
    ops = list(zip(result.timeline.op_start_ns, result.timeline.op_end_ns, strict=True))
    return any(start < end_of_op and start_of_op < end for start, end in spans for start_of_op, end_of_op in ops)
