"""What a program table has whatever the plan: the arrays of a graph on a machine, and the rates of all that can flow there."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hosim.analysis import HappensBefore
from hosim.costmodel import MemoryUse, copy_uses, op_durations, with_memories
from hosim.costmodel.transfers import NS_PER_S, bytes_per_s_over_links, crossed_fabrics, pin_ns, sent_bytes
from hosim.engine.event_loop import ints, longs
from hosim.engine.flow_table import TOO_LARGE, FlowTable, UncoveredError
from hosim.engine.ledger import LEDGER_KINDS
from hosim.engine.loop_cells import LOW, OUTPUT, READS, WRITES
from hosim.engine.transfer_rates import TransferRates
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import tier_of

LONGEST_NS, MOST_BYTES = 1 << 60, 1 << 60
"""What all ops together may take and hold, to be counted exactly."""

_KIND = {kind: k for k, kind in enumerate(LEDGER_KINDS)}


class ProgramBase:
    """The arrays of a graph on a machine, which all tables of its plans share. ``cells`` are not to be changed.

    ``machine`` is the one of copies (:func:`hosim.costmodel.memory_traffic.machine_of_copies`), of whose equal devices one stands for all.
    ``durations`` are nanoseconds by op, ``uses`` the ops that copies slow down, ``sent`` the bytes of the collectives that cross fabrics,
    by op. What the loop does not cover raises :class:`~hosim.engine.flow_table.UncoveredError`.
    """

    def __init__(
        self, graph: Graph, machine: Hardware, durations: Sequence[int], uses: Mapping[int, MemoryUse], sent: Mapping[int, int]
    ) -> None:
        self.graph, self.machine, self.durations, self.sent = graph, machine, durations, sent
        _check_sums(graph, machine, durations)
        rates = TransferRates(graph, machine, bool(sent))
        self.class_of = [rates.classes_of(c) for c in range(len(machine.channels))]
        fastest = bytes_per_s_over_links(machine) or 1
        most = {i: min(-(-size * NS_PER_S // durations[i]), fastest) for i, size in sent.items() if durations[i]}
        sends = {i: rates.collective(rate) for i, rate in most.items()}
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        where = [tier_of(op, machine) for op in graph.ops]
        engines = sum([channel.engines for channel in machine.channels])
        crossing = sum([fabric.collectives for fabric in crossed_fabrics(machine)]) * len(graph.streams) if sends else 0
        self.flows = FlowTable(rates, engines + crossing, {i: use for i, use in uses.items() if i not in sent}, where, durations)
        volumes = [self.flows.scaled(most[i] * durations[i]) if i in most else (0, 0) for i in range(len(durations))]
        self.cells = graph_cells(graph, durations) | {
            "tiers": len(machine.tiers),
            "device": machine.tier_index[machine.device_tier],
            "where": ints([machine.tier_index[tier] for tier in where]),
            "elsewhere": int(bool(graph.elsewhere)),
            "channels": len(machine.channels),
            "engines": engines,
            "slots": engines + (len(graph.streams) if sends else 0),
            "send_class": ints([sends.get(i, -1) for i in range(len(durations))]),
            "send_high": longs([high for high, _ in volumes]),
            "send_low": longs([low for _, low in volumes]),
            **self._machine_cells(),
        }

    def _machine_cells(self) -> dict[str, Any]:
        machine, flows = self.machine, self.flows
        below = [(tier.name, kind) for tier in machine.tiers for kind in LEDGER_KINDS]
        pins = [0 if tier == machine.device_tier else pin_ns(machine, tier, kind) for tier, kind in below]
        return {
            "classes": flows.classes,
            "paces": flows.paces,
            "slot_from": ints(accumulate([channel.engines for channel in machine.channels], initial=0)),
            "latency": longs([channel.latency_ns for channel in machine.channels]),
            "pin": longs(pins),
            "pooled": ints([int(tier.pin_pool) for tier in machine.tiers]),
            "pace_of": ints([flows.pace_of.get(i, -1) for i in range(len(self.durations))]),
            "launch": longs([use.launch_ns for use in flows.uses]),
            "whole_high": longs([whole >> 62 for whole in flows.wholes]),
            "whole_low": longs([whole & LOW for whole in flows.wholes]),
        }


def one_for_all(hardware: Hardware) -> bool:
    """Whether one device may stand for all of several: they have equal parts of everything, as there are equally many on each host.

    Equal devices with equal parts of every link have equal max-min rates, so that they do the same as long as each step is possible
    for all of them: until room in a shared tier is too small for all (:class:`UncoveredError`). There the order among them decides.
    """
    return hardware.devices == 1 or hardware.devices % hardware.sharers("host") == 0


def base_of(graph: Graph, hardware: Hardware, competes: bool) -> ProgramBase:
    """That of a graph's replays on a machine, made once; ``competes``: copies share the bandwidth of memories (rule 13)."""
    return graph.derived_on(hardware, _competing if competes else _apart)


def _competing(graph: Graph, hardware: Hardware) -> ProgramBase:
    return jittered_base(graph, hardware, True, graph.derived_on(hardware, op_durations))


def _apart(graph: Graph, hardware: Hardware) -> ProgramBase:
    return jittered_base(graph, hardware, False, graph.derived_on(hardware, op_durations))


def jittered_base(graph: Graph, hardware: Hardware, competes: bool, durations: Sequence[int]) -> ProgramBase:
    """As :func:`base_of`, with other durations: what copies slow down follows from what ops take without jitter."""
    uses = copy_uses(graph, hardware, graph.derived_on(hardware, op_durations), competes)
    return ProgramBase(graph, with_memories(hardware) if competes else hardware, durations, uses, sent_bytes(graph, hardware))


def _check_sums(graph: Graph, machine: Hardware, durations: Sequence[int]) -> None:
    """Raise :class:`UncoveredError` where times or bytes may not fit 63 bits when they are added up."""
    waits = [*(channel.latency_ns for channel in machine.channels), *(tier.pin_ns for tier in machine.tiers), machine.inspect_ns]
    sizes = sum([tensor.size_bytes for tensor in graph.tensors]) + sum([op.workspace_bytes for op in graph.ops])
    if max(sum(durations), *waits) >= LONGEST_NS or sizes >= MOST_BYTES:
        raise UncoveredError(TOO_LARGE)


def graph_cells(graph: Graph, durations: Sequence[int]) -> dict[str, Any]:
    """The arrays of a graph: its streams, what ops wait for on others, what they use, what each tensor is; and its durations."""
    rest = [0] * len(graph.ops)
    for queue in graph.derived(HappensBefore).queues:
        for i, left in zip(reversed(queue), accumulate([durations[i] for i in reversed(queue)]), strict=True):
            rest[i] = left
    return graph.derived(_shape) | {"duration": longs(durations), "rest": longs(rest)}


def _shape(graph: Graph) -> dict[str, Any]:
    """The arrays that depend on the graph alone; not to be changed, as every table has the same."""
    order = graph.derived(HappensBefore)
    waits = _waits(graph, order)
    used, flags, use_op = array("i"), array("i"), array("i")
    use_from, user_from = [0], [0] * (len(graph.tensors) + 1)
    for i, op in enumerate(graph.ops):
        mine = dict.fromkeys(op.inputs, READS)
        for t in op.outputs:
            mine[t] = mine.get(t, 0) | WRITES | OUTPUT
        for t in op.mutates:
            mine[t] = mine.get(t, 0) | READS | WRITES
        used.extend(mine)
        flags.extend(mine.values())
        use_op.extend([i] * len(mine))
        use_from.append(len(used))
        for t in mine:
            user_from[t + 1] += 1
    user_from = list(accumulate(user_from))
    user, places = array("i", bytes(4 * len(used))), user_from.copy()
    for u, t in enumerate(used):
        user[places[t]] = u
        places[t] += 1
    streams, tensors = list(graph.streams), graph.tensors
    return {
        "ops": len(graph.ops),
        "tensors": len(tensors),
        "streams": len(streams),
        "main": streams.index(graph.main_stream) if streams else -1,
        "kinds": len(LEDGER_KINDS),
        "queue_from": ints(accumulate([len(queue) for queue in order.queues], initial=0)),
        "queue": ints([i for queue in order.queues for i in queue]),
        "stream_of": ints(order.stream_of),
        "place": ints(order.place),
        "wait_from": ints(accumulate(map(len, waits), initial=0)),
        "wait_stream": ints([s for wait in waits for s, _ in wait]),
        "wait_count": ints([count for wait in waits for _, count in wait]),
        "use_from": ints(use_from),
        "use_op": ints(use_op),
        "use_tensor": ints(used),
        "use_flags": ints(flags),
        "user_from": ints(user_from),
        "user": ints(user),
        "survives": ints([int(tensor.survives) for tensor in tensors]),
        "kind": ints([_KIND[tensor.kind] for tensor in tensors]),
        "size": longs([tensor.size_bytes for tensor in tensors]),
        "workspace": longs([op.workspace_bytes for op in graph.ops]),
    }


def _waits(graph: Graph, order: HappensBefore) -> list[Sequence[tuple[int, int]]]:
    """What each op waits for on other streams: producers that need not have ended when the op before on the same stream has.

    Each is a stream, and how many of its ops must have ended.
    """
    waits: list[Sequence[tuple[int, int]]] = [()] * len(graph.ops)
    for i, producers in enumerate(graph.producers if not order.single else ()):
        known = order.known_before(i)
        missing: dict[int, int] = {}
        for p in producers:
            s, count = order.stream_of[p], order.place[p] + 1
            if known[s] < count:
                missing[s] = max(missing.get(s, 0), count)
        waits[i] = list(missing.items())
    return waits
