"""The findings of ``hosim validate`` in a folder of the kit for GPU machines: offload schemes
predicted from the resident run, and plans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.validate.kit import read_json
from hosim.validate.offloads import Prediction, predict_recording
from hosim.validate.plan_rows import plan_rows
from hosim.validate.validation import beside

FORMAT = "hosim.schemes/2"
_RESIDENT = re.compile(r"(?P<model>\w+)-(?P<mode>[a-z]+)-(?P<length>\d+)-resident")


def validate_schemes(folder: Path) -> dict[str, Any]:
    """Predicted and, where a scheme was recorded, measured figures of each model, mode and length
    whose resident run is in the folder.

    ``plans`` are those of :func:`plan_rows`. Integers in nanoseconds and bytes, null if not
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
