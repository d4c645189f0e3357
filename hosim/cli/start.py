"""The entry point of ``hosim``: Ctrl-C ends it with one line also while the program is loaded."""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread


def main() -> None:
    """Runs the program; ends the process with its exit code."""
    sys.unraisablehook = _interrupt_again
    try:
        from hosim.base.new_processes import safe_path
        from hosim.cli.main import main as run

        with safe_path():
            run()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeats a Ctrl-C that came while Python ran code of its own whose errors it only prints."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        start_new_thread(_interrupt, ())  # not here, where Python would again only print it
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt() -> None:
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
