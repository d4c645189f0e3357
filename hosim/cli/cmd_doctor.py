"""``hosim doctor``: what is installed, and what is missing for which feature."""

from __future__ import annotations

from hosim.cli.options import Json, console, print_json


def doctor(json: Json = False) -> None:
    """Show what is installed, and which features lack a package."""
    from hosim import shipped
    from hosim.gate import kept_in
    from hosim.report.listed import installation, installation_table

    found = installation(kept_in(), len(shipped.workloads()), len(shipped.hardware()))
    if json:
        print_json(found)
    else:
        console().print(installation_table(found))
