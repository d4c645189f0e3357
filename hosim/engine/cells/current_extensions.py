"""Extensions that are compiled of files here: whether one is there, and of these very files."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType


def is_current(extension: ModuleType, folder: Path, pattern: str) -> bool:
    """Return whether an extension is compiled, of the files of a pattern in a folder and of its
    types there; one line on stderr says if not.

    ``extension`` is what stands in its place where it could not be compiled, whose ``SOURCE`` is
    empty; else that is the hash of what it was compiled of.
    """
    name = extension.__name__.rpartition(".")[2]
    if not extension.SOURCE:
        why = "not compiled here (a C compiler at installation does it)"
    else:
        sources = [*sorted(folder.glob(pattern)), folder / f"{name}.pxd"]
        found = sha256(b"".join([source.read_bytes() for source in sources])).hexdigest()
        if found == extension.SOURCE:
            return True
        why = "compiled of another source (install hosim again)"
    what = name.replace("_", " ")
    print(f"hosim: {what}: {why}: plans are simulated interpreted, slower", file=sys.stderr)
    return False
