"""Baseline files: records as sorted text that a person can review, one file per case. The machine
lies beside them (:mod:`hosim.gate.records.machine_file`).

Equal records give equal bytes. A comment beside each value says what it means. A list longer than
:data:`LINES` has its largest items and the sum of the others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

from hosim.base.groups import grouped
from hosim.data.draws import Draws, LaterDraws
from hosim.data.versions import REPLAY
from hosim.errors import InputError
from hosim.gate.judged_metrics import MAKESPAN, human
from hosim.gate.records.folding import absolute, fold, relative, unfold
from hosim.gate.records.machine_file import machine_name, machine_path, read_machine
from hosim.gate.records.record import GraphRecord, Item, Listing, PeakRecord, Record
from hosim.limits import within
from hosim.units import human_flops, human_size, human_time

_PLAIN_WORD = re.compile(r"[!-$&-~]+")
"""A name that is a word as it is."""

if TYPE_CHECKING:
    from hosim.io.gate_files import BaselineModel, GraphModel, ListingModel

LINES = 60
"""The number of lines that a list may have."""

GRAPH_LINES = 200
"""The most of them that those of the graph may have: an op that is not there cannot be named as the
cause of a change.
"""

_OF_GRAPH = ("tensors", "workspaces", "times", "flops")

_FIRST = 1024

_PARTS = 10_000
"""A makespan in draws is said in so many parts of the makespan."""

_BUDGET = "budget"

_SINCE, _UNTIL = " {since} ", " {until} "
"""No folded name can equal this, because folding doubles a name's own braces."""

HEADER = (
    "# Written by hosim: what one simulated step needs. Review a change of it like code; "
    "'hosim baseline update' writes it again.\n"
)


def read_record(path: str | os.PathLike[str]) -> Record:
    """The record in a baseline file. Raises :class:`InputError`."""
    from hosim.io.gate_files import load_baseline

    data = load_baseline(path)
    source = os.fspath(path)
    return Record(
        case=data["case"],
        asked=data["asked"],
        fingerprints={
            key: value for key, value in data["fingerprints"].items() if isinstance(value, str)
        },
        metrics=data["metrics"],
        machine=_machine(data, path),
        peaks={
            tier: PeakRecord(
                op=peak.get("op"),
                composition=peak.get("composition", {}),
                residents=_listing(peak.get("residents"), source, f"peaks.{tier}.residents"),
                away=_listing(peak.get("away"), source, f"peaks.{tier}.away"),
            )
            for tier, peak in data.get("peaks", {}).items()
        },
        moved={
            channel: _listing(listed, source, f"moved.{channel}")
            for channel, listed in data.get("moved", {}).items()
        },
        stalls=_listing(data.get("stalls"), source, "stalls"),
        durations=_listing(data.get("durations"), source, "durations"),
        curve=tuple(data.get("curve", ())),
        hosim=data["hosim"],
        versions={REPLAY: data["semantics"], **data.get("versions", {})},
        notes=tuple(data.get("notes", ())),
        graph=_graph(data.get("graph", {}), source),
        draws=_draws(data),
    )


def _draws(data: BaselineModel) -> LaterDraws | None:
    """The makespans in draws, which the file has over that of the metrics, 0 where the plan does
    not fit; and of peaks the ceiling.
    """
    if "draws" not in data:
        return None
    whole = data["metrics"].get(MAKESPAN, 0)
    times = tuple([round(whole * part / _PARTS) if part else None for part in data["draws"]])
    ceiling = (data["ceiling"],) if "ceiling" in data else ()
    return LaterDraws.of(Draws(times, peak_bytes=ceiling))


def _machine(data: BaselineModel, path: str | os.PathLike[str]) -> Mapping[str, str]:
    """The machine that a baseline names, with the case's budget, or that of an older file, which
    has all of it.
    """
    given = data.get("machine", {})
    if not isinstance(given, str):
        return given
    own = {_BUDGET: data["budget"]} if "budget" in data else {}
    return {**read_machine(given, Path(path).parent, os.fspath(path)), **own}


def _graph(data: GraphModel, source: str) -> GraphRecord:
    listings = {
        name: _listing(cast("ListingModel | None", data.get(name)), source, f"graph.{name}")
        for name in _OF_GRAPH
    }
    shapes: dict[str, int] = {}
    for i, line in enumerate(data.get("shapes", ())):
        count, _, shape = line.partition(" ")
        if not (count.isascii() and count.isdecimal() and shape):
            raise InputError(
                f"expected a whole number and an op, got {line!r}; 'hosim baseline update' writes "
                "the file again",
                source=source,
                where=f"graph.shapes[{i}]",
            )
        shapes[shape] = int(count)
    others, again = data.get("other_shapes", 0), data.get("again")
    return GraphRecord(**listings, shapes=shapes, others=others, again=again)


def save_record(record: Record, path: str | os.PathLike[str], *, curve: bool = False) -> bool:
    """Write a baseline file, its machine and their folder; returns whether the baseline changed.

    ``curve`` keeps the memory curve, whose numbers no two branches have in common. Raises
    :class:`InputError` if it cannot be written.
    """
    changed = save_text(record_text(record, curve=curve), path)
    machine = machine_path(machine_name(_profile(record)), Path(path).parent)
    confined(machine, Path(path).parent, os.fspath(machine))
    lines = f"format = {quoted('hosim.machine/1')}", *_table("machine", _profile(record))
    save_text(HEADER + "".join(f"{line}\n" for line in lines), machine)
    return changed


def _profile(record: Record) -> dict[str, str]:
    """The machine without the budget, which is the case's own."""
    return {key: value for key, value in record.machine.items() if key != _BUDGET}


def save_text(text: str, path: str | os.PathLike[str]) -> bool:
    """Like :func:`save`, for the given text."""
    from hosim.base.files import write_bytes

    target = Path(path)
    confined(target, target.parent, os.fspath(path))
    content = text.encode()
    with suppress(OSError):  # missing or unreadable: writing reports what is wrong
        if (
            target.is_file()
            and target.stat().st_size == len(content)
            and target.read_bytes() == content
        ):
            return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be created: {error.strerror}", source=str(target.parent)
        ) from None
    write_bytes(target, content)
    return True


def record_text(record: Record, *, curve: bool = False) -> str:
    """The text of a baseline file."""
    return HEADER + "".join(line + "\n" for line in _lines(record, curve))


def _lines(record: Record, curve: bool) -> Iterator[str]:
    yield f"format = {quoted('hosim.baseline/1')}"
    yield f"case = {quoted(record.case)}"
    yield f"hosim = {quoted(record.hosim)}"
    yield f"semantics = {record.versions[REPLAY]}"
    yield f"machine = {quoted(machine_name(_profile(record)))}"
    if _BUDGET in record.machine:
        yield f"budget = {quoted(record.machine[_BUDGET])}"
    # on one line, so that branches that change one case collide: only measuring tells what both do
    prints = sorted(record.fingerprints.items())
    yield f"fingerprints = {{{', '.join(f'{key} = {quoted(text)}' for key, text in prints)}}}"
    if curve:
        yield f"curve = {list(record.curve)}"
    if record.draws is not None and (drawn := record.draws()) is not None:
        whole = record.metrics.get(MAKESPAN) or 1
        parts = [0 if ns is None else round(_PARTS * ns / whole) for ns in drawn.makespan_ns]
        yield f"draws = {parts}  # makespans in draws, in ten-thousandths"
        if record.ceiling > record.metrics.get(record.device_peak, 0):
            yield f"ceiling = {record.ceiling}  # {record.device_peak} in 9 of 10 draws"
    if record.notes:
        yield f"notes = [{', '.join(map(quoted, record.notes))}]"
    yield from version_lines(record.versions)
    yield from _table("asked", record.asked)
    yield "\n[metrics]"
    for name in sorted(record.metrics):
        yield f"{quoted(name)} = {record.metrics[name]}  # {human(name, record.metrics[name])}"
    for tier, peak in sorted(record.peaks.items()):
        yield f"\n[peaks.{quoted(tier)}]"
        if peak.op is not None:
            yield f"op = {quoted(peak.op)}"
        yield f"\n[peaks.{quoted(tier)}.composition]"
        for kind, held in sorted(peak.composition.items()):
            yield f"{quoted(kind)} = {held}  # {human_size(held)}"
        yield from _listed(f"peaks.{quoted(tier)}.residents", peak.residents, human_size)
        yield from _listed(f"peaks.{quoted(tier)}.away", peak.away, human_size)
    for channel, listing in sorted(record.moved.items()):
        yield from _listed(f"moved.{quoted(channel)}", listing, human_size)
    yield from _listed("stalls", record.stalls, human_time)
    yield from _listed("durations", record.durations, human_time)
    yield from _graph_lines(record.graph)


def _graph_lines(graph: GraphRecord) -> Iterator[str]:
    if graph.shapes:
        shapes = sorted(graph.shapes, key=lambda shape: (-graph.shapes[shape], shape))
        left = graph.others + sum(graph.shapes[shape] for shape in shapes[GRAPH_LINES:])
        yield "\n[graph]"
        if left:
            yield f"other_shapes = {left}"
        if graph.again is not None:
            again = [f"{quoted(kind)} = {ops}" for kind, ops in sorted(graph.again.items())]
            yield f"again = {{{', '.join(again)}}}"
        yield "shapes = ["
        for shape in sorted(shapes[:GRAPH_LINES]):
            yield f"  {quoted(f'{graph.shapes[shape]} {shape}')},"
        yield "]"
    for name in _OF_GRAPH:
        say = {"times": human_time, "flops": human_flops}.get(name, human_size)
        yield from _listed(f"graph.{name}", getattr(graph, name), say, GRAPH_LINES)


def version_lines(versions: Mapping[str, int]) -> Iterator[str]:
    """The table of versions; those of a replay's rules have a line of their own, which is as old as
    the format.
    """
    if others := {name: number for name, number in versions.items() if name != REPLAY}:
        yield "\n[versions]"
        for name in sorted(others):
            yield f"{quoted(name)} = {others[name]}"


def _table(name: str, values: Mapping[str, str]) -> Iterator[str]:
    yield f"\n[{name}]"
    for key in sorted(values):
        yield f"{quoted(key)} = {quoted(values[key])}"


def _listed(name: str, listing: Listing, say: Any, most: int = LINES) -> Iterator[str]:
    if not listing.items and not listing.others:
        return
    rows = [
        (label, text + span, value, count)
        for (label, value, span), names in grouped(
            ((item.label, item.value, _span(item)), item.name) for item in listing.items
        ).items()
        for text, count in fold(names)
    ]
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))
    kept, left = rows[:most], rows[most:]
    yield f"\n[{name}]"
    yield "items = ["
    for label, text, value, count in sorted(kept):
        each = f"{count} x {say(value)} = {say(value * count)}" if count > 1 else say(value)
        yield f"  {quoted(f'{as_word(label)} {value} {text}')},  # {each}"
    yield "]"
    others = listing.others + sum(row[3] for row in left)
    if others:
        held = listing.others_value + sum(row[2] * row[3] for row in left)
        yield f"others = [{others}, {held}]  # {others} more: {say(held)}"


def _listing(data: ListingModel | None, source: str, where: str) -> Listing:
    if data is None:
        return Listing()
    items = []
    for i, text in enumerate(data.get("items", ())):
        label, _, rest = text.partition(" ")
        value, _, folded = rest.partition(" ")
        try:
            if not value.isascii() or not value.isdecimal():
                raise ValueError("no number")
            folded, _, until = folded.partition(_UNTIL)
            folded, _, since = folded.partition(_SINCE)
            items += [
                Item(of_word(label), name, int(value), absolute(since, name), absolute(until, name))
                for name in unfold(folded)
            ]
            within("records", len(items))
        except InputError as error:
            raise InputError(error.message, source=source, where=f"{where}.items[{i}]") from None
        except ValueError:
            raise InputError(
                f"expected a label, a whole number and a name, got {text!r}; 'hosim baseline "
                "update' writes the file again",
                source=source,
                where=f"{where}.items[{i}]",
            ) from None
    others, value_left = data.get("others", (0, 0))
    return Listing(tuple(items), others, value_left)


def _span(item: Item) -> str:
    """Since and until when, relative to the tensor's name, so that equal items of all layers share
    a line.
    """
    text = ""
    for word, op in ((_SINCE, item.since), (_UNTIL, item.until)):
        if op and "{" not in op and "}" not in op:
            text += word + relative(op, item.name)
    return text


def as_word(name: str) -> str:
    """A name as one word of a line, however many it has; :func:`of_word` gives it back.

    >>> as_word("kv cache 50%")
    'kv%20cache%2050%25'
    """
    if _PLAIN_WORD.fullmatch(name):
        return name
    return "".join(
        c if c.isprintable() and c not in " %" else quote(c, safe="", errors="surrogatepass")
        for c in name
    )


def of_word(word: str) -> str:
    """The name that :func:`as_word` wrote.

    >>> of_word("kv%20cache%2050%25")
    'kv cache 50%'
    """
    return unquote(word, errors="surrogatepass")


def is_baseline(path: Path) -> bool:
    """Return whether a file has the format of a baseline in its first lines."""
    with suppress(OSError), path.open("rb") as stream:
        return b'format = "hosim.baseline' in stream.read(_FIRST)
    return False


def confined(path: Path, folder: Path, source: str, where: str | None = None) -> Path:
    """The path, unless links and dots lead it out of the folder. Raises :class:`InputError`."""
    if folder.resolve() not in path.resolve().parents:
        raise InputError(
            f"expected a place inside {os.fspath(folder.resolve())}, got {path.resolve()}",
            source=source,
            where=where,
        )
    return path


def quoted(text: str) -> str:
    """``text`` as a basic string of TOML."""
    return json.dumps(
        text.encode("utf-8", "backslashreplace").decode(), ensure_ascii=False
    ).replace("\x7f", "\\u007f")
