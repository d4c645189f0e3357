"""Replays by the engine that are the reference's, too: the same result in every field and in JSON, timeline included, or the same error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hosim import engine
from hosim.errors import HosimError
from hosim.io import result_to_dict, to_json
from hosim.result import FAST, REFERENCE, Result
from hosim.stages import StagesResult


def told(run: Callable[[], Any]) -> Any:
    """What a replay gives, or its error in words."""
    try:
        return run()
    except HosimError as error:
        return f"{type(error).__name__}: {error}"


def agree(found: Any, expected: Any) -> None:
    """The reference has ``found`` what the engine gives, each as :func:`told` says it."""
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return
    if isinstance(expected, StagesResult):
        assert found.bubble_ns == expected.bubble_ns
        found, expected = found.whole, expected.whole
    assert (found.engine, expected.engine) == (REFERENCE, FAST)
    for one, other in zip((found, *found.by_device), (expected, *expected.by_device), strict=True):
        assert one == other
        assert one.timeline == other.timeline
        assert written(one) == written(other)


def written(result: Result) -> str:
    """The JSON of a result, less what may differ."""
    return to_json(result_to_dict(replace(result, replay_s=0.0, engine=FAST)))


def replay(*args: Any, **rest: Any) -> Result:
    """What :func:`hosim.engine.replay` does, which is what the reference does."""
    agree(*[told(lambda e=e: engine.replay(*args, **rest | {"engine": e, "fold": False})) for e in (REFERENCE, FAST)])
    return engine.replay(*args, **rest)


def replay_stages(*args: Any, **rest: Any) -> StagesResult:
    """What :func:`hosim.engine.replay_stages` does, which is what the reference does."""
    agree(*[told(lambda e=e: engine.replay_stages(*args, **rest, engine=e)) for e in (REFERENCE, FAST)])
    return engine.replay_stages(*args, **rest)
