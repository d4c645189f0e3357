"""Will it fit: the peak of a step with everything in device memory beside the memory that the
device has, what it consists of, the largest batch and sequence, and what would make it fit.

A peak is that of a replay in which nothing moves. Under a runtime it has the interval of what the
device then has in use (:mod:`hosim.data.seen_peaks`); without one it is that of tensors alone, and
a step whose tensors fit *may fit*. The largest value that fits was built; so was the next one,
unless the peak is a line there.
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
"""The policy whose plan is the cost of offload: it plans in a few tenths of a second."""

_MOST = {"batch": 2**20, "sequence": 2**24, "context": 2**24}
"""The fields of which the largest value is looked for, each at most so much."""
_STEP = {"batch": 1, "sequence": 64, "context": 64}

_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "loss in chunks": {"loss": "chunked"},
    "checkpointing": {"checkpoint": True},
    "8-bit optimizer states": {"states_dtype": "int8"},
}
"""Other ways to run a training step, by the parameters of its builder."""
_STATES = "states_home"
_ALL = "all of these together"


def memory_fit(question: Question, tell: Callable[[str], None] = lambda _: None) -> MemoryFit:
    """Return whether the question's step fits its device with everything there, and if not, what
    would help. The policy and the budget of the question play no part. Raises :class:`InputError`.
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
    """The bytes of the device for what a runtime has in use, or for tensors without one."""
    whole = hardware.device.capacity_bytes
    return whole if hardware.software is None else max(0, whole - DRIVER_BYTES)


def _wanted(hardware: Hardware) -> str:
    """The verdict of a step that fits: without a runtime nobody knows what else is in use."""
    return MAY_FIT if hardware.software is None else FITS


def _verdict(hardware: Hardware, peak_bytes: int) -> str:
    seen = seen_peaks(hardware, peak_bytes)
    if seen is not None:
        return seen.verdict
    return MAY_FIT if peak_bytes <= _usable(hardware) else DOES_NOT_FIT


def _room(hardware: Hardware) -> int:
    """The largest peak of tensors that fits; -1: none does."""
    wanted = _wanted(hardware)
    if _verdict(hardware, 0) != wanted:
        return -1
    sizes = range(1, _usable(hardware) + 1)  # at most LARGEST: bisect_left takes no more
    return bisect_left(sizes, True, key=lambda size: _verdict(hardware, size) != wanted)


def _by_module(graph: Graph, peak: StaticPeak) -> Iterator[ModulePeak]:
    """The modules that hold bytes at the peak in listed order, the largest first."""
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
    """The module of a tensor, with a star for the number of its layer, and that number; of an op's
    result without a module the phase that the op is in, or its kind.

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
    """The fields of a builder's step of which more needs more memory."""
    recipe = _recipe(graph)
    if not recipe:
        return ()
    from hosim.io.models import parameters_of

    known = parameters_of(recipe)
    length = "context" if recipe.get("phase") == "decode" else "sequence"
    return tuple([field for field in ("batch", length) if field in known])


def _largest(question: Question, field: str, peak_bytes: int) -> LargestFit:
    """The largest value that fits, as more of it takes more; ``peak_bytes`` is the asked step's.

    Between two values the peak is nearly a line, which says what to try next; each fourth time the
    middle of what is left is tried, so that the search ends soon whatever the peaks are.
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
"""Kinds of tensors whose sizes no batch and no sequence changes."""


def _stays(graph: Graph) -> int:
    """The bytes that the device holds from the start to the end, whatever the batch is."""
    kept = [graph.tensors[t] for t in graph.initial if graph.users[t]]
    return sum([tensor.size_bytes for tensor in kept if tensor.kind in _STAYING])


def _next(known: Mapping[int, int | None], low: int, high: int, room: int) -> int:
    """The next value to try between one that fits and one that does not: the last that fits on the line through the
    nearest peaks on both sides, or through the two below.
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
    """Return whether the peaks of ``low`` and of the two values beside it lie on one line."""
    beside = sorted([n for n in known if known[n] is not None], key=lambda n: abs(n - low))[:3]
    if len(beside) < 3:
        return False
    (a, p), (b, q), (c, r) = [(n, known[n] or 0) for n in sorted(beside)]
    return (q - p) * (c - b) == (r - q) * (b - a)


def _peak(question: Question, settings: Mapping[str, Any]) -> int | None:
    """The peak of another step; ``None`` if the builder refuses it."""
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
    """Each change alone, offload last, and all of them if none is enough."""
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
    """A step with other settings of its builder; ``None`` if it takes no such settings."""
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
    """A step that moves tensors within the room that fits, or why there is none."""
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
