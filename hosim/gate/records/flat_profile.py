"""Describe what a baseline has of a hardware profile and of a recipe: their files as lines of
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.hardware import Hardware
from hosim.plain_text import written


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


def flat(data: Mapping[str, Any], within: str = "") -> dict[str, str]:
    """The values in nested mappings by their paths.

    >>> flat({"training": {"checkpoint": True, "micro_batches": 2}, "name": "m"})
    {'training.checkpoint': 'true', 'training.micro_batches': '2', 'name': 'm'}
    """
    found: dict[str, str] = {}
    for key, value in data.items():
        where = f"{within}.{key}" if within else key
        found |= flat(value, where) if isinstance(value, Mapping) else {where: written(value)}
    return found
