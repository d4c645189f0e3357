"""A process that has everything imported, and forks for each input: the command runs in the child
as the shell would run it.

The child has its own folder, streams, environment and limits. An audit hook sees what it executes,
imports, opens and removes.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import os
import pickle
import pickletools
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import tomllib
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzz_case import Case
from fuzz_contract import complaints

_TAKEN = (
    "COLUMNS",
    "LINES",
    "PYTHONIOENCODING",
    "GITHUB_ACTIONS",
    "TF_BUILD",
    "TEAMCITY_VERSION",
    "HOSIM_DEBUG",
    "HOSIM_LIMITS",
    "XDG_CACHE_HOME",
)
"""Variables of this process that a command does not see."""
_CALLS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "subprocess.Popen",
    "webbrowser.open",
)
_REACHES = (
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "sqlite3.load_extension",
    "pickle.find_class",
    "urllib.Request",
    "os.kill",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
    "shutil.rmtree",
    "shutil.move",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Bounds:
    """What a command may take: CPU seconds, seconds, and bytes of memory beside what the server
    has; 0 is no bound.
    """

    cpu_s: int = 20
    wall_s: int = 60
    memory_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a command ended. ``wrong`` is what it broke of the contract; ``files`` and streams only
    if they are asked for.

    ``unpacked`` and ``read`` are bytes; ``parsed`` are values of JSON, YAML and TOML, rows, fields
    of messages, instructions of pickles.
    """

    code: int | None
    wrong: tuple[str, ...]
    unpacked: int = 0
    read: int = 0
    parsed: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


class Server:
    """Runs cases in children. ``bounds`` hold for each of them."""

    def __init__(self, bounds: Bounds) -> None:
        from typer import main as typer_main

        from hosim.cli.main import app

        self.bounds = bounds
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="hosim-fuzz-", dir=shared))
        self._changes = contextlib.ExitStack()
        pool = {
            "ARROW_DEFAULT_MEMORY_POOL": "system"
        }  # others reserve more addresses than the bound allows
        self._changes.enter_context(
            patch.dict(os.environ, {"MPLCONFIGDIR": str(self._folder / "matplotlib"), **pool})
        )
        os.environ.pop("DISPLAY", None)
        command = typer_main.get_command(
            app
        )  # it is made for every call, which takes longer than most commands
        self._changes.enter_context(
            patch.object(typer_main, "get_command", lambda typer_instance: command)
        )
        self._known = frozenset(sys.modules)

    def close(self) -> None:
        """Leaves this process as it was, but for its modules, and removes the folder."""
        self._changes.close()
        gc.unfreeze()
        shutil.rmtree(self._folder, ignore_errors=True)

    def learn(self, cases: Sequence[Case]) -> None:
        """Imports what these commands import."""
        bounds, self.bounds = (
            self.bounds,
            Bounds(cpu_s=300, wall_s=600),
        )  # what is imported takes memory and time
        for outcome in self.run(cases, together=True, keep=True):
            for name in outcome.modules:
                with contextlib.suppress(Exception):
                    import_module(name)
        self.bounds, self._known = bounds, frozenset(sys.modules)
        gc.collect()
        gc.freeze()

    def run(
        self, cases: Sequence[Case], *, together: bool = False, keep: bool = False
    ) -> Iterator[Outcome]:
        """The outcome of each case, in order; each in a child of its own unless ``together``."""
        done = 0
        while done < len(cases):
            found = self._child(cases[done:] if together else cases[done : done + 1], keep)
            yield from found
            done += len(found)

    def _child(self, cases: Sequence[Case], keep: bool) -> list[Outcome]:
        """The outcomes of some of the first cases: all, or up to the one by which the child
        died.
        """
        results = self._folder / "results"
        results.write_bytes(b"")
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            try:
                _run_all(cases, self._folder, results, self.bounds, self._known, keep)
                os._exit(0)
            except BaseException:
                (self._folder / "failure").write_text(traceback.format_exc())
            finally:
                os._exit(99)
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise
        found = []
        with results.open("rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                found.append(pickle.load(file))
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 99:
            raise RuntimeError((self._folder / "failure").read_text())
        if len(found) < len(cases):
            found.append(Outcome(None, (_end_of(status),)))
        return found


def _end_of(status: int) -> str:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return {
            "SIGXCPU": "took too long (CPU)",
            "SIGPROF": "took too long (CPU)",
            "SIGALRM": "took too long",
        }.get(name, f"ended by {name}")
    return f"the process ended with {os.WEXITSTATUS(status)}"


# ---- in the child


_OF_FONTS = {"lxml", "uharfbuzz", "unicodedata2"}
"""What fontTools looks for when matplotlib writes a PDF, installed or not."""


class _Watch:
    """What the audit hook has seen while a command ran."""

    def __init__(self, known: frozenset[str]) -> None:
        self.on = False
        self.seen: list[str] = []
        self.unpacked = 0
        self.parsed = 0
        self._tops = (
            {name.partition(".")[0] for name in known} | set(sys.stdlib_module_names) | _OF_FONTS
        )
        self._roots: tuple[str, ...] = ()

    def begin(self, *roots: str) -> None:
        self.seen, self._roots, self.on, self.unpacked, self.parsed = [], roots, True, 0, 0

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _CALLS or event in _REACHES:
            self.seen.append(f"audit: {event}")
        elif event == "import":
            if arguments[0].partition(".")[0] not in self._tops:
                self.seen.append(f"audit: import of {arguments[0][:40]}")
        elif event == "open":
            path, _, flags = arguments
            if (
                isinstance(flags, int)
                and flags & _WRITES
                and isinstance(path, str | bytes)
                and not self._inside(path)
            ):
                self.seen.append("audit: open for writing outside the folder")
        elif event in _CHANGES:
            if not self._inside(arguments[0]):
                self.seen.append(f"audit: {event} outside the folder")
        elif event == "exec" and arguments[0].co_filename.startswith("<") and not _importing():
            self.seen.append(f"audit: executed code of {arguments[0].co_filename[:40]}")

    def _inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return True
        found = os.path.realpath(os.fsdecode(path))
        nobodys = ("/dev/", "/proc/x", "/proc/nonexistent")  # where nobody can make a file
        return found == "/proc" or found.startswith((*self._roots, *nobodys))


_MAKERS = (
    "importlib._bootstrap",
    "dataclasses",
    "collections",
    "enum",
    "typing",
    "inspect",
    "scipy._lib.doccer",
    "matplotlib._docstring",
    "attr._make",
    "networkx.utils.decorators",
    "torch.fx.operator_schemas",
)


def _importing() -> bool:
    """Whether code runs because a module is imported or a class is made."""
    frame: Any = sys._getframe(2)
    for _ in range(60):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "") in _MAKERS:
            return True
        frame = frame.f_back
    return False


class _Counted:
    """A decompressor that counts what it unpacks."""

    def __init__(self, watch: _Watch, inner: Any) -> None:
        self._watch, self._inner = watch, inner

    def decompress(self, *arguments: Any) -> bytes:
        found: bytes = self._inner.decompress(*arguments)
        self._watch.unpacked += len(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _count_parsed(watch: _Watch) -> None:
    """Let every parser that hosim calls count what it parses."""
    import yaml

    from hosim.base.files import formats

    def texts(owner: Any, name: str, at: int, marks: str) -> None:
        """A function of a text: values are counted as the limits count them, before they are
        made.
        """
        inner = getattr(owner, name)

        def parse(*given: Any, **named: Any) -> Any:
            watch.parsed += sum(map(given[at].count, marks)) if isinstance(given[at], str) else 0
            return inner(*given, **named)

        setattr(owner, name, parse)

    def items(owner: Any, name: str) -> None:
        """A function that gives items one after another."""
        inner = getattr(owner, name)

        def give(*given: Any, **named: Any) -> Iterator[Any]:
            for item in inner(*given, **named):
                watch.parsed += 1
                yield item

        for holder in (
            owner,
            *[module for path, module in sys.modules.items() if path.startswith("hosim.")],
        ):
            if vars(holder).get(name) is inner:  # also where it has been imported by now
                setattr(holder, name, give)

    class Cursor(sqlite3.Cursor):
        def __next__(self) -> Any:
            watch.parsed += 1
            return super().__next__()

    class Connection(sqlite3.Connection):
        def execute(self, *given: Any) -> Any:
            return self.cursor(Cursor).execute(*given)

    texts(json.JSONDecoder, "decode", 1, ",[{")
    texts(yaml, "parse", 0, "\n,[{")
    texts(tomllib, "loads", 0, "\n,[{")
    items(csv, "reader")
    items(pickletools, "genops")
    items(formats, "places")
    connect = sqlite3.connect
    sqlite3.connect = lambda *given, **named: connect(*given, **{"factory": Connection} | named)  # type: ignore[assignment]


def _run_all(
    cases: Sequence[Case],
    place: Path,
    results: Path,
    bounds: Bounds,
    known: frozenset[str],
    keep: bool,
) -> None:
    watch = _Watch(known)
    sys.addaudithook(watch.hook)
    decompressobj = zlib.decompressobj
    zlib.decompressobj = lambda *given, **named: _Counted(watch, decompressobj(*given, **named))  # type: ignore[assignment,return-value]
    _count_parsed(watch)
    # -u and other settings of this process do not reach the commands
    saved = [os.dup(1), os.dup(2)]
    own = {name: value for name, value in os.environ.items() if name not in _TAKEN}
    if bounds.memory_bytes:
        pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (pages + bounds.memory_bytes,) * 2)
    with results.open("ab", buffering=0) as out:
        for case in cases:
            out.write(pickle.dumps(_run_one(case, place, bounds, watch, own, saved, keep)))


def _run_one(
    case: Case,
    place: Path,
    bounds: Bounds,
    watch: _Watch,
    own: dict[str, str],
    saved: list[int],
    keep: bool,
) -> Outcome:
    base = place / "case"
    shutil.rmtree(base, ignore_errors=True)
    folder = base / "work"
    folder.mkdir(parents=True)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(
        own
        | {"HOME": str(folder / "home"), "HOSIM_DEBUG": "1"}
        | {key: text for key, text in case.environment.items() if text is not None}
    )
    for key, text in case.environment.items():
        if text is None:
            os.environ.pop(key, None)
    encoding, _, errors = (case.environment.get("PYTHONIOENCODING") or "utf-8").partition(":")
    sys.stdout.flush()
    for number, how in enumerate(case.streams, start=1):
        _redirect(number, how, base, encoding, errors)
    sys.argv = ["hosim", *case.arguments]
    sys.dont_write_bytecode = True  # a module that is imported first here is no file of the case
    used = _bytes_read()
    signal.setitimer(signal.ITIMER_PROF, bounds.cpu_s)
    signal.alarm(bounds.wall_s)
    watch.begin(str(base), str(place / "matplotlib"))
    raised: list[str] = []
    try:
        code = _called(raised, case)
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in (
            sys.stdout,
            sys.stderr,
        ):  # before its number is another's: one that was closed is a file that hosim opened
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.close()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    read, unpacked, parsed = (
        _bytes_read() - used,
        watch.unpacked,
        watch.parsed,
    )  # what is judged below is read again
    printed = [
        (base / f"stream{n}").read_bytes() if how == "file" else b""
        for n, how in enumerate(case.streams, start=1)
    ]
    wrong = (
        *raised,
        *dict.fromkeys(watch.seen),
        *complaints(case, code, printed[0], printed[1], folder),
    )
    if not keep:
        return Outcome(
            code,
            wrong,
            unpacked,
            read,
            parsed,
            stderr=printed[1][-2000:] + os.environ.get("FUZZ_LINE", "").encode(),
        )
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return Outcome(
        code, wrong, unpacked, read, parsed, printed[0], printed[1], files, tuple(sys.modules)
    )


def _bytes_read() -> int:
    """How many bytes this process has asked files for."""
    return int(Path("/proc/self/io").read_text().split()[1])


def _redirect(number: int, how: str, base: Path, encoding: str, errors: str) -> None:
    name = "stdout" if number == 1 else "stderr"
    if how == "closed":
        os.close(number)
        setattr(sys, name, None)
        return
    target = os.open(
        "/dev/full" if how == "full" else base / f"stream{number}", os.O_WRONLY | os.O_CREAT, 0o600
    )
    if target != number:
        os.dup2(target, number)
        os.close(target)
    raw = io.FileIO(number, "w", closefd=False)
    stream = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding,
        errors or ("strict" if number == 1 else "backslashreplace"),
        line_buffering=number == 2,
    )
    setattr(sys, name, stream)


def _called(raised: list[str], case: Case) -> int:
    """The exit code of the command, as the interpreter would end with it; what it ``raised`` that
    hosim did not expect.
    """
    from fuzz_calls import run_program

    from hosim.cli.start import main

    code: Any = 0
    try:
        if case.arguments[:1] == ("python",):
            run_program(case.arguments[1])
        else:
            main()
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next(
            (frame for frame in reversed(frames) if "/hosim/" in frame.filename), frames[-1]
        )
        raised.append(f"raised {type(error).__name__} in {Path(last.filename).name}, {last.name}")
        os.environ["FUZZ_LINE"] = f"{last.filename}:{last.lineno}: {error!s:.200}"
        code = 70
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        code = 120  # what the interpreter ends with if it cannot write what stdout still holds
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    return code if isinstance(code, int) else 0 if code is None else 1
