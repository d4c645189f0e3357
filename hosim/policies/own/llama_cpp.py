"""``llama_cpp``: layers and experts are computed where their weights lie, on the device or on the
CPU; no weight crosses the link.

llama.cpp (github.com/ggml-org/llama.cpp at 08033df0). Its unit is the tensor: an op runs where its
weight lies, attention where the layer's cache lies, an op with neither on the device unless what
runs before and after it is on the CPU (``ggml_backend_sched``, whose passes are of this kind).
Placement in its order of precedence:

1. ``override_tensor`` (``-ot``): ``PATTERN=CPU`` or ``PATTERN=CUDA0``, several with ``/`` between
   them. Patterns are regular expressions that are searched in the names of a GGUF
   (``blk.3.ffn_up_exps.weight``); the first that is found counts.
2. ``n_cpu_moe`` (``--n-cpu-moe``): the experts of the first so many layers on the CPU.
3. ``n_gpu_layers`` (``-ngl``): of n layers and the output layer, which is one more, the last so
   many on the device, with their caches. The embedding is always on the CPU.

Where none is given, ``--fit``, which is on by default since the end of 2025 (``common/fit.cpp``),
leaves ``fit_target`` of the budget free. If everything fits, everything is on the device but the
embedding. Else a model without experts gets as many layers as fit, the output layer first and then
from the back. A mixture gets its layers without their experts in the same order; once all are
there, the experts of as many layers as fit, from the front.

Not modelled: a layer of which some experts' matrices are on either side, which ``--fit`` tries
last; the buffer of a batch of 512 tokens, which it counts (some hundred MiB: part of
``fit_target``); shorter contexts, which it tries first where none is given. Of products of 32 rows
or more llama.cpp copies weights that lie on the CPU to the device (op offload): these are refused,
unless ``op_offload`` is false (``--no-op-offload``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hosim.cache_plan import Plan
from hosim.devices_of_graph import LAYERS
from hosim.edits import CROSSING_KINDS
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.models import gguf_names
from hosim.plain_text import shown
from hosim.planner.schedule import starts_elsewhere
from hosim.policies.computed_elsewhere import Make, made_on
from hosim.policies.own import resident
from hosim.processors import others_of, tier_of

_WEIGHTS = frozenset({"parameter", "expert"})
_OFFLOADED = 32
"""Rows from which on llama.cpp copies weights to the device."""
_REPEATS, _GROUPS, _LENGTH = 3, 4, 200
"""The most that a pattern of ``override_tensor`` may have."""

_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, **_: object) -> Plan:
    """The plan for ops whose processors are chosen: what is on the device is there from the
    start.
    """
    return resident.plan(graph, hardware, budget_bytes)


def placed(
    graph: Graph, hardware: Hardware, budget_bytes: int, make: Make, parameters: Mapping[str, Any]
) -> Plan:
    """The plan for the processors that llama.cpp would choose.

    Raises :class:`InputError` for an op that may not run where it would, and
    :class:`InfeasibleError` where not even the smallest part of the model fits.
    """
    layers = _Layers(graph, hardware)
    overrides = read_overrides(parameters["override_tensor"])
    given = parameters["n_gpu_layers"], parameters["n_cpu_moe"]
    if overrides or given != (None, None):
        on_device = layers.count + 1 if given[0] is None else given[0]
        split = Split(
            on_device, frozenset([n for n in layers.with_experts if n < (given[1] or 0)]), overrides
        )
        return _made(layers, split, make, parameters["op_offload"])
    most = budget_bytes - parameters["fit_target"]
    return _fitted(
        layers, lambda split: _fitting(layers, split, make, most, parameters["op_offload"]), most
    )


@dataclass(frozen=True, slots=True)
class Split:
    """The split of a model: how many layers from the back are on the device, which layers' experts
    are not, and the ``overrides`` that come before both.
    """

    n_gpu_layers: int
    cpu_experts: frozenset[int]
    overrides: tuple[tuple[re.Pattern[str], bool], ...] = ()


def read_overrides(text: str) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """Each pattern of ``override_tensor``, and whether what it matches is on the CPU. Raises
    :class:`InputError`.

    >>> read_overrides("ffn_.*_exps=CPU")
    ((re.compile('ffn_.*_exps'), True),)
    """
    found = []
    where = "policy llama_cpp: override_tensor"
    for each in filter(None, text.split("/")):
        pattern, equals, buffer = each.rpartition("=")
        if not equals or not pattern or buffer not in ("CPU", "CUDA0"):
            raise InputError(
                "expected PATTERN=CPU or PATTERN=CUDA0, several with '/' between them, got "
                f"{each!r}",
                where=where,
            )
        try:
            found.append((re.compile(pattern), buffer == "CPU"))
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(
                f"{shown(pattern, 60)} is no regular expression: {error}", where=where
            ) from None
        if not _ends_soon(pattern):
            most = (
                f"{_GROUPS} groups, none of them repeated, {_REPEATS} repeats and {_LENGTH} "
                "characters"
            )
            raise InputError(
                f"expected a pattern of at most {most}, got {shown(pattern, 60)}", where=where
            )
    return tuple(found)


def _ends_soon(pattern: str) -> bool:
    """Return whether matching a name takes few steps: matching goes back and tries again, with
    nested repeats for longer than anybody waits.
    """
    bare = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern)
    repeats = len(re.findall(r"[*+{]", bare))
    special = re.search(r"\)[*+{]|\(\?(?!:)", bare) or re.search(r"\\[1-9]", pattern)
    return (
        not special
        and repeats <= _REPEATS
        and bare.count("(") <= _GROUPS
        and len(pattern) <= _LENGTH
    )


def _fitted(layers: _Layers, fitting: Callable[[Split], Plan | None], most: int) -> Plan:
    """Return the plan that ``--fit`` comes to."""
    everything, experts = Split(layers.count + 1, frozenset()), layers.with_experts
    dense = Split(layers.count + 1, frozenset(experts))
    found = fitting(everything)
    if found is None and experts and (found := fitting(dense)) is not None:
        return _largest(
            len(experts),
            lambda k: fitting(replace(dense, cpu_experts=frozenset(experts[k:]))),
            found,
        )
    if found is not None:
        return found
    found = fitting(replace(dense, n_gpu_layers=0))
    if found is None:
        raise InfeasibleError(
            "out of memory: llama_cpp with all layers on the CPU needs more than the "
            f"{max(0, most):,} B beside fit_target"
        )
    return _largest(layers.count + 1, lambda n: fitting(replace(dense, n_gpu_layers=n)), found)


def _largest(end: int, fitting: Callable[[int], Plan | None], least: Plan) -> Plan:
    """The plan for the largest number below ``end`` that fits; ``least`` is the one for 0. More
    needs more memory.
    """
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        found = fitting(middle)
        low, high, least = (low, middle, least) if found is None else (middle, high, found)
    return least


def _fitting(layers: _Layers, split: Split, make: Make, most: int, offload: bool) -> Plan | None:
    try:
        made = _made(layers, split, make, offload)
    except InfeasibleError:
        return None
    return made if most > 0 and replay(made, layers.hardware, most).feasible else None


def _made(layers: _Layers, split: Split, make: Make, offload: bool) -> Plan:
    graph, hardware = layers.graph, layers.hardware
    on_cpu = layers.on_cpu(split)
    if offload and (wide := [i for i in sorted(on_cpu) if _rows(graph, i) >= _OFFLOADED]):
        raise InputError(
            f"op {graph.ops[wide[0]].name!r} has {_rows(graph, wide[0]):,} rows and its weights "
            f"on the CPU: from {_OFFLOADED} rows on "
            "llama.cpp copies them to the device, which is not modelled; op_offload=false "
            "computes it on the CPU, as --no-op-offload",
            source="policy llama_cpp",
        )
    chosen = [(graph.ops[i].name, layers.tier if i in on_cpu else "") for i in graph.movable]
    return made_on(graph, chosen, make, lambda fixed: _initial(fixed, hardware))


def _rows(graph: Graph, i: int) -> int:
    """Rows of a product by weights."""
    op = graph.ops[i]
    return (
        op.sizes[0]
        if op.sizes
        and op.kind == "matmul"
        and any([graph.tensors[t].kind in _WEIGHTS for t in op.inputs])
        else 0
    )


def _initial(graph: Graph, hardware: Hardware) -> dict[int, tuple[str, ...]]:
    """Return the tiers of tensors that the workload leaves free: where they are used; parts that
    nobody uses, beside the others of their tensor.
    """
    device = hardware.device_tier
    used: dict[str, set[str]] = {}
    free: dict[str, bool] = {}
    for t in graph.initial:
        tensor = graph.tensors[t]
        if graph.users[t]:
            used.setdefault(tensor.whole, set()).update(
                [tier_of(graph.ops[i], hardware) for i in graph.users[t]]
            )
            free[tensor.whole] = tensor.home in (None, device)
    found = {}
    for t in graph.initial:
        tensor = graph.tensors[t]
        own = {tier_of(graph.ops[i], hardware) for i in graph.users[t]} or used.get(
            tensor.whole, set()
        )
        if free.get(tensor.whole) and (own != {device} or not graph.users[t]):
            found[t] = tuple(sorted(own, key=lambda tier: (tier != device, tier)))
    return found


def layer_of_ops(graph: Graph) -> Sequence[int]:
    """The layer of each op, by the first number of its name: -1 before the first one, and their
    count after the last.
    """
    numbers = [int(found[1]) if (found := _NUMBER.search(op.name)) else None for op in graph.ops]
    there = [i for i, n in enumerate(numbers) if n is not None]
    if not there:
        return [-1] * len(numbers)
    of, current, count = [], -1, 1 + max([n for n in numbers if n is not None])
    for i, n in enumerate(numbers):
        current = count if i > there[-1] else current if n is None else n
        of.append(current)
    return of


def layers_with_experts(graph: Graph, of: Sequence[int]) -> tuple[int, ...]:
    """The layers that have routed experts, ascending; ``of`` is the layer of each op."""
    reads = [
        n
        for op, n in zip(graph.ops, of, strict=True)
        if any([graph.tensors[t].kind == "expert" for t in op.uses])
    ]
    return tuple(sorted(set(reads)))


class _Layers:
    """The layers of a workload, and which of its ops run on the CPU for a split."""

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self.graph, self.hardware = graph, hardware
        others = [name for i in graph.movable for name in others_of(graph.ops[i], hardware) if name]
        if not others:
            raise InputError(
                "no op of this workload may run on a processor of this machine; say "
                "layers_on=device/TIER",
                source=graph.name,
            )
        self.tier = others[0]

    @cached_property
    def of(self) -> Sequence[int]:
        """The layer of each op (:func:`layer_of_ops`)."""
        return layer_of_ops(self.graph)

    @cached_property
    def count(self) -> int:
        """Return the number of layers, beside the output layer: those of all devices, of which
        the graph of a pipeline stage has some.
        """
        numbered = [
            n for op, n in zip(self.graph.ops, self.of, strict=True) if _NUMBER.search(op.name)
        ]
        said = self.graph.meta.get(LAYERS, 0)
        if type(said) is not int:
            raise InputError(
                f"expected a number of layers, got {shown(said, 60)}",
                source=self.graph.name,
                where=f"meta.{LAYERS}",
            )
        return max(1 + max(numbered, default=-1), said)

    @cached_property
    def with_experts(self) -> tuple[int, ...]:
        """The layers that have routed experts, ascending."""
        return layers_with_experts(self.graph, self.of)

    def _kinds(self, tensors: Sequence[int]) -> set[str]:
        return {self.graph.tensors[t].kind for t in tensors}

    def on_cpu(self, split: Split) -> frozenset[int]:
        """The ops that run on the CPU. Raises :class:`InputError` for one that may not."""
        sides = [self._side(i, split) for i in range(len(self.graph.ops))]
        after: list[
            bool | None
        ] = []  # of each op from the last one on, the side of the next op that has one
        following: bool | None = None
        for side in reversed(sides):
            after.append(following)
            following = following if side is None else side
        found, before = [], None
        for i, side in enumerate(sides):
            is_there = (
                side
                if side is not None
                else before is not False and after[-1 - i] is not False and self.of[i] >= 0
            )
            before = before if side is None else side
            if is_there:
                self._check(i)
                found.append(i)
        return frozenset([i for i in found if self.graph.ops[i].also_on])

    def _check(self, i: int) -> None:
        op = self.graph.ops[i]
        if self.tier not in (op.processor, *others_of(op, self.hardware)) and self.of[i] >= 0:
            told = f"layers_on=device/{self.tier}"
            raise InputError(
                f"llama_cpp computes op {op.name!r} on the CPU, and the workload does not let it "
                f"run there; say {told}",
                source=self.graph.name,
            )

    def _side(self, i: int, split: Split) -> bool | None:
        """Return whether an op is on the CPU by its weights or its cache; ``None``: it has
        neither. Another stage of a pipeline sends to the device, and receives from it.
        """
        op, layer = self.graph.ops[i], self.of[i]
        if op.kind in CROSSING_KINDS:
            return False
        if not op.also_on and op.processor:
            return True
        weights = [t for t in op.uses if self.graph.tensors[t].kind in _WEIGHTS]
        if not weights:
            return (
                layer < self.count + 1 - split.n_gpu_layers
                if "kv_cache" in self._kinds(op.uses)
                else None
            )
        if split.overrides and (said := self._overridden(i, weights, split)) is not None:
            return said
        if layer in split.cpu_experts and "expert" in self._kinds(weights):
            return True
        return layer < 0 or layer < self.count + 1 - split.n_gpu_layers

    def _overridden(self, i: int, weights: Sequence[int], split: Split) -> bool | None:
        """Return whether ``override_tensor`` has an op's weights on the CPU; ``None``: it has them
        nowhere.
        """
        held = dict.fromkeys([self.graph.tensors[t].whole for t in weights])
        unknown = [tensor for tensor in held if not gguf_names(tensor)]
        if unknown:
            raise InputError(
                f"no name in a GGUF is known for tensor {unknown[0]!r}, so that no pattern can be "
                "searched in it",
                where=_OT,
            )
        names = [name for tensor in held for name in gguf_names(tensor)]
        names = [name for name in names if name.endswith(".weight")] or names
        said = {
            name: next(
                (on_cpu for pattern, on_cpu in split.overrides if pattern.search(name)), None
            )
            for name in names
        }
        if len(set(said.values())) > 1:
            apart = ", ".join(said)
            raise InputError(
                f"op {self.graph.ops[i].name!r} reads {apart}: patterns have to put all of these "
                "in the same place",
                where=_OT,
            )
        return next(iter(said.values()))


_OT = "policy llama_cpp: override_tensor"


# -- ktransformers
# --------------------------------------------------------------------------------------------------
# ``ktransformers``: routed experts on the CPU, everything else on the device.
#
# KTransformers (H. Chen et al., SOSP 2025; github.com/kvcache-ai/ktransformers): the weights of
# routed experts stay in host memory and the CPU multiplies by them; activations and the router's
# choice go down, results come back. Attention, shared experts and the router stay on the device.
# Where experts run is the workload's (``experts_on``), or the CPU where it leaves that to the plan;
# what is below without that comes up once, as with ``resident``.
#
# Not modelled: experts in demand that are put on the device; experts whose results are added a layer
# later; memory of several sockets; the experts of a prompt on the device.


def experts_placed(
    graph: Graph, hardware: Hardware, budget_bytes: int, make: Make, parameters: Mapping[str, Any]
) -> Plan:
    """The plan for a workload that leaves it to the plan where ops run: those that read experts run
    on the CPU, others on the device.
    """
    others = {i: others_of(graph.ops[i], hardware) for i in graph.movable}
    reads = {
        i for i in others if any([graph.tensors[t].kind == "expert" for t in graph.ops[i].uses])
    }
    chosen = [
        (graph.ops[i].name, others[i][0] if i in reads and others[i] else graph.ops[i].processor)
        for i in others
    ]
    return made_on(graph, chosen, make, lambda fixed: starts_elsewhere(fixed, hardware))
