"""Tags for torchtitan's graph_trainer: the graph that torchtitan's own passes make of them, run
here, holds the predicted peak to the byte, and gives eager's bits.

torchtitan is not among what `make test` installs (it brings wandb, datasets and a compiler for
GPUs): `make versions` has it, or ``pip install torchtitan==0.3.0 triton``.
"""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
memory_policy = pytest.importorskip(
    "torchtitan.experiments.graph_trainer.memory_policy", reason="needs torchtitan and triton"
)

from lowering import MACHINE, same  # noqa: E402
from occupancy import Occupancy, OnCpu  # noqa: E402
from torchtitan.experiments.graph_trainer.common_utils import (  # noqa: E402
    annotate_module_fqns,
    compute_annotated_loss,
)
from torchtitan.experiments.graph_trainer.cpu_offload import apply_cpu_offload_pass  # noqa: E402
from torchtitan.experiments.graph_trainer.make_fx_tracer import minimal_fx_tracer  # noqa: E402
from torchtitan.experiments.graph_trainer.registry import register_memory_policy  # noqa: E402
from torchtitan.experiments.graph_trainer.remove_noop_passes import (  # noqa: E402
    canonicalize_graph_pass,
    eliminate_dead_code_pass,
)
from torchtitan.experiments.graph_trainer.selective_activation_remat import (  # noqa: E402
    selective_activation_remat_pass,
)

from hosim.analysis.verifying import verify  # noqa: E402
from hosim.errors import InfeasibleError, InputError  # noqa: E402
from hosim.on_torch.bridges import GraphTrainerOffload  # noqa: E402
from hosim.policies import own  # noqa: E402

CONFIG = SimpleNamespace(
    compile=SimpleNamespace(
        cpu_offload_prefetch_n_layers=1, cpu_offload_defer_n_layers=1, memory_policy="hosim"
    ),
    parallelism=SimpleNamespace(fsdp_reshard_after_forward="default", pipeline_parallel_degree=1),
)


class Block(torch.nn.Module):
    def __init__(self, width, wider, out):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, wider), torch.nn.Linear(wider, out)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """Layers of unlike sizes, named as torchtitan names them."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 32), torch.nn.Linear(40, 50)
        sizes = [32, 48, 32, 24, 40]
        blocks = {str(i): Block(a, 64 + 8 * i, b) for i, (a, b) in enumerate(pairwise(sizes))}
        self.layers = torch.nn.ModuleDict(blocks)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def traced():
    """torchtitan's trace of a training step, and what it takes and gives."""
    torch.manual_seed(0)
    net = Net()
    annotate_module_fqns(net)
    tokens, labels = torch.randint(0, 50, (4, 16)), torch.randint(0, 50, (64,))

    def loss_of(made, wanted):
        return torch.nn.functional.cross_entropy(made.flatten(0, 1), wanted)

    def step(tokens, labels):
        loss = compute_annotated_loss(loss_of, net(tokens), labels)
        return [loss, *torch.autograd.grad(loss, list(net.parameters()))]

    module = minimal_fx_tracer(step, module=net)(tokens, labels).gm
    module = canonicalize_graph_pass(eliminate_dead_code_pass(module))
    given = [value.detach() for value in (*net.parameters(), tokens, labels)]
    return module, given, [value.detach() for value in step(tokens, labels)]


def tagged(traced, hardware=MACHINE, **options):
    policy = GraphTrainerOffload(hardware=hardware, **options)
    register_memory_policy("hosim")(policy)
    module = torch.fx.GraphModule(traced[0], deepcopy(traced[0].graph))
    return policy, memory_policy.tag_with_memory_policy_pass(module, config=CONFIG)


@pytest.mark.parametrize(("after", "share"), [(None, "87%"), ("default", "96%")])
def test_torchtitans_passes_hold_what_was_predicted(traced, after, share):
    """With ``default``, layers' inputs are saved, which recomputed ops read once more where
    torchtitan would have released them: these are not tagged.
    """
    policy, module = tagged(traced, budget=share, after=after)
    (plan,), (result,) = policy.plans, policy.results
    assert plan.count("prefetch") == plan.count("store") == plan.count("detach") > 0
    assert not verify(plan, MACHINE)
    module = selective_activation_remat_pass(apply_cpu_offload_pass(module))
    recomputed = [node for node in module.graph.nodes if node.name.endswith("_recomputed")]
    assert bool(recomputed) == (after is not None)
    _, given, wanted = traced
    with torch.no_grad(), Occupancy(given) as occupancy:
        made = OnCpu(module, garbage_collect_values=True).run(*given)
    assert same([*made], wanted)
    assert occupancy.peak == result.allocator.peak_allocated_bytes <= result.budget_bytes


@pytest.mark.parametrize("after", [None, "default"])
def test_the_planner_is_faster_than_the_largest(monkeypatch, traced, after):
    """On a slow channel each byte that comes back is waited for, and the largest is too large."""
    slow = [replace(one, bandwidth_bytes_per_s=10**9) for one in MACHINE.channels[:2]]
    machine = replace(MACHINE, channels=(*slow, *MACHINE.channels[2:]))
    planned, _ = tagged(traced, machine, budget="96%", after=after)

    def none(*_, **__):
        raise InfeasibleError("the rule alone")

    monkeypatch.setattr(own, "plan", none)
    ruled, _ = tagged(traced, machine, budget="96%", after=after)
    assert planned.results[0].makespan_ns < ruled.results[0].makespan_ns


def test_all_of_the_peak_needs_no_tags(traced):
    policy, _ = tagged(traced, budget="100%")
    assert not policy.plans[0].cache_ops


def test_what_tags_cannot_do(traced):
    with pytest.raises(InfeasibleError, match="nothing is idle that torch can offload"):
        tagged(traced, budget="30%")
    for name in ("most", "hosim"):  # its own name, which it is registered by
        with pytest.raises(InputError, match=f"no memory policy '{name}' of its own"):
            tagged(traced, budget="87%", after=name)
