"""Files of a recording: written beside, then renamed."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write JSON, gzipped (the same bytes for the same content) if the name ends in ``.gz``; whole or not at all."""
    text = json.dumps(content, separators=(",", ":")) if path.suffix == ".gz" else json.dumps(content, indent=1) + "\n"
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
