"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.options import console


def policies() -> None:
    """List the policies and their parameters.

    Where some policies are not hosim's own, the table names the packages they come from.
    """
    from hosim.policies import registry
    from hosim.report import listings

    names = registry.names()
    console().print(listings.policies([registry.get(name) for name in names], [registry.package_of(name) for name in names]))
