"""What holds of the export of any replay: of drawn graphs, machines of several engines, fabrics and
devices, and plans that may not fit.
"""

from html.parser import HTMLParser

import trace_rules
from hypothesis import given, settings
from strategies import cases, several
from timeline_memory import rounds_of

from hosim.engine import replay
from hosim.report.drawn import Shown, widget
from hosim.report.timelines import memory_viz, of_devices, rows, script_json, stacked, trace
from hosim.validate.snapshots import parse_snapshot, replay_snapshot

anything = cases(12, max_streams=3, fabrics=True, roomy=None, measured=False, uneven=True)
some = settings(max_examples=40)


@some
@given(anything)
def test_any_trace_obeys_the_rules(case):
    _, machine, plan = case
    trace_rules.check(trace(plan, machine, replay(plan, machine, record=True)))


@some
@given(
    anything.flatmap(lambda case: several(case[1]).map(lambda machine: (case[0], machine, case[2])))
)
def test_any_trace_of_devices_obeys_the_rules(case):
    _, machine, plan = case
    trace_rules.check(trace(plan, machine, replay(plan, machine, record=True, fold=False)))


@some
@given(anything)
def test_rows_hold_everything_once(case):
    _, machine, plan = case
    timeline = replay(plan, machine, record=True).timeline
    drawn = rows(plan.graph, timeline)
    ran = sum(start >= 0 for start in timeline.op_start_ns)
    assert sum(len(row.bars) for row in drawn) == ran + len(timeline.stalls) + len(
        timeline.transfers
    )
    for row in drawn:
        assert all(
            one.end_ns <= other.start_ns for one, other in zip(row.bars, row.bars[1:], strict=False)
        )
    engines = {channel.name: channel.engines for channel in machine.channels}
    assert all(row.is_stream or row.lane < engines[row.name] for row in drawn)


@some
@given(anything)
def test_occupancy_reaches_the_peak(case):
    """Unless something takes no time: then an instant has several rounds, and the curve, which has
    one, may miss a peak of no duration.
    """
    _, machine, plan = case
    result = replay(plan, machine, record=True)
    for tier in machine.tiers:
        _, by_kind = stacked(plan.graph, result.timeline, tier.name)
        most = max(map(sum, zip(*by_kind.values(), strict=True)), default=0)
        assert most <= result.peak_bytes[tier.name]
        if not rounds_of(result.timeline):
            assert most == result.peak_bytes[tier.name]


@some
@given(anything)
def test_any_snapshot_is_what_the_allocator_would_have_recorded(case):
    _, machine, plan = case
    result = replay(plan, machine, record=True)
    lived = replay_snapshot(parse_snapshot(memory_viz(plan, machine, result, "caching")), 0)
    assert lived.exact
    assert lived.start == ()


@some
@given(anything)
def test_the_segment_of_any_static_packing_is_full(case):
    """Its blocks lie side by side, none is empty, and those that are held are what is left at the
    end.
    """
    _, machine, plan = case
    found = memory_viz(plan, machine, replay(plan, machine, record=True), "static")
    for segment, entries in zip(found["segments"], found["device_traces"], strict=False):
        at = segment["address"]
        for block in segment["blocks"]:
            assert (block["address"], block["size"] > 0) == (at, True)
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        left = [entry["addr"] for entry in entries if entry["action"] == "alloc"]
        for entry in entries:
            if entry["action"] == "free_completed":
                left.remove(entry["addr"])
        assert sorted(left) == [
            block["address"] for block in segment["blocks"] if block["state"] == "active_allocated"
        ]


@some
@given(anything)
def test_any_timeline_is_a_part_of_a_page(case):
    _, machine, plan = case
    result = replay(plan, machine, record=True)
    parser = HTMLParser()
    parser.feed(widget([Shown(name, plan, one) for name, one in of_devices(result)], machine))
    assert script_json(result.workload) == f'"{result.workload}"'
