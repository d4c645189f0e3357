"""Tables of results for a terminal, as rich renderables made for 100 to 120 columns; on a narrower
one their cells fold.

Pure functions turn results into renderables, and the caller chooses the console. Sizes and times
are rounded to three digits, with binary prefixes; the exact integers are in the JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hosim.analysis import largest_op
from hosim.analysis.costmodel import base_of
from hosim.analysis.remarks import OPTIMUM, OURS, beside_next, strongest_rival
from hosim.base.groups import grouped
from hosim.graph import KINDS, Graph
from hosim.hardware import Hardware
from hosim.notes import each_once, notes
from hosim.plain_text import counted, printable
from hosim.report.of_replays.draws_table import in_draws, without_runtime
from hosim.report.printing import (
    NOTHING,
    OpenTable,
    WholeFigures,
    above,
    begins_bold,
    by_makespan,
    known_in,
    lines_of,
    open_table,
    paragraph,
    percent,
    size_or_nothing,
    table_of,
)
from hosim.result import STALL_CAUSES, WORKSPACE, AllocatorState, Result, Spread
from hosim.units import human_size, human_time


def devices(results: Sequence[Result], hardware: Hardware) -> Table:
    """One row per result of several devices: the minimum, the median and the maximum of makespan,
    stall and peak.
    """
    figures = [(result.policy, result.devices) for result in results if result.devices is not None]
    table = open_table(
        "Devices: least, median and most",
        "policy",
        "devices",
        *["makespan"] * 3,
        *["stall"] * 3,
        *[f"peak\n{hardware.device_tier}"] * 3,
    )
    for policy, spread in figures:
        count = (
            str(spread.count)
            if spread.feasible == spread.count
            else f"{spread.feasible} of {spread.count} fit"
        )
        cells = [
            *_three(spread.makespan_ns, human_time),
            *_three(spread.stall_ns, human_time),
            *_three(spread.peak_bytes.get(hardware.device_tier), human_size),
        ]
        table.add_row(policy, count, *cells)
    return table


def _three(spread: Spread | None, human: Callable[[int], str]) -> list[str]:
    if spread is None:
        return [NOTHING] * 3
    return [human(value) if value else NOTHING for value in (spread.min, spread.median, spread.max)]


def comparison(
    graph: Graph, hardware: Hardware, resident: Mapping[str, int], results: Sequence[Result]
) -> RenderableType:
    """Everything ``compare-policies`` shows: the header, the tables, and the verdict.

    ``resident`` is the composition, by tensor kind in bytes, of the peak with everything resident.
    """
    parts: list[RenderableType] = [
        header(graph, hardware, results[0].budget_bytes, resident),
        timing(results, hardware, base_of(graph, hardware)),
    ]
    unnamed = without_runtime(graph, results)
    parts += [
        strongest(results),
        unproved(results),
        in_draws(results),
        paragraph(f"{unnamed}." if unnamed else "", space=True),
        of_plans(results, graph, hardware),
        effort(results),
    ]
    feasible = [result for result in results if result.feasible]
    if feasible:
        parts += [peaks(feasible, hardware), channels(feasible)]
    parts += [allocators(results), failures(results)]
    parts.append(paragraph(verdict(results, *graph.derived(largest_op)), style="bold"))
    return Group(*parts)


def replay(
    graph: Graph, hardware: Hardware, resident: Mapping[str, int], result: Result
) -> RenderableType:
    """Everything ``replay`` shows of one result: as :func:`comparison`, and the streams where there
    are several.
    """
    parts: list[RenderableType] = [
        header(graph, hardware, result.budget_bytes, resident),
        timing([result], hardware, base_of(graph, hardware)),
    ]
    parts += [in_draws([result]), of_plans([result], graph, hardware), effort([result])]
    if result.feasible:
        parts += [peaks([result], hardware, tiers=tuple(result.peak_bytes)), channels([result])]
        if len(result.streams) > 1:
            parts.append(streams(result))
    parts += [allocators([result]), failures([result])]
    return Group(*parts)


def header(
    graph: Graph, hardware: Hardware, budget_bytes: int, resident: Mapping[str, int]
) -> Panel:
    """The question asked: workload, hardware, budget, and what the workload holds when everything
    is resident.
    """
    peak = sum(resident.values())
    grid = OpenTable.grid(padding=(0, 2))
    grid.add_row(
        "workload",
        begins_bold(
            graph.name,
            f": {counted(len(graph.ops), 'op')}, {counted(len(graph.tensors), 'tensor')}",
        ),
    )
    for word, line in notes(graph, hardware):
        grid.add_row(word, lines_of(line))
    grid.add_row(
        "baseline", WholeFigures(f"peak {human_size(peak)}: {printable(composition(resident))}")
    )
    grid.add_row("hardware", begins_bold(hardware.name, f": {tier_line(hardware)}"))
    share = _share_of_peak(budget_bytes, peak)
    grid.add_row(
        "budget", begins_bold(human_size(budget_bytes), f" of {hardware.device_tier}{share}")
    )
    return Panel(grid, expand=False)


def _share_of_peak(budget_bytes: int, peak: int) -> str:
    if budget_bytes > peak > 0:
        return f"; everything resident needs {human_size(peak)}"
    return f", {percent(budget_bytes, peak)} of the resident peak" if peak else ""


def tier_line(hardware: Hardware) -> str:
    """The tiers with their capacities, in one line.

    >>> from hosim.hardware import Compute, Tier
    >>> tier_line(Hardware("toy", (Tier("hbm", 100, 1), Tier("ddr", 2048, 1)), (), Compute({})))
    'hbm 100 B, ddr 2.00 KiB'
    """
    return ", ".join(f"{tier.name} {human_size(tier.capacity_bytes)}" for tier in hardware.tiers)


def composition(by_kind: Mapping[str, int]) -> str:
    """Bytes by tensor kind in one line, in the order of the kinds; ``nothing`` if there are none.

    >>> composition({"activation": 30, "parameter": 40, "buffer": 0})
    'parameter 40 B, activation 30 B'
    """
    return (
        ", ".join(f"{kind} {human_size(by_kind[kind])}" for kind in ordered(by_kind)) or "nothing"
    )


def ordered(kinds: Iterable[str]) -> list[str]:
    """Kinds in the order of :data:`hosim.graph.KINDS`, workspace after them, others last; zero
    bytes are dropped from mappings.
    """
    rank = {kind: i for i, kind in enumerate((*KINDS, WORKSPACE))}
    return sorted(
        [kind for kind in kinds if not isinstance(kinds, Mapping) or kinds[kind]],
        key=lambda kind: (rank.get(kind, len(rank)), kind),
    )


def timing(results: Sequence[Result], hardware: Hardware, base: str = "") -> Table:
    """One row per policy: makespan, distance to the lower bound, stall by cause, drain if there is
    any, and the peak of the device tier.

    Where it was replayed with everything resident, the slowdown against that stands beside the
    bound; ``base`` says which ops of that are not on the device.

    The bound is :func:`least_bound`: plans that edit the graph or need not restore anything have
    lower bounds than others.
    """
    bound = least_bound(results)
    ideal = next((result.ideal_ns for result in results if result.ideal_ns), None)
    compared = [f"lower bound {human_time(bound)}"] if bound else []
    compared += [f"baseline {human_time(ideal)}"] if ideal else []
    rows = [_timed(result, bound, hardware.device_tier) for result in results]
    names = ["policy", "makespan_ns", "gap_to_bound", *(["slowdown"] if ideal else [])]
    names += [f"{cause}_stall_ns" for cause in STALL_CAUSES]
    names += [*known_in(rows, "drain_ns", "recomputes", "moved_ops"), "peak_bytes", "of_budget"]
    titles = {"peak_bytes": f"peak\n{hardware.device_tier}"}
    if base:
        titles["slowdown"] = f"slowdown vs\n{base}"
    return table_of(
        f"Time ({', '.join(compared)})" if compared else "Time",
        names,
        rows,
        titles=titles,
        spare=("of_budget",),
        style=by_makespan(rows, green=len(rows) > 1),
    )


def _timed(result: Result, bound: int | None, tier: str) -> dict[str, Any]:
    """The columns of :func:`timing`; of a result that does not fit only that."""
    if not result.feasible or result.makespan_ns is None:
        return {
            "policy": result.policy,
            "makespan_ns": "failed" if result.failed else "does not fit",
        }
    peak = result.peak_bytes.get(tier, 0)
    return {
        "policy": result.policy,
        "makespan_ns": result.makespan_ns,
        "gap_to_bound": above(result.makespan_ns, bound),
        "slowdown": result.slowdown,
        **{f"{cause}_stall_ns": result.stall_ns.get(cause) or None for cause in STALL_CAUSES},
        "drain_ns": result.drain_ns or None,
        "recomputes": result.plan.get("recomputes") or None,
        "moved_ops": result.plan.get("moved_ops") or None,
        "peak_bytes": peak or None,
        "of_budget": peak / result.budget_bytes if result.budget_bytes else 0.0,
    }


def strongest(results: Sequence[Result]) -> Text:
    """The best alternative and how far hyperoffload is ahead of it, in one line; empty if the
    comparison has only one policy.
    """
    rival = strongest_rival(results)
    if rival is None:
        return paragraph()
    share = percent(abs(rival.ahead), 1)
    how = (
        f"takes {share} {'less' if rival.ahead > 0 else 'more'}" if rival.ahead else "takes as long"
    )
    return paragraph(
        f"Best alternative: {rival.policy}, {human_time(rival.makespan_ns)}; {OURS} {how}.",
        space=True,
    )


def unproved(results: Sequence[Result]) -> Text:
    """A line for each optimum that the solver has not proved; nothing where it has, or was not
    asked.
    """
    unsure = [
        r
        for r in results
        if r.policy.partition(":")[0] == OPTIMUM and (r.lower_bound_ns or 0) < (r.makespan_ns or 0)
    ]
    return paragraph(
        *[
            f"{r.policy} is not proved to be the optimum: there may be plans that take "
            f"{human_time(r.lower_bound_ns)} or more."
            for r in unsure
            if r.lower_bound_ns is not None
        ],
        space=True,
    )


def least_bound(results: Iterable[Result]) -> int | None:
    """The smallest lower bound of the results that fit, which no plan from any of their starts can
    beat; ``None`` if there is none.
    """
    return min(
        (r.lower_bound_ns for r in results if r.feasible and r.lower_bound_ns is not None),
        default=None,
    )


def of_plans(results: Sequence[Result], graph: Graph, hardware: Hardware) -> Text:
    """The notes of results that the header does not show, since they are of their plans: each with
    the policies that have it.
    """
    shown = set(each_once(notes(graph, hardware)))
    having = grouped(
        (line, result.policy) for result in results for line in result.notes if line not in shown
    )
    return paragraph(
        *(f"{enumerated(names)}: {line}." for line, names in having.items()), space=True
    )


def effort(results: Sequence[Result]) -> Text:
    """Return the time that planning and replaying took on this machine, in one line."""
    if len(results) == 1 and not results[0].planning_s:
        return paragraph(
            f"Replay took {human_time(round(results[0].replay_s * 1e9))}.", style="dim", space=True
        )
    spent = [
        " + ".join(human_time(round(s * 1e9)) for s in (r.planning_s, r.replay_s) if s)
        for r in results
    ]
    figures = ", ".join(f"{r.policy} {seconds}" for r, seconds in zip(results, spent, strict=True))
    return paragraph(f"Planning + replay took {figures}.", style="dim", space=True)


def peaks(results: Sequence[Result], hardware: Hardware, tiers: Sequence[str] = ()) -> Table:
    """The composition of the peak by tensor kind: one row per policy and tier (``tiers``; by
    default only the device tier).
    """
    tiers = tiers or (hardware.device_tier,)
    kinds = ordered(
        {
            kind
            for r in results
            for tier in tiers
            for kind, held in r.peak_breakdown.get(tier, {}).items()
            if held
        }
    )
    rows = [
        {
            "policy": result.policy,
            "tier": tier,
            "peak_bytes": result.peak_bytes.get(tier, 0),
            "reached_at_ns": result.peak_at_ns.get(tier, 0),
            **{
                kind: size_or_nothing(result.peak_breakdown.get(tier, {}).get(kind))
                for kind in kinds
            },
        }
        for result in results
        for tier in tiers
    ]
    names = ("policy", "tier", "peak_bytes", "reached_at_ns", *kinds)
    return table_of("Peak by kind of tensor", names, rows, left=2)


def channels(results: Sequence[Result]) -> RenderableType:
    """Return the traffic of each policy over each channel, what part of the time it was busy, and
    how much of that computation covered.

    The mean queue is how many transfers wait for the channel, on average over the makespan.
    """
    rows = [
        {
            "policy": result.policy,
            "channel": name,
            "transfers": channel.transfers,
            "moved_bytes": channel.bytes,
            "utilization": channel.utilization,
            "overlapped": channel.hidden_ns / channel.busy_ns if channel.busy_ns else 0.0,
            "exposed_ns": channel.exposed_ns or None,
            "mean_queue": _mean(channel.queue_ns, result.makespan_ns),
            "contention_ns": channel.contention_ns or None,
        }
        for result in results
        for name, channel in result.channels.items()
        if channel.transfers
    ]
    if not rows:
        return paragraph("Channels: nothing moved.", space=True)
    return table_of("Channels", list(rows[0]), rows, left=2, spare=("contention_ns", "mean_queue"))


def _mean(spent_ns: int, makespan_ns: int | None) -> str:
    """Return the average number of what spends this time."""
    if not spent_ns or not makespan_ns:
        return NOTHING
    mean = spent_ns / makespan_ns
    return f"{mean:.1f}" if mean >= 0.05 else "<0.1"


def allocators(results: Sequence[Result]) -> RenderableType:
    """The largest reservation of each result, and how the allocator stood at the peak and where
    memory ran out; nothing without one.
    """
    figures = [
        (result.policy, result.allocator) for result in results if result.allocator is not None
    ]
    if not figures:
        return paragraph()
    rows = []
    for policy, figure in figures:
        at = {"policy": policy, "order": figure.account, "at": "peak", **_state(figure.at_peak)}
        rows.append({**at, "peak_reserved_bytes": figure.peak_reserved_bytes})
        if figure.out_of_memory is not None:
            at = {"policy": "", "order": "", "at": "out of memory", **_state(figure.out_of_memory)}
            rows.append({**at, "peak_reserved_bytes": ""})
    return table_of(f"Allocator: {figures[0][1].name}", list(rows[0]), rows, left=3)


def _state(state: AllocatorState) -> dict[str, Any]:
    return {
        "allocated_bytes": state.allocated_bytes,
        "reserved_bytes": state.reserved_bytes,
        "fragmentation": percent(
            state.reserved_bytes - state.allocated_bytes, state.reserved_bytes
        ),
        "largest_free_bytes": state.largest_free_bytes,
    }


def streams(result: Result) -> Table:
    """The division of the makespan on every stream of one result."""
    rows = [
        {
            "stream": name,
            "busy_ns": figures.busy_ns or None,
            **{f"{cause}_stall_ns": figures.stall_ns.get(cause) or None for cause in STALL_CAUSES},
            "drain_ns": figures.drain_ns or None,
        }
        for name, figures in result.streams.items()
    ]
    titles = {f"{cause}_stall_ns": f"{cause} stall" for cause in STALL_CAUSES}
    return table_of("Streams", ("stream", "busy_ns", *titles, "drain_ns"), rows, titles=titles)


def failures(results: Sequence[Result]) -> RenderableType:
    """One line for each out-of-memory report, and each error of a policy that failed, with the
    policies that have it.
    """
    lines = [
        f"{enumerated(names)} "
        f"{'failed' if failed else 'does not fit' if len(names) == 1 else 'do not fit'}: "
        f"{error}"
        for (failed, error), names in grouped(
            ((result.failed, result.error), result.policy)
            for result in results
            if not result.feasible
        ).items()
    ]
    return paragraph(*lines, style="red", space=True)


def verdict(results: Sequence[Result], needed: int = 0, builder_chose: bool = False) -> str:
    """The comparison in one sentence: the fastest policy within the budget, and those that do not
    fit.

    ``needed`` is what the op that needs the most bytes needs alone, and ``builder_chose`` whether
    that is a choice of hosim's builder.
    """
    budget = human_size(results[0].budget_bytes)
    fitting = [(r.makespan_ns, r) for r in results if r.feasible and r.makespan_ns is not None]
    if not fitting and all(r.failed for r in results):
        return f"No policy made a plan: {enumerated([r.policy for r in results])} failed."
    if not fitting and needed > results[0].budget_bytes and builder_chose:
        return (
            f"Nothing fits within {budget} as hosim builds this step: the loss, which it computes "
            "of all tokens in one piece, needs "
            f"{human_size(needed)} alone. A runtime that computes it in pieces may fit: hosim "
            "cannot say."
        )
    if not fitting and needed > results[0].budget_bytes:
        return (
            f"Nothing fits within {budget}, whatever the policy: one op alone needs "
            f"{human_size(needed)}."
        )
    if not fitting:
        return (
            f"Nothing fits within {budget}: a larger budget, or a policy that moves more, is "
            "needed."
        )
    best_ns = min(makespan for makespan, _ in fitting)
    fastest = [r for makespan, r in fitting if makespan == best_ns]
    names = enumerated([r.policy for r in fastest])
    sentence = (
        f"{names} {'is' if len(fastest) == 1 else 'are'} fastest within {budget}: "
        f"{human_time(best_ns)}"
    )
    bound = least_bound(results)
    if bound:
        sentence += f", {_distance(best_ns, bound)}"
    slower = [(makespan, r) for makespan, r in fitting if makespan > best_ns]
    if slower:
        times = [
            f"{makespan / best_ns:.2f}x as long" if best_ns else human_time(makespan)
            for makespan, _ in slower
        ]
        sentence += "; " + ", ".join(
            f"{r.policy} takes {took}" for took, (_, r) in zip(times, slower, strict=True)
        )
    too_large = [r.policy for r in results if not r.feasible and not r.failed]
    if too_large:
        sentence += f"; {enumerated(too_large)} {'does' if len(too_large) == 1 else 'do'} not fit"
    failed = [r.policy for r in results if r.failed]
    if failed:
        sentence += f"; {enumerated(failed)} failed"
    return f"{sentence}. {beside_next(results)}".rstrip()


def enumerated(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> enumerated(["a"]), enumerated(["a", "b"]), enumerated(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names)


def _distance(value: int, bound: int) -> str:
    if value == bound:
        return "which is the lower bound"
    return (
        f"{above(value, bound)} the lower bound"
        if value >= 2 * bound
        else f"{percent(value - bound, bound)} above the lower bound"
    )
