"""Memory that was allocated before a recording, as tensors: those that operators' arguments show,
or that an execution trace of the run names.

An argument of a product, a convolution, a norm or an embedding was allocated before if it is in a
weight's position and its bytes match no block of the recording. Arguments are grouped into tensors
by the modules around the operators, if Python stacks were recorded (``with_modules`` or
``with_stack``). Gradients share sequence numbers with the operators of the forward pass. Otherwise
the order within an iteration decides, and each argument there is another tensor. Ops at the
beginning that were launched before the recording are the end of an iteration if they equal the
recording's last ops; then they use the same tensors. If the tensors found have more bytes than were
allocated, an embedding and a product of the same extents are assumed to share one; if that does not
suffice, none is returned.

An execution trace has the ids of the storages that each operator uses. Both files list the
operators of a thread in the order of their calls. Two threads match if they call the same
operators; then their calls are the same. A storage was there before the recording if an operator
takes it and none has returned it before.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hosim.data.allocator_blocks import in_blocks
from hosim.errors import InputError
from hosim.io.importers.recordings.kineto_events import MODULE, Annotation, CpuOp, KinetoTrace
from hosim.io.importers.torch_programs import RecordedCall

_WEIGHTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("addmm",), (0, 2)),
    **dict.fromkeys(("mm", "linear", "cudnn_convolution"), (1,)),
    **dict.fromkeys(("miopen_convolution", "convolution", "_convolution", "conv2d"), (1, 2)),
    **dict.fromkeys(
        ("convolution_backward", "cudnn_convolution_backward", "miopen_convolution_backward"), (2,)
    ),
    **dict.fromkeys(("native_layer_norm", "rms_norm", "_fused_rms_norm"), (2, 3)),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (1, 2, 3, 4)),
    **dict.fromkeys(("native_group_norm",), (1, 2)),
    **dict.fromkeys(("embedding", "index_select"), (0,)),
}
"""The positions of weights among an operator's inputs."""
_LOOKUPS = ("embedding", "index_select")
_ON_LISTS = ("_foreach_", "_fused_adam", "_fused_sgd")


@dataclass(frozen=True, slots=True)
class StrangeArgument:
    """An argument whose bytes match no block: the place of its op in program order, its operator,
    its position and its bytes.
    """

    place: int
    operator: int
    index: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BeforeTensor:
    """A tensor from before the recording, and the places of the ops that use it."""

    name: str
    size_bytes: int
    places: tuple[int, ...]


_Key = tuple[object, ...]


def tensors_before(
    trace: KinetoTrace,
    order: Sequence[int],
    strange: Sequence[StrangeArgument],
    resident_bytes: int,
) -> tuple[BeforeTensor, ...]:
    """Return the tensors that these arguments show, which have at most ``resident_bytes``; empty if
    they would have more.

    ``order`` has the positions of ops in program order.
    """
    wanted = [
        a for a in strange if a.index in _WEIGHTS.get(trace.cpu_ops[a.operator].bare_name, ())
    ]
    keys = _keys(trace, wanted)
    for merged in (keys, _tied(trace, wanted, keys)):
        found = _tensors(wanted, merged)
        if sum(tensor.size_bytes for tensor in found) <= resident_bytes:
            count, behind = ended_before(trace, order), len(order)
            return tuple([_also_before(tensor, count, behind) for tensor in found])
    return ()


def ended_before(trace: KinetoTrace, order: Sequence[int]) -> int:
    """Return the number of ops without a recorded launch that begin the recording and end an
    iteration like its last one; 0 if there are none.
    """
    count = next(
        (place for place, i in enumerate(order) if trace.ops[i].call is not None), len(order)
    )
    if not 0 < count <= len(order) // 2:
        return 0
    first, last = ([trace.ops[i].name for i in part] for part in (order[:count], order[-count:]))
    return count if first == last else 0


def _also_before(tensor: BeforeTensor, count: int, behind: int) -> BeforeTensor:
    earlier = [place - behind + count for place in tensor.places if place >= behind - count]
    return replace(tensor, places=tuple(sorted((*tensor.places, *earlier)))) if earlier else tensor


def ops_on_lists(operators: Iterable[tuple[int, CpuOp | None]]) -> tuple[int, ...]:
    """The places of ops whose operator takes lists of tensors, which the recording does not name:
    steps of an optimizer.
    """
    return tuple(
        place
        for place, operator in operators
        if operator is not None and operator.bare_name.startswith(_ON_LISTS)
    )


def _tensors(wanted: Sequence[StrangeArgument], keys: Sequence[_Key]) -> tuple[BeforeTensor, ...]:
    places: defaultdict[_Key, dict[int, None]] = defaultdict(dict)
    sizes: dict[_Key, int] = {}
    for argument, key in zip(wanted, keys, strict=True):
        places[key][argument.place] = None
        sizes[key] = max(sizes.get(key, 0), argument.size_bytes)
    return tuple(
        BeforeTensor(f"before{n}.{key[1]}", sizes[key], tuple(sorted(used)))
        for n, (key, used) in enumerate(places.items())
    )


def _keys(trace: KinetoTrace, wanted: Sequence[StrangeArgument]) -> list[_Key]:
    """Return a key for each argument; arguments of one tensor share a key. A key has where the
    argument was found, a name, the extents, and a number among several of these.
    """
    modules = _Modules(trace.modules)
    steps = sorted({a.start_ns for a in trace.annotations if a.name.startswith("ProfilerStep#")})
    seen: Counter[_Key] = Counter()
    forward: dict[_Key, _Key] = {}
    known: dict[tuple[int, int], _Key] = {}  # an operator may launch several kernels
    for argument in wanted:
        if (argument.operator, argument.index) in known:
            continue
        operator = trace.cpu_ops[argument.operator]
        extents = _extents(operator, argument.index)
        sequence = _sequence(trace, argument.operator)
        gradient = "backward" in operator.name or _in_gradient(trace, argument.operator)
        module = modules.around(operator)
        key: _Key
        if gradient and (sequence, extents) in forward:
            key = forward[sequence, extents]
        else:
            call: _Key
            if module is not None:
                call = module.name, module.start_ns, extents
                key = "module", module.name.removeprefix(MODULE), extents, seen[call]
            else:
                call = (
                    bisect_right(steps, operator.start_ns),
                    operator.bare_name,
                    argument.index,
                    extents,
                )
                key = "order", operator.bare_name, argument.index, extents, seen[call]
            seen[call] += 1
        known[argument.operator, argument.index] = key
        if sequence is not None and not gradient:
            forward.setdefault((sequence, extents), key)
    return [known[argument.operator, argument.index] for argument in wanted]


def _tied(
    trace: KinetoTrace, wanted: Sequence[StrangeArgument], keys: Sequence[_Key]
) -> list[_Key]:
    """Return the keys under which an embedding and a product of the same extents share their
    weights.
    """
    lookups = {
        _extents(trace.cpu_ops[a.operator], a.index): key
        for a, key in zip(wanted, keys, strict=True)
        if trace.cpu_ops[a.operator].bare_name in _LOOKUPS
    }
    return [
        lookups.get(_extents(trace.cpu_ops[a.operator], a.index), key)
        for a, key in zip(wanted, keys, strict=True)
    ]


def _extents(operator: CpuOp, index: int) -> tuple[int, ...]:
    """The extents of an argument, sorted because products take weights transposed."""
    return tuple(sorted(operator.shapes[index]))


def _sequence(trace: KinetoTrace, at: int) -> int | None:
    """The sequence number of an operator, or of the innermost one around it that has one."""
    return next(
        (
            n
            for place in trace.operators_around(at)
            if (n := trace.cpu_ops[place].sequence) is not None
        ),
        None,
    )


def _in_gradient(trace: KinetoTrace, at: int) -> bool:
    return any(
        trace.cpu_ops[place].name.startswith("autograd::engine::evaluate_function")
        for place in trace.operators_around(at)
    )


class _Modules:
    """The innermost module around an operator, by the times on its thread. Operators may come in
    any order.
    """

    def __init__(self, modules: Sequence[Annotation]) -> None:
        self._by_thread: defaultdict[str, list[Annotation]] = defaultdict(list)
        for module in modules:
            self._by_thread[module.thread].append(module)
        self._around: dict[str, list[int]] = {}
        for thread, listed in self._by_thread.items():
            listed.sort(key=lambda m: (m.start_ns, -m.end_ns))
            stack: list[int] = []
            around = []
            for i, module in enumerate(listed):
                while stack and listed[stack[-1]].end_ns <= module.start_ns:
                    stack.pop()
                around.append(stack[-1] if stack else -1)
                stack.append(i)
            self._around[thread] = around

    def around(self, operator: CpuOp) -> Annotation | None:
        listed = self._by_thread.get(operator.thread, [])
        at = bisect_right(listed, operator.start_ns, key=lambda m: m.start_ns) - 1
        while at >= 0 and listed[at].end_ns < operator.end_ns:
            at = self._around[operator.thread][at]
        return listed[at] if at >= 0 else None


_SAME = 0.95
"""The share of a thread's calls that must have the same name in both files."""


def storages_before(
    trace: KinetoTrace,
    order: Sequence[int],
    calls: Sequence[RecordedCall],
    resident_bytes: int,
    freed: Sequence[tuple[int, int]],
) -> tuple[BeforeTensor, ...]:
    """Return the storages from before, with the places of the ops that use them (``order`` has the
    positions of ops in program order).

    ``freed`` has the bytes of each block that the recording frees, and the place of the last op
    before that. A storage of the same size that no later op uses is assumed to be that block, which
    is a tensor already. Raises :class:`InputError` if the calls are not those of the recording, or
    if the storages have more bytes than were allocated.
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
    """Return the position of each operator's call, by the operator's position. Raises
    :class:`InputError` for a thread without a counterpart.
    """
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
    """Return the numbers of the storages from before that each call takes, and the
    bytes of each.
    """
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
