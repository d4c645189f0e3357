"""The order of a lowered graph's nodes, and how long values are needed. Imports torch.

A *step* is a node that does something: it computes, it is a cache op, or it is the output. All
other nodes make views or numbers, which cost nothing; a step that needs one makes it from its
sources. So no view is made of a storage that is elsewhere at that moment, and no view keeps a
storage alive longer than its last step does.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from hosim.cache_plan import DETACH, Plan
from hosim.data.allocator_blocks import in_blocks
from hosim.errors import InputError
from hosim.on_torch.lower.insert import Lowered

# -- levels
# --------------------------------------------------------------------------------------------------
# The bytes of the device tier that a lowered graph holds in program order, step by step. Imports
# torch.


def resident_bytes(plan: Plan, device_tier: str) -> int:
    """The bytes of blocks of what the device tier holds at time 0."""
    return sum(
        in_blocks(plan.graph.tensors[t].size_bytes)
        for t, tiers in plan.residency(device_tier).items()
        if device_tier in tiers
    )


def levels(lowered: Lowered, steps: Sequence[Node], device_tier: str) -> Mapping[Node, int]:
    """For each step that allocates in the device tier, the bytes held there once it has, in this
    order of the steps.

    An op's outputs and workspace count from that op on, the bytes of a prefetch from its issue, and
    those of a detached or dead tensor up to where it is dropped (docs/contract.md, rule 10), all in
    blocks of the caching allocator.
    """
    plan, graph = lowered.plan, lowered.plan.graph
    sizes = [in_blocks(tensor.size_bytes) for tensor in graph.tensors]
    there = {t for t, tiers in plan.residency(device_tier).items() if device_tier in tiers}
    left = [len(users) for users in graph.users]
    held = resident_bytes(plan, device_tier)
    found: dict[Node, int] = {}
    for node in steps:
        if node.name in lowered.op_of:
            op = graph.ops[lowered.op_of[node.name]]
            made = [t for t in op.writes if t not in there]
            there.update(made)
            held += sum(sizes[t] for t in made)
            if made or op.workspace_bytes:
                found[node] = held + in_blocks(op.workspace_bytes)
            for t in op.uses:
                left[t] -= 1
                if not left[t] and not graph.survives[t] and t in there:
                    there.discard(t)
                    held -= sizes[t]
        elif node.name in lowered.cache_op_of:
            cache_op = plan.cache_ops[lowered.cache_op_of[node.name]]
            t = cache_op.tensor
            if cache_op.op == DETACH and cache_op.source == device_tier and t in there:
                there.discard(t)
                held -= sizes[t]
            elif cache_op.destination == device_tier and t not in there:
                there.add(t)
                held += sizes[t]
                found[node] = held
    return found


@dataclass(frozen=True)
class StepOrder:
    """The steps of a lowered graph in listed order, the output last, each with the steps that must
    precede it.

    ``sources`` are the values from which a step's arguments are made: results of earlier steps, and
    inputs.
    """

    steps: tuple[Node, ...]
    before: Mapping[Node, frozenset[Node]]
    sources: Mapping[Node, tuple[Node, ...]]

    def of(self, names: Sequence[str] | None) -> tuple[Node, ...]:
        """The steps in another order, or in listed order. Raises :class:`InputError` for an order
        that the graph forbids.
        """
        if names is None:
            return self.steps
        by_name = {node.name: node for node in self.steps}
        if sorted(names) != sorted(by_name):
            odd = sorted(set(names) ^ set(by_name))
            raise InputError(
                f"an order has every step once; {odd[0]!r} is wrong"
                if odd
                else "an order has every step once",
                source="order",
            )
        done: set[Node] = set()
        for name in names:
            node = by_name[name]
            missing = [earlier.name for earlier in self.before[node] if earlier not in done]
            if missing:
                raise InputError(
                    f"{name!r} cannot be before {min(missing)!r}, which it needs", source="order"
                )
            done.add(node)
        return tuple(by_name[name] for name in names)


def order_of(lowered: Lowered, device_tier: str) -> StepOrder:
    """The steps of a lowered graph and the dependencies between them."""
    steps = [
        n
        for n in lowered.module.graph.nodes
        if n.op == "output" or n.name in lowered.op_of or n.name in lowered.cache_op_of
    ]
    sources = dict(_sources(lowered))
    makers = {source: _maker(source) for listed in sources.values() for source in listed}
    before: dict[Node, set[Node]] = {}
    for node in steps:
        before[node] = {
            makers[s]
            for s in sources[node]
            if makers[s].op != "placeholder" and makers[s].op != "get_attr"
        }
    for earlier, later in (*_by_storage(lowered, steps, device_tier), *_by_random_numbers(steps)):
        before[later].add(earlier)
    before[steps[-1]].update(steps[:-1])
    return StepOrder(
        tuple(steps), {node: frozenset(nodes) for node, nodes in before.items()}, sources
    )


def last_needs(
    order: Sequence[Node], sources: Mapping[Node, tuple[Node, ...]]
) -> dict[Node, list[Node]]:
    """For each step, the values that no later step of this order needs."""
    last = {source: node for node in order for source in sources[node]}
    dropped: dict[Node, list[Node]] = {}
    for source, node in last.items():
        dropped.setdefault(node, []).append(source)
    return dropped


def _sources(lowered: Lowered) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """For each step, the values that it is made from, through views."""
    made: dict[Node, dict[Node, None]] = {}  # for each node, the values that it is made from
    for node in lowered.module.graph.nodes:
        above = dict.fromkeys(source for n in node.all_input_nodes for source in made[n])
        if node.op == "output" or node.name in lowered.op_of or node.name in lowered.cache_op_of:
            yield node, tuple(above)
        if (
            node.op in ("placeholder", "get_attr")
            or node.name in lowered.op_of
            or _is_item(node, lowered)
        ):
            made[node] = {node: None}
        else:
            made[node] = above


def _is_item(node: Node, lowered: Lowered) -> bool:
    """Return whether a node is one of several results of a step."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
        if node.name in lowered.op_of:
            return True
    return False


def _maker(node: Node) -> Node:
    """The step or the placeholder that a value comes from."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _by_storage(
    lowered: Lowered, steps: Sequence[Node], device_tier: str
) -> Iterator[tuple[Node, Node]]:
    """Pairs of steps that touch the same storage and may not change places.

    A write waits for everything before it, and a read for the last write. Cache ops of a tensor
    stay in order; one that changes the contents of the device tier waits for the reads before it,
    and later reads wait for it.
    """
    plan = lowered.plan
    written: dict[int, Node] = {}
    moved: dict[int, Node] = {}
    brought: dict[int, Node] = {}
    reads: dict[int, list[Node]] = {}
    for node in steps:
        i = lowered.op_of.get(node.name)
        if i is not None:
            op = plan.graph.ops[i]
            for t in op.inputs:
                yield from _pairs((written.get(t), brought.get(t)), node)
                reads.setdefault(t, []).append(node)
            for t in op.writes:
                yield from _pairs(
                    (written.get(t), moved.get(t), *(n for n in reads.get(t, ()) if n is not node)),
                    node,
                )
                written[t], reads[t] = node, []
        elif node.name in lowered.cache_op_of:
            cache_op = plan.cache_ops[lowered.cache_op_of[node.name]]
            t = cache_op.tensor
            yield from _pairs((written.get(t), moved.get(t)), node)
            if device_tier == (cache_op.source if cache_op.op == DETACH else cache_op.destination):
                yield from _pairs(reads.pop(t, ()), node)
                brought[t] = node
            moved[t] = node


def _pairs(earlier: Any, later: Node) -> Iterator[tuple[Node, Node]]:
    for node in earlier:
        if node is not None:
            yield node, later


def _by_random_numbers(steps: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Steps that draw random numbers draw them in order."""
    last = None
    for node in steps:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            if last is not None:
                yield last, node
            last = node
