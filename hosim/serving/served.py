"""The outcome of served requests: latencies, throughput and the cache, as frames and figures, and
the goodput, the number of requests within latency limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hosim.base.nearest_rank import rank
from hosim.data.draws import FEW_DRAWS, ends
from hosim.errors import InputError, UnitError
from hosim.io.options import check_known
from hosim.plain_text import counted, shown
from hosim.serving.blocks import HandOvers, KvFigures
from hosim.serving.requests import Request
from hosim.serving.weights import WeightFigures
from hosim.units import human_time, parse_time

if TYPE_CHECKING:
    from pandas import DataFrame


# -- goodput ---------------------------------------------------------------------------------------


SHARES = (50, 90, 95, 99)
"""The percentiles of every latency."""

LIMITED = ("ttft", "tpot", "latency")
"""The times of a request that can have a limit: to the first token, per token after it, and to the
last token.
"""


def latency_limits(asked: str | Mapping[str, Any]) -> dict[str, int]:
    """Read latency limits such as ``ttft=2s,tpot=100ms`` in nanoseconds; a mapping may have
    numbers. Raises :class:`InputError`.

    >>> latency_limits("ttft=2s,tpot=100ms")
    {'ttft': 2000000000, 'tpot': 100000000}
    """
    return _read(asked, LIMITED, "limit", "ttft=2s,tpot=100ms")


def statistic_limits(asked: str | Mapping[str, Any]) -> dict[str, int]:
    """Read limits of statistics such as ``ttft.p95=2s,tpot.mean=50ms`` in nanoseconds. Raises
    :class:`InputError`.

    >>> statistic_limits("ttft.p95=2s")
    {'ttft.p95': 2000000000}
    """
    statistics = ("mean", *(f"p{share}" for share in SHARES))
    known = [
        f"{name}.{one}" for name in ("ttft", "tpot", "inter_token", "latency") for one in statistics
    ]
    return _read(asked, known, "within", "ttft.p95=2s,tpot.mean=50ms")


def beyond(summary: Mapping[str, Any], limits_ns: Mapping[str, int]) -> list[str]:
    """Return a text for each statistic of a summary (:meth:`hosim.serving.served.Served.summary`)
    that exceeds its limit.

    >>> beyond({"ttft_ns": {"p95": 3e9}}, {"ttft.p95": 2_000_000_000})
    ['ttft.p95 is 3.00 s, more than 2.00 s']
    """
    found = []
    for name, limit in limits_ns.items():
        latency, _, statistic = name.partition(".")
        value = summary[f"{latency}_ns"][statistic]
        if value is not None and value > limit:
            found.append(f"{name} is {human_time(round(value))}, more than {human_time(limit)}")
    return found


def _read(
    asked: str | Mapping[str, Any], known: Sequence[str], source: str, example: str
) -> dict[str, int]:
    if not isinstance(asked, str | Mapping):
        raise InputError(
            f"expected limits such as {example}, got {shown(asked, 60)}", source=source
        )
    pairs = (
        list(asked.items())
        if isinstance(asked, Mapping)
        else [part.partition("=")[::2] for part in asked.split(",")]
    )
    limits: dict[str, int] = {}
    for name, value in ((str(name).strip(), value) for name, value in pairs):
        check_known("latency", name, known, source)
        if name in limits:
            raise InputError("is given twice; keep one", source=source, where=name)
        limits[name] = _nanoseconds(name, value, source)
    if not limits:
        raise InputError(f"expected limits such as {example}", source=source)
    return limits


def goodput(frame: DataFrame, span_ns: int, limits_ns: Mapping[str, int]) -> dict[str, Any]:
    """Return the number, share and rates of the requests of a frame
    (:meth:`hosim.serving.served.Served.frame`) that keep every limit.

    Rates are per second over ``span_ns``. A request with a single token has no time per further
    token, and keeps that limit.
    """
    within = (frame["arrival_ns"] == frame["arrival_ns"]).to_numpy()
    for name, limit in limits_ns.items():
        within = within & ~(frame[f"{name}_ns"].to_numpy(float) > limit)
    tokens = int(frame["output_tokens"].to_numpy()[within].sum())
    return {
        "limits_ns": dict(limits_ns),
        "requests": int(within.sum()),
        "share": int(within.sum()) / len(frame),
        "requests_per_s": int(within.sum()) / span_ns * 1e9,
        "output_tokens_per_s": tokens / span_ns * 1e9,
    }


def _nanoseconds(name: str, value: Any, source: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_time(value)
    except UnitError as error:
        raise InputError(error.message, source=source, where=name) from None


# -- the outcome -----------------------------------------------------------------------------------


DRAWN = (
    "ttft_ns",
    "tpot_ns",
    "inter_token_ns",
    "latency_ns",
    "requests_per_s",
    "prompt_tokens_per_s",
    "output_tokens_per_s",
    "preemptions",
    "prefix_hit_share",
    "peak_blocks",
    "mean_blocks",
)
"""Figures of a ``hosim.serving/1`` that have intervals; the room has its own beside it."""

MANY_ITERATIONS = 20_000
"""A longer run has intervals only from :meth:`Served.intervals`, because they take 20 such runs."""

_UNITS = ("_ns", "_per_s", "_share")


def end_columns(figure: str) -> tuple[str, str]:
    """Return the columns with the ends of a figure's 90 % interval.

    >>> end_columns("ttft_p95_ns"), end_columns("requests_per_s")
    (('ttft_p95_low_ns', 'ttft_p95_high_ns'), ('requests_low_per_s', 'requests_high_per_s'))
    """
    unit = next((unit for unit in _UNITS if figure.endswith(unit)), "")
    name = figure.removesuffix(unit)
    return f"{name}_low{unit}", f"{name}_high{unit}"


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of an engine at the start of an iteration: running and waiting requests, held
    blocks, and the work of the iteration.

    ``instance`` is the number of the engine among several, and ``below`` has the blocks in use in
    each lower tier, on each device.
    """

    start_ns: int
    end_ns: int
    running: int
    waiting: int
    held_blocks: int
    tokens: int
    instance: int = 0
    below: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class Served:
    """The outcome of each request, by position (its first scheduling and the times of its tokens),
    and the states of the engines.

    ``token_ns`` has the times of all tokens of each request. ``hit_tokens`` is the number of prompt
    tokens that were in the cache.
    """

    requests: tuple[Request, ...]
    scheduled_ns: tuple[int, ...]
    token_ns: tuple[tuple[int, ...], ...]
    samples: tuple[Sample, ...]
    preemptions: int
    hit_tokens: int
    blocks: int
    about: Mapping[str, Any] = field(default_factory=dict)
    """The question: the model, the machine, the limits."""
    instances: tuple[int, ...] = ()
    """The engine of each request, if there are several."""
    kv: KvFigures | None = None
    """The cache in the tiers below the device, if there is one."""
    handed: HandOvers | None = None
    """The transfers of caches from prefill engines to decode engines, if these are different."""
    weights: WeightFigures | None = None
    """The weights that a policy planned, if one did."""
    again: Callable[[int], Served | None] | None = field(default=None, compare=False)
    """A function that serves the same requests in a draw, if some times are uncertain; it returns
    ``None`` if the requests do not fit.
    """

    def __repr__(self) -> str:
        found = self.summary()
        each = found["tpot_ns"]["mean"]
        then = "" if each is None else f", then one each {each / 1e6:.3g} ms"
        return (
            f"<{counted(len(self.requests), 'request')} served: "
            f"{found['output_tokens_per_s']:,.0f} tokens/s, "
            f"first token after {found['ttft_ns']['mean'] / 1e9:.3g} s{then} on average>"
        )

    def frame(self) -> DataFrame:
        """Return one row per request, with times in nanoseconds.

        ``ttft_ns`` is the time from arrival to the first token, ``latency_ns`` to the last one, and
        ``tpot_ns`` the mean time per token after the first (NaN for a single token).
        """
        from pandas import DataFrame

        rows = []
        for request, scheduled, tokens in zip(
            self.requests, self.scheduled_ns, self.token_ns, strict=True
        ):
            rows.append(
                {
                    "arrival_ns": request.arrival_ns,
                    "prompt_tokens": request.prompt_tokens,
                    "output_tokens": request.output_tokens,
                    "scheduled_ns": scheduled,
                    "first_token_ns": tokens[0],
                    "last_token_ns": tokens[-1],
                    "ttft_ns": tokens[0] - request.arrival_ns,
                    "tpot_ns": (tokens[-1] - tokens[0]) / (len(tokens) - 1)
                    if len(tokens) > 1
                    else float("nan"),
                    "latency_ns": tokens[-1] - request.arrival_ns,
                }
            )
        frame = DataFrame(rows)
        if any(request.priority for request in self.requests):
            frame = frame.assign(priority=[request.priority for request in self.requests])
        if self.instances:
            frame = frame.assign(instance=list(self.instances))
        if self.handed is not None:
            there = self.handed
            frame = frame.assign(
                prefill_instance=list(there.prefill_instances),
                prefilled_ns=list(there.prefilled_ns),
                transferred_ns=list(there.transferred_ns),
            )
        frame.attrs["notes"] = list(self.about.get("notes", ()))
        return frame

    def iterations(self) -> DataFrame:
        """Return one row per iteration: its start and end, the running and waiting requests, the
        held blocks, and the computed tokens.

        Each tier below the device has a column, such as ``ddr_blocks``, with the blocks in use
        there on each device.
        """
        from pandas import DataFrame

        frame = DataFrame([asdict(sample) for sample in self.samples])
        below = frame.pop("below")
        names = [] if self.kv is None else list(self.kv.tiers)[1:]
        return frame.assign(
            **{
                f"{name}_blocks": [held[place] for held in below]
                for place, name in enumerate(names)
            }
        )

    @property
    def room(self) -> int:
        """The number of blocks of all engines."""
        engines, unlike = int(self.about.get("instances", 1)), self.about.get("prefill")
        return self.blocks * engines + (
            int(unlike["instances"] * (unlike["blocks"] - self.blocks)) if unlike else 0
        )

    @property
    def own_samples(self) -> tuple[Sample, ...]:
        """The samples of engines with :attr:`blocks` blocks: all engines except prefill engines
        that differ from the others.
        """
        unlike = self.about.get("prefill")
        return (
            self.samples
            if unlike is None
            else tuple(one for one in self.samples if one.instance >= unlike["instances"])
        )

    @property
    def span_ns(self) -> int:
        """The time from the first arrival to the end of the last iteration."""
        return max(sample.end_ns for sample in self.samples) - min(
            request.arrival_ns for request in self.requests
        )

    def goodput(self, limits: str | Mapping[str, Any]) -> dict[str, Any]:
        """Return the number, share and rates per second of the requests within limits such as
        ``ttft=2s,tpot=100ms``.

        Raises :class:`InputError`.
        """
        return goodput(self.frame(), self.span_ns, latency_limits(limits))

    def in_draws(self) -> Iterator[Served]:
        """Yield the outcome of the same requests in each of few draws, except draws in which the
        cache has no room for a request. Yield nothing if no time is uncertain.
        """
        if self.again is not None:
            drawn = map(self.again, range(FEW_DRAWS))
            yield from (served for served in drawn if served is not None)

    def intervals(self) -> dict[str, Any]:
        """Return the ends of the 90 % intervals of figures of :meth:`summary`, from few draws; an
        empty mapping if no time is uncertain.

        ``count`` is the number of draws, ``unfit`` the number in which the cache has no room for a
        request, and ``tier_hit_share`` has the share of the prompts' tokens found in each tier.
        """
        if self.again is None:
            return {}
        found = [served.summary() for served in self.in_draws()]
        counts: dict[str, Any] = {"count": FEW_DRAWS, "unfit": FEW_DRAWS - len(found)}
        if self.kv is not None:
            counts["tier_hit_share"] = {
                name: ends([one["kv"]["tiers"][name]["hit_share"] for one in found])
                for name in self.kv.tiers
            }
        return counts | {
            name: {of: ends([one[name][of] for one in found]) for of in value}
            if isinstance(value, dict)
            else ends([one[name] for one in found])
            for name, value in self.summary().items()
            if name in DRAWN
        }

    def summary(self) -> dict[str, Any]:
        """Return the ``hosim.serving/1`` of a run: statistics in nanoseconds, rates per second,
        shares from 0 to 1.
        """
        frame = self.frame()
        span = self.span_ns
        gaps = np.concatenate([np.diff(tokens) for tokens in self.token_ns])
        weights = np.array([sample.end_ns - sample.start_ns for sample in self.own_samples], float)
        held = np.array([sample.held_blocks for sample in self.own_samples], float)
        moved = {} if self.handed is None else {"kv_transfer": asdict(self.handed.figures)}
        below = (
            {} if self.kv is None else {"kv": self.kv.summary(int(frame["prompt_tokens"].sum()))}
        )
        return {
            "format": "hosim.serving/1",
            **self.about,
            "requests": len(frame),
            "span_ns": span,
            "requests_per_s": len(frame) / span * 1e9,
            "prompt_tokens_per_s": int(frame["prompt_tokens"].sum()) / span * 1e9,
            "output_tokens_per_s": int(frame["output_tokens"].sum()) / span * 1e9,
            "ttft_ns": statistics(frame["ttft_ns"].to_numpy(float)),
            "tpot_ns": statistics(frame["tpot_ns"].dropna().to_numpy(float)),
            "inter_token_ns": statistics(gaps),
            "latency_ns": statistics(frame["latency_ns"].to_numpy(float)),
            "iterations": len(self.samples),
            "preemptions": self.preemptions,
            "prefix_hit_share": self.hit_tokens / int(frame["prompt_tokens"].sum()),
            "blocks": self.blocks,
            "peak_blocks": int(held.max()),
            "mean_blocks": float(np.average(held, weights=weights))
            if weights.sum()
            else float(held.mean()),
            **moved,
            **below,
            **({} if self.weights is None else {"weights": asdict(self.weights)}),
        }


def statistics(values: npt.ArrayLike) -> dict[str, float | None]:
    """Return the mean and percentiles (nearest rank); each is ``None`` if there are no values."""
    ordered = np.sort(np.asarray(values, float))
    if not len(ordered):
        return dict.fromkeys(("mean", *(f"p{share}" for share in SHARES)))
    ranks: dict[str, float | None] = {
        f"p{share}": float(ordered[rank(share, len(ordered)) - 1]) for share in SHARES
    }
    return {"mean": float(ordered.mean()), **ranks}
