"""The contents of a case's ``serve``: a model, requests, options of :func:`hosim.serve`, and
``limit`` for the goodput.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hosim.errors import InputError

_REQUESTS = "expected a file of requests, or such as 'poisson:rate=10'"
_OF_THE_MODEL = 'a parameter of the model: write model = {{model = "...", {} = 2}}'


def check_serve(given: Mapping[str, Any], source: str, where: str) -> None:
    """Raise :class:`InputError` unless a case's ``serve`` has a model, requests and options of
    :func:`hosim.serve`.
    """
    from hosim.base.files import unknown_name
    from hosim.serving.serve_options import serve_defaults

    asked = given["serve"]
    if not isinstance(asked, Mapping):
        raise InputError(
            "expected a table with model, requests and options of hosim.serve",
            source=source,
            where=f"{where}.serve",
        )
    known = ["model", "requests", "limit", *serve_defaults()]
    for key, value in asked.items():
        if key not in known:
            said = (
                _OF_THE_MODEL.format(key)
                if key in ("tensor", "expert")
                else unknown_name("option", key, known)
            )
            raise InputError(said, source=source, where=f"{where}.serve.{key}")
        if key == "overhead" and not isinstance(value, str):
            raise InputError(
                f"expected a time with its unit, such as '2ms', got {value!r}",
                source=source,
                where=f"{where}.serve.{key}",
            )
        if key == "requests" and not isinstance(value, str):
            raise InputError(_REQUESTS, source=source, where=f"{where}.serve.{key}")
        for part, one in (
            value.items() if key == "model" and isinstance(value, Mapping) else [("", value)]
        ):
            if not isinstance(one, (str, bool, int, float)):
                at = ".".join(filter(None, [where, "serve", key, part]))
                raise InputError(
                    f"expected a text, a number or true or false, got {type(one).__name__}",
                    source=source,
                    where=at,
                )
    for key in ("model", "requests"):
        if not isinstance(asked.get(key), (str, Mapping)):
            said = "expected a model, such as 'llama-3.1-8b'" if key == "model" else _REQUESTS
            raise InputError(said, source=source, where=f"{where}.serve.{key}")


@dataclass(frozen=True)
class AskedServing:
    """The serving that a case asks for, with paths that can be opened."""

    model: Mapping[str, Any]
    requests: str
    options: Mapping[str, Any]
    limit: Any

    def placed(self, error: InputError) -> InputError:
        """The error with the place in ``serve`` that it is about, and the file of requests that it
        names.
        """
        from hosim.serving.requests import is_drawn
        from hosim.serving.serve_options import serve_defaults

        at, where = error.source, error.where
        if at == self.requests and not is_drawn(self.requests):
            at = f"requests: {self.requests}"
        elif at is not None and at.startswith("requests "):
            at = "requests"
        elif at is None and where == "model":
            at, where = where, None
        elif at is None and where in self.model:
            at = "model"
        elif at != "limit" and at not in serve_defaults():
            return error
        return InputError(error.message, source=f"serve.{at}", where=where)


def asked_serving(serve: Mapping[str, Any], beside: Callable[[str], str]) -> AskedServing:
    """Return the question that ``serve`` of a case asks; ``beside`` finds paths relative to the
    case's file.
    """
    from hosim.serving.requests import changed_text, is_drawn, setting_of

    given = dict(serve)
    model, requests, limit = given.pop("model"), given.pop("requests"), given.pop("limit", None)
    parameters = dict(model) if isinstance(model, Mapping) else {"model": model}
    if isinstance(parameters.get("model"), str):
        parameters["model"] = beside(parameters["model"])
    for name in ("iterations", "prefill_hardware"):
        if isinstance(given.get(name), str):
            given[name] = beside(given[name])
    if not is_drawn(requests):
        requests = beside(requests)
    elif lengths := setting_of(requests, "lengths"):
        requests = changed_text(requests, {"lengths": beside(lengths)})
    return AskedServing(parameters, requests, given, limit)
