"""A hardware profile as lines of text that a baseline has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.hardware import Hardware


def flat_profile(hardware: Hardware) -> dict[str, str]:
    """The profile as in its file, flattened: ``channels.h2d.bandwidth``."""
    from hosim.io import hardware_to_dict

    flat: dict[str, str] = {}

    def add(where: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{where}.{key}" if where else key, inner)
        else:
            flat[where] = str(value)

    add("", {key: value for key, value in hardware_to_dict(hardware).items() if key not in ("format", "source")})
    return flat
