"""``hosim plan`` writes the plan of one policy, or explains it. ``hosim fits`` says whether a step fits
a device without a plan, and what would make it fit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hosim import api, engine, gate, io, report, study
from hosim.base.collector import no_collection
from hosim.cli.commands import command
from hosim.cli.options import console, print_json, questions_of, say_notes
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import note, say
from hosim.errors import InfeasibleError, InputError
from hosim.io.options import OPTIONS, Given, Option, declared
from hosim.report import answers, listed

if TYPE_CHECKING:
    from hosim.cache_plan import Plan
    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.runs import Question


def _with(name: str, *needs: str) -> Option:
    return replace(OPTIONS[name], needs=needs)


_PLAN_OPTIONS = declared(
    "workload hardware policy output budget explain top all plan_against allocator account "
    "devices no_recompute rescale within time "
    "work json",
    replace(
        OPTIONS["output"],
        endings=DATA,
        unless=("explain",),
        help="Where to write the plan: .json, .json.gz or .yaml.",
    ),
    Option("explain", of=bool, default=False, help="Explain why each tensor moves or stays."),
    replace(
        OPTIONS["top"],
        needs=("explain",),
        excludes={"all": ""},
        help="With --explain: every table, with at most N rows each.",
    ),
    Option(
        "all",
        of=bool,
        default=False,
        needs=("explain",),
        help="With --explain: every table, with every row.",
    ),
    _with("allocator", "plan_against"),
    _with("account", "plan_against"),
    _with("json", "explain"),
)


@command(*_PLAN_OPTIONS)
def plan(given: Given) -> None:
    """Write the plan of one policy, or explain it.

    -o writes the plan and prints what it takes, --explain shows why each tensor moves or stays; give one or both. --explain
    prints the 20 most important tensors; --top N and --all print every table, --json prints all
    figures. --within, --time, --work and Ctrl-C end the search; the plan records the work done.
    Exit code 3 if the policy finds no plan, or the plan to explain does not fit.
    """
    output, explain = given.output, given.explain
    (asked,) = questions_of(given)
    machine, budget_bytes = asked.hardware, asked.budget_bytes
    made, interrupted = _made(asked)
    replayed = engine.replay(made, machine, budget_bytes)
    say_notes(replayed.notes)
    _say_whether_to(asked.graph, machine, budget_bytes, replayed, made.policy)
    if output is not None:
        _write(made, machine, budget_bytes, output)
    if not explain:
        _answer(asked, replayed)
    if explain:
        top = 0 if given.all else given.top
        _explain(made, machine, budget_bytes, asked.choice.label, top, given.json)
    if interrupted:
        raise KeyboardInterrupt


def _made(asked: Question) -> tuple[Plan, bool]:
    """The plan, and whether Ctrl-C has ended its search."""
    from hosim.study.asked import searching
    from hosim.study.runs import check, make_plan

    with progress(doing := f"{asked.choice.label}: planning") as tell:
        if not asked.reserved:
            with searching(asked.ends, tell) as (control, begins):
                begins(doing)
                made = make_plan(asked.graph, asked.hardware, asked.choice, asked.budget_bytes)
            check(made, asked.hardware, asked.budget_bytes)
            return made, control.interrupted
        found = study.plan_against_reserved(asked)
    note(study.reserved_line(found))
    return found.plan, False


def _say_whether_to(
    graph: Graph, machine: Hardware, budget_bytes: int, replayed: Result, policy: str
) -> None:
    """A note where offloading gains nothing."""
    from hosim.analysis.remarks import NO_RIVALS, fastest_with_ours, least_in_parts, no_offload

    results = [replayed] if policy in NO_RIVALS else []
    alone = engine.resident_step(graph, machine)
    moved = fastest_with_ours(results), least_in_parts(results)
    answer = no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget_bytes, *moved)
    if answer is not None:
        note(answers.no_offload_sentence(answer, budget_bytes))


def _answer(asked: Question, replayed: Result) -> None:
    """Print whether the plan fits, and how long its step takes."""
    graph, machine = asked.graph, asked.hardware
    alone = engine.resident_step(graph, machine)
    title = answers.comparison_title(graph.name, machine, asked.budget_bytes, alone.peak_bytes)
    console().print(
        answers.answered(
            answers.comparison_answer(
                title, machine, [replace(replayed, ideal_ns=alone.makespan_ns)]
            )
        )
    )


def _write(made: Plan, machine: Hardware, budget_bytes: int, output: Path) -> None:
    """Write the plan, and say what it has."""
    from hosim.cache_plan import counted_cache_ops
    from hosim.plain_text import counted

    said = (
        f"; recomputes {counted(made.recomputes, 'op')}, so it needs a runtime that can do so"
        if made.recomputes
        else ""
    )
    said += (
        f"; {counted(made.moved_ops, 'op')} on another processor than the workload's first choice"
        if made.moved_ops
        else ""
    )
    said += f"; search: {made.search.work:,} of work" if made.search is not None else ""
    made_for = machine, budget_bytes
    io.save_plan(replace(engine.with_slack(made, *made_for), made_for=made_for), output)
    say(f"wrote {output}: {counted_cache_ops(made)}{said}")


def _explain(
    made: Plan, machine: Hardware, budget_bytes: int, label: str, top: int | None, json: bool
) -> None:
    """Print why tensors move: a summary, every table with ``top`` rows, or with all of them where
    it is 0.
    """
    from hosim.planner.hyperoffload.explanations import explain as explained

    if made.processors and not json:
        console().print(report.chosen_processors(made, machine))
    if made.processors and made.graph.elsewhere and not json:
        note("plans are explained only if all ops run on the device")
        return
    with progress(f"{label}: explaining"):
        why = explained(made, machine, budget_bytes)
    if json:
        print_json(report.to_dict(why, top or None))
    elif top is None:
        console().print(report.summary(why))
    else:
        console().print(report.explanation(why, top or None))


_ENTRY = re.compile(r"(?P<module>[\w./-]+\.py|[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")

_FITS_OPTIONS = declared(
    "workload hardware batch sequence optimizer runtime devices json",
    replace(
        OPTIONS["workload"],
        help="A model's name, also that of the Hugging Face hub; any other workload; or "
        "module.py:function, which returns a model, its inputs, and for a training step the loss "
        "and the optimizer.",
    ),
)


@command(*_FITS_OPTIONS)
def fits(given: Given) -> None:
    """Say if a step fits a device, and what would help.

    Shows the peak of device memory by module and kind of tensor, the largest batch and sequence
    that fit, and what checkpointing, smaller states, states in host memory and offload need and
    cost. With --runtime, as torch and nvidia-smi show it, with intervals. Exit code 3 if it does
    not fit.
    """
    asked = dict(vars(given))
    text, hardware, as_json = asked.pop("workload"), asked.pop("hardware"), asked.pop("json")
    with progress(f"reading {text}") as tell, no_collection():
        from hosim.data.seen_peaks import DOES_NOT_FIT
        from hosim.study.searches import memory_fit as fitted

        question = api.fit_question(_entry(text) or text, hardware, asked)
        found = fitted(question, tell)
    say_notes(question.notes)
    if as_json:
        print_json(listed.memory_fit_to_dict(found))
    else:
        console().print(listed.memory_fit(found), crop=False)
    if found.verdict == DOES_NOT_FIT:
        raise typer.Exit(InfeasibleError.exit_code)


def _entry(text: str) -> Graph | None:
    """The graph of a function in a module of the user's, as the gate takes it; ``None`` for
    anything else.
    """
    found = _ENTRY.fullmatch(text)
    if found is None or io.names_model(text):
        return None

    module = Path(found["module"])
    if module.suffix != ".py":
        return gate.graph_of_entry(text, ".")
    if not module.is_file():
        raise InputError("no such file", source=str(module))
    return gate.graph_of_entry(f"{module.stem}:{found['function']}", str(module.parent))
