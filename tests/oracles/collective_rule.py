"""Rule 19 of docs/contract.md in other words: who meets in a collective, and what it sends over
which fabric.
"""

from fractions import Fraction

TOGETHER = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
)
TOGETHER += ("all_to_all_single", "broadcast", "collective", "barrier")
RINGS = ("all_gather", "reduce_scatter", "all_to_all")


def company(op, device, devices):
    """The devices with which one does an op; itself alone if it waits for nobody."""
    if op.kind not in TOGETHER:
        return [device]
    if op.kernel in (*RINGS, "all_reduce", "custom_all_reduce"):
        return [d for d in range(devices) if d // op.sizes[0] == device // op.sizes[0]]
    return list(range(devices))


def sent(op, tensors):
    """The bytes that a device sends in an op."""
    if op.kind in TOGETHER or op.kind in ("send", "recv", "wait_tensor"):
        if op.kernel in RINGS:
            return op.sizes[1] * (op.sizes[0] - 1) // op.sizes[0]
        if op.kernel == "all_reduce":
            return 2 * op.sizes[1] * (op.sizes[0] - 1) // op.sizes[0]
        if op.kernel == "custom_all_reduce":
            return op.sizes[1] * (op.sizes[0] - 1)
    if op.kind in (*TOGETHER, "send", "recv") and not (op.inputs or op.outputs or op.mutates):
        times = {"all_reduce": 2, "barrier": 0}.get(op.kind, 1)
        return times * op.bytes_accessed
    if op.kind == "send":
        return sum(tensors[t].size_bytes for t in {*op.inputs, *op.mutates})
    if op.kind == "recv":
        return sum(tensors[t].size_bytes for t in {*op.outputs, *op.mutates})
    return 0


def pace(op, tensors, hardware, duration):
    """Bytes a nanosecond that an op wants of each fabric that it crosses; ``None`` if it crosses
    none.
    """
    crossed = [f for f in hardware.fabrics if f.collectives]
    size = sent(op, tensors)
    if not crossed or not size or not duration:
        return None
    per_host = min(hardware.devices, hardware.devices_per_host or hardware.devices)
    sharers = {"device": 1, "host": per_host, "global": hardware.devices}
    most = max(
        1, min(f.bandwidth_bytes_per_s // sharers[f.scope] // f.collectives for f in crossed)
    )
    return min(Fraction(-(-size * 10**9 // duration), 10**9), Fraction(most, 10**9))
