"""The peak of a step without hosim, by the lifetimes that Python gives its tensors. Imports torch.

A traced program knows when an op last reads a tensor. Eager code holds more: autograd keeps what it
saves until backward has passed, and a local variable what it names until its function ends. So the
step runs once more, eagerly and on fake tensors, and the storages that are alive are counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNSIZED = (torch.ops.aten.mkldnn_rnn_layer.default,)
"""Ops that make a buffer whose size torch does not know beforehand."""


class _Alive(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for the type checker
    """Counts the bytes of fake storages that are alive, and their most."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self.is_known = True
        self._bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}  # by address, unique among the living

    def see(self, value: Any) -> None:
        """Count the storages of the tensors in a value, each once."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, FakeTensor) and tensor.layout == torch.strided:
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
        result = func(*args, **(kwargs or {}))
        self.is_known &= func not in _UNSIZED
        self.see(result)
        return result


def eager_peak_bytes(held: Iterable[Any], run: Callable[[], object]) -> int | None:
    """The most bytes that are alive while ``run`` runs on fakes: of ``held``, which outlive it, and
    of what it makes.

    ``None`` where it cannot run so, as it looks at what tensors contain, or at a device that is not
    here; or where it makes a buffer of unknown size, as an LSTM on the CPU does.
    """
    alive = _Alive()
    alive.see(list(held))
    try:
        with alive:
            run()
    except Exception:  # whatever torch and the user's code raise, which ran while it was traced
        return None
    return alive.peak_bytes if alive.is_known else None
