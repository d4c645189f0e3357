"""Processes that train replicas: ``python replicas.py RANK WORLD FILE``. Each compares the
offloaded steps with eager ones to the bit.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import hosim


class Normed(torch.nn.Module):
    """Layers, and a buffer that differs from process to process until it is broadcast."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.norm(x)


def loss_of(model, inputs):
    return (model(**inputs) - 1).square().mean()


def clamp(parameter):
    parameter.grad.clamp_(-0.02, 0.02)


def equal(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def train(rank):
    models = [DistributedDataParallel(Normed()) for _ in range(2)]
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, fused=True) for model in models
    ]
    for model in models:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(clamp)
    batches = torch.randn(8, 16, 64, generator=torch.Generator().manual_seed(rank))
    settings = {"hardware": "h100-80gb-sxm", "budget": "70%", "parameters": {"effort": 0}}
    with hosim.offload(
        models[1], {"x": batches[0]}, optimizer=optimizers[1], loss=loss_of, **settings
    ) as step:
        assert step.plan.count("prefetch")
        assert {op.stream for op in step.plan.graph.ops} == {"compute", "collectives"}
        for x in batches[:3]:
            optimizers[0].zero_grad()
            loss = loss_of(models[0], {"x": x})
            loss.backward()
            optimizers[0].step()
            assert torch.equal(step(x=x), loss)
        # in parts, with gradients of two batches that are exchanged once
        optimizers[0].zero_grad()
        with models[0].no_sync():
            loss_of(models[0], {"x": batches[3]}).backward()
        loss_of(models[0], {"x": batches[4]}).backward()
        with models[1].no_sync():
            step.backward(x=batches[3])
        step.backward(x=batches[4])
        for model, optimizer in zip(models, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert equal(*models)
    gathered = [None] * distributed.get_world_size()
    mine = {name: value for name, value in models[1].state_dict().items() if "running" not in name}
    distributed.all_gather_object(gathered, copy.deepcopy(mine))
    assert all(torch.equal(gathered[0][name], other[name]) for other in gathered for name in mine)


def main():
    rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world
    )
    train(rank)
    distributed.destroy_process_group()
    print("equal")


if __name__ == "__main__":
    main()
