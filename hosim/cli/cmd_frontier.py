"""``hosim frontier``: peak memory against makespan."""

from __future__ import annotations

from dataclasses import replace

from hosim.cli.answers import show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import check_drawn, question_of, write_picture
from hosim.cli.progress import progress
from hosim.io.options import Given, declared


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
    from hosim.api import figure_of
    from hosim.report.answers import frontier_answer
    from hosim.report.of_studies import frontier
    from hosim.study.searches import frontier as traced
    from hosim.study.searches import frontier_rows, priced

    check_drawn(given)
    question = question_of(given)
    question = replace(question, profile=priced(question.profile, given.price))
    title = study_title("makespan by peak memory", question)
    with progress() as tell:
        found = traced(question, given.points, given.refine, tell, bounds=given.json)
    rows, hardware = frontier_rows(found), question.hardware
    answer = frontier_answer(title, rows, hardware, f"{found}.")
    if given.plot is not None:
        write_picture(given.plot, figure_of(found))
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
    show_answer(answer, given, lambda: data, lambda: [frontier(rows, hardware, said)], fits=fits)
