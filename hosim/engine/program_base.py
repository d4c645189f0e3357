"""The part of a program table that is the same for every plan: the arrays of a graph on a machine,
and the rates of all that can flow there.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel import MemoryUse, copy_uses, op_durations, with_memories
from hosim.analysis.costmodel.transfers import (
    NS_PER_S,
    bytes_per_s_over_links,
    chunks_of,
    crossed_fabrics,
    pin_ns,
    sent_bytes,
)
from hosim.engine.cells import flags, ints, longs, made_cells
from hosim.engine.event_loop import GraphLoop
from hosim.engine.flow_table import TOO_LARGE, FlowTable, UncoveredError
from hosim.engine.hops import has_routes
from hosim.engine.ledger import LEDGER_KINDS
from hosim.engine.loop_cells import LOW
from hosim.engine.loop_graph import LoopGraph
from hosim.engine.transfer_rates import TransferRates
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.units import LARGEST

LONGEST_NS, MOST_BYTES = 1 << 60, 1 << 60
"""The largest sum of times and of bytes of all ops that is counted exactly."""

_KIND = {kind: k for k, kind in enumerate(LEDGER_KINDS)}


class ProgramBase:
    """The arrays of a graph on a machine, which all tables of its plans share. ``cells`` are not to
    be changed.

    ``machine`` is the one of copies (:func:`hosim.analysis.costmodel.memory_traffic.machine_of_copies`), of
    whose equal devices one stands for all. ``durations`` are nanoseconds by op, ``uses`` the ops
    that copies slow down, ``sent`` the bytes of the collectives that cross fabrics, by op. What the
    loop does not cover raises :class:`~hosim.engine.flow_table.UncoveredError`.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Hardware,
        durations: Sequence[int],
        uses: Mapping[int, MemoryUse],
        sent: Mapping[int, int],
    ) -> None:
        self.graph, self.machine, self.durations, self.sent = graph, machine, durations, sent
        _check_sums(graph, machine, durations)
        rates = TransferRates(graph, machine, bool(sent))
        self.class_of = [rates.classes_of(c) for c in range(len(machine.channels))]
        self.class_of_chunk = _classes_of_chunks(graph, machine, rates)
        fastest = bytes_per_s_over_links(machine) or 1
        most = {
            i: min(-(-size * NS_PER_S // durations[i]), fastest)
            for i, size in sent.items()
            if durations[i]
        }
        sends = {i: rates.collective(rate) for i, rate in most.items()}
        ops, where, device = (
            len(graph.ops),
            {i: tier_of(graph.ops[i], machine) for i in graph.elsewhere},
            machine.device_tier,
        )
        engines = sum(_engines(machine))
        crossing = (
            sum([fabric.collectives for fabric in crossed_fabrics(machine)]) * len(graph.streams)
            if sends
            else 0
        )
        self.flows = FlowTable(
            rates,
            engines + crossing,
            {i: use for i, use in uses.items() if i not in sent},
            where,
            device,
            durations,
        )
        self.best = [rates.alone(k) * self.flows.scale for k in range(len(rates.classes))]
        volumes = {i: self.flows.scaled(rate * durations[i]) for i, rate in most.items()}
        self.cells = graph_cells(graph, durations) | {
            "tiers": len(machine.tiers),
            "device": machine.tier_index[device],
            "where": ints(
                _by_op(
                    ops,
                    {i: machine.tier_index[tier] for i, tier in where.items()},
                    machine.tier_index[device],
                )
            ),
            "elsewhere": int(bool(graph.elsewhere)),
            "channels": len(machine.channels),
            "engines": engines,
            "slots": engines + (len(graph.streams) if sends else 0),
            "send_class": ints(_by_op(ops, sends, -1)),
            **_limbs_sent(ops, volumes),
            **self._machine_cells(),
        }

    def _machine_cells(self) -> dict[str, Any]:
        machine, flows = self.machine, self.flows
        names = [channel.name for channel in machine.channels]
        below = [(tier.name, kind) for tier in machine.tiers for kind in LEDGER_KINDS]
        return {
            "classes": flows.classes,
            "best": longs([min(rate, LARGEST) for rate in self.best]),
            "paces": flows.paces,
            "slot_from": ints(accumulate(_engines(machine), initial=0)),
            "queue_of": ints([names.index(machine.queue_of[name]) for name in names]),
            "latency": longs([channel.latency_ns for channel in machine.channels]),
            "pin": longs(
                [
                    0 if tier == machine.device_tier else pin_ns(machine, tier, kind)
                    for tier, kind in below
                ]
            ),
            "pooled": ints([int(tier.pin_pool) for tier in machine.tiers]),
            "pace_of": ints(_by_op(len(self.durations), flows.pace_of, -1)),
            "launch": longs([use.launch_ns for use in flows.uses]),
            "whole_high": longs([whole >> 62 for whole in flows.wholes]),
            "whole_low": longs([whole & LOW for whole in flows.wholes]),
        }


def _classes_of_chunks(
    graph: Graph, machine: Hardware, rates: TransferRates
) -> dict[tuple[int, int, str], int]:
    """The flow class of each chunk that a route may have (rule 7), by channel, bytes and kind of the
    tensor.
    """
    if not has_routes(machine):
        return {}
    chunks = {
        (size, tensor.kind)
        for tensor in graph.tensors.alike
        for size in set(chunks_of(machine, tensor.size_bytes))
    }
    return {
        (c, *chunk): rates.class_of(c, *chunk)
        for c, chunk in product(range(len(machine.channels)), sorted(chunks))
    }


def _engines(machine: Hardware) -> list[int]:
    """The engines of each channel that it shares with no channel before it (rule 24)."""
    return [c.engines if machine.queue_of[c.name] == c.name else 0 for c in machine.channels]


def _limbs_sent(ops: int, volumes: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """The volumes of collectives, by op, in two limbs; nothing where none sends."""
    return {
        f"send_{limb}": longs(
            _by_op(ops if volumes else 0, {i: of[k] for i, of in volumes.items()}, code="q")
        )
        for k, limb in enumerate(("high", "low"))
    }


def one_for_all(hardware: Hardware) -> bool:
    """Return whether one device may stand for all of several: they have equal parts of everything,
    as there are equally many on each host.

    Equal devices with equal parts of every link have equal max-min rates, so that they do the same
    as long as each step is possible for all of them: until room in a shared tier is too small for
    all (:class:`UncoveredError`). There the order among them decides.
    """
    return hardware.devices == 1 or hardware.devices % hardware.sharers("host") == 0


def base_of(graph: Graph, hardware: Hardware, competes: bool) -> ProgramBase:
    """That of a graph's replays on a machine, made once; ``competes``: copies share the bandwidth
    of memories (rule 13).
    """
    return graph.derived_on(hardware, _competing if competes else _apart)


def _competing(graph: Graph, hardware: Hardware) -> ProgramBase:
    return jittered_base(graph, hardware, True, op_durations(graph, hardware))


def _apart(graph: Graph, hardware: Hardware) -> ProgramBase:
    return jittered_base(graph, hardware, False, op_durations(graph, hardware))


def jittered_base(
    graph: Graph, hardware: Hardware, competes: bool, durations: Sequence[int]
) -> ProgramBase:
    """Like :func:`base_of`, with other durations: what copies slow down follows from what ops take
    without jitter.
    """
    return ProgramBase(
        graph,
        with_memories(hardware) if competes else hardware,
        durations,
        copy_uses(graph, hardware, op_durations(graph, hardware), competes),
        graph.derived_on(hardware, sent_bytes),
    )


def _check_sums(graph: Graph, machine: Hardware, durations: Sequence[int]) -> None:
    """Raise :class:`UncoveredError` where times or bytes may not fit 63 bits when they are added
    up.
    """
    waits = [
        *(channel.latency_ns for channel in machine.channels),
        *(tier.pin_ns for tier in machine.tiers),
        machine.inspect_ns,
    ]
    sizes = sum(graph.tensors.column(lambda tensor: tensor.size_bytes)) + sum(
        graph.ops.column(lambda op: op.workspace_bytes)
    )
    if max(sum(durations), *waits) >= LONGEST_NS or sizes >= MOST_BYTES:
        raise UncoveredError(TOO_LARGE)


def graph_cells(graph: Graph, durations: Sequence[int]) -> dict[str, Any]:
    """The arrays of a graph: its streams, what ops wait for on others, what they use, what each
    tensor is; and its durations.
    """
    return graph.derived(_shape) | {"duration": longs(durations)}


def rest_of(cells: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return the time of each op together with those after it on its stream."""
    duration, queue = np.asarray(cells["duration"]), np.asarray(cells["queue"])
    rest = np.zeros_like(duration)
    for begin, end in pairwise(cells["queue_from"]):
        backwards = queue[begin:end][::-1]
        rest[backwards] = np.cumsum(duration[backwards])
    return rest


def _shape(graph: Graph) -> dict[str, Any]:
    """The arrays that depend on the graph alone; not to be changed, as every table has the same."""
    tensors, ops, streams = graph.tensors, graph.ops, list(graph.streams)
    counts = {"ops": len(ops), "tensors": len(tensors), "streams": len(streams)}
    given: dict[str, Any] = counts | {
        "stream_of": ints(ops.numbers(lambda op: streams.index(op.stream), "i")),
        "listed_from": ints(ops.starts()),
        "listed": ints(np.array(ops.named)),
    }
    clocks = len(streams) if len(streams) > 1 else 0
    given |= made_cells(
        LoopGraph,
        counts
        | {"named": len(ops.named), "clocks": clocks, "awaited": max(0, clocks - 1) * len(ops)},
    )
    derivation = GraphLoop(given)
    derivation.derive()
    uses, waits = max(1, derivation.uses), max(1, derivation.waits)
    return {
        **counts,
        "main": streams.index(graph.main_stream) if streams else -1,
        "kinds": len(LEDGER_KINDS),
        **{
            name: given[name]
            for name in (
                "stream_of",
                "queue_from",
                "queue",
                "place",
                "user_from",
                "use_from",
                "wait_from",
            )
        },
        **{name: given[name][:uses] for name in ("use_op", "use_tensor", "use_flags", "user")},
        **{name: given[name][:waits] for name in ("wait_stream", "wait_count")},
        "survives": flags(tensors.numbers(lambda tensor: tensor.survives, "B")),
        "kind": flags(tensors.numbers(lambda tensor: _KIND[tensor.kind], "B")),
        "size": longs(tensors.numbers(lambda tensor: tensor.size_bytes, "q")),
        "workspace": longs(ops.numbers(lambda op: op.workspace_bytes, "q")),
    }


def _by_op(ops: int, values: Mapping[int, int], none: int = 0, code: str = "i") -> npt.NDArray[Any]:
    """A number for each op: ``none`` for those that have no value."""
    found = np.full(ops, none, code) if none else np.zeros(ops, code)
    found[list(values)] = list(values.values())
    return found
