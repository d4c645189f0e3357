"""Exchanges with other processes that an op has begun and that run beside later ops, until
something uses their tensors.
"""

from collections.abc import Iterable
from typing import Any


class ExchangesUnderWay:
    """The exchanges that have begun and not been waited for, by the tensor that each reads and
    writes.

    Torch's ``wait`` lets the device's queue wait, or the host for a CPU; either way what comes
    after it finds the result.
    """

    def __init__(self) -> None:
        self._works: dict[int, Any] = {}

    def begun(self, tensors: Iterable[int], work: Any) -> None:
        """An exchange of these tensors has begun; ``None`` is one that has ended."""
        if work is not None:
            for t in tensors:
                self._works[t] = work

    def settle(self, tensors: Iterable[int]) -> None:
        """Wait for what has begun with these tensors."""
        if self._works:
            for t in tensors:
                work = self._works.pop(t, None)
                if work is not None:
                    work.wait()

    def settle_all(self) -> None:
        """Wait for everything, in the order in which it began."""
        self.settle(list(self._works))

    def forget(self) -> None:
        """Wait for nothing: the run has failed, and another process may never answer."""
        self._works.clear()
