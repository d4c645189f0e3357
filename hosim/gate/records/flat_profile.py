"""What a baseline has of a hardware profile: its file as lines of text."""

from __future__ import annotations

from hosim.hardware import Hardware
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
