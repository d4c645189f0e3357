"""The answer to whether a step fits a device: the sentence, the peak by module and kind, the largest
batch and sequence, and what would make it fit.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from hosim.base.groups import grouped, summed
from hosim.data.memory_fit import LargestFit, MemoryFit, ModulePeak
from hosim.data.runtime import RUNTIME
from hosim.data.seen_peaks import DOES_NOT_FIT
from hosim.io.models import Run
from hosim.plain_text import one_line
from hosim.report.printing import (
    NOTHING,
    OpenTable,
    multiple,
    open_table,
    paragraph,
    time_or_nothing,
)
from hosim.units import human_size

_MODULES = 3
"""So many modules have rows; the others are one."""
_KINDS = 3
"""So many kinds of tensors have columns."""
_NAME = 34


def memory_fit(fit: MemoryFit) -> RenderableType:
    """The answer in a sentence, then what it rests on, in at most 25 lines of 80 columns."""
    parts: list[RenderableType] = [
        paragraph(f"{fit.workload} on {fit.hardware}"),
        paragraph(f"{fit}.", *_beside(fit), style="bold" if _good(fit) else "bold red"),
        _modules(fit),
    ]
    if fit.largest:
        parts.append(paragraph(f"Largest that fits: {_largest_of(fit.largest)}."))
    if fit.remedies:
        parts += [_remedies(fit), paragraph(*_in_the_way(fit))]
        parts.append(paragraph(*_next(fit), wrapped=False))  # one line, to be copied
    return Group(*parts)


def _largest_of(found: tuple[LargestFit, ...]) -> str:
    if all([one.least == 0 for one in found]):
        fields = " or ".join([one.field for one in found])
        return f"no {fields} (weights and states alone need {human_size(found[0].needs_bytes)})"
    return ", ".join([f"{one.field} {one}" for one in found])


def _good(fit: MemoryFit) -> bool:
    return fit.verdict != DOES_NOT_FIT


def _beside(fit: MemoryFit) -> list[str]:
    """The memory of the allocator; without a runtime a line that it is not known."""
    if fit.seen is None:
        return (
            ["A runtime holds more than tensors; --runtime says how much (hosim runtime list)."]
            if _good(fit)
            else []
        )
    return [f"Allocated {fit.seen.allocated}, reserved {fit.seen.reserved}."]


def _modules(fit: MemoryFit) -> OpenTable:
    """Modules by kinds of tensors, the largest of both."""
    kinds = sorted(fit.by_kind, key=lambda kind: -fit.by_kind[kind])[:_KINDS]
    shown, rest = fit.by_module[:_MODULES], fit.by_module[_MODULES:]
    table = open_table("", "at the peak", "tensors", *[_KIND.get(kind, kind) for kind in kinds])
    starred = [one.module.split(".") for one in fit.by_module if "*" in one.module]
    heads = {parts[0] for parts in starred} if all([p.index("*") > 1 for p in starred]) else {""}
    whole = f"{heads.pop()}." if len(heads) == 1 else ""
    for one in shown:
        table.add_row(_called(one, whole), human_size(one.bytes), *_sizes(one.kinds, kinds))
    if rest:
        table.add_row(
            f"{len(rest)} others",
            human_size(sum([one.bytes for one in rest])),
            *_sizes(summed(pair for one in rest for pair in one.kinds.items()), kinds),
        )
    table.add_row("all", human_size(fit.peak_bytes), *_sizes(fit.by_kind, kinds), style="bold")
    return table


_KIND = {"optimizer_state": "states", "kv_cache": "cache"}
"""Kinds of tensors in a word."""


def _called(one: ModulePeak, whole: str) -> str:
    """The module without the name of the ``whole`` model, and how often it is there."""
    name = one_line(one.module.removeprefix(whole), _NAME)
    return f"{name}{f' ({one.count}x)' if one.count > 1 else ''}"


def _sizes(held: Mapping[str, int], kinds: list[str]) -> list[str]:
    return [human_size(held[kind]) if held.get(kind) else NOTHING for kind in kinds]


def _remedies(fit: MemoryFit) -> OpenTable:
    sizes = [one.peak_bytes if one.seen is None else one.seen.device.bytes for one in fit.remedies]
    return open_table(
        "",
        *("what needs less", "verdict", "memory", "step", "slower"),
        rows=[
            (
                one.name,
                one.verdict,
                NOTHING if size is None else human_size(size),
                time_or_nothing(one.makespan_ns),
                multiple(one.slowdown),
            )
            for one, size in zip(fit.remedies, sizes, strict=True)
        ],
    )


def _in_the_way(fit: MemoryFit) -> list[str]:
    """The reasons why a remedy has no step, each once."""
    return [
        f"{', '.join(names)}: {why}."
        for why, names in grouped((one.why, one.name) for one in fit.remedies if one.why).items()
    ]


def _next(fit: MemoryFit) -> list[str]:
    """The command that goes on from the answer."""
    best, workload = fit.best, asked_again(fit)
    if not fit.remedies or workload is None:
        return []
    if best is None:
        return ["Nothing of this fits; a smaller batch, sequence or model, or more devices may."]
    settings = "".join([f":{key}={_text(value)}" for key, value in best.settings.items()])
    under = f" --runtime {fit.runtime}" if fit.runtime is not None else ""
    where = f"-H {fit.hardware}{under}"
    return [f"next: hosim compare-policies {workload}{settings} {where}"]


def asked_again(fit: MemoryFit) -> str | None:
    """The workload as a command takes it; ``None`` for one that has no such name."""
    recipe = fit.recipe
    if not isinstance(recipe.get("model"), str):
        return None
    usual = asdict(Run())
    settings = {
        key: value
        for key, value in recipe.items()
        if key not in ("model", RUNTIME) and (key == "phase" or usual.get(key) != value)
    }
    if any(isinstance(value, Mapping) for value in settings.values()):
        return None
    return ":".join(
        [recipe["model"], *[f"{key}={_text(value)}" for key, value in settings.items()]]
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def memory_fit_to_dict(fit: MemoryFit) -> dict[str, Any]:
    """The answer as plain data: sizes in bytes, times in nanoseconds."""
    return {
        "format": "hosim.fits/1",
        "workload": fit.workload,
        "hardware": fit.hardware,
        "runtime": fit.runtime,
        "verdict": fit.verdict,
        "peak_bytes": fit.peak_bytes,
        "usable_bytes": fit.usable_bytes,
        "seen_peaks": None if fit.seen is None else asdict(fit.seen),
        "makespan_ns": fit.makespan_ns,
        "at": fit.at,
        "by_kind": dict(fit.by_kind),
        "by_module": [
            {"module": one.module, "count": one.count, "bytes": one.bytes, "kinds": dict(one.kinds)}
            for one in fit.by_module
        ],
        "largest": [asdict(one) for one in fit.largest],
        "remedies": [{**asdict(one), "settings": dict(one.settings)} for one in fit.remedies],
    }
