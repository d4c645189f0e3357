"""hosim in the public race: ``make race``.

Runs what real servers did (``race_rows.py``) and writes ``race.csv``, a row for each figure that
was measured: hosim's figure, the ends of its 90 % interval, and what other simulators say. ``python
judge_race.py --kept`` prints the tables of ``race.csv``, which docs/race.md shows.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from race_rows import METRICS, RIVALS, Asked, asked_at, metrics, mooncake, rates, tiers

import hosim
from hosim.data.draws import ends

FILE = Path(__file__).with_name("race.csv")

COLUMNS = (
    "source", "run", "stage", "model", "machine", "load", "metric", "measured", "hosim", "low", "high",
    *RIVALS,
)  # fmt: skip

FITTED = frozenset({("blis_evolved", "inference-sim")})
"""Simulators that were fitted on the very runs of a source."""

SHORT = 10
"""Draws serve this part of each stage; what they differ by from the same part without a draw is
what they make of the whole."""

Row = Mapping[str, str]


def judged(whole: Asked, short: Asked) -> Iterator[dict[str, object]]:
    """The rows of a run, and the interval of each from draws of a short one."""
    served = hosim.serve(whole.model, whole.machine, whole.requests, **whole.options)
    brief = hosim.serve(short.model, short.machine, short.requests, **short.options)
    drawn = list(brief.in_draws())
    for stage, (first, end) in whole.stages.items():
        ours = metrics(served, first, end)
        base = metrics(brief, *short.stages[stage])
        each = [metrics(one, *short.stages[stage]) for one in drawn]
        for metric in METRICS:
            if metric not in whole.measured[stage]:
                continue
            reach = ends([one[metric] / base[metric] for one in each]) or (1.0, 1.0)
            others = whole.others.get(stage, {})
            yield {
                "source": whole.source, "run": whole.run, "stage": stage, "model": whole.named,
                "machine": whole.machine, "load": whole.load, "metric": metric,
                "measured": f"{whole.measured[stage][metric]:.6g}", "hosim": f"{ours[metric]:.6g}",
                "low": f"{ours[metric] * reach[0]:.6g}", "high": f"{ours[metric] * reach[1]:.6g}",
                **{
                    rival: f"{others[rival][metric]:.6g}" if metric in others.get(rival, {}) else ""
                    for rival in RIVALS
                },
            }  # fmt: skip


def judged_tiers(asked: Asked) -> Iterator[dict[str, object]]:
    """The rows of caches in tiers, which have no intervals: each run takes minutes."""
    served = hosim.serve(asked.model, asked.machine, asked.requests, **asked.options)
    for stage, (first, end) in asked.stages.items():
        ours = metrics(served, first, end) | rates(served, first, end)
        for metric, measured in asked.measured[stage].items():
            yield {
                "source": asked.source, "run": asked.run, "stage": stage, "model": asked.named,
                "machine": asked.machine, "load": asked.load, "metric": metric,
                "measured": f"{measured:.6g}", "hosim": f"{ours[metric]:.6g}",
            }  # fmt: skip


def judged_mooncake() -> Iterator[dict[str, object]]:
    """The share of tokens found in a cache without end, beside a count in the file."""
    requests, share = mooncake()
    asked = {"model": "llama-3.1-8b", "tensor": 8}
    how = {"block_tokens": 512, "token_budget": 8192, "blocks": 10**6}
    found = hosim.serve(asked, "h100-80gb-sxm", requests, **how).summary()["prefix_hit_share"]
    yield {
        "source": "Mooncake", "run": "hits", "stage": "all", "model": "llama-3.1-8b",
        "machine": "h100-80gb-sxm", "load": "Mooncake", "metric": "hit_share",
        "measured": f"{share:.6g}", "hosim": f"{found:.6g}",
    }  # fmt: skip


def kept() -> list[Row]:
    """The rows of ``race.csv``."""
    with FILE.open() as file:
        return list(csv.DictReader(file))


# -- tables ----------------------------------------------------------------------------------------


def error(row: Row, whose: str = "hosim") -> float:
    """How far a figure is off, relative to what was measured."""
    return float(row[whose]) / float(row["measured"]) - 1


def inside(row: Row) -> bool:
    """Whether what was measured lies in hosim's interval."""
    return float(row["low"]) <= float(row["measured"]) <= float(row["high"])


def by_metric(title: str, rows: Sequence[Row]) -> list[str]:
    """For each metric hosim's errors, and each other simulator's beside hosim's on the same rows."""
    lines = [
        title, f"{'metric':9} {'simulator':15} rows    mean  median | hosim on these: mean  median  inside"
    ]  # fmt: skip
    for metric in METRICS:
        listed = [row for row in rows if row["metric"] == metric]
        for whose in ("hosim", *RIVALS):
            some = [row for row in listed if row[whose]]
            if some:
                theirs, ours = (
                    [abs(error(row, name)) for row in some] for name in (whose, "hosim")
                )
                fitted = " fitted" if (whose, some[0]["source"]) in FITTED else ""
                lines.append(
                    f"{metric:9} {whose:15} {len(some):4} {mean(theirs):7.1%} {median(theirs):7.1%} | "
                    f"{mean(ours):20.1%} {median(ours):7.1%} {sum(map(inside, some)):7}{fitted}"
                )
    return lines


def by_model(title: str, rows: Sequence[Row]) -> list[str]:
    """For each model and machine hosim's mean errors by metric."""
    names = list(dict.fromkeys((row["model"], row["machine"], row["load"]) for row in rows))
    lines = [title, f"{'model':22} {'machine':14} " + " ".join(f"{m:>8}" for m in METRICS)]
    for model, machine, load in names:
        found = []
        for metric in METRICS:
            some = [
                error(row) for row in rows
                if (row["model"], row["machine"], row["load"], row["metric"]) == (model, machine, load, metric)
            ]  # fmt: skip
            found.append(f"{mean(some):+8.1%}" if some else f"{'':8}")
        lines.append(f"{model:22} {machine:14} {' '.join(found)}")
    return lines


def each_row(title: str, rows: Sequence[Row]) -> list[str]:
    """Every row: what was measured, hosim's figure and interval, in milliseconds."""
    lines = [
        title, f"{'run':9} {'stage':6} {'model':22} {'metric':9} {'measured':>10} {'hosim':>10} "
        f"{'error':>7}  90 % interval"
    ]  # fmt: skip
    for row in rows:
        measured, ours, low, high = (float(row[k]) for k in ("measured", "hosim", "low", "high"))
        lines.append(
            f"{row['run'][:9]:9} {row['stage'].split()[0]:6} {row['model']:22} {row['metric']:9} "
            f"{measured:10,.1f} {ours:10,.1f} {error(row):+7.1%}  {low:,.1f} to {high:,.1f}"
            f"{'' if inside(row) else '  outside'}"
        )
    return lines


def of_tiers(title: str, rows: Sequence[Row]) -> list[str]:
    """Rows that have no intervals."""
    lines = [
        title, f"{'run':10} {'stage':6} {'metric':11} {'measured':>11} {'hosim':>11} {'error':>8}"
    ]  # fmt: skip
    return lines + [
        f"{row['run']:10} {row['stage']:6} {row['metric']:11} {float(row['measured']):11,.4g} "
        f"{float(row['hosim']):11,.4g} {error(row):+8.1%}"
        for row in rows
        if not row["low"]
    ]


def tables(rows: Iterable[Row]) -> str:
    """All tables of the race."""
    listed = list(rows)
    loads = {
        "measured": "Loads that were recorded (LLMServingSim's servers), without a fitted overhead",
        "listed": "Loads that are listed (vLLM on H100)",
        "assumed": "Loads that are assumed by a workload's name (vLLM on H100, the first 300 requests)",
    }
    found = []
    for load, title in loads.items():
        some = [row for row in listed if row["load"] == load]
        found += [
            *by_metric(title, some), "", *by_model(f"{title}: mean errors with their signs", some), ""
        ]  # fmt: skip
    found += each_row("Every row, in milliseconds", [row for row in listed if row["low"]])
    found += ["", *of_tiers("Caches in tiers, in milliseconds, tokens a second, shares", listed)]
    return "\n".join(found)


def main() -> None:
    """Print the tables of the kept rows, or run all and write them first."""
    if "--kept" not in sys.argv:
        with FILE.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for whole, short in zip(asked_at(1), asked_at(SHORT), strict=True):
                writer.writerows(judged(whole, short))
                print(whole.source, whole.run, file=sys.stderr, flush=True)
            for asked in tiers():
                writer.writerows(judged_tiers(asked))
                print(asked.source, asked.run, file=sys.stderr, flush=True)
            writer.writerows(judged_mooncake())
    print(tables(kept()))


if __name__ == "__main__":
    main()
