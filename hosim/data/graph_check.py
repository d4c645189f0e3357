"""Tell whether the tensors and ops of a graph contradict themselves or one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from hosim.base.whole_numbers import not_whole
from hosim.data.graph_parts import DEVICE, KINDS, MAIN_STREAM, Op, Tensor
from hosim.errors import GraphError
from hosim.plain_text import named, shown
from hosim.units import LARGEST


def check_graph(
    tensors: tuple[Tensor, ...],
    ops: tuple[Op, ...],
    tensor_names: Collection[str] | None = None,
    op_names: Collection[str] | None = None,
) -> None:
    """Raise :class:`GraphError` at the first contradiction, with its path as in the file format.

    Who knows the names, each once, may say so: then they are not collected again.
    """
    tensor_names = {tensor.name for tensor in tensors} if tensor_names is None else tensor_names
    op_names = {op.name for op in ops} if op_names is None else op_names
    named = (
        len(tensor_names) == len(tensors)
        and len(op_names) == len(ops)
        and "" not in tensor_names
        and "" not in op_names
    )
    named = named and not any(
        [whole in tensor_names for whole in {tensor.of for tensor in tensors}]
    )
    if not (named and _consistent(tensors, ops)):
        _explain(tensors, ops)


def _consistent(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> bool:
    """Return whether nothing but names contradicts itself: the rules of :func:`_explain` in less
    time, without saying which is broken.
    """
    if len({op.processor for op in ops}) > 1 and len(
        {(op.stream, op.processor) for op in ops}
    ) > len({op.stream for op in ops}):
        return False
    sizes = [tensor.size_bytes for tensor in tensors]
    if not {*map(type, sizes)} <= {int}:
        return False
    if (
        not {tensor.kind for tensor in tensors} <= frozenset(KINDS)
        or min(sizes, default=0) < 0
        or max(sizes, default=0) > LARGEST
    ):
        return False
    there, largest, movable = (
        [bool(tensor.persistent or tensor.home) for tensor in tensors],
        LARGEST,
        False,
    )
    try:
        for i, op in enumerate(ops):
            inputs, outputs, mutates = op.inputs, op.outputs, op.mutates
            for t in inputs:
                if t < 0 or not there[t]:
                    return False
            if mutates:
                for t in mutates:
                    if t < 0 or not there[t]:
                        return False
                if len(mutates) > 1 and len(set(mutates)) < len(mutates):
                    return False
            for t in outputs:
                if t < 0:
                    return False
                there[t] = True
            if len(inputs) > 1 and (
                len(set(inputs)) < len(inputs) if len(inputs) > 2 else inputs[0] == inputs[1]
            ):
                return False
            if len(outputs) > 1 and len(set(outputs)) < len(outputs):
                return False
            if op.deps and not (min(op.deps) >= 0 and max(op.deps) < i):
                return False
            if (
                not op.flops.__class__
                is op.bytes_accessed.__class__
                is op.workspace_bytes.__class__
                is int
            ):
                return False
            if op.duration_ns is not None and op.duration_ns.__class__ is not int:
                return False
            if not (
                0 <= op.flops <= largest
                and 0 <= op.bytes_accessed <= largest
                and 0 <= op.workspace_bytes <= largest
            ):
                return False
            if op.duration_ns is not None and not 0 <= op.duration_ns <= largest:
                return False
            if op.also_on:
                movable = True
                if _wrong_processors(op):
                    return False
    except IndexError:  # no tensor has this number
        return False
    return not (movable and _taken_streams(ops))


def _taken_streams(ops: tuple[Op, ...]) -> dict[int, str]:
    """By position, the ops that may move to a stream that has ops of another processor, each with
    that stream.

    An op that moves to another processor is on the stream of that name there, one that moves to the
    device on the main stream.
    """
    owner = {op.stream: op.processor for op in ops}
    count = Counter([op.stream for op in ops])
    taken: dict[int, str] = {}
    for i, op in enumerate(ops):
        for name, _ in op.also_on:
            stream = name or MAIN_STREAM
            if owner.get(stream, name) != name and (stream != op.stream or count[stream] > 1):
                taken.setdefault(i, stream)
    return taken


def _wrong_processors(op: Op) -> str:
    """Return the error in the other processors of an op; empty if there is none."""
    names = [op.processor, *[name for name, _ in op.also_on]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return (
            f"lists the processor {twice or DEVICE!r} twice (its own is {op.processor or DEVICE!r})"
        )
    wrong = [
        ns
        for _, ns in op.also_on
        if ns is not None and not (ns.__class__ is int and 0 <= ns <= LARGEST)
    ]
    return (
        f"expected a duration of at least 0 and up to 2^63-1, got {shown(wrong[0], 30)}"
        if wrong
        else ""
    )


def _too_large(figure: int) -> str:
    return (
        "expected an integer up to 2^63-1, got "
        f"{figure if figure < 10**30 else 'one of more than 30 digits'}"
    )


def _check_whole(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> None:
    """Raise :class:`GraphError` for a figure that is no whole number: one that is missing, as a
    table's NaN, before any other.
    """
    found = [
        (f"tensor {named(tensor.name)}", "size_bytes", tensor.size_bytes) for tensor in tensors
    ]
    for op in ops:
        about = f"op {named(op.name)}"
        found += [(about, label, getattr(op, label)) for label in _FIGURES]
        found += [
            (about, "duration_ns", ns)
            for ns in (op.duration_ns, *[ns for _, ns in op.also_on])
            if ns is not None
        ]
    wrong = [each for each in found if each[2].__class__ is not int]
    for about, label, value in sorted(
        wrong, key=lambda each: bool(each[2] == each[2]) if isinstance(each[2], float) else True
    ):
        raise GraphError(not_whole(label, value), where=f"{about}, {label}")


_FIGURES = ("flops", "bytes_accessed", "workspace_bytes")


def _explain(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> None:
    """Raise :class:`GraphError` for the first contradiction."""
    _check_whole(tensors, ops)
    names, index = set[str](), {tensor.name for tensor in tensors}
    for i, tensor in enumerate(tensors):
        if not tensor.name or tensor.name in names:
            raise GraphError(
                f"tensor name {tensor.name!r} is {'listed twice' if tensor.name else 'empty'}",
                where=f"tensors[{i}].name",
            )
        names.add(tensor.name)
        if tensor.of and tensor.of in index:
            message = (
                f"tensor {tensor.name!r} is a part of {tensor.of!r}, which is a tensor "
                "itself; name another whole"
            )
            raise GraphError(message, where=f"tensors[{i}].of")
        if tensor.kind not in KINDS:
            raise GraphError(
                f"unknown kind {tensor.kind!r}; expected one of {', '.join(KINDS)}",
                where=f"tensors[{i}].kind",
            )
        if tensor.size_bytes < 0:
            raise GraphError(
                f"expected bytes of at least 0, got {tensor.size_bytes}",
                where=f"tensors[{i}].bytes",
            )
        if tensor.size_bytes > LARGEST:
            raise GraphError(_too_large(tensor.size_bytes), where=f"tensors[{i}].bytes")
    names.clear()
    written, processors, taken = bytearray(len(tensors)), dict[str, str](), _taken_streams(ops)
    for i, op in enumerate(ops):
        if not op.name or op.name in names:
            raise GraphError(
                f"op name {op.name!r} is {'listed twice' if op.name else 'empty'}",
                where=f"ops[{i}].name",
            )
        names.add(op.name)
        if processors.setdefault(op.stream, op.processor) != op.processor:
            message = (
                f"op {op.name!r} is on the stream {op.stream!r} with ops of another "
                "processor; give it a stream of its own"
            )
            raise GraphError(message, where=f"ops[{i}].processor")
        for label in ("duration_ns", "flops", "bytes_accessed", "workspace_bytes"):
            value = getattr(op, label)
            if value is not None and value < 0:
                raise GraphError(f"expected at least 0, got {value}", where=f"ops[{i}].{label}")
            if value is not None and value > LARGEST:
                raise GraphError(_too_large(value), where=f"ops[{i}].{label}")
        if op.also_on and (wrong := _wrong_processors(op)):
            raise GraphError(f"op {op.name!r}: {wrong}", where=f"ops[{i}].also_on")
        if i in taken:
            message = (
                f"op {op.name!r} may move to the stream {taken[i]!r}, which has ops of "
                "another processor; give these another stream"
            )
            raise GraphError(message, where=f"ops[{i}].also_on")
        for label in ("inputs", "outputs", "mutates"):
            listed: tuple[int, ...] = getattr(op, label)
            for j, t in enumerate(listed):
                if not 0 <= t < len(tensors):
                    raise GraphError(f"no tensor number {t}", where=f"ops[{i}].{label}[{j}]")
                tensor = tensors[t]
                if label != "outputs" and not (written[t] or tensor.persistent or tensor.home):
                    raise GraphError(
                        f"op {op.name!r} uses tensor {tensor.name!r} before any op produces it; "
                        "list its producer first, or give the tensor a home if it is there from "
                        "the start",
                        where=f"ops[{i}].{label}[{j}]",
                    )
            if len(set(listed)) != len(listed):
                raise GraphError(f"op {op.name!r} lists a tensor twice", where=f"ops[{i}].{label}")
        for t in op.outputs:
            written[t] = 1
        for j, d in enumerate(op.deps):
            if not 0 <= d < i:
                raise GraphError(
                    f"op {op.name!r} depends on an op that is not listed before it",
                    where=f"ops[{i}].deps[{j}]",
                )
