"""A reader of plain tables in an SQLite file from elsewhere. It gives access only to the rows of
named tables.

Everything in a database that would be computed when it is read is refused: views, virtual tables,
generated columns and triggers under the names that are read. The file is opened read-only and as
immutable, indexes are not used, an authoriser permits reading only these tables, and SQLite's steps
are limited by the size of the file.
"""

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from hosim.base.files import opened
from hosim.errors import InputError
from hosim.limits import limit, within

Cell = int | float | str | bytes | None

_STEPS_A_CALL = 10_000
_STEPS, _STEPS_A_BYTE = 1_000_000, 10  # exports take about half a step for each of their bytes
_SCHEMA = ("sqlite_master", "sqlite_schema")


@contextmanager
def plain_tables(
    path: Path, names: Collection[str]
) -> Iterator[tuple[sqlite3.Connection, Mapping[str, frozenset[str]]]]:
    """Yield a connection that can read only the tables with these ``names``, and the columns of
    those that exist.

    Raises :class:`InputError` for a table that is computed, and :class:`OSError` or
    :class:`sqlite3.Error` for a file that is no database.
    """
    with opened(os.fspath(path)) as stream:  # its error is clearer than the database's
        size = within("database_bytes", os.fstat(stream.fileno()).st_size)
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as connection:
        for pragma in (
            "trusted_schema = OFF",
            "cell_size_check = ON",
            "query_only = ON",
            "mmap_size = 0",
        ):
            connection.execute(f"PRAGMA {pragma}")
        connection.setlimit(
            sqlite3.SQLITE_LIMIT_LENGTH, min(max(limit("unpacked_bytes"), 2**20), 2**31 - 1)
        )
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(
            lambda action, first, second, *_: _permitted(action, first, second, names)
        )
        left = iter(range((_STEPS + _STEPS_A_BYTE * size) // _STEPS_A_CALL))
        connection.set_progress_handler(lambda: next(left, None) is None, _STEPS_A_CALL)
        try:
            yield (
                connection,
                {name: _columns(connection, name) for name in _tables(connection, names)},
            )
        except UnicodeDecodeError:  # from the text of one of SQLite's own errors
            raise sqlite3.DatabaseError("damaged: its text is not UTF-8") from None
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise InputError(
                    "takes more steps to read than its size explains; write it again"
                ) from None
            raise


def _permitted(action: int, first: str | None, second: str | None, names: Collection[str]) -> int:
    """Return SQLite's code that allows or denies an action of a query."""
    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and first is not None:
        return sqlite3.SQLITE_OK if first in names or first in _SCHEMA else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if first == "table_xinfo" else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if second == "count" else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY


def _tables(connection: sqlite3.Connection, names: Collection[str]) -> list[str]:
    """Return the tables that exist. Raises :class:`InputError` if one of the names is not that of a
    plain table.
    """
    folded = {name.casefold(): name for name in names}
    found = []
    for count, (kind, name, table, root) in enumerate(
        connection.execute("SELECT type, name, tbl_name, rootpage FROM sqlite_master")
    ):
        within("archive_records", count)
        known = folded.get(str(table).casefold())
        if known is None or kind == "index":
            continue
        if (
            kind != "table"
            or table != known
            or name != known
            or not isinstance(root, int)
            or root < 1
        ):
            raise InputError(
                f"expected a plain table, got a {ascii(kind)[1:20]} or a computed one; write it "
                "again",
                where=known,
            )
        found.append(known)
    return found


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    columns = list(connection.execute(f'PRAGMA table_xinfo("{table}")'))
    if any(hidden for *_, hidden in columns):
        raise InputError(
            "expected stored columns, this table has computed ones; write it again", where=table
        )
    return frozenset(str(name) for _, name, *_ in columns)
