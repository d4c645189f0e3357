"""Policies that are not hosim's own: what they raise is no bug of hosim, but an error that names
the policy and the line in its file.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from hosim.cache_plan import CacheOp, MemoryView, RuntimeFactory, RuntimePolicy
from hosim.errors import HosimError, InputError

FAILURES = (Exception, SystemExit)
"""What a stranger's code may raise and hosim reports: a call of ``sys.exit`` as well, which would
end hosim with any code.
"""

_OURS = Path(__file__).parents[1]


class PolicyError(InputError):
    """An unknown policy, one whose plugin cannot be loaded, or a plugin's that fails."""


def bug(policy: str, error: BaseException) -> PolicyError:
    """The error for what a policy raised, with the last line on the way there in the first file
    that is not hosim's.
    """
    frames = extract_tb(error.__traceback__)
    file = next(
        (frame.filename for frame in frames if not Path(frame.filename).is_relative_to(_OURS)),
        frames[-1].filename,
    )
    place = [frame for frame in frames if frame.filename == file][-1]
    return PolicyError(
        f"policy {policy} has a bug: {type(error).__name__}: {error} ({place.filename}, line "
        f"{place.lineno})"
    )


@dataclass(frozen=True)
class GuardedFactory:
    """Makes the runtime policies of a stranger's plan for a graph of ``tensors`` tensors, each in a
    :class:`_Guarded`.
    """

    policy: str
    make: RuntimeFactory
    tensors: int

    def __call__(self) -> RuntimePolicy:
        """A fresh policy object."""
        try:
            return _Guarded(self.policy, self.make(), self.tensors)
        except HosimError:
            raise
        except FAILURES as error:
            raise bug(self.policy, error) from error


def guarded(policy: str, make: RuntimeFactory, tensors: int) -> RuntimeFactory:
    """``make`` with its failures named, unless it is one of hosim's own."""
    module = str(getattr(make, "__module__", ""))
    return make if module.partition(".")[0] == "hosim" else GuardedFactory(policy, make, tensors)


class _Guarded:
    """A stranger's :class:`~hosim.cache_plan.RuntimePolicy`."""

    def __init__(self, policy: str, inner: RuntimePolicy, tensors: int) -> None:
        self._policy = policy
        self._inner = inner
        self._tensors = tensors
        if getattr(inner, "inspected", None) is not None:
            self.inspected: Container[int] = _GuardedPositions(policy, inner)

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.before_op`."""
        return self._checked(lambda: self._inner.before_op(op, view))

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.make_room`."""
        return self._checked(lambda: self._inner.make_room(op, wanted_bytes, view))

    def _checked(self, decide: Callable[[], Iterable[CacheOp]]) -> list[CacheOp]:
        try:
            found = decide()
            if not isinstance(found, Iterable):
                raise PolicyError(
                    f"policy {self._policy} has a bug: expected cache ops to issue, got "
                    f"{type(found).__name__}"
                )
            decisions = list(found)
        except HosimError:
            raise
        except FAILURES as error:
            raise bug(self._policy, error) from error
        for one in decisions:
            if not isinstance(one, CacheOp):
                raise PolicyError(
                    f"policy {self._policy} has a bug: expected cache ops to issue, got "
                    f"{type(one).__name__}"
                )
            if not isinstance(one.tensor, int) or not 0 <= one.tensor < self._tensors:
                raise PolicyError(
                    f"policy {self._policy} has a bug: its {one.op} names tensor {one.tensor!r}; "
                    f"there are {self._tensors}"
                )
        return decisions


@dataclass(frozen=True)
class _GuardedPositions:
    """The positions before which a policy decides, which may change as it learns."""

    policy: str
    inner: RuntimePolicy

    def __contains__(self, op: object) -> bool:
        try:
            return op in self.inner.inspected  # type: ignore[attr-defined]  # a policy need not have it
        except FAILURES as error:
            raise bug(self.policy, error) from error
