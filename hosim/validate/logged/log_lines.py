"""Lines of users' logs: the time and the memory of steps.

A file has runs. Each consists of a line ``run WORKLOAD -H HARDWARE [-p POLICY]`` and unchanged
lines of its log. For a server the workload is its model; ``--token-budget``, ``--max-sequences``
and ``--memory-share`` may follow, and the lines may be a page of its metrics. Lines that match no
pattern are ignored. A figure of a run is the median over its lines; of three or more, the first is
omitted, because a program warms up in it.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from hosim.base.files import decode, read_bytes
from hosim.base.groups import grouped
from hosim.errors import InputError
from hosim.plain_text import shown
from hosim.validate.logged.server_lines import ServerFigures, server_figures

STEP, RATE, RESERVED, ALLOCATED, BLOCKS = FIGURES = (
    "step",
    "tokens/s",
    "reserved",
    "allocated",
    "blocks",
)
"""Figures of a run: seconds of a step, tokens a second of a device, GiB, and blocks of 16 tokens that a
server has for its cache."""

_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_UNITS = {
    "ms": 1e-3,
    "s": 1.0,
    "tokens": 1 / 16,
    "GiB": 1.0,
    "GB": 1e9 / 2**30,
    "MiB": 2.0**-10,
    "MB": 1e6 / 2**30,
}
_MEMORY = rf"{_NUMBER}\s*(GiB|GB|MiB|MB)"
_TOKENS = r"(?:tps|tok/s|tokens?/s(?:ec)?|tokens?[ _]per[ _]sec(?:ond)?(?:[ _]per[ _]\w+)?)"
_PATTERNS = (
    (STEP, rf"(?:step|iteration|iter)[ _]?time[^\d\n]{{0,12}}{_NUMBER}\s*(ms|s)\b", ""),
    (STEP, rf"time per iteration \(ms\)\s*[:=]\s*{_NUMBER}()", "ms"),
    (STEP, rf"{_NUMBER}\s*(ms|s)/(?:it|step|iter)\b", ""),
    (RATE, rf"\b{_TOKENS}\s*[:=]\s*{_NUMBER}()", "s"),
    (RATE, rf"{_NUMBER}()\s*{_TOKENS}(?!\w)", "s"),
    (RESERVED, rf"reserved[^\d\n]{{0,20}}{_MEMORY}", ""),
    (RESERVED, rf"\bmemory:\s*{_MEMORY}\(", ""),  # torchtitan: the most reserved
    (BLOCKS, rf"#\s*(?:GPU|CUDA) blocks:\s*{_NUMBER}()", "s"),
    (BLOCKS, rf"KV cache size:\s*{_NUMBER}\s*(tokens)", ""),
    (ALLOCATED, rf"allocated[^\d\n]{{0,20}}{_MEMORY}", ""),
)
_LIMITS = {
    "--token-budget": "token_budget",
    "--max-sequences": "max_sequences",
    "--memory-share": "memory_share",
}
_OPTIONS = {"-H": "hardware", "--hardware": "hardware", "-p": "policy", "--policy": "policy"}


@dataclass(frozen=True)
class LoggedRun:
    """A run: its workload, hardware and policy, and the median of each of :data:`FIGURES` in its
    log.

    ``line`` is its first line in the file. ``limits`` are those of a server, if its line gives
    them: ``token_budget``, ``max_sequences`` and ``memory_share``. ``server`` has the iterations
    and requests in its lines.
    """

    workload: str
    hardware: str
    policy: str
    figures: dict[str, float]
    line: int
    limits: dict[str, float] = field(default_factory=dict)
    server: ServerFigures = field(default_factory=ServerFigures)


def read_logged_runs(path: str | os.PathLike[str]) -> list[LoggedRun]:
    """Return the runs of a file. Raises :class:`InputError`, with the line, if there is no run, if
    one does not name its workload and hardware, or if its log has no known figure.
    """
    source = os.fspath(path)
    lines = decode(read_bytes(source), source).splitlines()
    begins = [n for n, line in enumerate(lines) if re.match(r"run\s", line)]
    if not begins:
        raise InputError(
            "expected runs: a line 'run WORKLOAD -H HARDWARE', and lines of its log", source=source
        )
    return [
        _run(lines[begin], lines[begin + 1 : end], source, begin + 1)
        for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True)
    ]


def figures_in(lines: Iterable[str]) -> dict[str, float]:
    """The median of each figure over lines of a log.

    >>> log = ["step: 20  loss: 8.1  memory: 47.65GiB(50.2%)  tps: 7,200  mfu: 48%"]
    >>> figures_in(log)
    {'tokens/s': 7200.0, 'reserved': 47.65}
    """
    found = grouped((name, value) for line in lines for name, value in _figures(line))
    warm = {name: each[1:] if len(each) > 2 else each for name, each in found.items()}
    return {name: median(warm[name]) for name in FIGURES if name in warm}


def _figures(line: str) -> Iterator[tuple[str, float]]:
    known = set()
    for name, pattern, unit in _PATTERNS:
        match = None if name in known else re.search(pattern, line, re.IGNORECASE)
        value = float(match[1].replace(",", "")) if match else 0.0
        if match and value > 0:
            known.add(name)
            units = {key.lower(): scale for key, scale in _UNITS.items()}
            yield name, value * units[(match[2] or unit).lower()]


def _run(head: str, log: list[str], source: str, line: int) -> LoggedRun:
    where = f"line {line}"
    try:
        _, *words = shlex.split(head)
    except ValueError as error:
        raise InputError(
            f"cannot be split into words: {error}", source=source, where=where
        ) from None
    workload, given = "", {"policy": "resident"}
    limits: dict[str, float] = {}
    rest = iter(words)
    for word in rest:
        if word in _OPTIONS:
            given[_OPTIONS[word]] = next(rest, "")
        elif word in _LIMITS:
            limits[_LIMITS[word]] = _limit(word, next(rest, ""), source, where)
        elif not workload and not word.startswith("-"):
            workload = word
        else:
            raise InputError(
                f"expected 'run WORKLOAD -H HARDWARE [-p POLICY]', got {shown(word, 60)}",
                source=source,
                where=where,
            )
    if not workload or not given.get("hardware"):
        raise InputError("expected 'run WORKLOAD -H HARDWARE'", source=source, where=where)
    figures = figures_in(log)
    server = server_figures(log, figures.get(BLOCKS, 0.0) * 16)
    if BLOCKS not in figures and not server.steps and (server.lacks or not figures):
        raise InputError(
            server.lacks
            or "no line of this run has a figure that hosim knows: a step time with ms or s, "
            "tokens/s or tps, memory reserved or allocated with its unit, GPU blocks, or what "
            "a server of vLLM or SGLang logs",
            source=source,
            where=where,
        )
    return LoggedRun(workload, given["hardware"], given["policy"], figures, line, limits, server)


def _limit(option: str, text: str, source: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    whole = option == "--memory-share" or value == int(value)
    if not 0 < value <= (1 if option == "--memory-share" else 2**31) or not whole:
        raise InputError(
            f"expected a number behind {option}, got {shown(text, 60)}", source=source, where=where
        )
    return value
