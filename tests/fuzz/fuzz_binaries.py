"""Changes to files that are no text: bytes anywhere, messages of protobuf, records of an archive,
tables of a database.
"""

from __future__ import annotations

import gzip
import io
import sqlite3
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from fuzz_trees import changed_json
from fuzz_values import BYTES, NUMBERS, TEXTS, Raw


def changed_bytes(draw: Random, content: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Flips, cuts, repetitions, insertions, and a splice with another file, one to eight of
    them.
    """
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(found) + 1)
        length = min(len(found) - at, draw.choice((1, 1, 2, 4, 16, 200)))
        way = draw.randrange(9)
        if way == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif way == 1 and at < len(found):
            found[at] = draw.randrange(256)
        elif way == 2:
            del found[at : at + length]
        elif way == 3:
            del found[at:]
        elif way == 4:
            found[at:at] = found[at : at + length] * draw.choice((1, 2, 30))
        elif way in (5, 6):
            found[at : at + draw.choice((0, 0, length))] = draw.choice(BYTES)
        elif way == 7 and others:
            other = draw.choice(others)
            found[at:] = other[draw.randrange(len(other) + 1) :]
        else:
            found[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 12)))
    return bytes(found)


def packed(draw: Random, content: bytes) -> bytes:
    """As gzip: whole, in two members, cut, changed, or much larger once unpacked."""
    way = draw.randrange(6)
    if way == 0:
        return gzip.compress(content[:40], mtime=0) + gzip.compress(content[40:], mtime=0)
    if way == 1:
        return gzip.compress(content + b" " * (4 << 20), mtime=0)
    whole = gzip.compress(content, mtime=0)
    if way == 2:
        return whole[: draw.randrange(len(whole))]
    return changed_bytes(draw, whole) if way == 3 else whole


# ---- protobuf

Field = list[Any]
"""Number, wire type, value: a number, bytes, or a list of fields."""


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    value %= 1 << 64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def fields_of(content: bytes) -> list[Field] | None:
    """The fields of a message; ``None`` if it is none."""
    at, found = 0, []
    try:
        while at < len(content):
            key, at = _varint(content, at)
            number, kind = key >> 3, key & 7
            value: Any
            if not 0 < number < 1000 or kind not in (0, 1, 2, 5):
                return None
            if kind == 0:
                value, at = _varint(content, at)
            elif kind == 2:
                length, at = _varint(content, at)
                value, at = content[at : at + length], at + length
            else:
                length = 8 if kind == 1 else 4
                value, at = content[at : at + length], at + length
            if at > len(content):
                return None
            found.append([number, kind, value])
    except IndexError:
        return None
    return found


def message(fields: list[Field]) -> bytes:
    """Fields as a message."""
    out = []
    for number, kind, value in fields:
        content = (
            varint(value)
            if kind == 0
            else message(value)
            if isinstance(value, list)
            else bytes(value)
        )
        out.append(
            varint(number << 3 | kind) + (varint(len(content)) if kind == 2 else b"") + content
        )
    return b"".join(out)


def changed_message(draw: Random, content: bytes) -> bytes:
    """A message of protobuf with fields changed, dropped, repeated, or moved, at any depth."""
    fields = fields_of(content)
    if not fields:
        return changed_bytes(draw, content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        _change_fields(draw, fields, depth=0)
    return message(fields)


def _change_fields(draw: Random, fields: list[Field], depth: int) -> None:
    if not fields:
        return
    at = draw.randrange(len(fields))
    number, kind, value = fields[at]
    inner = (
        value
        if isinstance(value, list)
        else fields_of(value)
        if kind == 2 and len(value) > 1
        else None
    )
    if inner and draw.random() < 0.85 and depth < 12:
        fields[at][2] = inner
        _change_fields(draw, inner, depth + 1)
        return
    way = draw.randrange(8)
    if way == 0:
        del fields[at]
    elif way == 1:
        fields.insert(draw.randrange(len(fields) + 1), [number, kind, value])
    elif way == 2:
        fields[at][0] = draw.choice((number + 1, max(1, number - 1), draw.randrange(1, 40)))
    elif way == 3:
        draw.shuffle(fields)
    elif way == 4:
        fields[at][1:] = draw.choice(
            (
                [0, draw.choice((0, 1, 2**63, 2**64 - 1))],
                [2, b""],
                [2, b"\xff" * 10],
                [1, b"\xff" * 8],
                [5, b"\0" * 4],
            )
        )
    elif way == 5 and kind == 2:
        deep = message(value) if isinstance(value, list) else value
        for _ in range(draw.choice((2, 300))):
            deep = varint(number << 3 | 2) + varint(len(deep)) + deep
        fields[at][2] = deep
    elif kind == 0:
        whole = [n for n in NUMBERS if isinstance(n, int)]
        fields[at][2] = draw.choice((value + 1, value - 1, draw.choice(whole)))
    elif kind == 2 and not isinstance(value, list):
        fields[at][2] = draw.choice(
            (
                draw.choice(TEXTS).encode("utf-8", "surrogatepass"),
                changed_bytes(draw, value),
                draw.choice(BYTES),
            )
        )


def changed_stream(draw: Random, content: bytes) -> bytes:
    """A file of messages, each after its length."""
    parts, at = [], 0
    while at < len(content):
        length, at = _varint(content, at)
        parts.append(content[at : at + length])
        at += length
    for _ in range(draw.choice((1, 1, 2))):
        i = draw.randrange(len(parts))
        way = draw.randrange(10)
        if way == 0 and len(parts) > 1:
            del parts[i]
        elif way == 1:
            parts.insert(draw.randrange(len(parts) + 1), parts[i])
        elif way == 2:
            draw.shuffle(parts)
        else:
            parts[i] = changed_message(draw, parts[i])
    return b"".join(varint(len(part)) + part for part in parts)


# ---- archives

NAMES = (
    *(
        "x",
        "../x",
        "/x",
        "a/../b",
        "",
        ".",
        "models/model.JSON",
        "models/other.json",
        "serialized_exported_program.json",
        "version",
    ),
    *(
        "data/constants/opaque_obj_0",
        "DATA/constants/opaque_obj_0",
        "data/weights/weight_0",
        "data/sample_inputs/model.pt",
        "a\0b",
        "x" * 300,
    ),
)


def changed_archive(draw: Random, content: bytes) -> bytes:
    """Records changed, renamed, dropped, repeated, added, packed much smaller than they are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = [[info.filename, archive.read(info)] for info in archive.infolist()]
    top = records[0][0].partition("/")[0]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        texts = [i for i, (name, _) in enumerate(records) if name.endswith(".json")]
        at = draw.choice(texts) if texts and draw.random() < 0.6 else draw.randrange(len(records))
        way = draw.randrange(10)
        if way < 6 and records[at][1][:1] in (b"{", b"["):
            records[at][1] = _changed_record(draw, records[at][1])
        elif way < 6:
            records[at][1] = changed_bytes(draw, records[at][1])
        elif way == 6 and len(records) > 1:
            del records[at]
        elif way == 7:
            records[at][0] = draw.choice(
                (
                    f"{top}/{draw.choice(NAMES)}",
                    draw.choice(NAMES),
                    records[at][0].upper(),
                    draw.choice(records)[0],
                )
            )
        elif way == 8:
            records.append(
                [
                    f"{top}/{draw.choice(NAMES)}",
                    draw.choice((b"", b"{}", b"\x80\x04.", BYTES[-1], records[at][1])),
                ]
            )
        else:
            records.append(list(records[at]))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # names that come twice
        for name, data in records:
            info = zipfile.ZipInfo(name or "x", (1980, 1, 1, 0, 0, 0))
            large = draw.random() < 0.02
            archive.writestr(
                info,
                data + bytes(4 << 20) * large,
                zipfile.ZIP_DEFLATED if large or draw.random() < 0.1 else zipfile.ZIP_STORED,
            )
    return out.getvalue() if draw.random() < 0.9 else changed_bytes(draw, out.getvalue())


def _changed_record(draw: Random, content: bytes) -> bytes:
    try:
        return changed_json(draw, content)
    except ValueError:  # a change before this one
        return changed_bytes(draw, content)


# ---- databases


def changed_database(draw: Random, content: bytes) -> bytes:
    """Cells, rows, columns and tables of SQLite; views and triggers in their place."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        database = sqlite3.connect(path, isolation_level=None)
        database.text_factory = bytes
        for _ in range(draw.choice((1, 1, 2, 3))):
            try:
                _change_database(draw, database)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                continue
        database.close()
        return path.read_bytes()


def _change_database(draw: Random, database: sqlite3.Connection) -> None:
    tables = [
        row[0].decode()
        for row in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
    ]
    full = [
        table for table in tables if database.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone()
    ]
    table = draw.choice(full or tables)
    columns = [row[1].decode() for row in database.execute(f'PRAGMA table_info("{table}")')]
    column = draw.choice(columns)
    rows = [row[0] for row in database.execute(f'SELECT rowid FROM "{table}"')]
    way = draw.randrange(12)
    if way < 6 and rows:
        value = draw.choice((*NUMBERS, *TEXTS, None, b"\xff\0", b"x"))
        if isinstance(value, Raw):
            value = float(value) if value.lower().lstrip("-") in ("1e999", "1e400") else str(value)
        database.execute(
            f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (value, draw.choice(rows))
        )
    elif way == 6 and rows:
        database.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (draw.choice(rows),))
    elif way == 7:
        database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif way == 8:
        database.execute(
            f'ALTER TABLE "{table}" RENAME TO "{draw.choice(("x", table.lower(), "v"))}"'
        )
        if draw.random() < 0.5:
            database.execute(f'CREATE VIEW "{table}" AS SELECT * FROM x')
    elif way == 9:
        database.execute(f'DROP TABLE "{table}"')
    elif way == 10:
        database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x"')
    else:
        database.execute(
            draw.choice(
                (
                    f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END',
                    f'ALTER TABLE "{table}" ADD COLUMN g INTEGER GENERATED ALWAYS AS '
                    "(length(randomblob(1000000000)))",
                    f'INSERT INTO "{table}" SELECT * FROM "{table}"',
                    "CREATE TABLE more (x)",
                    "PRAGMA user_version = 99",
                    "PRAGMA encoding = 'UTF-16'",
                )
            )
        )


def float_bytes(value: float) -> bytes:
    """A number as eight bytes, as protobuf writes doubles."""
    return struct.pack("<d", value)
