"""Whoever shows what an op waited for names the transfer that the engine blames: tables, the gate,
pictures, traces, the planner.
"""

import re
from collections import Counter
from tempfile import TemporaryDirectory

from both_engines import replay
from by_hand import machine, plan, workload
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from page_data import data_of
from strategies import cases

from hosim.cache_plan import Plan
from hosim.gate import Case, measure
from hosim.hardware import Hardware
from hosim.io import save_hardware, save_plan, save_workload
from hosim.planner.hyperoffload.explanations import explain
from hosim.report import to_dict
from hosim.report.drawn import Shown, widget
from hosim.report.timelines import rows, trace, waits
from hosim.result import Result
from hosim.study import stalls_of

Blame = tuple[str, int, str, str]
"""Op, end of the stall, tensor and channel of the transfer."""


def of_the_engine(the_plan: Plan, result: Result) -> list[Blame]:
    graph, timeline = the_plan.graph, result.timeline
    found = []
    for stall in timeline.stalls:
        assert (stall.transfer is not None) == (stall.cause == "transfer")
        if stall.transfer is not None:
            x = timeline.transfers[stall.transfer]
            assert x.end_ns <= stall.end_ns
            found.append(
                (graph.ops[stall.op].name, stall.end_ns, graph.tensors[x.tensor].name, x.channel)
            )
    return sorted(found)


def of_the_table(the_plan: Plan, hardware: Hardware) -> list[Blame]:
    return sorted(
        (s.op, s.end_ns, s.tensor, s.channel)
        for s in stalls_of(the_plan, hardware)[1]
        if s.cause == "transfer"
    )


def of_the_trace(the_plan: Plan, hardware: Hardware, result: Result) -> list[Blame]:
    slices = [
        e
        for e in trace(the_plan, hardware, result)["traceEvents"]
        if e["ph"] == "X" and e["cat"] == "stall"
    ]
    found = []
    for e in slices:
        assert ("awaits" in e["args"]) == (e["args"]["cause"] == "transfer")
        if "awaits" in e["args"]:
            found.append(
                (
                    e["args"]["before"],
                    round((e["ts"] + e["dur"]) * 1000),
                    *e["args"]["awaits"].split(" on "),
                )
            )
    return sorted(found)


def of_the_page(
    the_plan: Plan, hardware: Hardware, result: Result
) -> Counter[tuple[str, str, str]]:
    """As the others, but without the time, and with the whole instead of a part: bars say these
    otherwise.
    """
    data = data_of(widget([Shown("", the_plan, result)], hardware))
    group, *_ = data["groups"]
    names = [[data["names"][place] for place in row["name"]] for row in group["rows"]]
    found: Counter[tuple[str, str, str]] = Counter()
    for stalled, i, moved, j in group["blames"]:
        name = names[moved][j].rpartition(", ")[0]
        whole = name.partition("[")[0] if name.endswith(" parts)") else whole_of(the_plan, name)
        found[names[stalled][i], whole, re.sub(r" \d+$", "", group["rows"][moved]["label"])] += (
            1  # a row an engine
        )
    return found


def whole_of(the_plan: Plan, tensor: str) -> str:
    graph = the_plan.graph
    return graph.tensors[graph.tensor_index[tensor]].whole


def of_the_planner(
    the_plan: Plan, hardware: Hardware, result: Result
) -> list[tuple[str, str, str]]:
    found = explain(the_plan, hardware, result.budget_bytes)
    graph = found.plan.graph
    return sorted(
        (graph.ops[i].name, graph.tensors[c.transfer.tensor].name, c.transfer.channel)
        for c in found.copies
        for i in c.waiting
    )


def of_the_gate(the_plan: Plan, hardware: Hardware) -> dict[str, str]:
    """By op, the last tensor that it waited for."""
    with TemporaryDirectory() as folder:
        save_workload(the_plan.graph, f"{folder}/w.json")
        save_hardware(hardware, f"{folder}/h.json")
        save_plan(the_plan, f"{folder}/p.json")
        return dict(
            measure(Case("case", "h.json", folder, "w.json", plan="p.json"), None).waits_for
        )


def agree(the_plan: Plan, hardware: Hardware, gate: bool = True) -> list[Blame]:
    """Ask all of them, the ``gate`` too, which takes longer; what they say."""
    graph = the_plan.graph
    result = replay(the_plan, hardware, record=True)
    expected = of_the_engine(the_plan, result)
    without_time = sorted((op, tensor, channel) for op, _, tensor, channel in expected)
    assert of_the_table(the_plan, hardware) == expected
    assert of_the_trace(the_plan, hardware, result) == expected
    of_wholes = Counter(
        (op, whole_of(the_plan, tensor), channel) for op, tensor, channel in without_time
    )
    assert of_the_page(the_plan, hardware, result) == of_wholes
    assert of_the_planner(the_plan, hardware, result) == without_time
    assert not gate or of_the_gate(the_plan, hardware) == {
        op: tensor for op, _, tensor, _ in expected
    }
    arrows_agree(the_plan, hardware, result)
    lengths = dict.fromkeys(result.channels, 0)
    for stall in result.timeline.stalls:
        if stall.transfer is not None and graph.ops[stall.op].stream == graph.main_stream:
            lengths[result.timeline.transfers[stall.transfer].channel] += (
                stall.end_ns - stall.start_ns
            )
    assert lengths == {name: figures.exposed_ns for name, figures in result.channels.items()}
    return expected


def arrows_agree(the_plan: Plan, hardware: Hardware, result: Result) -> None:
    """The blamed transfer has an arrow to its op; a store has one if it is blamed, and no other."""
    graph, timeline = the_plan.graph, result.timeline
    up = {c.name for c in hardware.channels if c.destination == hardware.device_tier}
    to_device = [x.channel in up for x in timeline.transfers]
    arrows = set(waits(graph, timeline, to_device))
    blamed = {(stall.transfer, stall.op) for stall in timeline.stalls if stall.transfer is not None}
    assert blamed <= arrows
    assert all(
        to_device[k] and timeline.transfers[k].tensor in graph.ops[i].uses
        for k, i in arrows - blamed
    )
    drawn = [
        bar
        for row in rows(graph, timeline)
        if row.is_stream
        for bar in row.bars
        if bar.what == "transfer"
    ]
    assert sorted((bar.number, bar.end_ns) for bar in drawn) == [
        (k, stall.end_ns) for k, stall in enumerate(timeline.stalls) if stall.cause == "transfer"
    ]


def ready(stored: str, fetched: str) -> Plan:
    """``f`` reads a tensor of which a store is in flight, and one that is prefetched; both
    transfers end at 40.
    """
    homes = {stored: (40, "parameter", "hbm"), fetched: (40, "parameter", "ddr")}
    graph = workload(
        dict(sorted(homes.items())), {"e": {"ns": 10}, "f": {"ns": 5, "inputs": sorted(homes)}}
    )
    return plan(graph, (f"store {stored}", None), (f"prefetch {fetched}", None))


def test_what_is_read_while_it_is_stored_is_blamed_nowhere():
    assert agree(ready("stored", "fetched"), machine()) == [("f", 40, "fetched", "h2d")]
    assert agree(ready("a", "z"), machine()) == [("f", 40, "z", "h2d")]
    assert agree(ready("z", "a"), machine()) == [("f", 40, "a", "h2d")]


def test_its_arrows_and_its_explanation():
    the_plan, hardware = ready("stored", "fetched"), machine()
    timeline = replay(the_plan, hardware, record=True).timeline
    (fetched,) = [k for k, x in enumerate(timeline.transfers) if x.channel == "h2d"]
    assert list(
        waits(the_plan.graph, timeline, [x.channel == "h2d" for x in timeline.transfers])
    ) == [(fetched, 1)]
    told = to_dict(explain(the_plan, hardware, 100))
    assert [(w["op"], w["transfer"]["tensor"]) for w in told["waits"]] == [("f", "fetched")]


def test_of_two_that_end_together_all_name_the_one_issued_last():
    graph = workload(
        {"v": (20, "parameter", "ddr"), "w": (20, "parameter", "ddr")},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": ["v", "w"]}},
    )
    for first, last in ("vw", "wv"):
        assert agree(
            plan(graph, (f"prefetch {first}", None), (f"prefetch {last}", None)), machine(engines=2)
        ) == [("f", 40, last, "h2d")]


def test_a_store_that_an_op_waits_for_is_named():
    graph = workload(
        {"a": (5, "parameter"), "s": (40, "parameter")},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": ["a"], "mutates": ["s"]}},
    )
    the_plan = plan(graph, ("store s", None))
    assert agree(the_plan, machine()) == [("f", 40, "s", "d2h")]


@settings(deadline=None)
@given(cases(max_ops=8, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_all_name_the_same_transfer(case):
    _, hardware, the_plan = case
    result = replay(the_plan, hardware)
    assume(result.feasible)
    agree(the_plan, hardware, gate=False)


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(1, 4), st.sampled_from((1, 2, 4)))
def test_ties(order, engines, late):
    """Four tensors of one size that an op reads, brought over the same channel in some order: many
    end together.
    """
    names = "abcd"
    graph = workload(
        dict.fromkeys(names, (12, "parameter", "ddr")),
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": list(names)}},
    )
    moves = [
        (f"prefetch {names[k]}", None if place < late else "e") for place, k in enumerate(order)
    ]
    found = agree(plan(graph, *moves), machine(engines=engines), gate=False)
    assert [tensor for _, _, tensor, _ in found] == [names[order[-1]]]


@settings(deadline=None, max_examples=6)
@given(cases(max_ops=8, max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_the_gate_does_as_well(case):
    _, hardware, the_plan = case
    assume(replay(the_plan, hardware).feasible)
    agree(the_plan, hardware)
