"""The common parts of all commands: help in sections, ``-q`` and ``-v``, and errors that become one
line and an exit code.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from traceback import format_exception
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from hosim.cli import terminal
from hosim.cli.targets import check_overwrites_nothing_given, written
from hosim.errors import LONGEST, HosimError, InputError
from hosim.io.options import OPTIONS, Given, Option, Options, check_together
from hosim.plain_text import one_line

SECTIONS = {
    "Plan and replay": "hosim compare-policies llama-3.1-8b-prefill-4k -H h100 -b 12GiB",
    "Search": "hosim frontier llama-3.1-8b-prefill-4k -H h100",
    "Serve": "hosim serve llama-3.1-8b -H h100 --requests requests.jsonl",
    "Guard": "hosim check",
    "Bring models and measurements": "hosim import model.onnx -o model.json",
    "Look up": "hosim hardware list",
}
"""The sections of ``hosim --help``, each with an example."""

PLAIN, _MACHINE = "compare-policies", OPTIONS["hardware"].flags[::-1]
"""The command that answers a question without one, and what such a question has to name."""

_NEAR = 0.8
"""The least likeness of a name to that of a command, from 0 to 1."""

_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]  # typer does not name it


def _traceback(error: HosimError) -> list[str]:
    """Return the traceback of a failure in a user's own policy, line by line, if HOSIM_DEBUG asks
    for it.
    """
    if not os.environ.get("HOSIM_DEBUG") or error.__cause__ is None:
        return []
    from hosim.policies import PolicyError

    if not isinstance(error, PolicyError):  # a file that is wrong has no traceback
        return []
    return "".join(format_exception(error.__cause__)).splitlines()


def _ended_by(error: Any) -> Exception:
    """The end of a command that was used wrongly, which one line says, with what an option is for
    that is missing; without any argument it is the help.
    """
    if error.ctx is not None and error.message == error.ctx.get_help():
        return cast(Exception, error)
    said = error.format_message().rstrip(".")
    missing = said.startswith("Missing") and getattr(error.param, "help", "")
    about = f" ({missing.rstrip('.')})" if missing else ""
    see = f"; see '{error.ctx.command_path} --help'" if error.ctx is not None else ""
    told = f"{said[:1].lower()}{said[1:]}{about}"
    terminal.warn(f"error: {one_line(told, LONGEST - len(see) - len('error: '))}{see}")
    return typer.Exit(HosimError.exit_code)


class Command(TyperCommand):
    """A command that overwrites none of the files that it is given."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless a file to write is named twice."""
        check_overwrites_nothing_given(ctx)
        return super().invoke(ctx)


_plain: ContextVar[bool] = ContextVar("plain", default=False)


def is_plain() -> bool:
    """True for a question without a command: a workload and a machine alone."""
    return _plain.get()


class Commands(TyperGroup):
    """The commands; an error of hosim becomes one line on stderr and an exit code. A workload and
    a machine without a command are compared by :data:`PLAIN`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with. Raises :class:`InputError` for what is neither
        a command nor a workload with a machine.
        """
        machine = any([a in _MACHINE or a.startswith(f"{_MACHINE[1]}=") for a in args])
        known = self.get_command(ctx, args[0]) is not None
        there = os.path.exists(args[0])
        near = [] if there else get_close_matches(args[0], self.list_commands(ctx), cutoff=_NEAR)
        if not known and (near or not machine):
            means = (
                f"did you mean {near[0]!r}?"
                if near
                else f"if it is a workload, name the machine as well: hosim {args[0]} -H h100"
            )
            raise InputError(f"no command of that name; {means}", source=args[0])
        _plain.set(machine and not known)
        return super().resolve_command(ctx, [PLAIN, *args] if _plain.get() else args)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments; a message about wrong usage is one line."""
        terminal.begin()
        try:
            return super().make_context(*args, **extra)
        except _WrongUsage as error:
            raise _ended_by(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; :class:`HosimError` ends it with a line and an exit code."""
        try:
            return super().invoke(ctx)
        except _WrongUsage as error:
            raise _ended_by(error) from None
        except HosimError as error:
            for line in _traceback(error):
                terminal.warn(line)
            terminal.warn(f"error: {error}")
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # nobody reads on; typer would end with 1, which stands for a gate
            terminal.silence()
            raise typer.Exit(HosimError.exit_code) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by section, with an example below each."""
        listed = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        room = formatter.width - 6 - max(len(name) for name, _ in listed)
        for section, example in SECTIONS.items():
            commands = [
                (n, c.get_short_help_str(room))
                for n, c in listed
                if getattr(c, "rich_help_panel", None) == section
            ]
            if not commands:  # those of a room that is not there
                continue
            with formatter.section(section):
                formatter.write_dl(commands)
                formatter.write(f"\n{'':{formatter.current_indent}}$ {example}\n")


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Write no notes and no progress on stderr, only warnings and errors."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Write a line on stderr for each step that begins, with its time."
    ),
]


def choose_amount(quiet: bool, verbose: bool) -> None:
    """Set how much the command writes on stderr, if either is asked for."""
    if quiet or verbose:
        terminal.set_amount(terminal.QUIET if quiet else terminal.VERBOSE)


def with_amount(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``-q`` and ``-v``, which say how much it writes on stderr."""

    @wraps(command)
    def run(*, quiet: bool, verbose: bool, **settings: Any) -> None:
        choose_amount(quiet, verbose)
        command(**settings)

    own = signature(command, eval_str=True)
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=of)
        for name, of in (("quiet", Quiet), ("verbose", Verbose))
    ]
    whole = own.replace(parameters=[*own.parameters.values(), *added])
    run.__signature__ = whole  # type: ignore[attr-defined]
    run.__annotations__ = {
        name: parameter.annotation for name, parameter in whole.parameters.items()
    }
    return run


def command(*options: Option) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """A command with these options, which gets what is given of them once it goes together."""

    def with_options(run: Callable[[Given], None]) -> Callable[..., None]:
        @wraps(run)
        def command(ctx: typer.Context, **given: Any) -> None:
            for option in options:
                option.check(given[option.name])
            check_together(options, given, ctx.command_path.partition(" ")[2], at_shell=True)
            run(Given(**given))

        command.__signature__ = _signature(options)  # type: ignore[attr-defined]
        return command

    return with_options


def _signature(options: Options) -> Signature:
    return Signature(
        [
            Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *[
                Parameter(
                    one.name,
                    Parameter.KEYWORD_ONLY,
                    default=one.default,
                    annotation=Annotated[_type(one), _shown(one)],
                )
                for one in options
            ],
        ]
    )


def _type(option: Option) -> Any:
    return option.of | None if option.default is None else option.of


def _shown(option: Option) -> Any:
    """An option as typer takes it."""
    given: dict[str, Any] = {
        "help": option.help,
        "metavar": option.metavar,
        "autocompletion": _completion(option),
    }
    given |= {} if option.shows_default else {"show_default": False}
    if option.argument:
        return typer.Argument(**given)
    if option.endings is not None:
        return written(*_flags(option), says=option.help, endings=option.endings)
    return typer.Option(*_flags(option), min=option.least, max=option.most, **given)


def _flags(option: Option) -> Sequence[str]:
    return option.flags or (option.flag,)


def _completion(option: Option) -> Callable[[str], list[str]] | None:
    """The names that begin so."""
    known = option.known or option.completes or NAMES.get(option.name)
    if known is None:
        return None

    def named(incomplete: str) -> list[str]:
        return [name for name in known() if name.startswith(incomplete)]

    return named


def _workloads() -> Iterable[str]:
    from hosim import shipped
    from hosim.io.models import PRESETS

    return (*shipped.workloads(), *PRESETS)


def _hardware() -> Iterable[str]:
    from hosim import shipped

    return (*shipped.hardware(), *shipped.ALIASES)


def _runtimes() -> Iterable[str]:
    from hosim import shipped

    return shipped.runtimes()


def _policies() -> Iterable[str]:
    from hosim import policies

    return policies.policy_names()


NAMES = {"workload": _workloads, "hardware": _hardware, "runtime": _runtimes, "policy": _policies}
"""The names that are completed of the options of other rooms than this one."""
