"""Cases of the gate that serve requests: what they ask, what they measure, and why they got
worse.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim import io, serving
from hosim.analysis import canonical, digest, graph_fingerprint
from hosim.data.versions import SERVING_VERSIONS
from hosim.errors import InfeasibleError, InputError
from hosim.gate import Case
from hosim.gate.judged_metrics import (
    COUNT,
    FAMILIES,
    FOUND,
    GOODPUT,
    HOUR,
    LATENCY,
    MAKESPAN,
    MOVED,
    PEAK,
    STALL,
    STATISTICS,
    THROUGHPUT,
    TPOT,
    TTFT,
    WAIT,
    MetricVerdict,
    family,
    judge_metrics,
)
from hosim.gate.records import (
    REQUESTS,
    SOURCE,
    Listing,
    Measured,
    PeakRecord,
    Record,
    flat_profile,
    source_digest,
)
from hosim.gate.verdicts import LINES, changed_question
from hosim.serving import Served, api
from hosim.version import __version__

# -- the question of a case ------------------------------------------------------------------------


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
                raise InputError(
                    f"expected a text, a number or true or false, got {type(one).__name__}",
                    source=source,
                    where=".".join(filter(None, [where, "serve", key, part])),
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


# -- served causes
# --------------------------------------------------------------------------------------------------
# The causes of worse serving than a baseline's: what changed in the question, and which other
# figures changed with it.

_CHANGES = {
    "graph": "the model has changed",
    REQUESTS: "the requests have changed",
    "plan": "the engine, its cache or its kernel times have changed",
}
_BEHIND = (COUNT, FOUND, WAIT, STALL, PEAK, MOVED)
"""Figures that say why others changed, in the order in which they are told."""


def explain_served(before: Record, now: Measured, worse: Sequence[MetricVerdict]) -> list[str]:
    """Return the changes of the question, the metrics that are worse, and the figures behind them.
    At most :data:`LINES` lines.
    """
    assert now.record is not None
    said = changed_question(before, now.record)
    if not said:
        said = [
            text
            for key, text in _CHANGES.items()
            if before.fingerprints.get(key) != now.record.fingerprints.get(key)
        ]
    if not said and before.versions == now.record.versions:
        said = ["model, requests and engine are the same: the simulation itself has changed"]
    named = {one.name for one in worse}
    others = [
        one
        for one in judge_metrics(before.metrics, now.record.metrics, {})
        if one.change and family(one.name) in _BEHIND and one.name not in named
    ]
    lines = [
        *said,
        *(
            one.line()
            for one in sorted(worse, key=lambda one: (FAMILIES.index(family(one.name)), one.name))
        ),
    ]
    room = max(LINES - len(others), LINES // 2)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more figures are worse"]
    behind = sorted(others, key=lambda one: (_BEHIND.index(family(one.name)), one.name))
    return [*lines, *(one.line() for one in behind)][:LINES]


PARTS = 60
"""The number of equal parts of the time in the curve of the cache."""

_CONTEXT = 1024


def measure_served(case: Case) -> Measured:
    """The record of a case that serves requests, or the error of one whose weights leave no room.
    Raises :class:`HosimError`.
    """
    from hosim.io.importers import builder_parameters
    from hosim.serving.requests import asked_requests
    from hosim.shipped import find_hardware

    hardware = io.load_hardware(find_hardware(case.beside(case.hardware)))
    assert case.serve is not None
    asked = asked_serving(case.serve, case.beside)
    try:
        model = builder_parameters(asked.model)
        rows = asked_requests(asked.requests)
        served = api.serve(model, hardware, rows, **asked.options)
        goodput = served.goodput(asked.limit) if asked.limit is not None else None
    except InfeasibleError as error:
        return Measured(None, str(error))
    except InputError as error:
        raise asked.placed(error) from None
    held = _Held(model, hardware.device_tier, hardware, served)
    prints = {
        "graph": held.fingerprint,
        "plan": digest(json.dumps(_setup(asked.options, served), sort_keys=True)),
        REQUESTS: digest(repr(rows.requests)),
        SOURCE: digest(json.dumps(model, sort_keys=True, default=str)),
    }
    peaks = {
        tier: PeakRecord(None, {kind: size for kind, size in kinds.items() if size}, Listing())
        for tier, kinds in held.peaks().items()
    }
    return Measured(
        Record(
            case=case.name,
            asked=case.asked(),
            fingerprints=prints,
            metrics=_metrics(served, held, goodput),
            machine=flat_profile(hardware),
            peaks=peaks,
            moved={},
            stalls=Listing(),
            durations=Listing(),
            curve=held.curve(),
            hosim=__version__,
            versions=SERVING_VERSIONS,
            notes=tuple(served.about.get("notes", ())),
        )
    )


class _Held:
    """The contents of each tier of a machine: weights and the cache on each device, the cache
    below.
    """

    def __init__(
        self, model: Mapping[str, Any], device: str, hardware: Any, served: Served
    ) -> None:
        from hosim.io.models import build

        modelled = serving.ModelledIterations(model, hardware)
        self.device = device
        self.served = served
        self.summary = served.summary()
        planned = served.weights
        self.weights_below = (
            {}
            if planned is None
            else {name: size for name, size in planned.peak_bytes.items() if name != device}
        )
        self.weights = modelled.weight_bytes if planned is None else planned.peak_bytes[device]
        self.block_bytes = served.about["block_bytes"]
        self.fingerprint = graph_fingerprint(
            canonical(build("case", {**model, "phase": "decode", "context": _CONTEXT}))
        )

    def peaks(self) -> dict[str, dict[str, int]]:
        """By tier the bytes of each kind at the peak, on one device."""
        found = {
            self.device: {
                "parameter": self.weights,
                "kv_cache": self.summary["peak_blocks"] * self.block_bytes,
            }
        }
        for tier, figures in self.summary.get("kv", {}).get("tiers", {}).items():
            if tier != self.device:
                found[tier] = {"kv_cache": figures["peak_blocks"] * self.block_bytes}
        for tier, size in self.weights_below.items():
            found[tier] = {"parameter": size, **found.get(tier, {})}
        return found

    def curve(self) -> tuple[int, ...]:
        """The most that a device holds in each of equal parts of the time until all requests are
        served.
        """
        span = self.served.span_ns
        blocks = [0] * PARTS
        for sample in self.served.own_samples if span else ():
            first, last = (
                min(PARTS - 1, max(0, at) * PARTS // span)
                for at in (sample.start_ns, sample.end_ns - 1)
            )
            for part in range(first, last + 1):
                blocks[part] = max(blocks[part], sample.held_blocks)
        return tuple(self.weights + held * self.block_bytes for held in blocks) if span else ()


def _metrics(served: Served, held: _Held, goodput: Mapping[str, Any] | None) -> dict[str, int]:
    summary = held.summary
    found: dict[str, int] = {}
    for name in (TTFT, TPOT, LATENCY):
        of = summary[f"{name}_ns"]
        found |= {
            f"{name}.{statistic}": round(of[statistic])
            for statistic in STATISTICS
            if of[statistic] is not None
        }
    found[f"{THROUGHPUT}.output"] = round(summary["output_tokens_per_s"] * HOUR)
    if goodput is not None:
        found[f"{GOODPUT}.requests"] = round(goodput["requests_per_s"] * HOUR)
    found[MAKESPAN] = summary["span_ns"]
    found |= {f"{PEAK}.{tier}": sum(kinds.values()) for tier, kinds in held.peaks().items()}
    below = summary.get("kv", {})
    found |= {
        f"{FOUND}.{tier}": one["hit_tokens"]
        for tier, one in below.get(
            "tiers", {held.device: {"hit_tokens": served.hit_tokens}}
        ).items()
    }
    found |= {f"{STALL}.{cause}": waited for cause, waited in below.get("stall_ns", {}).items()}
    found |= {
        f"{MOVED}.{name}": channel["bytes"] for name, channel in below.get("channels", {}).items()
    }
    if served.weights is not None:
        found[f"{STALL}.weights"] = served.weights.stall_ns
        found |= {
            f"{MOVED}.{name}": channel.bytes for name, channel in served.weights.channels.items()
        }
    if served.handed is not None:
        of_transfers = served.handed.figures
        found |= {
            f"{WAIT}.kv_transfer": of_transfers.wait_ns,
            f"{WAIT}.decode_queue": of_transfers.queue_ns,
            f"{STALL}.kv_transfer": of_transfers.stall_ns,
            f"{MOVED}.kv_transfer": of_transfers.bytes,
            f"{COUNT}.kv_transfers": of_transfers.transfers,
        }
    return found | {
        f"{COUNT}.{name}": summary[name] for name in ("blocks", "iterations", "preemptions")
    }


def _setup(options: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """The engine in one way of writing: every option, defaults too, and what recorded times are
    like.
    """
    from hosim.serving.blocks import kv_policy
    from hosim.serving.serve_options import serve_defaults
    from hosim.shipped import find_hardware

    setup = {**serve_defaults(), **options, "overhead": served.about["overhead_ns"]}
    for name in ("token_budget", "max_sequences"):
        if setup[name] is None:
            setup[name] = served.about.get(name, getattr(serving.EngineLimits(), name))
    if isinstance(setup["kv"], str):
        policy, parameters = kv_policy(setup["kv"])
        setup["kv"] = [policy.name, parameters]
    if setup["prefill_hardware"] is not None:
        setup["prefill_hardware"] = flat_profile(
            io.load_hardware(find_hardware(setup["prefill_hardware"]))
        )
    if setup["iterations"] is not None:
        setup["iterations"] = source_digest(Path(setup["iterations"]))
    return setup
