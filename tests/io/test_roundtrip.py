"""What is written is read back the same, byte for byte where that is promised."""

import json
import os
from dataclasses import replace
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest
from counting import lines_run
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, graphs, hardware, several, wild_plans

from hosim.base.files import content, parse, write
from hosim.base.search_control import SearchRecord
from hosim.cache_plan import CacheOp, Plan
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder, Op, Tensor
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.io import (
    check_tiers,
    comparison_to_dict,
    hardware_from_dict,
    hardware_to_dict,
    load_hardware,
    load_plan,
    load_workload,
    plan_from_dict,
    plan_to_dict,
    result_from_dict,
    result_to_dict,
    save_hardware,
    save_plan,
    save_workload,
    to_json,
    workload_from_dict,
    workload_to_dict,
)
from hosim.jitter import Jitter
from hosim.result import (
    ACCOUNTS,
    ALLOCATORS,
    STALL_CAUSES,
    AllocatorFigures,
    AllocatorState,
    ChannelFigures,
    DeviceFigures,
    DeviceLine,
    Result,
    Spread,
    StreamFigures,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
HUGE = st.integers(0, 2**63 - 1)
RECORDS = st.builds(
    SearchRecord,
    HUGE,
    st.sampled_from(("done", "work", "within", "time", "ctrl_c", "callback")),
    NAMES,
    HUGE,
    HUGE,
    st.none() | st.floats(-1, 9),
    HUGE,
)


def through_text(data, kind, yaml):
    """``data`` after a trip through a file."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/x.{'yaml' if yaml else 'json'}"
        write(path, data)
        return content(path)


@given(graphs(max_streams=3, measured=False), st.booleans())
def test_workload(graph, yaml):
    assert workload_from_dict(through_text(workload_to_dict(graph), "workload", yaml)) == graph


@given(NAMES, NAMES, NAMES, HUGE, st.booleans(), st.sampled_from([None, True, False]))
def test_workload_with_any_name_and_number(tensor, op, stream, number, yaml, persistent):
    graph = Graph(
        tensor,
        (
            Tensor(tensor, number, "input", stream, persistent),
            Tensor(tensor + "'", number, "activation"),
        ),
        (Op(op, op, (0,), (1,), (), (), stream, number, number, number, stream, number),),
    )
    assert workload_from_dict(through_text(workload_to_dict(graph), "workload", yaml)) == graph


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=3),
    st.booleans(),
)
def test_meta_is_kept_as_it_is(meta, yaml):
    graph = Graph("g", (), (), meta)
    assert workload_from_dict(through_text(workload_to_dict(graph), "workload", yaml)).meta == meta


@given(
    hardware(fabrics=True, uneven=True).flatmap(
        lambda machine: st.one_of(st.just(machine), several(machine))
    ),
    st.booleans(),
)
def test_hardware(machine, yaml):
    assert hardware_from_dict(through_text(hardware_to_dict(machine), "hardware", yaml)) == machine


@given(NAMES, HUGE.map(lambda n: n or 1), st.floats(1e-300, 1.0), st.booleans())
def test_hardware_with_any_name_and_number(name, number, efficiency, yaml):
    tiers = (Tier(name, number, number, "device"), Tier(name + "'", number, number, "global"))
    machine = Hardware(
        name,
        tiers,
        (Channel(name, name, name + "'", number, number),),
        Compute({name: number}, efficiency, number, {name: {name: efficiency}}),
        device_tier=name,
        inspect_ns=number,
        source=name,
    )
    back = hardware_from_dict(through_text(hardware_to_dict(machine), "hardware", yaml))
    assert (back, back.source) == (machine, name)


@given(st.data(), st.booleans())
def test_plan(data, yaml):
    graph, machine, plan = data.draw(cases(max_streams=3, roomy=None))
    wild = data.draw(wild_plans(graph, machine))
    for drawn in (plan, wild):
        slack = [data.draw(st.none() | st.integers(0, 10**12)) for _ in drawn.cache_ops]
        said = replace(
            drawn,
            cache_ops=tuple(
                [replace(c, slack_ns=ns) for c, ns in zip(drawn.cache_ops, slack, strict=True)]
            ),
        )
        back = plan_from_dict(through_text(plan_to_dict(said), "plan", yaml), graph)
        assert back == said == drawn
        assert [c.slack_ns for c in back.cache_ops] == slack
        check_tiers(drawn, machine)


@given(RECORDS, st.booleans())
def test_what_a_search_did_is_in_the_plan(record, yaml):
    graph = workload_from_dict(WORKLOAD)
    back = plan_from_dict(
        through_text(plan_to_dict(Plan(graph, search=record)), "plan", yaml), graph
    )
    assert back.search == record
    assert plan_to_dict(Plan(graph)).get("search") is None


def test_what_a_search_did_is_checked():
    graph = workload_from_dict(WORKLOAD)
    data = {"format": "hosim.plan/1", "workload": graph.name, "cache_ops": []}
    for key, wrong in (("work", -1), ("ended", "tired"), ("draws", 1.5), ("lost", "much")):
        with pytest.raises(InputError) as raised:
            plan_from_dict(
                {**data, "search": {"work": 1, "ended": "done", key: wrong}}, graph, "p.json"
            )
        assert (raised.value.source, raised.value.where) == ("p.json", f"search.{key}")


def test_a_slack_is_a_time_or_absent():
    graph = workload_from_dict(WORKLOAD)
    one = {
        "op": "prefetch",
        "tensor": graph.tensors[0].name,
        "from": "ddr",
        "to": "hbm",
        "after": None,
    }
    data = {"format": "hosim.plan/1", "workload": graph.name, "cache_ops": [one]}
    assert "slack_ns" not in plan_to_dict(plan_from_dict(data, graph))["cache_ops"][0]
    for wrong in (-1, "soon", 1.5):
        with pytest.raises(InputError) as raised:
            plan_from_dict({**data, "cache_ops": [{**one, "slack_ns": wrong}]}, graph, "p.json")
        assert (raised.value.source, raised.value.where) == ("p.json", "cache_ops[0].slack_ns")
    for wrong in (-1, "soon", 1.5, True):
        with pytest.raises(InputError, match="slack_ns"):
            CacheOp("prefetch", 0, "ddr", "hbm", slack_ns=wrong)


COUNTS = st.integers(0, 10**9)
STALLS = st.fixed_dictionaries(dict.fromkeys(STALL_CAUSES, COUNTS))
CHANNELS = st.builds(ChannelFigures, *[COUNTS] * 7, st.integers(0, 100).map(lambda n: n / 100))
TIERS = ("hbm", "ddr")
STATES = st.builds(AllocatorState, *[COUNTS] * 2, COUNTS).filter(
    lambda s: s.allocated_bytes <= s.reserved_bytes
)
ALLOCATOR_FIGURES = st.builds(
    AllocatorFigures,
    st.sampled_from(ALLOCATORS),
    st.sampled_from(ACCOUNTS),
    *[COUNTS] * 3,
    STATES,
    st.none() | STATES,
)
SPREADS = st.builds(Spread, COUNTS, COUNTS, COUNTS)
PEAKS = st.fixed_dictionaries(dict.fromkeys(TIERS, COUNTS))
DEVICE_FIGURES = st.builds(
    DeviceFigures,
    COUNTS,
    COUNTS,
    st.none() | SPREADS,
    st.none() | SPREADS,
    st.fixed_dictionaries(dict.fromkeys(TIERS, SPREADS)),
    st.lists(st.builds(DeviceLine, st.none() | COUNTS, COUNTS, PEAKS), max_size=3).map(tuple),
)
RESULTS = st.builds(
    Result,
    workload=NAMES,
    hardware=NAMES,
    policy=NAMES,
    budget_bytes=COUNTS,
    feasible=st.booleans(),
    error=st.none() | NAMES,
    makespan_ns=st.none() | COUNTS,
    busy_ns=st.none() | COUNTS,
    stall_ns=STALLS,
    drain_ns=st.none() | COUNTS,
    lower_bound_ns=st.none() | COUNTS,
    peak_bytes=st.fixed_dictionaries(dict.fromkeys(TIERS, COUNTS)),
    peak_at_ns=st.fixed_dictionaries(dict.fromkeys(TIERS, COUNTS)),
    peak_breakdown=st.fixed_dictionaries(
        {
            tier: st.dictionaries(
                st.sampled_from(["parameter", "workspace", "output"]), st.integers(1, 99)
            )
            for tier in TIERS
        }
    ),
    channels=st.dictionaries(NAMES, CHANNELS, max_size=2),
    plan=st.fixed_dictionaries({"prefetches": COUNTS, "stores": COUNTS, "detaches": COUNTS}),
    streams=st.dictionaries(NAMES, st.builds(StreamFigures, COUNTS, STALLS, COUNTS), max_size=2),
    allocator=st.none() | ALLOCATOR_FIGURES,
    devices=st.none() | DEVICE_FIGURES,
    jitter=st.none() | st.builds(Jitter, COUNTS, st.floats(0, 1), st.floats(0, 1)),
    planning_s=st.floats(0, 1e6),
    replay_s=st.floats(0, 1e6),
)


@given(RESULTS)
def test_result(result):
    data = json.loads(to_json(result_to_dict(result)))
    back = result_from_dict(data)
    assert (back, back.planning_s, back.replay_s) == (result, result.planning_s, result.replay_s)


@given(st.lists(RESULTS, max_size=3))
def test_comparison(results):
    from hosim.io import comparison_from_dict

    assert comparison_from_dict(json.loads(to_json(comparison_to_dict(results)))) == results


# --------------------------------------------------------------------------------------------------
# the examples of docs/formats.md

WORKLOAD = json.loads("""
{"format": "hosim.workload/1", "name": "toy",
 "tensors": [{"name": "w", "bytes": 40, "kind": "parameter", "home": "hbm"}, {"name": "a", "bytes": 30, "kind": "activation"}],
 "ops": [{"name": "f", "kind": "matmul", "stream": "compute", "inputs": ["w"], "outputs": ["a"], "mutates": [],
          "deps": [], "duration_ns": 50, "flops": 0, "bytes_accessed": 0, "dtype": "bf16", "workspace_bytes": 0}]}""")
HARDWARE = """
format: hosim.hardware/1
name: toy
devices: 1                      # devices that share the fabrics, all running the same program
device_tier: hbm
compute: {peak: {bf16: 1 TFLOP/s}, efficiency: 1.0, launch: 0 ns}
runtime: {inspect: 20 us}       # CPU time a runtime policy spends per op
tiers:
  hbm: {capacity: 100 B, bandwidth: 1 TB/s, scope: device}     # scope: device | host | global
  ddr: {capacity: 1000 B, bandwidth: 100 GB/s, scope: host}
channels:
  h2d: {from: ddr, to: hbm, bandwidth: 1 GB/s, latency: 0 ns, engines: 1}
  d2h: {from: hbm, to: ddr, bandwidth: 1 GB/s, latency: 0 ns, engines: 1}
fabrics:
  pcie: {bandwidth: 1.5 GB/s, channels: [h2d, d2h]}
"""
PLAN = json.loads("""
{"format": "hosim.plan/1", "workload": "toy", "policy": "manual", "initial": {"w": ["ddr"]},
 "cache_ops": [{"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": null},
               {"op": "detach", "tensor": "w", "from": "hbm", "after": "f"}]}""")
RESULT = """
{"format": "hosim.result/1", "workload": "toy", "hardware": "toy", "policy": "manual", "budget_bytes": 100, "feasible": true, "error": null,
 "makespan_ns": 90, "busy_ns": 50, "stall_ns": {"dependency": 0, "transfer": 40, "capacity": 0, "runtime": 0}, "drain_ns": 0,
 "lower_bound_ns": 90, "peak_bytes": {"hbm": 70, "ddr": 40}, "peak_at_ns": {"hbm": 40, "ddr": 0},
 "peak_breakdown": {"hbm": {"parameter": 40, "activation": 30}},
 "channels": {"h2d": {"transfers": 1, "bytes": 40, "busy_ns": 40, "queue_ns": 0, "contention_ns": 0,
              "exposed_ns": 40, "hidden_ns": 0, "utilization": 0.44}},
 "plan": {"prefetches": 1, "stores": 0, "detaches": 1}, "planning_s": 0.001, "replay_s": 0.001}"""


def test_the_examples_of_the_formats_page():
    graph = workload_from_dict(WORKLOAD)
    assert graph.tensors == (Tensor("w", 40, "parameter", "hbm"), Tensor("a", 30))
    assert graph.ops == (Op("f", "matmul", (0,), (1,), duration_ns=50),)
    machine = hardware_from_dict(parse(HARDWARE, "toy.yaml"))
    assert (
        machine.inspect_ns,
        machine.device.capacity_bytes,
        machine.fabrics[0].bandwidth_bytes_per_s,
    ) == (20_000, 100, 1_500_000_000)
    plan = plan_from_dict(PLAN, graph)
    check_tiers(plan, machine)
    assert plan_to_dict(plan) == PLAN
    assert list(plan_to_dict(plan)) == list(PLAN)


def test_figures_that_a_file_leaves_out_are_zero():
    data = json.loads(RESULT)
    data |= {
        "stall_ns": {"transfer": 40},
        "channels": {"h2d": {}, "d2h": {"bytes": 7}},
        "plan": {"stores": 3},
    }
    data["streams"] = {"compute": {}}
    result = result_from_dict(data)
    assert result.stall_ns == {"dependency": 0, "transfer": 40, "capacity": 0, "runtime": 0}
    nothing = ChannelFigures(0, 0, 0, 0, 0, 0, 0, 0.0)
    assert result.channels == {"h2d": nothing, "d2h": replace(nothing, bytes=7)}
    assert result.plan == {"prefetches": 0, "stores": 3, "detaches": 0}
    assert result.streams == {"compute": StreamFigures(0, dict.fromkeys(STALL_CAUSES, 0), 0)}


def test_json_has_the_keys_of_the_formats_page_in_its_order():
    result = replace(
        result_from_dict(json.loads(RESULT)),
        peak_breakdown={"hbm": {"activation": 30, "parameter": 40, "input": 0}},
    )
    expected = json.loads(RESULT)
    expected["peak_breakdown"]["ddr"] = {}  # every tier is listed
    assert to_json(result_to_dict(result)) == json.dumps(expected, indent=2)


def test_streams_stand_after_drain_only_when_there_are_others():
    result = result_from_dict(json.loads(RESULT))
    data = result_to_dict(replace(result, streams={"comm": StreamFigures(1, {"transfer": 2}, 3)}))
    keys = list(data)
    assert keys[keys.index("drain_ns") + 1] == "streams"
    assert data["streams"] == {
        "comm": {
            "busy_ns": 1,
            "stall_ns": {"dependency": 0, "transfer": 2, "capacity": 0, "runtime": 0},
            "drain_ns": 3,
        }
    }
    assert "streams" not in result_to_dict(result)


def test_utilization_has_two_decimals():
    result = result_from_dict(json.loads(RESULT))
    channel = replace(result.channels["h2d"], utilization=40 / 90)
    assert (
        result_to_dict(replace(result, channels={"h2d": channel}))["channels"]["h2d"]["utilization"]
        == 0.44
    )


def test_fragmentation_has_four_decimals():
    figures = AllocatorFigures("caching", "time", 1, 1, 3, AllocatorState(1, 3, 0))
    data = result_to_dict(replace(result_from_dict(json.loads(RESULT)), allocator=figures))
    assert data["allocator"]["at_peak"]["fragmentation"] == 0.6667


def test_keys_at_their_default_may_be_left_out():
    graph = workload_from_dict(
        {
            "format": "hosim.workload/1",
            "name": "g",
            "tensors": [{"name": "t", "bytes": 1}],
            "ops": [{"name": "f", "kind": "k", "outputs": ["t"]}],
        }
    )
    assert graph == Graph("g", (Tensor("t", 1),), (Op("f", "k", (), (0,)),))
    machine = hardware_from_dict(
        {
            "format": "hosim.hardware/1",
            "name": "h",
            "tiers": {"hbm": {"capacity": "1 B", "bandwidth": "1 B/s"}},
        }
    )
    assert machine == Hardware("h", (Tier("hbm", 1, 1, "device"),), (), Compute({}))
    assert plan_from_dict({"format": "hosim.plan/1", "workload": "g"}, graph) == Plan(graph)
    data = {
        "format": "hosim.result/1",
        "workload": "g",
        "hardware": "h",
        "policy": "p",
        "budget_bytes": 1,
        "feasible": False,
    }
    assert result_from_dict(data).makespan_ns is None


def test_a_profile_says_only_what_is_not_as_usual():
    plain = Hardware(
        "h",
        (Tier("hbm", 1, 1, "device"), Tier("ddr", 1, 1)),
        (Channel("up", "ddr", "hbm", 9),),
        Compute({"bf16": 1}),
    )
    expected = {
        "format": "hosim.hardware/1",
        "name": "h",
        "devices": 1,
        "device_tier": "hbm",
        "compute": {"peak": {"bf16": "1 FLOP/s"}, "efficiency": 1.0, "launch": "0 ns"},
        "runtime": {"inspect": "0 ns"},
        "tiers": {
            "hbm": {"capacity": "1 B", "bandwidth": "1 B/s", "scope": "device"},
            "ddr": {"capacity": "1 B", "bandwidth": "1 B/s", "scope": "host"},
        },
        "channels": {
            "up": {
                "from": "ddr",
                "to": "hbm",
                "bandwidth": "9 B/s",
                "latency": "0 ns",
                "engines": 1,
            }
        },
    }
    assert json.dumps(hardware_to_dict(plain)) == json.dumps(expected)
    pinned = Tier("ddr", 1, 1, "global", ("activation",), 5, True)
    back = Channel("down", "hbm", "ddr", 9)
    uneven = Channel("up", "ddr", "hbm", 9, 2, 3, ((1, 4),), 7, (("down", 8),), queue="copies")
    compute = Compute({}, 0.5, 3, {"mm": {"bf16": 0.25}})
    fabrics = (Fabric("bus", 6, ("up",), "device"),)
    full = Hardware(
        "h",
        (plain.device, pinned),
        (uneven, back),
        compute,
        "hbm",
        fabrics,
        4,
        4,
        2,
        10,
        "data sheet",
        3,
    )
    data = hardware_to_dict(full)
    assert list(data) == [
        *(
            "format",
            "name",
            "source",
            "version",
            "devices",
            "devices_per_host",
            "device_tier",
            "chunk",
        ),
        *list(expected)[4:],
        "fabrics",
    ]
    assert (
        data["source"],
        data["version"],
        data["devices"],
        data["devices_per_host"],
        data["chunk"],
    ) == ("data sheet", 3, 4, 2, "10 B")
    assert data["compute"] == {
        "peak": {},
        "efficiency": 0.5,
        "launch": "3 ns",
        "efficiency_of": {"mm": {"bf16": 0.25}},
    }
    assert data["runtime"] == {"inspect": "4 ns"}
    assert data["tiers"]["ddr"] == expected["tiers"]["ddr"] | {
        "scope": "global",
        "pageable": ["activation"],
        "pin": {"time": "5 ns", "pool": True},
    }
    assert data["channels"]["up"] == expected["channels"]["up"] | {
        "latency": "2 ns",
        "engines": 3,
        "curve": [{"size": "1 B", "bandwidth": "4 B/s"}],
        "pageable": "7 B/s",
        "beside": {"down": "8 B/s"},
        "queue": "copies",
    }
    assert data["fabrics"] == {"bus": {"bandwidth": "6 B/s", "channels": ["up"], "scope": "device"}}
    assert hardware_from_dict(data) == full
    assert hardware_from_dict(data).source == "data sheet"


def test_a_workload_says_only_what_is_not_as_usual():
    tensors = (
        Tensor("a", 1),
        Tensor("w", 2, "parameter"),
        Tensor("x", 3, "input", "ddr", False),
        Tensor("s", 4, "activation", None, True),
    )
    ops = (
        Op("f", "mm", (1,), (0,)),
        Op("g", "mm", (0,), (), (3,), (0,), "comm", 5, 6, 7, "fp32", 8),
    )
    data = workload_to_dict(Graph("w", tensors, ops, {"made": "by hand"}))
    assert list(data) == ["format", "name", "meta", "tensors", "ops"]
    assert data["tensors"] == [
        {"name": "a", "bytes": 1, "kind": "activation"},
        {"name": "w", "bytes": 2, "kind": "parameter"},
        {"name": "x", "bytes": 3, "kind": "input", "home": "ddr", "persistent": False},
        {"name": "s", "bytes": 4, "kind": "activation", "persistent": True},
    ]
    assert data["ops"][0] == {"name": "f", "kind": "mm", "inputs": ["w"], "outputs": ["a"]}
    expected = {
        "name": "g",
        "kind": "mm",
        "stream": "comm",
        "inputs": ["a"],
        "mutates": ["s"],
        "deps": ["f"],
        "duration_ns": 5,
        "flops": 6,
    }
    assert json.dumps(data["ops"][1]) == json.dumps(
        expected | {"bytes_accessed": 7, "dtype": "fp32", "workspace_bytes": 8}
    )
    assert "meta" not in workload_to_dict(Graph("w", tensors, ops))


def test_figures_that_a_result_file_leaves_out():
    data = {
        "format": "hosim.result/1",
        "workload": "g",
        "hardware": "h",
        "policy": "p",
        "budget_bytes": 1,
        "feasible": False,
    }
    more = {
        "streams": {"comm": {}},
        "channels": {"up": {}},
        "allocator": {
            "name": "static",
            "peak_allocated_bytes": 5,
            "peak_reserved_bytes": 7,
            "at_peak": {"allocated_bytes": 5, "reserved_bytes": 7},
        },
        "devices": {"count": 2, "feasible": 0, "each": [{}]},
        "jitter": {"seed": 3},
    }
    result = result_from_dict(data | more)
    none = dict.fromkeys(("dependency", "transfer", "capacity", "runtime"), 0)
    assert (result.stall_ns, result.plan) == (none, {"prefetches": 0, "stores": 0, "detaches": 0})
    assert result.streams == {"comm": StreamFigures(0, none, 0)}
    assert result.channels == {"up": ChannelFigures(*[0] * 7, 0.0)}
    assert result.allocator == AllocatorFigures("static", "time", 5, 5, 7, AllocatorState(5, 7, 0))
    assert result.devices == DeviceFigures(2, 0, None, None, {}, (DeviceLine(None, 0, {}),))
    assert result.jitter == Jitter(3)
    plain = result_to_dict(result_from_dict(data))
    assert not {"streams", "slowed_ns", "allocator", "devices", "jitter"} & set(plain)
    with pytest.raises(InputError, match=r"^jitter\.seed: missing"):
        result_from_dict(data | {"jitter": {}})


# --------------------------------------------------------------------------------------------------
# files

ENDINGS = ["json", "json.gz", "yaml", "yml.gz", "workload"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_by_name_and_content(tmp_path, ending):
    path = tmp_path / f"w.{ending}"
    graph = workload_from_dict(WORKLOAD)
    save_workload(graph, path)
    assert load_workload(path) == graph
    assert path.read_bytes().startswith(b"\x1f\x8b") == ending.endswith(".gz")
    machine = hardware_from_dict(parse(HARDWARE, "toy.yaml"))
    save_hardware(machine, path)
    assert load_hardware(path) == machine
    plan = plan_from_dict(PLAN, graph)
    save_plan(plan, path)
    assert load_plan(path, graph) == plan
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing is left beside it


def test_gzip_is_recognized_by_its_content_and_is_the_same_every_time(tmp_path):
    graph = workload_from_dict(WORKLOAD)
    first, second = tmp_path / "a.json.gz", tmp_path / "another name.json.gz"
    save_workload(graph, first)
    save_workload(graph, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[3:8] == bytes(5)  # no name, and the time 0
    plain = tmp_path / "renamed.json"
    plain.write_bytes(first.read_bytes())
    assert load_workload(plain) == graph


def test_hardware_is_written_as_people_write_it(tmp_path):
    path = tmp_path / "h.yaml"
    save_hardware(hardware_from_dict(parse(HARDWARE, "toy.yaml")), path)
    text = path.read_text()
    assert "  hbm: {capacity: 100 B, bandwidth: 1 TB/s, scope: device}\n" in text
    assert "    channels: [h2d, d2h]\n" in text


def test_large_lists_have_one_item_a_line(tmp_path):
    path = tmp_path / "w.json"
    graph = Graph(
        "g",
        (Tensor('}, {"', 1), Tensor("b", 2)),
        (Op('", "}, {"name": "', "k", (), (0, 1)), Op("g", "k", (1,))),
    )
    save_workload(graph, path)
    assert load_workload(path) == graph
    assert sum(line.startswith('  {"name"') for line in path.read_text().splitlines()) == 4


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.json"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        save_workload(workload_from_dict(WORKLOAD), path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["w.json"]


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "w.json"
    link.symlink_to(tmp_path / "real" / "w.json")
    save_workload(workload_from_dict(WORKLOAD), link)
    assert link.is_symlink()
    assert load_workload(tmp_path / "real" / "w.json").name == "toy"


@pytest.mark.parametrize("meta", [{"a": {1, 2}}, {"a": float("nan")}, {"a": MappingProxyType({})}])
def test_meta_that_json_cannot_hold(tmp_path, meta):
    with pytest.raises(InputError, match=r"^meta: cannot be written as JSON: "):
        save_workload(Graph("g", (), (), meta), tmp_path / "w.json")


def test_a_plan_that_decides_during_the_replay_has_no_file(tmp_path):
    graph = workload_from_dict(WORKLOAD)
    with pytest.raises(
        InputError, match="'on_demand' decides during the replay: its plan cannot be written"
    ):
        save_plan(Plan(graph, "on_demand", runtime=object), tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


def chain(n):
    builder = GraphBuilder("chain")
    builder.tensor("x", 10, "input")
    for i in range(n):
        builder.tensor(f"act_{i}", 100)
        builder.op(
            f"op_{i}",
            "mm",
            inputs=["x" if i == 0 else f"act_{i - 1}"],
            outputs=[f"act_{i}"],
            duration_ns=7,
            flops=9,
            bytes_accessed=3,
        )
    return builder.build()


def test_the_work_of_loading_and_saving_grows_with_the_size(tmp_path):
    def lines(n):
        graph, path = chain(n), tmp_path / f"{n}.json"
        saving = lines_run(save_workload, graph, path)
        assert len(load_workload(path).ops) == n  # imports what it needs
        return saving, lines_run(load_workload, path)

    for few, many in zip(lines(1000), lines(2000), strict=True):
        assert many <= 2.01 * few  # a quadratic step would make it four times


@given(
    graphs(6, measured=False),
    st.dictionaries(
        st.text(),
        st.recursive(
            st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
        ),
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :")]),
)
def test_a_workload_is_the_same_however_its_json_is_spaced(
    tmp_path_factory, graph, meta, separators
):
    data = workload_to_dict(replace(graph, meta=meta))
    path = tmp_path_factory.mktemp("spaced") / "w.json"
    path.write_text(
        json.dumps(data, separators=separators, ensure_ascii=False),
        encoding="utf-8",
        errors="surrogatepass",
    )
    loaded = load_workload(path)
    assert (loaded, loaded.meta) == (graph, meta)
    assert workload_from_dict(data) == graph
