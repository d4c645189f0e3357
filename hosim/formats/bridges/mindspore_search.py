"""The settings of MindSpore's own strategies that come closest to a plan.

MindSpore 2.10 and 2.11, the last with static graphs for distributed training, cannot take a plan.
They have two strategies, ``distance`` and ``memory_peak``, which read their settings from the
environment. hosim has both as policies, with an interpretation of their undocumented parts
(:mod:`hosim.policies.own.mindspore`). The search plans and replays settings: the best is the
fastest that fits, and of equally fast ones the one with the lowest peak.

Source of the names: ``mindspore/graph/_parse/compile_config.py`` of the 2.10 wheel. Only the
difference of ``HYPER_OFFLOAD_MAX_DEVICE_MEMORY`` and the headroom matters to the strategy: the
former is the budget here, the latter is searched. Adaptive distances use the kernel times of the
workload; ``HYPER_OFFLOAD_DEFAULT_KERNEL_TIME_US`` keeps its default.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from hosim.cache_plan import DETACH, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import printable
from hosim.planner.schedule.tiers_below import nearest_tiers
from hosim.policies import policy_named
from hosim.result import Result
from hosim.units import human_percent, human_size, human_time


def shell(data: Mapping[str, Any]) -> str:
    """Return ``export`` lines of the output of ``hosim export --mindspore --json``, under comments
    on the gap to the plan.
    """
    ours, theirs, gap = data["of_plan"], data["of_settings"], data["gap"]
    share = (
        f", {human_percent(gap['makespan_ns'] / ours['makespan_ns'], signed=True)}"
        if ours["makespan_ns"]
        else ""
    )
    more = ("-" if gap["peak_bytes"] < 0 else "+") + human_size(abs(gap["peak_bytes"]))
    comments = [
        f"{data['workload']} on {data['hardware']} within {human_size(data['budget_bytes'])}",
        f"MindSpore's strategy {data['strategy']}, the best of {data['trials']:,} settings in the "
        "simulator",
        f"makespan {human_time(theirs['makespan_ns'])} (plan of {data['policy']}: "
        f"{human_time(ours['makespan_ns'])}{share})",
        f"peak {human_size(theirs['peak_bytes'])} (plan: {human_size(ours['peak_bytes'])}, {more})",
        f'to be used with jit(..., auto_offload="{data["auto_offload"]}")',
    ]
    lines = [
        *(f"# {printable(text)}" for text in comments),
        *(f"export {name}={v}" for name, v in data["environment"].items()),
    ]
    return "\n".join(lines) + "\n"


STRATEGIES = ("distance", "memory_peak")

_PREFIX = "HYPER_OFFLOAD_"
_SWITCHES = "MS_DEV_" + _PREFIX
_PEAK_STRATEGY = _SWITCHES + "PEAK_STRATEGY"
_SHARES = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 1.0)
_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_PARTS = (0.125, 0.25, 0.5, 0.75, 1.0)
_STEPS = (1, -1, 3, -3)
_BARREN = 20
"""The search ends after this many restarts in a row without a new setting."""


@dataclass(frozen=True)
class Setting:
    """A strategy and its settings, as parameters of hosim's policy of that name."""

    strategy: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Tried:
    """A setting, its plan, and the plan's replay within the budget; ``None`` if the strategy finds
    no plan.
    """

    setting: Setting
    plan: Plan | None
    result: Result | None

    @property
    def fits(self) -> bool:
        """Return whether the plan's replay stays within the budget."""
        return self.result is not None and self.result.feasible

    @property
    def makespan_ns(self) -> int | None:
        """The makespan of the plan's replay; ``None`` if it does not fit."""
        return None if self.result is None else self.result.makespan_ns


def search(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, trials: int, seed: int = 0
) -> Iterator[Tried]:
    """Yield the best setting so far (of both strategies), after each of at most ``trials``
    settings.

    The two strategies alternate. Each climbs from its defaults, one value at a time, and then from
    random settings: the same ``seed`` gives the same answer. Settings with the same plan are
    replayed once.
    """
    evaluate = _Evaluator(graph, hardware, budget_bytes)
    climbs = [
        _climb(name, _space(name, graph, hardware, budget_bytes), evaluate, random.Random(seed))
        for name in STRATEGIES
    ]
    best: tuple[_Worth, Tried] | None = None
    for round_ in zip_longest(*climbs):
        for found in round_:
            if found is None:
                continue
            if best is None or found[0] < best[0]:
                best = found
            yield best[1]
            trials -= 1
            if trials <= 0:
                return


def environment(setting: Setting) -> dict[str, str]:
    """Return the environment variables of a setting, by name.

    >>> environment(Setting("distance", {"select_num": 3}))
    {'MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY': '0', 'HYPER_OFFLOAD_SELECT_NUM': '3'}
    """
    variables = {_PEAK_STRATEGY: str(int(setting.strategy == "memory_peak"))}
    for name, value in setting.parameters.items():
        prefix = _SWITCHES if isinstance(value, bool) else _PREFIX
        variables[prefix + name.upper()] = (
            str(int(value)) if isinstance(value, bool) else str(value)
        )
    return variables


def auto_offload(plan: Plan) -> str:
    """Return the ``auto_offload`` of ``jit`` that allows the plan's moves: ``activation``,
    ``weight`` or ``all``.
    """
    moved = {
        plan.graph.tensors[c.tensor].kind in ("activation", "gradient", "output")
        for c in plan.cache_ops
    }
    return "all" if len(moved) == 2 else "activation" if True in moved else "weight"


def export_to_dict(best: Tried, target: Result, device_tier: str, trials: int) -> dict[str, Any]:
    """Return the answer as ``hosim export --mindspore --json`` prints it: the settings, and their
    gap to ``target``, the plan's replay.
    """
    if best.plan is None or best.result is None or not best.fits:
        raise InfeasibleError(
            f"none of {trials:,} settings of MindSpore's strategies fits within "
            f"{target.budget_bytes:,} B of {device_tier}, as the plan of "
            f"{target.policy} does; try more (--trials), or a larger budget"
        )
    ours, theirs = _figures(target, device_tier), _figures(best.result, device_tier)
    gap: dict[str, Any] = {key: theirs[key] - ours[key] for key in ours}
    return {
        "format": "hosim.mindspore/1",
        "workload": target.workload,
        "hardware": target.hardware,
        "budget_bytes": target.budget_bytes,
        "policy": target.policy,
        "strategy": best.setting.strategy,
        "environment": environment(best.setting),
        "auto_offload": auto_offload(best.plan),
        "trials": trials,
        "of_plan": ours,
        "of_settings": theirs,
        "gap": gap,
    }


def _figures(result: Result, device_tier: str) -> dict[str, int]:
    return {"makespan_ns": result.makespan_ns or 0, "peak_bytes": result.peak_bytes[device_tier]}


# --------------------------------------------------------------------------------------------------
# the space

_Space = Sequence[tuple[str, Sequence[Any], Any]]
"""The name of each parameter, its values in order, and its default."""

_Point = tuple[int, ...]
"""The position of each parameter's value."""


def _ladder(least: int, most: int, default: int) -> Sequence[int]:
    """Return whole numbers from ``least`` to ``most``, each 1.5 times the previous one, and the
    default.
    """
    values = [least]
    while values[-1] < most:
        values.append(min(most, max(values[-1] + 1, values[-1] * 3 // 2)))
    return sorted({*values, min(max(default, least), most)})


def _space(strategy: str, graph: Graph, hardware: Hardware, budget: int) -> _Space:
    defaults = policy_named(strategy).parameters
    ops, most = len(graph.ops), max(1, len(graph.ops), len(graph.tensors))
    distances = [
        (name, _ladder(0, ops, defaults[name]), defaults[name])
        for name in ("prefetch_distance", "release_distance")
    ]
    if strategy == "distance":
        selects = [
            (name, _ladder(1, most, defaults[name]), defaults[name])
            for name in ("select_distance", "select_num")
        ]
        return [*selects, *distances]
    headrooms = sorted({budget - int(budget * share) for share in _SHARES})
    weights = [
        (name, _WEIGHTS, defaults[name]) for name in defaults if name.startswith("score_weight_")
    ]
    switches = [
        (name, (False, True), defaults[name])
        for name in defaults
        if name.startswith("enable_adaptive_")
    ]
    return [
        ("max_device_memory", (budget,), budget),
        ("peak_modeled_headroom_bytes", headrooms, budget - int(budget * 0.9)),
        *distances,
        *switches,
        *_rates(hardware, defaults),
        *weights,
    ]


def _rates(
    hardware: Hardware, defaults: Mapping[str, Any]
) -> Iterator[tuple[str, Sequence[float], float]]:
    """Yield the bandwidths for adaptive distances: fractions of the machine's, which model other
    traffic on the channel.
    """
    rates = {channel.name: channel.bandwidth_bytes_per_s / 1e9 for channel in hardware.channels}
    below = next(iter(nearest_tiers(hardware)), None)
    for name, channel in (
        ("h2d_bandwidth_gbps", below and below.up.name),
        ("d2h_bandwidth_gbps", below and below.down.name),
    ):
        own = rates[channel] if channel else defaults[name]
        yield name, [float(f"{own * part:.4g}") for part in _PARTS], own


# --------------------------------------------------------------------------------------------------
# the search

_Worth = tuple[int, int, int, int]
"""Smaller is better: 0 if it fits, then makespan, peak and bytes moved; 1 if it does not fit, then
the peak without the budget; 2 without a plan.
"""


class _Evaluator:
    """Plans settings, and replays each distinct plan once."""

    def __init__(self, graph: Graph, hardware: Hardware, budget_bytes: int) -> None:
        self.graph = graph
        self.hardware = hardware
        self.budget_bytes = budget_bytes
        self._replayed: dict[object, tuple[_Worth, Result]] = {}

    def __call__(self, setting: Setting) -> tuple[_Worth, Tried]:
        try:
            plan = policy_named(setting.strategy).plan(
                self.graph, self.hardware, self.budget_bytes, **setting.parameters
            )
        except InfeasibleError:
            return (2, 0, 0, 0), Tried(setting, None, None)
        key = plan.cache_ops, tuple(sorted(plan.initial.items()))
        if key not in self._replayed:
            result = replay(plan, self.hardware, self.budget_bytes)
            self._replayed[key] = self._worth(plan, result), result
        value, result = self._replayed[key]
        return value, Tried(setting, plan, result)

    def _worth(self, plan: Plan, result: Result) -> _Worth:
        device = self.hardware.device_tier
        if result.feasible:
            moved = sum(
                plan.graph.tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != DETACH
            )
            return 0, result.makespan_ns or 0, result.peak_bytes[device], moved
        return 1, replay(plan, self.hardware).peak_bytes[device], 0, 0


def _nearest(values: Sequence[Any], wanted: Any) -> int:
    """Return the position of the value nearest to the wanted one, the first of equals."""
    return min(range(len(values)), key=lambda k: (abs(values[k] - wanted), k))


def _climb(
    strategy: str, space: _Space, evaluate: _Evaluator, rng: random.Random
) -> Iterator[tuple[_Worth, Tried]]:
    """Yield each setting once, with its score: uphill from the defaults, then from random points,
    until these give nothing new.
    """
    known: dict[_Point, _Worth] = {}

    def new(point: _Point) -> Iterator[tuple[_Worth, Tried]]:
        if point not in known:
            parameters = {
                name: values[k] for (name, values, _), k in zip(space, point, strict=True)
            }
            worth, tried = evaluate(Setting(strategy, parameters))
            known[point] = worth
            yield worth, tried

    at: _Point = tuple([_nearest(values, default) for _, values, default in space])
    barren = 0
    while barren < _BARREN:
        count = len(known)
        yield from new(at)
        improved = True
        while improved:
            improved = False
            for knob, (_, values, _) in enumerate(space):
                for step in _STEPS:
                    there = min(max(at[knob] + step, 0), len(values) - 1)
                    point = (*at[:knob], there, *at[knob + 1 :])
                    yield from new(point)
                    if known[point] < known[at]:
                        at, improved = point, True
        barren = barren + 1 if len(known) == count else 0
        at = tuple(rng.randrange(len(values)) for _, values, _ in space)
