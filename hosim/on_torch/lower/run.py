"""Runs a lowered graph on a machine: ops on the compute queue, cache ops on the queues of the
channels. Imports torch.

The host only queues work, in any order that the graph allows. Events order it: an op waits for the
last prefetch of each tensor that it reads, and for every transfer of each tensor that it writes; a
transfer waits for the op that it is issued after, and for the tensor's previous cache op. Memory
follows the program (docs/contract.md, rule 10): a prefetch's bytes are allocated where it is
issued; those of a detached or dead tensor are released where it is dropped, or when the transfers
that read them have ended.

All ops run on one queue, whatever their stream; exchanges with other processes that an op begins
run beside it. Random numbers are drawn in the listed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from hosim.analysis.verifying import verify
from hosim.cache_plan import DETACH, CacheOp
from hosim.errors import ExecutionError, InputError, illegal_plan
from hosim.hardware import Hardware
from hosim.on_torch.lower.insert import Lowered
from hosim.on_torch.lower.order import last_needs, levels, order_of, resident_bytes
from hosim.on_torch.lower.replicas import ExchangesUnderWay
from hosim.on_torch.lower.segments import Recorder, Segments
from hosim.on_torch.lower.step_values import StepValues
from hosim.on_torch.lower.tiers import (
    Chunks,
    Device,
    Event,
    Label,
    Origin,
    Residents,
    TensorCopies,
    TierBlock,
    copy_ways,
    resizable,
    tiers_used,
    timeline_of,
)
from hosim.result import Timeline


class Executor:
    """Runs one lowered graph again and again on one machine.

    *Placed* tensors stay between runs where the plan has them at time 0; if that is not the device
    tier, their storage is empty. :meth:`close`, or the end of a ``with``, brings everything back.
    After a failure the executor is closed: it recovers what it can, and ``ExecutionError.lost``
    names what is lost.

    ``budget_bytes`` is what the program may hold in the device tier, what transfers still read of
    freed tensors included: the host waits for them where it has to. ``device.memory`` has what the
    last run held.

    Raises :class:`PlanError` for a plan that the verifier refuses.
    """

    def __init__(
        self, lowered: Lowered, hardware: Hardware, device: Device, budget_bytes: int | None = None
    ) -> None:
        self.lowered = lowered
        self.hardware = hardware
        self.device = device
        self.timeline: Timeline | None = None
        """The timeline of the last recorded run:
        :func:`hosim.on_torch.lower.tiers.measured_timeline.timeline_of`.
        """
        self._plan = plan = lowered.plan
        if findings := verify(plan, hardware):
            raise illegal_plan("the plan breaks a rule", findings)
        tier = hardware.device_tier
        self._order = order_of(lowered, tier)
        self._drops = last_needs(self._order.steps, self._order.sources)
        self._default_levels = self._levels = levels(lowered, self._order.steps, tier)
        self._resident_bytes = resident_bytes(plan, tier)
        self._budget_bytes = budget_bytes
        self._values = StepValues(
            lowered, {source for sources in self._order.sources.values() for source in sources}
        )
        self._placeholders = {
            n.name: n for n in lowered.module.graph.nodes if n.op == "placeholder"
        }
        self._residents = Residents(plan, hardware, device)
        self._holders = [self._residents]
        self._written = {t for op in plan.graph.ops for t in op.writes}
        self._ways = dict(copy_ways(plan, hardware))
        device.check_tiers(tiers_used(plan, self._ways))
        self._exchanges = ExchangesUnderWay()
        self._chunks = Chunks(plan, hardware, device)
        self._labels = [Label(f"op {op.name!r}", op=i) for i, op in enumerate(plan.graph.ops)]
        self._placed: dict[str, Any] = {}
        most = max(self._default_levels.values(), default=self._resident_bytes)
        self.recorder = Recorder(
            lowered,
            self._order,
            self._values,
            tier,
            None if budget_bytes is None else budget_bytes - most,
            most - self._resident_bytes,
        )
        self.closed = False
        self.left: list[str] = []
        """The tensors for which there was no room when they were to be brought back."""
        self.left_for_host: list[str] = []
        """Those of ``left`` that belong in the host's memory, which has no room."""

    @property
    def segments(self) -> Segments | None:
        """The launcher of segments of ops, if ops are not launched one by one."""
        return self.recorder.segments

    # -- what is there between runs
    # ----------------------------------------------------------------------------

    def place(self, values: Mapping[str, Any], origins: Mapping[str, Origin] | None = None) -> None:
        """Keep these placeholders' values for all runs, and move their storages to where the plan
        has them at time 0.

        The contents of those with ``origins``, whose storages are empty, come from there. Raises
        :class:`InputError` for values that do not fit, and :class:`ExecutionError` if they cannot
        be moved.
        """
        origins = origins or {}
        there = {name: value for name, value in values.items() if name not in origins}
        self._check(there)
        values = {**values, **self._apart(there)}
        try:
            self._place(values, origins)
        except BaseException as error:
            raise self._failed(error, isinstance(error, InputError)) from error
        self._placed.update(
            (name, _own_view(value) if isinstance(value, torch.Tensor) else value)
            for name, value in values.items()
        )

    def _check(self, values: Mapping[str, Any]) -> None:
        if self.closed:
            raise ExecutionError("this executor is closed; make a new one")
        for name, value in values.items():
            if name not in self._placeholders:
                known = ", ".join(self._placeholders) or "none"
                raise InputError(
                    f"no placeholder {name!r} (placeholders: {known})", source="values"
                )
            self._residents.check(self.lowered.tensor_of.get(name), name, value)

    def _apart(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, with copies of those that share a storage but are different tensors of the
        graph.

        Raises :class:`InputError` if the graph writes one of them.
        """
        apart: dict[str, Any] = {}
        seen: dict[int, tuple[int, str]] = {}
        for name, value in (self._placed | dict(values)).items():
            t = self.lowered.tensor_of.get(name)
            if t is not None:
                other, its_name = seen.setdefault(value.untyped_storage()._cdata, (t, name))
                if other != t:
                    if self._written & {t, other}:
                        raise InputError(
                            f"placeholders {its_name!r} and {name!r} share a storage, which the "
                            "program writes",
                            source="values",
                        )
                    value = value.clone()
            if name in values:
                apart[name] = value
        return apart

    def _place(
        self, values: Mapping[str, Any], origins: Mapping[str, Origin] | None = None
    ) -> list[int]:
        """Place values; returns the tensors that were not placed before."""
        placed: dict[int, list[Any]] = {}
        origin_of: dict[int, Origin] = {}
        for name, value in values.items():
            t = self.lowered.tensor_of.get(name)
            if t is not None and (self._residents.wants(t) or (origins and name in origins)):
                placed.setdefault(t, []).append(value)
                if origins and name in origins:
                    origin_of[t] = origins[name]
        if len({id(origin) for origin in origin_of.values()}) < len(origin_of):
            raise InputError("two tensors of the graph share a storage", source="origins")
        for t in sorted(placed, key=lambda t: t in origin_of):  # those on the device first
            self._residents.place(t, resizable(placed[t]), origin_of.get(t))
        for t in placed:  # not earlier: after a failure above, the contents need no room to be back
            self._residents.settle(t)
        return list(placed)

    def take_over(self, other: Executor) -> None:
        """Keep what another executor on the same machine has placed, moved to where this plan has
        it; ``other`` may take it back later.

        Raises :class:`ExecutionError` if it cannot be moved; then both are closed, and closing this
        one goes on with what is left.
        """
        if self.closed or other.closed:
            raise ExecutionError("this executor is closed; make a new one")
        ours, theirs = self.lowered.tensor_of, other.lowered.tensor_of
        self._placed = {
            name: value for name, value in other._placed.items() if name in self._placeholders
        }
        self.recorder.take_turns(other.recorder, self._on_device() == other._on_device())
        shared = {
            ours[name]: (theirs[name], ours[name], self._placed[name].untyped_storage())
            for name in self._placed
            if name in ours
        }
        try:
            self._residents.take_over(other._residents, shared.values())
        except BaseException as error:
            other.closed = True
            self._holders.append(other._residents)  # what is not taken over comes back from there
            raise self._failed(error) from error

    def close(self) -> None:
        """Move everything placed back into its storage, and release all memory and files.

        Raises :class:`ExecutionError` if some contents are lost, or if there is no room for some:
        these are ``left`` where they are, and closing again goes on with them.
        """
        lost = self._close()
        if lost:
            raise ExecutionError(
                "a tier has lost its contents",
                lost=lost,
                left=self.left,
                for_host=self.left_for_host,
            )
        if self.left:
            raise ExecutionError(
                "not all contents are back", left=self.left, for_host=self.left_for_host
            )

    def _close(self) -> list[str]:
        if self.closed and not self.left:
            return []
        self.closed = True
        self._values.kept.clear()
        self._exchanges.forget()
        lost: list[str] = []
        try:
            for residents in self._holders:
                residents.land()
            self.recorder.forget()
            for residents in self._holders:
                lost += residents.bring_back(residents.kept())
            return lost
        finally:
            self.left = [
                name for residents in self._holders for name in residents.left(residents.kept())
            ]
            self.left_for_host = [
                name for residents in self._holders for name in residents.left_for_host()
            ]
            if not self.left:
                self._placed.clear()
                self.device.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: BaseException, is_refusal: bool = False) -> BaseException:
        """Close everything after ``error``; returns the error to raise, which is a refusal
        unchanged if nothing is lost or left.
        """
        lost = self._close()
        if not isinstance(error, Exception) or (is_refusal and not lost and not self.left):
            return error
        failed = ExecutionError(
            self.device.blame(error), lost=lost, left=self.left, for_host=self.left_for_host
        )
        failed.lost = *getattr(error, "lost", ()), *failed.lost  # the message has the former
        return failed

    # -- a run
    # ----------------------------------------------------------------------------------------------

    def run(
        self, values: Mapping[str, Any], *, order: Sequence[str] | None = None, record: bool = False
    ) -> tuple[Any, ...]:
        """Run the graph for ``values`` (by placeholder, without those that are placed); returns its
        results.

        ``order`` names all steps (:class:`hosim.on_torch.lower.order.StepOrder`) in another order
        that the graph allows. Inputs that the plan has elsewhere at time 0 are moved there first,
        and back at the end; results are moved to the device tier. With ``record``, ``timeline`` has
        what happened.

        Raises :class:`InputError` for values that do not fit, and :class:`ExecutionError` if the
        run fails; then nothing is returned. An interrupt (Ctrl-C) is raised unchanged. In both
        cases everything is stopped and closed first.
        """
        self._check(values)
        given = self._placed.keys() | values.keys()
        missing = [name for name in self._placeholders if name not in given]
        if missing:
            raise InputError(f"no value for placeholder {missing[0]!r}", source="values")
        values = self._apart(values)
        steps = self._order.of(order)
        drops = self._drops if order is None else last_needs(steps, self._order.sources)
        self._levels = (
            self._default_levels
            if order is None
            else levels(self.lowered, steps, self.hardware.device_tier)
        )
        try:
            is_plain = order is None and not record
            self.recorder.begin(lambda: self._by_node(values), self.device, is_plain)
            inputs = self._place(values)
            self._values.kept.update(self._by_node(values))
            self.device.recording, self.device.budget_bytes = record, self._budget_bytes
            self._residents.begin()
            with (
                torch.no_grad(),
                torch._C._DisableAutocast(),
                self.device.running(self._resident_bytes),
            ):
                if self.segments is not None:
                    self.segments.take(values)
                for node in steps:
                    self._queue(node, drops.get(node, ()))
                for resident in self._residents.beside_home(inputs):
                    self._leave_device(resident)
                self.device.compute.launch(self._exchanges.settle_all, (), None)
            if record:
                self.timeline = timeline_of(self._plan, self.device.take_record())
            lost = self._residents.bring_back(inputs)
            if lost:
                raise ExecutionError("a tier has lost its contents", lost=lost)
            if left := self._residents.left(inputs):
                raise ExecutionError(
                    f"no room for input {left[0]!r} in {self.hardware.device_tier}"
                )
            if self.segments is None:
                self._bring_results(steps[-1])  # a storage without bytes has no views
                results = self._values.returned(steps[-1])
            else:
                results = self.segments.results(steps[-1])
            self.device.hand_over(results)
            self._residents.end()
            self._values.kept.clear()
        except BaseException as error:
            raise self._failed(error) from error
        return results

    def _on_device(self) -> set[str]:
        """The placed placeholders whose tensors are on the device between runs."""
        held, of = self._plan.residency(self.hardware.device_tier), self.lowered.tensor_of
        return {n for n in self._placed if self.hardware.device_tier in held.get(of.get(n, -1), ())}

    def _by_node(self, values: Mapping[str, Any]) -> dict[Node, Any]:
        """The values that are placed, and these, by placeholder."""
        return {self._placeholders[n]: one for n, one in {**self._placed, **values}.items()}

    def _queue(self, node: Node, drops: Sequence[Node]) -> None:
        """Queue one step."""
        if node.op == "output":
            names = [s.name for s in self._order.sources[node] if s.name in self.lowered.tensor_of]
            returned = [self.lowered.tensor_of[name] for name in names]
            self.device.compute.launch(lambda: None, self._residents.arriving(returned), None)
        elif node.name in self.lowered.op_of:
            self._compute(node, self.lowered.op_of[node.name], drops)
        else:
            k = self.lowered.cache_op_of[node.name]
            cache_op = self._plan.cache_ops[k]
            resident = self._residents[cache_op.tensor]
            if cache_op.op == DETACH:
                self._detach(node, cache_op, resident, drops)
            else:
                self._copy(node, k, cache_op, resident, drops)

    def _compute(self, node: Node, i: int, drops: Sequence[Node]) -> None:
        """Queue an op. Other copies of what it writes become stale; what dies with it is
        released.
        """
        residents = self._residents
        after: dict[Event, None] = {}
        for t in residents.reads[i]:
            resident = residents[t]
            after.update(dict.fromkeys(resident.ready))
            resident.ready = ()  # ops that are queued later run later
        stale: list[TierBlock] = []
        for t in residents.writes[i]:
            resident = residents[t]
            after.update(dict.fromkeys(resident.last))
            stale += resident.blocks.values()
            resident.blocks.clear()
            resident.on_device = True
        dead = [gone for t in residents.uses[i] if (gone := residents.used(t)) is not None]
        level = self._levels.get(node)

        def compute() -> None:
            if level is not None:
                self.device.hold_back(level)
            uses = self._plan.graph.ops[i].uses
            if self.segments is not None:
                self.segments.run(node)
            else:
                self._exchanges.settle(uses)
                result = self._call_op(node)
                if getattr(node.target, "begins", False):
                    self._exchanges.begun(uses, result)
                else:
                    self._values.keep(node, result)
            for block in stale:
                block.release()  # the op has waited for its transfers
            self._values.drop(drops)
            self._give_back(dead)

        if self.segments is not None and after and self.segments.is_within(node):
            raise ExecutionError(f"op {node.name!r} waits within a segment")
        self.device.compute.launch(compute, tuple(after), self._labels[i])

    def _copy(
        self, node: Node, k: int, cache_op: CacheOp, resident: TensorCopies, drops: Sequence[Node]
    ) -> None:
        """Queue a prefetch or a store: its issue, with what it allocates, on the compute queue,
        then its transfers.
        """
        device, tier = self.device, self.hardware.device_tier
        tensor = self._plan.graph.tensors[cache_op.tensor]
        fills, empties = cache_op.destination == tier, cache_op.source == tier
        inside = device.on_device()
        level = self._levels.get(node)

        def issue() -> None:
            self._exchanges.settle((cache_op.tensor,))
            if fills or empties:
                storage = self._storage(node)
                if fills:
                    resident.is_whole = False
                    if level is not None:
                        device.hold_back(level)
                    if self.segments is None:
                        device.allocate(storage, tensor.size_bytes)
                    else:
                        resident.lent = storage
                inside.open(storage, tensor.size_bytes)
            self._values.drop(drops)

        issued = device.compute.submit(issue)
        source = inside if empties else resident.blocks[cache_op.source]
        block = (
            None
            if fills
            else device.block(str(cache_op.destination), tensor.size_bytes, tensor.name)
        )

        def arrived() -> None:
            if block is None:
                inside.close()
                resident.is_whole = True
            else:
                block.valid = True

        joins = (issued, *resident.last) if resident.is_late else (issued,)
        hops, parts = self._ways[k]
        resident.last, read = self._chunks.queue(
            hops, parts, source, block or inside, (issued, *resident.last), joins, arrived
        )
        if empties:
            resident.leaving = read  # which begins when the cache op before has ended
            device.later(
                read, inside.close
            )  # what is freed meanwhile is there as long as it is read
        resident.is_late |= len(hops) > 1
        if block is None:
            resident.ready = resident.last
            resident.on_device = True
        else:
            resident.add(str(cache_op.destination), block)
        gone = self._residents.used(cache_op.tensor)
        if gone is not None:
            self._give_back([gone])

    def _storage(self, node: Node) -> Any:
        """The storage on the device of a cache op's tensor."""
        if self.segments is not None:
            return self.segments.place(node)
        return self._values.value(node.args[0]).untyped_storage()

    def _detach(
        self, node: Node, cache_op: CacheOp, resident: TensorCopies, drops: Sequence[Node]
    ) -> None:
        last, leaving = resident.last, resident.leaving
        unused: tuple[Event, ...] = ()
        block = (
            None
            if cache_op.source == self.hardware.device_tier
            else resident.blocks.pop(cache_op.source)
        )
        if block is None:
            # an unused prefetch has to arrive before it is released
            unused, resident.ready = resident.ready, ()
            resident.on_device = False
        gone = self._residents.used(cache_op.tensor)

        def detach() -> None:
            self._exchanges.settle((cache_op.tensor,))
            if block is not None:
                block.release(last)
            else:
                resident.is_whole = False
                self._free(self._storage(node), leaving)
            self._values.drop(drops)
            self._give_back([gone] if gone is not None else [])

        self.device.compute.launch(detach, unused, None)

    def _free(self, storage: Any, leaving: Sequence[Event]) -> None:
        """Free a storage after the transfers that still read it. Segments take its bytes at once,
        and wait for these.
        """
        if self.segments is None:
            self.device.free(storage, leaving)
        elif leaving:
            self.device.compute.launch(lambda: None, leaving, None)

    def _leave_device(self, resident: TensorCopies) -> None:
        """Queue that a tensor whose home is below leaves the device, where the plan lets its copy
        be: the next run begins with what the plan has at time 0.
        """
        arriving, resident.ready = resident.ready, ()
        resident.on_device = False
        leaving = resident.leaving

        def leave() -> None:
            resident.is_whole = False
            self._free(resident.storage, leaving)

        self.device.compute.launch(leave, arriving, None)

    def _give_back(self, dead: Sequence[TensorCopies]) -> None:
        """Release what dead tensors hold below the device tier, and count what transfers still read
        in it, until they have ended.
        """
        for resident in dead:
            for block in resident.blocks.values():
                block.release(resident.last)
            if self.segments is not None:
                self._free(None, resident.leaving)
            elif resident.on_device and resident.leaving:
                self.device.linger(resident.size_bytes, resident.leaving)

    # -- values
    # ----------------------------------------------------------------------------------------------

    def _bring_results(self, node: Node) -> None:
        """Move results that were not given and are not there to the device tier."""
        sources = [
            s
            for s in self._order.sources[node]
            if s.op != "placeholder" and s.name in self.lowered.tensor_of
        ]
        storages = {
            self.lowered.tensor_of[s.name]: self._values.value(s).untyped_storage() for s in sources
        }
        away = self._residents.returned(storages)
        lost = self._residents.bring_back(away)
        if lost:
            raise ExecutionError(f"result {lost[0]!r} is lost")
        if left := self._residents.left(away):
            raise ExecutionError(f"no room for result {left[0]!r} in {self.hardware.device_tier}")

    def _call_op(self, node: Node) -> Any:
        """The results of an op. One that finds no room is done again where that may help, unless it
        may have begun to change something.
        """
        while True:
            try:
                return self._values.call(node)
            except self.device.out_of_memory:
                if (
                    getattr(getattr(node.target, "_schema", None), "is_mutable", True)
                    or not self.device.recover()
                ):
                    raise


def _own_view(value: torch.Tensor) -> torch.Tensor:
    """A view of a tensor, which may be guarded meanwhile. It requires a gradient where the tensor
    does: torch chooses kernels by that.
    """
    return value.detach().requires_grad_(value.requires_grad)
