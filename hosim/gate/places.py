"""Describe where a reader of a change finds a case: the function that makes its model, or its lines
in the file of the cases.
"""

from __future__ import annotations

import ast
import os
import re
from contextlib import suppress
from pathlib import Path

from hosim.gate.cases import Case

Place = tuple[str, int]
"""A file, and a line from 1 on."""


def place_of(case: Case, source: str) -> Place:
    """The place of a case of the file ``source``. Nothing is imported."""
    if case.entry is not None:
        module, _, name = case.entry.partition(":")
        for file in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
            path = os.path.join(case.folder, file)
            if line := _defined(path, name):
                return Path(os.path.normpath(path)).as_posix(), line
    return Path(source).as_posix(), _table(source, case.matrix or case.name)


def _defined(path: str, name: str) -> int:
    """The line where a file defines a function; 0 if it does not."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        for node in ast.parse(Path(path).read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node.lineno
    return 0


def _table(source: str, name: str) -> int:
    """The line of a table of that name, such as ``[cases.NAME]``; the first, if there is none."""
    table = re.compile(rf"\s*\[(tool\.hosim\.)?(cases|matrix)\.[\"']?{re.escape(name)}[\"']?\s*\]")
    with suppress(OSError, UnicodeDecodeError):
        for number, line in enumerate(Path(source).read_text(encoding="utf-8").splitlines(), 1):
            if table.match(line):
                return number
    return 1
