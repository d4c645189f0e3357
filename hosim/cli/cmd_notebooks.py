"""``hosim notebooks``: the worked notebooks, written to a folder."""

from __future__ import annotations

from pathlib import Path

from hosim.cli.commands import command
from hosim.cli.terminal import say
from hosim.io.options import REQUIRED, Given, Option

_FOLDER = Option(
    "folder",
    of=Path,
    default=REQUIRED,
    argument=True,
    metavar="FOLDER",
    help="Where to write them; it is made if it is not there.",
)


@command(_FOLDER)
def notebooks(given: Given) -> None:
    """Write the worked notebooks to a folder.

    It never overwrites a file that differs: move such a file away first.
    """
    from hosim.base.files import write_bytes
    from hosim.errors import InputError
    from hosim.shipped import notebook_paths

    folder = given.folder
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
    count = sum(copy.suffix == ".ipynb" for copy in copies.values())
    say(
        f"wrote {count} notebooks to {folder}; jupyter lab "
        f"{folder / next(iter(copies.values())).name} opens the first one"
    )
