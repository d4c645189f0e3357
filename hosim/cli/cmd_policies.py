"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.commands import command
from hosim.cli.options import console, print_json
from hosim.extensions import added
from hosim.options import Given, Option, declared

_KV = Option("kv", of=bool, default=False, help="Those for the cache of 'hosim serve' instead.")


@command(*declared("kv json", _KV))
def policies(given: Given) -> None:
    """List the policies and their parameters.

    If plugins add policies, the table names their packages.
    """
    if given.kv:
        _kv_policies(given.json)
        return
    from hosim.policies import package_of, policy_named, policy_names
    from hosim.report.listed import policies, policy_figures

    names = policy_names()
    listed, packages = [policy_named(name) for name in names], [package_of(name) for name in names]
    if given.json:
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
