"""The answer of ``hosim compare-policies``: if the workload fits, its cost, and the best policy."""

from collections.abc import Mapping, Sequence
from typing import Any

from hosim.analysis.remarks import (
    NO_RIVALS,
    NoOffload,
    PairedDraws,
    beside_fastest,
    beside_next,
    often,
)
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.report.answers.answer import ROWS, Answer
from hosim.report.drawn import size_unit
from hosim.report.of_replays import enumerated
from hosim.report.printing import cells_of, known_in, multiple, percent, time_or_nothing, titles_of
from hosim.result import Result
from hosim.units import human_percent, human_size, human_time


def no_offload_sentence(answer: NoOffload, budget_bytes: int) -> str:
    """Return the reason not to offload, with its figures."""
    alone = human_time(answer.resident_ns)
    if answer.reason == "fits" or answer.fastest_ns is None:
        held = f"{human_size(answer.resident_bytes)} of the budget of {human_size(budget_bytes)}"
        return f"Do not offload: everything fits. Resident, the step takes {alone} and {held}."
    return (
        "Do not offload: the link is too slow for this step. The fastest plan takes "
        f"{human_time(answer.fastest_ns)}; {answer.devices} devices hold the model and take "
        f"{alone} a step."
    )


_FREE = 1.01
"""Offloading is free if the step takes at most this multiple of the resident one."""


def comparison_title(results_of: str, hardware: Hardware, budget: int, resident: int) -> str:
    """Return the question in a line; ``results_of`` names the workload, sizes are in bytes.

    >>> from hosim.hardware import Compute, Tier
    >>> comparison_title("gpt2", Hardware("toy", (Tier("hbm", 9, 1),), (), Compute({})), 6, 8)
    'gpt2 on toy within 6 B (8 B resident)'
    """
    return (
        f"{results_of} on {hardware.name} within {human_size(budget)} "
        f"({human_size(resident)} resident)"
    )


def comparison_answer(
    title: str,
    hardware: Hardware,
    results: Sequence[Result],
    advice: NoOffload | None = None,
    cheapest: str = "",
    chosen: str = "",
    nothing_fits: str = "",
    next_commands: Sequence[tuple[str, str]] = (),
    tokens: int | None = None,
) -> Answer:
    """Return the answer of a comparison of policies.

    ``advice`` is the reason not to offload, if that is the answer. As texts, ``cheapest`` is the
    memory that costs little time, ``chosen`` the values that hosim chose, and ``nothing_fits`` the
    verdict if no policy fits. ``tokens`` is the number of tokens of a step.
    """
    fitting = sorted(
        [r for r in results if r.feasible and r.makespan_ns is not None],
        key=lambda r: (r.makespan_ns or 0, r.policy.partition(":")[0] in NO_RIVALS),
    )
    misfits = [r.policy for r in results if not r.feasible and not r.failed]
    failed = [r.policy for r in results if r.failed]
    lost = _lost(misfits, "does not fit", "do not fit") + _lost(failed, "failed", "failed")
    if not fitting:
        why = next((r.error for r in results if r.error), None) or ""
        said = f"Does not fit: {why}" if misfits or not failed else f"Failed: {why}"
        return Answer(
            title,
            " ".join([f"{said.rstrip('.')}.", *([nothing_fits] if nothing_fits else [])]),
            good=False,
            next_commands=tuple(next_commands),
            notes=results[0].notes,
        )
    best, shown = fitting[0], fitting[:ROWS]
    pairs = {pair.second: pair for pair in beside_fastest(shown)}
    several = shown[-1].makespan_ns != best.makespan_ns
    verdict = [_sentence(best, advice), cheapest, beside_next(shown) if several else ""]
    return Answer(
        title,
        " ".join([part for part in verdict if part]),
        columns=(
            "policy",
            "time",
            "vs resident",
            "waits",
            hardware.device_tier,
            *(["slower in"] if pairs else []),
        )
        if several
        else (),
        rows=tuple([_row(r, hardware, pairs) for r in fitting]) if several else (),
        rest="; ".join([*_alike(fitting, several), *lost, *_rate(best, tokens)]),
        figures=(
            ("time of a step", human_time(best.makespan_ns or 0)),
            ("of the resident step", multiple(best.slowdown)),
            (f"peak of {hardware.device_tier}", _peak(best, hardware)),
        ),
        chosen=chosen,
        next_commands=tuple(next_commands),
        notes=best.notes,
    )


def _lost(policies: Sequence[str], one: str, several: str) -> list[str]:
    if not policies:
        return []
    return [f"{enumerated(policies)} {one if len(policies) == 1 else several}"]


def _rate(best: Result, tokens: int | None) -> list[str]:
    """Return the tokens per second of the fastest policy."""
    if tokens is None or not best.makespan_ns:
        return []
    rate = f"{best.policy}: {tokens * 10**9 / best.makespan_ns:,.0f} tokens/s"
    return [rate if best.devices is None else f"{rate} of each replica"]


def _alike(fitting: Sequence[Result], several: bool) -> list[str]:
    """Return a line on policies whose rows would be equal."""
    if several or len(fitting) < 2:
        return []
    last = fitting[-1].makespan_ns or 0
    alike = [r for r in fitting if r.makespan_ns == fitting[0].makespan_ns]
    slower = f"; the others at most {human_time(last)}" if len(alike) < len(fitting) else ""
    return [f"{counted(len(alike), 'policy')} take as long{slower}"]


def _row(result: Result, hardware: Hardware, pairs: dict[str, PairedDraws]) -> tuple[str, ...]:
    pair = pairs.get(result.policy)
    return (
        result.policy,
        human_time(result.makespan_ns or 0),
        multiple(result.slowdown),
        time_or_nothing(sum(result.stall_ns.values())),
        _peak(result, hardware),
        *([often(pair.faster_share) if pair else "-"] if pairs else []),
    )


def row_line(result: Result) -> str:
    """Return a result in one line: policy, makespan, slowdown, peaks."""
    if not result.feasible or result.makespan_ns is None:
        return f"{result.policy}: does not fit"
    peaks = ", ".join([f"{t} {human_size(held)}" for t, held in result.peak_bytes.items() if held])
    times = f"{human_time(result.makespan_ns)}, {multiple(result.slowdown)} of resident"
    return f"{result.policy}: {times}, peak {peaks}"


def _peak(result: Result, hardware: Hardware) -> str:
    return human_size(result.peak_bytes.get(hardware.device_tier, 0))


def _sentence(best: Result, advice: NoOffload | None) -> str:
    """Return the sentence on the makespan, its interval, and the moved bytes."""
    interval = ""
    if best.makespan_low_ns is not None and best.makespan_high_ns is not None:
        low, high = human_time(best.makespan_low_ns), human_time(best.makespan_high_ns)
        interval = f"90 % interval {low} to {high}"
    if advice is not None:
        said = [no_offload_sentence(advice, best.budget_bytes)]
        if advice.reason == "fits" and (best.makespan_ns or 0) > advice.resident_ns:
            took = f"{human_time(best.makespan_ns or 0)}, {multiple(best.slowdown)} of that"
            interval = f"{best.policy} takes {', '.join(filter(None, [took, interval]))}"
        said += [f"{interval}." if interval else "", _reserves(best)]
        return " ".join([part for part in said if part])
    resident = f"resident {human_time(best.ideal_ns)}" if best.ideal_ns else ""
    slowdown = best.slowdown
    fits = "Fits at no cost" if slowdown is not None and slowdown <= _FREE else "Fits"
    times = f"{multiple(slowdown)} of " if slowdown is not None and slowdown > _FREE else ""
    said = [f"{fits}: {human_time(best.makespan_ns or 0)} by {best.policy}"]
    said += [f"{times}{resident}"] if resident else []
    said += [interval] if interval else []
    return " ".join(
        [part for part in [f"{', '.join(said)}.", _moves(best), _reserves(best)] if part]
    )


def _reserves(best: Result) -> str:
    """Return the text on the allocator's largest reserved memory, if there is an allocator."""
    if best.allocator is None:
        return ""
    return (
        f"The allocator ({best.allocator.name}) reserves at most "
        f"{human_size(best.allocator.peak_reserved_bytes)}."
    )


def _moves(best: Result) -> str:
    """Return the text on the bytes that move over channels, and the share of that time in which
    ops run.
    """
    moved = sum([channel.bytes for channel in best.channels.values()])
    busy = sum([channel.busy_ns for channel in best.channels.values()])
    hidden = sum([channel.hidden_ns for channel in best.channels.values()])
    again = best.plan.get("recomputes", 0)
    elsewhere = best.plan.get("moved_ops", 0)
    said = [f"{counted(again, 'op')} recomputed."] if again else []
    said += [f"{counted(elsewhere, 'op')} on another processor."] if elsewhere else []
    if not moved:
        return " ".join(said)
    share = "all overlapped" if hidden == busy else f"{percent(hidden, busy)} of it overlapped"
    return " ".join([f"{human_size(moved)} move, {share}.", *said])


def cheapest_sentence(budget: int, slowdown: float, below: tuple[int, float] | None = None) -> str:
    """Return the sentence on memory that costs little time: a budget in bytes and its slowdown.

    ``below`` has a smaller budget, and the nanoseconds that each byte less adds down to it.

    >>> cheapest_sentence(10 << 30, 1.02, (2 << 30, 19e6 / 2**30))
    '10.0 GiB cost 2.0 %; each GiB below that about 19.0 ms, down to 2.00 GiB.'
    """
    costs = human_percent(slowdown - 1) if slowdown > 1 else "nothing"
    said = [f"{human_size(budget)} cost {costs}"]
    if below is not None:
        (least, slope), (size, unit) = below, size_unit(budget)
        said.append(
            f"each {unit} below that about {human_time(round(slope * size))}, "
            f"down to {human_size(least)}"
        )
    return f"{'; '.join(said)}."


def machines_answer(
    rows: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Hardware],
    verdict: str,
) -> Answer:
    """The answer about the fastest machine: ``rows`` are those of :attr:`hosim.study.machines.Machines.rows`,
    ``verdict`` what they say in a sentence.
    """
    fitting = sorted(
        [row for row in rows if row["makespan_ns"] is not None], key=lambda row: row["makespan_ns"]
    )
    several = len({row["policy"] for row in rows}) > 1
    cost = known_in(rows, "cost_per_million_tokens", "cost")[:1]
    listed = [
        {
            **row,
            "memory_bytes": profiles[row["hardware"]].device.capacity_bytes,
            "peak_bytes": row["peak_bytes"] or 0,
            "enough_bytes": row["enough_bytes"] or None,
            **{name: None if row[name] is None else f"{row[name]:.3g}" for name in cost},
        }
        for row in fitting
    ]
    names = ["hardware", *(["policy"] if several else []), "makespan_ns", "slowdown"]
    names += ["memory_bytes", "peak_bytes", *known_in(rows, "enough_bytes"), *cost]
    titles = {
        "hardware": "machine",
        "makespan_ns": "time",
        "slowdown": "vs resident",
        "cost_per_million_tokens": "cost of 1M tokens",
        "cost": "cost of a step",
    }
    return Answer(
        f"{rows[0]['workload']} on {counted(len(profiles), 'machine')}",
        f"{verdict}.",
        good=bool(fitting),
        columns=titles_of(names, titles),
        rows=cells_of(names, listed),
        left=1 + several,
    )
