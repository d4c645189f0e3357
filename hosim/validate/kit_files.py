"""The files of JSON that the recording kit writes beside its traces, checked: the model, the bandwidth sweep, the runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.validate.recorded_step import read_json

_DIRECTIONS = ("h2d", "d2h", "both")
_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class KitRun:
    """What was measured of a scheme: the median time of its steps, and the peaks of the allocator, ``None`` if not recorded."""

    wall_ns: int
    allocated_bytes: int | None
    reserved_bytes: int | None


def model_sizes(path: Path) -> tuple[int, int]:
    """Bytes of a layer's parameters, and of the smallest tensor that is moved, in ``meta.json``. Raises :class:`InputError`."""
    meta, source = read_json(path, ["model", "smallest_offload_bytes"]), str(path)
    parameters = _object(meta["model"], source, "model").get("layer_parameters")
    smallest = meta["smallest_offload_bytes"]
    return _whole(parameters, source, "model.layer_parameters"), _whole(smallest, source, "smallest_offload_bytes")


def bandwidth_sweep(path: Path) -> Mapping[str, Any]:
    """The sweep in ``bandwidth.json``: copies with direction, bytes, median and kind of memory. Raises :class:`InputError`."""
    sweep, source = read_json(path, ["copies"]), str(path)
    if not isinstance(sweep["copies"], list):
        raise InputError("expected a list of copies", source=source, where="copies")
    for i, row in enumerate(sweep["copies"]):
        where = f"copies[{i}]"
        if _object(row, source, where).get("direction") not in _DIRECTIONS:
            raise InputError(f"expected one of {', '.join(_DIRECTIONS)}", source=source, where=f"{where}.direction")
        _whole(row.get("bytes"), source, f"{where}.bytes", least=1)
        _whole(row.get("median_ns"), source, f"{where}.median_ns")
        if not isinstance(row.get("pinned"), bool):
            raise InputError("expected true or false", source=source, where=f"{where}.pinned")
    return sweep


def kit_run(path: Path) -> KitRun:
    """The figures in a ``run.json``. Raises :class:`InputError`."""
    run, source = read_json(path, ["wall_ns", "memory"]), str(path)
    times = run["wall_ns"]
    if not isinstance(times, list) or not times:
        raise InputError("expected a list of at least one time in ns", source=source, where="wall_ns")
    wall = statistics.median_low([_whole(time, source, f"wall_ns[{i}]") for i, time in enumerate(times)])
    memory = _object(run["memory"] or {}, source, "memory")
    peaks = [memory.get(key) for key in ("max_memory_allocated", "max_memory_reserved")]
    allocated, reserved = (None if peak is None else _whole(peak, source, "memory") for peak in peaks)
    return KitRun(wall, allocated, reserved)


def _object(value: object, source: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError("expected an object", source=source, where=where)
    return value


def _whole(value: object, source: str, where: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise InputError(f"expected a whole number of at least {least}", source=source, where=where)
    return value
