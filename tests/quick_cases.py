"""Which cases of a parametrized test every run of the tests tries, and which the long ones
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, of which one in ``count`` is quick and the others are long; a tuple holds the
    values of several arguments.
    """
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=[pytest.mark.long] * (number % count > 0))
        for number, case in enumerate(listed)
    ]
