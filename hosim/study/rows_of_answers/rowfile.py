"""The file of a sweep's rows, from which an interrupted sweep continues.

Each row is appended to a CSV file with one write. A process that is killed during a write leaves
part of a line, which the next run removes. Parquet files cannot be extended: their rows stay in a
CSV file with the ending ``.part.csv`` until all are there. A finished file has its rows in the
order of the points, so a resumed sweep gives a byte-identical file.
"""

import fcntl
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from hosim.base.files import cell_text, check_target, csv_line, csv_rows, read_bytes, write_bytes
from hosim.errors import InputError
from hosim.study.asked import Value
from hosim.study.rows_of_answers.rows import FEASIBLE, SLOWDOWN, TEXTS, Row, frame, records

_INTEGER = re.compile("-?[0-9]{1,40}")
DIED = "worker died"
"""The start of the error of a row whose process was killed; the next run computes it again."""


class RowFile:
    """Rows by key, in memory and, with a path, also in a file. As a context manager it locks the
    file for this process.

    ``columns`` begin with ``point``, the key; ``keys`` are those of all points, in order;
    ``figures`` are the columns of whole numbers, ``numbers`` those of others.
    Raises :class:`InputError` for a file of another sweep, for a damaged one, for one that another
    process writes to, and for a name that ends neither in ``.csv`` nor in ``.parquet``.
    """

    def __init__(
        self,
        path: Path | None,
        columns: Sequence[str],
        keys: Sequence[str],
        figures: Collection[str] = (),
        numbers: Collection[str] = (SLOWDOWN,),
    ) -> None:
        self._path = path
        self._columns = list(columns)
        self._keys = list(keys)
        self._figures = frozenset(figures)
        self._numbers = frozenset(numbers)
        self._needed = sorted(
            c
            for c in figures
            if c in ("budget_bytes", "makespan_ns") or c.endswith(("_stall_ns", "_peak_bytes"))
        )
        self._descriptor = -1
        self.rows: dict[str, Row] = {}
        self._parquet = path is not None and path.suffix == ".parquet"
        if path is not None and path.suffix not in (".csv", ".parquet"):
            raise InputError("expected a name that ends in .csv or .parquet", source=str(path))
        if self._parquet and find_spec("pyarrow") is None:
            raise InputError(
                "Parquet needs pyarrow, which is not installed; run: pip install "
                "'hosim[parquet]', or write .csv",
                source=str(path),
            )
        self._stream = (
            path.with_name(f"{path.name}.part.csv") if path is not None and self._parquet else path
        )
        for target in (path, self._stream):
            if target is not None:
                check_target(target)

    def __enter__(self) -> Self:
        if self._path is None or self._stream is None:
            return self
        try:
            if self._parquet and self._path.exists() and not self._stream.exists():
                write_bytes(self._stream, self._text(self._read_parquet()))
            self._descriptor = os.open(self._stream, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            _lock(self._descriptor, str(self._path))
            self._resume()
        except OSError as error:
            self._close()
            raise InputError(
                f"cannot be written: {error.strerror or error}", source=str(self._path)
            ) from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, row: Row) -> None:
        """Keep a row, and write it as one line."""
        self.rows[str(row["point"])] = row
        if self._descriptor >= 0:
            line = self._line([row[column] for column in self._columns])
            try:
                written = os.write(self._descriptor, line)
            except OSError as error:
                raise InputError(
                    f"cannot be written: {error.strerror or error}", source=str(self._path)
                ) from None
            if written < len(line):
                raise InputError(
                    "cannot be written: the disk is full; make room and run the same command again",
                    source=str(self._path),
                )

    def finish(self) -> list[Row]:
        """Return all rows in the order of the points, and rewrite the file in this order."""
        rows = [self.rows[key] for key in self._keys if key in self.rows]
        if self._path is None or self._stream is None:
            return rows
        if not self._parquet:
            self._replace(rows)
            return rows
        buffer = io.BytesIO()
        frame(rows, self._columns).to_parquet(buffer, engine="pyarrow", index=False)
        write_bytes(self._path, buffer.getvalue())
        with suppress(FileNotFoundError):
            os.unlink(self._stream)
        return rows

    # -- text
    # ----------------------------------------------------------------------------------------------

    def _line(self, values: Iterable[Value]) -> bytes:
        return csv_line(values).encode()

    def _text(self, rows: Iterable[Row]) -> bytes:
        return b"".join(
            [
                self._line(self._columns),
                *(self._line([row[column] for column in self._columns]) for row in rows),
            ]
        )

    def _replace(self, rows: Sequence[Row]) -> None:
        """Replace the file by the rows. The locked file stays open until then, so that no other
        process can write in between.
        """
        assert self._stream is not None
        content = self._text(rows)
        if self._stream.read_bytes() != content:
            write_bytes(self._stream, content)
            replaced, self._descriptor = (
                self._descriptor,
                os.open(self._stream, os.O_RDWR | os.O_APPEND),
            )
            _lock(self._descriptor, str(self._path))
            os.close(replaced)

    def _resume(self) -> None:
        """Read the existing rows, without an unfinished last line."""
        assert self._stream is not None
        content = read_bytes(str(self._stream))
        lines = csv_rows(content[: content.rfind(b"\n") + 1], str(self._path))
        if not lines:
            if content and not self._line(self._columns).startswith(content):
                raise self._another("it is not a file of rows")
            self._replace([])
            return
        if [cell_text(cell) for cell in lines[0]] != list(self._columns):
            raise self._another("its columns differ")
        for number, line in enumerate(lines[1:], 2):
            if len(line) != len(self._columns):
                raise self._another(
                    f"it has a line of {len(line)} values, not {len(self._columns)}"
                )
            row = {
                column: self._read(number, column, text)
                for column, text in zip(self._columns, line, strict=True)
            }
            self._complete(row, f"line {number}")
            if not str(row["error"] or "").startswith(DIED):
                self.rows[str(row["point"])] = row
        self._none_of_another_sweep()
        kept = list(self.rows.values())
        if self._text(kept) != content:
            self._replace(kept)

    def _read_parquet(self) -> list[Row]:
        import pandas as pd

        assert self._path is not None
        try:
            read = pd.read_parquet(self._path, engine="pyarrow")
        except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
            raise self._another(
                f"it cannot be read as Parquet ({' '.join(str(error).split())[:80]})"
            ) from None
        if list(read.columns) != self._columns:
            raise self._another("its columns differ")
        rows: list[Row] = [*records(read)]
        for number, row in enumerate(rows, 1):
            for column, value in row.items():
                if column in self._figures and not isinstance(value, int | None):
                    raise self._damaged(
                        f"row {number}", f"{column}: expected a whole number, got {value!r}"
                    )
            self._complete(row, f"row {number}")
        return rows

    def _read(self, number: int, column: str, text: str) -> Value:
        """Return the value of a cell's text."""
        if text == "":
            return None
        if column == FEASIBLE:
            if text not in ("true", "false"):
                raise self._damaged(
                    f"line {number}", f"{column}: expected true or false, got {text!r}"
                )
            return text == "true"
        if column in self._numbers:
            return self._number(number, column, text)
        if _INTEGER.fullmatch(text) and column not in TEXTS:
            return int(text)
        if column in self._figures:
            raise self._damaged(
                f"line {number}", f"{column}: expected a whole number, got {text!r}"
            )
        return cell_text(text)

    def _number(self, number: int, column: str, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise self._damaged(
                f"line {number}", f"{column}: expected a number, got {text!r}"
            ) from None

    def _complete(self, row: Row, where: str) -> None:
        """Raise :class:`InputError` for a row that lacks the figures that its ``feasible``
        requires.
        """
        lacking = next((column for column in self._needed if row[column] is None), None)
        if row.get(FEASIBLE) and lacking:
            raise self._damaged(where, f"{lacking}: expected a whole number, got nothing")
        if FEASIBLE in row and row[FEASIBLE] is None:
            raise self._damaged(where, f"{FEASIBLE}: expected true or false, got nothing")
        if row.get(FEASIBLE) is False and not row["error"]:
            raise self._damaged(where, "error: expected why the point does not fit, got nothing")

    def _none_of_another_sweep(self) -> None:
        known = set(self._keys)
        other = [key for key in self.rows if key not in known]
        if other:
            raise self._another(
                f"{len(other):,} of its rows belong to points that this sweep does not have"
            )

    def _damaged(self, where: str, why: str) -> InputError:
        return InputError(
            f"{why}; remove this row and run the same command again",
            source=str(self._path),
            where=where,
        )

    def _another(self, why: str) -> InputError:
        return InputError(
            f"this file belongs to another sweep: {why}; name another file, or remove this one",
            source=str(self._path),
        )


def _lock(descriptor: int, name: str) -> None:
    """Keep other processes from writing to the same file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            "another sweep is writing to this file; wait for it, or name another file", source=name
        ) from None


def unique(
    points: Sequence[Mapping[str, Value]], keys: Sequence[str]
) -> tuple[list[Mapping[str, Value]], list[str]]:
    """Return the points and their keys, each key once."""
    first = dict(zip(reversed(keys), reversed(points), strict=True))
    order = list(dict.fromkeys(keys))
    return [first[key] for key in order], order
