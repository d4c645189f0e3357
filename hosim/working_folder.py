"""The working folder is no place for modules, though ``python -m`` makes it the first one."""

import os
import sys


def look_for_no_modules_there() -> None:
    """For the first line of a program: a ``joblib.py`` in the folder is not taken for joblib,
    unless hosim itself lies there.

    This file imports nothing that could be found in the folder: Python has loaded ``os`` before.
    """
    try:
        here = os.getcwd()
    except OSError:  # it has gone
        return
    if (
        sys.path
        and sys.path[0] in ("", here)
        and os.path.dirname(os.path.dirname(__file__)) != here
    ):
        del sys.path[0]
