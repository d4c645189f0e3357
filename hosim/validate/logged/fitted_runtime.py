"""The figures of a runtime from runs: the speed of their kernels in a whole step, and their memory
relative to that of the tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import median
from typing import Any

from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.plain_text import counted

TIMES_KNOWN = 10
"""An overhead this many times as large as that of any known runtime is not caused by a runtime."""

UNEXPLAINED, LARGE = 0.9, 0.1
"""A fit explains nothing if it leaves more than this share of the base's error, and more than this
error.
"""

LEAST_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class RunBeside:
    """A run, and a replay of it with kernels as fast as alone.

    ``device_s`` and ``after_s`` are the seconds of the replay on the device and of the optimizer on
    the CPU after it, which reaches ``share`` of its memory's bandwidth; ``true_s`` are the measured
    seconds (0: none). ``peak_gib`` is that of the tensors, ``true_gib`` has the measured
    ``reserved`` and ``allocated`` memory. ``iteration`` is the memory of a server's largest
    iteration relative to the modelled one, from the room for its cache. ``request_s`` are the
    seconds of a request outside of iterations.
    """

    name: str
    device_s: float
    after_s: float
    share: float
    peak_gib: float
    true_s: float
    true_gib: Mapping[str, float]
    iteration: float | None = None
    request_s: float | None = None


@dataclass(frozen=True, slots=True)
class FittedRuntime:
    """A fitted runtime, with warnings. ``left`` has the fitted time over the measured one for each
    run with a measured time. ``moved`` has the values of each fitted figure before and after.
    """

    runtime: Runtime
    left: Mapping[str, float]
    warnings: tuple[str, ...]
    moved: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def fitted_speed(
    runs: Sequence[RunBeside], others: float = 1.0, share: float = 0.0
) -> tuple[float, float]:
    """Return the speed, and the share of bandwidth of an optimizer on the CPU, that fit the runs.

    Without such an optimizer the speed is the median. With it in two or more runs, both are fitted
    robustly to all runs; with it in one, the share follows from the time that the speed leaves.
    ``others`` is the speed if every run has such an optimizer, ``share`` the share if none has.
    """
    alone = [run.device_s / run.true_s for run in runs if run.true_s and not run.after_s]
    offloaded = [run for run in runs if run.true_s and run.after_s]
    speed = median(alone) if alone else others
    if not offloaded:
        return speed, share
    if len(offloaded) == 1:
        (run,) = offloaded
        left = max(run.true_s - run.device_s / speed, 0.1 * run.true_s)
        return speed, min(1.0, run.share * run.after_s / left)
    from scipy.optimize import least_squares  # imported here because the import is slow

    timed = [run for run in runs if run.true_s]

    def off(x: Sequence[float]) -> list[float]:
        return [
            log((run.device_s / exp(x[0]) + run.after_s * exp(x[1])) / run.true_s) for run in timed
        ]

    found = least_squares(off, [0.0, 0.0], loss="soft_l1", f_scale=0.1).x
    return exp(found[0]), min(1.0, offloaded[0].share / exp(found[1]))


_Found = tuple[dict[str, Any], list[str]]
"""Fitted figures by name, and the reasons that some are not used."""


def _speed_of(timed: Sequence[RunBeside], base: Runtime, known: Sequence[Runtime]) -> _Found:
    if not timed:
        return {}, []
    speed, share = fitted_speed(timed, base.speed.value, base.cpu_optimizer.value)
    most = max([max(each.speed.value, 1 / each.speed.value) for each in known], default=1.0)
    if max(speed, 1 / speed) - 1 > TIMES_KNOWN * (most - 1):
        limit, cause = (
            (f"more than {most:.2f}", "a slow link or copies that block")
            if speed < 1
            else (f"less than {1 / most:.2f}", "fewer tokens or a narrower dtype than it says")
        )
        return {}, [
            f"steps take {1 / speed:.3g} times what their kernels do, and no known runtime takes "
            f"{limit}: that is a fault or a setting of the run, such as {cause}, and no runtime; "
            "speed stays that of the base"
        ]
    before, after = (
        [_over(run, *figures) for run in timed]
        for figures in ((base.speed.value, base.cpu_optimizer.value), (speed, share))
    )
    if len(timed) > 1 and _off(after) > max(UNEXPLAINED * _off(before), LARGE):
        return {}, [
            f"one speed explains nothing of these {len(timed)} runs, which are "
            f"{_off(before):.0%} off with the base's and {_off(after):.0%} with the best one: they "
            "differ in something else, such as the machine, the model or what ran beside them; "
            "speed stays that of the base"
        ]
    figure = _figure(speed, after)
    if not any([run.after_s for run in timed]):
        return {"speed": figure}, []
    return {"speed": figure, "cpu_optimizer": replace(figure, value=_rounded(share))}, []


def _off(logs: Sequence[float]) -> float:
    """Return the root mean square of logarithms."""
    return sqrt(sum([each**2 for each in logs]) / len(logs))


def _request_of(runs: Sequence[RunBeside], known: Sequence[Runtime]) -> _Found:
    waits = [run.request_s * 1e9 for run in runs if run.request_s is not None]
    if not waits:
        return {}, []
    value, most = median(waits), max([each.request.value for each in known], default=0.0)
    if value > TIMES_KNOWN * most:
        return {}, [
            f"a request takes {value / 1e6:,.0f} ms beside iterations and its queue, and no known "
            f"runtime takes more than {most / 1e6:.0f} ms: something before the engine takes it; "
            "request stays that of the base"
        ]
    return {"request": _figure(value, [log(each / value) for each in waits])}, []


def _memory_of(key: str, runs: Sequence[RunBeside], known: Sequence[Runtime]) -> _Found:
    ratios = [run.true_gib[key] / run.peak_gib for run in runs if key in run.true_gib]
    if not ratios:
        return {}, []
    most = max([abs(getattr(each, key).value - 1) for each in known], default=0.0)
    value = median(ratios)
    if value < 1 or value - 1 > TIMES_KNOWN * max(most, 0.1):
        return {}, [
            f"{key} memory is {value:.2f} times what the tensors of these workloads take, and "
            f"known runtimes have 1 to {1 + most:.2f}: these are other workloads than those "
            f"that ran, or a fault; {key} stays that of the base"
        ]
    return {key: _figure(value, [log(ratio / value) for ratio in ratios])}, []


def _iteration_of(runs: Sequence[RunBeside], known: Sequence[Runtime]) -> _Found:
    iterations = [run.iteration for run in runs if run.iteration is not None]
    if not iterations:
        return {}, []
    if min(iterations) <= 0:
        return {}, [
            "a server has more blocks than fit beside its weights and what the base says of the "
            "rest: another model, version or share of the memory; iteration stays that of the base"
        ]
    value = median(iterations)
    most = max([each.iteration.value for each in known], default=1.0)
    if value > TIMES_KNOWN * most:
        return {}, [
            f"a server has taken {value:.1f} times what its largest iteration takes, and no "
            f"known runtime takes more than {most:.2f}: another version, or memory that "
            "something else held; iteration stays that of the base"
        ]
    return {"iteration": _figure(value, [log(each / value) for each in iterations])}, []


def fit_runtime(
    base: Runtime, name: str, runs: Sequence[RunBeside], known: Sequence[Runtime]
) -> FittedRuntime:
    """Return the ``base`` with the figures that fit the runs, each with the spread that is left.

    ``known`` are the runtimes whose overheads are known. A figure that is :data:`TIMES_KNOWN` times
    as far from 1 as theirs is not used, and is reported as a fault or a setting of the run.
    """
    timed = [run for run in runs if run.true_s]
    changed: dict[str, Any] = {}
    warnings: list[str] = []
    for found, said in (
        _speed_of(timed, base, known),
        *(_memory_of(key, runs, known) for key in ("reserved", "allocated")),
        _iteration_of(runs, known),
        _request_of(runs, known),
    ):
        changed |= found
        warnings += said
    if "reserved" in changed:  # over what the allocator hands out
        handed = changed.get("allocated", base.allocated).value
        over = max(1.0, changed["reserved"].value / handed)
        changed["reserved"] = replace(changed["reserved"], value=_rounded(over))
        changed["buffers"] = RuntimeFigure(0.0)
    runtime = replace(base, name=name, source="fitted by hosim runtime fit", **changed)
    speed, share = runtime.speed.value, runtime.cpu_optimizer.value
    left = {run.name: exp(_over(run, speed, share)) for run in timed}
    moved = {
        key: (getattr(base, key).value, figure.value)
        for key, figure in changed.items()
        if figure != getattr(base, key)
    }
    return FittedRuntime(runtime, left, tuple(warnings), moved)


def _over(run: RunBeside, speed: float, share: float) -> float:
    """Return the logarithm of the ratio of a run's time with these figures to its measured time."""
    after = run.after_s * (run.share / share if share else 1.0)
    return log((run.device_s / speed + after) / run.true_s)


def _figure(value: float, left: Sequence[float]) -> RuntimeFigure:
    """Return a figure with the standard deviation of its runs' residuals. With one run, a deviation
    is assumed.
    """
    value = _rounded(value)
    if len(left) == 1:
        return RuntimeFigure(value, 0.2, "one run of hosim runtime fit", one_row=True)
    spread = sqrt(sum([each**2 for each in left]) / (len(left) - 1))
    source = f"{counted(len(left), 'run')} of hosim runtime fit"
    return RuntimeFigure(value, _rounded(max(LEAST_SPREAD, spread)), source)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
