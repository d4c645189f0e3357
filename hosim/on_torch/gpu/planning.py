"""The second step, on any machine: plans for shares of each captured step's resident peak, and what
hosim predicts of them.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hosim.base import files
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import load_workload, plan_to_dict, save_plan
from hosim.on_torch.gpu.attempts import Attempts
from hosim.on_torch.gpu.measuring import measured_machine
from hosim.on_torch.gpu.output_files import say, write_json
from hosim.on_torch.lower import Replayed, planned, rule_of
from hosim.result import CACHING, IN_PROGRAM_ORDER, Result
from hosim.validate.kit import FORMAT, kit_run, measured_device, read_json, whole


def plan_steps(
    out: Path, shares: Sequence[int], policy: str, parameters: Mapping[str, Any], attempts: Attempts
) -> None:
    """Plan for each ``MODEL-MODE-LENGTH-step`` of the folder; a share that does not fit is said in
    its folder.

    What the same policy has planned for the same budget, with these parameters, is left alone.
    Raises :class:`InputError` for a folder that the first step did not write.
    """
    hardware = measured_machine(out)
    check = rule_of(CACHING if measured_device(out / "meta.json")["kind"] != "cpu" else None)
    found = sorted(path.parent for path in out.glob("[!.]*-step/run.json"))
    if not found:
        raise InputError(
            "no measured step (MODEL-MODE-LENGTH-step); run `python -m hosim.gpu measure` first",
            source=str(out),
        )
    for folder in found:
        path = folder / "run.json"
        run, _ = read_json(path), kit_run(path)
        graph = load_workload(folder / "workload.json.gz")
        outside_bytes = whole(run.get("outside_bytes"), str(path), "outside_bytes")
        resident = replay(Plan(graph), hardware, account=IN_PROGRAM_ORDER, allocator=CACHING)
        beyond_ns = max(0, round(statistics.median(run["wall_ns"])) - (resident.makespan_ns or 0))
        write_json(
            folder / "predicted.json",
            {"format": FORMAT, "share_percent": 100, **_figures(resident, outside_bytes, 0)},
        )
        for share in shares:
            path = out / f"{folder.name.removesuffix('-step')}-plan-{share}"
            about = {
                "format": FORMAT,
                "share_percent": share,
                "budget_bytes": (_allocated(resident) + outside_bytes) * share // 100,
                "policy": policy,
                "parameters": dict(parameters),
            }
            if _is_planned(path, about):
                say(f"{path.name}: planned already")
                continue
            attempts.do(
                path.name,
                partial(_plan, path, graph, hardware, about, outside_bytes, beyond_ns, check),
            )


def _plan(
    path: Path,
    graph: Graph,
    hardware: Hardware,
    about: Mapping[str, Any],
    outside_bytes: int,
    beyond_ns: int,
    check: Replayed,
) -> None:
    """Write a plan, if there is one, and its prediction; leave a folder alone that has the run of
    another plan.
    """
    path.mkdir(exist_ok=True)
    plan, said = _planned(path.name, graph, hardware, about, outside_bytes, beyond_ns, check)
    kept = path / "plan.json"
    data = None if plan is None else json.loads(json.dumps(plan_to_dict(plan)))
    before = (
        files.read_json(str(kept), "a plan", "delete the folder and plan again")
        if kept.exists()
        else None
    )
    if (path / "run.json").exists() and data != before:
        say(
            f"{path.name}: another plan has run there, and is left alone; to plan again, delete "
            "the folder or give another --out"
        )
        return
    if plan is None:
        kept.unlink(missing_ok=True)
    else:
        save_plan(plan, kept)
    write_json(path / "predicted.json", said)


def _is_planned(path: Path, about: Mapping[str, Any]) -> bool:
    """Return whether a folder has what was planned for this budget by this policy."""
    kept = path / "predicted.json"
    if not kept.exists():
        return False
    said = read_json(kept)
    return all(said.get(key) == value for key, value in about.items()) and (
        "error" in said or (path / "plan.json").exists()
    )


def _planned(
    name: str,
    graph: Graph,
    hardware: Hardware,
    about: Mapping[str, Any],
    outside_bytes: int,
    beyond_ns: int,
    check: Replayed,
) -> tuple[Plan | None, dict[str, Any]]:
    """A plan for the budget in ``about``, ``None`` if none fits, and the prediction."""
    budget = about["budget_bytes"]
    try:
        if budget <= outside_bytes:
            raise InfeasibleError(
                f"{about['share_percent']} % of the resident peak is less than the "
                f"{outside_bytes} B outside the program"
            )
        plan, predicted = planned(
            graph,
            hardware,
            budget - outside_bytes,
            about["policy"],
            about["parameters"],
            replayed=check,
        )
    except InfeasibleError as error:
        say(f"{name}: {error}")
        return None, {**about, "error": str(error)}
    return plan, {
        **about,
        "cache_ops": len(plan.cache_ops),
        **_figures(predicted, outside_bytes, beyond_ns),
    }


def _figures(result: Result, outside_bytes: int, beyond_ns: int) -> dict[str, Any]:
    """``step_ns`` is the makespan and what the resident step took beyond its ops, such as
    launches.
    """
    assert result.allocator is not None
    assert result.makespan_ns is not None
    return {
        "allocated_bytes": result.allocator.peak_allocated_bytes + outside_bytes,
        "reserved_bytes": result.allocator.peak_reserved_bytes + outside_bytes,
        "step_ns": result.makespan_ns + beyond_ns,
        "beyond_ops_ns": beyond_ns,
        "stall_ns": sum(result.stall_ns.values()),
    }


def _allocated(result: Result) -> int:
    assert result.allocator is not None
    return result.allocator.peak_allocated_bytes
