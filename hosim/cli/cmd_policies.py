"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.options import console


def policies() -> None:
    """List the policies and their parameters."""
    from hosim.policies import registry
    from hosim.report import listings

    console().print(listings.policies([registry.get(name) for name in registry.names()]))
