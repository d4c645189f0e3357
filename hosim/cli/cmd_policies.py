"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Json, console, print_json
from hosim.extensions import added

Kv = Annotated[
    bool, typer.Option("--kv", help="List the policies for the cache of 'hosim serve' instead.")
]


def policies(kv: Kv = False, json: Json = False) -> None:
    """List the policies and their parameters.

    If plugins add policies, the table names their packages.
    """
    if kv:
        _kv_policies(json)
        return
    from hosim.policies import package_of, policy_named, policy_names
    from hosim.report.listed import policies, policy_figures

    names = policy_names()
    listed, packages = [policy_named(name) for name in names], [package_of(name) for name in names]
    if json:
        print_json(
            {
                "policies": [
                    policy_figures(policy, package)
                    for policy, package in zip(listed, packages, strict=True)
                ]
            }
        )
    else:
        console().print(policies(listed, packages))


def _kv_policies(json: bool) -> None:
    from hosim.report.listed import policies, policy_figures

    listed = [policy for table in added("kv_policies") for policy in table]
    if json:
        print_json({"kv_policies": [policy_figures(policy, "hosim") for policy in listed]})
    else:
        console().print(policies(listed, ["hosim"] * len(listed)))
