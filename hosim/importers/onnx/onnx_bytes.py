"""The bytes of an ONNX model without those of its weights, by protobuf's wire format. Imports onnx,
for the description of its messages.

Weights are dropped before onnx parses the model, so that a model takes the memory of its graph. A
model of too many fields is refused then, because a field takes up to fifty times its bytes once it
is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from hosim.files.formats import Part, header, places
from hosim.limits import Budget, limit, refusal

_WEIGHTS = frozenset((4, 5, 6, 7, 9, 10, 11))
"""The fields of a tensor that hold its elements."""

_MOST = 1 << 16
"""Elements of more bytes are weights: the numbers that shapes depend on are at most 1,024."""

_BYTES_OF_A_FIELD = 16
"""How many bytes of a text or a packed list count as one field more."""


def without_weights(content: memoryview) -> bytes:
    """The model with these contents, without the elements of large tensors. Shapes and types of all
    of them are still there.

    Raises :class:`wire.WireError` for a damaged model, and :class:`InputError` for one of too many
    fields or too deep messages.
    """
    return bytes(_Light().message(content, onnx.ModelProto.DESCRIPTOR, limit("nesting_depth")))


class _Light:
    """Copies a message without weights, and counts the fields of all messages."""

    def __init__(self) -> None:
        self._budget = Budget("records")
        self._known: dict[str, Mapping[int, Any]] = {}

    def message(self, message: memoryview, kind: Any, levels: int) -> Part:
        """A message of the described ``kind``: itself, if it is without weights."""
        if not levels:
            raise refusal("nesting_depth")
        inside = self._inside(kind)
        is_tensor = kind.full_name == "onnx.TensorProto"
        parts: list[Part] = []
        copied = 0  # everything before is in ``parts``, or dropped
        for begin, key, body, end in places(message):
            self._budget.draw()
            if body is None:
                continue
            if is_tensor and key in _WEIGHTS and end - body > _MOST:
                parts.append(message[copied:begin])
                copied = end
            elif key in inside:
                whole = message[body:end]
                light = self.message(whole, inside[key], levels - 1)
                if light is not whole:
                    parts += (message[copied:begin], header(key, len(light)), light)
                    copied = end
            else:
                self._budget.draw(1 + (end - body) // _BYTES_OF_A_FIELD)
        return b"".join([*parts, message[copied:]]) if copied else message

    def _inside(self, kind: Any) -> Mapping[int, Any]:
        """The kinds of the messages in a message, by the number of their field."""
        name = kind.full_name
        if name not in self._known:
            self._known[name] = {
                field.number: field.message_type
                for field in kind.fields
                if field.message_type is not None
            }
        return self._known[name]
