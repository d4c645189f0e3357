"""Policies that are not hosim's own: an exception of theirs becomes an error that names the policy
and the line in its file.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from hosim.cache_plan import CacheOp, MemoryView, RuntimeFactory, RuntimePolicy
from hosim.errors import HosimError, InputError

FAILURES = (Exception, SystemExit)
"""The exceptions of other people's code that hosim reports; ``SystemExit`` is one, because a call
of ``sys.exit`` would end hosim with any code.
"""

_OURS = Path(__file__).parents[1]


class PolicyError(InputError):
    """An unknown policy, a plugin that cannot be loaded, or a policy that fails."""


def bug(policy: str, error: BaseException) -> PolicyError:
    """Return the error for a policy's exception; it names the first file of the traceback outside
    hosim, and that file's innermost line.
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
    """The factory of another author's runtime policies for a graph of ``tensors`` tensors; wraps
    each in :class:`_Guarded`.
    """

    policy: str
    make: RuntimeFactory
    tensors: int

    def __call__(self) -> RuntimePolicy:
        """Return a new policy object."""
        try:
            return _Guarded(self.policy, self.make(), self.tensors)
        except HosimError:
            raise
        except FAILURES as error:
            raise bug(self.policy, error) from error


def guarded(policy: str, make: RuntimeFactory, tensors: int) -> RuntimeFactory:
    """Return ``make`` wrapped so that failures name the policy; hosim's own unchanged."""
    module = str(getattr(make, "__module__", ""))
    return make if module.partition(".")[0] == "hosim" else GuardedFactory(policy, make, tensors)


class _Guarded:
    """Another author's :class:`~hosim.cache_plan.RuntimePolicy`, whose decisions are checked."""

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
    """The positions of the ops before which a policy decides; they may change during the replay."""

    policy: str
    inner: RuntimePolicy

    def __contains__(self, op: object) -> bool:
        try:
            return op in self.inner.inspected  # type: ignore[attr-defined]  # a policy need not have it
        except FAILURES as error:
            raise bug(self.policy, error) from error
