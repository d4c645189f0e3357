"""Plans that the kit for GPU machines ran: what hosim predicted of each, beside what was
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.validate.kit import KitRun, kit_run, read_json, whole

_FIGURES = ("allocated_bytes", "reserved_bytes", "step_ns")


def plan_rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each captured step and each plan of it: the step first, then larger shares before
    smaller ones.

    What was not predicted or not measured is ``None``; ``error`` says why there is no plan, and
    ``same_results`` whether the first steps gave the same bits as with everything resident.
    Integers in nanoseconds and bytes. Raises :class:`InputError` for a damaged folder.
    """
    rows = []
    for step in sorted(path.parent for path in folder.glob("[!.]*-step/predicted.json")):
        name = step.name.removesuffix("-step")
        plans = [path.parent for path in folder.glob(f"{name}-plan-*/predicted.json")]
        resident = _run(step)
        rows.append(_row(step, resident, resident))
        rows += [
            _row(plan, _run(plan), resident) for plan in sorted(plans, key=_share, reverse=True)
        ]
    return rows


def _share(folder: Path) -> int:
    text = folder.name.rpartition("-")[2]
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _run(folder: Path) -> KitRun | None:
    path = folder / "run.json"
    return kit_run(path) if path.exists() else None


def _row(folder: Path, run: KitRun | None, resident: KitRun | None) -> dict[str, Any]:
    path = folder / "predicted.json"
    said, source = read_json(path, ["share_percent"]), str(path)
    error = said.get("error")
    if error is not None and not isinstance(error, str):
        raise InputError("expected a text", source=source, where="error")
    digests = [one.results if one is not None else None for one in (run, resident)]
    return {
        "name": folder.name,
        "share_percent": whole(said["share_percent"], source, "share_percent"),
        "budget_bytes": _optional(said, source, "budget_bytes"),
        "cache_ops": _optional(said, source, "cache_ops") or 0,
        "error": error,
        "same_results": None if None in digests else digests[0] == digests[1],
        "predicted": {key: _optional(said, source, key) for key in _FIGURES},
        "measured": {
            "allocated_bytes": run and run.allocated_bytes,
            "reserved_bytes": run and run.reserved_bytes,
            "step_ns": run and run.wall_ns,
        },
    }


def _optional(data: Mapping[str, Any], source: str, key: str) -> int | None:
    return None if data.get(key) is None else whole(data[key], source, key)
