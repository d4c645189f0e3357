"""``hosim compare-policies``: one row per policy, or per machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from hosim import analysis, engine, io, report, study
from hosim.analysis import remarks
from hosim.cli.answers import begin_answer, following, print_answer, rows_as_they_end, show_answer
from hosim.cli.commands import command, is_plain
from hosim.cli.options import (
    check_drawn,
    console,
    hardware_of,
    print_json,
    questions_of,
    say_notes,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.io.options import OPTIONS, Given, Option, Options, declared, refuse_others
from hosim.report import answers, of_replays, of_studies, printing
from hosim.study import runs, searches

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hosim.cache_plan import Plan
    from hosim.data.draws import Regret
    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.result import Result


# -- several machines ------------------------------------------------------------------------------


FITTING = (
    "workload hardware policies budget runtime devices no_recompute rescale enough price detail "
    "all json"
)
"""The options that several machines can be compared with."""


def compare_on_machines(options: Options, given: Given) -> None:
    """Print one table over machines. ``options`` are those of the command."""
    names = [name.strip() for name in given.hardware.split(",") if name.strip()]
    if not names:
        raise InputError(
            f"expected machines separated by commas, such as h100,a100; got {given.hardware!r}",
            source="hardware",
        )
    why = "works on one machine: give a single --hardware, or leave it out"
    refuse_others(options, vars(given), FITTING, why, "compare-policies")
    given.policies = given.policies or "hyperoffload"
    asked = questions_of(given, list(dict.fromkeys(names)))
    if given.price is not None:
        prices = {hardware_of(name).name: p for name, p in searches.prices_of(given.price).items()}
        if unknown := set(prices) - {one.hardware.name for one in asked}:
            raise InputError(
                f"{', '.join(sorted(unknown))} is not among the machines that are compared",
                source="--price",
            )
        asked = [
            replace(one, profile=searches.priced(one.profile, prices.get(one.hardware.name)))
            for one in asked
        ]
    with progress() as tell:
        found = study.compare_machines(asked, tell, enough=given.enough)
    say_notes(found.notes)
    rows, profiles = found.rows, {one.hardware.name: one.hardware for one in asked}
    pairs = found.paired
    answer = answers.machines_answer(rows, profiles, str(found))
    paired = [each.row for each in pairs]
    data = {
        "format": "hosim.machines/1",
        "answer": answer.verdict,
        "rows": rows,
        **({"paired": paired, "ranks": found.ranks} if paired else {}),
    }

    def tables() -> Iterator[RenderableType]:
        yield of_studies.machine_comparison(rows, profiles, searches.NEAR, str(found))
        if pairs:
            yield of_replays.in_draws(
                [line.result for line in found.lines], found.names, found.ranks
            )

    failed = any(line.result.failed for line in found.lines)
    fits = failed or any(line.result.feasible for line in found.lines)
    show_answer(answer, given, lambda: data, tables, fits=fits)
    if failed:
        raise typer.Exit(HosimError.exit_code)


# -- the command -----------------------------------------------------------------------------------


_OPTIONS = declared(
    "workload hardware policies budget runtime routing steps execution_trace allocator account "
    "plan_against devices no_recompute "
    "rescale within time work regret op_sigma transfer_sigma seed detail all enough price plot html json",
    replace(
        OPTIONS["hardware"],
        metavar="HW[,HW...]",
        help=OPTIONS["hardware"].help + " Or several, which are compared.",
    ),
    Option(
        "enough",
        of=bool,
        default=False,
        help="With several machines: find for each the smallest budget with which a step takes at "
        "most 5 % longer than with everything resident.",
    ),
    Option(
        "price",
        metavar="HW=P,...",
        help="With several machines: the price of a device of each per hour, as in h100=2.5,l40s=0.9. "
        "Adds the cost of a million tokens (or of a step).",
    ),
)


_OF_SEVERAL = {
    "enough": "of one it is said without --budget",
    "price": "of one use 'hosim frontier --price'",
}
"""Options of several machines, and what to do about one."""
_PLAIN = ("resident", "static_split", "hyperoffload")
"""The policies of a question that names none and no command: the baseline, a rule that runtimes
have, and the planner.
"""


@command(*_OPTIONS)
def compare_policies(given: Given) -> None:
    """Compare policies: which fit, how fast, and why.

    Plans and replays the workload under each policy, and answers in a sentence and the five fastest
    policies; --all prints every row, --detail every figure. Without --budget it also says how much
    memory is enough. With several machines, as in -H h100,a100, it compares these instead. Ctrl-C
    prints the results so far. Exit code 3 if none fits, 2 if a policy of yours fails.
    """
    if "," in given.hardware and not os.path.exists(given.hardware):
        compare_on_machines(_OPTIONS, given)
        return
    for name, what in _OF_SEVERAL.items():
        if getattr(given, name):
            raise InputError(
                f"--{name} compares machines: name several, as in -H h100,a100; {what}",
                source="compare-policies",
            )
    check_drawn(given)
    asked = questions_of(given)
    if is_plain() and given.policies is None:
        asked = [one for one in asked if one.choice.label in _PLAIN]
    compared = _compared(asked, given)
    answer = _answer(asked, compared, given)
    results, machine = compared.results, asked[0].hardware
    if given.plot is not None:
        from hosim.report.drawn.studies import comparison_figure

        write_picture(given.plot, comparison_figure(results, machine.device_tier))
    if given.html is not None:
        shown = list(_tables(asked, compared))
        graph, recorded = asked[0].graph, compared.recorded
        write_page(
            given.html, report.comparison_page(answer, graph, machine, results, recorded, shown)
        )
    if given.json:
        from dataclasses import asdict

        rows = map(asdict, compared.predictions), compared.advice, map(asdict, compared.regrets)
        said = {"answer": answer.verdict, **io.comparison_to_dict(results, *rows)}
        print_json({"format": said.pop("format"), **said})
    else:
        print_answer(answer, given, lambda: _tables(asked, compared), title=False)
        if compared.regrets and not given.detail:
            console().print(of_replays.regrets(compared.regrets))
    if compared.interrupted:
        raise KeyboardInterrupt
    if any(result.failed for result in results):
        raise typer.Exit(HosimError.exit_code)
    if not any(result.feasible for result in results):
        raise typer.Exit(InfeasibleError.exit_code)


@dataclass(frozen=True)
class _Compared:
    """The results of policies in the order asked, plans to draw, mispredictions, what plans
    lose in draws if that was asked, and why not to offload, if so.
    """

    results: Sequence[Result]
    recorded: Sequence[tuple[Plan, Result]]
    predictions: Sequence[study.Mispredictions]
    regrets: Sequence[Regret]
    advice: remarks.NoOffload | None
    interrupted: bool


def _compared(asked: Sequence[runs.Question], given: Given) -> _Compared:
    """Plan and replay, with the question on stdout at once and rows on stderr as they end."""
    graph, machine, budget = asked[0].graph, asked[0].hardware, asked[0].budget_bytes
    alone = engine.resident_step(graph, machine)
    begin_answer(answers.comparison_title(graph.name, machine, budget, alone.peak_bytes), given)
    # the first line waits for none of these
    from hosim.study.asked import searching

    predictions: list[study.Mispredictions] = []
    regrets: list[Regret] = []
    recorded: list[tuple[Plan, Result]] = []
    row_ended = rows_as_they_end()

    def keep(question: runs.Question, plan: Plan, result: Result) -> None:
        row_ended(answers.row_line(result))
        if given.html is not None and result.feasible:
            recorded.append((plan, result))
        if study.predicts(plan) and result.feasible:
            begins(f"{result.policy}: replaying with wrong predictions")
            row = study.mispredictions(plan, machine, budget, result.policy)
            predictions.extend([row] if row else [])
        regrets.extend(study.regret(question, plan, result, given.regret, begins))

    with progress() as tell, searching(asked[0].ends, tell) as (control, begins):
        results = study.compare(asked, begins, keep, record=given.html is not None)
    if control.interrupted and len(results) < len(asked):
        there = {result.policy for result in results}
        missing = [one.choice.label for one in asked if one.choice.label not in there]
        note(f"interrupted: no result of {', '.join(missing)}")
    _say_what_is_pinned(machine, results)
    moved = remarks.fastest_with_ours(results), remarks.least_in_parts(results)
    advice = remarks.no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget, *moved)
    return _Compared(results, recorded, predictions, regrets, advice, control.interrupted)


def _answer(asked: Sequence[runs.Question], compared: _Compared, given: Given) -> answers.Answer:
    """The answer, with what to ask next."""
    graph, machine = asked[0].graph, asked[0].hardware
    alone, results = engine.resident_step(graph, machine), compared.results
    title = answers.comparison_title(graph.name, machine, asked[0].budget_bytes, alone.peak_bytes)
    best = min(
        [r for r in results if r.makespan_ns is not None],
        key=lambda r: r.makespan_ns or 0,
        default=None,
    )
    lines = []
    if best is not None and any(best.stall_ns.values()):
        lines += [
            (line, "why it waits")
            for line in following(given, _OPTIONS, "blame", policy=best.policy)
        ]
    if best is not None:
        lines += [(line, "less memory") for line in following(given, _OPTIONS, "frontier")]
    chosen = _chosen(asked, given) if is_plain() else ""
    nothing = "" if best else of_replays.verdict(results, *graph.derived(analysis.largest_op))
    enough = "" if given.budget or given.detail else _enough(asked, compared, alone.peak_bytes)
    answer = answers.comparison_answer(
        title,
        machine,
        results,
        compared.advice,
        enough,
        chosen,
        nothing,
        lines,
        searches.tokens_of(graph),
    )
    unnamed = "" if given.detail else of_replays.without_runtime(graph, results)
    return replace(answer, notes=(*answer.notes, *([unnamed] if unnamed else [])))


def _chosen(asked: Sequence[runs.Question], given: Given) -> str:
    """The choices for a question that names a workload and a machine alone, with the option
    that changes each.
    """
    from hosim.units import human_size

    phase, model = _phase(asked[0].graph), given.workload.partition(":")[0]
    said = [f"phase {phase} ({model}:phase=...)"] if phase else []
    if given.budget is None:
        said.append(f"all {human_size(asked[0].budget_bytes)} (-b)")
    if given.policies is None:
        said.append(f"{', '.join(one.choice.label for one in asked)} (-p)")
    return f"chosen: {'; '.join(said)}"


def _phase(graph: Graph) -> str:
    """The phase that a builder has made, also where its name does not say it."""
    from hosim.io.models import FAMILIES, PRESETS, Run

    recipe = graph.meta.get("builder")
    if not isinstance(recipe, Mapping):
        return ""
    named = PRESETS.get(str(recipe.get("model")))
    usual = FAMILIES[type(named)].defaults.get("phase", Run().phase) if named else ""
    return str(recipe.get("phase", usual))


def _enough(asked: Sequence[runs.Question], compared: _Compared, resident_bytes: int) -> str:
    """The memory that is enough, by the planner if it is compared and everything fits."""
    from hosim.units import human_size

    results = {result.policy: result for result in compared.results}
    ours = [one for one in asked if one.choice.label.partition(":")[0] == remarks.OURS]
    fits = compared.advice is not None and compared.advice.reason == "fits"
    if not fits or not ours or compared.interrupted or ours[0].choice.label not in results:
        return ""
    with progress() as tell:
        found = searches.enough_memory(
            ours[0],
            results[ours[0].choice.label],
            lambda budget: tell(f"{ours[0].choice.label} within {human_size(budget)}"),
        )
    if found is None or found.budget_bytes >= resident_bytes:
        return ""
    least, slope = found.least_bytes, found.ns_per_byte
    below = None if least is None or slope is None else (least, slope)
    return answers.cheapest_sentence(found.budget_bytes, found.slowdown, below)


def _tables(asked: Sequence[runs.Question], compared: _Compared) -> Iterator[RenderableType]:
    """Every table of the comparison."""
    graph, machine, results = asked[0].graph, asked[0].hardware, compared.results
    if compared.advice is not None:
        said = answers.no_offload_sentence(compared.advice, asked[0].budget_bytes)
        yield printing.paragraph(said, style="bold", space=True)
    yield of_replays.comparison(
        graph, machine, engine.resident_step(graph, machine).breakdown, results
    )
    if machine.devices > 1:
        yield of_replays.devices(results, machine)
    if compared.predictions:
        yield of_studies.predictions(compared.predictions)
    if compared.regrets:
        yield of_replays.regrets(compared.regrets)


def _say_what_is_pinned(machine: Hardware, results: Sequence[Result]) -> None:
    """A note for each host memory whose copies in some result are timed as pinned, for want of a
    rate for others.
    """
    from hosim.analysis.costmodel.transfers import taken_as_pinned

    moved = {
        name for result in results for name, figures in result.channels.items() if figures.bytes
    }
    for tier in machine.tiers:
        if line := taken_as_pinned(machine, tier, moved):
            note(f"pinned: {line}")
