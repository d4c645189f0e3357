"""ONNX models as workload graphs.

The mapping:

- An initializer, or the tensor of a ``Constant``, is of kind ``parameter`` if its elements are not
  int64, int32 or bool (``expert`` if a part of its name is ``experts``), else ``buffer``. Weights
  are never read and may be in a file that is missing. ONNX does not distinguish parameters from
  torch's buffers, such as a batch norm's running mean.
- Numbers (scalars, and short lists of sizes that do not depend on data) are not tensors, and
  arithmetic on them is not an op.
- ``Reshape``, ``Squeeze``, ``Unsqueeze``, ``Flatten``, ``Identity`` and ``Dropout`` are views, as
  in :mod:`hosim.io.importers.torch_programs.torch_export`.
  ``Transpose``, ``Slice``, ``Split`` and ``Expand`` are copies: a tensor of ONNX has no strides.
- Every other node is an op. ``flops`` are those of :mod:`hosim.io.importers.onnx.onnx_operators`,
  for operators of ONNX and of onnxruntime (``com.microsoft``); an op without FLOP is bound by the
  bytes it moves. Operators of other domains are listed in ``meta["unknown_ops"]``.
- Functions are inlined. For an ``If`` whose condition depends on data, the branch with more FLOP is
  taken, without the constants of the other, and ``meta["missing"]`` has the number of such cases.
  ``Loop``, ``Scan`` and sequences are refused.

Free dimensions of the inputs need a size: ``dims`` by the model's name of the dimension, or
``x[0]`` for one of input ``x`` without a name. onnx is imported when a function of this module is
called.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from hosim.base.files import mapped
from hosim.base.files.formats import Part, WireError, header, places
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.limits import Budget, limit, refusal

# -- protobuf --------------------------------------------------------------------------------------


_WEIGHTS = frozenset((4, 5, 6, 7, 9, 10, 11))
"""The fields of a tensor that hold its elements."""

_MOST = 1 << 16
"""Tensors with more bytes are weights: the tensors that shapes depend on have at most 1,024
numbers.
"""

_BYTES_OF_A_FIELD = 16
"""The number of bytes of a text or a packed list that count as one field more."""


def without_weights(content: memoryview) -> bytes:
    """Return the model with these contents, without the elements of large tensors. All shapes and
    types are kept.

    Raises :class:`wire.WireError` for a damaged model, and :class:`InputError` for one with too
    many fields or too deep messages.
    """
    return bytes(_Light().message(content, onnx.ModelProto.DESCRIPTOR, limit("nesting_depth")))


class _Light:
    """Copies a message without weights, and counts the fields of all messages."""

    def __init__(self) -> None:
        self._budget = Budget("records")
        self._known: dict[str, Mapping[int, Any]] = {}

    def message(self, message: memoryview, kind: Any, levels: int) -> Part:
        """Return a message of the described ``kind`` without weights; the message itself if it has
        none.
        """
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
        """Return the kinds of the messages in a message, by field number."""
        name = kind.full_name
        if name not in self._known:
            self._known[name] = {
                field.number: field.message_type
                for field in kind.fields
                if field.message_type is not None
            }
        return self._known[name]


# -- graphs ----------------------------------------------------------------------------------------


def import_onnx(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Graph:
    """Return the graph of the ONNX model at ``path`` (plain or gzip), named after the file. Sizes
    are in bytes; no op has a duration.

    Raises :class:`InputError` if onnx is not installed, for a damaged file, for free dimensions
    without a size in ``dims`` (naming all of them), for shapes that depend on data, and for loops.
    """
    require_onnx()
    from hosim.io.importers.onnx.onnx_walk import walk

    source = os.fspath(path)
    try:
        with mapped(source) as content:
            model = without_weights(content)
        return walk(model, Path(path).name.split(".")[0], dims or {})
    except WireError:
        raise InputError(
            "damaged or cut off; expected protobuf of ONNX, export it again", source=source
        ) from None
    except InputError as error:
        # a damaged name may contain any characters
        raise InputError(
            " ".join(error.message.split()),
            source=source,
            where=" ".join((error.where or "").split()),
        ) from None


def require_onnx() -> None:
    """Raise :class:`InputError` unless onnx is installed."""
    from importlib.util import find_spec

    if find_spec("onnx") is None:
        raise InputError(
            "ONNX models need onnx, which is not installed; run: pip install 'hosim[onnx]'"
        )
