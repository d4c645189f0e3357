"""Several devices in one replay: what holds whatever they run."""

from collections import Counter
from dataclasses import replace

import pytest
from both_engines import compared
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import cases, several
from timeline_check import check_result

from hosim.analysis import canonical_places
from hosim.analysis.costmodel import op_durations
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.io import result_to_dict, to_json
from hosim.jitter import Jitter
from hosim.policies import policy_named

pytestmark = pytest.mark.slow

anything = cases(max_ops=7, max_streams=2, fabrics=True, roomy=None)


def timelines(result):
    return [device.timeline for device in result.by_device]


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(max_ops=7, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_folding_changes_nothing(case, data):
    _, machine, plan = case
    machine = data.draw(several(machine))
    folded, unfolded = (
        replay(plan, machine, record=True),
        replay(plan, machine, record=True, fold=False),
    )
    assert folded == unfolded
    assert folded.by_device == unfolded.by_device
    assert timelines(folded) == timelines(unfolded)
    assert len(folded.by_device) == machine.devices
    texts = {to_json(result_to_dict(replace(r, replay_s=0.0))) for r in (folded, unfolded)}
    assert len(texts) == 1  # to the byte


@given(anything, st.integers(2, 4))
def test_devices_that_share_nothing_are_one_each(case, count):
    _, machine, plan = case
    alone = replay(plan, machine, record=True)
    fabrics = tuple(replace(fabric, scope="device") for fabric in machine.fabrics)
    tiers = tuple(replace(tier, scope="device") for tier in machine.tiers)
    together = replay(
        plan, replace(machine, devices=count, fabrics=fabrics, tiers=tiers), record=True, fold=False
    )
    for device in together.by_device:
        assert replace(device, error=None) == replace(alone, error=None)
        assert device.timeline == alone.timeline
    assert replace(together, devices=None, error=None) == replace(alone, error=None)


@given(anything, st.integers(0, 100))
def test_no_sigma_is_no_jitter(case, seed):
    _, machine, plan = case
    assert replay(plan, machine, jitter=Jitter(seed)) == replay(plan, machine)


@given(anything, st.data())
def test_jitter_is_on_every_time_whatever_the_order(case, data):
    _, machine, plan = case
    machine = replace(data.draw(several(machine)), fabrics=())
    jitter = Jitter(data.draw(st.integers(0, 5)), 0.3, 0.4)
    result = replay(plan, machine, jitter=jitter, record=True)
    assert result == replay(plan, machine, jitter=jitter)
    assert result.jitter == jitter
    nominal, places = op_durations(plan.graph, machine), canonical_places(plan.graph)
    for d, device in enumerate(result.by_device):
        timeline = device.timeline
        for i, (start, end) in enumerate(
            zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)
        ):
            assert start < 0 or end - start == round(nominal[i] * jitter.op_factor(d, i))
        copies = Counter()
        copy_of = {}
        for x in sorted(
            timeline.transfers, key=lambda x: (x.issue_ns, x.start_ns)
        ):  # those of one tensor go one after the other
            if x.cache_op not in copy_of:  # the chunks of a route are one copy
                copy_of[x.cache_op] = copies[x.tensor]
                copies[x.tensor] += 1
            factor = jitter.transfer_factor(d, places[x.tensor], copy_of[x.cache_op])
            channel = next(c for c in machine.channels if c.name == x.channel)
            if (
                machine.channel_scope(channel) == "device"
                and channel.engines == 1
                and not channel.beside
            ):
                flow_ns = -(-round(x.bytes * 10**9 * factor) // channel.bandwidth_bytes_per_s)
                assert x.end_ns - x.start_ns - x.contention_ns == channel.latency_ns + flow_ns
                assert x.contention_ns == 0


@settings(max_examples=2 * settings.default.max_examples)
@given(anything, st.data())
def test_the_timelines_keep_every_rule(case, data):
    _, machine, plan = case
    machine = data.draw(several(machine))
    jitter = data.draw(st.sampled_from((None, Jitter(1, 0.3), Jitter(2, 0.3, 0.3))))
    result = replay(plan, machine, record=True, fold=False, jitter=jitter)
    assert [str(finding) for finding in check_result(plan, machine, result)] == []


@pytest.mark.parametrize("policy", ["on_demand", "lookahead", "belady"])
@given(case=cases(max_ops=8, fabrics=True, roomy=None), data=st.data())
def test_runtime_policies_decide_on_each_device(policy, case, data):
    graph, machine, _ = case
    together = data.draw(several(machine))
    try:
        plan = policy_named(policy).plan(graph, machine)
    except InfeasibleError:
        assume(False)
    folded, unfolded = replay(plan, together), replay(plan, together, fold=False)
    assert folded == unfolded
    assert folded.by_device == unfolded.by_device
    own = replace(
        together,
        fabrics=tuple(replace(fabric, scope="device") for fabric in machine.fabrics),
        tiers=tuple(replace(tier, scope="device") for tier in machine.tiers),
    )
    alone = replay(plan, machine)
    for device in replay(plan, own, fold=False).by_device:
        assert replace(device, error=None) == replace(alone, error=None)


@given(cases(max_ops=6, max_streams=2, roomy=None), st.data())
def test_hosts_of_devices_that_do_the_same_do_the_same(case, data):
    """One device stands for all, each with its own host (rule 23), to the same result."""
    _, machine, plan = case
    figures = {
        "host": data.draw(st.sampled_from((0, 5))),
        "ahead": data.draw(st.sampled_from((0, 2))),
    }
    blocks = data.draw(st.sampled_from(((), ("prefetch",), ("matmul", "store"))))
    known = {name: RuntimeFigure(float(value)) for name, value in figures.items()}
    host = Runtime("drawn", blocks=blocks, **known)
    compared(plan, replace(data.draw(several(machine)), software=host))
