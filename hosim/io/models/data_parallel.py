"""A training step of one of several devices that each have their own batch: the parts of a model
that they share, and the messages for that.

With ZeRO (Rajbhandari et al., SC 2020) a device keeps its shard of the optimizer states (stage 1),
of the gradients (2), and of the parameters (3). Stage 3 follows torch's ``fully_shard`` (FSDP2):
each layer is a unit, and everything outside of layers is another one. The device keeps fp32 shards,
split by rows. A unit's shards are copied in the step's dtype into a buffer, which is gathered in
place and copied out; after the unit's passes they are dropped. Gradients are copied into a buffer,
and each device gets its shard of the sum. Stages 0 to 2 reduce the gradients of each unit in place,
without copies into buckets.

If devices share experts, each ``run.expert``-th device has the same ones: a layer's experts are a
unit of their own, which fewer devices share.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from hosim.base.groups import grouped
from hosim.edits import BACKWARD, RECOMPUTE
from hosim.graph import Graph, Op
from hosim.io.models.collectives import ns_to_send, summed_over_tokens
from hosim.io.models.config import Run
from hosim.io.models.optimizer import (
    adamw,
    first_share,
    has_master,
    moments_by_parts,
    update_by_parts,
)
from hosim.io.models.tape import Learned, Tape, Value

GATHER, REDUCE = "gather", "reduce"
"""The streams of collectives: those that gather parameters, and those that reduce gradients."""

_EXPERTS = "experts"
_ROOT = "root"
"""The name of the unit of parameters outside of layers."""

_UNIT = re.compile(r"^(.*?\.\d+)\.")
_PLACE = re.compile(rf"^({re.escape(RECOMPUTE)}|{re.escape(BACKWARD)})?(micro\d+\.)?")

Place = tuple[bool, str]
"""True for an op of a backward pass, and the op's micro-batch."""


def unit_of(parameter: str) -> str:
    """The unit of a parameter: its layer, or an empty name if it is outside of layers.

    >>> unit_of("model.layers.3.mlp.experts.7.down_proj"), unit_of("lm_head.weight")
    ('model.layers.3', '')
    """
    found = _UNIT.match(parameter)
    return found.group(1) if found else ""


def shared_step(
    base: Graph,
    parameters: Sequence[Value],
    gradients: Sequence[Learned],
    of_own_tokens: Sequence[Value],
    run: Run,
) -> Graph:
    """Return the passes in ``base``, of one device, with the messages between ``run.data`` devices,
    and the optimizer.

    ``gradients`` has one list for each micro-batch if devices reduce each, else one list with their
    sums. The gradients ``of_own_tokens`` are partial: devices that share layers add them up one by
    one before a unit's gradients are reduced, as FSDP2 does with tensor and sequence parallelism.
    """
    return _Sharing(base, parameters, gradients, of_own_tokens, run).graph()


@dataclass(frozen=True, slots=True)
class Visit:
    """The ops from position ``first`` on that use one gathering of a unit. ``issued`` is the
    position at which the gathering is listed.
    """

    unit: str
    place: Place
    first: int
    issued: int


def visits_of(base: Graph, units: Mapping[str, str], run: Run) -> tuple[Visit, ...]:
    """Return the visits of all units, one for each time that a unit is gathered, by first use;
    ``units`` has the unit of each parameter.

    A unit is issued ``run.prefetch`` visits ahead, but not before the pass that needs it.
    Parameters outside of layers stay from the forward pass to the end of the backward pass, and so
    do layers that are not resharded.
    """
    first: dict[tuple[str, Place], int] = {}
    begun: dict[Place, int] = {}
    for i, op in enumerate(base.ops):
        place = place_of(op)
        begun.setdefault(place, i)
        for t in op.inputs:
            unit = units.get(base.tensors[t].name)
            if unit is not None:
                around = unit.removesuffix(
                    f".{_EXPERTS}"
                )  # the layer, which is gathered before its experts in each pass
                first.setdefault((around, stays(around, place, run)), i)
                first.setdefault((unit, stays(unit, place, run)), i)
    found: list[Visit] = []
    for (unit, place), i in first.items():
        issued = i
        if run.prefetch:
            ahead = found[-run.prefetch].first if len(found) >= run.prefetch else 0
            issued = max(ahead, begun[place_of(base.ops[i])])
        found.append(Visit(unit, place, i, issued))
    return tuple(found)


def place_of(op: Op) -> Place:
    """Return whether an op belongs to a backward pass, which includes recomputation, and its
    micro-batch.
    """
    found = _PLACE.match(op.name)
    assert found is not None
    return found.group(1) is not None, found.group(2) or ""


def stays(unit: str, place: Place, run: Run) -> Place:
    """The place of the visit in which an op in ``place`` finds a unit."""
    return place if unit and run.reshard else (False, place[1])


class _Sharing:
    """The walk over the ops of one device that adds the messages between devices."""

    def __init__(
        self,
        base: Graph,
        parameters: Sequence[Value],
        gradients: Sequence[Learned],
        of_own_tokens: Sequence[Value],
        run: Run,
    ) -> None:
        self.base, self.run = base, run
        self.order = [parameter.tensor for parameter in parameters]
        self.of_own_tokens = {gradient.tensor for gradient in of_own_tokens}
        self.units: dict[str, list[Value]] = {}
        self.devices: dict[str, int] = {}
        for parameter in parameters:
            unit = unit_of(parameter.tensor)
            is_divided = (
                run.expert > 1
                and base.tensors[base.tensor_index[parameter.tensor]].kind == "expert"
            )
            unit = f"{unit}.{_EXPERTS}" if is_divided else unit
            self.units.setdefault(unit, []).append(parameter)
            self.devices[unit] = run.data // run.expert if is_divided else run.data
        self.unit = {p.tensor: unit for unit, listed in self.units.items() for p in listed}
        self.t = Tape(base.name)
        self.t.builder.meta = dict(base.meta)
        self.names = [tensor.name for tensor in base.tensors]
        self.whole: dict[tuple[str, Place], Value] = {}
        self.copied_out: list[str] = []
        self.summed: dict[str, Value] = {}
        self.learned: dict[str, Learned] = {}
        self.reduced_after: dict[int, list[tuple[str, Learned]]] = {}
        for each in gradients:
            for unit, learned in grouped(
                (self.unit[pair[0].tensor], pair) for pair in each
            ).items():
                last = max(
                    [
                        base.writers[base.tensor_index[gradient.tensor]][-1]
                        for _, gradient in learned
                    ]
                )
                self.reduced_after.setdefault(last, []).append((unit, learned))

    def graph(self) -> Graph:
        self._tensors()
        visits = visits_of(self.base, self.unit, self.run) if self.run.zero == 3 else ()
        # a visit copies out after its own gathering, and before the gathering that is issued then
        events = sorted(
            chain(*([(v.issued, j, False), (v.first, j, True)] for j, v in enumerate(visits)))
        )
        for i, op in enumerate(self.base.ops):
            while events and events[0][0] == i:
                _, j, is_there = events.pop(0)
                if is_there:
                    self._copy_out(visits[j])
                else:
                    self._gather(visits[j], j)
            self._copied(op)
            for unit, learned in self.reduced_after.get(i, ()):
                self._reduce(unit, learned, place_of(op))
        if self.run.optimizer == "adamw":
            self._update()
        return self.t.builder.build()

    def _update(self) -> None:
        run, after = self.run, list(self.t.last_ops.values())
        shares = run.zero in (1, 2)
        apart = shares and run.optimizer_on is not None
        master = has_master(run) or (apart and run.states_dtype is None)
        rooted = {
            unit: moments_by_parts(self.t, run, learned, has_master(run))
            for unit, learned in (self.learned.items() if run.foreach else ())
        }
        found = {p.tensor: (p, g) for learned in self.learned.values() for p, g in learned}
        in_order = [found[name] for name in self.order if name in found]
        there = first_share(in_order, run.optimizer_share)
        for unit, learned in self.learned.items():
            shards: list[Value] = []
            if run.foreach:
                update_by_parts(self.t, rooted[unit])
            else:
                how = {"master": master, "is_shard": apart}
                shards = adamw(self.t, run, learned, after=after, elsewhere=there, **how)
            if shares and self.devices[unit] > 1:
                self._share(unit, shards, there if apart else ())

    def _tensors(self) -> None:
        for tensor in self.base.tensors:
            if self.run.zero == 3 and tensor.name in self.unit:
                self.t.reserve(tensor.name)
                home = self.run.shards_home or tensor.home
                self.t.builder.tensor(tensor.name, self._shard(tensor.name).size, tensor.kind, home)
            else:
                self.t.builder.tensor(
                    tensor.name, tensor.size_bytes, tensor.kind, tensor.home, tensor.persistent
                )

    def _copied(self, op: Op) -> None:
        place = place_of(op)
        stands = dict(zip(op.uses, [self.names[t] for t in op.uses], strict=True))
        if self.run.zero == 3:
            for t in op.inputs:
                unit = self.unit.get(self.names[t])
                if unit is not None:
                    stands[t] = self.whole[unit, stays(unit, place, self.run)].tensor
        _copied(self.t, op, stands, [self.base.ops[d].name for d in op.deps] if op.message else ())

    # -- sizes
    # ----------------------------------------------------------------------------------------------

    def _elements(self, parameter: Value) -> int:
        """The elements of a parameter's shard: of its rows (stage 3) or its elements, padded if the
        devices cannot share them evenly.

        The rows of experts are experts, or the rows of each expert if there are more devices than
        experts, as in torchtitan.
        """
        unit = self.unit[parameter.tensor]
        devices, size = self.devices[unit], prod(parameter.shape)
        if self.run.zero != 3:
            return -(-size // devices)
        rows = parameter.shape[unit.endswith(f".{_EXPERTS}") and devices > parameter.shape[0]]
        return -(-rows // devices) * (size // rows)

    def _shard(self, name: str) -> Value:
        """The fp32 shard that stage 3 keeps of a parameter."""
        (parameter,) = [p for p in self.units[self.unit[name]] if p.tensor == name]
        return Value(name, (self._elements(parameter),), "fp32")

    def _flat(self, unit: str, dtype: str) -> Value:
        """A buffer of a unit with the shards of all devices."""
        return Value(
            "",
            (sum([self._elements(p) for p in self.units[unit]]) * self.devices[unit],),
            dtype,
        )

    def _send(
        self, unit: str, label: str, kind: str, stream: str, size: int, **tensors: Any
    ) -> tuple[Value, ...]:
        """A collective of ``size`` bytes among the devices that share a unit."""
        devices = self.devices[unit]
        times = 2 if kind == "all_reduce" else 1
        duration = ns_to_send(self.run, -(-times * size * (devices - 1) // devices))
        tensors = {"inputs": [], "results": [], **tensors}
        return self.t.ops(
            label,
            kind,
            stream=stream,
            accessed=size,
            duration_ns=duration,
            kernel=kind,
            sizes=(devices, size),
            **tensors,
        )

    # -- parameters
    # ----------------------------------------------------------------------------------------------

    def _gather(self, visit: Visit, number: int) -> None:
        shards = [self._shard(p.tensor) for p in self.units[visit.unit]]
        flat = self._flat(visit.unit, self.run.dtype)
        if self.run.prefetch:
            after = (
                self.copied_out[number - self.run.prefetch : number - self.run.prefetch + 1]
                if number >= self.run.prefetch
                else []
            )
        else:
            after = [self.base.ops[visit.first - 1].name] if visit.first else []
        written = flat.size // self.devices[visit.unit]
        (flat,) = self.t.ops(
            f"{_prefix(visit)}gather_copy_in",
            "copy",
            shards,
            [(flat.shape, flat.dtype)],
            stream=GATHER,
            accessed=sum([s.size for s in shards]) + written,
            deps=after,
        )
        self._send(
            visit.unit,
            f"{_prefix(visit)}all_gather",
            "all_gather",
            GATHER,
            flat.size,
            mutates=[flat],
        )
        self.whole[visit.unit, visit.place] = flat

    def _copy_out(self, visit: Visit) -> None:
        flat = self.whole[visit.unit, visit.place]
        size = sum([p.size for p in self.units[visit.unit]])
        shape = (sum([prod(p.shape) for p in self.units[visit.unit]]),)
        whole = self.t.op(f"{_prefix(visit)}parameters", "copy", [flat], shape, accessed=2 * size)
        self.whole[visit.unit, visit.place] = whole
        self.copied_out.append(whole.tensor)

    def _share(self, unit: str, shards: Sequence[Value], elsewhere: Collection[str]) -> None:
        """Send the device's updated part of a unit to the others: in place, or, for the parameters
        that were updated ``elsewhere``, from ``shards``, which came from another processor.
        """
        size = self._flat(unit, self.run.dtype).size
        name = f"optimizer.{unit or _ROOT}.all_gather"
        there = [p for p in self.units[unit] if p.tensor in elsewhere]
        here = [p for p in self.units[unit] if p.tensor not in elsewhere]
        changed = {"inputs": shards, "overwrites": there, "mutates": here}
        self._send(unit, name, "all_gather", GATHER, size, **changed)

    # -- gradients
    # ----------------------------------------------------------------------------------------------

    def _scattered(self, unit: str, prefix: str, gradients: Sequence[Value], dtype: str) -> Value:
        """The device's part of the sum of gradients, in fp32 with ZeRO stage 3."""
        flat = self._flat(unit, dtype)
        shape = (flat.shape[0] // self.devices[unit],)
        made: dict[str, Any] = {"inputs": gradients, "result_kind": "gradient"}
        made["results"] = [(shape, dtype)]
        (shard,) = self._send(
            unit, f"{prefix}reduce_scatter", "reduce_scatter", REDUCE, flat.size, **made
        )
        if self.run.zero < 3 or dtype == "fp32":
            return shard
        how: dict[str, Any] = {"stream": REDUCE, "result_kind": "gradient"}
        return self.t.ops(f"{prefix}reduce_to", "copy", [shard], [(shape, "fp32")], **how)[0]

    def _reduce(self, unit: str, learned: Learned, place: Place) -> None:
        prefix = f"{BACKWARD}{place[1]}{unit or _ROOT}."
        gradients = [gradient for _, gradient in learned]
        for parameter, gradient in learned if self.run.zero >= 2 else ():
            if gradient.tensor in self.of_own_tokens:
                summed_over_tokens(
                    self.t,
                    self.run,
                    f"{BACKWARD}{place[1]}{parameter.tensor}.all_reduce",
                    [gradient],
                )
        if self.run.zero < 2 and self.devices[unit] == 1:
            self.learned[unit] = learned
            return
        if self.run.zero == 0:
            name, size = f"{prefix}all_reduce", sum([g.size for g in gradients])
            self._send(unit, name, "all_reduce", REDUCE, size, mutates=gradients)
            self.learned[unit] = learned
            return
        dtype = gradients[0].dtype
        if self.run.zero == 3:
            dtype = "fp32" if self.run.main_gradients else self.run.dtype
            flat = self._flat(unit, dtype)
            accessed = sum([g.size for g in gradients]) + flat.size
            name = f"{prefix}reduce_copy_in"
            gradients = [self.t.op(name, "copy", gradients, flat.shape, dtype, accessed=accessed)]
        shard = self._scattered(unit, prefix, gradients, dtype)
        if unit in self.summed:
            total = self.summed[unit]
            how: dict[str, Any] = {"stream": REDUCE, "accessed": 3 * total.size}
            self.t.ops(f"{prefix}accumulate", "elementwise", [shard], [], mutates=[total], **how)
            return
        self.summed[unit] = shard
        parts = [(p, replace(shard, shape=(self._elements(p),))) for p, _ in learned]
        kept = [
            (self._shard(p.tensor) if self.run.zero == 3 else replace(p, shape=part.shape), part)
            for p, part in parts
        ]
        self.learned[unit] = kept


def _prefix(visit: Visit) -> str:
    backward, micro_batch = visit.place
    return f"{BACKWARD if backward else ''}{micro_batch}{visit.unit or _ROOT}."


def _copied(t: Tape, op: Op, names: Mapping[int, str], deps: Sequence[str]) -> None:
    """Emit an op of another graph on a tape, after ``deps``; ``names`` has the name here of each
    tensor that it uses.
    """
    t.reserve(op.name)
    inputs, outputs, mutates = [
        list(dict.fromkeys([names[each] for each in listed]))
        for listed in (op.inputs, op.outputs, op.mutates)
    ]
    t.builder.op(
        op.name,
        op.kind,
        inputs=inputs,
        outputs=outputs,
        mutates=mutates,
        stream=op.stream,
        duration_ns=op.duration_ns,
        flops=op.flops,
        bytes_accessed=op.bytes_accessed,
        dtype=op.dtype,
        workspace_bytes=op.workspace_bytes,
        kernel=op.kernel,
        sizes=op.sizes,
        processor=op.processor,
        also_on=dict(op.also_on),
        deps=deps,
        message=op.message,
    )
    t.last_ops[op.stream] = op.name
