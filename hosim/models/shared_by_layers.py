"""The values that the layers of a decoder share beside the sum that goes through them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hosim.models.tape import Value


@dataclass(frozen=True, slots=True)
class Positions:
    """The values that the layers share: cosines and sines of rotary positions, slopes of scores,
    the mask of keys, inputs of their own.

    ``made`` has the keys and values of the last layer that made some, with a window and without,
    and what else attention reads of them.
    """

    turns: tuple[Value, Value] | None
    slopes: tuple[Value, ...]
    mask: Value | None
    inputs: Value | None = None
    made: dict[bool, tuple[Value, Value, tuple[Value, ...]]] = field(default_factory=dict)
