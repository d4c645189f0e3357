"""The first bytes of the files of other programs: each function tells from them whether a file is
of its format.

They stand below all that reads these formats, so that an error can say what a file seems to be.
"""

import re
from pathlib import Path

from hosim.base.files.formats import wire

_MODEL_TYPE = re.compile(rb'"model_type"\s*:\s*"')
_FIRST_NODE = b"\x0a"
"""The first byte of a graph that has nodes."""
_MODEL_FIELDS = {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}


def is_kineto(head: bytes) -> bool:
    """Return whether a Chrome trace begins like this, as the PyTorch profiler writes it: JSON with
    ``traceEvents``, or first its version.
    """
    return head.lstrip()[:1] == b"{" and (
        b'"traceEvents"' in head or b'"schemaVersion"' in head[:1000]
    )


def is_torch_trace(head: bytes) -> bool:
    """Return whether an execution trace begins like this: JSON with a schema version and nodes of
    the observer.
    """
    return head.lstrip()[:1] == b"{" and b"[pytorch|profiler|execution_" in head


def is_onnx(head: bytes) -> bool:
    """Return whether an ONNX model begins like this: protobuf with a version of the format, and a
    graph or operator sets.

    A graph that does not end in ``head`` is the last field that is seen: it has to begin like one,
    unless the version came before it.
    """
    if head[:1] != b"\x08" and head[:1] != b"\x3a":
        return False
    found: set[int] = set()
    at = 0
    try:
        while at < len(head):
            key, at = wire.varint(head, at)
            number, kind = key >> 3, key & 7
            if (
                number not in _MODEL_FIELDS
                or (kind == 0) != (number in (1, 5))
                or kind not in (0, 2)
            ):
                return {1, 7} <= found
            value, at = wire.varint(head, at)
            if number == 7 and at + value > len(head):
                return 1 in found or head[at : at + 1] == _FIRST_NODE
            at += value if kind == 2 else 0
            found.add(number)
    except wire.WireError:
        pass
    return {1, 7} <= found


def is_model_config(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is one, by its ``model_type``."""
    return head.lstrip().startswith(b"{") and _MODEL_TYPE.search(head) is not None


def is_model_folder(path: Path) -> bool:
    """Return whether a folder is a checkpoint as transformers writes it, by its ``config.json``."""
    return (path / "config.json").is_file()
