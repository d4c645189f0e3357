"""One input of the fuzzer: a command, the files that it finds, and its surroundings; as text for
the folder of what was found.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """``target`` is what is tried. ``files`` are contents by name in the folder in which the
    command runs.

    A variable of the ``environment`` that is ``None`` is removed. ``streams`` are stdout and
    stderr: ``file``, ``closed`` or ``full``.
    """

    target: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    streams: tuple[str, str] = ("file", "file")

    def to_text(self) -> str:
        """The case as JSON: files as text where they are text."""
        return json.dumps(
            {
                "target": self.target,
                "arguments": self.arguments,
                "environment": dict(self.environment),
                "streams": self.streams,
                "files": {name: _told(content) for name, content in self.files.items()},
            },
            indent=1,
        )

    @classmethod
    def of_text(cls, text: str) -> Case:
        """The case that :meth:`to_text` wrote."""
        read = json.loads(text)
        files = {name: _content(told) for name, told in read["files"].items()}
        return cls(
            read["target"],
            tuple(read["arguments"]),
            files,
            read["environment"],
            tuple(read["streams"]),
        )

    @classmethod
    def load(cls, path: Path) -> Case:
        """The case in a file."""
        return cls.of_text(path.read_text())


def _told(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _content(told: Any) -> bytes:
    return told.encode() if isinstance(told, str) else base64.b64decode(told["base64"])
