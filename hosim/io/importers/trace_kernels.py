"""The operator calls of an execution trace that are kernels, and those that only call others.

A call whose FLOP are known by its operator is a kernel, whatever it calls. Else a call is a kernel
if no kernel inside it writes all that it returns or changes: ``relu`` returns what its
``clamp_min`` wrote, but ``mul_`` changes what no call inside it does. Fills, allocations and views
inside a call are part of it, as a kernel that adds up may first fill its result with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hosim.io.importers.aten_flops import CallShapes, aten_flops
from hosim.io.importers.op_kinds import op_kind

_PREPARING = {"fill", "allocate"}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call by ids: its parent, and the storages that it returns without taking them, or writes.
    ``shapes``: of an operator.
    """

    id: int
    parent: int
    shapes: CallShapes | None
    sets: frozenset[int]


def kernels_inside(calls: Sequence[TracedCall]) -> Sequence[int]:
    """The kernels of the first of ``calls``, the others of which are inside it, as ids in the order
    in which they begin.

    A parent has a smaller id than what it calls. Empty for a call that only allocates, fills or
    makes a view.
    """
    found: dict[int, list[int]] = {}
    written: dict[int, frozenset[int]] = {}
    inside: dict[int, list[int]] = {}
    for call in sorted(calls, key=lambda c: -c.id):
        members = inside.pop(call.id, [])
        kernels = _joined([found.pop(member) for member in members])
        below = [written.pop(member) for member in members]
        sets = below[0] if len(below) == 1 else frozenset().union(*below)
        if call.shapes is not None:
            prepares = op_kind(call.shapes.operator) in _PREPARING
            if aten_flops(call.shapes) is not None or (
                call.sets and not (kernels and call.sets <= sets)
            ):
                kernels = [] if prepares else [call.id]
            sets = frozenset() if prepares else call.sets
        found[call.id], written[call.id] = kernels, sets
        inside.setdefault(call.parent, []).append(call.id)
    return sorted(found[min(found)])


def _joined(lists: list[list[int]]) -> list[int]:
    """One list of all items; the longest list is extended, so that deep traces take no longer than
    wide ones.
    """
    if not lists:
        return []
    longest = max(lists, key=len)
    for one in lists:
        if one is not longest:
            longest.extend(one)
    return longest
