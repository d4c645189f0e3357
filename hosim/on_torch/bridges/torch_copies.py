"""The plan in a graph with the copies of torch's own activation offload, and its replay. Imports
torch 2.13 or later.

torch copies by the ops ``ao.offload``, ``ao.reload`` and ``ao.wait_tensor``
(``torch._functorch._activation_offloading``). Passes of others insert them too. A wait for a copy
down releases the device's storage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch._functorch._activation_offloading.offload_ops  # makes the ops
from torch.fx import GraphModule, Node

from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower import TorchProgram
from hosim.result import IN_PROGRAM_ORDER, Result

_OFFLOAD, _RELOAD = torch.ops.ao.offload.default, torch.ops.ao.reload.default
_WAIT, _MOVE = torch.ops.ao.wait_tensor.default, torch.ops.prims.device_put.default


def tier_below(hardware: Hardware) -> str:
    """The tier that torch copies to: the host's memory, below the device's own.

    Raises :class:`InputError` for a machine with no channel down from the device, or none back up.
    """
    device = hardware.device_tier
    for channel in hardware.channels:
        if channel.source == device and (channel.destination, device) in hardware.channel_between:
            return channel.destination
    raise InputError(
        f"{hardware.name} has no channels from {device!r} to a tier and back, over which torch "
        "could offload; add them to its profile",
        where="channels",
    )


def positions(modules: Sequence[GraphModule], program: TorchProgram) -> Iterator[tuple[Node, int]]:
    """Each node of modules that run one after the other, with the last op at or before it."""
    last = -1
    for module in modules:
        for node in module.graph.nodes:
            last = program.op_of.get(node.name, last)
            yield node, last


def copies(
    modules: Sequence[GraphModule], program: TorchProgram, hardware: Hardware
) -> Iterator[CacheOp]:
    """The cache ops that the copies in modules are."""
    device, below = hardware.device_tier, tier_below(hardware)
    of: dict[str, str] = {}  # what a copy is of, by its node's name
    for node, last in positions(modules, program):
        if node.target not in (_OFFLOAD, _RELOAD, _WAIT, _MOVE):
            continue
        source = cast(Node, node.args[0])
        down = node.target is _OFFLOAD or (node.target is _MOVE and source.name not in of)
        of[node.name] = of.get(source.name, source.name)
        t = program.tensor_of[of[node.name]]
        if down:
            yield CacheOp(STORE, t, device, below, last)
        elif node.target is not _WAIT:
            yield CacheOp(PREFETCH, t, below, device, last)
        if (down and node.target is _MOVE) or (node.target is _WAIT and source.target is _OFFLOAD):
            yield CacheOp(DETACH, t, device, None, last)


def read_when_gone(module: GraphModule, program: TorchProgram) -> Iterator[str]:
    """The nodes whose storage a later op reads in a module though a wait has released it, and not
    what was copied back.
    """
    at = {node: i for i, node in enumerate(module.graph.nodes)}
    for release in at:
        if release.target is not _WAIT or cast(Node, release.args[0]).target is not _OFFLOAD:
            continue
        source = cast(Node, cast(Node, release.args[0]).args[0])
        storage = program.tensor_of[source.name]
        same = [source]
        for node in same:  # grows by the views of it
            users = [user for user in node.users if user.target not in (_OFFLOAD, _WAIT)]
            same += [user for user in users if program.tensor_of.get(user.name) == storage]
            if any(at[user] > at[release] for user in users):
                yield source.name
                break


def replayed(plan: Plan, hardware: Hardware, budget: int) -> Result:
    """The replay in program order of a plan that torch's copies are.

    torch copies in both directions on one stream.
    """
    ends = {hardware.device_tier, tier_below(hardware)}
    channels = [
        replace(c, engines=1, queue="transfer stream") if {c.source, c.destination} == ends else c
        for c in hardware.channels
    ]
    hardware = replace(hardware, channels=tuple(channels))
    return replay(plan, hardware, budget, account=IN_PROGRAM_ORDER)
