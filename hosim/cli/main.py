"""The ``hosim`` program: its commands, and the one place where errors become exit codes."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from hosim.cli import (
    cmd_bring,
    cmd_compare_policies,
    cmd_gate,
    cmd_look_up,
    cmd_plan,
    cmd_replay,
    cmd_search,
    terminal,
)
from hosim.cli.commands import (
    SECTIONS,
    Command,
    Commands,
    Quiet,
    Verbose,
    choose_amount,
    with_amount,
)
from hosim.errors import LONGEST, HosimError
from hosim.extensions import with_added
from hosim.plain_text import one_line
from hosim.version import __version__

EXAMPLES = {
    "compare-policies": (
        "hosim compare-policies llama-3.1-8b-prefill-4k -H h100 -b 12GiB -p hyperoffload,layerwise",
        "hosim compare-policies llama-3.1-8b-prefill-4k -H h100,a100,rtx-4090",
    ),
    "plan": (
        "hosim plan llama-3.1-8b-prefill-4k -H h100 -b 12GiB -o plan.json",
        "hosim plan llama-3.1-8b-prefill-4k -H h100 -b 12GiB --explain",
    ),
    "replay": ("hosim replay plan.json llama-3.1-8b-prefill-4k -H h100 -b 12GiB --plot step.png",),
    "blame": ("hosim blame llama-3.1-8b-prefill-4k -H h100 -b 8GiB --policy layerwise --top 5",),
    "diff": (
        "hosim diff before.json after.json --workload llama-3.1-8b-prefill-4k",
        "hosim diff layerwise hyperoffload -w llama-3.1-8b-prefill-4k -H h100 -b 12GiB",
    ),
    "robustness": (
        "hosim robustness llama-3.1-8b-prefill-4k -H h100 -b 12GiB -p hyperoffload,layerwise "
        "--runs 20",
    ),
    "pipeline": (
        "hosim pipeline llama-3.1-8b:phase=train:pipeline=4:micro_batches=8 -H h100",
        "hosim pipeline first.json last.json -H h100 --trace step.json",
    ),
    "sweep": (
        "hosim sweep llama-3.1-8b-prefill-4k -H h100 -b 12GiB --vary "
        "channels.h2d.bandwidth=10..50GB/s:5 -o bandwidth.csv",
        "hosim sweep llama-3.1-8b-prefill-32k -H gh200 --vary workload.sequence=4096,8192 --vary "
        "budget=50..100%:6",
    ),
    "frontier": ("hosim frontier llama-3.1-8b-prefill-4k -H h100",),
    "fit": (
        "hosim fit llama-3.1-8b-prefill-32k -H h100 -b 12GiB --largest "
        "workload.sequence=1024..65536:64 --slowdown 1.05",
        "hosim fit llama-3.1-8b-prefill-4k -H h100 -b 12GiB --smallest "
        "channels.h2d.bandwidth=5..55GB/s:51 --slowdown 1.01",
    ),
    "fits": (
        "hosim fits meta-llama/Llama-3.1-8B --batch 8 --sequence 4096 --optimizer adamw "
        "--runtime hf-trainer -H rtx-4090",
        "hosim fits qwen3-32b:phase=decode --batch 32 --sequence 32768 --runtime vllm -H h100",
        "hosim fits shop/model.py:step -H h100",
    ),
    "atlas": (
        "hosim atlas llama-3.1-8b,llama-3.1-8b:weights=int4 -H rtx-4090,h100 --contexts 8192 "
        "--html atlas.html",
    ),
    "check": ("hosim check", "hosim check --junit report.xml --summary report.md"),
    "baseline": ("hosim baseline write", "hosim baseline show llama"),
    "ci": ("hosim ci init shop.model:example -H h100",),
    "import": (
        "hosim import model.onnx -o model.json",
        "hosim import model.pt2 -o model.json --dim batch=4",
    ),
    "import-kernels": ("hosim import-kernels measured.csv -o kernels.csv",),
    "validate": ("hosim validate trace.json.gz --html report.html",),
    "calibrate": ("hosim calibrate trace.json.gz --base h100 -o mine.yaml",),
    "policies": ("hosim policies", "hosim policies --json"),
    "schema": ("hosim schema plan",),
    "notebooks": ("hosim notebooks my-folder",),
    "doctor": ("hosim doctor",),
    "workload": (
        "hosim workload list",
        "hosim workload models",
        "hosim workload show llama-3.1-8b-prefill-4k -H h100",
    ),
    "hardware": ("hosim hardware list", "hosim hardware show h100"),
    "runtime": (
        "hosim runtime list",
        "hosim runtime show torchtitan-compiled",
        "hosim runtime fit my.log --base torchtune -o mine.yaml",
    ),
}
"""Lines for a shell, by command."""


def epilog(lines: Sequence[str]) -> str:
    """The last paragraph of a command's help: its examples, whose lines are not broken anew."""
    return "\n".join(
        ["\b", f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)]
    )


INTERRUPTED, BUG = 130, 70
"""Exit codes beyond those of the errors: the shell's for Ctrl-C, and EX_SOFTWARE of sysexits.h."""

app = typer.Typer(
    name="hosim",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 ok, 1 a gate found a regression, 2 wrong usage or bad input, 3 "
    "infeasible (nothing fits), 70 a bug of hosim, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hosim {__version__}")
        raise typer.Exit


@app.callback()
def _hosim(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Does a model fit in hierarchical memory, how long does it take, and what waits for what? No
    hardware needed.
    """
    choose_amount(quiet, verbose)


_PLAN, _SEARCH, _, _GUARD, _BRING, _LOOK_UP = SECTIONS
_COMMANDS: Mapping[str, tuple[Callable[..., None], str, Sequence[str]]] = {
    "fits": (cmd_plan.fits, _PLAN, EXAMPLES["fits"]),
    "compare-policies": (
        cmd_compare_policies.compare_policies,
        _PLAN,
        EXAMPLES["compare-policies"],
    ),
    "plan": (cmd_plan.plan, _PLAN, EXAMPLES["plan"]),
    "replay": (cmd_replay.replay, _PLAN, EXAMPLES["replay"]),
    "blame": (cmd_replay.blame, _PLAN, EXAMPLES["blame"]),
    "diff": (cmd_replay.diff, _PLAN, EXAMPLES["diff"]),
    "robustness": (cmd_replay.robustness, _PLAN, EXAMPLES["robustness"]),
    "pipeline": (cmd_replay.pipeline, _PLAN, EXAMPLES["pipeline"]),
    "sweep": (cmd_search.sweep, _SEARCH, EXAMPLES["sweep"]),
    "frontier": (cmd_search.frontier, _SEARCH, EXAMPLES["frontier"]),
    "fit": (cmd_search.fit, _SEARCH, EXAMPLES["fit"]),
    "atlas": (cmd_search.atlas, _SEARCH, EXAMPLES["atlas"]),
    "check": (cmd_gate.check, _GUARD, EXAMPLES["check"]),
    "import": (cmd_bring.import_, _BRING, EXAMPLES["import"]),
    "import-kernels": (cmd_bring.import_kernels, _BRING, EXAMPLES["import-kernels"]),
    "validate": (cmd_bring.validate, _BRING, EXAMPLES["validate"]),
    "calibrate": (cmd_bring.calibrate, _BRING, EXAMPLES["calibrate"]),
    "policies": (cmd_look_up.policies, _LOOK_UP, EXAMPLES["policies"]),
    "schema": (cmd_look_up.schema, _LOOK_UP, EXAMPLES["schema"]),
    "notebooks": (cmd_look_up.notebooks, _LOOK_UP, EXAMPLES["notebooks"]),
    "doctor": (cmd_look_up.doctor, _LOOK_UP, EXAMPLES["doctor"]),
}
_GROUPS = (
    ("baseline", cmd_gate.baseline_app, _GUARD),
    ("ci", cmd_gate.ci_app, _GUARD),
    ("workload", cmd_look_up.workload_app, _LOOK_UP),
    ("hardware", cmd_look_up.hardware_app, _LOOK_UP),
    ("runtime", cmd_look_up.runtime_app, _LOOK_UP),
)
for _name, (_command, _section, _examples) in with_added(_COMMANDS, "commands").items():
    app.command(_name, cls=Command, rich_help_panel=_section, epilog=epilog(_examples))(
        with_amount(_command)
    )
for _name, _group, _section in _GROUPS:
    for _known in _group.registered_commands:
        _known.cls, _known.callback = (
            Command,
            with_amount(_known.callback) if _known.callback else None,
        )
    app.add_typer(_group, name=_name, rich_help_panel=_section, epilog=epilog(EXAMPLES[_name]))


def main() -> None:
    """Runs the program and ends the process with the command's exit code, never with a traceback.

    What a reader of stdout that has gone, or a full disk, leaves unwritten is an error. After the
    end Ctrl-C is silent; a second one ends the process at once, whatever it still waits for.
    """
    terminal.prepare()
    os.environ["MPLBACKEND"] = (
        "agg"  # pictures are files here; another name, or none that matplotlib knows, is of no use
    )
    atexit.register(
        signal.signal, signal.SIGINT, signal.SIG_IGN
    )  # runs last: when Python takes its own handlers down
    try:
        code = _run()
    except KeyboardInterrupt:
        terminal.warn("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = HosimError.exit_code
    except OSError as error:
        terminal.silence()
        told = one_line(f"{error.filename or 'stdout'}: {error.strerror or error}", LONGEST)
        terminal.warn(f"error: {told}")
        code = HosimError.exit_code
    except Exception as error:
        if os.environ.get("HOSIM_DEBUG"):
            raise
        why = one_line(f"{type(error).__name__}: {error}", LONGEST)
        terminal.warn(
            f"error: internal error of hosim: {why}; HOSIM_DEBUG=1 shows where, SECURITY.md says "
            "how to report it"
        )
        code = BUG
    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, lambda *_: os._exit(code)))
    sys.exit(code)


def _run() -> int:
    try:
        app(prog_name="hosim")
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer ended it
            raise KeyboardInterrupt from None
        terminal.flush()
        return ended.code if isinstance(ended.code, int) else 0
    return 0
