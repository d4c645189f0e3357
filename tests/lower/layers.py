"""A small model of equal layers, lowered under plans made by hand: what tests of the executor
run.
"""

import torch

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.lower import capture, insert
from hosim.on_torch.lower.devices import CpuDevice

GIB = 1 << 30


def machine(rate=10**12, latency=0):
    """Three tiers; all channels but those to files have the same rate."""
    tiers = (
        Tier("hbm", GIB, 10**12, "device"),
        Tier("ddr", GIB, 10**11),
        Tier("nvme", GIB, 10**10),
    )
    channels = (
        Channel("h2d", "ddr", "hbm", rate, latency),
        Channel("d2h", "hbm", "ddr", rate, latency),
        Channel("write", "ddr", "nvme", 10**12),
        Channel("read", "nvme", "ddr", 10**12),
    )
    return Hardware("small", tiers, channels, Compute({"fp32": 10**12}))


class Layers(torch.nn.Module):
    """Square linear layers without bias, a relu after each."""

    def __init__(self, layers=3, width=16):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = torch.nn.ParameterList(
            torch.randn(width, width, generator=generator) / width**0.5 for _ in range(layers)
        )

    def forward(self, x):
        for weight in self.layers:
            x = torch.relu(torch.mm(x, weight))
        return x


class AbsentGpu(CpuDevice):
    """A GPU that is not here: a capture for it can be made, and nothing can run."""

    def __init__(self):
        super().__init__(machine())
        self.torch_device = torch.device("cuda", 0)

    def has(self, tensor):
        return tensor.device == self.torch_device


def program_of(model, x, name="layers"):
    with torch.no_grad():
        return capture(torch.export.export(model, (x,)), name=name)


def values_of(program, model, x):
    """Parameters and input by placeholder."""
    own = dict(model.named_parameters())
    names = [node.name for node in program.module.graph.nodes if node.op == "placeholder"]
    return {
        name: own[given.name].detach() if given.own else x
        for name, given in zip(names, program.givens, strict=True)
    }


def streamed(program, home="ddr", lead=1, down="ddr"):
    """Weights come from ``home`` so many of their users ahead, and leave when they were used;
    activations go down and come back.
    """
    graph = program.graph
    weights = [t for t, tensor in enumerate(graph.tensors) if tensor.kind == "parameter"]
    users = [graph.users[t][0] for t in weights]
    placed = []
    for i, t in enumerate(weights):
        issue = AT_START if i < lead else users[i - lead]
        placed.append((issue, 0, CacheOp(PREFETCH, t, home, "hbm", issue)))
        placed.append((users[i], 1, CacheOp(DETACH, t, "hbm", None, users[i])))
    for t, tensor in enumerate(graph.tensors):
        if tensor.kind == "activation":
            made = graph.users[t][0]
            moves = (STORE, "hbm", down), (DETACH, "hbm", None), (PREFETCH, down, "hbm")
            placed += [(made, 2, CacheOp(op, t, source, to, made)) for op, source, to in moves]
    placed.sort(key=lambda entry: entry[:2])
    return Plan(
        graph, "streamed", tuple(entry[2] for entry in placed), dict.fromkeys(weights, (home,))
    )


def lowered(program, plan):
    return insert(program, plan)
