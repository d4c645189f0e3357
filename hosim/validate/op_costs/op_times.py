"""Times of ops, predicted from similar recorded ops, the most similar first.

An op gets the median time of the ops with the same name, grid, block, bytes, shapes of the
launching operator, and *place*: the n-th such op of its iteration. If there are none, the place is
ignored, then also the shapes. Otherwise its time is interpolated between ops of its name by the
number of blocks (of bytes, for fills and copies on the device), and extrapolated in proportion
beyond the largest; failing that, it is the median of its kind.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median_low

from hosim.io.importers.recordings import DeviceOp, KinetoTrace, program_order

LEVELS = ("place", "shapes", "grid", "name", "kind", "nothing")
"""The likeness of a predicted op to the ops that its time comes from."""

Keys = tuple[Hashable, ...]
"""The properties of an op, by level."""


@dataclass(frozen=True)
class OpTimes:
    """The learned times: nanoseconds by key, by size for each name (ascending), and by kind."""

    by_key: Mapping[Hashable, int]
    by_name: Mapping[str, tuple[tuple[int, int], ...]]
    by_kind: Mapping[str, int]

    def predict(self, op: DeviceOp, keys: Keys) -> tuple[int, str]:
        """Return the nanoseconds of an op, and the level that gave them; 0 if its kind was not
        learned.
        """
        for key, level in zip(keys, LEVELS, strict=False):
            if key in self.by_key:
                return self.by_key[key], level
        if op.name in self.by_name:
            return _between(self.by_name[op.name], size_of(op)), "name"
        return (self.by_kind[op.kind], "kind") if op.kind in self.by_kind else (0, "nothing")


def learn(recorded: Iterable[tuple[DeviceOp, Keys]]) -> OpTimes:
    """Learn the times of these ops, except transfers to and from the host."""
    by_key: defaultdict[Hashable, list[int]] = defaultdict(list)
    by_name: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for op, keys in recorded:
        if is_transfer(op):
            continue
        for key in keys:
            by_key[key].append(op.duration_ns)
        by_name[op.name][size_of(op)].append(op.duration_ns)
        by_kind[op.kind].append(op.duration_ns)
    return OpTimes(
        {key: median_low(times) for key, times in by_key.items()},
        {
            name: tuple((size, median_low(times)) for size, times in sorted(sizes.items()))
            for name, sizes in by_name.items()
        },
        {kind: median_low(times) for kind, times in by_kind.items()},
    )


def keys_of(trace: KinetoTrace, starts_ns: Sequence[int]) -> tuple[Keys, ...]:
    """Return the properties of each op of a recording; ``starts_ns`` are the instants at which the
    host begins an iteration.
    """
    order = program_order(trace)
    keys: list[Keys] = [()] * len(trace.ops)
    seen: Counter[Hashable] = Counter()
    for i in order.order:
        op = trace.ops[i]
        at = trace.calls[op.call].cpu_op if op.call is not None else None
        grid = "grid", op.name, op.grid, op.block, op.size_bytes
        shapes = "shapes", *grid, trace.cpu_ops[at].shapes if at is not None else ()
        iteration = bisect_right(starts_ns, order.issued_ns[i])
        keys[i] = ("place", seen[iteration, shapes], shapes), shapes, grid
        seen[iteration, shapes] += 1
    return tuple(keys)


def is_transfer(op: DeviceOp) -> bool:
    """Return whether an op is a copy to or from the host."""
    return op.kind == "copy" and op.direction in ("h2d", "d2h")


def size_of(op: DeviceOp) -> int:
    """The number of blocks of a kernel, or the bytes of any other op."""
    return prod(op.grid) if op.kind == "kernel" else op.size_bytes or 0


def _between(points: tuple[tuple[int, int], ...], size: int) -> int:
    at = bisect_left(points, (size, -1))
    if at == len(points):
        largest, time = points[-1]
        return round(time * size / largest) if largest else time
    above, time = points[at]
    if at == 0 or above == size:
        return time
    below, earlier = points[at - 1]
    return round(earlier + (time - earlier) * (size - below) / (above - below))
