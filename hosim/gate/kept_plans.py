"""Plans that a search of hosim's made, kept by all that they depend on: the graph, the machine, the
policy, the budget and hosim itself (:mod:`hosim.gate.kept_graphs`).

So a case whose model has not changed is not planned again, whatever function its graph is from.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim.analysis import digest
from hosim.cache_plan import Plan
from hosim.errors import HosimError
from hosim.files import parse, to_text
from hosim.gate.imports import code_digest
from hosim.gate.kept_graphs import keep_text, kept_text
from hosim.gate.records import flat_profile
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import plan_from_dict, plan_to_dict, workload_to_dict
from hosim.study.asked import PolicyChoice
from hosim.study.runs import make_plan


def kept_plan(
    graph: Graph, hardware: Hardware, choice: PolicyChoice, budget: int, kept: Path | None
) -> Plan:
    """As :func:`hosim.study.runs.make_plan`, from the folder ``kept`` if a search has made the plan
    before.
    """
    # a search draws; other policies plan sooner than a plan is read
    searches = choice.policy.is_own and "seed" in choice.policy.settings
    if kept is None or not searches:
        return make_plan(graph, hardware, choice, budget)
    name = digest(
        "plan",
        code_digest(),
        to_text(workload_to_dict(graph)),
        repr(sorted(flat_profile(hardware).items())),
        choice.label,
        str(budget),
    )
    text = kept_text(kept, name)
    with suppress(HosimError):
        if text is not None:
            found: Any = parse(text, f"{name}.json")
            plan = plan_from_dict(found["plan"], graph)
            return replace(plan, origin=None, notes=tuple(found["notes"]))
    made = make_plan(graph, hardware, choice, budget)
    if made.runtime is None:
        keep_text(to_text({"plan": plan_to_dict(made), "notes": made.notes}), kept, name)
    return made
