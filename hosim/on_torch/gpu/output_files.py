"""Files of a recording: written beside, then renamed."""

import contextlib
import csv
import gzip
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hosim.errors import InputError


def write_json(path: Path, content: Any) -> None:
    """Write JSON, gzipped (the same bytes for the same content) if the name ends in ``.gz``; whole
    or not at all.
    """
    if path.suffix == ".gz":
        write_whole(
            path,
            gzip.compress(
                json.dumps(content, separators=(",", ":")).encode(), compresslevel=9, mtime=0
            ),
        )
    else:
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write CSV; a row that lacks a column has an empty cell there."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, text.getvalue().encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there. Raises :class:`InputError` where that cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
