"""The findings of ``hosim validate`` in a folder of the kit for GPU machines: offload schemes that
are predicted from the resident run, and plans.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.validate.kit import KitRun, kit_run, read_json, whole
from hosim.validate.offloads import Prediction, predict_recording
from hosim.validate.validation import beside

_FIGURES = ("allocated_bytes", "reserved_bytes", "step_ns")


def plan_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each captured step and each plan of it: the step first, then larger shares
    before smaller ones.

    Figures that were not predicted or not measured are ``None``. ``error`` is the reason that there
    is no plan, and ``same_results`` is true if the first steps gave the same bits as with
    everything resident. Integers are in nanoseconds and bytes. Raises :class:`InputError` for a
    damaged folder.
    """
    rows = []
    for step in sorted(path.parent for path in folder.glob("[!.]*-step/predicted.json")):
        name = step.name.removesuffix("-step")
        plans = [path.parent for path in folder.glob(f"{name}-plan-*/predicted.json")]
        resident = _of_run(step)
        rows.append(_row(step, resident, resident))
        rows += [
            _row(plan, _of_run(plan), resident) for plan in sorted(plans, key=_share, reverse=True)
        ]
    return rows


def _share(folder: Path) -> int:
    text = folder.name.rpartition("-")[2]
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _of_run(folder: Path) -> KitRun | None:
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


FORMAT = "hosim.schemes/2"
_RESIDENT = re.compile(r"(?P<model>\w+)-(?P<mode>[a-z]+)-(?P<length>\d+)-resident")


def validate_schemes(folder: Path) -> dict[str, Any]:
    """Return the predicted figures, and the measured ones of recorded schemes, of each model, mode
    and length whose resident run is in the folder.

    ``plans`` are those of :func:`plan_rows`. Integers are in nanoseconds and bytes, null if not
    measured; ``error`` is signed and relative. A dry run has no device to predict from, and so no
    ``runs``. Raises :class:`InputError` for a folder that the kit did not write, or that has
    nothing to compare.
    """
    meta = read_json(folder / "meta.json", ["device", "models", "dry_run"])
    found = [
        match for path in sorted(folder.iterdir()) if (match := _RESIDENT.fullmatch(path.name))
    ]
    runs = sorted((match["model"], match["mode"], int(match["length"])) for match in found)
    plans = plan_rows(folder)
    if not runs and not plans:
        raise InputError(
            "no resident run (MODEL-MODE-LENGTH-resident) to predict from; record it with: python "
            "-m hosim.gpu measure",
            source=str(folder),
        )
    device, dry = meta["device"], meta["dry_run"] is True
    return {
        "format": FORMAT,
        "recording": folder.resolve().name,
        "device": device.get("name") if isinstance(device, Mapping) else None,
        "dry_run": dry,
        "runs": []
        if dry
        else [
            _run(*key, prediction) for key in runs for prediction in predict_recording(folder, *key)
        ],
        "plans": plans,
    }


def _run(model: str, mode: str, length: int, x: Prediction) -> dict[str, Any]:
    return {
        "model": model,
        "mode": mode,
        "length": length,
        "scheme": x.scheme,
        "makespan": beside("ns", x.measured_ns, x.makespan_ns),
        "stall": {"measured_ns": x.measured_stall_ns, "simulated_ns": x.stall_ns},
        "peak": beside("bytes", x.measured_peak_bytes, x.peak_bytes),
        "reserved": beside("bytes", x.measured_reserved_bytes, x.reserved_bytes),
        "moved_bytes": dict(x.moved_bytes),
    }
