"""The records of a ``.pt2`` archive, checked before anything is read from them. Only records that
``torch.export.save`` writes are allowed.

Every name must be exactly one of :data:`NAMES`, because a reader that ignores case or the kind of
slash would find more. The data of weights and constants are never read. Example inputs are a
pickle, which is not used here but which others would run: it must name only the parts of tensors
and containers.
"""

import os
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from hosim.base.files import opened
from hosim.errors import InputError, errors_of
from hosim.io.importers.stored import StoredRecord, ZipWindow, records_of
from hosim.limits import within

NAMES = re.compile(
    r"archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id|\.format_version|\.storage_alignment"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d{1,9})|data/constants/(model_constants_config\.json|tensor_\d{1,9})"
    r"|extra/(?!\.)[\w .-]*[\w-](/(?!\.)[\w .-]*[\w-])*",
    re.ASCII,
)
"""The names of records, below the folder that contains all of them."""

MODEL, WEIGHTS, CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)

_EXAMPLES = "data/sample_inputs/model.pt"
_AGAIN = "write it again with torch.export.save"
_OF_TENSORS = re.compile(
    r"collections (OrderedDict|defaultdict|deque|Counter)|__builtin__ "
    r"(set|bytearray|complex|slice)|_codecs encode"
    r"|torch "
    r"(\w+Storage|Tensor|device|Size|bool|u?int\d+|b?float\d+|complex\d+|float8_\w+)|torch\.storage "
    r"\w+Storage"
    r"|torch\._utils _rebuild_\w+|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter "
    r"Parameter|torch\.serialization _get_layout"
    r"|torch\._export\.serde\.serialize _reconstruct_fake_tensor",
    re.ASCII,
)
"""The names that a pickle of example inputs may use: module and name, as in its instruction
``GLOBAL``.
"""


@dataclass(frozen=True, slots=True)
class Pt2Archive:
    """The three records of a program that are read, and the sizes of all records by name."""

    source: str
    model: bytes
    weights: bytes
    constants: bytes
    sizes: Mapping[str, int]


def read_archive(source: str) -> Pt2Archive:
    """Return the records in the file ``source``. Raises :class:`InputError` if it is damaged, or
    has records that ``torch.export.save`` does not write.
    """
    with errors_of(source), opened(source) as stream:
        return _archive(stream, source)


def _archive(stream: BinaryIO, source: str) -> Pt2Archive:
    window = ZipWindow(stream, 0, within("archive_bytes", os.fstat(stream.fileno()).st_size))
    records = records_of(window)
    if not any("/models/" in name.casefold() for name in records):
        raise InputError(f"this archive holds no exported program, or is damaged; {_AGAIN}")
    found = _named(records)
    for name, expected in (
        ("archive_format", b"pt2"),
        ("archive_version", b"0"),
        ("byteorder", b"little"),
    ):
        if name in found and window.content(found[name]).strip() != expected:
            raise InputError(f"expected {name} {expected.decode()}; {_AGAIN}")
    for name in ("archive_format", MODEL, WEIGHTS, CONSTANTS):
        if name not in found:
            raise InputError(f"record {name} is missing; {_AGAIN}")
    if _EXAMPLES in found:
        _check_examples(window.inside(found[_EXAMPLES]))
    model, weights, constants = (
        window.content(found[name]) for name in (MODEL, WEIGHTS, CONSTANTS)
    )
    return Pt2Archive(
        source, model, weights, constants, {name: record.size for name, record in found.items()}
    )


def _named(records: Mapping[str, StoredRecord]) -> dict[str, StoredRecord]:
    """The records by their names below the folder that contains all of them; the folder has the
    file's original name.
    """
    roots = {name.partition("/")[0] for name in records}
    if (
        len(roots) != 1
        or (root := roots.pop()) in (".", "..", "")
        or not root.isprintable()
        or "\\" in root
    ):
        raise InputError(
            f"expected records in one folder, as torch.export.save writes them; {_AGAIN}"
        )
    found = {name[len(root) + 1 :]: record for name, record in records.items()}
    for name in found:
        if not NAMES.fullmatch(name):
            raise InputError(_refused(name))
    return found


def _refused(name: str) -> str:
    """Return the reason that a record of this name is refused."""
    shown = ascii(name[:60])[1:-1]
    low = name.casefold().replace("\\", "/")
    if "aotinductor" in low or "_obj_" in low or "executorch" in low:
        return f"{shown} would make torch run code from this file; export the program without it"
    if low.startswith("models/"):
        return f"{shown} would be a second program; save one program with torch.export.save"
    return f"record {shown} is not one that torch.export.save writes; {_AGAIN}"


def _check_examples(window: ZipWindow) -> None:
    """Raise :class:`InputError` unless the example inputs are a pickle of tensors in containers.
    The pickle is not run.
    """
    pickles = [
        record for name, record in records_of(window).items() if name.casefold().endswith(".pkl")
    ]
    if len(pickles) != 1:
        raise InputError(
            f"expected one pickle of example inputs, got {len(pickles)}; {_AGAIN}", where=_EXAMPLES
        )
    try:
        for instruction, argument, _ in pickletools.genops(window.content(pickles[0])):
            if instruction.name in _NAMING and not (
                instruction.name == "GLOBAL" and _OF_TENSORS.fullmatch(str(argument))
            ):
                what = f"it names {ascii(argument)[:60]}" if argument else "it makes up names"
                raise InputError(
                    f"a pickle that would run code from this file ({what}); export the program "
                    "again",
                    where=_EXAMPLES,
                )
    except (ValueError, TypeError, UnicodeDecodeError, IndexError) as error:
        raise InputError(f"damaged pickle ({str(error)[:60]}); {_AGAIN}", where=_EXAMPLES) from None


_NAMING = frozenset(("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "PERSID"))
"""Instructions of a pickle that look up a name."""
