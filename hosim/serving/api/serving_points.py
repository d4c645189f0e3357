"""Points of a serving study: one question with some fields changed, and its row of figures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

from hosim.api import Machine, machine, named
from hosim.data.draws import ends
from hosim.errors import HosimError, InputError
from hosim.io.importers import builder_parameters, name_of
from hosim.io.models import parameters_of
from hosim.io.options import check_known
from hosim.notes import Note
from hosim.plain_text import shown
from hosim.serving import MANY_ITERATIONS, Served, end_columns
from hosim.serving.api.serve_setup import SAID_BY_REQUESTS
from hosim.serving.api.serving_run import serve
from hosim.serving.requests import RequestRows, asked_requests, changeable, changed_requests
from hosim.serving.serve_options import serve_defaults
from hosim.study.asked import Settings, Value
from hosim.study.rows_of_answers import FEASIBLE
from hosim.study.runs import failure, point_key
from hosim.version import __version__

REQUESTS, MODEL, HARDWARE = "requests.", "model.", "hardware"
LATENCIES = ("ttft", "tpot", "inter_token", "latency")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

_WHOLE = ("requests", "span_ns", *(f"{name}_{of}_ns" for name in LATENCIES for of in STATISTICS))
_CACHE = ("iterations", "preemptions", "blocks", "peak_blocks")
_COSTS = ("devices", "cache_bytes")
_NUMBERS = (
    "requests_per_s",
    "prompt_tokens_per_s",
    "output_tokens_per_s",
    "goodput_per_s",
    "goodput_share",
    "prefix_hit_share",
)
UNCERTAIN = (
    "ttft_mean_ns",
    "ttft_p95_ns",
    "tpot_mean_ns",
    "tpot_p95_ns",
    "latency_mean_ns",
    "requests_per_s",
    "output_tokens_per_s",
    "goodput_per_s",
    "goodput_share",
)
"""The figures of a sweep's row that have intervals: draws change them, and tables show them."""
ENDS = tuple(end for figure in UNCERTAIN for end in end_columns(figure))
"""The columns with the ends of these intervals."""
WHOLE = (*_WHOLE, *_CACHE, *_COSTS, *(end for end in ENDS if end.endswith("_ns")))
NUMBERS = (*_NUMBERS, *(end for end in ENDS if not end.endswith("_ns")))
FIGURES = (*_WHOLE[1:], *_NUMBERS, *_CACHE)
"""The figures of a row that seeds change."""
COLUMNS = ("model", "hardware", FEASIBLE, *_WHOLE, *_NUMBERS, *_CACHE, *_COSTS, "error")
"""The figures of a row: whole nanoseconds and counts, rates per second, shares from 0 to 1, and the
error of a row without figures.

``cache_bytes`` is the cache capacity in all tiers of all engines together.
"""


@dataclass(frozen=True)
class ServingQuestion:
    """A model, a machine, requests and the options of :func:`hosim.serve`; ``limits_ns`` has the
    latency limits of the goodput.
    """

    model: Mapping[str, Any]
    hardware: Machine
    requests: str | os.PathLike[str]
    options: Mapping[str, Any]
    limits_ns: Mapping[str, int]

    def with_settings(self, settings: Settings) -> ServingQuestion:
        """Return the question with some fields changed, except those of the requests."""
        model = {
            field.removeprefix(MODEL): value
            for field, value in settings.items()
            if field.startswith(MODEL)
        }
        options = {
            field: value
            for field, value in settings.items()
            if "." not in field and field != HARDWARE
        }
        hardware = settings.get(HARDWARE, self.hardware)
        if not isinstance(hardware, str) and hardware is not self.hardware:
            raise InputError(f"expected a profile's name, got {shown(hardware)}", source=HARDWARE)
        return replace(
            self,
            model={**self.model, **model},
            hardware=hardware,
            options={**self.options, **options},
        )

    def notes(self, settings: Settings) -> tuple[Note, ...]:
        """Return the notes on the model and its times for readers of a point's figures; an empty
        tuple if the point cannot be served.
        """
        asked = self.with_settings(
            {field: value for field, value in settings.items() if not field.startswith(REQUESTS)}
        )
        from hosim.serving import ModelledIterations

        try:
            return ModelledIterations(asked.model, machine(asked.hardware), 0).notes
        except HosimError:
            return ()

    def served(self, settings: Settings) -> Served:
        """Serve the requests of a point. Raises :class:`HosimError`."""
        asked = self.with_settings(settings)
        changes = {
            field.removeprefix(REQUESTS): value
            for field, value in settings.items()
            if field.startswith(REQUESTS)
        }
        return serve(
            asked.model, asked.hardware, changed_requests(asked.requests, changes), **asked.options
        )

    def figures(self, served: Served) -> dict[str, Value]:
        """Return the figures of a served point by :data:`COLUMNS`."""
        found = served.summary()
        row: dict[str, Value] = {
            name: found[name] for name in ("model", "hardware", "requests", "span_ns", *_CACHE)
        }
        for name in LATENCIES:
            row |= {
                f"{name}_{of}_ns": None if value is None else round(value)
                for of, value in found[f"{name}_ns"].items()
            }
        row |= {name: found[name] for name in _NUMBERS if name in found}
        row |= {
            "devices": sum(count * one["devices"] for count, one in _engines(found)),
            "cache_bytes": _room(found),
        }
        if self.limits_ns:
            within = served.goodput(self.limits_ns)
            row |= {"goodput_per_s": within["requests_per_s"], "goodput_share": within["share"]}
        return {column: row.get(column) for column in COLUMNS} | {FEASIBLE: True}

    def ends(self, served: Served) -> dict[str, Value]:
        """Return the ends of a served point's 90 % intervals by :data:`ENDS`; a run of many
        iterations has none.
        """
        found: dict[str, Value] = dict.fromkeys(ENDS)
        if len(served.samples) > MANY_ITERATIONS:
            return found
        rows = [self.figures(one) for one in served.in_draws()]
        for figure in UNCERTAIN:
            within = ends([value for row in rows if isinstance(value := row[figure], int | float)])
            if within is not None and figure in WHOLE:
                within = floor(within[0]), ceil(within[1])
            if within is not None:
                found |= zip(end_columns(figure), within, strict=True)
        return found

    @property
    def digest(self) -> str:
        """Return a fingerprint of all that the answer depends on, including hosim's version."""
        said = [
            __version__,
            json.dumps(dict(self.model), sort_keys=True, default=str),
            repr(machine(self.hardware)),
            repr(asked_requests(self.requests)),
            json.dumps(dict(self.options), sort_keys=True, default=str),
            json.dumps(dict(self.limits_ns), sort_keys=True),
        ]
        return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ServingTask:
    """One point: its key, question and changed fields. Its row has intervals if ``drawn``."""

    key: str
    question: ServingQuestion
    settings: Settings
    drawn: bool = False

    def solved(self) -> dict[str, Value]:
        """Return the row: ``point`` and the figures. Any exception becomes its ``error``."""
        try:
            served = self.question.served(self.settings)
            ends = self.question.ends(served) if self.drawn else {}
            return {"point": self.key, **self.question.figures(served), **ends}
        except Exception as error:  # one point's failure must not end a sweep of thousands
            return self.failed(failure(error))

    def failed(self, error: str) -> dict[str, Value]:
        """Return the row of a point that has no result."""
        model = name_of({"model": self.question.model["model"]})
        hardware = self.settings.get(HARDWARE) or machine(self.question.hardware).name
        columns = (*COLUMNS, *(ENDS if self.drawn else ()))
        named: dict[str, Value] = {
            "model": model,
            "hardware": hardware,
            FEASIBLE: False,
            "error": error,
        }
        return {"point": self.key, **dict.fromkeys(columns), **named}


def _room(found: Mapping[str, Any]) -> int:
    """Return the cache capacity in bytes of all devices and stores of a ``hosim.serving/1``."""
    below = list(found["kv"]["tiers"].values())[1:] if "kv" in found else []
    blocks = sum(tier["blocks"] * tier["stores"] for tier in below)
    here = sum(
        count * one["blocks"] * one["block_bytes"] * one["devices"]
        for count, one in _engines(found)
    )
    return int(here + blocks * found["block_bytes"] * found["devices"])


def _engines(found: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the number of engines of each kind, with their description."""
    count, unlike = found.get("instances", 1), found.get("prefill")
    return (
        [(count, found)]
        if unlike is None
        else [(unlike["instances"], unlike), (count - unlike["instances"], found)]
    )


def check_options(options: Mapping[str, object]) -> None:
    """Raise :class:`InputError` for a name that is not an option of :func:`hosim.serve`, and for a
    value that JSON cannot hold.
    """
    known = serve_defaults()
    for name, value in options.items():
        check_known("option", name, known, name)
        try:
            json.dumps(value, default=str)
        except (TypeError, ValueError, RecursionError):
            raise InputError(
                f"expected a number or a text, got {shown(value, 60)}", source=name
            ) from None


def check_serving_fields(question: ServingQuestion, fields: Iterable[str]) -> None:
    """Raise :class:`InputError` for an unknown field; known ones are ``requests.X``, ``model.X``,
    ``hardware`` and the options of :func:`hosim.serve`.
    """
    options = serve_defaults()
    for field in fields:
        if field == "model.model":
            raise InputError("the model cannot be varied; ask for each by itself", source=field)
        if field.startswith(REQUESTS):
            what, known = (
                "parameter",
                [f"{REQUESTS}{name}" for name in changeable(question.requests)],
            )
        elif field.startswith(MODEL):
            what, known = (
                "parameter",
                [
                    f"{MODEL}{name}"
                    for name in parameters_of(question.model)
                    if name not in SAID_BY_REQUESTS
                ],
            )
        else:
            what, known = "field", ["requests.rate", "model.tensor", HARDWARE, *options]
        check_known(what, field, known, field)


def tasks_of(
    question: ServingQuestion, points: Sequence[Settings], drawn: bool = False
) -> list[ServingTask]:
    """Return a task for each point, with or without intervals."""
    digest = question.digest
    return [ServingTask(point_key(digest, point), question, point, drawn) for point in points]


def asked_question(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str],
    options: Mapping[str, Any],
    limits_ns: Mapping[str, int],
) -> ServingQuestion:
    """Return the question from a user's arguments. Raises :class:`InputError` for requests that
    cannot be read, and for unknown options.
    """
    if isinstance(requests, RequestRows) or not isinstance(requests, (str, os.PathLike)):
        raise InputError(
            "expected a file, or arrivals to draw such as 'poisson:rate=10'", source="requests"
        )
    check_options(options)
    parameters = builder_parameters(model if isinstance(model, Mapping) else named(model, "model"))
    return ServingQuestion(parameters, hardware, requests, dict(options), limits_ns)
