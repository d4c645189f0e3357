"""The options that several functions, commands or cases share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hosim.data.draws import FEW_DRAWS
from hosim.io.options.option import REQUIRED, Option, Options

RESERVED = "reserved"
"""The value of ``plan_against`` for which the budget bounds all that the allocator holds."""

_SEVERAL = "several searches are made against reserved bytes, and this ends one; leave it out"
_ENDS = {"plan_against": _SEVERAL}


def _allocators() -> Iterable[str]:
    from hosim.result import ALLOCATORS

    return ALLOCATORS


def _accounts() -> Iterable[str]:
    from hosim.result import ACCOUNTS

    return ACCOUNTS


def _table(*options: Option) -> Mapping[str, Option]:
    return MappingProxyType({option.name: option for option in options})


OPTIONS: Mapping[str, Option] = _table(
    Option(
        "workload",
        default=REQUIRED,
        argument=True,
        metavar="WORKLOAD",
        help="A workload file, a workload spec, anything 'hosim import' reads, a shipped name, or "
        "a model's, as in gpt2:phase=decode.",
        about="What to run: a name, a path, a mapping or a graph (see :func:`hosim.load`).",
    ),
    Option(
        "hardware",
        default=REQUIRED,
        flags=("--hardware", "-H"),
        metavar="HW",
        help="A hardware profile: a path, or a shipped name (see 'hosim hardware list').",
        about="What to run it on: a name, a path, a mapping or a profile.",
    ),
    Option(
        "policy",
        default="hyperoffload",
        flags=("--policy", "-p"),
        metavar="P",
        help="A policy (see 'hosim policies'); parameters as in lookahead:k=4.",
        about="Which policy plans: text such as ``lookahead:k=4``, an object such as "
        "``hosim.policies.lookahead``, or a function "
        "``(graph, hardware, budget_bytes)`` that returns a plan. ``hosim policies`` lists them.",
    ),
    Option(
        "policies",
        flags=("--policies", "-p"),
        metavar="A,B,...",
        help="Policies to compare, separated by commas; set a parameter as in lookahead:k=4.  "
        "[default: all of 'hosim policies' but models of whole systems, hybrid and optimal]",
        about="The policies: text separated by commas, or a list of texts, of objects such as "
        "``hosim.policies.lookahead`` and of "
        "functions ``(graph, hardware, budget_bytes)`` that return a plan; ``None`` stands for "
        "all but models of whole systems, "
        "``hybrid`` and ``optimal``.",
    ),
    Option(
        "budget",
        flags=("--budget", "-b"),
        metavar="BYTES",
        help="Device memory that may be used: a size such as 40GiB, or a share of the resident "
        "peak such as 75%.  [default: all of it]",
        about='Device memory that may be used: bytes, a size (``"12 GiB"``), a share of the '
        'resident peak (``"75%"``, 0.75) or ``None``: '
        "all of it.",
    ),
    Option(
        "devices",
        of=int,
        metavar="N",
        least=1,
        help="How many devices run the program together.  [default: as many as the workload is "
        "for, or as in the profile]",
        about="How many devices run the program together; ``None``: as many as the workload is "
        "for, or as the profile says.",
    ),
    Option(
        "rescale",
        of=bool,
        default=False,
        help="Scale durations that were measured on another machine to this one, by the ratio of "
        "the cost model's times on the two.",
        about="Whether durations that were measured on another machine are scaled to this one, by "
        "the ratio of the cost model's times of "
        "each op on the two; the interval of the makespan says how unsure that is. Without it "
        "they are refused.",
    ),
    Option(
        "runtime",
        metavar="NAME",
        takes="str | os.PathLike[str] | Mapping[str, Any] | None",
        help="The software that runs the workload: a path, or a shipped name (see 'hosim runtime "
        "list').  [default: none]",
        about="The software that runs it: the name or the path of a runtime (``hosim runtime "
        "list``), or the mapping of its file; "
        "``None``: that which the workload names, or none.",
    ),
    Option(
        "batch",
        of=int,
        metavar="N",
        least=1,
        help="The batch of a model's step: how many sequences.  [default: the workload's]",
        about="The batch of a model's step: how many sequences.",
    ),
    Option(
        "sequence",
        of=int,
        metavar="N",
        least=1,
        help="Tokens of a sequence; for a decoding step, those in its cache.  [default: the "
        "workload's]",
        about="Tokens of a sequence; for a decoding step, those in its cache.",
    ),
    Option(
        "optimizer",
        metavar="NAME",
        takes="Any",
        help="Make it a training step: adamw, or none for forward and backward alone.  (8-bit "
        "states: MODEL:states_dtype=int8)",
        about="Makes it a training step: of a model ``adamw``, or ``none`` for forward and "
        "backward alone; of a module of torch as :func:`hosim.load` takes it.",
    ),
    Option(
        "no_recompute",
        of=bool,
        default=False,
        help="Plan for a runtime that cannot run ops again: tensors move, and none is recomputed "
        "instead.",
    ),
    Option(
        "within",
        metavar="SHARE",
        takes="float | str | None",
        excludes=_ENDS,
        help="End the search of hyperoffload at a plan within this share of the lower bound: 1%.",
        about="Ends the search of ``hyperoffload`` at a plan at most so far above the lower "
        'bound: ``"1%"``, 0.01.',
    ),
    Option(
        "time",
        metavar="TIME",
        takes="float | str | None",
        excludes=_ENDS,
        help="End the search after this time, such as 2s, with the best plan so far, as Ctrl-C does.",
        about='Ends it after so long, with the best plan so far: ``"2s"``, or a number of '
        "seconds. Ctrl-C ends it, too; a second one is a "
        "``KeyboardInterrupt``.",
    ),
    Option(
        "work",
        of=int,
        metavar="N",
        least=1,
        excludes=_ENDS,
        help="End the search after this much work: makes again the plan that --time ended with.",
        about="Ends it after so much work, which makes again what ``time`` ended "
        "(``Plan.search``).",
    ),
    Option(
        "progress",
        of=Callable,
        takes="Callable[[SearchProgress], object] | None",
        about="Is called at each checkpoint of a search with how far it is "
        "(:class:`hosim.base.search_control.SearchProgress`). What is "
        "true ends it there.",
    ),
    Option(
        "regret",
        of=int,
        default=0,
        metavar="N",
        least=0,
        most=FEW_DRAWS,
        help="Plan again in each of N draws of what is uncertain, and say what the plan loses there "
        "against one made for that world.",
        about="In so many draws of what is uncertain each policy plans again; "
        '``attrs["regret"]`` has what its plan loses there against the one made for that world '
        "(:class:`hosim.data.draws.Regret`).",
    ),
    Option(
        "op_sigma",
        of=float,
        default=0.0,
        metavar="S",
        least=0,
        help="Jitter: the relative standard deviation of op times, such as 0.05.",
        about="Relative standard deviation of the ops' times.",
    ),
    Option(
        "transfer_sigma",
        of=float,
        default=0.0,
        metavar="S",
        least=0,
        help="Jitter: the relative standard deviation of the time during which a transfer's bytes "
        "flow.",
        about="Relative standard deviation of the time during which a transfer's bytes flow.",
    ),
    Option(
        "seed",
        of=int,
        default=0,
        metavar="N",
        least=0,
        help="Jitter: the random seed; the same seed gives the same times.",
        about="Seed of the variations; the same seed gives the same times.",
    ),
    Option(
        "routing",
        of=Path,
        metavar="FILE",
        help="A routing file: which experts each gate chooses in each step. The workload then "
        "consists of these steps, one after the "
        "other.",
    ),
    Option(
        "steps",
        metavar="N|A:B",
        needs=("routing",),
        help="Which steps of --routing: one of them, or A up to but not including B.  [default: "
        "all]",
    ),
    Option(
        "execution_trace",
        of=Path,
        metavar="FILE",
        help="For a PyTorch profile: the execution trace of the same run, which says which ops "
        "use what was allocated before.",
    ),
    Option(
        "allocator",
        default="ledger",
        metavar="A",
        known=_allocators,
        help="What allocates device memory: ledger (only counts bytes), caching (PyTorch's "
        "caching allocator), caching-expandable (with "
        "expandable segments) or static (offsets planned for the whole replay).",
        about="What places the device's bytes: ``ledger`` only counts them; ``caching``, "
        "``caching-expandable`` and ``static`` place "
        "them, and then what they reserve has to stay within the budget too.",
    ),
    Option(
        "account",
        default="time",
        metavar="A",
        known=_accounts,
        help="The order in which the allocator's bytes are counted: time (what the device holds "
        "at each instant) or program (what a "
        "host that runs ahead has allocated, as PyTorch counts).",
        about="The order in which the allocator's bytes are counted: ``time``, what the device "
        "holds at each instant, or ``program``, "
        "what a host that runs ahead of the device has allocated.",
    ),
    Option(
        "plan_against",
        default="allocated",
        metavar="WHAT",
        known=lambda: ("allocated", RESERVED),
        help="What the budget bounds: allocated (the bytes of tensors and workspaces) or reserved "
        "(all that the allocator holds; "
        "caching, if none is named).",
    ),
    Option(
        "runs",
        of=int,
        default=20,
        flags=("--runs", "-n"),
        metavar="N",
        least=1,
        help="How many random variations to replay for each policy.",
        about="How many variations to replay. Run 0 comes before them, with nominal times.",
    ),
    Option(
        "order",
        of=bool,
        default=False,
        help="Draw the order of the ops, too: each follows its producers, and so do its cache ops.",
        about="Whether each run also has another order of the ops, drawn with the seed: each op "
        "follows its producers, and each cache op the op that it is issued after. A run in which "
        "the "
        "plan then breaks a rule does not fit. With both sigmas 0 the order alone varies.",
    ),
    Option(
        "points",
        of=int,
        default=9,
        flags=("--points", "-n"),
        metavar="N",
        least=2,
        help="How many evenly spaced budgets to replay.",
        about="How many evenly spaced budgets to replay.",
    ),
    Option(
        "refine",
        of=int,
        default=4,
        metavar="N",
        least=0,
        help="How many more budgets to replay where the curve has its largest steps.",
        about="How many more budgets to replay where the curve has its largest steps.",
    ),
    Option(
        "price",
        of=float,
        metavar="P",
        help="The price of a device per hour: adds the cost of a million tokens (or of a step).",
        about="What a device costs an hour, in any currency; ``None``: as the profile's "
        "``price_per_hour`` says. With one, ``frame`` has what a step costs, and a million tokens.",
    ),
    Option(
        "largest",
        unless=("smallest",),
        metavar="FIELD=A..B[:N]",
        help="Find the largest value of a field: workload.batch=1..64, workload.layers=1..80.",
        about="A field and its range, of which the largest value that fits is wanted: "
        "``workload.batch=1..64``.",
    ),
    Option(
        "smallest",
        excludes={"largest": ""},
        metavar="FIELD=A..B[:N]",
        help="Find the smallest value of a field: channels.h2d.bandwidth=5..200GB/s:40, "
        "tiers.hbm.capacity=8..80GiB:73. A range without a count has about 100 round values.",
        about="A field and its range, of which the smallest value that fits is wanted: "
        "``channels.h2d.bandwidth=5..200GB/s:40``. A range without a count has about 100 round "
        "values.",
    ),
    Option(
        "slowdown",
        of=float,
        metavar="X",
        help="Allow at most X times the makespan with everything resident, such as 1.05.  "
        "[default: any]",
        about="How many times the makespan with everything resident the makespan may be; ``None``: "
        "any time will do.",
    ),
    Option(
        "more_memory",
        takes="str",
        default="1GB",
        metavar="BYTES",
        help="How much more device memory to price.",
        about='How much more device memory to price: ``"1GB"``.',
    ),
    Option(
        "more_bandwidth",
        takes="str",
        default="10GB/s",
        metavar="RATE",
        help="How much more bandwidth to price, channel by channel.",
        about='How much more bandwidth to price, channel by channel: ``"10GB/s"``.',
    ),
    Option(
        "detail",
        of=bool,
        default=False,
        excludes={"all": "--detail prints every row", "json": ""},
        help="Print every table and figure instead of the answer.",
    ),
    Option(
        "all",
        of=bool,
        default=False,
        excludes={"json": ""},
        help="Print every row of the answer, not the first five.",
    ),
    Option("top", of=int, metavar="N", least=1),
    Option("vary", of=list[str], metavar="FIELD=VALUES"),
    Option("plot", of=Path, endings=(), help="Write a picture: .png, .svg or .pdf."),
    Option(
        "trace",
        of=Path,
        endings=(),
        help="Write the timeline for ui.perfetto.dev or chrome://tracing: .json or .json.gz.",
    ),
    Option(
        "html",
        of=Path,
        endings=(".html", ".htm"),
        help="Write an HTML report in one file, with pictures and a zoomable timeline.",
    ),
    Option("json", of=bool, default=False, help="Print JSON on stdout instead of tables."),
    Option(
        "output",
        of=Path,
        flags=("--output", "-o"),
        endings=(),
        help="Write each row as soon as it is known: .csv or .parquet. After an interruption, the "
        "same command continues.",
        about="A CSV or Parquet file that gets each row as soon as it is known. The same call "
        "continues an interrupted sweep.",
    ),
    Option(
        "jobs",
        of=int,
        default=-1,
        flags=("--jobs", "-j"),
        metavar="N",
        help="How many processes.  [default: one per core]",
        about="How many processes compute; -1: one per core.",
        shows_default=False,
    ),
    Option(
        "scheduler",
        metavar="tcp://HOST:PORT",
        takes="str | Client | None",
        help="Compute on the Dask cluster of this scheduler (extra 'dask').",
        about="A Dask cluster that computes instead: its address, or a client.",
    ),
)
"""Options by name."""


def declared(names: str, *own: Option, **defaults: Any) -> Options:
    """Return options by their names, in this order: ``own`` ones, and those of :data:`OPTIONS`,
    some with another default.
    """
    known = {**OPTIONS, **{option.name: option for option in own}}
    return tuple(
        [
            replace(known[name], default=defaults[name]) if name in defaults else known[name]
            for name in names.split()
        ]
    )
