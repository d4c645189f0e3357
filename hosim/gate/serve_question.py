"""What ``serve`` of a case asks: a model, requests, options of :func:`hosim.serve`, and ``limit`` for the goodput."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hosim.errors import InputError

_NEITHER = ("policy", "plan", "budget")


def check_serve(given: Mapping[str, Any], source: str, where: str) -> None:
    """Raise :class:`InputError` unless a case's ``serve`` has a model, requests and options of :func:`hosim.serve`."""
    from hosim.io.reading import unknown_name

    for key in _NEITHER:
        if key in given:
            raise InputError("a case that serves requests has no plan of one step: leave it out", source=source, where=f"{where}.{key}")
    asked = given["serve"]
    if not isinstance(asked, Mapping):
        raise InputError("expected a table with model, requests and options of hosim.serve", source=source, where=f"{where}.serve")
    known = ["model", "requests", "limit", *serve_defaults()]
    for key, value in asked.items():
        if key not in known:
            raise InputError(unknown_name("option", key, known), source=source, where=f"{where}.serve.{key}")
        for part, one in value.items() if key == "model" and isinstance(value, Mapping) else [("", value)]:
            if not isinstance(one, (str, bool, int, float)):
                at = ".".join(filter(None, [where, "serve", key, part]))
                raise InputError(f"expected a text, a number or true or false, got {type(one).__name__}", source=source, where=at)
    for key in ("model", "requests"):
        if not isinstance(asked.get(key), (str, Mapping)):
            what = "a model, such as 'llama-3.1-8b'" if key == "model" else "a file of requests, or such as 'poisson:rate=10'"
            raise InputError(f"expected {what}", source=source, where=f"{where}.serve.{key}")


@dataclass(frozen=True)
class AskedServing:
    """What a case serves, with paths that can be opened."""

    model: Mapping[str, Any]
    requests: str
    options: Mapping[str, Any]
    limit: Any


def asked_serving(serve: Mapping[str, Any], beside: Callable[[str], str]) -> AskedServing:
    """What ``serve`` of a case asks; ``beside`` finds paths relative to the case's file."""
    from hosim.serving.drawn_requests import changed_text, is_drawn, setting_of

    given = dict(serve)
    model, requests, limit = given.pop("model"), given.pop("requests"), given.pop("limit", None)
    parameters = dict(model) if isinstance(model, Mapping) else {"model": model}
    if isinstance(parameters.get("model"), str):
        parameters["model"] = beside(parameters["model"])
    if isinstance(given.get("iterations"), str):
        given["iterations"] = beside(given["iterations"])
    if not is_drawn(requests):
        requests = beside(requests)
    elif lengths := setting_of(requests, "lengths"):
        requests = changed_text(requests, {"lengths": beside(lengths)})
    return AskedServing(parameters, requests, given, limit)


def serve_defaults() -> dict[str, Any]:
    """The options of :func:`hosim.serve` with their defaults."""
    from hosim.api.serving_run import serve

    return {name: one.default for name, one in inspect.signature(serve).parameters.items() if one.kind is one.KEYWORD_ONLY}
