"""The options of llama.cpp that come closest to a plan: the layers, experts and weights that are on
the device when the step begins.

llama.cpp places weights and moves none, so moves of a plan are reported beside the options. A
weight belongs where it is at the start of the step; a tensor in parts belongs to the side with more
of its bytes. A replay of the policy ``llama_cpp`` with these options gives their gap to the plan
(:mod:`hosim.policies.own.llama_cpp` explains the options).
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hosim.cache_plan import DETACH, Plan
from hosim.engine import replay
from hosim.errors import HosimError, InputError
from hosim.hardware import Hardware
from hosim.io.models import gguf_names
from hosim.plain_text import counted, printable
from hosim.policies import policy_named
from hosim.policies.own import layer_of_ops, layers_with_experts
from hosim.result import Result
from hosim.units import human_percent, human_size, human_time


def command_line(data: Mapping[str, Any]) -> str:
    """Return the command line of the output of ``hosim export --llama-cpp --json``, under comments
    on the gap to the plan.
    """
    ours, theirs = data["of_plan"], data["of_options"]
    comments = [
        f"{data['workload']} on {data['hardware']} within {human_size(data['budget_bytes'])}",
        f"plan of {data['policy']}: makespan {human_time(ours['makespan_ns'])}, peak "
        f"{human_size(ours['peak_bytes'])}",
    ]
    if theirs is not None:
        share = (
            f" ({human_percent(theirs['makespan_ns'] / ours['makespan_ns'] - 1, signed=True)})"
            if ours["makespan_ns"]
            else ""
        )
        comments.append(
            f"with these options: makespan {human_time(theirs['makespan_ns'])}{share}, peak "
            f"{human_size(theirs['peak_bytes'])}"
        )
    comments += [f"not said: {line}" for line in data["unsaid"]]
    words = ["llama-server", "-m", "MODEL.gguf"]
    if data["context"] is not None:
        words += ["-c", str(data["context"])]
    words += ["-ngl", str(data["n_gpu_layers"])]
    if data["n_cpu_moe"]:
        words += ["--n-cpu-moe", str(data["n_cpu_moe"])]
    if data["override_tensor"]:
        words += ["-ot", ",".join(data["override_tensor"])]
    return "\n".join([*(f"# {printable(text)}" for text in comments), shlex.join(words)]) + "\n"


_WEIGHTS = frozenset({"parameter", "expert"})
_NAMED = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """``-ngl``, ``--n-cpu-moe``, the patterns of ``-ot``, and a line for each part of the plan that
    they cannot express.
    """

    n_gpu_layers: int
    n_cpu_moe: int
    override_tensor: tuple[str, ...]
    unsaid: tuple[str, ...]

    def policy(self) -> dict[str, Any]:
        """Return the options as parameters of the policy ``llama_cpp``."""
        return {
            "n_gpu_layers": self.n_gpu_layers,
            "n_cpu_moe": self.n_cpu_moe,
            "override_tensor": "/".join(self.override_tensor),
        }


def options_of(plan: Plan, hardware: Hardware) -> LlamaCppOptions:
    """Return the options closest to a plan. Raises :class:`InputError` if a weight has no name in
    llama.cpp.
    """
    graph, device = plan.graph, hardware.device_tier
    held = _held(plan, device)
    if not held:
        raise InputError(
            "has no weights that a step uses; llama.cpp runs language models", source=graph.name
        )
    unknown = [name for name in held if not gguf_names(name)]
    if unknown:
        raise InputError(f"no name in a GGUF is known for tensor {unknown[0]!r}", source=graph.name)
    of = layer_of_ops(graph)
    count = 1 + max([n for name in held for n in _layers_named(name)], default=-1)
    below = {name: _is_below(parts) for name, parts in held.items()}
    on_device = _layers_on_device(plan, of, count, below, device)
    first = min(
        range(count + 1),
        key=lambda cut: (sum(on_device[:cut]) + sum([not there for there in on_device[cut:]]), cut),
    )
    head = [name for name in held if gguf_names(name)[0].startswith("output.")]
    ngl = 0 if first == count and all([below[name] for name in head]) else count + 1 - first
    first = count + 1 - ngl
    moe = _first_experts(
        layers_with_experts(graph, of),
        {n for name in held if _is_expert(name) and below[name] for n in _layers_named(name)},
        first,
    )
    return LlamaCppOptions(
        ngl,
        moe,
        _overridden(below, first, moe, count),
        tuple(_unsaid(plan, held, on_device, first)),
    )


def exported(plan: Plan, hardware: Hardware, budget_bytes: int, target: Result) -> dict[str, Any]:
    """Return the output of ``hosim export --llama-cpp --json``: options, their replay beside the
    plan's (``target``), and the parts of the plan that they cannot express.
    """
    options = options_of(plan, hardware)
    unsaid, result = list(options.unsaid), None
    try:
        made = policy_named("llama_cpp").plan(
            plan.workload, hardware, budget_bytes, **options.policy()
        )
        result = replay(made, hardware, budget_bytes)
        if not result.feasible:
            unsaid.append(f"with these options it does not fit: {result.error}")
    except HosimError as error:
        unsaid.append(f"with these options there is no replay: {error}")
    fits = result is not None and result.feasible
    recipe = plan.workload.meta.get("builder")
    return {
        "format": "hosim.llama_cpp/1",
        "workload": target.workload,
        "hardware": target.hardware,
        "budget_bytes": target.budget_bytes,
        "policy": target.policy,
        "context": recipe.get("context") if isinstance(recipe, Mapping) else None,
        "n_gpu_layers": options.n_gpu_layers,
        "n_cpu_moe": options.n_cpu_moe,
        "override_tensor": list(options.override_tensor),
        "of_plan": _figures(target, hardware),
        "of_options": _figures(result, hardware) if fits and result is not None else None,
        "unsaid": unsaid,
    }


def _figures(result: Result, hardware: Hardware) -> dict[str, int]:
    return {
        "makespan_ns": result.makespan_ns or 0,
        "peak_bytes": result.peak_bytes[hardware.device_tier],
    }


def _held(plan: Plan, device: str) -> dict[str, tuple[int, int]]:
    """Return the bytes of each weight, by the name of the whole: in the device tier when the step
    begins, and in lower tiers.
    """
    graph, residency = plan.graph, plan.residency(device)
    held: dict[str, tuple[int, int]] = {}
    for t in graph.initial:
        tensor = graph.tensors[t]
        if tensor.kind in _WEIGHTS:
            there, away = held.get(tensor.whole, (0, 0))
            is_there = device in residency.get(t, ())
            held[tensor.whole] = (
                (there + tensor.size_bytes, away) if is_there else (there, away + tensor.size_bytes)
            )
    return held


def _is_below(parts: tuple[int, int]) -> bool:
    return parts[1] > parts[0]


def _layers_named(tensor: str) -> list[int]:
    return [int(found[1]) for name in gguf_names(tensor)[:1] if (found := _NAMED.match(name))]


def _is_expert(name: str) -> bool:
    return any(["_exps." in each for each in gguf_names(name)])


def _first_experts(layers: Sequence[int], below: Collection[int], first: int) -> int:
    """Return the number of first layers whose experts are offloaded to host; layers before
    ``first`` are offloaded as a whole.

    It is 0 if the layers whose experts are ``below`` are not the first ones of the ``layers`` with
    experts.
    """
    wanted = {n for n in layers if n in below or n < first}
    return next(
        (
            m
            for m in (0, *[n + 1 for n in layers])
            if {n for n in layers if n < max(m, first)} == wanted
        ),
        0,
    )


def _layers_on_device(
    plan: Plan, of: Sequence[int], count: int, below: Mapping[str, bool], device: str
) -> list[bool]:
    """Return, for each layer, True if it is on the device: its attention with the cache or, without
    a cache, most of its weights except experts.
    """
    graph, residency = plan.graph, plan.residency(device)
    said: dict[int, list[bool]] = {}
    for i, op in enumerate(graph.ops):
        caches = [t for t in op.uses if graph.tensors[t].kind == "kv_cache"]
        if caches and 0 <= of[i] < count:
            size = sum([graph.tensors[t].size_bytes for t in caches])
            away = sum(
                [graph.tensors[t].size_bytes for t in caches if device not in residency.get(t, ())]
            )
            said.setdefault(of[i], []).append(not op.processor and 2 * away <= size)
    weights: dict[int, list[int]] = {}
    for name, is_below in below.items():
        for n in _layers_named(name) if not _is_expert(name) else ():
            size = sum([tensor.size_bytes for tensor in graph.tensors if tensor.whole == name])
            weights.setdefault(n, [0, 0])[is_below] += size
    return [
        all(said[n]) if n in said else weights.get(n, [1, 0])[0] >= weights.get(n, [1, 0])[1]
        for n in range(count)
    ]


def _overridden(below: Mapping[str, bool], first: int, moe: int, count: int) -> tuple[str, ...]:
    """Return patterns for weights that the other options place elsewhere, one pattern for several
    layers.
    """
    layers: dict[tuple[str, bool], list[int]] = {}
    single: list[str] = []
    for name, is_below in below.items():
        for weight in gguf_names(name):
            found = _NAMED.match(weight)
            if found is None:
                if weight.startswith("output") and is_below != (first > count):
                    single.append(f"^{re.escape(weight)}={'CPU' if is_below else 'CUDA0'}")
                continue
            n = int(found[1])
            usual = n < first or ("_exps." in weight and n < moe)
            if is_below != usual:
                layers.setdefault((found[2], is_below), []).append(n)
    patterns = []
    for (rest, is_below), numbers in layers.items():
        which = "|".join(map(str, sorted(set(numbers))))
        patterns.append(f"blk\\.({which})\\.{re.escape(rest)}={'CPU' if is_below else 'CUDA0'}")
    return (*patterns, *single)


def _unsaid(
    plan: Plan, held: Mapping[str, tuple[int, int]], on_device: Sequence[bool], first: int
) -> list[str]:
    """Return a line for each kind of thing that llama.cpp has no option for."""
    graph, lines = plan.graph, []
    moved = [
        graph.tensors[op.tensor] for op in plan.cache_ops if op.op != DETACH and op.tensor >= 0
    ]
    for kinds, what in ((_WEIGHTS, "weights"), (frozenset({"kv_cache"}), "caches")):
        sizes = [tensor.size_bytes for tensor in moved if tensor.kind in kinds]
        if sizes:
            lines.append(
                f"{counted(len(sizes), 'transfer')} of {what} while the step runs, "
                f"{human_size(sum(sizes))}: llama.cpp moves none"
            )
    apart = [name for name, (there, away) in held.items() if there and away]
    if apart:
        lines.append(
            f"parts of a tensor on both sides, as {apart[0]} ({counted(len(apart), 'tensor')}): "
            "llama.cpp has all of it on one"
        )
    odd = [n for n, there in enumerate(on_device) if there != (n >= first)]
    if odd:
        lines.append(
            f"caches and attention of layers {', '.join(map(str, odd))}: -ngl takes layers from "
            "the back alone"
        )
    if plan.edits is not None and (plan.edits.order or plan.edits.recompute):
        lines.append("another order of ops, or recomputation")
    if any(
        [
            name
            for name, parts in held.items()
            if gguf_names(name)[0].startswith("token_embd") and not _is_below(parts)
        ]
    ):
        lines.append("the embedding on the device: llama.cpp has it on the CPU")
    return lines
