"""Segments of a lowered graph: ops between two cache ops that a GPU runs by one launch, as a graph
that was captured once. Imports torch.

A graph runs the same kernels on the same addresses. So a recording goes through all steps of the
program once, without running them, and everything that they allocate is of one pool; calls that
follow allocate nothing. Where an op or a copy takes bytes that a transfer still reads, the compute
queue waits for that transfer; so a segment ends where a tensor that the plan moves is used last,
and begins where an op waits for a prefetch.

Inputs are copied to an address of their own, and results from one. An op that takes a number of the
call, as a learning rate, is launched by itself: a graph would keep the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from math import inf
from typing import Any
from weakref import WeakSet

import torch
from torch.fx import Node

from hosim.cache_plan import DETACH, Plan, begin_segments
from hosim.on_torch.lower.devices import CudaGraphs, same_view
from hosim.on_torch.lower.insert import Lowered, insert
from hosim.on_torch.lower.op_schema import looks
from hosim.on_torch.lower.order import StepOrder, last_needs, levels, order_of, resident_bytes
from hosim.on_torch.lower.step_values import StepValues
from hosim.on_torch.lower.tiers import Device, in_one_line
from hosim.on_torch.lower.torch_program import TorchProgram

NOT_RECORDED = "graphs are not asked for, the device has none, or the program has not run twice"


class Segments:
    """A recording. ``run`` is what a step does in place of its op; ``inputs`` are where the inputs
    of a call go, by placeholder.
    """

    def __init__(self, graphs: CudaGraphs, values: StepValues) -> None:
        self.inputs: dict[str, torch.Tensor] = {}
        self.reached = ""
        """The op that a recording has come to."""
        self.graphs = graphs
        self._values = values
        self._graph_of: dict[Node, Any] = {}
        self._alone: dict[Node, dict[Node, Any]] = {}
        self._places: dict[Node, Any] = {}
        self._returned: dict[Node, Any] = {}

    @property
    def count(self) -> int:
        """The number of segments."""
        return len(self._graph_of)

    def take(self, given: Mapping[str, Any]) -> None:
        """Copy a call's inputs to where the graphs read them."""
        for name, place in self.inputs.items():
            place.copy_(given[name])

    def run(self, node: Node) -> None:
        """Launch the segment that begins with an op, or the op by itself; nothing within one."""
        if node in self._graph_of:
            self._graph_of[node].replay()
        elif node in self._alone:
            self._values.kept.update(self._alone[node])
            self._values.call(node)

    def is_within(self, node: Node) -> bool:
        """Return whether a step's op is part of a segment that an earlier one begins."""
        return node not in self._graph_of and node not in self._alone

    def place(self, node: Node) -> Any:
        """The storage on the device that a cache op fills or reads."""
        return self._places[node]

    def results(self, output: Node) -> tuple[Any, ...]:
        """Copies of what the program returns."""
        self._values.kept.update(self._returned)
        storages: dict[int, Any] = {}

        def copied(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            storage = value.untyped_storage()
            address = storage.data_ptr()
            if address not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
                storages[address] = whole.clone().untyped_storage()
            return same_view(storages[address], value)

        return tuple(map(copied, self._values.returned(output)))

    # -- the recording -----------------------------------------------------------------------------

    def record(
        self,
        lowered: Lowered,
        order: StepOrder,
        given: Mapping[Node, Any],
        numbers: Set[Node],
        device_tier: str,
    ) -> None:
        """Go through the steps once. ``given`` has the values of placeholders, ``numbers`` those of
        them that are no tensors. What is not on the device at time 0 is not there afterwards.
        """
        values, storages = self._values, list[Any]()
        drops = last_needs(order.steps, order.sources)
        values.kept.update(given)
        try:
            with self.graphs.recording():
                for one in lowered.program.givens:
                    if not one.own and isinstance(one.value, torch.Tensor):
                        (node,) = (n for n in given if n.name == one.placeholder)
                        values.kept[node] = made = self.graphs.empty_like(given[node])
                        self.inputs[node.name] = self.graphs.there(made)
                        del made
                for group in _groups(lowered, order, numbers, device_tier):
                    self._record_group(lowered, group, order, drops, storages, device_tier, numbers)
        finally:
            values.kept.clear()
            for storage in storages:
                storage.resize_(0)

    def _record_group(
        self,
        lowered: Lowered,
        group: Sequence[Node],
        order: StepOrder,
        drops: Mapping[Node, Sequence[Node]],
        storages: list[Any],
        device_tier: str,
        numbers: Set[Node],
    ) -> None:
        values, node = self._values, group[0]

        def launched() -> None:
            for one in group:
                self.reached = one.name
                values.keep(one, values.call(one))
                values.drop(drops.get(one, ()))

        if node.op == "output":
            self._returned = self._kept(order.sources[node], storages)
        elif node.name in lowered.cache_op_of:
            cache_op = lowered.plan.cache_ops[lowered.cache_op_of[node.name]]
            if device_tier in (cache_op.source, cache_op.destination):
                storage = values.value(node.args[0]).untyped_storage()
                if cache_op.destination == device_tier:
                    size = lowered.plan.graph.tensors[cache_op.tensor].size_bytes
                    self.graphs.allocate(storage, size)
                    storages.append(storage)
                self._places[node] = self.graphs.storage_there(storage)
                if cache_op.op == DETACH:
                    storage.resize_(0)
            values.drop(drops.get(node, ()))
        elif not numbers.isdisjoint(order.sources[node]):
            self._alone[node] = self._kept(order.sources[node], storages)
            values.drop(drops.get(node, ()))
        else:
            self._graph_of[node] = self.graphs.captured(launched)

    def _kept(self, sources: Sequence[Node], moved: Sequence[Any]) -> dict[Node, Any]:
        """The tensors of these nodes, which keep no memory of the recording; one that stays on the
        device is itself. Numbers are those of each call.
        """
        bytes_of = {storage._cdata for storage in moved}
        found = {}
        for node in sources:
            value = self._values.kept[node]
            if isinstance(value, torch.Tensor):
                stays = node.op == "placeholder" and node.name not in self.inputs
                stays &= value.untyped_storage()._cdata not in bytes_of
                found[node] = value if stays else self.graphs.there(value)
        return found


class Recorder:
    """Records the segments of a program, and forgets them. ``room_bytes`` of the budget are above
    all that the program holds, and ``own_bytes`` of that not at the begin of a run.
    """

    def __init__(
        self,
        lowered: Lowered,
        order: StepOrder,
        values: StepValues,
        device_tier: str,
        room_bytes: int | None,
        own_bytes: int,
    ) -> None:
        self.segments: Segments | None = None
        self.no_segments = NOT_RECORDED
        """Why ops are launched one by one; empty where segments of them are launched as one."""
        self._recorded = lowered, order, values
        self._device_tier = device_tier
        self._room_bytes = room_bytes
        self._pool_bytes = own_bytes + copied_bytes(lowered, order)
        self._runs = 0
        self._turns: WeakSet[Recorder] = WeakSet((self,))

    def take_turns(self, other: Recorder, are_there: bool) -> None:
        """Programs over the same tensors run in turn, in one pool of memory. Unless the tensors
        ``are_there`` for both, those of one are at other addresses when it runs again.
        """
        self._turns = other._turns
        self._turns.add(self)
        for one in () if are_there else self._turns:
            one.forget()

    def begin(
        self, given: Callable[[], Mapping[Node, Any]], device: Device, is_plain: bool
    ) -> None:
        """Before a run: record segments if it is the second one; the first one warms libraries up.
        ``given`` has the values of placeholders. A run that is not plain, whose times or order are
        asked for, launches op by op.

        Such a run leaves the pool of other programs if there is room for both.
        """
        if is_plain:
            self._runs += 1
        else:
            self.forget()
        if self._runs >= 2 and self.segments is None and self.no_segments == NOT_RECORDED:
            others = [one.segments.graphs for one in self._turns if one.segments is not None]
            graphs = others[0] if others else device.graphs()
            if graphs is not None:
                device.wait()  # nothing is there any more that a call has left
                self.segments, self.no_segments = recorded(
                    *self._recorded, given(), graphs, self._device_tier, self._room_bytes
                )
        room = inf if self._room_bytes is None else self._room_bytes
        for one in self._turns if self.segments is None else ():
            if one.segments is not None and one._pool_bytes > room:
                runs = one._runs if self.no_segments == NOT_RECORDED else 0
                one.forget()
                one._runs = runs

    def forget(self) -> None:
        """Record anew from the second run on."""
        self.segments, self.no_segments, self._runs = None, NOT_RECORDED, 0


def recorded(
    lowered: Lowered,
    order: StepOrder,
    values: StepValues,
    given: Mapping[Node, Any],
    graphs: CudaGraphs,
    device_tier: str,
    room_bytes: int | None,
) -> tuple[Segments | None, str]:
    """The recording of a program for the values of its placeholders; or none, and why not.
    ``room_bytes`` are what inputs and results may take beside what the program holds.
    """
    numbers = {node for node, value in given.items() if not isinstance(value, torch.Tensor)}
    reason = _reason_against(lowered, order, numbers, device_tier, room_bytes)
    if reason:
        return None, reason
    made = Segments(graphs, values)
    try:
        with torch.no_grad(), torch._C._DisableAutocast():
            made.record(lowered, order, given, numbers, device_tier)
    except torch.OutOfMemoryError:
        return None, "the device has no room for what segments keep"
    except RuntimeError as error:  # such as of one that waits for the device without a tag for it
        return None, f"op {made.reached!r} cannot be captured: {in_one_line(error, None)}"
    return made, ""


def why_one_by_one(
    program: TorchProgram, plan: Plan, device_tier: str, budget_bytes: int | None
) -> str:
    """Why the ops of a program cannot be launched as segments under a plan within a budget; empty
    if they can.
    """
    lowered = insert(program, plan, device_tier)
    order, held = order_of(lowered, device_tier), resident_bytes(plan, device_tier)
    most = max(levels(lowered, order.steps, device_tier).values(), default=held)
    room = None if budget_bytes is None else budget_bytes - most
    values = {one.placeholder: one.value for one in program.givens}
    numbers = {
        node
        for node in lowered.module.graph.find_nodes(op="placeholder")
        if not isinstance(values[node.name], torch.Tensor)
    }
    return _reason_against(lowered, order, numbers, device_tier, room)


def _groups(
    lowered: Lowered, order: StepOrder, numbers: Set[Node], device_tier: str
) -> Iterator[tuple[Node, ...]]:
    """The steps in listed order: ops of a segment together, all others by themselves. ``numbers``
    are the placeholders of what is no tensor.
    """
    alone = {
        lowered.op_of[node.name]
        for node in order.steps
        if node.name in lowered.op_of and not numbers.isdisjoint(order.sources[node])
    }
    begins = begin_segments(lowered.plan, device_tier, alone)
    segment: list[Node] = []
    for node in order.steps:
        i = lowered.op_of.get(node.name)
        if segment and (i is None or begins[i]):
            yield tuple(segment)
            segment = []
        if i is None:
            yield (node,)
        else:
            segment.append(node)


def _reason_against(
    lowered: Lowered, order: StepOrder, numbers: Set[Node], device_tier: str, room_bytes: int | None
) -> str:
    """Why a program is launched op by op; empty if it need not be. ``room_bytes`` are what its
    inputs and results may take beside what it holds.
    """
    plan, graph = lowered.plan, lowered.plan.graph
    names = [tensor.name for tensor in graph.tensors]
    there = {t for t, tiers in plan.residency(device_tier).items() if device_tier in tiers}
    leave = [c.tensor for c in plan.cache_ops if c.op == DETACH and c.source == device_tier]
    if gone := there.intersection(leave):
        return f"tensor {names[min(gone)]!r} begins a call on the device, and leaves it"
    moved = {c.tensor for c in plan.cache_ops} | {*plan.initial}
    inputs, results = _inputs(lowered), _results(lowered, order)
    if odd := inputs & (moved | {t for op in graph.ops for t in op.mutates}):
        return f"input {names[min(odd)]!r} is moved or written"
    last = {c.tensor: c for c in plan.cache_ops if device_tier in (c.source, c.destination)}
    if away := {t for t in results & last.keys() if last[t].op == DETACH}:
        return f"result {names[min(away)]!r} ends below the device"
    for node in order.steps:
        if node.name in lowered.op_of and (reason := _reason_of(lowered, node, order, numbers)):
            return f"op {node.name!r} {reason}"
    needed = copied_bytes(lowered, order)
    if room_bytes is not None and needed > room_bytes:
        return f"the budget has no room for {needed:,} B of inputs and results beside the program"
    return ""


def _inputs(lowered: Lowered) -> set[int]:
    return {
        lowered.tensor_of[one.placeholder]
        for one in lowered.program.givens
        if not one.own and one.placeholder in lowered.tensor_of
    }


def _results(lowered: Lowered, order: StepOrder) -> set[int]:
    return {
        lowered.tensor_of[node.name]
        for node in order.sources[order.steps[-1]]
        if node.name in lowered.tensor_of
    }


def copied_bytes(lowered: Lowered, order: StepOrder) -> int:
    """The bytes of inputs and results, of which segments have copies."""
    tensors = lowered.plan.graph.tensors
    return sum(tensors[t].size_bytes for t in _inputs(lowered) | _results(lowered, order))


def _reason_of(lowered: Lowered, node: Node, order: StepOrder, numbers: Set[Node]) -> str:
    op = lowered.plan.graph.ops[lowered.op_of[node.name]]
    if not isinstance(node.target, torch._ops.OpOverload):
        return "is code of Python"
    if looks(node.target):
        return "waits for what a tensor contains"
    if node.kwargs.get("generator") is not None:
        return "draws from a generator of its own"
    if not numbers.isdisjoint(order.sources[node]) and op.outputs:
        return "makes a tensor of a number that a call gives"
    return ""
