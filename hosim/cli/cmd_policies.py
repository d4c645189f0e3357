"""``hosim policies``: the policies and their parameters."""

from __future__ import annotations

from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.extensions import added
from hosim.io.options import Given, Option, declared

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
    alone = [p.name for p in listed if p.by_name_only or p.needs_routing]
    answer = policies_in_short(listed, alone, _next("policies"))
    data = {"policies": list(map(policy_figures, listed, packages))}
    show_answer(answer, given, lambda: data, lambda: [policies(listed, packages)])


def _next(what: str) -> list[tuple[str, str]]:
    return [(f"hosim {what} --detail", "parameters, and whose systems they model")]


def _kv_policies(given: Given) -> None:
    from hosim.report.listed import policies, policies_in_short, policy_figures

    listed = [policy for table in added("kv_policies") for policy in table]
    packages = ["hosim"] * len(listed)
    data = {"kv_policies": list(map(policy_figures, listed, packages))}
    answer = policies_in_short(listed, (), _next("policies --kv"))
    show_answer(answer, given, lambda: data, lambda: [policies(listed, packages)])
