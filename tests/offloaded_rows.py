"""Steps under offload and without it that others measured, beside the project: what hosim is asked
of each row, or why it is not. ``make runtimes`` prints the table.

No constant of hosim was fitted to a row that is asked, but for the spread of what ``hf-trainer``
allocates.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray
from practitioner_rows import FILE

import hosim
from hosim.graph import Graph
from hosim.io import load_named
from hosim.io.runtimes import runtime_named, under_runtime
from hosim.result import Result

STEPS = FILE.parent / "offloaded_steps.csv"

Span = tuple[float, float, float]
"""A figure and the ends of its 90 % interval."""


@dataclass(frozen=True)
class Asked:
    """The question of a row: a step, of which a ``share`` of the optimizer is on the CPU, or what
    is ``saved`` for the backward pass is offloaded, and the same ``without``.

    Where a report names no machine, the answer spans two. Where it does not say how many tokens a
    step has, only what an optimizer on the CPU adds to the reported step is asked.
    """

    workload: str
    without: str
    runtime: str
    saved: bool = False
    share: float = 0.0
    machines: tuple[str, ...] = ("a100", "h100")


_LONG = "qwen3-0.6b:phase=train:sequence=1048576:context_parallel=8:zero=3:loss=chunked"
_SHORT = "qwen3-8b:phase=train:sequence=8192:states_dtype=int8"
_AGAIN = ":checkpoint=true"
_NEMO = "qwen3-0.6b:phase=train:sequence=128"
_OLMOE = ":".join(
    [
        "qwen3-30b-a3b:phase=train:sequence=2048:lora_rank=16:weights=nf4:packed=experts",
        "config.num_hidden_layers=16:config.num_attention_heads=16:config.num_key_value_heads=16",
        "config.num_experts=64:config.moe_intermediate_size=1024:config.vocab_size=50304",
    ]
)
"""OLMoE-1B-7B by its config.json, whose parts are those of Qwen3; the rank of adapters is not
said."""


def _again(step: str, saved: bool = False) -> Asked:
    return Asked(step + _AGAIN, step + _AGAIN, "hf-trainer", saved)


def _on_cpu(share: float) -> Asked:
    on_cpu = f"{_NEMO}:optimizer_on=ddr:optimizer_share={share}"
    return Asked(on_cpu, _NEMO, "megatron-te", False, share, ("h100",))


ASKED = {
    "acc4175-qwen3-0.6b-1m-ac": _again(_LONG),
    "acc4175-qwen3-0.6b-1m-ac-offload": _again(_LONG, True),
    "axo3776-8k-gc": _again(_SHORT),
    "axo3776-8k-checkpoint-hs": _again(_SHORT, True),
    "axo3776-8k-alst": _again(_SHORT, True),
    "axo3776-8k-trl-gc": _again(_SHORT, True),
    "axo3776-8k-trl-all": Asked(_SHORT, _SHORT + _AGAIN, "hf-trainer", True),
    "axo3797-4090-resident": Asked(
        _OLMOE + _AGAIN, _OLMOE + _AGAIN, "hf-trainer", machines=("rtx-4090",)
    ),
    "nemorl3628-50": _on_cpu(0.5),
    "nemorl3628-50-overlap": _on_cpu(0.5),
}
"""The question of each row that has one, by its id. The optimizer of axolotl's step is not said: in
8 bits it fits on both machines.
"""

REFUSED = {
    "titan4636-": "model, devices and length are not in the part that was read",
    "acc4175-24layers-": "model and machine are not in the part that was read",
    "axo3776-16k-": "no machine, no peak, and no step with offload beside it",
    "axo3797-4090-experts": "how experts in 4 bits are computed, and copied, is not said",
    "axo3797-4090-layers": "how experts in 4 bits are computed, and copied, is not said",
    "nemorl3628-100": "seen: how fast megatron-te updates on the CPU is from this row",
    "nemorl3628-none": "batch and length are not said",
    "dlo-910b3-no-gather": "seen: the host link of ascend-910b3 is from this row",
    "dlo-910b3-": "widths of the model are not said, and no builder has it",
    "mfsdp169-": "widths of the model and the machine are not said, nor a step without offload",
    "pp174436-": "widths of the model and the machine are not said",
}
"""Why a row is not asked, by the beginning of its id; the first that fits counts."""

_SIZES = {
    "Qwen3-0.6B": (0.596e9, 28, 1024),
    "Qwen3-8B": (8.19e9, 36, 4096),
    "OLMoE-1B-7B-0924": (6.92e9, 16, 2048),
}
"""Parameters, layers and width of the models, as their configurations have them."""

_BY_HAND = {"a100": (312e12, 25e9), "h100": (989e12, 55e9)}
"""Peak and link of the machines: FLOP/s, and bytes a second one way."""


@dataclass(frozen=True)
class Figure:
    """A figure of a row, beside hosim's and that by hand unless it is ``refused``."""

    row: str
    kind: str
    truth: float
    said: Span = (0.0, 0.0, 0.0)
    by_hand: float = 0.0
    refused: str = ""

    @property
    def error(self) -> float:
        return self.said[0] / self.truth - 1

    @property
    def by_hand_error(self) -> float:
        return self.by_hand / self.truth - 1

    @property
    def inside(self) -> bool:
        return self.said[1] <= self.truth <= self.said[2]


def figures() -> Iterator[Figure]:
    """All figures of all rows: steps, what offload costs (the step over that without), and
    memory.
    """
    without: dict[str, Mapping[str, str]] = {}
    for row in csv.DictReader(STEPS.read_text().splitlines()):
        offloaded = row["offload"] != "none"
        if not offloaded:
            without[row["source"]] = row
        name, beside = row["id"], without.get(row["source"])
        asked = ASKED.get(name)
        why = (
            "" if asked else next(REFUSED[begins] for begins in REFUSED if name.startswith(begins))
        )
        if step := row["time_s"] or row["tokens_per_s_per_device"]:
            missing = "batch and length are" if asked and asked.share else "the machine is"
            if row["machine"] and not (asked and asked.share):
                missing = "how experts in 4 bits are computed is"
            kind = f"{row['what']}, {'with' if offloaded else 'without'} offload"
            yield Figure(name, kind, float(step), refused=why or f"{missing} not said")
        if offloaded and beside and (cost := _cost(row, beside)):
            kind = f"{row['what']}, over the step without: {_part(row['offload'])}"
            if asked:
                base_s = float(beside["time_s"] or "nan")
                said, by_hand = ratio(asked, base_s), _ratio_by_hand(asked, row["model"], base_s)
                yield Figure(name, kind, cost, said, by_hand)
            else:
                yield Figure(name, kind, cost, refused=why)
        if row["peak_gib"]:
            true = float(row["peak_gib"])
            if asked and not asked.share:
                rise = row["peak_is"].startswith("rise")
                said, by_hand = gib(asked, rise), _gib_by_hand(asked, row["model"], rise)
                yield Figure(name, "memory", true, said, by_hand)
            else:
                yield Figure(name, "memory", true, refused=why or "batch and length are not said")


def _part(offload: str) -> str:
    """What of a step is offloaded."""
    found = re.search("optimizer|weights|frozen", offload)
    return {"frozen": "weights"}.get(found[0], found[0]) if found else "activations"


def _cost(row: Mapping[str, str], without: Mapping[str, str]) -> float | None:
    """How many times as long the step takes as without offload, if the report says so."""
    if told := re.search(r"step time \+([\d.]+) % over that without", row["note"]):
        return 1 + float(told[1]) / 100
    for column, power in (("time_s", 1), ("tokens_per_s_per_device", -1)):
        if row[column] and without[column]:
            return float((float(row[column]) / float(without[column])) ** power)
    return None


@cache
def _graph(workload: str, runtime: str) -> Graph:
    return under_runtime(load_named(workload), runtime_named(runtime))


@cache
def _replayed(workload: str, runtime: str, machine: str, saved: bool = False) -> Result:
    graph = _graph(workload, runtime)
    policy = "zero_offload" if "optimizer_on" in workload else "resident"
    return hosim.replay(
        hosim.plan(graph, machine, "saved_activations" if saved else policy), machine
    )


def _over_machines(spans: list[Span]) -> Span:
    said, low, high = zip(*spans, strict=True)
    return median(said), min(low), max(high)


def _seconds(result: Result) -> NDArray[np.float64]:
    """The makespan, and that of each draw."""
    assert result.drawn is not None
    return np.array([result.makespan_ns, *result.drawn.makespan_ns]) / 1e9


def ratio(asked: Asked, without_s: float) -> Span:
    """How many times as long the step takes as without offload, draw by draw; ``without_s``: the
    seconds without that are reported, to which an optimizer on the CPU adds.
    """
    found = []
    for machine in asked.machines:
        pair = (
            _replayed(asked.workload, asked.runtime, machine, asked.saved),
            _replayed(asked.without, asked.runtime, machine),
        )
        ours, beside = map(_seconds, pair)
        ratios = 1 + (ours - beside) / without_s if asked.share else ours / beside
        low, high = np.quantile(ratios[1:], [0.05, 0.95], method="hazen")
        found.append((float(ratios[0]), float(low), float(high)))
    return _over_machines(found)


def gib(asked: Asked, rise: bool) -> Span:
    """The peak that the allocator reserves, or by how much a step raises what is allocated."""
    graph = _graph(asked.workload, asked.runtime)
    before = sum([graph.tensors[t].size_bytes for t in graph.initial]) if rise else 0
    found = []
    for machine in asked.machines:
        peaks = _replayed(asked.workload, asked.runtime, machine, asked.saved).seen_peaks
        assert peaks is not None
        peak = peaks.allocated if rise else peaks.reserved
        low, high = peak.low_bytes - before, peak.high_bytes - before
        found.append(((peak.bytes - before) / 2**30, low / 2**30, high / 2**30))
    return _over_machines(found)


def _kept_by_hand(asked: Asked, model: str) -> tuple[float, float]:
    """Tokens of a device, and bytes that are kept for the backward pass: 2 B x tokens x width of
    each layer that is computed again, else 34 B.
    """
    _, layers, width = _SIZES[model]
    given = dict(re.findall(r":(\w+)=(\w+)", asked.workload))
    tokens = int(given["sequence"]) / int(given.get("context_parallel", 1))
    return tokens, (2 if "checkpoint" in given else 34) * tokens * width * layers


def _ratio_by_hand(asked: Asked, model: str, without_s: float) -> float:
    """What is kept goes both ways beside a step of 6 FLOP a parameter and token at 0.4 of the peak;
    the CPU updates 3.9e9 parameters a second.
    """
    parameters = _SIZES[model][0]
    if asked.share:
        return 1 + asked.share * parameters / 3.9e9 / without_s
    tokens, kept = _kept_by_hand(asked, model)
    return mean(
        [
            max(1.0, kept * 2 / link / (6 * parameters * tokens / (0.4 * peak)))
            for peak, link in map(_BY_HAND.__getitem__, asked.machines)
        ]
    )


def _gib_by_hand(asked: Asked, model: str, rise: bool) -> float:
    """Gradients of 2 B a parameter, or 16 B of it over eight devices, or half a byte where adapters
    alone learn, and what is kept.
    """
    kept = 0.0 if asked.saved else _kept_by_hand(asked, model)[1]
    each = 0.5 if "lora_rank" in asked.workload else 2 if rise else 16 / 8
    return (each * _SIZES[model][0] + kept) / 2**30


def table() -> list[str]:
    """The errors by kind beside those by hand, each figure, and why rows are refused."""
    kinds: defaultdict[str, list[Figure]] = defaultdict(list)
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    rows, answered = set(), set()
    for figure in figures():
        kinds[figure.kind].append(figure)
        if figure.refused:
            reasons[figure.refused].append(figure.row)
        else:
            answered.add(figure.row)
        rows.add(figure.row)
    lines = [
        f"\nsteps under offload and without: {len(rows)} rows, {len(answered)} of them answered; "
        "no constant but a spread was fitted to those",
        f"{'kind':56} figures answered   mean  median   worst inside   "
        "by hand: mean  median nearer",
    ]
    for kind, some in kinds.items():
        known = [figure for figure in some if not figure.refused]
        line = f"{kind:56} {len(some):7} {len(known):8}"
        if known:
            off, hand = [f.error for f in known], [abs(f.by_hand_error) for f in known]
            worst = max(off, key=abs)
            nearer = sum([abs(ours) <= other for ours, other in zip(off, hand, strict=True)])
            line += (
                f" {mean(map(abs, off)):6.1%} {median(map(abs, off)):7.1%} {worst:+7.1%} "
                f"{sum([f.inside for f in known]):6} {mean(hand):15.1%} {median(hand):7.1%} "
                f"{nearer:6}"
            )
        lines.append(line)
    for figure in [f for some in kinds.values() for f in some if not f.refused]:
        said, low, high = figure.said
        lines.append(
            f"{figure.row:34} {figure.kind:49} {figure.truth:8.4g} {said:8.4g} "
            f"({low:.4g} to {high:.4g}) {figure.error:+7.1%}, by hand {figure.by_hand_error:+7.1%}"
        )
    return lines + [
        f"refused, {why}: {', '.join(dict.fromkeys(names))}" for why, names in reasons.items()
    ]
