"""``hosim serve``: requests over time on one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hosim.cli.answers import following, print_answer
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    print_json,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note, say, warn
from hosim.errors import InputError
from hosim.io.options import Given
from hosim.serving.serve_options import SERVE, serving_options

if TYPE_CHECKING:
    from hosim.serving import Served

_OPTIONS = serving_options(
    "model hardware requests tensor expert set blocks block_tokens token_budget max_sequences "
    "memory_share runtime overhead "
    "iterations instances router kv preemption scheduling_policy prefill_instances "
    "decode_instances kv_link kv_sending "
    "prefill_hardware prefill_tensor weights weights_memory measured fit_first limit within detail plot "
    "trace html json"
)


@command(*_OPTIONS)
def serve(given: Given) -> None:
    """Serve requests over time on one engine, as vLLM does.

    One engine with a paged cache: continuous batching, chunked prefill, blocks shared between equal
    prefixes, and preemption. --kv extends the cache to lower tiers, and --weights offloads weights.
    --measured compares the latencies with a real server's. --detail prints every figure.
    """
    from hosim.io.importers import builder_parameters
    from hosim.plain_text import counted
    from hosim.serving import (
        MANY_ITERATIONS,
        as_served,
        beside_measured,
        beyond,
        check_measured,
        fitted_overhead_ns,
        latency_limits,
        overhead_warning,
        read_measured_requests,
        statistic_limits,
    )
    from hosim.serving.api import serve as served
    from hosim.serving.report import queue_growth, serving, serving_answer
    from hosim.serving.requests import asked_requests

    check_drawn(given)
    fit_first = given.fit_first
    limits = None if given.limit is None else latency_limits(given.limit)
    wanted = {} if given.within is None else statistic_limits(given.within)
    of_model = settings_of(given.set)
    parameters = builder_parameters(given.model)
    for asked in (
        {name: getattr(given, name) for name in ("tensor", "expert") if getattr(given, name) > 1},
        of_model,
    ):
        for name, value in asked.items():
            if name in parameters:
                source = "--set" if asked is of_model else f"--{name}"
                raise InputError(f"{name} is given twice; keep one", source=source)
            parameters[name] = value
    if given.runtime is not None:
        parameters["runtime"] = given.runtime
    options = {one.name: getattr(given, one.name) for one in SERVE if hasattr(given, one.name)}
    listed = asked_requests(given.requests)
    real = (
        None
        if given.measured is None
        else as_served(read_measured_requests(given.measured), listed)
    )
    if real is not None:
        check_measured(listed.requests, real, fit_first or 0)

    def run(overhead: int | str) -> Served:
        return served(parameters, given.hardware, listed, **{**options, "overhead": overhead})

    with progress(f"serving {counted(len(listed.requests), 'request')}"):
        if real is not None and fit_first is not None:
            fitted = fitted_overhead_ns(run, real, fit_first)
            result = run(fitted)
            if (no_host := overhead_warning(fitted)) is not None:
                warn(no_host)
        else:
            result = run(given.overhead)
    data = result.summary()
    if real is not None:
        data["measured"] = {
            "skipped": fit_first or 0,
            **beside_measured(result, real, fit_first or 0),
        }
    if limits is not None:
        data["goodput"] = result.goodput(limits)
    if result.again is not None and len(result.samples) > MANY_ITERATIONS:
        note(
            f"no intervals: more than {MANY_ITERATIONS:,} iterations (Python: "
            "hosim.serve(...).intervals())"
        )
    elif result.again is not None:
        with progress("serving in draws of what is uncertain"):
            data["draws"] = result.intervals()
    growth = queue_growth(result)
    table, answer = serving(data), serving_answer(data, growth, _following(given, growth[1]))
    if given.plot is not None:
        from hosim.serving.report import serving_figure

        write_picture(given.plot, serving_figure(result))
    if given.trace is not None:
        from hosim.base.files import write
        from hosim.serving.report import serving_trace

        write(given.trace, serving_trace(result))
        say(f"wrote {given.trace}")
    if given.html is not None:
        from hosim.serving.report import serving_page

        write_page(given.html, serving_page(answer, result, table))
    if given.json:
        print_json({"format": data.pop("format"), "answer": answer.verdict, **data})
    else:
        print_answer(answer, given, lambda: [table])
    if lines := beyond(data, wanted):
        warn(f"beyond the limits: {', '.join(lines)}")
        raise typer.Exit(1)


def _following(given: Given, arrive: float) -> list[tuple[str, str]]:
    """What to ask next: the rate that the engine takes, where requests ``arrive`` at some."""
    limit = given.within or "ttft.p95=2s"
    takes = "model hardware requests"
    rates = f"requests.rate={max(1, round(arrive / 4))}..{max(2, round(2 * arrive))}"
    lines = following(given, _OPTIONS, "serve-fit", takes, largest=rates, within=limit)
    return [(line, "the highest rate")] * bool(arrive) if lines and (line := lines[0]) else []


def study_title(given: Given) -> str:
    """What the answer of a study of serving begins with."""
    return f"{given.model} on {given.hardware}: {given.requests}"


def options_of(texts: list[str] | None) -> dict[str, object]:
    """The options of :func:`hosim.serve` that ``--set`` gives. Raises :class:`InputError`, also for
    one that is none.
    """
    from hosim.serving.api import check_options

    found = settings_of(texts)
    check_options(found)
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
