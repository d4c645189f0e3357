"""``hosim replay`` replays any plan. ``blame`` says what its ops wait for, ``diff`` how two differ,
and ``robustness`` how long it takes when times vary; ``pipeline`` replays several stages together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hosim import api, engine, io, study
from hosim.base import files
from hosim.base.groups import grouped
from hosim.cli.answers import print_answer, show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    check_trace,
    graph_of,
    hardware_of,
    print_json,
    question_of,
    questions_of,
    say_budget,
    say_notes,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note, say, warn
from hosim.errors import InfeasibleError, InputError
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared
from hosim.report import answers, drawn, of_studies, timelines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hosim.analysis.verifying import Finding
    from hosim.cache_plan import Plan
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.runs import Question


_LISTED = 3
"""The number of places of each broken rule that are listed; the others are counted."""

_REPLAY_OPTIONS = declared(
    "plan workload hardware budget allocator account devices rescale strict op_sigma "
    "transfer_sigma seed detail plot trace memory_viz "
    "certificate html json",
    Option(
        "plan",
        of=Path,
        default=REQUIRED,
        argument=True,
        metavar="PLAN",
        help="A plan file, written by 'hosim plan' or by hand.",
    ),
    Option(
        "strict",
        of=bool,
        default=False,
        help="Refuse a plan that was made for another workload, machine or budget.",
    ),
    Option(
        "memory_viz",
        of=Path,
        endings=(),
        help="Write a snapshot (a pickle) for pytorch.org/memory_viz; its addresses are "
        "synthetic, placed by --allocator.",
    ),
    Option(
        "certificate",
        of=Path,
        endings=(".json",),
        help="Write plan, events and lower bound as a file that hosim/check_certificate.py proves "
        "without hosim.",
    ),
)


@command(*_REPLAY_OPTIONS)
def replay(given: Given) -> None:
    """Replay a plan, whoever made it.

    Warns on stderr about the rules that the plan breaks. --detail prints every table. Exit code 3 if it runs out of memory.
    """
    from hosim.analysis.remarks import changed_line, check_made_for
    from hosim.analysis.verifying import verify
    from hosim.io.certificates import check_certifiable, to_certificate
    from hosim.study.asked import check_pinning
    from hosim.study.runs import replay

    check_drawn(given)
    plan, certificate = given.plan, given.certificate
    written = given.plot, given.trace, given.memory_viz, certificate, given.html
    recorded = any(path is not None for path in written)
    asked = questions_of(given)[0]
    graph, machine, budget_bytes = asked.graph, asked.hardware, asked.budget_bytes
    counting, jitter = asked.counting, None if asked.jitter.is_none else asked.jitter
    loaded = io.load_plan(plan, graph)
    if given.strict:
        check_made_for(loaded, machine, budget_bytes, source=str(plan))
    elif (changed := changed_line(loaded, machine, budget_bytes)) is not None:
        note(f"plan: {changed}")
    io.check_tiers(loaded, machine, source=str(plan))
    findings = verify(loaded, machine, budget_bytes)
    for line in _warnings(findings):
        warn(f"warning: {line}")
    if certificate is not None:
        check_certifiable(loaded, counting.allocator, jitter)
    with progress("replaying"):
        result = replay(
            loaded,
            machine,
            budget_bytes,
            repeats=not findings,
            counting=counting,
            jitter=jitter,
            record=recorded,
        )
        check_pinning(machine, [result])
        result = replace(result, ideal_ns=engine.resident_step(graph, machine).makespan_ns)
    _export(given, loaded, machine, result)
    if certificate is not None and result.feasible:
        files.write(certificate, to_certificate(loaded, machine, result, repeats=not findings))
        say(f"wrote {certificate}")
    elif certificate is not None:
        warn(f"no {certificate}: a plan that does not fit has no certificate")
    if given.html is not None or not given.json:
        _show(given, asked, loaded, result)
    if given.json:
        print_json(io.result_to_dict(result))
    if not result.feasible:
        raise typer.Exit(InfeasibleError.exit_code)


def _export(given: Given, loaded: Plan, machine: Hardware, result: Result) -> None:
    """Write the picture, the trace and the memory history that are asked for."""
    from hosim.report import timelines

    if given.plot is not None:
        write_picture(given.plot, drawn.replay_figure(loaded.graph, machine, result))
    if given.trace is not None:
        files.write(given.trace, timelines.trace(loaded, machine, result))
        say(f"wrote {given.trace}")
    if given.memory_viz is not None:
        files.write_bytes(
            given.memory_viz,
            timelines.to_pickle(timelines.memory_viz(loaded, machine, result, given.allocator)),
        )
        say(f"wrote {given.memory_viz}, with synthetic addresses")


def _show(given: Given, asked: Question, plan: Plan, result: Result) -> None:
    """Write the page, and print the answer, or the tables behind it."""
    from hosim.report import of_replays

    graph, machine = asked.graph, asked.hardware
    alone = engine.resident_step(graph, machine)
    title = answers.comparison_title(graph.name, machine, asked.budget_bytes, alone.peak_bytes)
    answer = answers.comparison_answer(title, machine, [result])
    shown = [of_replays.replay(graph, machine, alone.breakdown, result)]
    if machine.devices > 1:
        shown.append(of_replays.devices([result], machine))
    if given.html is not None:
        from hosim.report import replay_page

        write_page(given.html, replay_page(answer, plan, machine, result, shown))
    if not given.json:
        print_answer(answer, given, lambda: shown)


def _warnings(findings: Sequence[Finding]) -> Iterator[str]:
    """The first places of each broken rule, and how many more there are."""
    for rule, found in grouped((finding.rule, finding) for finding in findings).items():
        yield from map(str, found[:_LISTED])
        if len(found) > _LISTED:
            yield f"{rule}: and {len(found) - _LISTED:,} more like these"


_BLAMED = 20
"""Stalls that --detail shows."""

_BLAME_OPTIONS = declared(
    "workload hardware policy plan budget top more_memory more_bandwidth devices no_recompute "
    "rescale detail json",
    Option(
        "plan",
        of=Path,
        metavar="FILE",
        help="A plan file to replay, instead of one that the policy makes.",
    ),
    replace(
        OPTIONS["top"],
        help="How many stalls to show, the longest first.  [default: 5, with --detail 20]",
    ),
)


@command(*_BLAME_OPTIONS)
def blame(given: Given) -> None:
    """Show what each stall waits for, and what would help.

    Shows the transfer, its channel, the traffic that occupied the channel, and what would have
    prevented the stall; then the time that more of each resource would save, and twice as much, by
    replays of the plan. Without --plan, the policy plans again for other amounts of device memory.
    Exit code 3 if the workload does not fit.
    """
    from dataclasses import asdict

    memory, bandwidth = study.steps_of(given.more_memory, given.more_bandwidth)
    question = question_of(given)
    made = None
    if given.plan is not None:
        made = io.load_plan(given.plan, question.graph)
        io.check_tiers(made, question.hardware, source=str(given.plan))
    with progress() as tell:
        found = study.blame(question, made, memory, bandwidth, tell)
    say_notes(found.result.notes)
    longest = sorted(found.stalls, key=lambda stall: -stall.stall_ns)
    prices = study.lines(found.prices)
    answer = answers.blame_answer(
        study_title("what it waits for", question),
        study.stall_rows(longest[: given.top or answers.ROWS]),
        len(longest),
        str(found),
        prices,
    )

    def data() -> dict[str, Any]:
        result = found.result
        return {
            "format": "hosim.blame/1",
            "workload": result.workload,
            "hardware": result.hardware,
            "policy": found.policy,
            "answer": answer.verdict,
            "budget_bytes": result.budget_bytes,
            "makespan_ns": result.makespan_ns,
            "stalls": study.stall_rows(found.stalls),
            "critical_path": [{"what": what, "ns": ns} for what, ns in found.path_ns.items()],
            "slopes": asdict(found.slopes),
            "prices": study.price_rows(found.prices),
        }

    def tables() -> Iterator[RenderableType]:
        shown = study.stall_rows(longest[: given.top or _BLAMED])
        yield of_studies.blame(
            shown, len(longest), found.by_cause, [*prices, *found.first_order], str(found)
        )

    show_answer(answer, given, data, tables)


_CHANGED = 40
"""Rows of each table that --detail shows."""

_DIFF_OPTIONS = declared(
    "a b workload hardware budget top detail plot json",
    Option(
        "a",
        default=REQUIRED,
        argument=True,
        metavar="A",
        help="A plan file, a result file (--json of 'hosim replay'), or a policy.",
    ),
    Option(
        "b",
        default=REQUIRED,
        argument=True,
        metavar="B",
        help="The other plan file, result file or policy.",
    ),
    Option(
        "workload",
        flags=("--workload", "-w"),
        metavar="WORKLOAD",
        help="The workload that plans and policies are for.",
    ),
    replace(
        OPTIONS["hardware"],
        default=None,
        help="Replay plans on this hardware as well, to compare times op by op; required for "
        "policies.",
    ),
    replace(
        OPTIONS["top"],
        help="Show at most N rows of each table.  [default: 5, with --detail 40]",
    ),
)


@command(*_DIFF_OPTIONS)
def diff(given: Given) -> None:
    """Show how two plans or two results differ.

    Compares figure by figure, tensor by tensor and op by op, and shows only differences: the first figures, or
    with --detail all of these. --plot
    draws both replays on one axis of time.
    """
    from hosim.devices_of_graph import on_devices

    a, b = given.a, given.b
    graph = None if given.workload is None else graph_of(given.workload)
    machine = None if given.hardware is None else hardware_of(given.hardware)
    budget_bytes = None
    if graph is not None and machine is not None:
        machine = on_devices(graph, machine)
        budget_bytes = say_budget(given.budget, graph, machine)
    check_drawn(given)
    with progress(f"{a} and {b}"):
        sides = [study.side_of(text, graph, machine, budget_bytes) for text in (a, b)]
        found = study.diff(*sides)
    if given.plot is not None:
        _draw(given.plot, sides, machine)
    say_notes(found.notes)
    names, others = (found.a, found.b), bool(found.tensors or found.ops)
    answer = answers.diff_answer(
        str(found), found.figures, names, others, given.top or answers.ROWS
    )
    every = list(found.figures), list(found.tensors), list(found.ops)
    data = {
        "format": "hosim.diff/1",
        "answer": answer.verdict,
        "a": found.a,
        "b": found.b,
        **dict(zip(("figures", "tensors", "ops"), every, strict=True)),
    }

    def tables() -> Iterator[RenderableType]:
        yield of_studies.diff(*every, str(found), names, given.top or _CHANGED, found.parts)

    show_answer(answer, given, lambda: data, tables)


def _draw(path: Path, sides: Sequence[study.Side], machine: Hardware | None) -> None:
    """Write the picture of both replays. Raises :class:`InputError` where one has no timeline."""
    shown = [
        drawn.Shown(side.label, side.plan, side.result)
        for side in sides
        if side.plan is not None and side.result is not None and side.result.timeline is not None
    ]
    if machine is None or len(shown) < len(sides):
        raise InputError(
            "--plot draws two plans or policies that are replayed: name a workload and a machine",
            source="diff",
        )
    write_picture(path, drawn.side_by_side_figure(shown, machine))


_ROBUSTNESS_OPTIONS = declared(
    "workload hardware policies budget runs op_sigma transfer_sigma seed order devices "
    "no_recompute rescale detail plot json",
    op_sigma=0.05,
    transfer_sigma=0.1,
)


@command(*_ROBUSTNESS_OPTIONS)
def robustness(given: Given) -> None:
    """Replay policies with varied times or orders of ops.

    Each policy plans once, on nominal times. Its plan is then replayed under N random variations of
    op and transfer times, the same ones for all policies; with --order, under N orders of the ops
    as well. --detail prints every percentile. Exit code 3 if nothing fits on nominal times.
    """
    from hosim.notes import notes
    from hosim.report.drawn.studies import spread_figure

    check_drawn(given)
    asked = questions_of(given)
    graph, machine, order = asked[0].graph, asked[0].hardware, given.order
    budget_bytes, jitter = asked[0].budget_bytes, asked[0].jitter
    say_notes(notes(graph, machine))
    title = study_title(f"{given.runs} runs with varied times", asked[0], policy=False)
    with progress() as tell:
        frame = study.robustness(asked, given.runs, tell, order)
        figures, failed = study.percentiles(frame), study.failures(frame)
        alone_ns = engine.resident_step(graph, machine).makespan_ns
    report = of_studies.to_dict(
        figures, failed, graph, machine, budget_bytes, jitter, alone_ns, order
    )
    answer = answers.robustness_answer(title, report)
    if given.plot is not None:
        times = {
            str(row["policy"]): [row["makespan_ns"][key] for key in ("nominal", "p50", "p95")]
            for row in report["policies"]
        }
        write_picture(given.plot, spread_figure(times, title))
    data = {"format": report.pop("format"), "answer": answer.verdict, **report}
    fits = not figures["nominal"].isna().all()
    shown = figures, jitter, alone_ns, order, failed
    show_answer(answer, given, lambda: data, lambda: [of_studies.robustness(*shown)], fits=fits)


_PIPELINE_OPTIONS = declared(
    "workloads hardware policy budget detail trace json",
    Option(
        "workloads",
        of=list[str],
        default=REQUIRED,
        argument=True,
        metavar="WORKLOAD...",
        help="A model with its pipeline, as in llama-3.1-8b:phase=train:pipeline=4; or a workload "
        "for each stage, with messages.",
    ),
)


@command(*_PIPELINE_OPTIONS)
def pipeline(given: Given) -> None:
    """Replay the stages of a pipeline together.

    Shows how long each stage waits for others. The policy plans each stage alone, without these
    waits. The machine has one device for each stage. --detail prints every figure.
    Exit code 3 if a stage does not fit.
    """
    from hosim.plain_text import counted

    workloads, trace = given.workloads, given.trace
    check_trace(trace)
    with progress(f"{given.policy}: planning and replaying stages"):
        plans = api.plan_stages(workloads, given.hardware, given.policy, given.budget)
        result = api.replay_stages(plans, record=trace is not None)
    if trace is not None:
        files.write(trace, timelines.trace_of_stages(plans, result))
        say(f"wrote {trace}")
    title = f"{', '.join(workloads)} on {result.whole.hardware}: {counted(len(plans), 'stage')}"
    answer = answers.stages_answer(title, result, hardware_of(given.hardware).device_tier)
    data, fits = of_studies.stages_to_dict(result), result.feasible
    show_answer(answer, given, lambda: data, lambda: [of_studies.stages(result, plans)], fits=fits)
