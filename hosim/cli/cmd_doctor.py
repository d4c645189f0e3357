"""``hosim doctor``: what is installed, and what is missing for which feature."""

from __future__ import annotations

from hosim.cli.commands import command
from hosim.cli.options import console, print_json
from hosim.io.options import Given, declared


@command(*declared("json"))
def doctor(given: Given) -> None:
    """Show what is installed, and what is missing for what."""
    from hosim import shipped
    from hosim.gate import kept_in
    from hosim.report.listed import installation, installation_table

    found = installation(kept_in(), len(shipped.workloads()), len(shipped.hardware()))
    if given.json:
        print_json(found)
    else:
        console().print(installation_table(found))
