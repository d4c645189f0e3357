"""``hosim fit``: the largest or smallest value that still fits."""

from __future__ import annotations

from hosim.cli.answers import show_answer, study_title
from hosim.cli.commands import command
from hosim.cli.options import check_drawn, question_of, write_picture
from hosim.cli.progress import progress
from hosim.io.options import Given, declared


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
    from hosim.api import figure_of
    from hosim.report.answers import fit_answer
    from hosim.report.of_studies import fit
    from hosim.study.asked import parse_axis
    from hosim.study.searches import STEPS, fit_rows, sought
    from hosim.study.searches import fit as fitted

    wanted, text = sought(given.largest, given.smallest)
    axis = parse_axis(text, STEPS)
    check_drawn(given)
    question = question_of(given)
    title = study_title(f"{wanted} {' + '.join(axis.fields)}", question)
    with progress() as tell:
        found = fitted(question, wanted, axis, given.slowdown, tell, bounds=given.json)
    rows, fits = fit_rows(found), found.answer is not None
    answer = fit_answer(title, rows, f"{found}.", fits)
    if given.plot is not None:
        write_picture(given.plot, figure_of(found))
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
    show_answer(answer, given, lambda: data, lambda: [fit(rows, str(found), fits)], fits=fits)
