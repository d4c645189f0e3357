"""Standard output and error as they may be: closed, full, of a narrow encoding, or searched for
commands by a CI service.
"""

import io
import os
import re
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import TextIO

import typer

from hosim.plain_text import printable

_SERVICES = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Variables that are set where a service takes some lines of a log for commands."""
_COMMAND = re.compile(r"^([^\S\n]*)(?=::|##)", re.MULTILINE)

QUIET, NORMAL, VERBOSE = range(3)
_amount: ContextVar[int] = ContextVar("amount", default=NORMAL)
_notes: ContextVar[tuple[str, ...]] = ContextVar("notes", default=())


class LogLines(io.TextIOWrapper):
    r"""A stream in whose lines a service finds no commands: what would begin one gets a backslash.

    >>> stream = LogLines(io.BytesIO(), encoding="ascii")
    >>> _ = stream.write("a\n ::error::b\n")
    >>> stream.flush(), stream.buffer.getvalue()
    (None, b'a\n \\::error::b\n')
    """

    _begun = False

    def write(self, text: str, /) -> int:
        """Writes the text; returns its length, as all streams do."""
        head, newline, rest = text.partition("\n") if self._begun else ("", "", text)
        super().write(head + newline + _COMMAND.sub(r"\1\\", rest))
        self._begun = not text.endswith("\n") if text else self._begun
        return len(text)

    def command(self, line: str) -> None:
        """Writes a line that the service is to take for a command."""
        super().write(f"{line}\n")


def prepare() -> None:
    """Sets the streams up: what their encoding lacks is written as an escape, and a closed one
    takes what is written to it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if any(os.environ.get(service) for service in _SERVICES):
                stream.flush()
                encoding, buffered = stream.encoding, stream.line_buffering
                setattr(
                    sys,
                    name,
                    LogLines(
                        stream.detach(), encoding, "backslashreplace", line_buffering=buffered
                    ),
                )


def begin() -> None:
    """A command begins: it writes the normal amount, and has said no notes."""
    set_amount(NORMAL)
    _notes.set(())


def set_amount(amount: int) -> None:
    """Set how much this command writes on stderr from now on: :data:`QUIET`, :data:`NORMAL` or
    :data:`VERBOSE`.
    """
    _amount.set(amount)


def amount() -> int:
    """Return how much this command writes on stderr."""
    return _amount.get()


def say(text: str) -> None:
    """One line for people, on stderr, unless the command is quiet."""
    if amount() > QUIET:
        warn(text)


def note(line: str) -> None:
    """A note on the command's answer, said once, on stderr unless the command is quiet; what it
    prints as JSON has it, too.
    """
    if line not in _notes.get():
        say(f"note: {line}")
        _notes.set((*_notes.get(), line))


def notes() -> tuple[str, ...]:
    """The notes that this command has said."""
    return _notes.get()


def warn(text: str) -> None:
    """One line for people, on stderr, also of a quiet command. Where stderr takes nothing, it is
    lost, and changes no exit code.
    """
    with suppress(OSError):
        typer.echo(printable(text), err=True)


def say_to_service(line: str) -> None:
    """A command to the service that reads the log, on stderr."""
    if isinstance(sys.stderr, LogLines):
        sys.stderr.command(line)
    else:
        typer.echo(line, err=True)


def flush() -> None:
    """Writes out what stdout still holds. Raises :class:`OSError` where that fails, and lets stdout
    take nothing more.
    """
    try:
        sys.stdout.flush()
    except OSError:
        silence()
        raise


def silence() -> None:
    """Lets nothing more reach stdout, so that what it still holds raises no error when the process
    ends.
    """
    nowhere = _nowhere()
    try:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = nowhere
    else:
        nowhere.close()


def _nowhere() -> TextIO:
    """A stream that takes all that is written to it; it stays open in the place of another."""
    return open(os.devnull, "w", encoding="utf-8")
