"""Replays by the compiled loop that are the reference's, too: the same result in every field and in
JSON, or the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

from hosim import engine
from hosim.errors import HosimError
from hosim.io import result_to_dict, to_json
from hosim.result import LOOP, REFERENCE, Result


def told(run: Callable[[], Any]) -> Any:
    """What a replay gives, or its error in words."""
    try:
        return run()
    except HosimError as error:
        return f"{type(error).__name__}: {error}"


def written(result: Result) -> str:
    """The JSON of a result, less what may differ."""
    return to_json(result_to_dict(changed(result, replay_s=0.0)))


def compared(*args: Any, **rest: Any) -> Any:
    """What the reference tells of each device, which is what is told without an engine chosen."""
    expected = told(lambda: engine.replay(*args, **rest | {"engine": REFERENCE, "fold": False}))
    found = told(lambda: engine.replay(*args, **rest))
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return found
    assert expected.engine == REFERENCE
    if found.feasible and found.engine == REFERENCE and not rest.get("record"):
        # not where the loop has come to another end
        assert "the loop does not cover" in told(
            lambda: engine.replay(*args, **rest | {"engine": LOOP})
        )
    for one, other in zip((found, *found.by_device), (expected, *expected.by_device), strict=True):
        assert one == other
        assert one.timeline == other.timeline
        assert written(one) == written(other)
    return found


def replay(*args: Any, **rest: Any) -> Result:
    """What :func:`hosim.engine.replay` does, which is what the reference does."""
    found = compared(*args, **rest)
    return engine.replay(*args, **rest) if isinstance(found, str) else found
