"""Machines and graphs made in code are refused at their first contradiction: the message, and the
path as in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hosim.data.expert_routing import Expert, Gate, Routing
from hosim.errors import GraphError, HardwareError
from hosim.graph import KINDS, Graph, GraphBuilder, Op, Tensor
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

MACHINE = Hardware(
    "sound",
    (Tier("hbm", 1, 1, "device"), Tier("ddr", 1, 1, pageable=("input",), pin_ns=0)),
    (
        Channel("h2d", "ddr", "hbm", 10, 0, 1, ((1, 2), (5, 10)), 10, (("d2h", 10),)),
        Channel("d2h", "hbm", "ddr", 10),
    ),
    Compute({"bf16": 1}, 1.0, 0, {"matmul": {"bf16": 1.0}}),
    fabrics=(Fabric("pcie", 1, ("h2d", "d2h")),),
    inspect_ns=0,
    devices=1,
    devices_per_host=1,
    chunk_bytes=1,
)
"""Every figure is the least, or the most, that is allowed."""
HBM, DDR = MACHINE.tiers
H2D, D2H = MACHINE.channels
(PCIE,) = MACHINE.fabrics
ALL_KINDS = ", ".join(KINDS)
RATE, EFFICIENCY = (
    "expected a bandwidth above 0 B/s",
    "expected an efficiency above 0 and at most 1, got",
)
BESIDE = "expected a bandwidth above 0 B/s and at most the channel's"
LATER = "a larger transfer would take less time than the one before it: expected a lower bandwidth"


def ddr(**fields: Any) -> dict[str, Any]:
    return {"tiers": (HBM, replace(DDR, **fields))}


def hbm(**fields: Any) -> dict[str, Any]:
    return {"tiers": (replace(HBM, **fields), DDR)}


def h2d(**fields: Any) -> dict[str, Any]:
    return {"channels": (replace(H2D, **fields), D2H)}


def pcie(**fields: Any) -> dict[str, Any]:
    return {"fabrics": (replace(PCIE, **fields),)}


def compute(**fields: Any) -> dict[str, Any]:
    return {"compute": replace(MACHINE.compute, **fields)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tiers": (HBM, DDR, DDR)}, "tiers.ddr: tier is listed twice"),
        (
            ddr(scope="rack"),
            "tiers.ddr.scope: unknown scope 'rack'; expected one of device, host, global",
        ),
        (ddr(capacity_bytes=0), "tiers.ddr.capacity: expected a capacity above 0 B"),
        (ddr(bandwidth_bytes_per_s=0), f"tiers.ddr.bandwidth: {RATE}"),
        (
            ddr(pageable=("input", "w")),
            f"tiers.ddr.pageable[1]: unknown kind of tensor 'w'; expected one of {ALL_KINDS}",
        ),
        (ddr(pin_ns=-1), "tiers.ddr.pin.time: expected a time of at least 0 ns"),
        (
            hbm(pageable=("input",)),
            "tiers.hbm.pageable: host memory is pageable or pinned, the device tier is not",
        ),
        (hbm(pin_ns=1), "tiers.hbm.pin: host memory is pageable or pinned, the device tier is not"),
        ({"device_tier": "gpu"}, "device_tier: no tier 'gpu' (tiers: ddr, hbm)"),
        ({"tiers": (), "channels": (), "fabrics": ()}, "device_tier: no tier 'hbm' (tiers: none)"),
        ({"channels": (H2D, D2H, H2D)}, "channels.h2d: channel is listed twice"),
        (h2d(source="nvme"), "channels.h2d.from: no tier 'nvme' (tiers: ddr, hbm)"),
        (h2d(destination="nvme"), "channels.h2d.to: no tier 'nvme' (tiers: ddr, hbm)"),
        (h2d(destination="ddr"), "channels.h2d.to: a channel joins two different tiers"),
        (h2d(bandwidth_bytes_per_s=0), f"channels.h2d.bandwidth: {RATE}"),
        (h2d(latency_ns=-1), "channels.h2d.latency: expected a latency of at least 0 ns"),
        (h2d(engines=0), "channels.h2d.engines: expected at least 1 engine"),
        (h2d(curve=((0, 5),)), "channels.h2d.curve[0].size: expected a size above 0 B"),
        (h2d(curve=((1, 5), (4, 0))), f"channels.h2d.curve[1].bandwidth: {BESIDE}"),
        (h2d(curve=((1, 11),)), f"channels.h2d.curve[0].bandwidth: {BESIDE}"),
        (
            h2d(curve=((4, 5), (4, 6))),
            "channels.h2d.curve[1].size: expected sizes in ascending order",
        ),
        (
            h2d(curve=((4, 2), (5, 3))),
            f"channels.h2d.curve[1].bandwidth: {LATER}",
        ),  # 4 B take 2 s, 5 B would take 1.67
        (h2d(pageable_bytes_per_s=0), f"channels.h2d.pageable: {RATE}"),
        (
            h2d(beside=(("p2p", 1),)),
            "channels.h2d.beside.p2p: expected another channel (channels: d2h)",
        ),
        (
            h2d(beside=(("h2d", 1),)),
            "channels.h2d.beside.h2d: expected another channel (channels: d2h)",
        ),
        (
            {"channels": (replace(H2D, beside=(("h2d", 1),)),), "fabrics": ()},
            "channels.h2d.beside.h2d: expected another channel (channels: none)",
        ),
        (h2d(beside=(("d2h", 0),)), f"channels.h2d.beside.d2h: {BESIDE}"),
        (h2d(beside=(("d2h", 11),)), f"channels.h2d.beside.d2h: {BESIDE}"),
        (pcie(bandwidth_bytes_per_s=0), f"fabrics.pcie.bandwidth: {RATE}"),
        (
            pcie(scope="rack"),
            "fabrics.pcie.scope: unknown scope 'rack'; expected one of device, host, global",
        ),
        (
            pcie(channels=("h2d", "p2p")),
            "fabrics.pcie.channels[1]: no channel 'p2p' (channels: d2h, h2d)",
        ),
        (pcie(channels=("h2d", "h2d")), "fabrics.pcie.channels: a channel is listed twice"),
        ({"fabrics": (PCIE, PCIE)}, "fabrics: a fabric is listed twice"),
        ({"devices": 0}, "devices: expected at least 1 device"),
        ({"devices_per_host": 0}, "devices_per_host: expected at least 1 device on a host"),
        ({"chunk_bytes": 0}, "chunk: expected chunks of at least 1 B"),
        (
            compute(peak_flops={"bf16": 1, "fp32": 0}),
            "compute.peak.fp32: expected a peak above 0 FLOP/s",
        ),
        (compute(efficiency=0.0), f"compute.efficiency: {EFFICIENCY} 0.0"),
        (compute(efficiency=1.01), f"compute.efficiency: {EFFICIENCY} 1.01"),
        (
            compute(efficiency_of={"norm": {"fp32": 0.0}}),
            f"compute.efficiency_of.norm.fp32: {EFFICIENCY} 0.0",
        ),
        (
            compute(efficiency_of={"norm": {"fp32": 1.5}}),
            f"compute.efficiency_of.norm.fp32: {EFFICIENCY} 1.5",
        ),
        (compute(launch_ns=-1), "compute.launch: expected a launch time of at least 0 ns"),
        ({"inspect_ns": -1}, "runtime.inspect: expected an inspection time of at least 0 ns"),
    ],
)
def test_a_machine_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(HardwareError) as refused:
        replace(MACHINE, **fields)
    assert str(refused.value) == said


TENSORS = (Tensor("w", 0, "parameter"), Tensor("a", 3), Tensor("b", 5))
OPS = (
    Op("f", "any", (0,), (1,), duration_ns=0),
    Op("g", "any", (0, 1), (2,), mutates=(1,), deps=(0,)),
)


def tensor(**fields: Any) -> tuple[tuple[Tensor, ...], tuple[Op, ...]]:
    return (TENSORS[0], replace(TENSORS[1], **fields), TENSORS[2]), OPS


def op(**fields: Any) -> tuple[tuple[Tensor, ...], tuple[Op, ...]]:
    return TENSORS, (OPS[0], replace(OPS[1], **fields))


UNMADE = (
    "before any op produces it; list its producer first, or give the tensor a home if it is "
    "there from the start"
)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (tensor(name="w"), "tensors[1].name: tensor name 'w' is listed twice"),
        (tensor(name=""), "tensors[1].name: tensor name '' is empty"),
        (
            tensor(kind="weight"),
            f"tensors[1].kind: unknown kind 'weight'; expected one of {ALL_KINDS}",
        ),
        (
            tensor(of="b"),
            "tensors[1].of: tensor 'a' is a part of 'b', which is a tensor itself; name another "
            "whole",
        ),
        (tensor(size_bytes=-1), "tensors[1].bytes: expected bytes of at least 0, got -1"),
        (op(name="f"), "ops[1].name: op name 'f' is listed twice"),
        (op(name=""), "ops[1].name: op name '' is empty"),
        *(
            (op(**{label: -2}), f"ops[1].{label}: expected at least 0, got -2")
            for label in ("duration_ns", "flops", "bytes_accessed")
        ),
        (op(workspace_bytes=-2), "ops[1].workspace_bytes: expected at least 0, got -2"),
        (
            tensor(size_bytes=2**63),
            f"tensors[1].bytes: expected an integer up to 2^63-1, got {2**63}",
        ),
        *(
            (op(**{label: 2**63}), f"ops[1].{label}: expected an integer up to 2^63-1, got {2**63}")
            for label in ("duration_ns", "flops", "bytes_accessed", "workspace_bytes")
        ),
        (
            op(flops=10**30),
            "ops[1].flops: expected an integer up to 2^63-1, got one of more than 30 digits",
        ),
        (op(inputs=(0, 3)), "ops[1].inputs[1]: no tensor number 3"),
        (op(inputs=(-1,)), "ops[1].inputs[0]: no tensor number -1"),
        (op(outputs=(3,)), "ops[1].outputs[0]: no tensor number 3"),
        (op(mutates=(1, 3)), "ops[1].mutates[1]: no tensor number 3"),
        (op(inputs=(2,)), f"ops[1].inputs[0]: op 'g' uses tensor 'b' {UNMADE}"),
        (op(mutates=(2,)), f"ops[1].mutates[0]: op 'g' uses tensor 'b' {UNMADE}"),
        (op(inputs=(0, 0)), "ops[1].inputs: op 'g' lists a tensor twice"),
        (op(outputs=(2, 2)), "ops[1].outputs: op 'g' lists a tensor twice"),
        (op(mutates=(1, 1)), "ops[1].mutates: op 'g' lists a tensor twice"),
        (op(deps=(0, 1)), "ops[1].deps[1]: op 'g' depends on an op that is not listed before it"),
        (op(deps=(-1,)), "ops[1].deps[0]: op 'g' depends on an op that is not listed before it"),
    ],
)
def test_a_graph_is_refused(parts: tuple[tuple[Tensor, ...], tuple[Op, ...]], said: str) -> None:
    with pytest.raises(GraphError) as refused:
        Graph("odd", *parts)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "sound", [lambda: Graph("sound", TENSORS, OPS), lambda: MACHINE, lambda: Graph("empty", (), ())]
)
def test_what_is_just_allowed(sound: Callable[[], object]) -> None:
    assert sound()


def experts() -> Graph:
    """A gate, the op of each of two experts, one that both would need, and a second gate."""
    b = GraphBuilder("experts")
    for name in ("w0", "w1", "both", "unused", "written"):
        b.tensor(name, 1, "expert")
    b.tensor("a", 1)
    b.op("early", "any", outputs=["a"])
    b.op("gate", "any", inputs=["a"])
    b.op("e0", "any", inputs=["w0", "both"])
    b.op("e1", "any", inputs=["w1", "both", "a"], mutates=["written"])
    b.op("late", "any", inputs=["a"])
    return b.build()


EXPERTS = experts()
E0, E1 = Expert((0,), (2,)), Expert((1,), (3,))
"""Tensors w0 and w1, ops e0 and e1."""


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ([Gate(5, (E0,))], "gates[0].op: no op number 5"),
        ([Gate(1, (E0,)), Gate(1, (E1,))], "gates[1].op: op 'gate' is listed as two gates"),
        (
            [Gate(1, (E0, Expert((), (3,))))],
            "gates[0].experts[1]: expected at least one tensor to move",
        ),
        (
            [Gate(4, (Expert((1,), ()),))],
            "gates[0].experts[0].tensors[0]: tensor 'w1' is used by op 'e1', which is not listed "
            "after its gate",
        ),
        (
            [Gate(1, (Expert((0,), ()), Expert((0,), ())))],
            "gates[0].experts[1].tensors[0]: tensor 'w0' is listed for gates[0].experts[0] too",
        ),
        ([Gate(1, (Expert((0,), (2, 5)),))], "gates[0].experts[0].ops[1]: no op number 5"),
        (
            [Gate(1, (Expert((0,), (0,)),))],
            "gates[0].experts[0].ops[0]: op 'early' is not listed after its gate 'gate'",
        ),
        (
            [Gate(1, (Expert((0,), (1,)),))],
            "gates[0].experts[0].ops[0]: op 'gate' is not listed after its gate 'gate'",
        ),
        (
            [Gate(1, (Expert((0,), (2, 4)),)), Gate(4, ())],
            "gates[0].experts[0].ops[1]: op 'late' is a gate itself",
        ),
        (
            [Gate(1, (E0, Expert((1,), (2,))))],
            "gates[0].experts[1].ops[0]: op 'e0' is listed for gates[0].experts[0] too",
        ),
        (
            [Gate(1, (Expert((0, 0), (2,)),))],
            "gates[0].experts[0].tensors[1]: tensor 'w0' is listed twice",
        ),
        ([Gate(1, (Expert((0, 6), (2,)),))], "gates[0].experts[0].tensors[1]: no tensor number 6"),
        (
            [Gate(1, (Expert((5,), (3,)),))],
            "gates[0].experts[0].tensors[0]: tensor 'a' is of one step only; an expert's tensors "
            "are persistent",
        ),
        (
            [Gate(1, (Expert((3,), (2,)),))],
            "gates[0].experts[0].tensors[0]: tensor 'unused' is used by none of its expert's ops",
        ),
        (
            [Gate(1, (Expert((2,), (2,)),))],
            "gates[0].experts[0].tensors[0]: tensor 'both' is used by op 'e1', which is not its "
            "expert's",
        ),
        (
            [Gate(1, (Expert((4,), (3,)),))],
            "gates[0].experts[0].tensors[0]: op 'e1' writes tensor 'written'; an expert's tensors "
            "are only read",
        ),
    ],
)
def test_gates_are_refused(gates: list[Gate], said: str) -> None:
    with pytest.raises(GraphError) as refused:
        Routing(EXPERTS, tuple(gates))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            (((0,),), ((0,), (1,))),
            "steps[1]: expected a list of experts for each of 1 gates, got 2 lists",
        ),
        ((((0,),), ((0, 2),)), "steps[1][0][1]: gate 'gate' has experts 0 to 1, got 2"),
        ((((-1,),),), "steps[0][0][0]: gate 'gate' has experts 0 to 1, got -1"),
        ((((1, 0, 1),),), "steps[0][0][2]: expert 1 is chosen twice"),
    ],
)
def test_a_trace_of_routing_is_refused(steps: tuple[Any, ...], said: str) -> None:
    assert Routing(EXPERTS, (Gate(1, (E0, E1)),), (((1, 0),), ((),)))
    with pytest.raises(GraphError) as refused:
        Routing(EXPERTS, (Gate(1, (E0, E1)),), steps)
    assert str(refused.value) == said
