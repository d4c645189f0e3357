"""Tables of figures that stay what they were: files of rows, each about one drawn instance that its first column names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Row = tuple[str, ...]


@dataclass(frozen=True)
class KeptTable:
    """The table ``NAME.csv`` beside this file; ``rows`` makes all of its rows from what hosim does now."""

    name: str
    columns: Row
    rows: Callable[[], Iterable[Row]]

    @property
    def file(self) -> Path:
        """Where the rows are kept."""
        return Path(__file__).with_name(f"{self.name}.csv")

    def kept(self) -> dict[str, list[Row]]:
        """The rows of each instance. What follows a slash in the first column says what was made of the instance."""
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
