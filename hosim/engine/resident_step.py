"""The step with everything resident: what budgets are shares of, and what slowdowns are against."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hosim.analysis import canonical, idle_below, static_peak
from hosim.analysis.costmodel import known_on_device, on_the_device
from hosim.cache_plan import Plan
from hosim.data.draws import LaterDraws
from hosim.engine.replay import replay
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import LARGEST


@dataclass(frozen=True)
class ResidentStep:
    """The duration of a step with everything in the device tier, and its peak there, in bytes and
    by kind; ``draws`` are those of its replay.
    """

    makespan_ns: int
    peak_bytes: int
    breakdown: Mapping[str, int]
    draws: LaterDraws | None = field(default=None, compare=False, repr=False)


def resident_step(graph: Graph, hardware: Hardware) -> ResidentStep:
    """The replay with everything that ops use in the device tier from the start, as if that were
    large enough, and all ops on the device.

    For a tensor in parts that is all of them (:attr:`hosim.graph.Tensor.of`): another step uses the
    others.

    Where nothing says how long an op takes there, :func:`hosim.analysis.costmodel.on_the_device.base_line`
    does. It is kept with the graph until another machine is given.
    """
    return graph.derived_on(hardware, _replayed)


def _replayed(graph: Graph, hardware: Hardware) -> ResidentStep:
    graph = graph.derived_on(hardware, _base)
    used = {
        tensor.of for tensor, users in zip(graph.tensors, graph.users, strict=True) if users
    } - {""}
    idle = {t for t in idle_below(graph, hardware.device_tier) if graph.tensors[t].of not in used}
    result = replay(
        Plan(
            graph,
            "all resident",
            initial={t: (hardware.device_tier,) for t in graph.initial if t not in idle},
        ),
        with_room(graph, hardware),
    )
    tier = hardware.device_tier
    return ResidentStep(
        result.makespan_ns or 0,
        result.peak_bytes.get(tier, 0),
        dict(result.peak_breakdown.get(tier, {})),
        result.draws,
    )


def with_room(graph: Graph, hardware: Hardware) -> Hardware:
    """The machine each of whose tiers could hold all tensors and workspaces at once. Raises
    :class:`InputError` if these are more bytes than a tier can have.
    """
    everything = sum(tensor.size_bytes for tensor in graph.tensors.each()) + sum(
        op.workspace_bytes for op in graph.ops.each()
    )
    if everything > LARGEST:
        raise InputError(
            "its tensors and workspaces take more than 2^63-1 B together", where=graph.name
        )
    tiers = [replace(t, capacity_bytes=max(everything, t.capacity_bytes)) for t in hardware.tiers]
    return replace(hardware, tiers=tuple(tiers))


def _base(graph: Graph, hardware: Hardware) -> Graph:
    """The step with its ops on the device: as its builder makes it, and else as its ops say."""
    if not graph.elsewhere:
        return graph
    again = _built_again(graph)
    timed = again is not None and all(
        [op.processor or known_on_device(op, hardware) for op in again.ops]
    )
    return again if again is not None and timed else on_the_device(graph, hardware)


def _built_again(graph: Graph) -> Graph | None:
    """Return the graph that its builder makes without other processors; ``None`` if the graph is
    not just what a builder made.
    """
    parameters = graph.meta.get("builder")
    if not isinstance(parameters, Mapping):
        return None
    from hosim.io.models import PROCESSORS, build

    try:
        same = build(graph.name, parameters)
        bare = build(
            graph.name,
            {key: value for key, value in parameters.items() if key not in (*PROCESSORS, "update")},
        )
    except InputError:  # a file may say anything
        return None
    return bare if canonical(same) == graph.derived(canonical) else None


def most_needed(graph: Graph, hardware: Hardware) -> int:
    """Bytes of the device tier beyond which no plan gains by more: the peak with everything
    resident, where ops run as they do.
    """
    return max(
        1,
        static_peak(graph, hardware.device_tier).bytes
        if graph.elsewhere
        else resident_step(graph, hardware).peak_bytes,
    )
