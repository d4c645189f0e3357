"""Find out if a step fits: compare its resident peak with the device's memory, divide the peak by
kind and module, find the largest batch and sequence that fit, and the changes that would help.

The peak is that of a replay in which nothing moves. Under a runtime it is an interval of the memory
in use (:mod:`hosim.data.seen_peaks`). Without one it is that of tensors alone, and a step whose
tensors fit *may fit*. The graph of the largest value that fits was built, and so was that of the
next value, unless the peak is linear there.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from math import isqrt
from typing import Any

from hosim.analysis import StaticPeak, needed_bytes, static_peak
from hosim.data.memory_fit import LargestFit, MemoryFit, ModulePeak, Remedy
from hosim.data.runtime import RUNTIME
from hosim.data.seen_peaks import (
    DOES_NOT_FIT,
    DRIVER_BYTES,
    FITS,
    MAY_FIT,
    seen_peaks,
)
from hosim.engine import resident_step
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.models import Run
from hosim.planner.schedule.tiers_below import nearest_tiers
from hosim.result import WORKSPACE
from hosim.study.asked import parse_choice
from hosim.study.runs import Question, check, make_plan, replay
from hosim.units import human_size

OFFLOAD = "static_split"
"""The policy that gives the cost of offload; it plans in a few tenths of a second."""

_MOST = {"batch": 2**20, "sequence": 2**24, "context": 2**24}
"""The largest value that is tried for each field."""
_STEP = {"batch": 1, "sequence": 64, "context": 64}

_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "loss in chunks": {"loss": "chunked"},
    "checkpointing": {"checkpoint": True},
    "8-bit optimizer states": {"states_dtype": "int8"},
}
"""Changes of a training step that need less memory: builder parameters by name."""
_STATES = "states_home"
_ALL = "all of these together"


def memory_fit(question: Question, tell: Callable[[str], None] = lambda _: None) -> MemoryFit:
    """Return the verdict on the question's step with everything in device memory, and, if it may
    not fit, the changes that would help. The question's policy and budget are not used. Raises
    :class:`InputError`.
    """
    hardware, graph = question.hardware, question.graph
    alone = resident_step(graph, hardware)
    listed = static_peak(graph, hardware.device_tier)
    verdict = _verdict(hardware, alone.peak_bytes)
    tell("looking for the largest batch and sequence")
    largest = tuple([_largest(question, field, alone.peak_bytes) for field in _fields(graph)])
    remedies: list[Remedy] = []
    if verdict != _wanted(hardware):
        for remedy in _remedies(question, alone.makespan_ns):
            tell(f"trying {remedy.name}")
            remedies.append(remedy)
    runtime = hardware.software
    return MemoryFit(
        graph.name,
        question.profile.name,
        None if runtime is None else runtime.name,
        _recipe(graph),
        verdict,
        alone.peak_bytes,
        seen_peaks(hardware, alone.peak_bytes),
        _usable(hardware),
        alone.makespan_ns,
        graph.ops[listed.op].name if listed.op >= 0 else "",
        alone.breakdown,
        tuple(_by_module(graph, listed)),
        largest,
        tuple(remedies),
    )


# -- verdicts --------------------------------------------------------------------------------------


def _usable(hardware: Hardware) -> int:
    """Return the bytes of the device that the runtime and the tensors may use."""
    whole = hardware.device.capacity_bytes
    return whole if hardware.software is None else max(0, whole - DRIVER_BYTES)


def _wanted(hardware: Hardware) -> str:
    """Return the best possible verdict; without a runtime, other memory in use is unknown."""
    return MAY_FIT if hardware.software is None else FITS


def _verdict(hardware: Hardware, peak_bytes: int) -> str:
    seen = seen_peaks(hardware, peak_bytes)
    if seen is not None:
        return seen.verdict
    return MAY_FIT if peak_bytes <= _usable(hardware) else DOES_NOT_FIT


def _room(hardware: Hardware) -> int:
    """Return the largest peak of tensors that fits, in bytes; -1 if none does."""
    wanted = _wanted(hardware)
    if _verdict(hardware, 0) != wanted:
        return -1
    sizes = range(1, _usable(hardware) + 1)  # at most LARGEST: bisect_left takes no more
    return bisect_left(sizes, True, key=lambda size: _verdict(hardware, size) != wanted)


def _by_module(graph: Graph, peak: StaticPeak) -> Iterator[ModulePeak]:
    """Yield the modules that hold bytes at the peak in listed order, the largest first."""
    held: dict[str, dict[str, int]] = {}
    numbers: dict[str, set[str]] = {}
    for t in peak.residents:
        tensor = graph.tensors[t]
        name = tensor.name.rpartition(".")[0] if tensor.kind == "optimizer_state" else tensor.name
        module, number = module_of(name or tensor.name)
        kinds = held.setdefault(module, {})
        kinds[tensor.kind] = kinds.get(tensor.kind, 0) + tensor.size_bytes
        numbers.setdefault(module, set()).add(number)
    if room := peak.breakdown.get(WORKSPACE):
        held.setdefault(graph.ops[peak.op].name, {})[WORKSPACE] = room
    for module in sorted(held, key=lambda name: (-sum(held[name].values()), name)):
        yield ModulePeak(module, len(numbers.get(module, ("",))), held[module])


_PHASES = ("optimizer", "backward", "forward", "recompute")
_NUMBERED = re.compile(r"(\w*?)_\d+")


def module_of(name: str) -> tuple[str, str]:
    """Return the module of a tensor, with a star for its layer number, and that number. An op's
    result outside a module has the op's phase or kind in place of the module.

    >>> module_of("optimizer.model.layers.3.mlp.up_proj.weight")
    ('model.layers.*.mlp', '3')
    >>> module_of("lm_head.weight"), module_of("blocks.3.2.bias"), module_of("forward.addmm_12")
    (('lm_head', ''), ('blocks.*.2', '3'), ('forward', ''))
    """
    first, _, rest = name.partition(".")
    if first in _PHASES and rest:
        return (first, "") if _NUMBERED.fullmatch(rest) else module_of(rest)
    parts = name.partition("[")[0].split(".")
    if len(parts) == 1:
        numbered = _NUMBERED.fullmatch(name)
        return (numbered[1] if numbered else name), ""
    within = parts[:-1]
    star = next((i for i, part in enumerate(within) if part.isdigit()), None)
    if star is None:
        return ".".join(within[:2]), ""
    end = star + 1
    while end < len(within) and within[end].isdigit():
        end += 1
    return ".".join([*within[:star], "*", *within[star + 1 : end + 1]]), within[star]


# -- the largest that fits
# --------------------------------------------------------------------------------------------------


def _recipe(graph: Graph) -> Mapping[str, Any]:
    found = graph.meta.get("builder")
    return found if isinstance(found, Mapping) else {}


def _fields(graph: Graph) -> tuple[str, ...]:
    """Return the fields of a builder's step whose larger values need more memory."""
    recipe = _recipe(graph)
    if not recipe:
        return ()
    from hosim.io.models import parameters_of

    known = parameters_of(recipe)
    length = "context" if recipe.get("phase") == "decode" else "sequence"
    return tuple([field for field in ("batch", length) if field in known])


def _largest(question: Question, field: str, peak_bytes: int) -> LargestFit:
    """Find the largest value of a field that fits, if larger values need more memory;
    ``peak_bytes`` is the peak of the question's step.

    The peak is nearly linear between two values, so interpolation gives the next one. Every fourth
    try takes the middle instead, so that the search ends soon for any peaks.
    """
    room, step = _room(question.hardware), _STEP[field]
    recipe, stays = _recipe(question.graph), _stays(question.graph)
    if stays > room:
        return LargestFit(field, None, 0, stays, _verdict(question.hardware, stays))
    asked, over = divmod(int(recipe.get(field, getattr(Run(), field))), step)
    known: dict[int, int | None] = {asked: peak_bytes} if field in recipe and not over else {}

    def peak(steps: int) -> int | None:
        if steps not in known:
            known[steps] = _peak(question, {field: steps * step})
        return known[steps]

    low, high, tries = 0, _MOST[field] // step + 1, 0
    guess = min(max(1, asked), high - 1)
    while high - low > 1:
        there = peak(guess)
        low, high = (guess, high) if there is not None and there <= room else (low, guess)
        tries += 1
        if tries % 4 == 0 or known.get(high, 0) is None:
            guess = isqrt(low * high) if high in known else 4 * low
        else:
            guess = _next(known, low, high, room)
        guess = min(max(guess, low + 1), high - 1)
        if guess == low + 1 and _on_a_line(known, low):
            break
    at_end = low > 0 and (peak(high) is None if high in known else low == _MOST[field] // step)
    needs = peak(max(1, low)) or 0
    return LargestFit(
        field, low * step or None, step, needs, _verdict(question.hardware, needs), at_end
    )


_STAYING = ("parameter", "expert", "optimizer_state", "buffer")
"""Kinds of tensors whose sizes do not depend on batch and sequence."""


def _stays(graph: Graph) -> int:
    """Return the bytes of the used tensors that the step starts with and no batch changes."""
    kept = [graph.tensors[t] for t in graph.initial if graph.users[t]]
    return sum([tensor.size_bytes for tensor in kept if tensor.kind in _STAYING])


def _next(known: Mapping[int, int | None], low: int, high: int, room: int) -> int:
    """Return the next value to try above ``low``: the last one that fits on the line through the
    peaks at ``low`` and ``high``, or through the two nearest peaks up to ``low``.
    """
    if not low:
        return 1
    there, below = known[low] or 0, [n for n in known if n < low]
    other = high if known.get(high) else max(below, default=0)
    if not other:
        return 2 * low
    slope = ((known[other] or 0) - there) / (other - low)
    return min(4 * low, low + int((room - there) / slope)) if slope > 0 else 2 * low


def _on_a_line(known: Mapping[int, int | None], low: int) -> bool:
    """Return whether the three known peaks nearest to ``low`` lie on one line."""
    beside = sorted([n for n in known if known[n] is not None], key=lambda n: abs(n - low))[:3]
    if len(beside) < 3:
        return False
    (a, p), (b, q), (c, r) = [(n, known[n] or 0) for n in sorted(beside)]
    return (q - p) * (c - b) == (r - q) * (b - a)


def _peak(question: Question, settings: Mapping[str, Any]) -> int | None:
    """Return the peak of the step with other settings; ``None`` if the builder refuses them."""
    try:
        other = _with(question, settings)
    except InputError:
        return None
    graph, tier = other.graph, other.hardware.device_tier
    return (
        static_peak(graph, tier).bytes
        if len(graph.streams) == 1 and not graph.elsewhere
        else resident_step(graph, other.hardware).peak_bytes
    )


def _with(question: Question, settings: Mapping[str, Any]) -> Question:
    return question.with_settings({f"workload.{key}": value for key, value in settings.items()})


# -- what would make it fit
# --------------------------------------------------------------------------------------------------


def _remedies(question: Question, makespan_ns: int) -> Iterator[Remedy]:
    """Yield each change alone, offload last, and then all of them together if none is enough."""
    recipe, hardware = _recipe(question.graph), question.hardware
    changes: dict[str, Mapping[str, Any]] = {}
    if recipe.get("phase") == "train":
        done = {**recipe.get(RUNTIME, {}).get("options", {}), **recipe}
        changes = {
            name: change
            for name, change in _CHANGES.items()
            if not any([key in done for key in change])
        }
    below = nearest_tiers(hardware)
    if changes and below and _STATES not in recipe:
        changes[f"offload (states in {below[0].name})"] = {_STATES: below[0].name}
    elif below:
        changes["offload"] = {}
    found: list[Remedy] = []
    for name, change in changes.items():
        remedy = _changed(question, name, change, makespan_ns)
        if remedy is not None:
            found.append(remedy)
            yield remedy
    if len(found) > 1 and all([one.verdict != _wanted(hardware) for one in found]):
        settings = {key: value for one in found for key, value in one.settings.items()}
        remedy = _changed(question, _ALL, settings, makespan_ns)
        if remedy is not None:
            yield remedy


def _changed(
    question: Question, name: str, settings: Mapping[str, Any], makespan_ns: int
) -> Remedy | None:
    """Return the step with other settings of its builder; ``None`` if it takes no such settings."""
    try:
        other = _with(question, settings)
    except InputError:
        return None
    if _STATES in settings or not settings:
        return _offloaded(other, name, settings, makespan_ns)
    alone = resident_step(other.graph, other.hardware)
    return Remedy(
        name,
        settings,
        None,
        alone.peak_bytes,
        seen_peaks(other.hardware, alone.peak_bytes),
        _verdict(other.hardware, alone.peak_bytes),
        alone.makespan_ns,
        alone.makespan_ns / makespan_ns if makespan_ns else None,
    )


def _offloaded(
    question: Question, name: str, settings: Mapping[str, Any], makespan_ns: int
) -> Remedy:
    """Return the step with offloading within the memory that fits, or the reason why it fails."""
    hardware, room = question.hardware, _room(question.hardware)
    needed = question.graph.derived(needed_bytes)
    most = max(range(len(needed)), key=needed.__getitem__, default=-1)
    if most >= 0 and needed[most] > room:
        op = question.graph.ops[most].name
        why = f"op {op!r} alone needs {human_size(needed[most])}"
        return Remedy(name, settings, OFFLOAD, None, None, DOES_NOT_FIT, None, None, why)
    try:
        plan = make_plan(question.graph, hardware, parse_choice(OFFLOAD), room)
        check(plan, hardware, room)
        moved = replay(plan, hardware, room, bounds=False)
        if not moved.feasible:
            raise InfeasibleError(str(moved.error))
    except HosimError as error:
        return Remedy(name, settings, OFFLOAD, None, None, DOES_NOT_FIT, None, None, str(error))
    peak, took = moved.peak_bytes[hardware.device_tier], moved.makespan_ns or 0
    return Remedy(
        name,
        settings,
        OFFLOAD,
        peak,
        seen_peaks(hardware, peak),
        _verdict(hardware, peak),
        took,
        took / makespan_ns if makespan_ns else None,
    )
