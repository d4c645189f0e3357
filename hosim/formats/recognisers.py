"""Recognisers of this room's formats: each function decides by a file's first bytes."""

from pathlib import Path

from hosim.base.files import formats as wire

_METADATA_FIELDS = {1: (2,), 2: (2,)}
"""The wire types of the fields of ``GlobalMetadata``: version and attributes."""
_NODE_FIELDS = {
    1: (0,),
    2: (2,),
    3: (0,),
    4: (0, 2),
    5: (0, 2),
    6: (0,),
    7: (0,),
    8: (2,),
    9: (2,),
    10: (2,),
}
"""The wire types of the fields of ``Node``, from its id to its attributes; lists of numbers may be
packed.
"""


def is_nsys(content: bytes) -> bool:
    """Return whether these are the contents of an SQLite database; `read_nsys` refuses databases of
    other programs.
    """
    return content.startswith(b"SQLite format 3\0")


def is_chakra(head: bytes) -> bool:
    """Return whether a Chakra trace begins like this: JSON with a ``workload_graph``, or a metadata
    message before a node.

    Protobuf omits fields that are 0 or empty: an id of 0, or the whole metadata message. Present
    fields must have their types and order.
    """
    if head.lstrip()[:1] == b"{":
        return b'"workload_graph"' in head
    try:
        begin, metadata = next(wire.messages(head))
        if not wire.is_message(metadata, 0, len(metadata), _METADATA_FIELDS):
            return False
        reader = wire.Reader()
        attributes = [
            reader.fields(a) for a in reader.fields(metadata).get(2, ()) if isinstance(a, bytes)
        ]
        if not all(isinstance(a.get(1, [b""])[0], bytes) for a in attributes):
            return False
        size, node = wire.varint(head, begin + len(metadata))
        return size > 0 and wire.is_message(head, node, node + size, _NODE_FIELDS)
    except (wire.WireError, StopIteration):
        return False


def is_inductor(head: bytes) -> bool:
    """Return whether a graph of inductor begins like this: JSON with nodes that have
    ``buffer_names``, or buffers that have a ``size_alloc``.
    """
    keys = (b'"nodes"', b'"buffer_names"'), (b'"buffers"', b'"size_alloc"')
    return head.lstrip()[:1] == b"{" and any(
        first in head and second in head for first, second in keys
    )


def is_hyper_parallel(head: bytes) -> bool:
    """Return whether a trace of hyper-parallel begins like this: a JSON object with
    ``storage_sizes`` and ``retained_sids``, or with accesses of storages.
    """
    keys = (b'"storage_sizes"', b'"retained_sids"'), (b'"accesses"', b'"storage_id"')
    return head.lstrip()[:1] == b"{" and any(
        first in head and second in head for first, second in keys
    )


def is_mindir(content: bytes) -> bool:
    """Return whether a MindIR file begins like this: protobuf with a version in words,
    ``MindSpore`` as producer, and a graph.
    """
    if not content.startswith(b"\x0a") or b"MindSpore" not in content[:64]:
        return False
    try:
        return wire.text(wire.Reader().fields(content[: _first_two(content)]), 2) == "MindSpore"
    except wire.WireError:
        return False


def _first_two(content: bytes) -> int:
    """Return the position at which the first two fields end."""
    at = 0
    for _ in range(2):
        _, at = wire.varint(content, at)
        size, at = wire.varint(content, at)
        at += size
    return at


def is_g10(folder: Path) -> bool:
    """Return whether ``folder`` has either of the two files of G10, plain or gzipped."""
    return any(
        (folder / f"{name}.config{suffix}").is_file()
        for name in ("kernels", "tensors")
        for suffix in ("", ".gz")
    )
