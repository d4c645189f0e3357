"""The peak of a step without hosim, by the lifetimes that Python gives its tensors. Imports torch.

A traced program knows when an op last reads a tensor. Eager code holds more: autograd keeps what it
saves until backward has passed, and a local variable what it names until its function ends. So the
step runs once more, eagerly and on fake tensors, and the storages that are alive are counted.

Eager code may look at integers that it has made itself, such as positions, and leave out a mask if
they are in order. So small tensors of whole numbers that depend on no fake are real. Where such a
tensor is written from a fake, nobody knows what it contains, and the peak of code that looks at one
afterwards is not known.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from hosim.errors import InputError
from hosim.on_torch.lower.op_schema import by_name, draws_or_writes, looks

_UNSIZED = (torch.ops.aten.mkldnn_rnn_layer.default,)
"""Ops that make a buffer whose size torch does not know beforehand."""
_FUSED = (
    torch.ops.aten._transformer_encoder_layer_fwd.default,
    torch.ops.aten._native_multi_head_attention.default,
    torch.ops.aten._nested_tensor_from_mask_left_aligned.default,
)
"""Kernels of a whole layer, which eager torch takes without gradients and tracing does not."""
_REAL_BYTES = 1 << 20
"""Larger tensors are never real."""


class _Alive(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Counts the bytes of fake storages that are alive, and their most."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self.is_known = True
        self._is_overwritten = False  # a real tensor, from a fake
        self._bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}  # by address, unique among the living

    def see(self, value: Any) -> None:
        """Count the storages of the tensors in a value, each once."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                address, size = storage._cdata, storage.nbytes()
                if address not in self._alive:
                    self._alive[address] = weakref.ref(storage, self._gone(address, size))
                    self._bytes += size
                    self.peak_bytes = max(self.peak_bytes, self._bytes)

    def _gone(self, address: int, size: int) -> Callable[[object], None]:
        def gone(_: object) -> None:
            del self._alive[address]
            self._bytes -= size

        return gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload):  # it has no schema
            result = func(*args, **(kwargs or {}))
            self.see(result)
            return result
        if func in _FUSED:
            raise InputError(
                "torch runs layers of attention as one kernel without gradients, which has other "
                "bits than the captured ops; call torch.backends.mha.set_fastpath_enabled(False)"
            )
        self.is_known &= func not in _UNSIZED
        is_looking = looks(func)
        may_be_real = not draws_or_writes(func) and not any(
            isinstance(one, FakeTensor) for one in tree_leaves((args, kwargs))
        )
        self._is_overwritten |= _writes_real(func, args, kwargs or {})
        self.is_known &= not (is_looking and self._is_overwritten)
        result = None
        if not (may_be_real and is_looking):
            result = func(*args, **(kwargs or {}))
            may_be_real = may_be_real and all(map(_is_of_numbers, tree_leaves(result)))
        if may_be_real:
            with _disable_current_modes():
                result = func(*args, **(kwargs or {}))
        self.see(result)
        return result


def _writes_real(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an op that is given a fake writes a tensor that is none."""
    if not func._schema.is_mutable:
        return False
    given = by_name(func, args, kwargs)
    written = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    return any(isinstance(one, FakeTensor) for one in tree_leaves(given)) and any(
        isinstance(one, torch.Tensor) and not isinstance(one, FakeTensor)
        for one in tree_leaves([given.get(name) for name in written])
    )


def _is_of_numbers(made: Any) -> bool:
    """Return whether a fake result is a small tensor of whole numbers on the CPU."""
    return (
        isinstance(made, FakeTensor)
        and made.device.type == "cpu"
        and not (made.is_floating_point() or made.is_complex())
        and made.untyped_storage().nbytes() <= _REAL_BYTES
    )


def eager_peak_bytes(held: Iterable[Any], run: Callable[[], object]) -> int | None:
    """The most bytes that are alive while ``run`` runs on fakes: of ``held``, which outlive it, and
    of what it makes.

    ``None`` where it cannot run so, as it looks at what tensors contain, or at a device that is not
    here; or where it makes a buffer of unknown size, as an LSTM on the CPU does. Raises
    :class:`InputError` where it takes another kernel than when it is traced.
    """
    alive = _Alive()
    alive.see(list(held))
    try:
        with alive:
            run()
    except InputError:
        raise
    except Exception:  # whatever torch and the user's code raise, which ran while it was traced
        return None
    return alive.peak_bytes if alive.is_known else None
