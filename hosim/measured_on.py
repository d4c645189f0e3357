"""The machine on which the durations of a graph were measured, and the machines that they hold on.

A recording names its device, and ``meta["measured_on"]`` of a workload the device or the profile.
One rule maps such names to profiles (:func:`named_profiles`). On another machine the durations say
nothing, so a replay there is refused (:func:`check_measured_on`); :mod:`hosim.analysis.costmodel.rescaled`
scales them. Durations that name no machine are replayed as they are.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import of_all

MEASURED_ON = "measured_on"
"""The key of a graph's ``meta`` for the device, or the profile, on which its durations were
measured.
"""

RESCALED_FROM = "rescaled_from"
"""The key of a graph's ``meta`` for the device from which its durations were rescaled to the
machine that ``measured_on`` names.
"""

_OTHER_HOSTS = frozenset(("g10", "cxl"))
"""In names of profiles whose host is no usual one of their device."""

_OTHER_DEVICES = frozenset(("laptop", "mobile", "pcie", "nvl", "ti", "super", "d"))
"""Words of a device's name that make it another device than the one without them."""

_MEMORY = re.compile(r"\d+gb?")
_HOST_MEMORY = frozenset(("480gb", "480g"))
"""The memory that a GH200 names is its host's."""


def named_profiles(
    device: str | None, known: Iterable[str], *, other_hosts: bool = False
) -> dict[str, int]:
    """The profiles of a device among those ``known``, by name, each with how many words of the
    device's name it has.

    A profile is named after its device up to the first word with a digit (``rtx-4090``), and then
    after its memory, form or host. One that names another memory, or a form of the device that it
    is not, is for another one. ``other_hosts``: also those with an unusual host.

    >>> named_profiles(
    ...     "NVIDIA H100 80GB HBM3", ["h100-80gb-sxm", "h100-96gb", "h100-80gb-cxl", "l40s"]
    ... )
    {'h100-80gb-sxm': 2}
    >>> named_profiles("NVIDIA GeForce RTX 4090 Laptop GPU", ["rtx-4090"])
    {}
    """
    words = set(re.split(r"[\s_-]+", (device or "").lower()))
    memory = {word for word in words - _HOST_MEMORY if _MEMORY.fullmatch(word)}
    found = {}
    for name in known:
        parts = [part for part in name.lower().split("-") if part not in _OTHER_HOSTS]
        model = next((k for k, part in enumerate(parts) if any(map(str.isdigit, part))), None)
        if (
            model is None
            or not words.issuperset(parts[: model + 1])
            or (not other_hosts and len(parts) < len(name.split("-")))
        ):
            continue
        its_memory = {part for part in parts[model + 1 :] if _MEMORY.fullmatch(part)}
        if (words & _OTHER_DEVICES) <= set(parts) and not (
            memory and its_memory and not memory & its_memory
        ):
            found[name] = len(words.intersection(parts))
    return found


def profile_of(device: str) -> str | None:
    """The shipped profile of a device, or of that name; ``None`` unless there is exactly one.

    >>> (
    ...     profile_of("NVIDIA H100 80GB HBM3"),
    ...     profile_of("v100"),
    ...     profile_of("NVIDIA GeForce RTX 2080 Ti"),
    ... )
    ('h100-80gb-sxm', 'v100-32gb', None)
    """
    from hosim.shipped import ALIASES, hardware

    shipped = hardware()
    name = ALIASES.get(device.lower(), device)
    if name in shipped:
        return name
    found = named_profiles(device, shipped)
    best = [name for name, count in found.items() if count == max(found.values())]
    return best[0] if len(best) == 1 else None


@lru_cache(64)
def is_for(name: str, source: str, device: str) -> bool:
    """Return whether a profile, of this name and this ``source``, is for a device: one of the two
    names it, or the profile of it by its name.
    """
    from hosim.shipped import hardware

    if name == device or name == profile_of(device) or device.lower() in source.lower():
        return True
    own = named_profiles(device, [name], other_hosts=True)
    return bool(own) and own[name] >= max(named_profiles(device, hardware()).values(), default=1)


def measured_on(graph: Graph) -> str | None:
    """The device or the profile on which the graph's durations were measured; ``None`` if it does
    not say, or has no durations.
    """
    device = graph.meta.get(MEASURED_ON)
    return device if isinstance(device, str) and device and graph.derived(given_durations) else None


def given_durations(graph: Graph) -> int:
    """Return the number of ops that have a duration of their own; 0 if none of these takes any
    time.
    """
    if not any([op.duration_ns for op in graph.ops.alike]):
        return 0
    return sum(graph.ops.column(lambda op: op.duration_ns is not None))


def check_measured_on(graph: Graph, hardware: Hardware) -> None:
    """Raise :class:`InputError` if the durations of the graph were measured on another machine than
    ``hardware``.
    """
    device = measured_on(graph)
    if device is not None and not is_for(hardware.name, hardware.source, device):
        raise InputError(
            f"{_whose(graph)} were measured on {device}, and {hardware.name} is another machine; "
            f"{_answers(device)}",
            source=graph.name,
        )


def check_varied(graph: Graph, field: str, *, processor: str) -> None:
    """Raise :class:`InputError` for varying a rate of a processor, by its ``field``, of whose ops
    some have measured durations.
    """
    device = measured_on(graph)
    if device is not None and any(
        [op.duration_ns is not None for op in graph.ops.each() if op.processor == processor]
    ):
        raise InputError(
            f"{_whose(graph)} were measured on {device}, and do not follow from it; "
            f"{_answers(device)}",
            source=field,
        )


def times_line(graph: Graph) -> str | None:
    """Return a note for readers of figures on the durations that the graph has, as one line;
    ``None`` if it has none.
    """
    if not graph.derived(given_durations):
        return None
    device, first = measured_on(graph), graph.meta.get(RESCALED_FROM)
    of = _of(graph)
    if device is None:
        return f"times as given for {of}"
    if first is not None:
        return (
            f"times for {of} are those measured on {first}, by the ratio of the cost model's "
            f"times for it and for {device}"
        )
    return f"times for {of} are those measured on {device}"


def _of(graph: Graph) -> str:
    return of_all(graph.derived(given_durations), len(graph.ops), "op")


def _whose(graph: Graph) -> str:
    return f"the durations of {_of(graph)}"


def _answers(device: str) -> str:
    """Return what would answer."""
    rescale = "--rescale (rescale=True) scales them by the cost model"
    if profile_of(device) is None:
        rescale = "no shipped profile is for that device, so they cannot be rescaled"
    return (
        "'hosim calibrate' fits a profile to recordings, and its source names their device; "
        f"{rescale}"
    )
