"""The files of JSON that the kit for GPU machines (:mod:`hosim.gpu`) writes, checked: the models,
the bandwidth sweep, the runs.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.base import files
from hosim.errors import InputError

FORMAT = "hosim.gpu/1"
"""The format of every file of the kit."""

DIRECTIONS = ("h2d", "d2h", "both")
"""The directions of copies in a sweep."""
LARGEST = 1 << 60
"""The largest number of a file: nanoseconds, or bytes."""


@dataclass(frozen=True, slots=True)
class SweptCopies:
    """Equal copies of a sweep, one after the other: of ``both``, pairs of copies, one each way at
    once, until both were through.
    """

    direction: str
    pinned: bool
    size_bytes: int
    times_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        """The time of one."""
        return round(statistics.median(self.times_ns))


@dataclass(frozen=True, slots=True)
class BandwidthSweep:
    """Measured copies, and the name of their device if it is known."""

    copies: tuple[SweptCopies, ...]
    device: str | None = None


@dataclass(frozen=True, slots=True)
class KitRun:
    """The measurements of a run: the median time of its steps, and the peaks of the allocator,
    ``None`` if not recorded.

    ``results`` is the digest of what a captured step's first runs returned.
    """

    wall_ns: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    results: str | None = None


def read_json(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """A file of the kit, with these keys. Raises :class:`InputError`."""
    content = files.read_json(str(path), "a file of the kit", "measure again: python -m hosim.gpu")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"expected a file that `python -m hosim.gpu` writes (format {FORMAT})", source=str(path)
        )
    missing = [key for key in keys if key not in content]
    if missing:
        raise InputError(f"expected the key {missing[0]!r}", source=str(path))
    return content


def measured_device(path: Path) -> Mapping[str, Any]:
    """The ``device`` in ``meta.json``: its name and kind, and of a GPU the free memory and the
    host's. Raises :class:`InputError`.
    """
    source = str(path)
    device = _object(read_json(path, ["device"])["device"], source, "device")
    for key in ("name", "kind"):
        if not isinstance(device.get(key), str):
            raise InputError("expected a text", source=source, where=f"device.{key}")
    if device["kind"] != "cpu":
        for key in ("free_memory_bytes", "host_memory_bytes"):
            whole(device.get(key), source, f"device.{key}", least=2)
    return device


def model_sizes(path: Path, model: str) -> tuple[int, int]:
    """Bytes of a layer's parameters, and of the smallest tensor that is moved, in ``meta.json``.
    Raises :class:`InputError`.
    """
    meta, source = read_json(path, ["models", "smallest_offload_bytes"]), str(path)
    sizes = _object(_object(meta["models"], source, "models").get(model), source, f"models.{model}")
    smallest = meta["smallest_offload_bytes"]
    parameters = whole(sizes.get("layer_parameters"), source, f"models.{model}.layer_parameters")
    return parameters, whole(smallest, source, "smallest_offload_bytes")


def bandwidth_sweep(path: Path) -> BandwidthSweep:
    """The sweep in ``bandwidth.json``. Raises :class:`InputError`."""
    sweep, source = read_json(path, ["copies"]), str(path)
    if not isinstance(sweep["copies"], list):
        raise InputError("expected a list of copies", source=source, where="copies")
    copies = tuple(
        _swept(_object(row, source, f"copies[{i}]"), source, f"copies[{i}]")
        for i, row in enumerate(sweep["copies"])
    )
    device = sweep.get("device")
    name = device.get("name") if isinstance(device, dict) else None
    return BandwidthSweep(copies, name if isinstance(name, str) else None)


def _swept(row: Mapping[str, Any], source: str, where: str) -> SweptCopies:
    direction, pinned = row.get("direction"), row.get("pinned")
    if direction not in DIRECTIONS:
        raise InputError(
            f"expected one of {', '.join(DIRECTIONS)}", source=source, where=f"{where}.direction"
        )
    if not isinstance(pinned, bool):
        raise InputError("expected true or false", source=source, where=f"{where}.pinned")
    size = whole(row.get("bytes"), source, f"{where}.bytes", least=1)
    return SweptCopies(direction, pinned, size, _times(row.get("ns"), source, f"{where}.ns"))


def kit_run(path: Path) -> KitRun:
    """The figures in a ``run.json``. Raises :class:`InputError`."""
    run, source = read_json(path, ["wall_ns", "memory"]), str(path)
    wall = statistics.median_low(_times(run["wall_ns"], source, "wall_ns"))
    memory = _object(run["memory"] or {}, source, "memory")
    peaks = [memory.get(key) for key in ("max_memory_allocated", "max_memory_reserved")]
    allocated, reserved = (
        None if peak is None else whole(peak, source, "memory") for peak in peaks
    )
    return KitRun(wall, allocated, reserved, str(run["results"]) if "results" in run else None)


def _times(value: object, source: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise InputError("expected a list of at least one time in ns", source=source, where=where)
    return tuple(whole(time, source, f"{where}[{i}]") for i, time in enumerate(value))


def _object(value: object, source: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError("expected an object", source=source, where=where)
    return value


def whole(value: object, source: str, where: str, least: int = 0) -> int:
    """A value that has to be a whole number; raises :class:`InputError` with its place for another
    one.
    """
    if type(value) is not int or not least <= value <= LARGEST:
        raise InputError(f"expected a whole number of at least {least}", source=source, where=where)
    return value
