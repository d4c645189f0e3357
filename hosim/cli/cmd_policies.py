"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import print_json
from hosim.extensions import added
from hosim.options import Given, Option, declared

_KV = Option("kv", of=bool, default=False, help="Those for the cache of 'hosim serve' instead.")


@command(*declared("kv detail json", _KV))
def policies(given: Given) -> None:
    """List the policies and their parameters.

    --detail has the parameters, whose systems policies model, and the packages of plugins.
    """
    if given.kv:
        _kv_policies(given)
        return
    from hosim.policies import package_of, policy_named, policy_names
    from hosim.report.listed import policies, policies_in_short, policy_figures

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
        alone = [p.name for p in listed if p.by_name_only or p.needs_routing]
        short = policies_in_short(listed, alone, _next("policies"))
        print_answer(short, given, lambda: [policies(listed, packages)])


def _next(what: str) -> list[tuple[str, str]]:
    return [(f"hosim {what} --detail", "parameters, and whose systems they model")]


def _kv_policies(given: Given) -> None:
    from hosim.report.listed import policies, policies_in_short, policy_figures

    listed = [policy for table in added("kv_policies") for policy in table]
    if given.json:
        print_json({"kv_policies": [policy_figures(policy, "hosim") for policy in listed]})
    else:
        short = policies_in_short(listed, (), _next("policies --kv"))
        print_answer(short, given, lambda: [policies(listed, ["hosim"] * len(listed))])
