"""How near the runtimes come to what people reported: ``make runtimes``.

Two tables by kind of figure: with the shipped runtimes, which have seen all rows, and with each
source left out of the fit in turn. Figures of a runtime that no other source has are then those of
all other runtimes for the same phase, by the median; one that a single row of another source has is
halfway between the two, as what ships is for sources that nobody has seen.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import exp, sqrt
from statistics import mean, median

import numpy as np
from offloaded_rows import table as offloaded_table
from practitioner_rows import CPU_SHARE, Answer, Row, answer, rows

from hosim.analysis.costmodel.spreads import normal_draws
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.io.runtimes import runtime_named
from hosim.validate.logged import RunBeside, fitted_speed

Answers = Mapping[str, tuple[Row, Answer]]


def is_time(row: Row) -> bool:
    return row.kind[0] in "bc"


def exposed_in(row: Row, exposed: float | None) -> float:
    """How many times the time of collectives a step of a row is longer: by its runtime, unless
    ``exposed`` says it for those that have collectives.
    """
    shipped = runtime_named(row.runtime).exposed.value if row.runtime else 0.0
    return shipped if exposed is None or not shipped else exposed


def speeds(found: Iterable[tuple[Row, Answer]], exposed: float | None = None) -> list[float]:
    """What each step sustains of the speed of its kernels, of those that no optimizer on the CPU is
    part of.
    """
    return [
        each.on_device(exposed_in(row, exposed)) / row.true_s
        for row, each in found
        if is_time(row) and not each.after_s
    ]


def fitted_exposed(found: Iterable[tuple[Row, Answer]]) -> float:
    """How many times the time of collectives is exposed in training steps, by all rows together:
    the value with which what they sustain differs least from step to step, by the median.
    """
    steps = [one for one in found if "phase=train" in one[0].workload]

    def differs(exposed: float) -> float:
        logs = np.log(speeds(steps, exposed))
        return float(np.median(np.abs(logs - np.median(logs))))

    return float(min(np.arange(0.0, 5.01, 0.5), key=differs))


def beside(row: Row, each: Answer, exposed: float | None = None) -> RunBeside:
    """A timed row as a run of a log."""
    on_device = each.on_device(exposed_in(row, exposed))
    return RunBeside(row.id, on_device, each.after_s, CPU_SHARE, 0.0, row.true_s, {})


def fitted(
    runtime: Runtime,
    seen: list[tuple[Row, Answer]],
    others: float,
    exposed: float | None = None,
    for_others: bool = True,
) -> Runtime:
    """The runtime with its speed, the share of its optimizer, and its memory, fitted to rows;
    ``others``: the speed where there is none.

    ``for_others``: for sources that are not seen. A single row differs from theirs by its machine
    and settings as much as runtimes differ, so it counts as much as what is said without it: of an
    optimizer on the CPU, the share of the shipped profiles.
    """
    if exposed is not None and runtime.exposed.value:
        runtime = replace(runtime, exposed=replace(runtime.exposed, value=exposed))
    mine = [one for one in seen if one[0].runtime == runtime.name]
    timed = [beside(row, each, exposed) for row, each in mine if is_time(row)]
    kept = runtime.cpu_optimizer.value if any(run.after_s for run in timed) else 0.0
    speed, share = fitted_speed(timed, others, kept)
    offloaded = sum([run.after_s > 0 for run in timed])
    if for_others and len(timed) - offloaded == 1 and offloaded < 2:
        speed = sqrt(speed * others)
    if for_others and offloaded == 1:
        share = sqrt(share * CPU_SHARE)
    held = [(row.truth * 2**30, each.peak_bytes) for row, each in mine if row.kind[0] == "a"]
    reserved, buffers, allocated = runtime.reserved, runtime.buffers, runtime.allocated
    if not held:
        buffers, reserved = RuntimeFigure(0.0), RuntimeFigure(1.1, 0.15)
    elif buffers.value:
        least = max(0.0, median([true - peak for true, peak in held]))
        buffers = replace(buffers, value=least)
    elif allocated.value != 1:
        allocated = replace(allocated, value=median([true / peak for true, peak in held]))
    else:
        reserved = replace(reserved, value=median([true / peak for true, peak in held]))
    return replace(
        runtime, speed=replace(runtime.speed, value=speed), cpu_optimizer=replace(runtime.cpu_optimizer, value=share), reserved=reserved,
        buffers=buffers, allocated=allocated,
    )  # fmt: skip


def other_speed(seen: Iterable[tuple[Row, Answer]], exposed: float, phase: str) -> float:
    """The speed of a runtime of a phase of which no row is known: the median of the others'."""
    alike: defaultdict[str, list[tuple[Row, Answer]]] = defaultdict(list)
    for one in seen:
        if ("phase=train" in one[0].workload) == (phase == "train"):
            alike[one[0].runtime].append(one)
    found = [speeds(listed, exposed) for listed in alike.values()]
    return median([median(listed) for listed in found if listed] or [1.0])


def said(row: Row, each: Answer, runtime: Runtime) -> float:
    if is_time(row):
        return each.seconds(runtime)
    return each.gib(runtime, "allocated" if "tune" in row.id or "vit" in row.id else "reserved")[0]


def left_out(answers: Answers, everything: bool) -> dict[str, float]:
    """What is said of each row, in seconds or GiB, with its source left out of the fit (or, with
    ``everything``, in it).
    """
    found: dict[str, float] = {}
    for name, (row, each) in answers.items():
        if not row.runtime:
            found[name] = each.device_s + each.after_s if is_time(row) else each.peak_bytes / 2**30
            continue
        training = "phase=train" in row.workload
        seen = [
            one
            for one in answers.values()
            if one[0].runtime and (everything or one[0].source != row.source)
        ]
        if not everything:  # the rows that ``row_rate`` is from have one source
            each = replace(each, device_s=each.unlimited_s)
        exposed = fitted_exposed(seen)
        others = other_speed(seen, exposed, "train" if training else "inference")
        base = runtime_named(row.runtime)
        found[name] = said(row, each, fitted(base, seen, others, exposed, not everything))
    return found


def is_inside(row: Row, each: Answer, runtime: Runtime) -> bool:
    """Whether the true figure lies within the 90 % interval."""
    if not is_time(row):
        _, low, high = each.gib(
            runtime, "allocated" if "tune" in row.id or "vit" in row.id else "reserved"
        )
        return low <= row.truth <= high
    low, high = ends(each, each.seconds(runtime), 0.0, runtime.speed.spread)
    return low <= row.true_s <= high


def ends(each: Answer, ours: float, mean: float, spread: float) -> tuple[float, float]:
    """The 90 % interval about an answer of so many seconds, where a step is off by so much beyond
    its kernels.
    """
    beyond = mean + spread * normal_draws("beyond kernels")
    logs = np.array(each.logs or [0.0] * len(beyond))
    low, high = np.quantile(logs + beyond[: len(logs)], [0.05, 0.95], method="hazen")
    return ours * exp(low), ours * exp(high)


def kind_of(row: Row) -> str:
    if row.kind[0] == "a":
        return "memory"
    if row.kind[0] == "b":
        return "training, optimizer on the CPU"
    return (
        "training" if "phase=train" in row.workload else f"inference, {row.runtime or 'no runtime'}"
    )


def table(title: str, listed: list[Row], said: Mapping[str, float]) -> list[str]:
    """Mean and median error by kind, and in how many rows the answer is nearer than the figure by
    hand.
    """
    kinds: defaultdict[str, list[Row]] = defaultdict(list)
    for row in listed:
        kinds[kind_of(row)].append(row)
        kinds["all memory" if row.kind[0] == "a" else "all times"].append(row)
    lines = [f"\n{title}", f"{'kind':40} rows answered   mean  median  nearer than by hand"]
    for kind, some in sorted(kinds.items(), key=lambda item: (item[0].startswith("all"), item[0])):
        errors = {row.id: abs(said[row.id] / row.true_s - 1) for row in some if row.id in said}
        if errors:
            known = [row for row in some if row.id in errors and row.trivial == row.trivial]
            nearer = sum(
                [errors[row.id] <= abs(row.in_s(row.trivial) / row.true_s - 1) for row in known]
            )
            lines.append(
                f"{kind:40} {len(some):4} {len(errors):8} {mean(errors.values()):6.1%} "
                f"{median(errors.values()):7.1%} {nearer:4}"
            )
    return lines


if __name__ == "__main__":
    listed = list(rows())
    kept: dict[tuple[str, ...], Answer | None] = {}
    answers = {}
    for row in listed:
        key = (row.workload, row.hardware, row.policy, row.runtime)
        kept[key] = kept[key] if key in kept else answer(row)
        print(
            row.id,
            row.runtime,
            kept[key] and (kept[key].device_s, kept[key].after_s, kept[key].peak_bytes),
            file=sys.stderr,
            flush=True,
        )
        if (found := kept[key]) is not None:
            answers[row.id] = row, found
    before = {row.id: row.in_s(row.before) for row in listed if row.before}
    every, apart = left_out(answers, True), left_out(answers, False)
    for title, figures in (
        ("at 0775890d", before),
        ("all rows seen", every),
        ("each source left out in turn", apart),
    ):
        print("\n".join(table(title, listed, figures)))
    shipped = {
        name: said(row, each, runtime_named(row.runtime)) if row.runtime else apart[name]
        for name, (row, each) in answers.items()
    }
    print("\n".join(table("the shipped runtimes", listed, shipped)))
    for times in (True, False):
        some = [one for one in answers.values() if one[0].runtime and is_time(one[0]) == times]
        inside = sum([is_inside(row, each, runtime_named(row.runtime)) for row, each in some])
        print(
            f"{'times' if times else 'memory'} inside the 90 % interval of the shipped runtimes: "
            f"{inside} of {len(some)}"
        )
    for name, (row, _) in answers.items():
        off = [figures[name] / row.true_s - 1 for figures in (every, apart, shipped)]
        print(
            f"{name:34} {row.runtime:26} {row.true_s:9.4g} {off[0]:+7.1%} {off[1]:+7.1%} "
            f"{off[2]:+7.1%}"
        )
    every_one = [one for one in answers.values() if one[0].runtime]
    for name in sorted({row.runtime for row, _ in every_one}):
        base = runtime_named(name)
        exposed = fitted_exposed(every_one)
        fit = fitted(base, every_one, other_speed(every_one, exposed, *base.runs), exposed)
        print(name, {key: round(known.value, 3) for key, known in fit.known.items()})
    print("\n".join(offloaded_table()))
