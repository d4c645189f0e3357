"""The likely kind of a file where another kind was expected, by how it begins and what it is
called, and what to do with it.

Every reader that cannot use a file asks here, so that all commands give the same answer to the same
file.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosim.base.files.formats.sources import format_of_source, read_source
from hosim.errors import InputError


@dataclass(frozen=True, slots=True)
class Seeming:
    """The likely kind of a file, with its article, and what to do with it."""

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
        """Return whether a file that begins like this and has this name is of the kind."""
        return (
            name.endswith(self.ends) if self.ends else head.startswith(self.begins)
        ) and self.if_so(head)


TABLE = "a table"
"""The likely kind of a file of comma-separated values."""

DATABASE = "a database of SQLite"
"""The likely kind of a database that hosim does not read."""

_ZIP = b"PK\x03\x04"
_EXPORT = "export the model with torch.export.export and write it with torch.export.save"
_GRAPH = (
    "hosim needs the model's graph: write it with torch.export.save, or give the model's "
    "config.json"
)


_PROFILE = (
    "record with torch.profiler instead, which sees CUDA and HIP devices, and give hosim "
    "validate what its export_chrome_trace wrote"
)
_OTHER_DEVICE = (
    "hosim replays recordings of CUDA and HIP devices; of others it estimates times "
    f"by a profile: for that, {_GRAPH}"
)
_SNAPSHOT = (
    "hosim validate reads what torch.cuda.memory._record_memory_history() and then "
    "torch.cuda.memory._dump_snapshot(FILE) write"
)


def _matches(pattern: bytes) -> Callable[[bytes], bool]:
    return lambda head: re.match(pattern, head) is not None


def _holds(*parts: bytes) -> Callable[[bytes], bool]:
    return lambda head: all(part in head for part in parts)


def _has(*names: str) -> Callable[[bytes], bool]:
    """Return whether a zip archive has an entry whose name ends or goes on like one of these, and
    no exported program.
    """
    ends = re.compile("|".join(map(re.escape, names)).encode())
    return lambda head: b"/models/" not in head and ends.search(head) is not None


_LOOKS: Sequence[_Look] = (
    _Look(Seeming("a pointer of Git LFS and not the file itself", "fetch it with git lfs pull"), (b"version "
        b"https://git-lfs.github.com/spec",)),
    _Look(Seeming("a picture", "name another file"), (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"<svg")),
    _Look(Seeming("a PDF", "name another file"), (b"%PDF",)),
    _Look(Seeming("a web page", "download the file itself"), (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML")),
    _Look(Seeming("weights (safetensors)", _GRAPH), if_so=lambda head: head[8:10] == b'{"' and head[4:8] == bytes(4)),
    _Look(Seeming("arrays of numpy", "name another file"), (b"\x93NUMPY",)),
    _Look(
        Seeming("a program of torch.export in torch 2.7 or older", "read it with "
            "torch.export.load of a newer torch, and write it again"),
        (_ZIP,), if_so=_has("serialized_exported_program.json"),
    ),
    _Look(Seeming("a package of torch.package", f"hosim runs no code of it; {_EXPORT}"), (_ZIP,), if_so=_has("/.data/extern_modules")),
    _Look(Seeming("a TorchScript program", _EXPORT), (_ZIP,), if_so=_has("/code/__torch__", "/constants.pkl", "/bytecode.pkl")),
    _Look(Seeming("weights written by torch.save, or a model pickled by it", _GRAPH), (_ZIP,), if_so=_has("/data.pkl")),
    _Look(Seeming("a document of Office", "name another file"), (_ZIP,), if_so=_has("[Content_Types].xml")),
    _Look(Seeming("arrays of numpy", "name another file"), (_ZIP,), if_so=_has(".npy")),
    _Look(Seeming("a recording of rocprof", _PROFILE), (b"SQLite format 3",), if_so=_holds(b"rocpd_")),
    _Look(Seeming("a recording of rocprof", _PROFILE), (b"{",), if_so=_holds(b'"rocprofiler-sdk-tool"')),
    _Look(Seeming("a table of rocprof", _PROFILE), if_so=_matches(
        rb'"?Kind"?,"?Agent_Id"?,|"?Index"?,"?KernelName"?,|"?Name"?,"?Calls"?,"?TotalDurationNs"?|"?Domain"?,"?Function"?,"?Process_Id"?,'
    )),
    _Look(Seeming("a recording of Ascend's profiler", _OTHER_DEVICE), (b"[",), if_so=_matches(
        rb'(?s)\[\s*\{.*("Ascend Hardware"|"CANN"|"async_npu"|"HostToDevice"|"aclnn)'
    )),
    _Look(Seeming("a recording of Ascend's profiler", _OTHER_DEVICE), ends=("trace_view.json",)),
    _Look(Seeming("a trace of another program than torch.profiler", _PROFILE), ends=(".json",), if_so=_matches(rb'(?s)\[\s*\{.*"ph"\s*:')),
    _Look(Seeming("a memory timeline of torch.profiler", _SNAPSHOT), (b"[",), if_so=_matches(rb"\[\s*\[\s*-?\d+\s*,\s*-?\d+\s*[,\]]")),
    _Look(Seeming("a memory timeline of torch.profiler", _SNAPSHOT), ends=("memory_timeline.raw", "memory_timeline.raw.json")),
    _Look(Seeming(DATABASE, "hosim validate and hosim calibrate read exports of Nsight Systems"), (b"SQLite format 3",)),
    _Look(Seeming("a recording of Nsight Systems", "export it first: nsys export --type sqlite "
        "FILE"), ends=(".nsys-rep", ".qdrep")),
    _Look(
        Seeming("a pickle, which hosim does not execute", "hosim validate reads snapshots of "
            "torch.cuda.memory; of weights, " + _GRAPH),
        tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6)),
    ),
    _Look(Seeming("a table in Parquet", "hosim import-kernels reads kernel times, as those of "
        "aiconfigurator"), (b"PAR1",)),
    _Look(Seeming("weights in HDF5", _GRAPH), (b"\x89HDF",)),
    _Look(Seeming("a notebook of Jupyter", "open it in Jupyter"), (b"{",), if_so=_holds(b'"nbformat"')),
    _Look(Seeming("a notebook of Jupyter", "open it in Jupyter"), ends=(".ipynb",)),
    _Look(Seeming("the index of sharded weights", "give the model's config.json beside it"), (b"{",), if_so=_holds(b'"weight_map"')),
    _Look(Seeming("a tokenizer", "give the model's config.json beside it"), (b"{",), if_so=_holds(b'"added_tokens"')),
    _Look(
        Seeming("a snapshot of torch.cuda.memory", "hosim validate reads it"), (b"{",), if_so=_holds(b'"segments"', b'"device_traces"')
    ),
    _Look(Seeming("source code of Python", "write the model with torch.export.save, or call "
        "hosim.load on it in Python"), ends=(".py",)),
    _Look(Seeming(TABLE, "hosim import-kernels reads kernel times, hosim sweep --points the "
        "points of a sweep"), ends=(".csv", ".tsv")),
    _Look(Seeming("settings in TOML", "hosim check reads hosim.toml in the folder where it is "
        "called"), ends=(".toml",)),
    _Look(Seeming("a document", "name another file; hosim workload list and hosim hardware list "
        "show what ships"),
          ends=(".md", ".rst", ".txt", ".log")),
)  # fmt: skip
"""The files that people mistake for something that hosim reads, tried in this order."""

_OWN = {
    "workload": Seeming("a workload of hosim", "give it where a WORKLOAD belongs"),
    "spec": Seeming("a spec of hosim", "give it where a WORKLOAD belongs"),
    "hardware": Seeming("a hardware profile of hosim", "-H takes it"),
    "plan": Seeming("a plan of hosim", "hosim replay takes PLAN, then WORKLOAD"),
    "result": Seeming("a result of hosim", "hosim diff compares results"),
    "comparison": Seeming("a comparison of hosim", "hosim diff compares results"),
    "routing": Seeming("a routing of hosim", "--routing takes it"),
    "runtime": Seeming("a runtime of hosim", "--runtime takes it"),
}


def of_events(events: Iterable[object]) -> Seeming | None:
    """Return the kind of a trace of Chrome's form, by its events, if it is no recording of
    PyTorch's profiler on a CUDA or HIP device.
    """
    for event in events:
        if not isinstance(event, Mapping):
            continue
        category, name, args = str(event.get("cat")), str(event.get("name")), event.get("args")
        keys: Collection[object] = args if isinstance(args, Mapping) else ()
        if category.startswith("mtia_"):
            return Seeming("a recording of an MTIA device", _OTHER_DEVICE)
        if (
            "TS1" in keys
            or name in ("AIU Roundtrip", "Flex RoundTrip")
            or name.endswith((" Cmpt Exec", " Cmpt Prep"))
        ):
            return Seeming("a recording of an AIU device", _OTHER_DEVICE)
        if "BeginNs" in keys and "EndNs" in keys:
            return Seeming("a recording of rocprof", _PROFILE)
        if category == "async_npu" or (
            name == "process_name"
            and "name" in keys
            and args["name"] in ("Ascend Hardware", "CANN")  # type: ignore[index]
        ):
            return Seeming("a recording of Ascend's profiler", _OTHER_DEVICE)
    return None


def seeming(head: bytes, name: str = "") -> Seeming | None:
    """Return the likely kind of a file that hosim does not read, by its contents or else by its
    ``name``; ``None`` if nobody knows.

    The contents of a zip archive are its directory, if there is one, after its first bytes.
    """
    if not head:
        return Seeming("an empty file", "write or download it again")
    bare = name.lower().removesuffix(".gz")
    start = head.lstrip() if head.lstrip()[:1] in (b"{", b"[", b"<") else head
    return next((look.seeming for look in _LOOKS if look.fits(start, bare)), None)


def recognised(source: str) -> Seeming | None:
    """Return the likely kind of the file or folder ``source``, what hosim can read included;
    ``None`` if nobody knows.
    """
    try:
        found = read_source(Path(source))
    except InputError:
        return None
    own = _OWN.get(found.hosim_kind or "")
    if own is not None:
        return own
    inside = None if os.path.isdir(source) else seeming(found.head)
    form = format_of_source(found) if inside is None else None
    if form is not None:
        return Seeming(f"a model or recording ({form})", "give it where a WORKLOAD belongs")
    return inside or (None if os.path.isdir(source) else seeming(found.head, source))


def unexpected(
    source: str, expected: str, *, ours: bool = True, but: str = ""
) -> InputError | None:
    """The error for a file that seems to be something else than was expected; ``None`` if nobody
    knows what it is.

    ``ours``: also for files of hosim, of which some readers say more themselves. ``but``: not for
    what seems to be this.
    """
    found = recognised(source)
    if found is None or found.what == but or (not ours and found in _OWN.values()):
        return None
    return InputError(f"expected {expected}; {found}", source=source)
