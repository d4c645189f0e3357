"""Whether an extension is there, and compiled from the files that are here now."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType


def is_current(extension: ModuleType, folder: Path, pattern: str) -> bool:
    """Return whether an extension was compiled from the files in a folder that match a pattern, and
    from the file of its types there; one line on stderr says if not.

    Its ``SOURCE`` is the hash of what it was compiled from. Where it could not be compiled, a module
    with an empty ``SOURCE`` has its name.
    """
    name = extension.__name__.rpartition(".")[2]
    if not extension.SOURCE:
        why = "not compiled here (a C compiler at installation does it)"
    else:
        sources = [*sorted(folder.glob(pattern)), folder / f"{name}.pxd"]
        found = sha256(b"".join([source.read_bytes() for source in sources])).hexdigest()
        if found == extension.SOURCE:
            return True
        why = "compiled from another source (install hosim again)"
    what = name.replace("_", " ")
    print(f"hosim: {what}: {why}: plans are simulated interpreted, slower", file=sys.stderr)
    return False
