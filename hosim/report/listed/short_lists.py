"""Lists and their entries in the short form of an answer: groups of names, and one workload,
machine or runtime as the figures that matter most.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten
from typing import Any

from hosim.analysis import static_peak
from hosim.analysis.costmodel import op_durations
from hosim.base.groups import grouped
from hosim.data.runtime import Runtime
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.notes import notes
from hosim.plain_text import counted, one_line
from hosim.report.answers import Answer
from hosim.report.drawn import memory_curve
from hosim.report.listed.listings import (
    Listed,
    figures_of,
    of_host,
    of_moved,
    peak_compute,
    set_by,
)
from hosim.report.of_replays import composition
from hosim.report.printing import NOTHING, percent
from hosim.units import human_flops, human_percent, human_rate, human_size, human_time

Commands = Sequence[tuple[str, str]]

_ROWS, _SUMMARY, _HEIGHT = 16, 58, 6
"""Rows of a list, characters of a line that explains a name, and lines of a curve."""
_OF_ALL = "train"
"""The phase that every builder has."""
_MEMORIES = (32, 64, 100, 150)
"""Machines are grouped by the GiB of their devices, below each of these."""


def policies_in_short(
    listed: Sequence[Listed], named_alone: Sequence[str], next_commands: Commands = ()
) -> Answer:
    """A line for each policy but those that are ``named_alone``, whose names follow."""
    return Answer(
        counted(len(listed), "policy"),
        "Name one, with parameters as in lookahead:k=4.",
        columns=("policy", "what it does"),
        rows=tuple(
            [(p.name, _cut(p.summary, _SUMMARY)) for p in listed if p.name not in named_alone]
        ),
        left=2,
        wraps=True,
        shown=_ROWS,
        ranked=False,
        rest=f"compared only by name: {', '.join(named_alone)}" if named_alone else "",
        next_commands=tuple(next_commands),
    )


def _cut(text: str, width: int) -> str:
    """The first words of a text."""
    return shorten(text, width, placeholder=" ...")


def models_in_short(runs: Mapping[str, Sequence[str]], next_commands: Commands = ()) -> Answer:
    """The models by what their builder ``runs``. Of several sizes the first has its whole name."""
    listed = grouped(
        (", ".join([p for p in phases if p != _OF_ALL]), name) for name, phases in runs.items()
    )
    return Answer(
        f"{counted(len(runs), 'model')}; of several sizes the first has its whole name",
        f"Name one, with parameters as in llama-3.1-8b:phase=decode:batch=8; phase={_OF_ALL} "
        "takes all.",
        columns=("phases", "models"),
        rows=tuple([(phases, _families(names)) for phases, names in listed.items()]),
        left=2,
        wraps=True,
        shown=_ROWS,
        ranked=False,
        next_commands=tuple(next_commands),
    )


def _families(names: Sequence[str]) -> str:
    """The names, of each family together, its sizes after the first without what they share."""
    split = [name.rpartition("-") for name in names]
    sizes = grouped((family, size) for family, _, size in split)
    return "; ".join([f"{family}-{', '.join(of)}".lstrip("-") for family, of in sizes.items()])


def workloads_in_short(
    names: Sequence[str], models: Iterable[str], next_commands: Commands = ()
) -> Answer:
    """The shipped workloads, by the ``models`` that they run."""
    known = sorted(models, key=len)
    models_of = [
        next((m for m in reversed(known) if name.startswith(f"{m}-")), "") for name in names
    ]
    by_model = grouped(
        (model, name.removeprefix(f"{model}-"))
        for model, name in zip(models_of, names, strict=True)
    )
    return Answer(
        counted(len(names), "shipped workload"),
        "A name is both columns, as in llama-3.1-8b-prefill-4k; a model's name is a workload, too.",
        columns=("model", "runs"),
        rows=tuple([(model, ", ".join(runs)) for model, runs in by_model.items()]),
        left=2,
        wraps=True,
        shown=_ROWS,
        ranked=False,
        next_commands=tuple(next_commands),
    )


def machines_in_short(
    profiles: Sequence[Hardware], aliases: Mapping[str, str], next_commands: Commands = ()
) -> Answer:
    """The machines by the memory of their devices; in brackets the short name of one."""
    short = {name: alias for alias, name in reversed(list(aliases.items()))}
    by_memory = grouped(
        (
            sum([hw.device.capacity_bytes / 2**30 >= bound for bound in _MEMORIES]),
            f"{hw.name} ({short[hw.name]})" if hw.name in short else hw.name,
        )
        for hw in sorted(profiles, key=lambda hw: hw.device.capacity_bytes)
    )
    return Answer(
        counted(len(profiles), "machine"),
        "Name one with -H, or the file of your own profile.",
        columns=("memory", "machines"),
        rows=tuple([(_range(below), ", ".join(names)) for below, names in by_memory.items()]),
        left=2,
        wraps=True,
        shown=_ROWS,
        ranked=False,
        next_commands=tuple(next_commands),
    )


def _range(below: int) -> str:
    if below == len(_MEMORIES):
        return f"{_MEMORIES[-1]} GiB and more"
    least = f"{_MEMORIES[below - 1]} to " if below else "below "
    return f"{least}{_MEMORIES[below]} GiB"


def machine_in_short(hw: Hardware) -> Answer:
    """A machine: what it computes, and its tiers with the ways between the device and each."""
    device = hw.device_tier
    on_host = "" if hw.devices_per_host is None else f", {hw.devices_per_host} on a host"
    ways = {
        (c.source, c.destination): human_rate(c.bandwidth_bytes_per_s)
        for c in sorted(hw.channels, key=lambda c: c.bandwidth_bytes_per_s)
    }
    return Answer(
        f"{hw.name}: {counted(hw.devices, 'device')}{on_host}",
        f"{peak_compute(hw)}, of which kernels reach {percent(hw.compute.efficiency, 1)}; "
        f"{human_size(hw.device.capacity_bytes)} of {device} at "
        f"{human_rate(hw.device.bandwidth_bytes_per_s)}.",
        columns=("tier", "scope", "capacity", "bandwidth", "to device", "from device"),
        rows=tuple(
            [
                (
                    tier.name,
                    tier.scope,
                    human_size(tier.capacity_bytes),
                    human_rate(tier.bandwidth_bytes_per_s),
                    ways.get((tier.name, device), NOTHING),
                    ways.get((device, tier.name), NOTHING),
                )
                for tier in hw.tiers
            ]
        ),
        left=2,
        ranked=False,
        rest="every dtype, channels, fabrics and sources (--detail)",
    )


def runtimes_in_short(found: Sequence[Runtime], next_commands: Commands = ()) -> Answer:
    """A line for each runtime: how fast its kernels are in a whole step, and of what software it
    is.
    """
    return Answer(
        counted(len(found), "runtime"),
        "Name one with --runtime. Speed is that of kernels in a step; alone it is 1.",
        columns=("name", "software", "speed"),
        rows=tuple(
            [
                (one.name, _cut(one.software or NOTHING, _SUMMARY - 16), f"{one.speed.value:.2f}")
                for one in found
            ]
        ),
        left=2,
        wraps=True,
        shown=_ROWS + 1,
        ranked=False,
        next_commands=tuple(next_commands),
    )


def runtime_in_short(
    found: Runtime,
    written: Mapping[str, Any],
    left: Mapping[str, float] | None = None,
    moved: Mapping[str, tuple[float, float]] | None = None,
) -> Answer:
    """A runtime: what it sets, and its figures; ``written`` is it as in its file, ``left`` the time
    that a fitted one gives each run over that which was measured, and ``moved`` its figures before
    and after.
    """
    said = [f"It sets {set_by(found) or 'nothing'}", *map(" ".join, of_host(found))]
    if left:
        worst = max(left, key=lambda name: abs(left[name] - 1))
        said = [
            f"Fitted to {counted(len(left), 'run')}",
            f"the worst is {human_percent(left[worst] - 1, signed=True)} off: {worst}",
        ]
    verdict = "; ".join(said)
    if moved:
        verdict += f". Moved: {', '.join(of_moved(moved, written))}"
    return Answer(
        f"{found.name}: {found.software}",
        f"{verdict}.",
        columns=("figure", "value", "spread", "rests on"),
        rows=tuple(figures_of(found, written)),
        shown=_ROWS,
        ranked=False,
        rest="the source of each figure (--detail)",
    )


def workload_in_short(graph: Graph, width: int, hw: Hardware | None = None) -> Answer:
    """A workload: what it needs with everything resident and when, in ``width`` columns, and the
    kinds of ops with the most time on a machine, or the most work.
    """
    peak = static_peak(graph)
    at = f", most at op {one_line(graph.ops[peak.op].name, _SUMMARY)}" if peak.op >= 0 else ""
    times = Counter[str]()
    counts, flops, accessed = Counter[str](), Counter[str](), Counter[str]()
    for op, ns in zip(
        graph.ops, op_durations(graph, hw) if hw is not None else [0] * len(graph.ops), strict=True
    ):
        times[op.kind] += ns
        counts[op.kind] += 1
        flops[op.kind] += op.flops
        accessed[op.kind] += op.bytes_accessed
    took = f" Its ops take {human_time(times.total())} on {hw.name}." if hw is not None else ""
    return Answer(
        f"{graph.name}: {counted(len(graph.ops), 'op')}, {counted(len(graph.tensors), 'tensor')}",
        f"{human_size(peak.bytes)} with everything resident{at}: {composition(peak.breakdown)}."
        f"{took}",
        columns=("kind", "ops", "work", "bytes accessed", *(["time"] if hw is not None else [])),
        rows=tuple(
            [
                (
                    kind,
                    f"{counts[kind]:,}",
                    human_flops(flops[kind]) if flops[kind] else NOTHING,
                    human_size(accessed[kind]),
                    *([human_time(times[kind])] if hw is not None else []),
                )
                for kind in sorted(counts, key=lambda k: (-times[k], -flops[k], -accessed[k], k))
            ]
        ),
        ranked=False,
        curve=tuple(str(memory_curve(graph, width, _HEIGHT)).rstrip("\n").split("\n"))
        if graph.ops
        else (),
        notes=tuple(map(str, notes(graph))),
    )
