"""The value of the fixture ``hosim_validate``: an assertion that a replay explains a recording."""

from __future__ import annotations

import os

import pytest

from hosim.errors import HosimError
from hosim.units import parse_share
from hosim.validate import Validation, validate
from hosim.validate.replay_verdicts import complaint


def assert_explained(trace: str | os.PathLike[str], *, max_error: str = "1%") -> Validation:
    """Fail unless the replay explains the recording, with makespan and starts off by no more than
    ``max_error`` of its span.

    Returns what ``hosim validate`` finds.
    """
    __tracebackhide__ = True
    try:
        bound = parse_share(max_error)
        found = validate(trace)
    except HosimError as error:
        pytest.fail(str(error), pytrace=False)
    said = complaint(found.verdict, bound)
    if said:
        pytest.fail(f"{os.fspath(trace)}: {said}", pytrace=False)
    return found
