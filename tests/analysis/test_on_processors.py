"""Graphs with ops on other processors (docs/contract.md, rule 20) outside a replay: verifier,
liveness, bounds, files, policies.
"""

from dataclasses import replace

import pytest

from hosim.analysis import needed_bytes, static_peak
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns
from hosim.analysis.remarks import no_offload
from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay, resident_step
from hosim.errors import HosimError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import hardware_from_dict, hardware_to_dict, workload_from_dict, workload_to_dict
from hosim.policies import policy_named, policy_names

GB = 10**9
MACHINE = Hardware(
    "with a CPU",
    (
        Tier("hbm", 100, 10**12, "device"),
        Tier(
            "ddr", 1000, 10**11, compute=Compute({"fp32": GB}, 0.5, 3, {"optimizer": {"fp32": 0.7}})
        ),
    ),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({}),
)


def step() -> Graph:
    """f makes g of w; u on the CPU makes w of g and s; h reads w."""
    b = GraphBuilder("step")
    b.tensor("w", 20, "parameter")
    b.tensor("g", 30, "gradient")
    b.tensor("s", 40, "optimizer_state", "ddr")
    b.op("f", "matmul", inputs=["w"], outputs=["g"], duration_ns=30)
    b.op(
        "u",
        "optimizer",
        inputs=["g"],
        mutates=["s"],
        outputs=["w"],
        duration_ns=50,
        workspace_bytes=9,
        stream="cpu",
        processor="ddr",
    )
    b.op("h", "matmul", inputs=["w"], duration_ns=10)
    return b.build()


STORE, BACK = CacheOp("store", 1, "hbm", "ddr", 0), CacheOp("prefetch", 0, "ddr", "hbm", 1)


def with_ddr(**fields) -> Hardware:
    return replace(MACHINE, tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], **fields)))


def rules(*cache_ops, graph=None, machine=MACHINE):
    return [
        (finding.rule, finding.op)
        for finding in verify(Plan(graph or step(), cache_ops=cache_ops), machine)
    ]


def test_the_verifier_knows_where_ops_run():
    assert rules(STORE, BACK) == []
    assert rules() == [("read", 1), ("read", 2)]
    assert rules(STORE) == [("read", 2)]
    assert rules(STORE, BACK, CacheOp("detach", 1, "hbm", None, 0)) == []  # u reads the copy in ddr
    assert rules(STORE, CacheOp("detach", 1, "ddr", None, 0), BACK) == [("read", 1)]
    assert rules(STORE, BACK, machine=with_ddr(compute=None)) == [("processor", 1)]
    assert ("capacity", 1) in rules(
        STORE,
        BACK,
        machine=replace(
            MACHINE, tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], capacity_bytes=98))
        ),
    )


def test_memory_of_the_device_tier():
    # w is held by the device from f to the end of the step, g while f runs; s never.
    assert needed_bytes(step()) == (50, 0, 20)
    peak = static_peak(step())
    assert (peak.bytes, peak.op, peak.residents) == (50, 0, (1, 0))


def test_the_base_takes_what_is_known_and_the_bound_has_the_copies_on_it():
    graph = step()
    plan = Plan(graph, cache_ops=(STORE, BACK))
    assert resident_step(graph, MACHINE).makespan_ns == 30 + 50 + 10
    assert replay(plan, MACHINE).makespan_ns == 30 + 30 + 50 + 20 + 10
    assert lower_bound_ns(graph, op_durations(graph, MACHINE), MACHINE, None, 50) == 140
    assert no_offload(graph, 90, 50, 100, None) is None


def test_files():
    assert hardware_from_dict(hardware_to_dict(MACHINE)) == MACHINE
    assert hardware_to_dict(MACHINE)["tiers"]["ddr"]["compute"]["launch"] == "3 ns"
    assert workload_from_dict(workload_to_dict(step())) == step()
    data = workload_to_dict(step())
    data["ops"][1]["stream"] = "compute"
    with pytest.raises(
        InputError,
        match=r"ops\[1\]\.processor: op 'u' is on the stream 'compute' with ops of another "
        r"processor",
    ):
        workload_from_dict(data)
    data = hardware_to_dict(MACHINE)
    data["tiers"]["ddr"]["compute"]["processor"] = {"multiprocessors": 4, "clock": "2 GHz"}
    with pytest.raises(InputError, match=r"tiers\.ddr\.compute\.processor"):
        hardware_from_dict(data)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_plans_such_a_step_or_refuses_it(name):
    policy = policy_named(name)
    try:
        plan = policy.plan(step(), MACHINE)
    except HosimError as error:
        if name == "llama_cpp":  # it plans for such steps where every layer may run on either
            assert "layers_on=device/TIER" in str(error)
        else:
            assert not policy.plans_for(step())
            assert "op 'u' runs on the processor of 'ddr'" in str(error)
        assert "\n" not in str(error)
    else:
        assert policy.plans_for(step())
        assert verify(plan, MACHINE) == ()
        assert replay(plan, MACHINE).feasible


def test_a_machine_shared_by_devices_divides_its_processor():
    tiers = (MACHINE.tiers[0], replace(MACHINE.tiers[1], scope="host"))
    shared = replace(MACHINE, tiers=tiers, devices=4).fair_share
    assert shared.tiers[1].compute.peak_flops == {"fp32": GB // 4}
