"""The sides that ``hosim diff`` compares: a plan or a result, its file, or a policy that makes a
plan.
"""

from __future__ import annotations

import os
from dataclasses import replace

from hosim import engine
from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies import policy_names
from hosim.result import Result
from hosim.study.asked import AnyPolicy, as_choice, parse_choice
from hosim.study.diff import Side
from hosim.study.runs import check, make_plan


def side_of(
    what: AnyPolicy | os.PathLike[str] | Plan | Result,
    graph: Graph | None = None,
    hardware: Hardware | None = None,
    budget_bytes: int | None = None,
) -> Side:
    """One side of a comparison, from a plan, a result, the path of a file of either, or a policy:
    its name, the object or a function.

    With ``hardware``, plans are replayed as well. Raises :class:`InputError` for anything else, and
    for a plan file or a policy without the graph or the machine that it needs.
    """
    tier = "hbm" if hardware is None else hardware.device_tier
    if isinstance(what, Result):
        return Side(what.policy, result=what, device_tier=tier)
    if isinstance(what, Plan):
        return _planned(what.policy, what, hardware, budget_bytes, tier)
    if isinstance(what, str | os.PathLike):
        text = os.fspath(what)
        if os.path.exists(text):
            return _loaded(text, graph, hardware, budget_bytes, tier)
        if text.partition(":")[0] not in policy_names():
            raise InputError(
                f"neither a file nor a policy (policies: {', '.join(policy_names())})", source=text
            )
        choice, label = parse_choice(text), text
    else:
        choice = as_choice(what)
        label = choice.label
    if graph is None or hardware is None or budget_bytes is None:
        raise InputError(
            "a policy needs a workload and a machine to plan for: name both", source=label
        )
    made = replace(make_plan(graph, hardware, choice, budget_bytes), policy=choice.label)
    check(made, hardware, budget_bytes)
    return _planned(label, made, hardware, budget_bytes, tier)


def _loaded(
    path: str, graph: Graph | None, hardware: Hardware | None, budget_bytes: int | None, tier: str
) -> Side:
    from hosim.base.files import content
    from hosim.base.files.formats import unexpected
    from hosim.io import check_tiers, load_plan, result_from_dict

    try:
        data = content(path)
    except InputError as error:
        raise unexpected(path, "a plan or a result of hosim", ours=False) or error from None
    kind = data.get("format") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind.startswith("hosim.result/"):
        return Side(path, result=result_from_dict(data, path), device_tier=tier)
    if not isinstance(kind, str) or not kind.startswith("hosim.plan/"):
        got = InputError(
            f"expected a plan or a result of hosim, got {kind or 'another file'}", source=path
        )
        raise (None if kind else unexpected(path, "a plan or a result of hosim", ours=False)) or got
    if graph is None:
        raise InputError("name the workload that the plan is for (--workload)", source=path)
    plan = load_plan(path, graph)
    if hardware is not None:
        check_tiers(plan, hardware, source=path)
    return _planned(path, plan, hardware, budget_bytes, tier)


def _planned(
    label: str, plan: Plan, hardware: Hardware | None, budget_bytes: int | None, tier: str
) -> Side:
    result = None if hardware is None else engine.replay(plan, hardware, budget_bytes, record=True)
    return Side(label, plan, result, tier)
