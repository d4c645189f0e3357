"""Tables of figures that stay what they were: files of rows, each about one drawn instance that its
first column names.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from zlib import crc32

Row = tuple[str, ...]


def checksum(told: object) -> str:
    """Of values and all their fields, those that ``repr`` leaves out of a graph, a plan or a result
    as well.
    """
    return str(crc32(_whole(told).encode()))


def _whole(told: object) -> str:
    if is_dataclass(told) and not isinstance(told, type):
        named = [
            f"{field.name}={_whole(getattr(told, field.name))}"
            for field in fields(told)
            if field.repr
        ]
        return f"{type(told).__qualname__}({', '.join(named)})"
    if isinstance(told, Mapping):
        return f"{{{', '.join(f'{_whole(key)}: {_whole(value)}' for key, value in told.items())}}}"
    if type(told) is list:
        return f"[{', '.join(map(_whole, told))}]"
    if type(told) is tuple:
        return f"({', '.join(map(_whole, told))}{',' * (len(told) == 1)})"
    return repr(told)


@dataclass(frozen=True)
class KeptTable:
    """The table ``NAME.csv`` beside this file; ``rows`` makes all of its rows from what hosim does
    now.
    """

    name: str
    columns: Row
    rows: Callable[[], Iterable[Row]]

    @property
    def file(self) -> Path:
        """Where the rows are kept."""
        return Path(__file__).with_name(f"{self.name}.csv")

    def kept(self) -> dict[str, list[Row]]:
        """The rows of each instance. What follows a slash in the first column says what was made of
        the instance.
        """
        by_instance: dict[str, list[Row]] = {}
        with self.file.open(newline="") as file:
            for row in [tuple(row) for row in csv.reader(file)][1:]:
                by_instance.setdefault(row[0].partition("/")[0], []).append(row)
        return by_instance

    def write(self) -> None:
        """Keep what hosim does now."""
        with self.file.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(self.columns)
            out.writerows(self.rows())
