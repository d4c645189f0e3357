"""Processes that train sharded models: ``python shards.py RANK WORLD FILE``. Each compares
offloaded steps with torch's own to the bit.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import hosim


class Block(torch.nn.Module):
    """Rows that two processes can share evenly, and rows that they cannot."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.up = torch.nn.Linear(32, 63)
        self.down = torch.nn.Linear(63, 32)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(torch.nn.Module):
    """Blocks, an embedding whose weight is the head's too, a scale of one row, and a buffer."""

    def __init__(self, checkpoints):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(51, 32)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.head = torch.nn.Linear(32, 51, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))
        self.checkpoints = checkpoints

    def forward(self, x):
        self.seen.add_(1)
        h = self.embedding(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpoints else block(h)
        return self.head(h) * self.scale


def loss_of(model, inputs):
    y = model(inputs["x"])
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), inputs["x"].flatten())


CASES = {
    "plain": {},
    "kept": {"reshard_after_forward": False},
    "mixed": {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "half": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    "checkpointed": {},
}


def made(case, world):
    model = Stack(case == "checkpointed")
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **CASES[case])
    whole = (
        {"mp_policy": replace(CASES[case]["mp_policy"], output_dtype=torch.float32)}
        if "mp_policy" in CASES[case]
        else CASES[case]
    )
    fully_shard(model, mesh=mesh, **whole)
    kind = torch.optim.SGD if case == "kept" else torch.optim.AdamW
    settings = (
        {"momentum": 0.9} if case == "kept" else {"fused": True}
    )  # torch has no fused SGD for sharded tensors
    return model, kind(model.parameters(), lr=0.01, **settings)


def parts(model, optimizer):
    """What this process has of parameters, buffers and states."""
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return [
        getattr(t, "_local_tensor", t) for t in (*model.parameters(), *model.buffers(), *states)
    ]


def train(case, rank, world):
    # with more processes than two the order of a sum may differ
    equal = torch.equal if world == 2 else partial(torch.allclose, rtol=1e-4, atol=1e-6)
    (eager, eager_optimizer), (model, optimizer) = (made(case, world) for _ in range(2))
    batches = torch.randint(51, (8, 2, 12), generator=torch.Generator().manual_seed(rank))
    settings = {"hardware": "h100-80gb-sxm", "budget": "80%", "parameters": {"effort": 0}}
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.7) for o in (eager_optimizer, optimizer)]
    with hosim.offload(
        model, {"x": batches[0]}, optimizer=optimizer, loss=loss_of, **settings
    ) as step:
        assert step.plan.count("prefetch")
        for x in batches[:3]:
            loss = loss_of(eager, {"x": x})
            loss.backward()
            eager_optimizer.step()
            eager_optimizer.zero_grad()
            assert equal(step(x=x), loss)
            for scheduler in schedulers:
                scheduler.step()
        for x in batches[3:5]:  # gradients of two batches, each reduced when it is there
            loss_of(eager, {"x": x}).backward()
            step.backward(x=x)
        norms = [
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1).full_tensor()
            for one in (eager, model)
        ]
        assert equal(*norms)
        for one in (eager_optimizer, optimizer):
            one.step()
            one.zero_grad()
        try:
            model(batches[0])
        except hosim.HosimError as error:
            assert "offloaded" in str(error)
        else:
            raise AssertionError("an offloaded model was called")
    assert all(
        equal(a, b)
        for a, b in zip(parts(eager, eager_optimizer), parts(model, optimizer), strict=True)
    )
    for one, its in ((eager, eager_optimizer), (model, optimizer)):  # and afterwards without hosim
        loss_of(one, {"x": batches[5]}).backward()
        its.step()
    assert all(
        equal(a, b)
        for a, b in zip(parts(eager, eager_optimizer), parts(model, optimizer), strict=True)
    )


def main():
    rank, world, path, *cases = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world
    )
    for case in cases or CASES:
        train(case, rank, world)
        print(case, "equal", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
