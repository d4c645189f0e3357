"""The entry point of ``hosim``: Ctrl-C ends it with one line also while the program is loaded."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the program; ends the process with its exit code."""
    try:
        from hosim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)
