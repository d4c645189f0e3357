"""Files of a few megabytes, or holes, that claim up to 10 GB: each is refused within seconds and a
few hundred MB.

Each file is read by a ``hosim`` of its own. This process stays small, because the memory of a
process counts from that of its parent on.
"""

import gzip
import os
import sqlite3
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from measures import measure

MIB, GIB = 1 << 20, 1 << 30
MOST = 190 * MIB
"""Just within the limit of a file: what stands in it is looked at."""


def packed(start: bytes) -> Callable[[Path], None]:
    """10 GiB of spaces after a start, in 640 members of gzip: ten megabytes."""
    return lambda path: (
        path.write_bytes(gzip.compress(start) + gzip.compress(b" " * (16 * MIB), 9) * 640) and None
    )


def archive(claimed: int) -> bytes:
    """A ``.pt2`` whose one model is 3 GiB of spaces, of which its header admits ``claimed``."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(b" " * (16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = piece * 192 + packer.flush()
    name = b"x/models/model.json"
    sizes = struct.pack("<LLLHH", 0, len(data), claimed, len(name), 0)
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + name
    central = (
        b"PK\x01\x02"
        + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0)
        + sizes
        + struct.pack("<HHHLL", 0, 0, 0, 0, 0)
        + name
    )
    return (
        local
        + data
        + central
        + b"PK\x05\x06"
        + struct.pack("<HHHHLLH", 0, 0, 1, 1, len(central), len(local) + len(data), 0)
    )


def circular(path: Path) -> None:
    """A database of 3 MB in which a scan visits one leaf more often than it can count: each page
    above it leads sixty times to the next.
    """
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, globalPid)"
        )
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 5)",
            ((i, i) for i in range(100_000)),
        )
    listed = connection.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE '%KERNEL'")
    root_page = listed.fetchone()[0]
    connection.close()
    content = bytearray(path.read_bytes())
    # pages inside a table begin with 5; the one that leads to a leaf comes last
    inside = [page for page in range(512, len(content), 512) if content[page] == 5][-12:]
    leaf = max(page for page in range(512, len(content), 512) if content[page] == 13)
    root = 512 * (root_page - 1)
    for page, below in zip([root, *inside], [*inside, leaf], strict=True):
        # a header of 12 bytes, then the places of the cells, each of which begins with the number
        # of a page
        cells = struct.unpack_from(">H", content, page + 3)[0]
        number = struct.pack(">L", below // 512 + 1)
        for place in (8, *struct.unpack_from(f">{cells}H", content, page + 12)):
            content[page + place : page + place + 4] = number
    path.write_bytes(content)


def hole(start: bytes) -> Callable[[Path], None]:
    """A file that claims 10 GiB and has its start."""

    def write(path: Path) -> None:
        path.write_bytes(start)
        os.truncate(path, 10 * GIB)

    return write


def text(start: bytes, repeated: bytes, size: int = MOST) -> Callable[[Path], None]:
    """A file that begins with ``start`` and goes on with the same all over."""

    def write(path: Path) -> None:
        piece = repeated * (MIB // len(repeated))
        with path.open("wb") as file:
            file.write(start)
            for _ in range(size // MIB - 1):
                file.write(piece)

    return write


GRAPH = b"\x08\x09\x3a" + b"\x80\x80\x80\x5a"
"""The beginning of an ONNX model whose graph has 189 MB."""

CHAKRA = (
    b"\x10\x0a\x05"
    + b"0.0.4"
    + b"\x12\x07\x0a\x05"
    + b"schem"
    + b"\x80\x80\x80\x5a"
    + b"\x08\x01\x12\x01a"
)

BOMBS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "gzip, a trace": ("x.json.gz", packed(b'{"traceEvents": [')),
    "gzip, YAML": ("x.yaml.gz", packed(b"format: hosim.workload/1\n")),
    "zip, as it says": ("x.pt2", lambda path: path.write_bytes(archive(3 * GIB)) and None),
    "zip, more than it says": ("x.pt2", lambda path: path.write_bytes(archive(1000)) and None),
    "sqlite, pages in circles": ("x.sqlite", circular),
    "sqlite, a hole": ("x.sqlite", hole(b"SQLite format 3\0")),
    "YAML, lists": ("x.yaml", text(b"format: hosim.workload/1\nx: [", b"[], ")),
    "YAML, lines": ("x.yaml", text(b"format: hosim.workload/1\nx:\n", b"- y\n", MIB * 8)),
    "YAML, aliases": (
        "x.yaml",
        text(b"format: hosim.workload/1\na: &a [x]\n", b"b: [*a, *a]\n", 2 * MIB),
    ),
    "JSON, lists": ("x.json", text(b'{"traceEvents": [', b"[],")),
    "JSON, objects": ("x.json", text(b'{"format": "hosim.workload/1", "x": [', b'{"a":1},')),
    "JSON, depth": ("x.json", text(b'{"traceEvents": ', b"[", 2 * MIB)),
    "JSON, digits": ("x.json", text(b'{"traceEvents": ', b"9")),
    "JSON, one text": ("x.json", text(b'{"traceEvents": "', b"y")),
    "JSON, a hole": ("x.json", hole(b'{"traceEvents": [')),
    "ONNX, nodes of two bytes": ("x.onnx", text(GRAPH, b"\x0a\x00")),
    "ONNX, a hole": ("x.onnx", hole(b"\x08\x09\x3a\x80\x80\x80\x80\x20")),
    "Chakra, fields": ("x.et", text(CHAKRA, b"\x28\x01")),
    "MindIR, nodes": (
        "x.mindir",
        text(b"\x0a\x050.1.0\x12\x09MindSpore\x3a\x80\x80\x80\x5a", b"\x0a\x00"),
    ),
    "no known format, a hole": ("x", hole(b"")),
}


@cache
def refusals() -> dict[str, tuple[float, float, str]]:
    """CPU seconds, MB and the message of the refusal of each bomb."""
    found = {}
    for name, (file, write) in BOMBS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            write(path)
            command = (
                ["validate", str(path)]
                if path.suffix == ".sqlite"
                else ["import", str(path), "-o", f"{folder}/o.json"]
            )
            program = [sys.executable, "-c", "from hosim.cli.main import main; main()", *command]
            with open(f"{folder}/said", "w+") as said:
                process = subprocess.Popen(program, stderr=said, stdout=said)
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                said.seek(0)
                line = said.read()
            if process.returncode != 2 or line.count("\n") != 1:
                raise AssertionError(f"{name}: code {process.returncode}: {line[:300]}")
            found[name] = (
                used.ru_utime + used.ru_stime,
                used.ru_maxrss * 1024 / 10**6,
                line.replace(str(path), file).strip(),
            )
    return found


@measure("bombs: the longest refusal", most=2, unit="s")
def longest() -> float:
    return max(seconds for seconds, _, _ in refusals().values())


@measure("bombs: the memory of the largest refusal", most=500, unit="MB")
def largest() -> float:
    return max(megabytes for _, megabytes, _ in refusals().values())


if __name__ == "__main__":
    for name, (seconds, megabytes, line) in refusals().items():
        print(f"{name:28} {seconds:5.2f} s {megabytes:5.0f} MB  {line[:150]}")
