"""What the tests of lowering share: exported programs of small models, legal plans of them, and a
machine to plan for.
"""

from functools import cache

import random_plans
import steps
import torch
from torch.utils._pytree import tree_leaves

from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.lower import capture

GIB = 1 << 30
MACHINE = Hardware(
    "three tiers",
    (
        Tier("hbm", 8 * GIB, 10**12, "device"),
        Tier("ddr", 64 * GIB, 10**11),
        Tier("nvme", 512 * GIB, 10**10),
    ),
    (
        Channel("h2d", "ddr", "hbm", 10**10),
        Channel("d2h", "hbm", "ddr", 10**10),
        Channel("read", "nvme", "ddr", 10**9),
        Channel("write", "ddr", "nvme", 10**9),
    ),
    Compute({"bf16": 10**14, "fp32": 10**13}),
)


@cache
def model_of(name):
    """The model as it is used."""
    return steps.model_of(name).eval()


@cache
def exported(name):
    return torch.export.export(model_of(name), (), steps.inputs_of(name), strict=False)


@cache
def captured(name):
    return capture(exported(name), name=name)


def values_of(name):
    """What the placeholders of a captured model take: its parameters, and the example input."""
    program = exported(name)
    own, user = {**program.state_dict, **program.constants}, iter(steps.inputs_of(name).values())
    return [own[given.name] if given.own else next(user) for given in captured(name).givens]


def same(got, wanted):
    """Whether the tensors in two nested values are equal to the bit, one by one."""
    ours, theirs = tree_leaves(got), tree_leaves(wanted)
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True)
    )


def legal_plans(name):
    """Legal plans of a captured model on :data:`MACHINE`."""
    return random_plans.legal_plans(captured(name).graph, MACHINE)
