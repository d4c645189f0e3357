"""A dispatch mode that watches a torch program run and records its effect on memory. Imports torch.

The program runs on fake tensors, which have storages, views and sizes but no contents, so an 8B
model takes no memory. The mode sees the aten ops below torch's composite ones, such as the
``clone`` and ``bmm`` inside ``matmul``. It decides by the effect on storages, not by the names of
ops: an op that returns memory of its arguments and writes none (by the alias annotations of its
schema) is a view and costs nothing; every other op is a :class:`Kernel`.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from hosim.analysis.costmodel.kernels import (
    UNKNOWN,
    KernelSizes,
    causal_kernel,
    full_kernel,
    product_kernel,
)
from hosim.errors import InputError
from hosim.io.importers.aten_flops import CallShapes, aten_flops
from hosim.io.importers.stored import Use
from hosim.io.importers.torch_programs import torch_guard
from hosim.io.importers.torch_programs.torch_uses import (
    GATHERS,
    OVERWRITES,
    extent,
    grouped_bytes,
    uses_of,
)
from hosim.limits import limit, refusal, within

aten = torch.ops.aten

DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    **{getattr(torch, name): "fp8" for name in dir(torch) if name.startswith("float8_")},
}
"""hosim's names of torch's dtypes; the others keep torch's (``int8``, ``bool``)."""

_SCATTERS = {
    aten.index_put_: 2,
    aten.index_copy_: 3,
    aten.index_add_: 3,
    aten.scatter_: 3,
    aten.scatter_add_: 3,
}
"""In-place ops that touch at most as many bytes of their first argument as the argument at this
position has.
"""

_ALLOCATIONS = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.empty_permuted,
}
"""Ops that write nothing into the memory that they return."""

_WRITE_STATISTICS = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm")
"""Ops that write their running statistics in training, which their schemas do not declare."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One computation below torch's composite ops; storages are given by number.

    ``random``: it draws from torch's generator. ``kernel``: its class of kernels, and the sizes.
    ``uses``: its uses of storages that are watched.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    bytes_accessed: int
    flops: int
    dtype: str
    random: bool = False
    kernel: KernelSizes = UNKNOWN
    uses: tuple[Use, ...] = ()


class KernelRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Numbers storages in the order of appearance, counts the bytes of live ones, and records
    kernels.

    ``sizes`` and ``shapes`` are by storage number; a shape is that of the first tensor seen on the
    storage. ``live_bytes`` are the bytes of live storages; ``peak_bytes`` is their maximum since it
    was last reset. ``watched`` are the storages for which the uses of parts are recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.kernels: list[Kernel] = []
        self.live_bytes = 0
        self.peak_bytes = 0
        self.watched: frozenset[int] = frozenset()
        self._changes: Counter[int] = Counter()
        self._calls, self._most = 0, limit("kernels")
        self._alive: dict[
            int, tuple[int, weakref.ref[Any]]
        ] = {}  # by address, which is unique among live storages

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, a new one if the storage has not been seen.
        Raises :class:`InputError` if the tensor has no storage.
        """
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            raise InputError(
                f"a tensor of layout {tensor.layout} has no single storage; export the model with "
                "strided tensors"
            ) from None
        address = storage._cdata
        known = self._alive.get(address)
        if known is not None:
            return known[0]
        number = len(self.sizes)
        size = storage.nbytes()
        self._alive[address] = number, weakref.ref(storage, lambda _: self._dead(address))
        self.sizes.append(size)
        self.shapes.append(tuple(tensor.shape))
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return number

    def _dead(self, address: int) -> None:
        number, _ = self._alive.pop(address)
        self.live_bytes -= self.sizes[number]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._calls += 1
        if self._calls > self._most:
            raise refusal("kernels")
        _check_dtypes(func.overloadpacket, args)
        pieces = torch_guard.pieces(func.overloadpacket, args, kwargs)
        if pieces is not None:
            within("kernels", pieces)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            result = _on_meta(func, args, kwargs, error)
        before = len(self.sizes)
        outputs = [(self.number(t), t) for t in tensors((result,))]
        written = _written(func._schema, args, kwargs)
        if not written and all(number < before for number, _ in outputs):
            return result
        inputs = [(self.number(t), t) for t in tensors((*args, *kwargs.values()))]
        targets = {id(t) for t, _ in written}
        reads = {(number, _place(t)): t for number, t in inputs if id(t) not in targets}
        made = {(number, _place(t)): t for number, t in outputs if number >= before}
        flops = _flops(func.overloadpacket, args, kwargs, result)
        uses = (
            ()
            if func.overloadpacket in _ALLOCATIONS
            else self._uses(func, args, kwargs, list(reads.values()), written)
        )
        self._changes.update(self.number(t) for t, _ in written)
        self.kernels.append(
            Kernel(
                reads=tuple(dict.fromkeys(number for number, _ in reads)),
                writes=tuple(
                    dict.fromkeys(
                        [*(self.number(t) for t, _ in written), *(number for number, _ in made)]
                    )
                ),
                bytes_accessed=_traffic(
                    func.overloadpacket, args, list(reads.values()), list(made.values()), written
                ),
                flops=flops,
                # the dtype of a matrix unit's operands, not of its accumulator or of attention's
                # statistics
                dtype=_dtype(
                    [args[0]] if flops else [*(t for _, t in inputs), *(t for _, t in outputs)]
                ),
                # the CPU's fused attention has this tag, too, but drops nothing
                random=torch.Tag.nondeterministic_seeded in func.tags
                and "attention" not in func.overloadpacket.__name__,
                kernel=_kernel(func.overloadpacket, args, kwargs, result, flops),
                uses=uses,
            )
        )
        return result

    def _uses(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        reads: Sequence[torch.Tensor],
        written: Sequence[tuple[torch.Tensor, bool]],
    ) -> tuple[Use, ...]:
        """Return a kernel's uses of storages that are watched."""
        watched: list[tuple[int, torch.Tensor, bool | None]] = [
            (number, t, None) for t in reads if (number := self.number(t)) in self.watched
        ]
        watched += [
            (number, t, out) for t, out in written if (number := self.number(t)) in self.watched
        ]
        if not watched:
            return ()
        return tuple(
            uses_of(
                func,
                args,
                kwargs,
                watched,
                lambda t: (self.number(t), self._changes[self.number(t)], _place(t)),
            )
        )


def _on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """Return the result of an op that the CPU lacks, such as ``histc`` of integers, from its meta
    kernel, which does not depend on devices.

    Raises the CPU's ``error`` for an op that returns views or writes its arguments, and if the meta
    kernel fails, too.
    """
    schema = func._schema
    if schema.is_mutable or any(value.alias_info is not None for value in schema.returns):
        raise error

    def move(value: Any, device: str) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=device
            )
        return torch.device(device) if isinstance(value, torch.device) else value

    try:
        result = func(
            *(tree_map(lambda v: move(v, "meta"), a) for a in args),
            **tree_map(lambda v: move(v, "meta"), kwargs),
        )
    except (RuntimeError, NotImplementedError):
        raise error from None
    return tree_map(lambda v: move(v, "cpu"), result)


_OF_ONE_DTYPE = {
    **dict.fromkeys((aten.mm, aten.mv), (0, 1)),
    **dict.fromkeys((aten.addmm, aten.addmv, aten.convolution), (0, 1, 2)),
    **dict.fromkeys((aten.index_add, aten.index_add_), (0, 3)),
    **dict.fromkeys((aten.index_put, aten.index_put_), (0, 2)),
}
"""Ops that torch runs only on tensors of one dtype, which its fakes do not check, with the
positions of these tensors.
"""

_SCALED = {
    aten.native_layer_norm: (0, 2, 3),
    **dict.fromkeys(
        (aten.native_group_norm, aten.native_batch_norm, aten._native_batch_norm_legit), (0, 1, 2)
    ),
}
"""Norms, whose weights have the input's dtype or fp32, with the positions of these tensors."""


def _check_dtypes(packet: Any, args: tuple[Any, ...]) -> None:
    """Raise :class:`InputError` for dtypes that torch refuses but its fakes accept."""
    places: tuple[int, ...] = _OF_ONE_DTYPE.get(packet, _SCALED.get(packet, ()))
    found = [args[i].dtype for i in places if i < len(args) and isinstance(args[i], torch.Tensor)]
    also = {torch.float32} if packet in _SCALED else set()
    if set(found[1:]) - {*found[:1], *also}:
        said = ", ".join(str(dtype).removeprefix("torch.") for dtype in found)
        raise InputError(
            f"torch refuses {packet.__name__} of these dtypes: {said}; convert one of the tensors, "
            "or run the model under autocast"
        )


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and mappings."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)
        elif isinstance(value, dict):
            yield from tensors(value.values())


def _written(
    schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[torch.Tensor, bool]]:
    """Return the arguments that an op writes, by its schema, and whether each is an ``out``
    argument.
    """
    if schema.name in _WRITE_STATISTICS:
        given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
        names = ("running_mean", "running_var") if given.get("training") else ()
        return [(t, False) for name in names for t in tensors((given.get(name),))]
    if not schema.is_mutable:
        return []
    written: list[tuple[torch.Tensor, bool]] = []
    for i, argument in enumerate(schema.arguments):
        if argument.name == "grads" and kwargs.get("grad_scale") is None:
            continue  # a fused optimizer writes the gradients only if it unscales them
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            written += [(t, argument.is_out) for t in tensors((value,))]
    return written


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The part of its storage that a tensor covers."""
    return tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _traffic(
    packet: Any,
    args: tuple[Any, ...],
    reads: list[torch.Tensor],
    made: list[torch.Tensor],
    written: list[tuple[torch.Tensor, bool]],
) -> int:
    """The bytes of the distinct views that an op reads and writes, in the device tier."""
    if packet in _ALLOCATIONS:
        return 0
    if packet in GATHERS and made:
        result = sum(map(extent, made))
        return result + sum(min(extent(t), result) if t is args[0] else extent(t) for t in reads)
    touched = [(extent(t), 1 if out or packet in OVERWRITES else 2) for t, out in written]
    if packet in _SCATTERS and len(args) > _SCATTERS[packet]:
        values = args[_SCATTERS[packet]]
        limit = extent(values) if isinstance(values, torch.Tensor) else touched[0][0]
        touched = [(min(size, limit), times) for size, times in touched]
    grouped = grouped_bytes(packet, args)
    read = sum(grouped if grouped is not None and t is args[1] else extent(t) for t in reads)
    return read + sum(map(extent, made)) + sum(size * times for size, times in touched)


def _flops(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """FLOP by torch's own counter registry, or by hosim's formulas for ops that it lacks: attention
    on the CPU and grouped matmul.
    """
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    return (
        aten_flops(
            CallShapes(
                packet.__name__,
                _shapes(args),
                args,
                _shapes(result if isinstance(result, tuple) else (result,)),
            )
        )
        or 0
    )


def _shapes(values: Sequence[Any]) -> list[Sequence[int] | None]:
    return [value.shape if isinstance(value, torch.Tensor) else None for value in values]


_PRODUCTS = {aten.mm: 1, aten.bmm: 1, aten.addmm: 2, aten.baddbmm: 2}
"""Products, with the position of their second operand."""

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_GRADIENT = aten._scaled_dot_product_flash_attention_for_cpu_backward
_GRADIENTS = {"context_attention": "context_gradient", "full_attention": "full_gradient"}


def _kernel(
    packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, flops: int
) -> KernelSizes:
    """The class and sizes of products of rows with one matrix, and of attention that is causal or
    has no mask, and its gradient; else :data:`UNKNOWN`.
    """
    if packet in _PRODUCTS:
        return product_kernel(result.shape, args[_PRODUCTS[packet]].shape, flops)
    if packet in (_ATTENTION, _ATTENTION_GRADIENT):
        backward = packet is _ATTENTION_GRADIENT
        q, k, v = args[1:4] if backward else args[:3]
        named = "is_causal" in kwargs
        place = 7 if backward else 4  # after the dropout
        causal = kwargs["is_causal"] if named else len(args) > place and args[place]
        queries, keys = q.shape[2], k.shape[2]
        if kwargs.get("attn_mask") is None and (not causal or queries in (1, keys)):
            kernel = causal_kernel if causal and queries > 1 else full_kernel
            name, sizes = kernel(q.shape, k.shape, v.shape[3])
            if not backward:
                return name, sizes
            return (_GRADIENTS[name], sizes) if name in _GRADIENTS else UNKNOWN
    return UNKNOWN


def _dtype(involved: list[torch.Tensor]) -> str:
    """The dtype of a computation: its widest floating-point one, else the widest of all."""
    dtypes = {t.dtype for t in involved}
    widest = max(
        dtypes,
        key=lambda d: (d.is_floating_point or d.is_complex, d.itemsize, str(d)),
        default=torch.float32,
    )
    return DTYPES.get(widest) or str(widest).removeprefix("torch.")
