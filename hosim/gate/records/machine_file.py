"""Machines of baselines: a file for each hardware profile as it was measured, in a folder beside
the baselines that name it.

Its name has a digest of its text, so a file never changes: two branches, or two processes that
write baselines at once, do not collide.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from hosim.analysis import digest
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io import gate_files
from hosim.plain_text import flat


def flat_profile(hardware: Hardware) -> dict[str, str]:
    """The profile as in its file, flattened: ``channels.h2d.bandwidth``."""
    from hosim.io import hardware_to_dict

    return flat(
        {
            key: value
            for key, value in hardware_to_dict(hardware).items()
            if key not in ("format", "source")
        }
    )


MACHINES = "machines"
"""The name of the folder."""

SUFFIX = ".toml"

_STRANGE = re.compile(r"[^A-Za-z0-9_-]+")
_DIGITS = 8


def machine_name(machine: Mapping[str, str]) -> str:
    """The name of a machine's file: that of the profile, and a digest of all that it says.

    >>> machine_name({"name": "h100-80gb-sxm", "devices": "1"})
    'h100-80gb-sxm-2d6df165'
    """
    name = _STRANGE.sub("-", machine.get("name", "machine"))
    return f"{name[:60]}-{digest(repr(sorted(machine.items())))[:_DIGITS]}"


def machine_path(name: str, baselines: Path) -> Path:
    """The file of a machine, by the folder of the baselines."""
    return baselines / MACHINES / f"{name}{SUFFIX}"


def read_machine(name: str, baselines: Path, source: str) -> Mapping[str, str]:
    """The machine that the baseline ``source`` names. Raises :class:`InputError`."""
    if _STRANGE.search(name):
        raise InputError(
            f"expected the name of a file in {MACHINES}, without {SUFFIX}, got {name!r}",
            source=source,
            where="machine",
        )
    path = machine_path(name, baselines)
    if not path.is_file():
        raise InputError(
            f"there is no {path.as_posix()}; 'hosim baseline update' writes both again",
            source=source,
            where="machine",
        )
    return gate_files.load_machine(path)["machine"]


def machine_files(baselines: Path, *, unused: bool = False) -> set[Path]:
    """The machines in the folder of the baselines; only those that no baseline there names, which
    are none where one cannot be read, for it may name any.
    """
    found = set((baselines / MACHINES).glob(f"*{SUFFIX}"))
    if not unused:
        return found
    try:
        return found - {
            machine_path(str(gate_files.read_toml(str(file)).get("machine")), baselines)
            for file in baselines.glob(f"*{SUFFIX}")
        }
    except InputError:
        return set()
