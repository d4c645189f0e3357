"""The engine with several devices against the literal replay of them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from naive_devices import NaiveCompany
from strategies import cases, graphs, hardware, several, sized, wild_plans
from test_naive_replay import figures, moved, waited

from hosim.engine import replay
from hosim.errors import PlanError


def compare(plan, machine, jitter=None, compete=False):
    try:
        company = NaiveCompany(plan, machine, jitter=jitter, compete=compete)
    except PlanError:
        company = None
    try:
        result = replay(
            plan, machine, record=True, fold=False, jitter=jitter, compete=compete or None
        )
    except PlanError as error:
        assert company is None, f"the engine alone objects: {error}"
        return
    assert company is not None, "the naive replay alone objects"
    if company.initial_error is not None:
        assert f"the initial residents of {company.initial_error}" in result.error
        return
    for device, one in zip(company.devices, result.by_device, strict=True):
        expected, got = device.figures(), figures(one)
        starts, transfers, waits, error = (
            expected.pop(key) for key in ("op_start_ns", "transfers", "waits", "error")
        )
        assert (error is None) == one.feasible
        assert error is None or (
            f"out of memory on device {device.position}" in one.error and error[1] in one.error
        )
        if error is None and set(got["busy_ns"]) != set(
            device.streams
        ):  # a graph without a stream named compute
            for key in ("busy_ns", "stall_ns", "drain_ns"):
                got[key][device.main] = got[key].pop("compute")
        assert got == expected
        assert one.timeline.op_start_ns == starts
        assert sorted(map(moved, one.timeline.transfers)) == transfers
        assert waited(one.timeline) == waits
    for tier, instances in company.peak.items():
        most = max((held for held, _, _ in instances.values()), default=0)
        first = min((at for held, at, _ in instances.values() if held == most), default=0)
        kinds = [
            kinds
            for _, (held, at, kinds) in sorted(instances.items())
            if (held, at) == (most, first)
        ] or [{}]
        assert (
            result.peak_bytes[tier],
            result.peak_at_ns[tier],
            dict(result.peak_breakdown[tier]),
        ) == (most, first, kinds[0])


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_legal_plans(case, data):
    _, machine, plan = case
    compare(plan, data.draw(several(machine, 3)))


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_any_plan(data):
    machine = data.draw(hardware(fabrics=True))
    graph = data.draw(graphs(6, 2, homes=[tier.name for tier in machine.tiers]))
    plan = data.draw(wild_plans(graph, machine))
    if data.draw(st.booleans()):
        machine = sized(machine, graph)
    compare(plan, data.draw(several(machine, 3)))
