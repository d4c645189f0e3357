"""What holds for every command, whatever it is given: the oracle of the fuzzer.

- The exit code is 0 to 3, or 130; 1 is the gate's alone, and that of ``validate --max-error``.
- Codes 2 and 3 say why in one line on stderr that begins with ``error: `` and has at most 400
  characters more, or print a table.
- What is printed holds no control characters, no traceback, and no line that a CI service takes for
  a command.
- Inputs stay as they were. A file that is written is whole, and hosim reads it as it wrote it;
  nothing else is left.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from fuzz_case import Case
from fuzz_readback import UnlikeError, read_back, read_printed

LONGEST = 400
BUG = 70
CODES = frozenset((0, 1, 2, 3, 130))
_USAGE = re.compile(r"^(Usage: |Try 'hosim|╭|Error: )", re.MULTILINE)


def complaints(case: Case, code: int, stdout: bytes, stderr: bytes, folder: Path) -> Iterator[str]:
    """What the outcome of a command breaks, one line each, empty if nothing."""
    if code == BUG:
        return  # the fuzzer says what was raised
    bound = case.arguments[:1] == ("check",) or "--max-error" in case.arguments
    if code not in CODES or (code == 1 and not bound):
        yield f"exit code {code}"
    for name, content in (("stdout", stdout), ("stderr", stderr)):
        yield from _printed(case, name, content)
    yield from _errors(case, code, stderr.decode("utf-8", "replace"), stdout)
    yield from _files(case, code, folder)
    if code == 0 and case.streams == ("file", "file"):
        try:
            read_printed(stdout)
        except Exception as error:
            yield f"printed a damaged result: {type(error).__name__}"


def _printed(case: Case, name: str, content: bytes) -> Iterator[str]:
    try:
        text = content.decode(_encoding(case))
    except UnicodeDecodeError:
        yield f"{name} is not in its encoding"
        return
    if "Traceback (most recent call last)" in text:
        yield f"{name} has a traceback"
    if "internal error" in text:
        yield f"{name} tells an internal error"
    lines = text.split("\n")
    odd = next((line for line in lines if not line.isprintable()), None)
    if odd is not None and not _copied(case, name):
        yield f"{name} has a line that is not printable"
    services = case.environment.get("GITHUB_ACTIONS") and not {"--github"} & set(case.arguments)
    if services and any(line.lstrip().startswith(("::", "##")) for line in lines):
        yield f"{name} has a line that is a command to a service"
    if "\u0301" * 100 in text:
        yield f"{name} has too much"


def _copied(case: Case, name: str) -> bool:
    """The option parser says what it did not understand as it was given."""
    return name == "stderr" and any(not argument.isprintable() for argument in case.arguments)


def _encoding(case: Case) -> str:
    return (case.environment.get("PYTHONIOENCODING") or "utf-8").partition(":")[0]


def _errors(case: Case, code: int, stderr: str, stdout: bytes) -> Iterator[str]:
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if len(errors) > 1:
        yield "more than one line of error"
    if errors and code == 0:
        yield "an error and exit code 0"
    if any(len(line) > LONGEST + len("error: ") for line in errors):
        yield "an error longer than 400 characters"
    if case.streams != ("file", "file") or _USAGE.search(stderr):
        return
    if code == 2 and not errors:
        yield "exit code 2 without a line of error"
    if code == 3 and not errors and not stdout.strip():
        yield "exit code 3 without a reason"
    if errors and lines[-1] != errors[-1]:
        yield "a line after the error"


def _files(case: Case, code: int, folder: Path) -> Iterator[str]:
    there = {
        os_name(path, folder): path
        for path in folder.rglob("*")
        if not path.is_dir() and not _kept(path, folder)
    }
    for name, content in case.files.items():
        path = there.pop(name, None)
        if path is None:
            yield f"{_kind(name)} of the input has gone"
        elif path.read_bytes() == content:
            continue
        elif _is_output(name, case):
            there[name] = path  # written again
        else:
            yield f"{_kind(name)} of the input has changed"
    for name, path in sorted(there.items()):
        if name == "canary" or not _is_output(name, case):
            yield f"left a file {_kind(name)}"
        elif path.is_symlink() or path.is_fifo():
            continue
        else:
            try:
                WHOLE_OF.get(_before(name, case), whole)(path)
                if code == 0:
                    read_back(path, case)
            except UnlikeError:
                yield f"wrote a {_kind(name)} that is read as another"
            except Exception as error:  # whatever a reader raises, the file is damaged
                yield f"wrote a damaged {_kind(name)}: {type(error).__name__} with exit code {code}"


def _before(name: str, case: Case) -> str:
    """The option that names the file."""
    return next((option for option, value in pairwise(case.arguments) if value == name), "")


def _kept(path: Path, folder: Path) -> bool:
    return path.relative_to(folder).parts[0] in ("home", "cache")


def os_name(path: Path, folder: Path) -> str:
    """A file's name in the folder."""
    return str(path.relative_to(folder))


def _is_output(name: str, case: Case) -> bool:
    """Outputs are called ``out`` in commands; files of rows and baselines are read and written,
    notebooks into a folder.

    A program of :mod:`fuzz_calls` may write anything into its folder.
    """
    if case.arguments[:1] == ("python",):
        return not name.endswith(".py")
    named = name in case.arguments or (
        name.endswith((".ipynb", ".jsonl.gz")) and _named_output(name.rpartition("/")[0], case)
    )
    return (
        name.startswith(("out.", "rows.", "hosim-baselines/")) or named or _named_output(name, case)
    )


def _named_output(name: str, case: Case) -> bool:
    return any(argument.endswith(name) for argument in case.arguments)


def _kind(name: str) -> str:
    suffix = Path(name).suffix
    return suffix if suffix in WHOLE else "of another ending"


def whole(path: Path) -> None:
    """Raises unless the file is complete, as its ending says."""
    check = WHOLE.get(path.suffix)
    if check is not None:
        check(path)


def _json(path: Path) -> None:
    json.loads(path.read_bytes())


def _yaml(path: Path) -> None:
    from hosim.base.files import content

    content(str(path))


def _framed(begin: bytes, end: bytes) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        content = path.read_bytes()
        assert content.startswith(begin)
        assert content.rstrip().endswith(end)

    return check


def _xml(path: Path) -> None:
    ElementTree.parse(path)


def _csv(path: Path) -> None:
    with path.open(newline="") as file:
        list(csv.reader(file, strict=True))


WHOLE: Mapping[str, Callable[[Path], object]] = {
    ".json": _json,
    ".ipynb": _json,
    ".yaml": _yaml,
    ".toml": lambda path: tomllib.loads(path.read_text()),
    ".svg": _xml,
    ".xml": _xml,
    ".png": _framed(b"\x89PNG\r\n", b"IEND\xaeB`\x82"),
    ".pdf": _framed(b"%PDF-", b"%%EOF"),
    ".html": _framed(b"<!", b"</html>"),
    ".csv": _csv,
    ".sh": Path.read_text,
    ".md": Path.read_text,
    ".gz": lambda path: gzip.decompress(path.read_bytes()),
}
"""How a file is seen to be complete, by its ending."""


def _output(path: Path) -> None:
    """What ``-o`` names is no picture and no page, whatever its ending."""
    if path.suffix not in (".svg", ".xml", ".png", ".pdf", ".html"):
        whole(path)
    elif path.read_bytes().startswith(b"{"):
        _json(path)


WHOLE_OF: Mapping[str, Callable[[Path], object]] = {
    "--junit": _xml,
    "--sarif": _json,
    "--summary": Path.read_text,
    "--html": WHOLE[".html"],
    "-o": _output,
    "--output": _output,
    "--trace": _json,
    "--certificate": _json,
    "--memory-viz": Path.read_bytes,
}
"""The same by the option that names the file, whatever its ending."""
