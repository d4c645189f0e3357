"""The record of a walk over a program with known shapes: storages and the steps that use them. It
needs no weights and no framework.

A :class:`StaticTensor` is a view of a storage. Bytes follow from shapes, views share them, and a
step lists the tensors that one operator reads, makes and overwrites. :meth:`Recording.graph` turns
the record into a workload graph.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import UNKNOWN, KernelSizes
from hosim.data.unknown_ops import COUNTED_KINDS, UNKNOWN_OPS
from hosim.errors import InputError
from hosim.graph import PERSISTENT_KINDS, Graph, GraphBuilder
from hosim.io.importers.stored.storage_parts import (
    Cut,
    Use,
    ViewedBytes,
    add_parts,
    cut_all,
    used_by,
    whole,
)

ELEMENTS: Mapping[int, tuple[str, int]] = {
    1: ("fp32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    10: ("fp16", 16),
    11: ("fp64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bf16", 16),
}
"""Element types (hosim's name, bits) by the numbers that ONNX and MindIR share; their other numbers
differ.
"""

LARGEST = 1 << 60
"""A limit in bytes above any tensor; only damaged files have such sizes."""


@dataclass(frozen=True, slots=True)
class StaticTensor:
    """A tensor: the number of its storage, its shape, its element type (``fp32``, ``int64``) and
    the bits of an element.
    """

    storage: int
    shape: tuple[int, ...]
    dtype: str
    bits: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the contiguous elements; types of less than a byte are packed."""
        return -(-self.elements * self.bits // 8)


@dataclass(frozen=True, slots=True)
class UsedPart:
    """The parts that an operator uses of its first input, and of the tensors that it writes.

    With ``gathers`` it reads only as many bytes as it makes: those in ``shown``, or else those that
    its other inputs choose. ``scatters`` is the number of bytes that it writes at places which
    these choose.
    """

    gathers: bool = False
    shown: ViewedBytes | None = None
    scatters: int | None = None


@dataclass(frozen=True, slots=True)
class _Storage:
    name: str
    size_bytes: int
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    kind: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    mutates: Sequence[int]
    flops: int
    bytes_accessed: int
    dtype: str
    kernel: KernelSizes
    unknown: bool
    uses: Sequence[Use]


@dataclass(frozen=True, slots=True)
class _Way:
    """One branch that a program may take, as recorded, with the result of its walk."""

    result: Any
    storages: Sequence[_Storage]
    steps: Sequence[_Step]

    @property
    def work(self) -> tuple[int, int]:
        """FLOP and bytes made, by which the larger of two branches is chosen."""
        return sum(step.flops for step in self.steps), sum(s.size_bytes for s in self.storages)


class Recording:
    """Storages and steps in the order in which they appear."""

    def __init__(self) -> None:
        self._storages: list[_Storage] = []
        self._steps: list[_Step] = []
        self._kinds: dict[int, str] = {}
        self._branches = 0
        self._changes: Counter[int] = Counter()

    def tensor(
        self, name: str, shape: Sequence[int], dtype: tuple[str, int], kind: str = "activation"
    ) -> StaticTensor:
        """Add a tensor with a storage of its own. Raises :class:`InputError` for a shape that no
        tensor can have.
        """
        made = StaticTensor(len(self._storages), tuple(shape), *dtype)
        if any(n < 0 for n in shape) or made.size_bytes >= LARGEST:
            raise InputError(
                f"tensor {name[:100]!r} has the shape {list(shape)[:16]}; expected sizes of 0 or "
                "more, below 2^60 bytes"
            )
        self._storages.append(_Storage(name, made.size_bytes, kind, made.shape))
        return made

    def turn(self, tensor: StaticTensor, kind: str) -> None:
        """Change the kind of a tensor's storage."""
        self._kinds[tensor.storage] = kind

    def kind_of(self, tensor: StaticTensor) -> str:
        """Return the current kind of a tensor's storage."""
        return self._kinds.get(tensor.storage, self._storages[tensor.storage].kind)

    def step(
        self,
        name: str,
        kind: str,
        reads: Sequence[StaticTensor],
        makes: Sequence[StaticTensor],
        writes: Sequence[StaticTensor] = (),
        *,
        flops: int = 0,
        kernel: KernelSizes = UNKNOWN,
        part: UsedPart | None = None,
        unknown: bool = False,
    ) -> None:
        """Record an operator. ``part`` gives the parts of its tensors that it uses, if not all.

        ``kernel``: its class of kernels, and the sizes. ``unknown``: its computation is unknown; an
        operator of a kind that multiplies is unknown without FLOP, too. Raises :class:`InputError`
        for impossible sizes.
        """
        made = sum(t.size_bytes for t in makes)
        seen = {(t.storage, t.shape): t.size_bytes for t in reads}
        read = sum(seen.values())
        part = part or UsedPart()
        if part.gathers and reads:
            read -= max(reads[0].size_bytes - made, 0)
        accessed = read + made + sum(2 * t.size_bytes for t in writes)
        if max(flops, accessed) >= LARGEST * 1024:
            raise InputError(
                f"operator {name[:100]!r} would take {max(flops, accessed):.1e} FLOP or bytes; "
                "its shapes are damaged"
            )
        written = dict.fromkeys(t.storage for t in writes)
        own = dict.fromkeys(t.storage for t in makes)
        inputs = [
            s for s in dict.fromkeys(t.storage for t in reads) if s not in written and s not in own
        ]
        # the dtype of a matrix unit's operands, as in ...torch_programs.torch_kernels
        dtype = _widest(reads[:1] if flops else (*reads, *makes, *writes))
        unknown = not flops and (unknown or (kind in COUNTED_KINDS and bool(made or writes)))
        uses = self._uses(reads, writes, part, made)
        self._changes.update(written.keys())
        self._steps.append(
            _Step(
                name,
                kind,
                inputs,
                list(own),
                list(written),
                flops,
                accessed,
                dtype,
                kernel,
                unknown,
                uses,
            )
        )

    def _uses(
        self,
        reads: Sequence[StaticTensor],
        writes: Sequence[StaticTensor],
        part: UsedPart,
        made: int,
    ) -> list[Use]:
        """Return the uses of an operator that makes ``made`` bytes."""
        gathered = made if part.gathers else None
        which = tuple((t.storage, t.shape, self._changes[t.storage]) for t in reads[1:]) or len(
            self._steps
        )
        written = {t.storage for t in writes}

        def use(
            t: StaticTensor, place: ViewedBytes | None, count: int | None, changes: bool
        ) -> Use:
            size = self._storages[t.storage].size_bytes
            some = (
                count
                if count is not None and place is None and 0 < count < t.size_bytes == size
                else None
            )
            return Use(
                t.storage, place or whole(size), some, None if some is None else which, changes
            )

        uses = [
            use(t, None if n else part.shown, None if n else gathered, False)
            for n, t in enumerate(reads)
            if t.storage not in written
        ]
        return uses + [use(t, None, part.scatters, True) for t in writes]

    def larger(self, *walks: Callable[[], Any]) -> Any:
        """Record the branch with the most FLOP, or with the most bytes made if these are equal; the
        first of equals. Return the result of its walk.

        A branch that raises :class:`InputError` is skipped, because its shapes do not fit; if all
        branches do, the first error is raised.
        """
        self._branches += 1
        ways: list[_Way] = []
        errors: list[InputError] = []
        for walk in walks:
            storages, steps = len(self._storages), len(self._steps)
            try:
                result = walk()
                ways.append(_Way(result, self._storages[storages:], self._steps[steps:]))
            except InputError as error:
                errors.append(error)
            del self._storages[storages:], self._steps[steps:]
        if not ways:
            raise errors[0]
        taken = max(ways, key=lambda way: way.work)
        self._storages += taken.storages
        self._steps += taken.steps
        return taken.result

    def missing(self) -> dict[str, list[str]]:
        """Return lines for ``meta`` on decisions that depend on data."""
        if not self._branches:
            return {}
        return {
            "missing": [
                f"which of two ways the data take at {self._branches} places; the one with more "
                "FLOP is in the graph"
            ]
        }

    def graph(self, name: str, meta: Mapping[str, Any], results: Collection[StaticTensor]) -> Graph:
        """Return the workload graph; ``results`` are the tensors that the program returns. ``meta``
        gets the shape of every tensor.
        """
        if not self._steps:
            raise InputError("the model has no operator that computes; there is nothing to replay")
        returned = {t.storage for t in results}
        used = {n for step in self._steps for n in (*step.inputs, *step.outputs, *step.mutates)}
        builder = GraphBuilder(name)
        names: dict[int, str] = {}
        cuts, said = self._cuts_of()
        shapes: dict[str, list[int]] = {}
        tensor_names, step_names = _Names(), _Names()
        for n, storage in enumerate(self._storages):
            kind = self._kinds.get(n, storage.kind)
            if kind == "activation" and n not in used:
                continue
            if kind == "activation" and n in returned:
                kind = "output"
            names[n] = tensor_names.free(storage.name or "tensor")
            if n in cuts:
                add_parts(builder, names[n], cuts[n], kind)
            else:
                builder.tensor(names[n], storage.size_bytes, kind)
            shapes[names[n]] = list(storage.shape)
        unknown = []
        for place, step in enumerate(self._steps):
            inputs, outputs, mutates = used_by(
                str(place), step.inputs, step.outputs, step.mutates, names, cuts
            )
            op = builder.op(
                step_names.free(step.name or step.kind),
                step.kind,
                inputs=inputs,
                outputs=outputs,
                mutates=mutates,
                flops=step.flops,
                bytes_accessed=step.bytes_accessed,
                dtype=step.dtype,
                kernel=step.kernel[0],
                sizes=step.kernel[1],
            )
            if step.unknown:
                unknown.append(op)
        builder.meta = {**meta, **({UNKNOWN_OPS: unknown} if unknown else {}), "shapes": shapes}
        for key, lines in said.items():
            builder.meta[key] = [*builder.meta.get(key, ()), *lines]
        return builder.build()

    def _cuts_of(self) -> tuple[dict[int, Cut], dict[str, list[str]]]:
        """Return the storages that are in parts: none in a training step, whose gradients are
        whole.
        """
        kinds = [self._kinds.get(n, storage.kind) for n, storage in enumerate(self._storages)]
        if "optimizer_state" in kinds or "gradient" in kinds:
            return {}, {}
        held = {
            n: (s.name, s.size_bytes, s.shape)
            for n, s in enumerate(self._storages)
            if kinds[n] in PERSISTENT_KINDS
        }
        return cut_all(
            held,
            (
                (str(n), use)
                for n, step in enumerate(self._steps)
                for use in step.uses
                if use.storage in held
            ),
        )


class _Names:
    """Makes names unique: ``relu``, ``relu_2``, ``relu_3``."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def free(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1  # so that many equal names take no longer than distinct ones
            name = f"{wanted}_{self._taken[wanted]}"
        self._taken[name] = 1
        return name


def _widest(tensors: Sequence[StaticTensor]) -> str:
    floating = [t for t in tensors if t.dtype.startswith(("fp", "bf", "complex"))]
    return max(((t.bits, t.dtype) for t in floating or tensors), default=(32, "fp32"))[1]
