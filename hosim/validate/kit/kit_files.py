"""Checked readers of the JSON files that the kit for GPU machines (:mod:`hosim.gpu`) writes: the
models, the bandwidth sweep, the runs.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.base import files
from hosim.errors import InputError, expect

FORMAT = "hosim.gpu/1"
"""The format of every file of the kit."""

DIRECTIONS = ("h2d", "d2h", "both")
"""The directions of copies in a sweep."""
LARGEST = 1 << 60
"""The largest number in a file: nanoseconds or bytes."""


@dataclass(frozen=True, slots=True)
class SweptCopies:
    """Equal copies of a sweep, one after the other. The direction ``both`` means pairs of copies,
    one in each direction at once, timed until both have ended.
    """

    direction: str
    pinned: bool
    size_bytes: int
    times_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        """The median time of one of them."""
        return round(statistics.median(self.times_ns))


@dataclass(frozen=True, slots=True)
class BandwidthSweep:
    """Measured copies, and the name of their device; None if it is not known."""

    copies: tuple[SweptCopies, ...]
    device: str | None = None


@dataclass(frozen=True, slots=True)
class KitRun:
    """The measurements of a run: the median time of its steps, and the peaks of the allocator,
    ``None`` if not recorded.

    ``results`` is the digest of the results of a captured step's first runs.
    """

    wall_ns: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    results: str | None = None


def read_json(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return a file of the kit, with these keys. Raises :class:`InputError`."""
    content = files.read_json(str(path), "a file of the kit", "measure again: python -m hosim.gpu")
    what = f"a file that `python -m hosim.gpu` writes (format {FORMAT})"
    found = expect(
        content, dict, what, source=str(path), when=lambda one: one.get("format") == FORMAT
    )
    missing = [key for key in keys if key not in found]
    if missing:
        raise InputError(f"expected the key {missing[0]!r}", source=str(path))
    return found


def measured_device(path: Path) -> Mapping[str, Any]:
    """Return the ``device`` in ``meta.json``: its name and kind and, for a GPU, the free memory and
    the host's memory. Raises :class:`InputError`.
    """
    source = str(path)
    device = _object(read_json(path, ["device"])["device"], source, "device")
    for key in ("name", "kind"):
        expect(device.get(key), str, "a text", f"device.{key}", source)
    if device["kind"] != "cpu":
        for key in ("free_memory_bytes", "host_memory_bytes"):
            whole(device.get(key), source, f"device.{key}", least=2)
    return device


def model_sizes(path: Path, model: str) -> tuple[int, int]:
    """Return the number of a layer's parameters, and the bytes of the smallest tensor that is
    moved, from ``meta.json``. Raises :class:`InputError`.
    """
    meta, source = read_json(path, ["models", "smallest_offload_bytes"]), str(path)
    sizes = _object(_object(meta["models"], source, "models").get(model), source, f"models.{model}")
    smallest = meta["smallest_offload_bytes"]
    parameters = whole(sizes.get("layer_parameters"), source, f"models.{model}.layer_parameters")
    return parameters, whole(smallest, source, "smallest_offload_bytes")


def bandwidth_sweep(path: Path) -> BandwidthSweep:
    """Return the sweep in ``bandwidth.json``. Raises :class:`InputError`."""
    sweep, source = read_json(path, ["copies"]), str(path)
    copies = tuple(
        _swept(_object(row, source, f"copies[{i}]"), source, f"copies[{i}]")
        for i, row in enumerate(expect(sweep["copies"], list, "a list of copies", "copies", source))
    )
    device = sweep.get("device")
    name = device.get("name") if isinstance(device, dict) else None
    return BandwidthSweep(copies, name if isinstance(name, str) else None)


def _swept(row: Mapping[str, Any], source: str, where: str) -> SweptCopies:
    what, place = f"one of {', '.join(DIRECTIONS)}", f"{where}.direction"
    direction = expect(
        row.get("direction"), str, what, place, source, when=lambda one: one in DIRECTIONS
    )
    pinned = expect(row.get("pinned"), bool, "true or false", f"{where}.pinned", source)
    size = whole(row.get("bytes"), source, f"{where}.bytes", least=1)
    return SweptCopies(direction, pinned, size, _times(row.get("ns"), source, f"{where}.ns"))


def kit_run(path: Path) -> KitRun:
    """Return the figures in a ``run.json``. Raises :class:`InputError`."""
    run, source = read_json(path, ["wall_ns", "memory"]), str(path)
    wall = statistics.median_low(_times(run["wall_ns"], source, "wall_ns"))
    memory = _object(run["memory"] or {}, source, "memory")
    allocated, reserved = (
        None if peak is None else whole(peak, source, "memory")
        for peak in [memory.get(key) for key in ("max_memory_allocated", "max_memory_reserved")]
    )
    return KitRun(wall, allocated, reserved, str(run["results"]) if "results" in run else None)


def _times(value: object, source: str, where: str) -> tuple[int, ...]:
    times = expect(value, list, "a list of at least one time in ns", where, source, when=bool)
    return tuple(whole(time, source, f"{where}[{i}]") for i, time in enumerate(times))


def _object(value: object, source: str, where: str) -> Mapping[str, Any]:
    return expect(value, dict, "an object", where, source)


def whole(value: object, source: str, where: str, least: int = 0) -> int:
    """Return a value that must be a whole number. Raises :class:`InputError` with its place for any
    other value.
    """
    what = f"a whole number of at least {least}"
    return expect(value, int, what, where, source, when=lambda n: least <= n <= LARGEST)
