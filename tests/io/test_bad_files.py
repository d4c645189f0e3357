"""Whatever is wrong with a file, one line says where, what was expected and what to do; nothing
else ever escapes.
"""

import gzip
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.base.files import parse
from hosim.cache_plan import CacheOp, Plan
from hosim.errors import InputError
from hosim.io import (
    check_tiers,
    hardware_from_dict,
    load_hardware,
    load_plan,
    load_workload,
    plan_from_dict,
    result_from_dict,
    workload_from_dict,
)

W = '"format": "hosim.workload/1", "name": "w"'
T = '"tensors": [{"name": "weight", "bytes": 8, "kind": "parameter"}, {"name": "act", "bytes": 4}]'
OP = '{"name": "f", "kind": "mm", "inputs": ["weight"], "outputs": ["act"]}'

WORKLOADS = {
    # the text is no data
    "empty": ("", "broken JSON at line 1, column 1: Expecting value"),
    "broken": (
        "{\n  'format': 1}",
        "broken JSON at line 2, column 3: Expecting property name enclosed in double quotes",
    ),
    "cut off": ("{" + W + ', "tensors": [', "broken JSON at line 1, column 57: Expecting value"),
    "two keys": (
        "{" + W + ', "name": "x"}',
        "key 'name' is given twice in one object; keep one of them",
    ),
    "two keys, one with a space behind it": (
        "{" + W + ', "name" : "x"}',
        "key 'name' is given twice in one object; keep one of them",
    ),
    "two keys of an op": (
        "{" + W + "," + T + ', "ops": [{"name": "f", "kind": "mm", "kind": "mm"}]}',
        "key 'kind' is given twice in one object; keep one of them",
    ),
    "two keys beside a colon in a name": (
        "{" + W + ', "tensors" : [{"name": "\\":", "bytes": 1, "bytes": 2}]}',
        "key 'bytes' is given twice in one object; keep one of them",
    ),
    "two keys in meta": (
        "{" + W + ', "meta": {"a": [{"b": 1, "b": 2}]}}',
        "key 'b' is given twice in one object; keep one of them",
    ),
    "not a number": ("{" + W + ', "meta": {"a": NaN}}', "expected a finite number, got NaN"),
    "endless depth": (
        "[" * 100_000,
        'expected at most 200 levels of nesting, got more; HOSIM_LIMITS="nesting_depth=400" '
        "raises this limit",
    ),
    # the data is no workload
    "a list": ("[]", "expected a workload (a mapping with format: hosim.workload/1), got a list"),
    "null": ("null", "expected a workload (a mapping with format: hosim.workload/1), got nothing"),
    "text": (
        '"toy"',
        "expected a workload (a mapping with format: hosim.workload/1), got str 'toy'",
    ),
    "no format": (
        '{"name": "w"}',
        "format: missing; a workload begins with format: hosim.workload/1",
    ),
    "a plan": (
        '{"format": "hosim.plan/1"}',
        "format: expected a workload (hosim.workload/1), this is a plan (hosim.plan/1)",
    ),
    "a newer one": (
        '{"format": "hosim.workload/2"}',
        "format: 'hosim.workload/2' is from a newer hosim, and this one reads hosim.workload/1: "
        "update hosim, or write the file again with this one",
    ),
    "another format": ('{"format": "onnx"}', "format: expected 'hosim.workload/1', got 'onnx'"),
    "a format of no kind": ('{"format": 1}', "format: expected 'hosim.workload/1', got 1"),
    # keys and types
    "no name": (
        '{"format": "hosim.workload/1"}',
        "name: missing; expected the keys format, name, meta, tensors, ops",
    ),
    "unknown key": (
        "{" + W + ', "tensor": []}',
        "tensor: unknown key 'tensor'; did you mean 'tensors'?",
    ),
    "unknown key of an op": (
        "{" + W + ',"ops": [{"name": "f", "kind": "mm", "input": []}]}',
        "ops[0].input: unknown key 'input'; did you mean 'inputs'?",
    ),
    "unknown key, unlike any": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": 1, "xyzzy": 1}]}',
        "tensors[0].xyzzy: unknown key 'xyzzy' (known: name, bytes, kind, home, persistent, of)",
    ),
    "bytes as text": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": "12"}]}',
        "tensors[0].bytes: expected an integer, got '12'",
    ),
    "bytes as a float": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": 1.5}]}',
        "tensors[0].bytes: expected an integer, got 1.5",
    ),
    "bytes as a bool": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": true}]}',
        "tensors[0].bytes: expected an integer, got true",
    ),
    "bytes below zero": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": -1}]}',
        "tensors[0].bytes: expected at least 0, got -1",
    ),
    "bytes beyond 64 bits": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": 9223372036854775808}]}',
        "tensors[0].bytes: expected an integer up to 2^63-1, got 9223372036854775808",
    ),
    "bytes beyond reason": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": 1' + "0" * 5000 + "}]}",
        "byte 79: expected at most 1000 digits in a number, got more; "
        'HOSIM_LIMITS="integer_digits=2000" raises this limit',
    ),
    "ops as a mapping": ("{" + W + ', "ops": {}}', "ops: expected a list, got a mapping"),
    "name as null": (
        "{" + W + ', "tensors": [{"name": null, "bytes": 1}]}',
        "tensors[0].name: expected text, got null",
    ),
    "unknown kind": (
        "{" + W + ', "tensors": [{"name": "t", "bytes": 1, "kind": "weights"}]}',
        "tensors[0].kind: expected 'parameter', 'gradient', 'optimizer_state', 'activation', "
        "'kv_cache', 'expert', 'input', 'output' or "
        "'buffer', got 'weights'",
    ),
    "several at once": (
        "{"
        + W
        + ', "tensors": [{"name": "t", "bytes": "1"}, {"name": "u", "bytes": "2"}, {"name": "v"}]}',
        "tensors[0].bytes: expected an integer, got '1' (and 2 more)",
    ),
    # other processors
    "also_on as a list": (
        "{" + W + "," + T + ', "ops": [' + OP[:-1] + ', "also_on": []}]}',
        "ops[0].also_on: expected a mapping, got a list",
    ),
    "also_on in text": (
        "{" + W + "," + T + ', "ops": [' + OP[:-1] + ', "also_on": {"ddr": "5"}}]}',
        "ops[0].also_on.ddr: expected an integer, got '5'",
    ),
    "also_on below zero": (
        "{" + W + "," + T + ', "ops": [' + OP[:-1] + ', "also_on": {"ddr": -1}}]}',
        "ops[0].also_on.ddr: expected at least 0, got -1",
    ),
    "also_on without a name": (
        "{" + W + "," + T + ', "ops": [' + OP[:-1] + ', "also_on": {"": 5}}]}',
        "ops[0].also_on['']: expected text that is not empty, got ''",
    ),
    "also_on twice": (
        "{" + W + "," + T + ', "ops": [' + OP[:-1] + ', "also_on": {"ddr": 1, "ddr": 2}}]}',
        "key 'ddr' is given twice in one object; keep one of them",
    ),
    "also_on its own processor": (
        "{"
        + W
        + ","
        + T
        + ', "ops": ['
        + OP[:-1]
        + ', "processor": "ddr", "stream": "ddr", "also_on": {"ddr": 5}}]}',
        "ops[0].also_on: op 'f': lists the processor 'ddr' twice (its own is 'ddr')",
    ),
    # names and the graph
    "misspelt tensor": (
        "{" + W + "," + T + ', "ops": [' + OP.replace('["weight"]', '["wieght"]') + "]}",
        "ops[0].inputs[0]: unknown tensor 'wieght'; did you mean 'weight'?",
    ),
    "unknown tensor": (
        "{" + W + "," + T + ', "ops": [' + OP.replace('["act"]', '["zzz"]') + "]}",
        "ops[0].outputs[0]: unknown tensor 'zzz' (known: weight, act)",
    ),
    "later op": (
        "{"
        + W
        + ","
        + T
        + ', "ops": ['
        + OP.replace('"mm"', '"mm", "deps": ["g"]')
        + ', {"name": "g", "kind": "mm"}]}',
        "ops[0].deps[0]: unknown earlier op 'g'; there is no earlier op at all",
    ),
    "tensor twice": (
        "{" + W + "," + T.replace("act", "weight") + "}",
        "tensors[1].name: tensor name 'weight' is listed twice",
    ),
    "op twice": (
        "{" + W + "," + T + ', "ops": [' + OP + "," + OP + "]}",
        "ops[1].name: op name 'f' is listed twice",
    ),
    "used before it is there": (
        "{" + W + "," + T + ', "ops": [' + OP.replace('["weight"]', '["act"]') + "]}",
        "ops[0].inputs[0]: op 'f' uses tensor 'act' before any op produces it; list its producer "
        "first, or give the tensor a home if it is "
        "there from the start",
    ),
    "empty name": (
        "{" + W + ', "tensors": [{"name": "", "bytes": 1}]}',
        "tensors[0].name: expected text that is not empty, got ''",
    ),
}


def line_of(load, *args):
    """The message, which must be one line."""
    with pytest.raises(InputError) as caught:
        load(*args)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


@pytest.mark.parametrize(("text", "message"), WORKLOADS.values(), ids=WORKLOADS)
def test_workloads(tmp_path, text, message):
    path = tmp_path / "w.json"
    path.write_text(text)
    line = line_of(load_workload, path)
    assert line.startswith(f"{path}: ")
    assert line.removeprefix(f"{path}: ") == message


H = "format: hosim.hardware/1\nname: h\n"
TIERS = (
    "tiers:\n  hbm: {capacity: 1 GB, bandwidth: 1 TB/s}\n  ddr: {capacity: 1 GB, bandwidth: 1 "
    "TB/s}\n"
)

HARDWARE = {
    "broken": (
        H + "tiers: {hbm: [}",
        "broken YAML at line 3, column 15: did not find expected node content",
    ),
    "tab": (
        H + "tiers:\n\thbm: {}",
        "broken YAML at line 4, column 1: found character that cannot start any token",
    ),
    "key twice": (
        H + TIERS + "name: x",
        "line 6, column 1: key 'name' is given twice; keep one of them",
    ),
    "alias": (
        H + "tiers:\n  hbm: &a {capacity: 1 GB, bandwidth: 1 TB/s}\n  ddr: *a",
        "line 4, column 8: anchors (&) and aliases (*) are not allowed; write the value out",
    ),
    "tag": (
        H + "devices: !!python/name:os.system 1",
        "line 3, column 10: tags such as 'tag:yaml.org,2002:python/name:os.system' are not "
        "allowed; drop it",
    ),
    "two documents": (
        H + TIERS + "---\n",
        "line 6, column 1: expected one document, found a second ('---')",
    ),
    "key of a key": (H + "? [a, b]\n: 1", "line 3, column 3: expected a plain key"),
    "no tiers": (
        H,
        "tiers: missing; expected the keys format, name, source, version, price_per_hour, devices, "
        "devices_per_host, device_tier, chunk, compute, runtime, "
        "tiers, channels, fabrics",
    ),
    "no unit": (
        H + TIERS.replace("1 GB", "80", 1),
        "tiers.hbm.capacity: expected a size with its unit, such as '80 GiB', got 80",
    ),
    "bits": (
        H + TIERS.replace("1 GB", "80 Gb", 1),
        "tiers.hbm.capacity: expected a size such as '80 GiB', got '80 Gb': unknown unit 'Gb'; "
        "'b' would be bits: write 'B' for bytes",
    ),
    "a size for a rate": (
        H + TIERS.replace("1 TB/s", "1 TB", 1),
        "tiers.hbm.bandwidth: expected a rate such as '55 GB/s', got '1 TB': unknown unit 'TB'",
    ),
    "a rate below zero": (
        H + TIERS.replace("1 TB/s", "-1 TB/s", 1),
        "tiers.hbm.bandwidth: expected a rate from 0 to 2^63-1 B/s, got '-1 TB/s'",
    ),
    "no capacity at all": (
        H + TIERS.replace("1 GB", "0 B", 1),
        "tiers.hbm.capacity: expected a capacity above 0 B",
    ),
    "octal": (H + TIERS + "devices: 010", "devices: expected an integer, got '010'"),
    "sexagesimal": (H + TIERS + "devices: 1:30", "devices: expected an integer, got '1:30'"),
    "yes": (
        H + TIERS + "compute: {efficiency: yes}",
        "compute.efficiency: expected a number, got 'yes'",
    ),
    "efficiency above one": (
        H + TIERS + "compute: {efficiency: 1.5}",
        "compute.efficiency: expected at most 1, got 1.5",
    ),
    "efficiency of a kind above one": (
        H + TIERS + "compute: {efficiency_of: {matmul: {bf16: 1.5}}}",
        "compute.efficiency_of.matmul.bf16: expected at most 1, got 1.5",
    ),
    "efficiency of nothing": (
        H + TIERS + "compute: {efficiency: 0}",
        "compute.efficiency: expected a number above 0, got 0",
    ),
    "efficiency in percent": (
        H + TIERS + "compute: {efficiency: 80 %}",
        "compute.efficiency: expected a number, got '80 %'",
    ),
    "scope": (
        H + TIERS.replace("TB/s}", "TB/s, scope: node}", 1),
        "tiers.hbm.scope: expected 'device', 'host' or 'global', got 'node'",
    ),
    "device tier": (
        H + TIERS + "device_tier: vram",
        "device_tier: no tier 'vram' (tiers: ddr, hbm)",
    ),
    "channel to nowhere": (
        H + TIERS + "channels: {h2d: {from: ddr, to: vram, bandwidth: 1 GB/s}}",
        "channels.h2d.to: no tier 'vram' (tiers: ddr, hbm)",
    ),
    "channel key": (
        H + TIERS + "channels: {h2d: {form: ddr, to: hbm, bandwidth: 1 GB/s}}",
        "channels.h2d.form: unknown key 'form'; did you mean 'from'? (and 1 more)",
    ),
    "channel key that is not near": (
        H + TIERS + "channels: {h2d: {width: 16, to: hbm, bandwidth: 1 GB/s}}",
        "channels.h2d.from: missing; expected the keys from, to, bandwidth, latency, engines, "
        "curve, pageable, beside, spread, queue, source (and 1 more)",
    ),
    "channel key of another channel": (
        H
        + TIERS
        + "channels: {h2d: {to: hbm, bandwidth: 1 GB/s}, d2h: {form: ddr, from: hbm, to: ddr, "
        "bandwidth: 1 GB/s}}",
        "channels.h2d.from: missing; expected the keys from, to, bandwidth, latency, engines, "
        "curve, pageable, beside, spread, queue, source (and 1 more)",
    ),
    "one queue": (
        H + TIERS + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, queue: copies}, "
        "d2h: {from: hbm, to: ddr, bandwidth: 2 GB/s, engines: 2, queue: copies}}",
        "channels.d2h.queue: channels of one queue join the same two tiers with equally many "
        "engines; h2d joins ddr and hbm with 1",
    ),
    "curve": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, curve: [{size: 9 B, bandwidth: "
        "3 GB/s}]}}",
        "channels.h2d.curve[0].bandwidth: expected a bandwidth above 0 B/s and at most the "
        "channel's",
    ),
    "curve out of order": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, curve: [{size: 9 B, bandwidth: "
        "1 GB/s}, {size: 9 B, bandwidth: "
        "1 GB/s}]}}",
        "channels.h2d.curve[1].size: expected sizes in ascending order",
    ),
    "curve that falls": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 9 GB/s, curve: [{size: 4 B, bandwidth: "
        "1 GB/s}, {size: 8 B, bandwidth: "
        "3 GB/s}]}}",
        "channels.h2d.curve[1].bandwidth: a larger transfer would take less time than the one "
        "before it: expected a lower bandwidth",
    ),
    "curve without a unit": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, curve: [{size: 9, bandwidth: 3 "
        "GB/s}]}}",
        "channels.h2d.curve[0].size: expected a size with its unit, such as '80 GiB', got 9",
    ),
    "pageable at no rate": (
        H + TIERS + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, pageable: 0 B/s}}",
        "channels.h2d.pageable: expected a bandwidth above 0 B/s",
    ),
    "pageable kind": (
        H + TIERS.replace("ddr: {", "ddr: {pageable: [weight], "),
        "tiers.ddr.pageable[0]: unknown kind of tensor 'weight'; expected one of parameter, "
        "gradient, optimizer_state, activation, kv"
        "_cache, expert, input, output, buffer",
    ),
    "pinned device": (
        H + TIERS.replace("hbm: {", "hbm: {pin: {time: 3 ms}, "),
        "tiers.hbm.pin: host memory is pageable or pinned, the device tier is not",
    ),
    "beside nothing": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, beside: {h2d: 1 GB/s}}}",
        "channels.h2d.beside.h2d: expected another channel (channels: none)",
    ),
    "beside faster": (
        H
        + TIERS
        + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 2 GB/s, beside: {d2h: 3 GB/s}}, d2h: "
        "{from: hbm, to: ddr, bandwidth: "
        "2 GB/s}}",
        "channels.h2d.beside.d2h: expected a bandwidth above 0 B/s and at most the channel's",
    ),
    "engines": (
        H + TIERS + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 1 GB/s, engines: 0}}",
        "channels.h2d.engines: expected at least 1, got 0",
    ),
    "fabric": (
        H + TIERS + "fabrics: {pcie: {bandwidth: 1 GB/s, channels: [x]}}",
        "fabrics.pcie.channels[0]: no channel 'x' (channels: none)",
    ),
    "no format": (
        "name: h",
        "format: missing; a hardware profile begins with format: hosim.hardware/1",
    ),
    "text": (
        "just words",
        "expected a hardware profile (a mapping with format: hosim.hardware/1), got str 'just "
        "words'",
    ),
    "empty": (
        "# nothing\n",
        "expected a hardware profile (a mapping with format: hosim.hardware/1), got nothing",
    ),
}


@pytest.mark.parametrize(("text", "message"), HARDWARE.values(), ids=HARDWARE)
def test_hardware(tmp_path, text, message):
    path = tmp_path / "h.yaml"
    path.write_text(text)
    assert line_of(load_hardware, path).removeprefix(f"{path}: ") == message


P = {"format": "hosim.plan/1", "workload": "w"}
FETCH = {"op": "prefetch", "tensor": "weight", "from": "ddr", "to": "hbm"}

PLANS = {
    "another workload": (
        P | {"workload": "v"},
        "p: workload: this plan is for the workload 'v', not for 'w'; plan again for this one",
    ),
    "tensor": (
        P | {"cache_ops": [FETCH, FETCH | {"tensor": "weigth"}]},
        "p: cache_ops[1].tensor: unknown tensor 'weigth'; did you mean 'weight'?",
    ),
    "op": (
        P | {"cache_ops": [FETCH | {"after": "g"}]},
        "p: cache_ops[0].after: unknown op 'g' (known: f)",
    ),
    "initial": (
        P | {"initial": {"x": ["ddr"]}},
        "p: initial.x: unknown tensor 'x' (known: weight, act)",
    ),
    "initial twice": (
        P | {"initial": {"act": ["ddr", "ddr"]}},
        "p: initial.act: a tier is listed twice",
    ),
    "initial as text": (
        P | {"initial": {"act": "ddr"}},
        "p: initial.act: expected a list, got 'ddr'",
    ),
    "cache op": (
        P | {"cache_ops": [FETCH | {"op": "evict"}]},
        "p: cache_ops[0].op: expected 'prefetch', 'store' or 'detach', got 'evict'",
    ),
    "no way": (
        P | {"cache_ops": [FETCH | {"to": None}]},
        "p: cache_ops[0].to: missing; a prefetch names the tier it copies to",
    ),
    "in place": (
        P | {"cache_ops": [FETCH | {"to": "ddr"}]},
        "p: cache_ops[0].to: a prefetch copies between two tiers, both are 'ddr'",
    ),
    "detach to": (
        P | {"cache_ops": [FETCH | {"op": "detach"}]},
        "p: cache_ops[0].to: a detach has no destination; leave 'to' out",
    ),
    "key": (
        P | {"cache_ops": [FETCH | {"size": 1}]},
        "p: cache_ops[0].size: unknown key 'size' (known: op, tensor, from, to, after, slack_ns)",
    ),
}


@pytest.fixture
def graph():
    return workload_from_dict(parse("{" + W + "," + T + ', "ops": [' + OP + "]}", "w.json"))


@pytest.mark.parametrize(("data", "message"), PLANS.values(), ids=PLANS)
def test_plans(graph, data, message):
    assert line_of(plan_from_dict, data, graph, "p") == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            P | {"initial": {"act": ["hbm", "drr"]}},
            "p: initial.act[1]: unknown tier 'drr'; did you mean 'ddr'?; the hardware is 'h'",
        ),
        (
            P | {"cache_ops": [FETCH | {"from": "nvme"}]},
            "p: cache_ops[0].from: unknown tier 'nvme' (known: hbm, ddr); the hardware is 'h'",
        ),
        (
            P | {"cache_ops": [FETCH | {"to": "pool"}]},
            "p: cache_ops[0].to: unknown tier 'pool' (known: hbm, ddr); the hardware is 'h'",
        ),
        (
            P | {"cache_ops": [FETCH | {"op": "store", "from": "hbm", "to": "ddr"}]},
            "p: cache_ops[0].to: no channels of 'h' lead from 'hbm' to 'ddr' (channels: ddr to "
            "hbm)",
        ),
    ],
)
def test_tiers_of_plans(graph, data, message):
    hardware = hardware_from_dict(
        parse(H + TIERS + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 1 GB/s}}", "h.yaml")
    )
    assert line_of(check_tiers, plan_from_dict(data, graph), hardware, "p") == message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"op": "fly"},
            "cache_ops[0].op: unknown cache op 'fly' (known: prefetch, store, detach)",
        ),
        ({"tensor": 9}, "cache_ops[0].tensor: no tensor number 9; the graph has 2 tensors"),
        ({"after": 9}, "cache_ops[0].after: no op number 9; the graph has 1 op"),
    ],
)
def test_plans_made_by_hand(graph, changed, message):
    hardware = hardware_from_dict(
        parse(H + TIERS + "channels: {h2d: {from: ddr, to: hbm, bandwidth: 1 GB/s}}", "h.yaml")
    )
    plan = Plan(graph, cache_ops=(replace(CacheOp("prefetch", 0, "ddr", "hbm"), **changed),))
    assert line_of(check_tiers, plan, hardware, "p") == f"p: {message}"


def test_homes_count_as_tiers_of_the_plan(graph):
    hardware = hardware_from_dict(
        parse(H + "device_tier: ddr\n" + TIERS.replace("hbm", "pool"), "h.yaml")
    )
    data = {
        "format": "hosim.workload/1",
        "name": "w",
        "tensors": [{"name": "t", "bytes": 1, "kind": "input", "home": "hbm"}],
    }
    homed = workload_from_dict(data)
    assert line_of(check_tiers, plan_from_dict(P, homed), hardware) == (
        "home of tensor 't': unknown tier 'hbm' (known: pool, ddr); the hardware is 'h'"
    )
    check_tiers(plan_from_dict(P | {"initial": {"t": ["ddr"]}}, homed), hardware)


def test_results():
    data = {
        "format": "hosim.result/1",
        "workload": "w",
        "hardware": "h",
        "policy": "p",
        "budget_bytes": 1,
        "feasible": "yes",
    }
    assert line_of(result_from_dict, data, "r") == "r: feasible: expected true or false, got 'yes'"
    assert (
        line_of(result_from_dict, data | {"feasible": True, "makespan_ns": 1.0}, "r")
        == "r: makespan_ns: expected an integer, got 1.0"
    )
    assert line_of(result_from_dict, data | {"feasible": True, "stall_ns": {"io": 1}}) == (
        "stall_ns.io: unknown key 'io' (known: dependency, transfer, capacity, runtime)"
    )


# --------------------------------------------------------------------------------------------------
# the file itself


def test_missing_file(tmp_path, graph):
    for load in (load_workload, load_hardware, lambda path: load_plan(path, graph)):
        assert line_of(load, tmp_path / "no.json") == f"{tmp_path}/no.json: no such file"


def test_directory(tmp_path):
    assert line_of(load_workload, tmp_path) == f"{tmp_path}: expected a file, this is a directory"


def test_name_that_no_file_can_have():
    assert line_of(load_workload, "a\0b").endswith("cannot be read: embedded null byte")


def test_not_utf8(tmp_path):
    path = tmp_path / "w.json"
    path.write_bytes(b'{"name": "\xff"}')
    assert (
        line_of(load_workload, path)
        == f"{path}: expected UTF-8 text, byte 10 is not; convert the file to UTF-8"
    )


def test_a_byte_order_mark_is_fine(tmp_path):
    path = tmp_path / "w.json"
    path.write_bytes(b"\xef\xbb\xbf{" + W.encode() + b"}")
    assert load_workload(path).name == "w"


def test_damaged_gzip(tmp_path):
    path = tmp_path / "w.json.gz"
    whole = gzip.compress(("{" + W + "}").encode())
    for damaged in (
        whole[:-9],
        whole[:12],
        whole[:-6] + b"xxxxxx",
        whole[:15] + b"\xff\xff\xff" + whole[18:],
    ):
        path.write_bytes(damaged)
        line = line_of(load_workload, path)
        assert line.startswith(f"{path}: damaged gzip file (")
        assert line.endswith("; write or download it again")


def test_gzip_by_name_only(tmp_path):
    path = tmp_path / "w.json.gz"
    path.write_text("{" + W + "}")
    assert (
        line_of(load_workload, path)
        == f"{path}: named .gz but not a gzip file; compress it or drop the .gz from its name"
    )


def test_places_that_cannot_be_written(tmp_path):
    graph = workload_from_dict({"format": "hosim.workload/1", "name": "w"})
    from hosim.io import save_workload

    assert (
        line_of(save_workload, graph, tmp_path)
        == f"{tmp_path}: cannot be written: this is a directory; name a file"
    )
    assert (
        line_of(save_workload, graph, tmp_path / "no" / "w.json")
        == f"{tmp_path}/no/w.json: cannot be written: no such directory"
    )


def test_an_alias_bomb_is_refused_at_once(tmp_path):
    path = tmp_path / "h.yaml"
    path.write_text(
        "a: &a [x]\n"
        + "".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n"
            for a, b in zip("abcdefghi", "bcdefghij", strict=True)
        )
    )
    assert "anchors (&) and aliases (*) are not allowed" in line_of(load_hardware, path)


@given(st.text(), st.sampled_from(["x.json", "x.yaml", "x"]))
def test_no_text_raises_anything_else(text, name):
    try:
        data = parse(text, name)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        with pytest.raises(InputError):
            workload_from_dict(data)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(
    [
        "name",
        "tensors",
        "ops",
        "bytes",
        "inputs",
        "tiers",
        "hbm",
        "capacity",
        "channels",
        "cache_ops",
        "initial",
        "from",
    ]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, TREES))
def test_no_data_raises_anything_else(data):
    for kind, read in (
        ("workload", workload_from_dict),
        ("hardware", hardware_from_dict),
        ("result", result_from_dict),
        (
            "plan",
            lambda d: plan_from_dict(
                d, workload_from_dict({"format": "hosim.workload/1", "name": "w"})
            ),
        ),
    ):
        try:
            read(data | {"format": f"hosim.{kind}/1"})
        except InputError as error:
            assert "\n" not in str(error).replace(repr(data), "")
