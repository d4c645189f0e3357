"""Tell whether the tensors and ops of a graph contradict themselves or one another."""

from collections import Counter

from hosim.data.columns import Ops, Tensors
from hosim.data.graph_parts import DEVICE, KINDS, MAIN_STREAM, Op
from hosim.errors import GraphError
from hosim.plain_text import shown
from hosim.units import LARGEST

_FIGURES = ("duration_ns", "flops", "bytes_accessed", "workspace_bytes")


def check_graph(tensors: Tensors, ops: Ops) -> None:
    """Raise :class:`GraphError` at the first contradiction, with its path as in the file format."""
    if not (
        tensors.distinct()
        and ops.distinct()
        and _figures_fit(tensors, ops)
        and _names_fit(tensors, ops)
    ):
        _explain_tensors(tensors)
        _explain_ops(tensors, ops)


def _figures_fit(tensors: Tensors, ops: Ops) -> bool:
    """Return whether nothing contradicts itself in what is the same for all that are alike: the
    rules of :func:`_explain_tensors` and :func:`_explain_ops` without saying which is broken.
    """
    streams = {(op.stream, op.processor) for op in ops.alike}
    return (
        not any([tensor.of in tensors.positions for tensor in tensors.alike if tensor.of])
        and {tensor.kind for tensor in tensors.alike} <= frozenset(KINDS)
        and all([0 <= tensor.size_bytes <= LARGEST for tensor in tensors.alike])
        and len({stream for stream, _ in streams}) == len(streams)
        and all(
            [0 <= (getattr(op, label) or 0) <= LARGEST for op in ops.alike for label in _FIGURES]
        )
        and not any([_wrong_processors(op) for op in ops.alike if op.also_on])
        and not (any([op.also_on for op in ops.alike]) and _taken_streams(ops))
    )


def _names_fit(tensors: Tensors, ops: Ops) -> bool:
    """Return whether each op names tensors that are there, each once in a list, and earlier ops."""
    if not ops.named:
        return True
    import numpy as np  # here, as it takes longer to import than commands without a graph take

    named, listed = np.asarray(ops.named), ops.listed()
    op, which = listed // len(ops.lists), listed % len(ops.lists)
    made, awaited = [which == ops.lists.index(field) for field in ("outputs", "deps")]
    if not ((named >= 0) & (named < np.where(awaited, op, len(tensors)))).all():
        return False
    first_made = np.full(len(tensors), len(ops), "i")
    first_made[named[made][::-1]] = op[made][::-1]
    first_made[tensors.numbers(lambda tensor: bool(tensor.persistent or tensor.home), "?")] = -1
    used = ~(made | awaited)
    if (first_made[named[used]] >= op[used]).any():
        return False
    several = (np.diff(ops.starts()) > 1)[listed] & ~awaited
    each = np.sort(listed[several] * len(tensors) + named[several])
    return not (each[1:] == each[:-1]).any()


def _taken_streams(ops: Ops) -> dict[int, str]:
    """By position, the ops that may move to a stream that has ops of another processor, each with
    that stream.

    An op that moves to another processor is on the stream of that name there, one that moves to the
    device on the main stream.
    """
    owner = {op.stream: op.processor for op in ops.alike}
    count = Counter([op.stream for op in ops.each()])
    taken: dict[int, str] = {}
    for i, op in enumerate(ops.each()):
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


def _explain_tensors(tensors: Tensors) -> None:
    names, index = set[str](), {tensor.name for tensor in tensors}
    for i, tensor in enumerate(tensors):
        _check_name("tensor", tensor.name, names, f"tensors[{i}].name")
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


def _check_name(what: str, name: str, names: set[str], where: str) -> None:
    if not name or name in names:
        raise GraphError(
            f"{what} name {name!r} is {'listed twice' if name else 'empty'}", where=where
        )
    names.add(name)


def _explain_ops(tensors: Tensors, ops: Ops) -> None:
    names = set[str]()
    written, processors, taken = bytearray(len(tensors)), dict[str, str](), _taken_streams(ops)
    for i, op in enumerate(ops):
        _check_name("op", op.name, names, f"ops[{i}].name")
        if processors.setdefault(op.stream, op.processor) != op.processor:
            message = (
                f"op {op.name!r} is on the stream {op.stream!r} with ops of another "
                "processor; give it a stream of its own"
            )
            raise GraphError(message, where=f"ops[{i}].processor")
        for label in _FIGURES:
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
