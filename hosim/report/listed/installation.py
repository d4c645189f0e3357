"""The installed packages, the purpose of each extra, and what is missing for it."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from hosim.plain_text import counted
from hosim.report.printing import open_table, paragraph
from hosim.units import human_size
from hosim.version import __version__

EXTRAS = {
    "torch": (
        ("torch", "transformers"),
        "torch.export programs, modules of torch, entries of the gate, running plans",
    ),
    "onnx": (("onnx",), "ONNX models"),
    "solver": (("ortools",), "policy optimal"),
    "dask": (("distributed",), "sweep --scheduler"),
    "parquet": (("pyarrow",), "Parquet files of sweeps"),
    "widgets": (("ipywidgets",), "hosim.what_if in notebooks"),
}
"""The packages of each extra, and what needs them."""
TRIED = {"torch": ("2.13.0", "2.14.1"), "transformers": ("5.15.0", "5.24.0")}
"""The lowest and the newest version of packages with which `make versions` runs the tests that need
them.
"""
VARIABLES = ("HOSIM_CACHE", "HOSIM_LIMITS", "HOSIM_DEBUG")


def installation(cache: Path, workloads: int, profiles: int) -> dict[str, Any]:
    """Versions, extras, the cache folder and environment variables.

    ``workloads`` and ``profiles`` are how many shipped ones were found.
    """
    needs = dict(_needs())
    features = []
    for extra, (packages, purpose) in EXTRAS.items():
        found = {package: _version(package) for package in packages}
        missing = [
            f"{package}{needs.get(package, '')}"
            for package, version in found.items()
            if not _enough(version, needs.get(package))
        ]
        features.append(
            {
                "extra": extra,
                "packages": found,
                "missing": missing,
                "tried": {package: TRIED[package] for package in packages if package in TRIED},
                "purpose": purpose,
            }
        )
    sizes = list(_sizes(cache))
    return {
        "hosim": __version__,
        "at": str(Path(__file__).resolve().parents[2]),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {
            package: _version(package)
            for package in sorted(
                [_name(line) for line in _requirements() if "extra ==" not in line]
            )
        },
        "extras": features,
        "workloads": workloads,
        "profiles": profiles,
        "cache": {"folder": str(cache), "files": len(sizes), "bytes": sum(sizes)},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def installation_table(found: dict[str, Any]) -> RenderableType:
    """The same for people: a row for each extra, and what to install for those that lack
    something.
    """
    kept = found["cache"]
    packages = ", ".join(
        f"{name} {version or 'missing'}" for name, version in found["packages"].items()
    )
    lines = [
        f"hosim      {found['hosim']}, in {found['at']}",
        f"python     {found['python']} on {found['system']}, {found['cores']} cores",
        f"packages   {packages}",
        f"shipped    {counted(found['workloads'], 'workload')}, "
        f"{counted(found['profiles'], 'hardware profile')}",
        f"cache      {kept['folder']}: {counted(kept['files'], 'file')}, "
        f"{human_size(kept['bytes'])}",
        *(f"{name} = {value}" for name, value in found["variables"].items()),
    ]
    table = open_table("Extras", "extra", "installed", "for", left=3, wraps=("installed", "for"))
    for feature in found["extras"]:
        installed = ", ".join(
            f"{name} {version}" for name, version in feature["packages"].items() if version
        )
        missing = f"missing: {', '.join(feature['missing'])}" if feature["missing"] else ""
        tried = ", ".join(
            f"{package} {lowest} to {newest}"
            for package, (lowest, newest) in feature["tried"].items()
        )
        said = [installed, f"tried with {tried}" if tried else "", missing]
        table.add_row(feature["extra"], "; ".join(filter(None, said)), feature["purpose"])
    lacking = [feature["extra"] for feature in found["extras"] if feature["missing"]]
    advice = (
        f"pip install 'hosim[{','.join(lacking)}]' installs what is missing."
        if lacking
        else "Nothing is missing."
    )
    return Group(paragraph(*lines, space=True), table, paragraph(advice))


def _sizes(folder: Path) -> Iterator[int]:
    """The bytes of each file in a folder and below it; what cannot be looked at is left out."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield (Path(place) / name).stat().st_size


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    try:
        return metadata.requires("hosim") or []
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        return []


def _needs() -> Iterator[tuple[str, str]]:
    """The least version of each package, such as ``>=2.13``."""
    for line in _requirements():
        bare = line.partition(";")[0].strip()
        yield _name(line), bare[len(_name(line)) :].strip()


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]


def _enough(version: str | None, needed: str | None) -> bool:
    """Return whether a version is there, and is not below the least one."""
    least = next(
        (part.removeprefix(">=") for part in (needed or "").split(",") if part.startswith(">=")),
        "0",
    )
    return version is not None and _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdecimal())
