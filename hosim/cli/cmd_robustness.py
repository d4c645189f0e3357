"""``hosim robustness``: each policy's figures when op and transfer times vary."""

from __future__ import annotations

from hosim.cli.answers import show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import check_drawn, questions_of, say_notes, write_picture
from hosim.cli.progress import progress
from hosim.io.options import Given, declared

_OPTIONS = declared(
    "workload hardware policies budget runs op_sigma transfer_sigma seed order devices "
    "no_recompute rescale detail plot json",
    op_sigma=0.05,
    transfer_sigma=0.1,
)


@command(*_OPTIONS)
def robustness(given: Given) -> None:
    """Replay policies with varied times or orders of ops.

    Each policy plans once, on nominal times. Its plan is then replayed under N random variations of
    op and transfer times, the same ones for all policies; with --order, under N orders of the ops
    as well. --detail prints every percentile. Exit code 3 if nothing fits on nominal times.
    """
    from hosim.engine import resident_step
    from hosim.notes import notes
    from hosim.report.answers import robustness_answer
    from hosim.report.drawn.studies import spread_figure
    from hosim.report.of_studies import robustness, to_dict
    from hosim.study import failures, percentiles
    from hosim.study import robustness as drawn

    check_drawn(given)
    asked = questions_of(given)
    graph, machine, order = asked[0].graph, asked[0].hardware, given.order
    budget_bytes, jitter = asked[0].budget_bytes, asked[0].jitter
    say_notes(notes(graph, machine))
    title = study_title(f"{given.runs} runs with varied times", asked[0], policy=False)
    with progress() as tell:
        frame = drawn(asked, given.runs, tell, order)
        figures, failed = percentiles(frame), failures(frame)
        alone_ns = resident_step(graph, machine).makespan_ns
    report = to_dict(figures, failed, graph, machine, budget_bytes, jitter, alone_ns, order)
    answer = robustness_answer(title, report)
    if given.plot is not None:
        times = {
            str(row["policy"]): [row["makespan_ns"][key] for key in ("nominal", "p50", "p95")]
            for row in report["policies"]
        }
        write_picture(given.plot, spread_figure(times, title))
    data = {"format": report.pop("format"), "answer": answer.verdict, **report}
    fits = not figures["nominal"].isna().all()
    shown = figures, jitter, alone_ns, order, failed
    show_answer(answer, given, lambda: data, lambda: [robustness(*shown)], fits=fits)
