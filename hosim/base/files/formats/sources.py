"""A file or folder that may be imported, and the formats of which it can be: their titles, and how
each is recognised.

What loads them is in :mod:`hosim.io.any_format`, above the importers.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hosim.base.files.bounded import read_directory, read_head
from hosim.base.files.formats import recognisers
from hosim.extensions import with_added

_HOSIM = re.compile(rb"""["']?format["']?\s*:\s*["']?hosim\.(\w+)/""")


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder to import. ``head`` are the file's first bytes, unpacked if it is gzip: they
    tell its format. Empty for a folder.
    """

    path: Path
    head: bytes

    @property
    def hosim_kind(self) -> str | None:
        """``workload`` for a file of ``hosim.workload/1``; empty for a file of another program."""
        return hosim_kind(self.head, self.path.name)


def hosim_kind(head: bytes, name: str = "") -> str | None:
    """The kind of a file of hosim that begins like this, such as ``workload``; ``None`` for a file
    of another program.

    A document that shows one, by its ``name``, is none.
    """
    match = (
        None
        if head.startswith(b"PK") or name.endswith((".md", ".rst", ".ipynb"))
        else _HOSIM.search(head)
    )
    return match[1].decode() if match else None


def _is_model_config(source: Source) -> bool:
    is_config, is_folder = recognisers.is_model_config, recognisers.is_model_folder
    return is_folder(source.path) if source.path.is_dir() else is_config(source.head)


_OWN: Mapping[str, Callable[[Source], bool]] = {
    "workload (hosim.workload/1)": lambda s: s.hosim_kind == "workload",
    "spec (hosim.spec/1)": lambda s: s.hosim_kind == "spec",
    "torch.export program (.pt2)": lambda s: s.head.startswith(b"PK\x03\x04"),
    "PyTorch profile (Kineto)": lambda s: recognisers.is_kineto(s.head),
    "PyTorch execution trace": lambda s: recognisers.is_torch_trace(s.head),
    "config.json of transformers": _is_model_config,
    "GGUF": lambda s: s.head.startswith(b"GGUF"),
    "ONNX model": lambda s: recognisers.is_onnx(s.head),
}
"""The formats of the core."""


@cache
def known_formats() -> Mapping[str, Callable[[Source], bool]]:
    """Return the recogniser of each format that can be imported, by its title, in the order in
    which they are tried.
    """
    return with_added(_OWN, "formats")


def format_of_source(source: Source) -> str | None:
    """The title of the format of a file or folder, by its contents; ``None`` if it is of none that
    can be imported.
    """
    return next(
        (title for title, recognises in known_formats().items() if recognises(source)), None
    )


def read_source(path: Path) -> Source:
    """The file or folder at ``path``. Raises :class:`InputError` if it is not there, cannot be
    read, or is damaged gzip.
    """
    if os.path.isdir(path):
        return Source(path, b"")
    head = read_head(os.fspath(path))
    # what a zip file holds stands at its end: weights may fill its begin
    return Source(
        path,
        head[:4] + read_directory(os.fspath(path)) or head
        if head.startswith(b"PK\x03\x04")
        else head,
    )
