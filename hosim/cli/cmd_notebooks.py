"""``hosim notebooks``: the worked notebooks, written to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.terminal import say

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="The folder to write to; it is created if it does not exist."
    ),
]


def notebooks(folder: Folder) -> None:
    """Write the worked notebooks to a folder.

    It never overwrites a file that differs: move such a file away first.
    """
    from hosim.errors import InputError
    from hosim.files import write_bytes
    from hosim.shipped import notebook_paths

    copies = {path: folder / path.name for path in notebook_paths()}
    for path, copy in copies.items():
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise InputError(
                "there is another file of that name: move it away, or name another folder",
                source=str(copy),
            )
    if folder.exists() and not folder.is_dir():
        raise InputError("expected a folder, found a file", source=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for path, copy in copies.items():
        write_bytes(copy, path.read_bytes())
    say(
        f"wrote {len(copies)} notebooks to {folder}; jupyter lab "
        f"{folder / next(iter(copies.values())).name} opens the first one"
    )
