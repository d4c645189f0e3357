"""Declarations of arrays in the classes of the loop and of kernels: type, size and first values in
one line each, from which all else follows.

Tables make the arrays (:mod:`hosim.engine.cells.made_arrays`), the interpreted form takes them by
name, and ``hatch_build.py`` declares them in the extension.
"""

from typing import Any, NamedTuple, TypeAlias

Int: TypeAlias = int
Flags: TypeAlias = list[int]
Ints: TypeAlias = list[int]
Longs: TypeAlias = list[int]
"""One number; arrays of numbers of 8, 32 and 64 bits, which are memory views where the loop is
compiled.
"""


class Array(NamedTuple):
    """An array that a table makes: so many numbers, a sum of products of numbers of the table, all
    of them ``first``.

    What is ``kept`` is the state of a run, which snapshots have.
    """

    size: str
    first: int
    kept: bool


def made(size: str, first: int = 0) -> Any:
    """An array that a table makes."""
    return Array(size, first, False)


def state(size: str, first: int = 0) -> Any:
    """An array that a table makes and a snapshot keeps."""
    return Array(size, first, True)
