"""The commands of serving: ``hosim serve`` simulates requests over time, ``serve-sweep`` does once for
each combination of values, ``serve-fit`` finds the largest or smallest value that keeps limits, and
``serve-frontier`` compares costs with throughput.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from hosim import serving
from hosim.cli.answers import following, print_answer
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    print_json,
    say_notes,
    write_page,
    write_picture,
)
from hosim.cli.progress import bar, progress
from hosim.cli.terminal import note, say, warn
from hosim.errors import InfeasibleError, InputError
from hosim.io.options import OPTIONS, REQUIRED, Given, Option
from hosim.serving import api, report, requests
from hosim.serving.serve_options import SERVE, of_serving, serving_options
from hosim.study import rows_of_answers

_SERVE_OPTIONS = serving_options(
    "model hardware requests tensor expert set blocks block_tokens token_budget max_sequences "
    "memory_share runtime overhead "
    "iterations instances router kv preemption scheduling_policy prefill_instances "
    "decode_instances kv_link kv_sending "
    "prefill_hardware prefill_tensor weights weights_memory measured fit_first limit within detail plot "
    "trace html json"
)


@command(*_SERVE_OPTIONS)
def serve(given: Given) -> None:
    """Serve requests over time on one engine, as vLLM does.

    One engine with a paged cache: continuous batching, chunked prefill, blocks shared between equal
    prefixes, and preemption. --kv extends the cache to lower tiers, and --weights offloads weights.
    --measured compares the latencies with a real server's. --detail prints every figure.
    """
    from hosim.plain_text import counted

    check_drawn(given)
    limits = None if given.limit is None else serving.latency_limits(given.limit)
    wanted = {} if given.within is None else serving.statistic_limits(given.within)
    parameters = _parameters_of(given)
    options = {one.name: getattr(given, one.name) for one in SERVE if hasattr(given, one.name)}
    listed = requests.asked_requests(given.requests)
    real = (
        None
        if given.measured is None
        else serving.as_served(serving.read_measured_requests(given.measured), listed)
    )
    skipped = given.fit_first or 0
    if real is not None:
        serving.check_measured(listed.requests, real, skipped)

    def run(overhead: int | str) -> serving.Served:
        return api.serve(parameters, given.hardware, listed, **{**options, "overhead": overhead})

    with progress(f"serving {counted(len(listed.requests), 'request')}"):
        overhead = given.overhead if real is None or not skipped else _fitted(run, real, skipped)
        result = run(overhead)
    data = result.summary()
    if real is not None:
        data["measured"] = {"skipped": skipped, **serving.beside_measured(result, real, skipped)}
    if limits is not None:
        data["goodput"] = result.goodput(limits)
    data |= _in_draws(result)
    _tell(given, result, data)
    if lines := serving.beyond(data, wanted):
        warn(f"beyond the limits: {', '.join(lines)}")
        raise typer.Exit(1)


def _parameters_of(given: Given) -> dict[str, Any]:
    """The parameters of the model, with those that options give."""
    from hosim.io.importers import builder_parameters

    of_set = settings_of(given.set)
    parameters = builder_parameters(given.model)
    shared = {name: getattr(given, name) for name in ("tensor", "expert")}
    asked = [
        *((name, value, f"--{name}") for name, value in shared.items() if value > 1),
        *((name, value, "--set") for name, value in of_set.items()),
    ]
    for name, value, source in asked:
        if name in parameters:
            raise InputError(f"{name} is given twice; keep one", source=source)
        parameters[name] = value
    if given.runtime is not None:
        parameters["runtime"] = given.runtime
    return parameters


def _fitted(
    run: Callable[[int], serving.Served], real: serving.MeasuredRequests, first: int
) -> int:
    """The overhead of an iteration that explains the first measured requests."""
    fitted = serving.fitted_overhead_ns(run, real, first)
    if (no_host := serving.overhead_warning(fitted)) is not None:
        warn(no_host)
    return fitted


def _in_draws(result: serving.Served) -> dict[str, Any]:
    """The intervals of figures, as ``draws``, if something is uncertain."""
    if result.again is None:
        return {}
    if len(result.samples) > serving.MANY_ITERATIONS:
        note(
            f"no intervals: more than {serving.MANY_ITERATIONS:,} iterations (Python: "
            "hosim.serve(...).intervals())"
        )
        return {}
    with progress("serving in draws of what is uncertain"):
        return {"draws": result.intervals()}


def _tell(given: Given, result: serving.Served, data: dict[str, Any]) -> None:
    """Write the files that are asked for, and print the answer."""
    growth = report.queue_growth(result)
    table = report.serving(data)
    answer = report.serving_answer(data, growth, _following(given, growth[1]))
    if given.plot is not None:
        write_picture(given.plot, report.serving_figure(result))
    if given.trace is not None:
        from hosim.base.files import write

        write(given.trace, report.serving_trace(result))
        say(f"wrote {given.trace}")
    if given.html is not None:
        write_page(given.html, report.serving_page(answer, result, table))
    if given.json:
        print_json({"format": data.pop("format"), "answer": answer.verdict, **data})
    else:
        print_answer(answer, given, lambda: [table])


def _following(given: Given, arrive: float) -> list[tuple[str, str]]:
    """The question to ask next: the rate that the engine takes, where requests ``arrive`` at
    some.
    """
    limit = given.within or "ttft.p95=2s"
    takes = "model hardware requests"
    rates = f"requests.rate={max(1, round(arrive / 4))}..{max(2, round(2 * arrive))}"
    lines = following(given, _SERVE_OPTIONS, "serve-fit", takes, largest=rates, within=limit)
    return [(line, "the highest rate")] * bool(arrive) if lines and (line := lines[0]) else []


def _study_title(given: Given) -> str:
    """The first words of the answer of a study of serving."""
    return f"{given.model} on {given.hardware}: {given.requests}"


def _options_of(texts: list[str] | None) -> dict[str, object]:
    """The options of :func:`hosim.serve` that ``--set`` gives. Raises :class:`InputError`, also for
    one that is none.
    """
    found = settings_of(texts)
    api.check_options(found)
    return found


def settings_of(texts: list[str] | None) -> dict[str, object]:
    """The options that ``--set`` gives. Raises :class:`InputError` for one without a value, or that
    is given twice.
    """
    from hosim.study.asked import scalar

    found: dict[str, object] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError(
                f"expected OPTION=VALUE, each option once, got {text!r}", source="--set"
            )
        found[name.strip()] = scalar(value.strip())
    return found


_SET = of_serving(
    "set",
    metavar="OPTION=VALUE",
    help="An option of hosim.serve for all points, such as token_budget=1024; may be repeated.",
)
_VARY = replace(
    OPTIONS["vary"],
    help="A field to vary; may be repeated: requests.rate=5..50:10, blocks=1000,2000, "
    "token_budget=1024,2048, model.tensor=1,2, "
    "hardware=h100,h200.",
)
_STUDY = (
    _SET,
    _VARY,
    Option(
        "seeds",
        of=int,
        metavar="N",
        least=1,
        help="Serve each point with N seeds of drawn requests.",
    ),
)
"""The options of studies of serving."""


@command(
    *serving_options(
        "model hardware requests vary seeds limit set output jobs scheduler detail json",
        *_STUDY,
        replace(_VARY, unless=("seeds",)),
    )
)
def serve_sweep(given: Given) -> None:
    """Serve once for each combination of values.

    Fields are parameters of the requests (of a file its rate), of the model, the machine, and
    options of hosim.serve. With --seeds each row is the median of several draws, with their 5th and
    95th percentiles below it (--detail).
    """
    from hosim.study.asked import read_vary

    vary, seeds = given.vary, given.seeds
    points = read_vary(vary) if vary else [{"requests.seed": seed} for seed in range(seeds or 1)]
    with bar() as tell:
        frame = api.serve_sweep(
            given.model,
            given.hardware,
            given.requests,
            vary=points,
            limit=given.limit,
            seeds=seeds if vary else None,
            output=given.output,
            jobs=given.jobs,
            scheduler=given.scheduler,
            progress=tell,
            **_options_of(given.set),
        )
    rows = rows_of_answers.records(frame)
    if given.output is not None:
        say(f"wrote {given.output}: {len(rows):,} rows")
    varied = list(
        dict.fromkeys(
            [
                *rows_of_answers.varied_columns(points).values(),
                *(["requests.seed"] if seeds else []),
            ]
        )
    )
    say_notes(frame.attrs["notes"])
    if given.json:
        drawn = (
            {
                "percentiles": api.seed_percentiles(
                    rows, [name for name in varied if name != "requests.seed"], api.FIGURES
                )
            }
            if seeds
            else {}
        )
        print_json({"format": "hosim.serving-sweep/1", "rows": rows, **drawn})
    else:
        answer = report.serving_sweep_answer(_study_title(given), rows, varied)
        print_answer(answer, given, lambda: [report.serving_sweep(rows, varied)])


_FIT_OPTIONS = serving_options(
    "model hardware requests within largest smallest set detail json",
    _SET,
    of_serving(
        "within",
        default=REQUIRED,
        help="Limits of statistics of latencies: ttft.p95=2s,tpot.mean=50ms.",
    ),
    of_serving("largest", help="Find the largest value: requests.rate=1..50."),
    of_serving("smallest", help="Find the smallest value: blocks=500..20000."),
)


@command(*_FIT_OPTIONS)
def serve_fit(given: Given) -> None:
    """Find the highest rate that keeps latencies in limits.

    Or the smallest cache, or another value. It bisects over runs, tries further values on both
    sides, and reports any that contradicts the rest. Exit code 3 if no value keeps the limits.
    """
    with progress("serving"):
        found = api.serve_fit(
            given.model,
            given.hardware,
            given.requests,
            largest=given.largest,
            smallest=given.smallest,
            within=given.within,
            **_options_of(given.set),
        )
    say_notes(found.notes)
    if given.json:
        head = {
            "format": "hosim.serving-fit/1",
            "wanted": found.wanted,
            "fields": list(found.axis.fields),
            "within_ns": found.limits_ns,
        }
        answer = {"value": found.value, "beyond": found.beyond.value if found.beyond else None}
        print_json(
            {
                **head,
                **answer,
                **({} if found.interval is None else {"interval": found.interval}),
                "contradictions": list(found.contradictions),
                "rows": found.rows,
            }
        )
    else:
        told = found.rows, list(found.limits_ns), str(found), found.answer is not None
        short = report.serving_fit_answer(_study_title(given), *told)
        print_answer(short, given, lambda: [report.serving_fit(*told)])
    if found.answer is None:
        raise typer.Exit(InfeasibleError.exit_code)


_FRONTIER_OPTIONS = serving_options(
    "model hardware requests vary of against limit seeds set output jobs scheduler detail json",
    *_STUDY,
    Option(
        "of",
        default="throughput",
        metavar="FIGURE",
        help="What is wanted: throughput, or goodput (with --limit).",
    ),
    Option(
        "against",
        default="cache",
        metavar="FIGURE",
        help="What it costs: cache (bytes in all tiers) or devices.",
    ),
)


@command(*_FRONTIER_OPTIONS)
def serve_frontier(given: Given) -> None:
    """Trade cache or devices against throughput.

    It serves once for each combination of values, like serve-sweep, and marks the points on the
    Pareto frontier.
    """
    from hosim.study.asked import read_vary

    vary, of, against = given.vary, given.of, given.against
    if not vary:
        raise InputError(
            "nothing to vary: give --vary FIELD=VALUES, such as blocks=1000..8000:5",
            source="serve-frontier",
        )
    with bar() as tell:
        frame = api.serve_frontier(
            given.model,
            given.hardware,
            given.requests,
            vary=vary,
            of=of,
            against=against,
            limit=given.limit,
            seeds=given.seeds,
            output=given.output,
            jobs=given.jobs,
            scheduler=given.scheduler,
            progress=tell,
            **_options_of(given.set),
        )
    rows = rows_of_answers.records(frame)
    if given.output is not None:
        say(f"wrote {given.output}: {len(rows):,} points")
    say_notes(frame.attrs["notes"])
    if given.json:
        print_json(
            {"format": "hosim.serving-frontier/1", "of": of, "against": against, "rows": rows}
        )
    else:
        told = (
            rows,
            list(rows_of_answers.varied_columns(read_vary(vary)).values()),
            api.RATES[of],
            api.COSTS[against],
        )
        answer = report.serving_frontier_answer(_study_title(given), *told)
        print_answer(answer, given, lambda: [report.serving_frontier(*told)])
