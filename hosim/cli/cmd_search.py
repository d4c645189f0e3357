"""The commands that search over many replays: ``hosim sweep``, ``frontier``, ``fit`` and ``atlas``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim import api, report, study
from hosim.cli.answers import show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    console,
    hardware_of,
    print_json,
    question_of,
    say_notes,
    write_page,
    write_picture,
)
from hosim.cli.progress import bar, progress
from hosim.cli.terminal import say, warn
from hosim.errors import InputError
from hosim.io.options import OPTIONS, Given, Option, declared
from hosim.report import answers, of_studies
from hosim.study import asked, runs, searches

_SWEEP = declared(
    "workload hardware vary points policy budget output jobs scheduler devices no_recompute "
    "rescale detail all plot json",
    replace(
        OPTIONS["vary"],
        unless=("points",),
        help="A field to vary; may be repeated. channels.h2d.bandwidth=25..200GB/s:8 (a range and "
        "a count), policy.k=1,2,4, "
        "workload.sequence=4096,8192, budget=50..100%:6; a+b=... sets both.",
    ),
    Option(
        "points",
        of=Path,
        excludes={"vary": ""},
        metavar="FILE",
        help="Instead of --vary: a CSV file with a column for each field and a row for each point.",
    ),
)


@command(*_SWEEP)
def sweep(given: Given) -> None:
    """Plan and replay once for each combination of values.

    A field is a parameter of the workload's spec or of the policy, a path in the hardware profile,
    or the budget; several fields make a grid. It draws the makespan over one field, or prints the
    fastest points; --detail prints every one. If a point fails, its row has the error. Exit code
    3 if none fits.
    """
    from hosim.plain_text import counted

    vary, points, output, scheduler = given.vary, given.points, given.output, given.scheduler
    listed = asked.read_vary(vary) if vary else asked.read_points(str(points))
    check_drawn(given)
    question = question_of(given)
    title = study_title("sweep", question)
    runner = runs.cluster(scheduler) if scheduler else runs.pool(given.jobs)
    say_notes(list(study.capped(question, listed)))
    there = 0, len(listed)
    try:
        with bar() as tell:

            def progress(done: int, total: int, failed: int) -> None:
                nonlocal there
                there = done, total
                tell(done, total, failed)

            found = study.sweep(question, listed, output, runner, progress)
    except KeyboardInterrupt:
        if output is not None:
            warn(
                f"{output} has {there[0]:,} of {there[1]:,} points: run the same command to "
                "continue"
            )
        raise
    if all(row["budget_bytes"] is None for row in found.rows):
        raise InputError(
            f"every point failed; the first one with: {found.rows[0]['error']}", source="sweep"
        )
    if output is not None:
        say(
            f"wrote {output}: {counted(len(found.rows), 'row')}, {found.computed:,} of them "
            "computed now"
        )
    say_notes(study.notes_on_rows(question, found.given, found.rows))
    rows, fields, hardware = found.rows, list(listed[0]), question.hardware
    answer = answers.sweep_answer(title, rows, fields, hardware)
    if given.plot is not None:
        _draw(given.plot, rows, fields, title)
    data = {"format": "hosim.sweep/1", "answer": answer.verdict, "rows": list(rows)}
    fits = any(row["feasible"] for row in rows)
    show_answer(
        answer, given, lambda: data, lambda: [of_studies.sweep(rows, fields, hardware)], fits=fits
    )


def _draw(path: Path, rows: Sequence[Mapping[str, Any]], fields: Sequence[str], title: str) -> None:
    """Write the picture of a sweep over one or two fields."""
    from pandas import DataFrame

    from hosim.report.drawn.studies import sweep_figure

    table = DataFrame(rows)
    columns = api.several_values(table, of_studies.varied_columns(rows, fields))
    write_picture(path, sweep_figure(table, columns, title))


@command(
    *declared(
        "workload hardware policy budget points refine devices no_recompute rescale price "
        "detail plot json"
    )
)
def frontier(given: Given) -> None:
    """Trade peak memory against makespan.

    The curve goes from the smallest budget for which the policy finds a plan to the budget given;
    --detail prints every budget tried.
    Exit code 3 if it finds none.
    """
    check_drawn(given)
    question = question_of(given)
    question = replace(question, profile=searches.priced(question.profile, given.price))
    title = study_title("makespan by peak memory", question)
    with progress() as tell:
        found = searches.frontier(question, given.points, given.refine, tell, bounds=given.json)
    rows, hardware = searches.frontier_rows(found), question.hardware
    answer = answers.frontier_answer(title, rows, hardware, f"{found}.")
    if given.plot is not None:
        write_picture(given.plot, api.figure_of(found))
    data = {
        "format": "hosim.frontier/1",
        "answer": answer.verdict,
        "policy": question.choice.label,
        "smallest_bytes": found.smallest_bytes,
        "too_small_bytes": found.too_small_bytes,
        "sure_bytes": found.sure_bytes,
        "contradictions": list(found.contradictions),
        "rows": rows,
    }
    fits = found.smallest_bytes is not None
    said = str(found)
    show_answer(
        answer, given, lambda: data, lambda: [of_studies.frontier(rows, hardware, said)], fits=fits
    )


@command(
    *declared(
        "workload hardware largest smallest slowdown policy budget runtime devices no_recompute "
        "rescale detail plot json"
    )
)
def fit(given: Given) -> None:
    """Find the largest or the smallest value that still fits.

    It bisects over replays, and draws the values probed on both sides of the answer; --detail says
    why each one is outside the limits. It does not assume monotonicity: it reports any probe that
    contradicts the rest. Exit code 3 if no value is within the limits.
    """
    wanted, text = searches.sought(given.largest, given.smallest)
    axis = asked.parse_axis(text, searches.STEPS)
    check_drawn(given)
    question = question_of(given)
    title = study_title(f"{wanted} {' + '.join(axis.fields)}", question)
    with progress() as tell:
        found = searches.fit(question, wanted, axis, given.slowdown, tell, bounds=given.json)
    rows, fits = searches.fit_rows(found), found.answer is not None
    answer = answers.fit_answer(title, rows, f"{found}.", fits)
    if given.plot is not None:
        write_picture(given.plot, api.figure_of(found))
    data = {
        "format": "hosim.fit/1",
        "answer": answer.verdict,
        "policy": question.choice.label,
        "wanted": found.wanted,
        "fields": list(axis.fields),
        "slowdown": given.slowdown,
        "value": found.value,
        "exact": found.exact,
        **({} if found.interval is None else {"interval": found.interval}),
        "beyond": found.beyond.value if found.beyond else None,
        "contradictions": list(found.contradictions),
        "notes": list(found.notes),
        "rows": rows,
    }
    show_answer(
        answer, given, lambda: data, lambda: [of_studies.fit(rows, str(found), fits)], fits=fits
    )


_MODELS = (
    "llama-3.2-3b,llama-3.1-8b,llama-3.1-8b:weights=int4,qwen3-14b,qwen3-32b:weights=int4,"
    "mixtral-8x7b:weights=int4:merged=true,qwen3-30b-a3b:weights=int4:merged=true:routing=null,"
    "llama-3.3-70b:weights=int4"
)
_CARDS = "rtx-3090,rtx-4090,rtx-5090,l40s,a100,h100,h200,mi300x"

_ATLAS = declared(
    "models hardware contexts html json",
    Option(
        "models",
        argument=True,
        metavar="MODEL,...",
        help="Models, separated by commas, with parameters as in llama-3.1-8b:weights=int4.  "
        "[default: eight of 3 to 70 billion parameters]",
    ),
    replace(
        OPTIONS["hardware"],
        default=_CARDS,
        metavar="HW,...",
        help="The cards: paths or shipped names, separated by commas.",
    ),
    Option(
        "contexts",
        default="4096,32768,131072",
        metavar="N,...",
        help="Lengths of context, in tokens.",
    ),
    replace(OPTIONS["html"], help="Write the page: one file with a filter."),
)


@command(*_ATLAS)
def atlas(given: Given) -> None:
    """Show which models run on which cards.

    A row for each, and each length of context: how much of the card's memory a decoded token needs, how long it takes, and what
    it takes with weights or experts in the memory of the host. --html writes one static page.
    """
    from hosim.version import __version__

    models, cards = _listed(given.models or _MODELS, "models"), _listed(given.hardware, "hardware")
    lengths = _listed(given.contexts, "contexts")
    if not all(length.isdecimal() and int(length) for length in lengths):
        raise InputError(
            f"expected whole numbers of tokens, got {given.contexts!r}", source="contexts"
        )
    with progress() as tell:
        contexts = [int(length) for length in lengths]
        rows = [
            one.row for one in study.atlas(models, [hardware_of(c) for c in cards], contexts, tell)
        ]
    if given.html is not None:
        write_page(given.html, report.atlas_page(rows, __version__))
    if given.json:
        print_json({"format": "hosim.atlas/1", "rows": rows})
    else:
        console().print(report.atlas_table(rows))
        if len(rows) > 1:
            say("--html FILE writes all of it, with a filter")


def _listed(text: str, source: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError("expected names separated by commas, got none", source=source)
    return names
