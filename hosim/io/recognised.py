"""What a file of another kind than was expected seems to be, by how it begins and what it is called, and what to do with it.

Every reader that cannot use a file asks here, so that all commands give the same answer to the same file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hosim.errors import InputError

_HOSIM = re.compile(rb"""["']?format["']?\s*:\s*["']?hosim\.(\w+)/""")


@dataclass(frozen=True, slots=True)
class Seeming:
    """What a file seems to be, with its article, and what to do with it."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"this seems to be {self.what}: {self.advice}"


@dataclass(frozen=True, slots=True)
class _Look:
    """A kind of file that hosim does not read: how it begins, or what its name ends with."""

    seeming: Seeming
    begins: tuple[bytes, ...] = (b"",)
    ends: tuple[str, ...] = ()  # no name ends so: the contents alone decide
    if_so: Callable[[bytes], bool] = lambda head: True

    def fits(self, head: bytes, name: str) -> bool:
        """Whether a file that begins like this and has this name is of the kind."""
        return (name.endswith(self.ends) if self.ends else head.startswith(self.begins)) and self.if_so(head)


TABLE = "a table"
"""What a file of comma-separated values seems to be."""

_ZIP = b"PK\x03\x04"
_GRAPH = "hosim needs the model's graph: write it with torch.export.save, or give the model's config.json"


def _holds(*parts: bytes) -> Callable[[bytes], bool]:
    return lambda head: all(part in head for part in parts)


def _first(head: bytes) -> bytes:
    """The name of the first entry of a zip archive."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


_LOOKS: Sequence[_Look] = (
    _Look(Seeming("a pointer of Git LFS and not the file itself", "fetch it with git lfs pull"), (b"version https://git-lfs.github.com/spec",)),
    _Look(Seeming("a picture", "name another file"), (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"<svg")),
    _Look(Seeming("a PDF", "name another file"), (b"%PDF",)),
    _Look(Seeming("a web page", "download the file itself"), (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML")),
    _Look(Seeming("weights of llama.cpp (GGUF)", _GRAPH), (b"GGUF",)),
    _Look(Seeming("weights (safetensors)", _GRAPH), if_so=lambda head: head[8:10] == b'{"' and head[4:8] == bytes(4)),
    _Look(Seeming("arrays of numpy", "name another file"), (b"\x93NUMPY",)),
    _Look(
        Seeming("a TorchScript program", "export the model with torch.export.export and write it with torch.export.save"), (_ZIP,),
        if_so=lambda head: b"/code/__torch__" in head and b"/data/weights/" not in _first(head),
    ),
    _Look(Seeming("weights written by torch.save", _GRAPH), (_ZIP,), if_so=lambda head: _first(head).endswith(b"data.pkl")),
    _Look(Seeming("a document of Office", "name another file"), (_ZIP,), if_so=lambda head: _first(head) == b"[Content_Types].xml"),
    _Look(Seeming("arrays of numpy", "name another file"), (_ZIP,), if_so=lambda head: _first(head).endswith(b".npy")),
    _Look(Seeming("a database of SQLite", "hosim validate and hosim calibrate read exports of Nsight Systems"), (b"SQLite format 3",)),
    _Look(Seeming("a recording of Nsight Systems", "export it first: nsys export --type sqlite FILE"), ends=(".nsys-rep", ".qdrep")),
    _Look(
        Seeming("a pickle, which hosim does not execute", "hosim validate reads snapshots of torch.cuda.memory; of weights, " + _GRAPH),
        tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6)),
    ),
    _Look(Seeming("a table in Parquet", "name another file"), (b"PAR1",)),
    _Look(Seeming("weights in HDF5", _GRAPH), (b"\x89HDF",)),
    _Look(Seeming("a notebook of Jupyter", "open it in Jupyter"), (b"{",), if_so=_holds(b'"nbformat"')),
    _Look(Seeming("a notebook of Jupyter", "open it in Jupyter"), ends=(".ipynb",)),
    _Look(Seeming("the index of sharded weights", "give the model's config.json beside it"), (b"{",), if_so=_holds(b'"weight_map"')),
    _Look(Seeming("a tokenizer", "give the model's config.json beside it"), (b"{",), if_so=_holds(b'"added_tokens"')),
    _Look(
        Seeming("a snapshot of torch.cuda.memory", "hosim validate reads it"), (b"{",), if_so=_holds(b'"segments"', b'"device_traces"')
    ),
    _Look(Seeming("source code of Python", "write the model with torch.export.save, or call hosim.load on it in Python"), ends=(".py",)),
    _Look(Seeming(TABLE, "hosim import-kernels reads kernel times, hosim sweep --points the points of a sweep"), ends=(".csv", ".tsv")),
    _Look(Seeming("settings in TOML", "hosim check reads hosim.toml in the folder where it is called"), ends=(".toml",)),
    _Look(Seeming("a document", "name another file; hosim workload list and hosim hardware list show what ships"),
          ends=(".md", ".rst", ".txt", ".log")),
)  # fmt: skip
"""What people take for something that hosim reads, tried in this order."""

_OWN = {
    "workload": Seeming("a workload of hosim", "give it where a WORKLOAD belongs"),
    "spec": Seeming("a spec of hosim", "give it where a WORKLOAD belongs"),
    "hardware": Seeming("a hardware profile of hosim", "-H takes it"),
    "plan": Seeming("a plan of hosim", "hosim replay takes PLAN, then WORKLOAD"),
    "result": Seeming("a result of hosim", "hosim diff compares results"),
    "comparison": Seeming("a comparison of hosim", "hosim diff compares results"),
    "routing": Seeming("a routing of hosim", "--routing takes it"),
}


def hosim_kind(head: bytes, name: str = "") -> str | None:
    """The kind of a file of hosim that begins like this, such as ``workload``; ``None`` for a file of another program.

    A document that shows one, by its ``name``, is none.
    """
    match = None if head.startswith(b"PK") or name.endswith((".md", ".rst", ".ipynb")) else _HOSIM.search(head)
    return match[1].decode() if match else None


def seeming(head: bytes, name: str = "") -> Seeming | None:
    """What a file of another program than hosim reads seems to be, by its contents or else by its ``name``; ``None`` if nobody knows."""
    if not head:
        return Seeming("an empty file", "write or download it again")
    bare = name.lower().removesuffix(".gz")
    start = head.lstrip() if head.lstrip()[:1] in (b"{", b"<") else head
    return next((look.seeming for look in _LOOKS if look.fits(start, bare)), None)


def recognised(source: str) -> Seeming | None:
    """What the file or folder ``source`` seems to be, what hosim can read included; ``None`` if nobody knows."""
    importers = import_module("hosim.importers")  # by name: importers import this room
    try:
        found = importers.read_source(Path(source))
    except InputError:
        return None
    own = _OWN.get(found.hosim_kind or "")
    if own is not None:
        return own
    inside = None if os.path.isdir(source) else seeming(found.head)
    form = next((form.title for form in importers.FORMATS if form.recognises(found)), None) if inside is None else None
    if form is not None:
        return Seeming(f"a model or recording ({form})", "give it where a WORKLOAD belongs")
    return inside or (None if os.path.isdir(source) else seeming(found.head, source))


def unexpected(source: str, expected: str, *, ours: bool = True, but: str = "") -> InputError | None:
    """The error for a file that seems to be something else than was expected; ``None`` if nobody knows what it is.

    ``ours``: also for files of hosim, of which some readers say more themselves. ``but``: not for what seems to be this.
    """
    found = recognised(source)
    if found is None or found.what == but or (not ours and found in _OWN.values()):
        return None
    return InputError(f"expected {expected}; {found}", source=source)
