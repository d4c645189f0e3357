"""A recording's execution trace beside it: which storages from before the recording each operator
uses, by their ids.

Both list the operators of a thread in the order of their calls; where a thread of the one calls
what a thread of the other does, the calls are the same. A storage that an operator takes, and that
none has returned before, was there before the recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hosim.data.allocator_blocks import in_blocks
from hosim.errors import InputError
from hosim.io.importers.recordings.kineto_before import BeforeTensor
from hosim.io.importers.recordings.kineto_events import KinetoTrace
from hosim.io.importers.torch_programs import RecordedCall

_SAME = 0.95
"""The share of a thread's calls that have the same name in both."""


def storages_before(
    trace: KinetoTrace,
    order: Sequence[int],
    calls: Sequence[RecordedCall],
    resident_bytes: int,
    freed: Sequence[tuple[int, int]],
) -> tuple[BeforeTensor, ...]:
    """The storages from before, with the places of the ops that use them (``order`` has the
    positions of ops in program order).

    ``freed`` has the bytes of each block that the recording frees, and the place of the last op
    before that: a storage of as many bytes that no later op uses is taken to be that block, which
    is a tensor already. Raises :class:`InputError` if the calls are not those of the recording, or
    if the storages have more bytes than there were.
    """
    call_of = _same_calls(trace, calls)
    taken, sizes = _taken(calls)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, i in enumerate(order):
        around = (
            taken.get(call_of.get(at, -1))
            for at in trace.operators_around(trace.operator_at(trace.ops[i]))
        )
        for storage in next(filter(None, around), ()):
            places[storage].append(place)
    left = list(freed)
    found = []
    for storage, used in sorted(places.items(), key=lambda item: item[1][-1]):
        size = in_blocks(sizes[storage])
        block = next((one for one in left if one[0] == size and one[1] >= used[-1]), None)
        if block is not None:
            left.remove(block)
        elif size:
            found.append(BeforeTensor(f"before{storage}.storage", size, tuple(used)))
    total = sum(tensor.size_bytes for tensor in found)
    if total > resident_bytes:
        raise InputError(
            f"shows {total:,} bytes from before the recording, which began with "
            f"{resident_bytes:,}: another run?"
        )
    return tuple(sorted(found, key=lambda tensor: tensor.places))


def _same_calls(trace: KinetoTrace, calls: Sequence[RecordedCall]) -> Mapping[int, int]:
    """The position of the call of each operator, by the operator's position."""
    launching = {
        trace.cpu_ops[call.cpu_op].thread
        for call in trace.calls
        if call.cpu_op is not None and call.role == "launch"
    }
    operators: defaultdict[str, list[int]] = defaultdict(list)
    for i, operator in enumerate(trace.cpu_ops):
        operators[operator.thread].append(i)
    threads: defaultdict[int, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        threads[call.thread].append(i)
    found: dict[int, int] = {}
    for thread in sorted(launching):
        wanted = [trace.cpu_ops[i].name for i in operators[thread]]
        names = set(wanted)
        for listed in threads.values():
            known = [i for i in listed if calls[i].name in names]
            if len(known) == len(wanted) and sum(
                calls[i].name == name for i, name in zip(known, wanted, strict=True)
            ) >= _SAME * len(known):
                found.update(zip(operators[thread], known, strict=True))
                break
        else:
            raise InputError(
                f"has no thread that calls the {len(wanted):,} operators of thread {thread} of "
                "the recording: another run?"
            )
    return found


def _taken(calls: Sequence[RecordedCall]) -> tuple[Mapping[int, tuple[int, ...]], Sequence[int]]:
    """The storages from before that each call takes, by numbers, and the bytes of each."""
    now: dict[int, int | None] = {}  # by id; None for a storage that was made since
    sizes: list[int] = []
    taken: dict[int, tuple[int, ...]] = {}
    for i, call in enumerate(calls):
        numbers: dict[int, None] = {}
        for tensor in call.inputs:
            if tensor.on_accelerator:
                number = now.setdefault(tensor.storage, len(sizes))
                if number == len(sizes):
                    sizes.append(0)
                if number is not None:
                    sizes[number] = max(sizes[number], tensor.reach_bytes)
                    numbers[number] = None
        given = {tensor.storage for tensor in call.inputs}
        now.update(
            (tensor.storage, None)
            for tensor in call.outputs
            if tensor.on_accelerator and tensor.storage not in given
        )
        taken[i] = tuple(numbers)
    return taken, sizes
