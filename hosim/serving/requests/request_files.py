"""Requests from files as people have them: JSON lines of servers and traces, CSV of Azure and
BurstGPT, the texts of ShareGPT.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any

from hosim.base.files import check_widths, csv_rows, decode, read_bytes
from hosim.errors import InputError, expect
from hosim.limits import Budget, within
from hosim.serving.requests.request import Request

_MOST = 1 << 40
_SESSION, _ELAPSED = "Session ID", "Elapsed time"
"""Columns of BurstGPT's second release: what a conversation is named by, and the seconds from a
request to the end of its answer.
"""
_CHARACTERS, _APART_NS = 4, 10**9
"""Of ShareGPT's texts, which have neither: characters of a token (OpenAI's rule of thumb for
English), and the time between the first turns of two conversations.
"""
_PROMPTS = frozenset({"human", "user", "system", "tool"})
"""From whom a text is part of the prompt; any other one is an answer."""
_SAID_PART = 16
"""Tokens that an id of a session's prefix stands for, as in its layout."""


@dataclass(frozen=True)
class _Layout:
    """The names of a layout: time of arrival with the nanoseconds of its unit (0: a date), tokens
    of prompt and answer, ids of blocks.

    ``mark`` is a key that only this layout has.
    """

    arrival: str
    unit_ns: int
    prompt: str
    output: str
    blocks: str = ""
    block_tokens: int = 16
    mark: str = ""

    def names(self, keys: Collection[str]) -> bool:
        """Return whether a row with these keys is of this layout."""
        return {self.arrival, self.prompt, self.output, *filter(None, [self.mark])} <= set(keys)


_LINES = (
    _Layout("arrival_ms", 10**6, "input_tokens", "output_tokens", "prefix_blocks_of_16", 16),
    _Layout(
        "timestamp", 10**9, "input_length", "output_length", "hash_ids", 16, "chat_id"
    ),  # Qwen's on Bailian
    _Layout("timestamp", 10**6, "input_length", "output_length", "hash_ids", 512),  # Mooncake
    _Layout("arrival_s", 10**9, "prompt_tokens", "output_tokens", "prefix_blocks_of_16", 16),
)
_COLUMNS = (
    _Layout("TIMESTAMP", 0, "ContextTokens", "GeneratedTokens"),  # Azure
    _Layout("Timestamp", 10**9, "Request tokens", "Response tokens"),  # BurstGPT
)


@dataclass(frozen=True)
class RequestRows:
    """The requests of a file by arrival, and where each stands among its ``count`` rows, counted
    from 0. ``assumed`` is what the file does not say, in one line.
    """

    requests: tuple[Request, ...]
    places: tuple[int, ...]
    count: int
    assumed: str = ""

    @property
    def unanswered(self) -> int:
        """Return the number of rows that have no answer, and are left out."""
        return self.count - len(self.requests)


def read_requests(path: str | os.PathLike[str]) -> tuple[Request, ...]:
    """The requests of a file, by arrival; the first arrives at time 0.

    JSON lines have ``arrival_s``, ``prompt_tokens`` and ``output_tokens``, or the keys of
    Mooncake's traces (``timestamp`` in milliseconds, ``input_length``, ``output_length``,
    ``hash_ids`` of 512 tokens), or those of Qwen's traces on Bailian (the same keys and
    ``chat_id``: seconds, and blocks of 16 tokens), or ``arrival_ms``, ``input_tokens`` and
    ``output_tokens``. CSV has the columns of Azure's (``TIMESTAMP``, ``ContextTokens``,
    ``GeneratedTokens``) or BurstGPT's traces, whose sessions are conversations. Each request may
    have a ``priority``. A line may be the next turn of a conversation: ``follows`` is the number of
    the line of the turn before it, from 0, and its arrival is counted from that one's last token.
    ShareGPT's JSON, a list of objects with ``conversations``, has no times, and lengths only in
    messages with ``tokens``: see ``assumed`` of :class:`RequestRows`. Requests that got no answer
    are left out. Raises :class:`InputError` with the line, or the place in JSON.
    """
    return read_request_rows(path).requests


def read_request_rows(path: str | os.PathLike[str]) -> RequestRows:
    """Like :func:`read_requests`, and the rows in which the requests stand."""
    source = os.fspath(path)
    text = decode(read_bytes(source), source)
    begin, assumed = text.lstrip()[:1], ""
    if begin == "[":
        found, assumed = _conversations(text, source)
    else:
        found = _lines(text, source) if begin == "{" else _columns(text, source)
    answered = [
        (place, request)
        for place, request in enumerate(found)
        if request.prompt_tokens and request.output_tokens
    ]
    if not answered:
        raise InputError(
            "no request with an answer in it" if found else "no request in it", source=source
        )
    answered.sort(
        key=lambda one: (one[1].follows is not None, one[1].arrival_ns * (one[1].follows is None))
    )
    first = answered[0][1].arrival_ns
    numbers = {place: number for number, (place, _) in enumerate(answered)}
    moved = [
        replace(request, arrival_ns=request.arrival_ns - first)
        if request.follows is None
        else replace(request, follows=numbers[_turn_before(found, request.follows, place, source)])
        for place, request in answered
    ]
    return RequestRows(tuple(moved), tuple(place for place, _ in answered), len(found), assumed)


def _turn_before(found: Sequence[Request], follows: int, place: int, source: str) -> int:
    """The row that another follows: one before it that has an answer."""
    if not (0 <= follows < place and found[follows].prompt_tokens and found[follows].output_tokens):
        raise InputError(
            f"expected the number of an earlier request with an answer, from 0, got {follows}",
            source=source,
            where=f"request {place}, follows",
        )
    return follows


def _lines(text: str, source: str) -> list[Request]:
    found = []
    budget = Budget("records")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        budget.draw(source=source, where=f"line {number}")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"expected a request as JSON in each line: {error}",
                source=source,
                where=f"line {number}",
            ) from None
        expect(row, dict, "an object", f"line {number}", source)
        layout = next((one for one in _LINES if one.names(row)), None)
        if layout is None:
            known = " or ".join(dict.fromkeys(map(_keys, _LINES)))
            raise InputError(f"expected the keys {known}", source=source, where=f"line {number}")
        found.append(_request(row, layout, source, number, float))
    return found


def _columns(text: str, source: str) -> list[Request]:
    rows = csv_rows(text.encode(), source)
    header = rows[0] if rows else []
    layout = next((one for one in _COLUMNS if one.names(header)), None)
    if layout is None:
        known = " or ".join(map(_keys, _COLUMNS))
        raise InputError(
            f"expected JSON lines with {_keys(_LINES[-1])}, or CSV with the columns {known}",
            source=source,
        )
    check_widths(rows, source)
    within("records", len(rows) - 1, source=source)
    read = _date_s if layout.unit_ns == 0 else float
    named = [dict(zip(header, row, strict=True)) for row in rows[1:]]
    found = [_request(row, layout, source, number, read) for number, row in enumerate(named, 2)]
    if _SESSION not in header:
        return found
    lines = [f"line {number}" for number in range(2, len(rows) + 1)]
    return _in_sessions(named, found, source, lines)


def _in_sessions(
    rows: Sequence[Mapping[str, str]], found: Sequence[Request], source: str, places: Sequence[str]
) -> list[Request]:
    """The requests of sessions as turns: each follows the one before it that got an answer, after
    the time that passed from that answer on. A prompt that is at least as long as all that was said
    begins with it. ``places`` are those of the requests in the file.
    """
    turns: list[Request] = []
    last: dict[str, tuple[int, float]] = {}
    ids, budget = count(1), Budget("values")
    for place, (row, request) in enumerate(zip(rows, found, strict=True)):
        session = row[_SESSION].strip()
        if not (session and request.prompt_tokens and request.output_tokens):
            turns.append(request)
            continue
        try:
            took = float(row[_ELAPSED])
        except (KeyError, ValueError):
            took = -1.0
        if not 0 <= took < _MOST:
            raise InputError(
                f"expected seconds, got {row.get(_ELAPSED, '')[:40]!r}",
                source=source,
                where=f"{places[place]}, {_ELAPSED}",
            )
        said = request.prompt_tokens + request.output_tokens
        before, ended_ns = last.get(session, (None, 0.0))
        heard: tuple[int, ...] = ()
        if before is not None:
            earlier = found[before].prompt_tokens + found[before].output_tokens
            if request.prompt_tokens >= earlier:
                heard = turns[before].prefix[: earlier // _SAID_PART]
        parts = -(-said // _SAID_PART)
        budget.draw(parts, source=source, where=places[place])
        prefix = (*heard, *islice(ids, parts - len(heard)))
        last[session] = place, request.arrival_ns + took * 1e9
        if before is None:
            turns.append(replace(request, prefix=prefix))
            continue
        thought = max(0, round(request.arrival_ns - ended_ns))
        turns.append(replace(request, prefix=prefix, follows=before, arrival_ns=thought))
    return turns


def _conversations(text: str, source: str) -> tuple[list[Request], str]:
    """The requests of ShareGPT's conversations, and what is assumed of them: each text that is not
    part of a prompt is an answer to all that was said before it.
    """
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected a list of conversations as JSON: {error}", source=source
        ) from None
    rows: list[Mapping[str, str]] = []
    found: list[Request] = []
    places: list[str] = []
    budget, counted = Budget("records"), False
    for number, one in enumerate(listed):
        said = 0
        given = one.get("conversations") if isinstance(one, Mapping) else None
        what = "an object with a list, 'conversations'"
        for place, message in enumerate(expect(given, list, what, f"{number}", source)):
            where = f"{number}.conversations.{place}"
            budget.draw(source=source, where=where)
            tokens, known = _tokens(message, source, where)
            counted = counted or not known
            if message["from"] not in _PROMPTS and said:
                places.append(where)
                found.append(Request(number * _APART_NS, said, tokens))
                rows.append({_SESSION: str(number), _ELAPSED: "0"})
            said += tokens
    line = (
        "the file has no times: conversations begin a second apart here, and a turn follows the "
        "answer before it at once"
    )
    if counted:
        line += f"; a text without 'tokens' has one for {_CHARACTERS} characters"
    return _in_sessions(rows, found, source, places), line


def _tokens(message: Any, source: str, where: str) -> tuple[int, bool]:
    """The tokens of a message, and whether it says how many."""
    if not isinstance(message, Mapping) or not all(
        [isinstance(message.get(key), str) for key in ("from", "value")]
    ):
        raise InputError("expected the texts 'from' and 'value'", source=source, where=where)
    if "tokens" not in message:
        return -(-len(message["value"]) // _CHARACTERS), False
    tokens = message["tokens"]
    if type(tokens) is not int or not 0 <= tokens < _MOST:
        raise InputError(
            f"expected a whole number of at least 0, got {str(tokens)[:40]!r}",
            source=source,
            where=f"{where}.tokens",
        )
    return tokens, True


def _request(
    row: Mapping[str, Any], layout: _Layout, source: str, number: int, read: Callable[[Any], float]
) -> Request:
    def checked(name: str, value: Callable[[Any], float], expected: str) -> float:
        try:
            got = value(row[name])
        except (TypeError, ValueError, OverflowError):
            got = -1.0
        if isinstance(row[name], bool) or not 0 <= got < _MOST:
            raise InputError(
                f"expected {expected}, got {str(row[name])[:40]!r}",
                source=source,
                where=f"line {number}, {name}",
            )
        return got

    what = (
        "a number of at least 0"
        if layout.unit_ns
        else "a date and time such as 2023-11-16 18:15:46.68"
    )
    arrival = round(checked(layout.arrival, read, what) * (layout.unit_ns or 10**9))
    prompt, output = (
        int(checked(name, _count, "a whole number of at least 0"))
        for name in (layout.prompt, layout.output)
    )
    blocks = (row.get(layout.blocks) if layout.blocks else None) or ()
    if not isinstance(blocks, (list, tuple)) or not all(
        type(block) is int and block.bit_length() <= 64 for block in blocks
    ):
        # larger ones can be chosen so that a table of them takes time with the square of their
        # count
        raise InputError(
            "expected a list of whole numbers of at most 64 bits",
            source=source,
            where=f"line {number}, {layout.blocks}",
        )
    return Request(
        arrival,
        prompt,
        output,
        tuple(blocks),
        layout.block_tokens,
        _whole(row.get("priority", 0), source, number, "priority"),
        None if row.get("follows") is None else _whole(row["follows"], source, number, "follows"),
    )


def _whole(value: Any, source: str, number: int, name: str) -> int:
    """A whole number, which CSV has as text."""
    try:
        found = int(value) if isinstance(value, str) and len(value) < 15 else value
    except ValueError:
        found = None
    if type(found) is not int or not -_MOST < found < _MOST:
        raise InputError(
            f"expected a whole number, got {str(value)[:40]!r}",
            source=source,
            where=f"line {number}, {name}",
        )
    return found


def _keys(layout: _Layout) -> str:
    return f"{layout.arrival}, {layout.prompt}, {layout.output}"


def _count(value: Any) -> float:
    """A whole number, which a file may hold as ``12.0``."""
    number = float(value)
    if not number.is_integer():
        raise ValueError(value)
    return number


def _date_s(text: str) -> float:
    """A date and time as seconds, in UTC unless it says otherwise; of a second it keeps six
    digits.
    """
    instant = datetime.fromisoformat(text.strip())
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
