"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.options import Json, console, print_json


def policies(json: Json = False) -> None:
    """List the policies and their parameters.

    Where some policies are not hosim's own, the table names the packages they come from.
    """
    from hosim.policies import registry
    from hosim.report import listings

    names = registry.names()
    listed, packages = [registry.get(name) for name in names], [registry.package_of(name) for name in names]
    if json:
        print_json({"policies": [listings.policy_figures(policy, package) for policy, package in zip(listed, packages, strict=True)]})
    else:
        console().print(listings.policies(listed, packages))
