"""What ``hosim validate`` finds in a folder of the recording kit: each offload scheme predicted from the resident run and the sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.validate.offload_prediction import Prediction, predict_recording
from hosim.validate.recorded_step import read_json
from hosim.validate.validation import beside

FORMAT = "hosim.schemes/1"
_RESIDENT = re.compile(r"(?P<mode>[a-z]+)-(?P<length>\d+)-resident")


def validate_schemes(folder: Path) -> dict[str, Any]:
    """Predicted and, where a scheme was recorded, measured figures of every mode and length whose resident run is in the folder.

    Integers in nanoseconds and bytes, null if not measured; ``error`` is signed and relative. Raises :class:`InputError` for a folder that
    is not a recording, or has no resident run or no sweep.
    """
    meta = read_json(folder / "meta.json", ["device", "model"])
    found = [match for path in sorted(folder.iterdir()) if (match := _RESIDENT.fullmatch(path.name))]
    if not found:
        raise InputError(
            "no resident run (MODE-LENGTH-resident) to predict from; record it with: python -m hosim.record", source=str(folder)
        )
    runs = sorted((match["mode"], int(match["length"])) for match in found)
    device = meta["device"]
    return {
        "format": FORMAT,
        "recording": folder.resolve().name,
        "device": device.get("name") if isinstance(device, Mapping) else None,
        "runs": [_run(mode, length, prediction) for mode, length in runs for prediction in predict_recording(folder, mode, length)],
    }


def _run(mode: str, length: int, x: Prediction) -> dict[str, Any]:
    return {
        "mode": mode,
        "length": length,
        "scheme": x.scheme,
        "makespan": beside("ns", x.measured_ns, x.makespan_ns),
        "stall": {"measured_ns": x.measured_stall_ns, "simulated_ns": x.stall_ns},
        "peak": beside("bytes", x.measured_peak_bytes, x.peak_bytes),
        "reserved": beside("bytes", x.measured_reserved_bytes, x.reserved_bytes),
        "moved_bytes": dict(x.moved_bytes),
    }
