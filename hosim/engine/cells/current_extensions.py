"""Compiled extensions: whether one is there, and was compiled from the files that are there."""

import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from hosim.engine import compiled_loop


def is_current(extension: ModuleType, folder: Path, pattern: str) -> bool:
    """Return whether an extension was compiled from the files of a pattern in a folder, its types
    there and, if it is not the loop itself, the loop that runs; one line on stderr says if not.

    ``SOURCE`` of an extension is the hash of all that. It is empty in the module that stands in its
    place where it could not be compiled.
    """
    name = extension.__name__.rpartition(".")[2]
    if not extension.SOURCE:
        why = "not compiled here (a C compiler at installation does it)"
    else:
        sources = [*sorted(folder.glob(pattern)), folder / f"{name}.pxd"]
        below = "" if extension is compiled_loop else compiled_loop.SOURCE
        read = b"".join([source.read_bytes() for source in sources])
        if sha256(read + below.encode()).hexdigest() == extension.SOURCE:
            return True
        why = "compiled from another source (install hosim again)"
    what = name.replace("_", " ")
    print(f"hosim: {what}: {why}: plans are simulated interpreted, slower", file=sys.stderr)
    return False
