"""Reading and writing of files: JSON and YAML, gzip, one clear error for anything wrong, atomic and
deterministic output.

:func:`read` returns the mapping in a file of the wanted ``format``; the module of that format knows
what the keys mean. :func:`write` replaces a file as a whole or not at all.
"""

import gzip
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from hosim.base.files.bounded import SURROGATE, check_json, check_lines, read_bytes
from hosim.base.files.formats import unexpected
from hosim.errors import InputError
from hosim.limits import refusal
from hosim.plain_text import shown

VERSION = 1
"""The version of every format that this hosim reads and writes."""

KINDS = ("workload", "hardware", "plan", "result", "comparison", "routing", "runtime")
"""Every kind of file; its ``format`` is ``hosim.KIND/VERSION``."""

_START = 4096
"""The number of bytes that tell JSON from YAML if the file's name does not."""


def format_of(kind: str) -> str:
    """The ``format`` of a kind of file.

    >>> format_of("workload")
    'hosim.workload/1'
    """
    return f"hosim.{kind}/{VERSION}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the nearest known name, or nothing if none is near.

    >>> did_you_mean("wieght", ["weight", "bias"])
    "; did you mean 'weight'?"
    >>> did_you_mean("rate", ["router", "requests.rate"])
    "; did you mean 'requests.rate'?"
    """
    names = list(known)
    near = [one for one in names if one.endswith(f".{name}")] or get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known one, else up to eight known ones."""
    names = list(known)
    hint = did_you_mean(name, names)
    if hint or not names:
        return f"unknown {what} {name!r}" + (hint or f"; there is no {what} at all")
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return f"unknown {what} {name!r} (known: {', '.join(names[:8])}{more})"


def read(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The mapping in the file at ``path``, whose ``format`` is that of ``kind``.

    The name decides between JSON and YAML, or else the content; the content tells gzip. Raises
    :class:`InputError` with the file's name for anything wrong so far.
    """
    source = name_of_file(path)
    try:
        data = content(source)
        check_format(data, kind, source)
    except InputError as error:
        raise (
            unexpected(source, f"a {_TITLES.get(kind, kind)} ({format_of(kind)})", ours=False)
            or error
        ) from None
    assert isinstance(data, dict)
    return data


def content(source: str, *, constants: bool = False) -> object:
    """The data in the file ``source``, of any format; raises :class:`InputError` if it is neither
    JSON nor YAML.

    ``constants``: whether ``NaN`` and ``Infinity`` are numbers of JSON, as other programs write
    them.
    """
    return content_of(read_bytes(source), source, constants=constants)


def content_of(raw: bytes, source: str, *, constants: bool = False) -> object:
    """Like :func:`content`, for what is in the file. It is refused before it becomes data if that
    would take too much room.
    """
    if _is_json(raw[:_START].decode("utf-8-sig", "ignore"), source):
        check_json(raw, source)
    else:
        check_lines(raw, source)
    return parse(decode(raw, source), source, constants=constants)


def _is_json(start: str, source: str) -> bool:
    """Return whether a file is JSON and not YAML: its name decides, or else the content."""
    name = source.removesuffix(".gz")
    return (
        start.lstrip()[:1] in ("{", "[")
        if not name.endswith((".json", ".yaml", ".yml"))
        else name.endswith(".json")
    )


def decode(content: bytes, source: str) -> str:
    """``content`` as text; raises :class:`InputError` if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected UTF-8 text, byte {error.start} is not; convert the file to UTF-8",
            source=source,
        ) from None


def parse(text: str, source: str, *, constants: bool = False) -> object:
    """The data in a text of JSON or YAML, as the name ``source`` says; raises :class:`InputError`
    with line and column.
    """
    try:
        if _is_json(text[:_START], source):
            data = json.loads(
                text, object_pairs_hook=_unique, parse_constant=float if constants else _no_constant
            )
            if _HALF.search(text):
                _check_text(data)
            return data
        from hosim.base.files import yamltext

        return yamltext.load(text)
    except json.JSONDecodeError as error:
        message = f"broken JSON at line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        raise refusal("nesting_depth", source=source) from None
    except ValueError as error:
        message = str(error)
    raise InputError(message, source=source)


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half of a character, which two of them together are."""


def _check_text(data: object) -> None:
    """Raise :class:`ValueError` for half of a character without the other, which no file and no
    terminal can have.
    """
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and (half := SURROGATE.search(value)):
            raise ValueError(
                f"expected text, got half of a character ({ascii(half[0])[1:-1]}) in "
                f"{ascii(value)[1:-1][:40]}; remove it"
            )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} is given twice in one object; keep one of them")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"expected a finite number, got {name}")


_TITLES = {"hardware": "hardware profile"}
"""The name of a kind of file in errors, if not the one in its format."""


def check_format(data: object, kind: str, source: str | None = None) -> None:
    """Raise :class:`InputError` unless ``data`` is a mapping whose ``format`` is that of ``kind``,
    in a version known here.
    """
    expected, title = format_of(kind), _TITLES.get(kind, kind)
    if not isinstance(data, Mapping):
        found = "nothing" if data is None else "a list"
        if not isinstance(data, list | None):
            found = f"{type(data).__name__} {data!r:.40}"
        raise InputError(
            f"expected a {title} (a mapping with format: {expected}), got {found}", source=source
        )
    if "format" not in data:
        raise InputError(
            f"missing; a {title} begins with format: {expected}", source=source, where="format"
        )
    found = data["format"]
    if found == expected:
        return
    family, _, version = found.partition("/") if isinstance(found, str) else ("", "", "")
    other = family.removeprefix("hosim.")
    if other in KINDS and other != kind and family != other:
        raise InputError(
            f"expected a {title} ({expected}), this is a {_TITLES.get(other, other)} ({found})",
            source=source,
            where="format",
        )
    if family == f"hosim.{kind}" and version.isdecimal() and int(version[:18]) > VERSION:
        advice = (
            f"from a newer hosim, and this one reads {expected}: update hosim, or write the "
            "file again with this one"
        )
        raise InputError(f"{found!r} is {advice}", source=source, where="format")
    raise InputError(f"expected {expected!r}, got {shown(found)}", source=source, where="format")


def to_text(data: Mapping[str, Any]) -> str:
    """JSON with one line for each item of a top-level list and for each other top-level key: small,
    and diffs stay readable.

    ASCII only, keys in the order given. Raises :class:`InputError` for values that JSON cannot hold
    (in a workload's ``meta``).
    """
    encode = json.JSONEncoder(allow_nan=False, check_circular=False).encode
    lines = []
    try:
        for key, value in data.items():
            text = encode(value)
            if isinstance(value, list) and value:
                # one call for the whole list, which is ten times faster than one per item; inside a
                # JSON string a quote has a backslash before it, so this sequence stands only
                # between items
                text = "[\n  " + text[1:-1].replace('}, {"', '},\n  {"') + "]"
            lines.append(f" {encode(key)}: {text}")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be written as JSON: {error}", where=str(key)) from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write ``data`` to ``path``: YAML or JSON, as the name says, gzip if it ends in ``.gz``.

    The file is replaced as a whole: after a crash or on a full disk the old one is still there.
    Equal data give equal bytes. Raises :class:`InputError` if the file cannot be written.
    """
    target = name_of_file(path)
    if target.removesuffix(".gz").endswith((".yaml", ".yml")):
        from hosim.base.files import yamltext

        try:
            content = yamltext.dump(data).encode()
        except (yamltext.Unwritable, RecursionError) as error:
            raise InputError(f"cannot be written as YAML: {error}", source=target) from None
    else:
        content = to_text(data).encode()
    write_bytes(target, compressed(content) if target.endswith(".gz") else content)


def compressed(content: bytes) -> bytes:
    """Gzip without a file name or a time in its header, so that equal contents give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as stream:
        stream.write(content)
    return buffer.getvalue()


def check_ending(path: str | os.PathLike[str], *endings: str, packed: bool = True) -> None:
    """Raise :class:`InputError` unless the name ends in one of these, or has no ending: nobody
    would look there.

    ``packed`` says whether ``.gz`` may follow.
    """
    source = name_of_file(path)
    if os.path.splitext(source.removesuffix(".gz") if packed else source)[1] not in ("", *endings):
        names = f"{endings[0]}, {endings[0]}.gz" if packed else endings[0]
        raise InputError(
            f"expected a name that ends in {names}{''.join(f' or {e}' for e in endings[1:2])}",
            source=source,
        )


def name_of_file(path: object) -> str:
    """The name of a file as text. Raises :class:`InputError` for what names none."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {shown(path)}", source="path")
    return os.fspath(path)


def check_no_name(source: str, finder: str) -> None:
    """Raise :class:`InputError` for what is no file and looks like a name, which ``finder``
    takes.
    """
    if (
        source.isprintable()
        and source
        and not os.path.exists(source)
        and not os.path.splitext(source)[1]
        and os.sep not in source
    ):
        raise InputError(f"no such file; for a name give {finder.format(source)}", source=source)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise :class:`InputError` unless ``path`` is a file that can be replaced or made: no device,
    pipe or folder, and in a folder.

    Whoever computes for long before it writes asks first.
    """
    source = name_of_file(path)
    try:
        target = os.path.realpath(source)
        if not os.path.isdir(os.path.dirname(target)):
            raise InputError("cannot be written: no such directory", source=source)
        kind = os.stat(target).st_mode if os.path.exists(target) else stat.S_IFREG
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be written: {getattr(error, 'strerror', None) or error}", source=source
        ) from None
    if not stat.S_ISREG(kind):
        what = "directory" if stat.S_ISDIR(kind) else "pipe" if stat.S_ISFIFO(kind) else "device"
        raise InputError(f"cannot be written: this is a {what}; name a file", source=source)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file at ``path`` (or, through a link, the file it leads to) by ``content``, as a
    whole or not at all.
    """
    check_target(path)
    source = os.fspath(path)
    target = os.path.realpath(source)
    beside = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{os.getpid()}.tmp")
    try:
        try:
            with open(beside, "xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be written: {getattr(error, 'strerror', None) or error}", source=source
        ) from None
