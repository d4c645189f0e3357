"""Marks for torch's own activation offload: the graphs that torch's passes make, run here, hold
the predicted peak to the byte, and give eager's bits.
"""

import contextlib
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import aot_function, default_partition, nop  # noqa: E402
from lowering import MACHINE, same  # noqa: E402
from occupancy import Occupancy, OnCpu  # noqa: E402
from torch._functorch import config  # noqa: E402
from torch._functorch._activation_offloading import activation_offloading  # noqa: E402

from hosim.analysis import static_peak  # noqa: E402
from hosim.analysis.verifying import verify  # noqa: E402
from hosim.errors import InfeasibleError, InputError  # noqa: E402
from hosim.on_torch.bridges import GraphTrainerOffload, InductorOffload  # noqa: E402
from hosim.policies import own  # noqa: E402


def network(x, *weights):
    """Layers whose activations are saved, of unlike sizes, one of them through a view."""
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight)
        x = x.t().contiguous().t() * torch.sigmoid(x)
    return (x * x).mean(), x.sum(0)


def inputs():
    generator = torch.Generator().manual_seed(0)
    sizes = [24, 48, 16, 64, 8]
    weights = [torch.randn(a, b, generator=generator) / 8 for a, b in pairwise(sizes)]
    return [torch.randn(32, 24, generator=generator), *(w.requires_grad_() for w in weights)]


class FoundError(Exception):
    pass


def partitioned(share, settings, hardware=MACHINE):
    """The bridge, and the graphs that torch made with it."""
    bridge = InductorOffload(hardware=hardware, budget=share, partitioner=default_partition)
    graphs = []

    def partition(gm, joint_inputs, **kwargs):
        graphs.extend(bridge(gm, joint_inputs, **kwargs))
        raise FoundError

    with config.patch(**settings), contextlib.suppress(FoundError):
        aot_function(network, fw_compiler=nop, bw_compiler=nop, partition_fn=partition)(*inputs())
    return bridge, *graphs


@pytest.mark.parametrize("stream", [False, True])
def test_torchs_passes_hold_what_was_predicted(stream):
    settings = {"activation_offload_separate_stream": stream}
    whole, *_ = partitioned("100%", settings)
    bridge, forward, backward = partitioned("85%", settings)
    (plan,), (result,) = bridge.plans, bridge.results
    predicted = result.allocator.peak_allocated_bytes
    assert not whole.plans[0].cache_ops
    assert plan.count("prefetch") == plan.count("store") == plan.count("detach") > 0
    assert not verify(plan, MACHINE)
    assert predicted <= result.budget_bytes < static_peak(plan.graph).bytes
    given = inputs()
    outputs = network(*given)
    wanted = torch.autograd.grad(sum(one.sum() for one in outputs), given[1:])
    tangents = [torch.ones_like(one) for one in outputs]
    held = [value.detach() for value in given]
    with torch.no_grad(), Occupancy([held, tangents]) as occupancy:
        returned = [*OnCpu(forward, garbage_collect_values=True).run(*held)]
        results = returned[:2]
        names = [node.name for node in forward.graph.output_node().args[0]]
        by_name = dict(zip(names[2:], returned[2:], strict=True))
        rest = iter(tangents)
        taken = [
            by_name.pop(node.name) if node.name in by_name else next(rest)
            for node in backward.graph.find_nodes(op="placeholder")
        ]
        del returned
        gradients = OnCpu(backward, garbage_collect_values=True).boxed_run(taken)
    assert same([results, [g for g in gradients if g is not None]], [outputs, wanted])
    assert occupancy.peak == predicted


@pytest.mark.parametrize(("share", "gains"), [("95%", True), ("85%", False)])
def test_the_planner_is_never_slower_than_the_largest(monkeypatch, share, gains):
    """On a slow channel each byte that comes back is waited for, and the largest is too large."""
    slow = [replace(one, bandwidth_bytes_per_s=10**8) for one in MACHINE.channels[:2]]
    machine = replace(MACHINE, channels=(*slow, *MACHINE.channels[2:]))
    planned, *_ = partitioned(share, {}, machine)

    def none(*_, **__):
        raise InfeasibleError("the rule alone")

    monkeypatch.setattr(own, "plan", none)
    ruled, *_ = partitioned(share, {}, machine)
    (ours,), (theirs,) = planned.results, ruled.results
    assert ours.makespan_ns <= theirs.makespan_ns
    assert (ours.makespan_ns < theirs.makespan_ns) == gains
    assert ours.allocator.peak_allocated_bytes <= ours.budget_bytes == theirs.budget_bytes


def test_a_budget_that_marks_cannot_reach():
    bridge = InductorOffload(hardware=MACHINE, budget="30%", partitioner=default_partition)
    with pytest.raises(InfeasibleError, match="nothing is idle that torch can offload"):
        aot_function(network, fw_compiler=nop, bw_compiler=nop, partition_fn=bridge)(*inputs())


def test_what_torch_copies_back_early_counts(monkeypatch):
    """torch reloads ahead by what it measures on the device: here a product takes 0.02 ms."""
    monkeypatch.setattr(activation_offloading, "benchmark_node", lambda node: 0.02)
    settings = {
        "activation_offload_separate_stream": True,
        "activation_reload_prefetch": True,
        "activation_offload_cpu_gpu_bw": 0.5,
    }
    with pytest.raises(InfeasibleError, match="where torch copies back what is marked"):
        partitioned("90%", settings)


def test_a_machine_over_which_nothing_can_be_offloaded():
    up_alone = replace(MACHINE, channels=MACHINE.channels[:1])
    with pytest.raises(InputError, match="no channels from 'hbm' to a tier and back"):
        InductorOffload(hardware=up_alone, budget="85%")


def test_a_bridge_without_its_package(monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("torchtitan.")]
    for name in ("torchtitan", *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="install torchtitan"):
        GraphTrainerOffload(hardware=MACHINE, budget="85%")
