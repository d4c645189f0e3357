"""``hosim atlas``: which model runs on which card, as one page."""

from __future__ import annotations

from dataclasses import replace

from hosim.cli.commands import command
from hosim.cli.options import console, hardware_of, print_json, write_page
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.options import OPTIONS, Given, Option, declared

_MODELS = (
    "llama-3.2-3b,llama-3.1-8b,llama-3.1-8b:weights=int4,qwen3-14b,qwen3-32b:weights=int4,"
    "mixtral-8x7b:weights=int4:merged=true,qwen3-30b-a3b:weights=int4:merged=true:routing=null,"
    "llama-3.3-70b:weights=int4"
)
_CARDS = "rtx-3090,rtx-4090,rtx-5090,l40s,a100,h100,h200,mi300x"

_OPTIONS = declared(
    "models hardware contexts html json",
    Option(
        "models",
        argument=True,
        metavar="MODEL,...",
        help="Models, separated by commas, with parameters as in llama-3.1-8b:weights=int4.  "
        "[default: eight of 3 to 70 billion parameters]",
    ),
    replace(
        OPTIONS["hardware"],
        default=_CARDS,
        metavar="HW,...",
        help="The cards: paths or shipped names, separated by commas.",
    ),
    Option(
        "contexts",
        default="4096,32768,131072",
        metavar="N,...",
        help="Lengths of context, in tokens.",
    ),
    replace(OPTIONS["html"], help="Write the page: one file with a filter."),
)


@command(*_OPTIONS)
def atlas(given: Given) -> None:
    """Show which models run on which cards.

    A row for each, and each length of context: how much of the card's memory a decoded token needs, how long it takes, and what
    it takes with weights or experts in the memory of the host. --html writes one static page.
    """
    from hosim.report import atlas_page, atlas_table
    from hosim.study import atlas as cells
    from hosim.version import __version__

    models, cards = _listed(given.models or _MODELS, "models"), _listed(given.hardware, "hardware")
    lengths = _listed(given.contexts, "contexts")
    if not all(length.isdecimal() and int(length) for length in lengths):
        raise InputError(
            f"expected whole numbers of tokens, got {given.contexts!r}", source="contexts"
        )
    with progress() as tell:
        contexts = [int(length) for length in lengths]
        rows = [one.row for one in cells(models, [hardware_of(c) for c in cards], contexts, tell)]
    if given.html is not None:
        write_page(given.html, atlas_page(rows, __version__))
    if given.json:
        print_json({"format": "hosim.atlas/1", "rows": rows})
    else:
        console().print(atlas_table(rows))
        if len(rows) > 1:
            say("--html FILE writes all of it, with a filter")


def _listed(text: str, source: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError("expected names separated by commas, got none", source=source)
    return names
