"""The arguments that several commands share, and the functions that read them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hosim.cli.progress import progress
from hosim.cli.targets import PAGE, written
from hosim.cli.terminal import note, notes, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.jitter import Jitter
    from hosim.study.asked import PolicyChoice
    from hosim.study.runs import Counting, Question

WIDTH = 120
"""The width of tables that are not printed to a terminal."""


def _workloads(incomplete: str) -> list[str]:
    from hosim import shipped
    from hosim.models import PRESETS

    return [name for name in (*shipped.workloads(), *PRESETS) if name.startswith(incomplete)]


def hardware_names(incomplete: str) -> list[str]:
    """The shipped profiles and short names that begin so, for completion."""
    from hosim import shipped

    return [name for name in (*shipped.hardware(), *shipped.ALIASES) if name.startswith(incomplete)]


def runtime_names(incomplete: str) -> list[str]:
    """The shipped runtimes that begin so, for completion."""
    from hosim import shipped

    return [name for name in shipped.runtimes() if name.startswith(incomplete)]


def policy_names(incomplete: str) -> list[str]:
    """The policies that begin so, for completion."""
    from hosim import policies

    return [name for name in policies.policy_names() if name.startswith(incomplete)]


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file, a workload spec, anything 'hosim import' reads, a shipped name, or "
        "a model's, as in gpt2:phase=decode.",
        autocompletion=_workloads,
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hardware",
        "-H",
        metavar="HW",
        help="A hardware profile: a path, or a shipped name (see 'hosim hardware list').",
        autocompletion=hardware_names,
    ),
]
RuntimeName = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="The software that runs the workload: a path, or a shipped name (see 'hosim runtime "
        "list').  [default: none]",
        autocompletion=runtime_names,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        "-b",
        metavar="BYTES",
        help="Device memory that may be used: a size such as 40GiB, or a share of the resident "
        "peak such as 75%.  [default: all of it]",
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        "-p",
        metavar="P",
        help="A policy (see 'hosim policies'); parameters as in lookahead:k=4.",
        autocompletion=policy_names,
    ),
]
NoRecompute = Annotated[
    bool,
    typer.Option(
        "--no-recompute",
        help="Plan for a runtime that cannot recompute: tensors are only moved.",
    ),
]
Within = Annotated[
    str | None,
    typer.Option(
        "--within",
        metavar="SHARE",
        help="End the search of hyperoffload at the first plan within this gap to the lower "
        "bound: 1%.",
    ),
]
SearchTime = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help="End the search after this time, such as 2s, with the best plan so far. Ctrl-C ends "
        "it too.",
    ),
]
SearchWork = Annotated[
    int | None,
    typer.Option(
        "--work",
        metavar="N",
        min=1,
        help="End the search after this amount of work; it reproduces a plan that --time ended.",
    ),
]
Rescale = Annotated[
    bool,
    typer.Option(
        "--rescale",
        help="Scale durations that were measured on another machine to this one, by the ratio of "
        "the cost model's times on the two.",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        help="How many devices run the program together.  [default: as many as the workload is "
        "for, or as in the profile]",
    ),
]
OpSigma = Annotated[
    float,
    typer.Option(
        "--op-sigma",
        metavar="S",
        min=0,
        help="Jitter: the relative standard deviation of op times, such as 0.05.",
    ),
]
TransferSigma = Annotated[
    float,
    typer.Option(
        "--transfer-sigma",
        metavar="S",
        min=0,
        help="Jitter: the relative standard deviation of the time during which a transfer's bytes "
        "flow.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        help="Jitter: the random seed; the same seed gives the same times.",
    ),
]
RoutingFile = Annotated[
    Path | None,
    typer.Option(
        "--routing",
        metavar="FILE",
        help="A routing file: which experts each gate chooses in each step. The workload then "
        "consists of these steps, one after the "
        "other.",
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="N|A:B",
        help="Which steps of --routing: one of them, or A up to but not including B.  [default: "
        "all]",
    ),
]
Allocator = Annotated[
    str,
    typer.Option(
        "--allocator",
        metavar="A",
        help="What allocates device memory: ledger (only counts bytes), caching (PyTorch's "
        "caching allocator), caching-expandable (with "
        "expandable segments) or static (offsets planned for the whole replay).",
    ),
]
Account = Annotated[
    str,
    typer.Option(
        "--account",
        metavar="A",
        help="The order in which the allocator's bytes are counted: time (what the device holds "
        "at each instant) or program (what a "
        "host that runs ahead has allocated, as PyTorch counts).",
    ),
]
PlanAgainst = Annotated[
    str,
    typer.Option(
        "--plan-against",
        metavar="WHAT",
        help="What the budget bounds: allocated (the bytes of tensors and workspaces) or reserved "
        "(all that the allocator holds; "
        "caching, if none is named).",
    ),
]
RESERVED = "reserved"

Plot = Annotated[Path | None, written("--plot", says="Write a picture: .png, .svg or .pdf.")]
Trace = Annotated[
    Path | None,
    written(
        "--trace",
        says="Write the timeline for ui.perfetto.dev or chrome://tracing: .json or .json.gz.",
    ),
]
Html = Annotated[
    Path | None,
    written(
        "--html",
        says="Write an HTML report in one file, with pictures and a zoomable timeline.",
        endings=PAGE,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")]


ExecutionTrace = Annotated[
    Path | None,
    typer.Option(
        "--execution-trace",
        metavar="FILE",
        help="For a PyTorch profile: the execution trace of the same run, which says which ops "
        "use what was allocated before.",
    ),
]


def graph_of(
    text: str,
    execution_trace: Path | None = None,
    rescaled_to: Hardware | None = None,
    runtime: str | None = None,
) -> Graph:
    """The graph of a WORKLOAD argument, which is a PyTorch profile if there is an execution trace
    of its run.

    ``rescaled_to`` is the machine to which ``--rescale`` scales its durations, ``runtime`` what
    ``--runtime`` names.
    """
    from hosim.importers.recordings import import_kineto
    from hosim.io import load_named, rescaled

    with progress(f"reading {text}"):
        graph = (
            load_named(text) if execution_trace is None else import_kineto(text, execution_trace)
        )
    if runtime is not None:
        from hosim.io.runtimes import under_runtime

        graph = under_runtime(graph, runtime)
    return graph if rescaled_to is None else rescaled(graph, rescaled_to)


def realised(graph: Graph, routing: Path | None, steps: str | None) -> Graph:
    """The graph of the routing's steps that STEPS selects; without a routing, the graph itself.

    Raises :class:`InputError` for steps without a routing, and for steps that the routing does not
    have.
    """
    from hosim.errors import InputError

    if routing is None:
        if steps is not None:
            raise InputError("--steps requires --routing")
        return graph
    from hosim.data.expert_routing import realise
    from hosim.io import load_routing
    from hosim.study.asked import parse_steps

    recipe = graph.meta.get("builder")
    if (
        isinstance(recipe, Mapping) and recipe.get("routing") is not None
    ):  # what was drawn gives way to the file
        from hosim.models import build

        graph = build(graph.name, {**recipe, "routing": None})
    loaded = load_routing(routing, graph)
    wanted = parse_steps(steps, len(loaded.steps))
    return realise(loaded, wanted if len(wanted) > 1 else wanted[0])


def hardware_of(text: str) -> Hardware:
    """The machine of a HW argument."""
    from hosim.io import load_hardware
    from hosim.shipped import find_hardware

    return load_hardware(find_hardware(text))


def say_notes(graph: Graph, *machines: Hardware) -> None:
    """Print what a reader of the figures has to know, as notes on stderr: of the workload, and of
    its times on each machine.
    """
    from hosim.notes import notes

    for each in notes(graph, *machines):
        note(str(each))


def jitter_of(op_sigma: float, transfer_sigma: float, seed: int) -> Jitter | None:
    """The jitter that ``--op-sigma``, ``--transfer-sigma`` and ``--seed`` ask for; ``None`` if both
    sigmas are 0.
    """
    from hosim.jitter import Jitter

    jitter = Jitter(seed, op_sigma, transfer_sigma)
    return None if jitter.is_none else jitter


def budget_of(text: str | None, graph: Graph, hardware: Hardware) -> int:
    """The bytes of a BUDGET argument, at most what the machine has; a note on stderr says so if
    that is less than asked for.
    """
    from hosim.engine import parse_budget
    from hosim.units import human_size

    wanted, allowed = parse_budget(text, graph, hardware)
    if wanted > allowed:
        note(f"using {human_size(allowed)}, all that the device has")
    return allowed


def choice_of(text: str, no_recompute: bool) -> PolicyChoice:
    """The policy that ``--policy`` names, under ``--no-recompute`` or not."""
    from hosim.study.asked import RECOMPUTE, parse_choice, without

    choice = parse_choice(text)
    return without(choice, RECOMPUTE) if no_recompute else choice


def choices_of(
    text: str | None, no_recompute: bool, routed: bool = False, graph: Graph | None = None
) -> list[PolicyChoice]:
    """The policies that ``--policies`` lists, under ``--no-recompute`` or not; ``routed``: those
    for routed workloads, too.

    Without a list, those that plan for the processors of ``graph``.
    """
    from hosim.study.asked import RECOMPUTE, parse_choices, without

    choices = parse_choices(text, routed, graph)
    return [without(choice, RECOMPUTE) for choice in choices] if no_recompute else choices


def question_of(
    workload: str,
    hardware: str,
    policy: str,
    budget: str | None,
    devices: int | None = None,
    no_recompute: bool = False,
    rescale: bool = False,
    runtime: str | None = None,
) -> Question:
    """The question that a WORKLOAD, a HW, a policy and a BUDGET ask, with notes on stderr that a
    reader of the answer needs.
    """
    from hosim.study.runs import Question

    choice = choice_of(policy, no_recompute)
    machine = hardware_of(hardware)
    asked = Question(
        graph_of(workload, runtime=runtime),
        machine,
        choice,
        budget,
        devices=devices,
        rescale=rescale,
    )
    budget_of(budget, asked.graph, asked.hardware)
    for each in asked.notes:
        note(str(each))
    return asked


def counting_of(allocator: str, account: str, against: str = "allocated") -> Counting:
    """Return what ``--allocator``, ``--account`` and ``--plan-against`` ask for; raises
    :class:`InputError` for an unknown value.

    ``--plan-against reserved`` needs an allocator that reserves bytes: PyTorch's, if none is named.
    """
    from hosim.errors import InputError
    from hosim.result import ACCOUNTS, ALLOCATORS, CACHING, LEDGER
    from hosim.study.runs import Counting

    for name, value, values in (
        ("allocator", allocator, ALLOCATORS),
        ("account", account, ACCOUNTS),
        ("plan-against", against, ("allocated", RESERVED)),
    ):
        if value not in values:
            raise InputError(
                f"unknown {name} {value!r}; expected one of {', '.join(values)}", source=name
            )
    return Counting(CACHING if against == RESERVED and allocator == LEDGER else allocator, account)


def check_trace(path: Path | None) -> None:
    """Raise :class:`InputError` for a trace that is no .json or .json.gz."""
    from hosim.errors import InputError

    if path is not None and not path.name.endswith((".json", ".json.gz")):
        raise InputError("expected a trace whose name ends in .json or .json.gz", source=str(path))


def write_picture(path: Path, figure: Figure) -> None:
    """Write a figure to a file in the format that its name ends in, with a note on stderr."""
    from hosim.files import write_bytes
    from hosim.report.drawn import image, image_kind

    write_bytes(path, image(figure, image_kind(path)))
    say(f"wrote {path}")


def write_page(path: Path, text: str) -> None:
    """Write a page to a file, with a note on stderr."""
    from hosim.files import write_bytes

    write_bytes(path, text.encode())
    say(f"wrote {path}")


def print_json(data: Mapping[str, Any]) -> None:
    """Print JSON on stdout: with ``notes``, those of the answer and those that the command has
    said, where there are some.
    """
    from hosim.io import to_json
    from hosim.notes import each_once

    said = each_once((*data.get("notes", ()), *notes()))
    typer.echo(
        to_json(
            {
                **{key: value for key, value in data.items() if key != "notes"},
                **({"notes": said} if said else {}),
            }
        )
    )


def console() -> Console:
    """The console for tables: stdout, as wide as the terminal, or :data:`WIDTH` if there is
    none.
    """
    from rich.console import Console

    given = os.environ.get("COLUMNS")
    nothing = given is not None and not given.strip(
        "0"
    )  # empty or 0, in which nothing can be shown
    width = None if not nothing and (sys.stdout.isatty() or given) else WIDTH
    return Console(width=width, highlight=False)
