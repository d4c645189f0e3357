"""Rows of CSV, read within the limits of :mod:`hosim.limits` and written so that a spreadsheet
takes text for text.
"""

import csv
import io
from collections.abc import Iterable, Sequence

from hosim.base.files.bounded import check_digits
from hosim.errors import InputError
from hosim.limits import limit, refusal, within

_QUOTE = "'"
_FORMULA = (_QUOTE, "=", "+", "-", "@", "\t", "\r")


def csv_rows(content: bytes, source: str) -> list[list[str]]:
    """The rows of a text of CSV. Raises :class:`InputError`, also for more values or longer fields
    than is allowed.
    """
    within("values", content.count(b",") + content.count(b"\n"), source=source)
    check_digits(content, source)
    before = csv.field_size_limit(limit("csv_field_bytes"))
    try:
        return list(csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline="")))
    except csv.Error as error:
        raise (
            refusal("csv_field_bytes", source=source)
            if "limit" in str(error)
            else InputError(f"broken CSV: {error}", source=source)
        ) from None
    finally:
        csv.field_size_limit(before)


def check_widths(lines: Sequence[Sequence[str]], source: str) -> None:
    """Raise :class:`InputError` for the first line that has more or fewer values than the first of
    all.
    """
    for n, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise InputError(
                f"expected {len(lines[0])} values, got {len(line)}",
                source=source,
                where=f"line {n}",
            )


def csv_line(values: Iterable[object]) -> str:
    """A row, with its newline. Text that a spreadsheet would take for a formula begins with a
    quote, as spreadsheets have it.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_cell(value) for value in values])
    return buffer.getvalue()


def cell_text(cell: str) -> str:
    """The text that :func:`csv_line` wrote as a cell."""
    return cell.removeprefix(_QUOTE)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{_QUOTE}{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
