"""Machines, workloads and policies as tables for a terminal."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table

from hosim.analysis import static_peak
from hosim.analysis.costmodel import ORIGINS, op_durations, time_origins
from hosim.base.groups import grouped, summed
from hosim.data.runtime import Runtime
from hosim.graph import KINDS, Graph
from hosim.hardware import Compute, Hardware
from hosim.io.models import ListedModel
from hosim.notes import each_once, notes, sentence
from hosim.plain_text import counted, printable
from hosim.report.drawn import memory_curve
from hosim.report.of_replays import composition
from hosim.report.printing import NOTHING, OpenTable, WholeFigures, open_table, paragraph, percent
from hosim.units import (
    human_clock,
    human_compute,
    human_flops,
    human_percent,
    human_rate,
    human_size,
    human_time,
)


def runtimes(found: Sequence[Runtime]) -> Table:
    """One row per runtime: how fast its kernels are in a whole step, what it sets, and of what
    software it is.
    """
    return open_table(
        "Runtimes",
        "name",
        "speed",
        "sets",
        "software",
        left=1,
        spare=("software",),
        rows=[
            (one.name, f"{one.speed.value:.2f}", set_by(one) or NOTHING, one.software or NOTHING)
            for one in found
        ],
    )


def runtime(
    found: Runtime,
    written: Mapping[str, Any],
    left: Mapping[str, float] | None = None,
    moved: Mapping[str, tuple[float, float]] | None = None,
) -> RenderableType:
    """A runtime: what it sets, and each of its figures with its spread and source; ``written`` is
    it as in its file, ``left`` the time that a fitted one gives each run over that which was
    measured, and ``moved`` its figures before and after.
    """
    table = open_table(
        "", "figure", "value", "spread", "rests on", left=1, rows=figures_of(found, written)
    )
    lines = [f"{found.name}: {found.software}", f"sets       {set_by(found) or NOTHING}"]
    lines += [f"{verb:<10} {what}" for verb, what in of_host(found)]
    lines += [f"moved      {', '.join(of_moved(moved, written))}"] if moved else []
    sources = [f"{name}: {figure.source}" for name, figure in found.known.items() if figure.source]
    sources += [f"Source: {found.source.strip()}"] if found.source else []
    runs = open_table(
        "What is left",
        "run",
        "fitted over measured",
        left=1,
        rows=[
            (name, human_percent(ratio - 1, signed=True)) for name, ratio in (left or {}).items()
        ],
    )
    after = [paragraph(*sources)] * bool(sources) + [runs] * bool(left)
    return Group(paragraph(*lines), table, *after)


def figures_of(found: Runtime, written: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Each figure of a runtime: its name, what is ``written``, its spread and what it rests on."""
    return [
        (
            name,
            str(written[name]["value"]),
            f"{figure.spread:.2f}",
            "one measurement" if figure.one_row else NOTHING,
        )
        for name, figure in found.known.items()
    ]


def of_moved(moved: Mapping[str, tuple[float, float]], written: Mapping[str, Any]) -> list[str]:
    """By how much each figure of a fitted runtime moved; for one that stays the spread changed."""
    found = []
    for name, (before, after) in moved.items():
        value = written[name]["value"] if name in written else after
        by = human_percent(after / before - 1, signed=True) if before else "from nothing"
        found.append(f"{name} {by} to {value}" if after != before else f"{name} stays at {value}")
    return found


def of_host(found: Runtime) -> list[tuple[str, str]]:
    """The transfers that a runtime's host waits for, those that it pins memory for, and what it
    launches as one.
    """
    once = ("once",) if found.pins_once else ()
    segments = ("ops between cache ops as one",) if found.segments else ()
    said = ("waits for", found.blocks), ("pins for", (*found.pins, *once)), ("launches", segments)
    return [(verb, ", ".join(what)) for verb, what in said if what]


def set_by(one: Runtime) -> str:
    """The settings of a workload that a runtime makes, as in a spec."""
    return ", ".join(
        [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in one.options.items()
        ]
    )


def op_times(graph: Graph, hardware: Hardware, every: bool = False) -> Table:
    """A row for each kind of op, the longest first, or for ``every`` op in listed order."""
    durations, origins = op_durations(graph, hardware), time_origins(graph, hardware)
    if every:
        return open_table(
            f"Times on {hardware.name}{under_load(hardware)}",
            "op",
            "kernel",
            "sizes",
            "time",
            "from",
            left=3,
            rows=[
                (
                    op.name,
                    op.kernel or NOTHING,
                    " ".join(map(str, op.sizes)) or NOTHING,
                    human_time(ns),
                    origin,
                )
                for op, ns, origin in zip(graph.ops, durations, origins, strict=True)
            ],
        )
    times = grouped(
        ((op.kind, op.kernel, origin), ns)
        for op, ns, origin in zip(graph.ops, durations, origins, strict=True)
    )
    return open_table(
        f"Times on {hardware.name}{under_load(hardware)}",
        *("kind", "kernel", "from", "ops", "time"),
        left=3,
        rows=[
            (kind, kernel or NOTHING, origin, f"{len(ns):,}", human_time(sum(ns)))
            for (kind, kernel, origin), ns in sorted(
                times.items(), key=lambda item: (-sum(item[1]), item[0])
            )
        ],
    )


def under_load(hardware: Hardware) -> str:
    """Return the note after a clock where the processor sustains a lower one, at which peaks count;
    else nothing.
    """
    figures = hardware.compute.processor
    return (
        f"; peaks count at the {human_clock(figures.sustained_hz)} that it sustains"
        if figures is not None and figures.sustained_hz
        else ""
    )


def origin_lines(graph: Graph, hardware: Hardware) -> list[str]:
    """Return the shares of the ops' time by origin, in one line; none for a profile without a
    processor, where all is measured or guessed.
    """
    if hardware.compute.processor is None:
        return []
    times = summed(zip(time_origins(graph, hardware), op_durations(graph, hardware), strict=True))
    whole = sum(times.values()) or 1
    return [
        "Times of ops: "
        + ", ".join(
            f"{origin} {percent(times[origin], whole)}" for origin in ORIGINS if times.get(origin)
        )
        + "."
    ]


class Listed(Protocol):
    """A policy as the table of policies shows it."""

    @property
    def name(self) -> str:
        """Its name in ``--policies``."""

    @property
    def summary(self) -> str:
        """One line."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Defaults by parameter."""

    @property
    def models(self) -> str:
        """Return whose system it models; empty if it does not say."""

    @property
    def leaves_out(self) -> str:
        """Return the parts of that which it does not model."""


def machines(profiles: Sequence[Hardware], aliases: Mapping[str, str]) -> Table:
    """One row per machine: compute (bf16, else fp16, else the largest), the device tier, its
    fastest channels in and out, the other tiers.

    ``aliases`` are short names, with the name that each stands for.
    """
    names = ("name", "short", "compute", "memory", "bandwidth", "way in", "way out", "other tiers")
    table = open_table("Hardware", *names, left=2, spare=("other tiers", "short", "bandwidth"))
    for hw in profiles:
        device = hw.device
        ways = (
            [c.bandwidth_bytes_per_s for c in hw.channels if c.destination == hw.device_tier],
            [c.bandwidth_bytes_per_s for c in hw.channels if c.source == hw.device_tier],
        )
        table.add_row(
            hw.name,
            next((short for short, name in aliases.items() if name == hw.name), NOTHING),
            peak_compute(hw),
            f"{device.name} {human_size(device.capacity_bytes)}",
            human_rate(device.bandwidth_bytes_per_s),
            *(human_rate(max(way)) if way else NOTHING for way in ways),
            ", ".join(
                f"{t.name} {human_size(t.capacity_bytes)}" for t in hw.tiers if t is not device
            )
            or NOTHING,
        )
    return table


def peak_compute(hw: Hardware) -> str:
    """The peak of a machine in bf16, else in fp16, else the largest."""
    peaks = hw.compute.peak_flops
    dtype = next(
        (known for known in ("bf16", "fp16") if known in peaks),
        max(peaks, key=lambda dtype: peaks[dtype], default=""),
    )
    return f"{human_compute(peaks[dtype])} {dtype}" if dtype else NOTHING


def _fabrics(hw: Hardware) -> OpenTable:
    return open_table(
        "Fabrics",
        *("fabric", "scope", "shared by", "bandwidth"),
        left=3,
        rows=[
            (
                fabric.name,
                fabric.scope,
                ", ".join([*fabric.channels, *(["collectives"] if fabric.collectives else [])]),
                human_rate(fabric.bandwidth_bytes_per_s),
            )
            for fabric in hw.fabrics
        ],
    )


def machine(hw: Hardware) -> RenderableType:
    """Everything in a profile: compute, tiers, channels, fabrics, and the sources of its
    figures.
    """
    lines = [
        f"{hw.name}: {counted(hw.devices, 'device')}{_hosts(hw)}",
        *_compute("compute", hw.compute),
        *_processor(hw),
        *(
            line
            for tier in hw.tiers
            if tier.compute is not None
            for line in _compute(f"of {printable(tier.name)}", tier.compute)
        ),
        f"runtime    {human_time(hw.inspect_ns)} of inspection an op",
    ]
    tiers = open_table(
        "Tiers",
        "tier",
        "scope",
        "capacity",
        "bandwidth",
        left=2,
        rows=[
            (
                tier.name,
                tier.scope,
                human_size(tier.capacity_bytes),
                human_rate(tier.bandwidth_bytes_per_s),
            )
            for tier in hw.tiers
        ],
    )
    channels = open_table(
        "Channels",
        *("channel", "from", "to", "bandwidth", "latency", "engines"),
        left=3,
        rows=[
            (
                c.name,
                c.source,
                c.destination,
                human_rate(c.bandwidth_bytes_per_s),
                human_time(c.latency_ns),
                str(c.engines),
            )
            for c in hw.channels
        ],
    )
    parts: list[RenderableType] = [paragraph(*lines, space=True), tiers, channels]
    if hw.fabrics:
        parts.append(_fabrics(hw))
    if uneven := _uneven(hw):
        parts.append(paragraph(*uneven, space=True))
    if hw.source:
        parts.append(paragraph(*f"Source: {hw.source.strip()}".split("\n")))
    return Group(*parts)


def _compute(label: str, compute: Compute) -> list[str]:
    """The peaks of a processor, and what kernels reach of them."""
    peaks = (
        ", ".join(f"{dtype} {human_compute(peak)}" for dtype, peak in compute.peak_flops.items())
        or "none"
    )
    return [
        f"{label:<10} {peaks}; {percent(compute.efficiency, 1)} of it reached, "
        f"{human_time(compute.launch_ns)} to launch an op",
        *(
            f"           {', '.join(f'{percent(of[dtype], 1)} of {dtype}' for dtype in of)} "
            f"reached by {kind}"
            for kind, of in compute.efficiency_of.items()
        ),
    ]


def _processor(hw: Hardware) -> list[str]:
    figures = hw.compute.processor
    if figures is None:
        return []
    return [
        f"processor  {figures.multiprocessors} multiprocessors at "
        f"{human_clock(figures.clock_hz)}{under_load(hw)}"
    ]


def _hosts(hw: Hardware) -> str:
    return "" if hw.devices_per_host is None else f", {hw.devices_per_host} on a host"


def _uneven(hw: Hardware) -> list[str]:
    """Figures that differ between transfers, one line for each channel or tier that has some."""
    lines = []
    for c in hw.channels:
        parts = [f"{human_rate(rate)} for {human_size(size)}" for size, rate in c.curve]
        if c.pageable_bytes_per_s is not None:
            parts.append(f"{human_rate(c.pageable_bytes_per_s)} for pageable memory")
        parts += [f"{human_rate(rate)} beside {other}" for other, rate in c.beside]
        parts += [f"in the queue {c.queue}"] if c.queue is not None else []
        lines += [f"{c.name}: {', '.join(parts)}"] if parts else []
    for tier in hw.tiers:
        parts = [f"pageable for {', '.join(tier.pageable)}"] if tier.pageable else []
        if tier.pin_ns:
            parts.append(
                f"{human_time(tier.pin_ns)} to pin a tensor, "
                f"{'from' if tier.pin_pool else 'without'} a pool"
            )
        if not tier.dma:
            parts.append("without DMA: ops stand still while copies flow")
        lines += [f"{tier.name}: {'; '.join(parts)}"] if parts else []
    return lines


def workload_line(graph: Graph) -> str:
    """A workload in one line: its size, and what it holds with everything resident where ops run
    one at a time in listed order.
    """
    peak = static_peak(graph)
    held = f"peak in listed order {human_size(peak.bytes)} ({composition(peak.breakdown)})"
    return (
        f"{graph.name}: {counted(len(graph.ops), 'op')}, "
        f"{counted(len(graph.tensors), 'tensor')}, {held}"
    )


def workload_figures(graph: Graph) -> dict[str, Any]:
    """A workload's size, work and memory with everything resident and ops in listed order, exactly:
    FLOP and bytes.
    """
    peak = static_peak(graph)
    return {
        "name": graph.name,
        "ops": len(graph.ops),
        "tensors": len(graph.tensors),
        "flops": sum(op.flops for op in graph.ops),
        "bytes": {
            kind: size
            for kind in KINDS
            if (size := sum(t.size_bytes for t in graph.tensors if t.kind == kind))
        },
        "listed_order_peak_bytes": peak.bytes,
        "listed_order_peak_breakdown": dict(peak.breakdown),
        **({"notes": said} if (said := each_once(notes(graph))) else {}),
    }


def policy_figures(policy: Listed, package: str) -> dict[str, Any]:
    """A policy with its package, its parameters' defaults, and what it models."""
    return {
        "name": policy.name,
        "package": package,
        "summary": policy.summary,
        "parameters": dict(policy.parameters),
        "models": policy.models,
        "leaves_out": policy.leaves_out,
    }


def workloads(graphs: Iterable[Graph]) -> Table:
    """One row per workload: its size, work and memory with everything resident and ops in listed
    order.
    """
    names = "name", "ops", "tensors", "work", "peak in\nlisted order", "of which"
    table = open_table("Workloads", *names, spare=names[-1:], prose=names[-1:])
    for graph in graphs:
        peak = static_peak(graph)
        table.add_row(
            graph.name,
            f"{len(graph.ops):,}",
            f"{len(graph.tensors):,}",
            _work(sum(op.flops for op in graph.ops)),
            human_size(peak.bytes),
            composition(peak.breakdown),
        )
    return table


def models(listed: Iterable[ListedModel]) -> RenderableType:
    """One row per model that a builder has, what is left out of the published ones, and how to name
    one as a workload.
    """
    names = "name", "layers", "parameters", "weights in bf16", "runs"
    table = open_table("Models", *names, spare=("layers",), prose=("runs",))
    models = tuple(listed)
    for model in models:
        millions = round(model.parameters / 10**6)
        table.add_row(
            model.name,
            str(model.layers),
            f"{millions} million" if millions < 1000 else f"{model.parameters / 10**9:.2f} billion",
            human_size(model.weights_bytes),
            ", ".join(model.phases),
        )
    left_out = grouped((line, model.name) for model in models for line in model.left_out)
    lines = [f"Not modelled of {', '.join(of)}: {line}." for line, of in left_out.items()]
    return Group(
        table,
        paragraph(*lines, space=True),
        paragraph(
            "A workload of one is its name with parameters of its builder: "
            "llama-3.1-8b:phase=decode:batch=8."
        ),
    )


def model_figures(model: ListedModel) -> dict[str, Any]:
    """A model for ``--json``."""
    figures = {
        "name": model.name,
        "layers": model.layers,
        "parameters": model.parameters,
        "weights_bytes": model.weights_bytes,
    }
    return {**figures, "runs": list(model.phases), "left_out": list(model.left_out)}


def _work(flops: int) -> str:
    return human_flops(flops) if flops else NOTHING


def workload(graph: Graph, width: int = 100) -> RenderableType:
    """A workload's live-memory curve (``width`` columns), its tensors by kind, its ops by kind (the
    most work first), and its source.
    """
    peak = static_peak(graph)
    tensors = open_table("Tensors", "kind", "tensors", "bytes", "at the peak")
    for kind in KINDS:
        sizes = [t.size_bytes for t in graph.tensors if t.kind == kind]
        if sizes:
            tensors.add_row(
                kind.replace("_", " "),
                f"{len(sizes):,}",
                human_size(sum(sizes)),
                human_size(peak.breakdown.get(kind, 0)),
            )
    counts, flops, accessed = Counter[str](), Counter[str](), Counter[str]()
    for op in graph.ops:
        counts[op.kind] += 1
        flops[op.kind] += op.flops
        accessed[op.kind] += op.bytes_accessed
    ops = open_table(
        "Ops",
        "kind",
        "ops",
        "work",
        "bytes accessed",
        rows=[
            (kind, f"{counts[kind]:,}", _work(flops[kind]), human_size(accessed[kind]))
            for kind in sorted(counts, key=lambda kind: (-flops[kind], -accessed[kind], kind))
        ],
    )
    at = f", first reached at op {graph.ops[peak.op].name}" if peak.op >= 0 else ""
    parts: list[RenderableType] = [
        WholeFigures(f"{printable(workload_line(graph) + at)}\n"),
        memory_curve(graph, width),
        tensors,
        ops,
    ]
    parts += [paragraph(sentence(str(note))) for note in notes(graph)]
    about = [
        f"{key}: {value}"
        for key, value in graph.meta.items()
        if isinstance(value, str | int | float)
    ]
    if about:
        parts.append(paragraph(*about))
    return Group(*parts)


def policies(listed: Sequence[Listed], packages: Sequence[str]) -> RenderableType:
    """One row per policy: name, parameters with their defaults (none shown if it follows from the
    question), summary; then what they model.

    ``packages`` are those that the policies come from; they are shown if there is more than one.
    """
    several = len(set(packages)) > 1
    columns = ("package", "parameters", "summary")[not several :]
    table = open_table("Policies", "policy", *columns, prose=columns)
    for policy, package in zip(listed, packages, strict=True):
        parameters = ", ".join(
            key if value is None else f"{key}={value}" for key, value in policy.parameters.items()
        )
        table.add_row(
            policy.name, *([package] if several else []), parameters or NOTHING, policy.summary
        )
    columns = "models", "does not model"
    systems = open_table(
        "Whose systems they model",
        "policy",
        *columns,
        prose=columns,
        rows=[
            (policy.name, policy.models, policy.leaves_out or NOTHING)
            for policy in listed
            if policy.models
        ],
    )
    return Group(table, systems) if systems.row_count else table
