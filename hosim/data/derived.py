"""Values that are computed once from frozen data, and kept with it for as long as it lives."""

from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")


class Deriving:
    """Frozen data that keeps what is derived from it: a graph, a plan."""

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a copy or a pickle: what is derived is computed anew."""
        return {name: value for name, value in vars(self).items() if name != "_derived"}

    def derived(
        self, compute: Callable[Concatenate[Self, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Compute something from this once, and keep it.

        Parameters
        ----------
        compute
            A pure function of this and of the arguments.
        *args
            Hashable arguments.
        **kwargs
            Hashable arguments.

        Returns
        -------
        object
            ``compute(self, *args, **kwargs)``.
        """
        memo: dict[Hashable, Any] = self.__dict__.setdefault("_derived", {})
        key = (compute, args, tuple(sorted(kwargs.items()))) if args or kwargs else compute
        result: T = memo.get(key, memo)
        if result is memo:
            result = memo[key] = compute(self, *args, **kwargs)
        return result

    def derived_on(self, machine: M, compute: Callable[[Self, M], T]) -> T:
        """Compute something from this and a machine, and keep it until another machine is given.

        Parameters
        ----------
        machine
            The machine; an equal one is the same.
        compute
            A pure function of this and the machine.

        Returns
        -------
        object
            ``compute(self, machine)``.
        """
        memo: dict[Hashable, Any] = self.__dict__.setdefault("_derived", {})
        known = memo.get(("on", compute))
        if known is None or (known[0] is not machine and known[0] != machine):
            known = memo["on", compute] = machine, compute(self, machine)
        result: T = known[1]
        return result
