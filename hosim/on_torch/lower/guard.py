"""Guards an offloaded model: using its tensors is an error, where torch would read memory that is
not there; and what its captured program assumes of it must still hold at each call.

While a model is offloaded, its tensors are of a class that answers questions about themselves
(shape, dtype) and refuses everything else: reading, writing, copying, saving. Imports torch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hosim.errors import InputError
from hosim.on_torch.lower.compiled import require_no_hooks
from hosim.on_torch.lower.held_contents import MISSING
from hosim.on_torch.lower.reached_state import Reached
from hosim.on_torch.lower.replicas import unwrapped
from hosim.on_torch.lower.sharded_tensors import local, sharded_modules

_ANSWERED = (
    *(
        "shape",
        "dtype",
        "device",
        "layout",
        "grad",
        "_backward_hooks",
        "_post_accumulate_grad_hooks",
        "requires_grad",
        "is_leaf",
        "is_cuda",
        "is_sparse",
        "is_meta",
        "ndim",
        "nbytes",
        "itemsize",
    ),
    *(
        "size",
        "dim",
        "numel",
        "nelement",
        "stride",
        "is_contiguous",
        "element_size",
        "storage_offset",
        "is_floating_point",
        "is_complex",
        "untyped_storage",
    ),
)


@cache
def _answers() -> frozenset[Any]:
    """The functions that read no bytes of a tensor, as ``__torch_function__`` receives them."""
    found = [getattr(torch.Tensor, name) for name in _ANSWERED]
    return frozenset([*found, *(one.__get__ for one in found), torch.Tensor.grad.__set__])


class GuardedTensor:
    """Mixed into the class of an offloaded tensor."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Answer, or raise :class:`InputError`."""
        if function in _answers():
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        raise InputError(cls.reason)

    reason = "this tensor belongs to an offloaded model: first close what hosim.offload returned"

    def __repr__(self, **_: Any) -> str:
        return f"<offloaded tensor {tuple(self.shape)} of {self.dtype}>"  # type: ignore[attr-defined]


class Lost(GuardedTensor):
    """Mixed into the class of a tensor whose contents were lost in a failure."""

    reason = (
        "the contents of this tensor were lost when its offloaded model failed: make or load "
        "the model again"
    )


class NotKept(GuardedTensor):
    """Mixed into the class of what stands for an object that code kept while it was captured."""

    reason = (
        "the model or its loss keeps this anew at each call, which a captured program does not: "
        "return it from the model"
    )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise :class:`InputError`."""
        raise InputError(cls.reason)

    def __repr__(self, **_: Any) -> str:
        return "<kept at the capture alone>"


_AS_IT_IS = (type(None), bool, int, float, str, torch.Size, torch.dtype, type, FunctionType)
"""What code may keep at each call without a difference between one call and the next."""


class Guard:
    """Guards ``model`` and ``tensors`` until it is released.

    What code left under names while it was ``reached`` by the capture is there until then: numbers
    as they are, and for all else something that refuses to be used.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tensors: Iterable[torch.Tensor],
        reached: Reached | None = None,
    ) -> None:
        self._left = []
        for holder, name, value in reached.leaves if reached is not None else ():
            shown = value if isinstance(value, _AS_IT_IS) else _not_kept()
            self._left.append((holder, name, holder.get(name, MISSING), shown))
            assert reached is not None
            reached.take(holder, name, shown)
        self._show()
        guarded = {
            id(module): module
            for module in (model, *(module for module, _ in sharded_modules(model)))
        }
        self._modules = list(guarded.values())
        self._hooks = self._refusing()
        self._loading = model.register_load_state_dict_pre_hook(_refuse)
        self._guarded: list[tuple[Any, Any]] = [
            (tensor, type(tensor)) for tensor in {id(tensor): tensor for tensor in tensors}.values()
        ]
        for tensor, kind in self._guarded:
            tensor.__class__ = _kind(kind, GuardedTensor)

    def release(self) -> None:
        """Give all tensors their classes back, except those that have lost their bytes."""
        for hook in (*self._hooks, self._loading):
            hook.remove()
        for tensor, kind in self._guarded:
            own = local(tensor)
            is_lost = own.numel() and not own.untyped_storage().nbytes()
            tensor.__class__ = _kind(kind, Lost) if is_lost else kind
        self._guarded = []
        self._hide()
        self._left = []

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Within, what code left is not there, and the model may be called."""
        self._hide()
        for hook in self._hooks:
            hook.remove()
        try:
            yield
        finally:
            self._hooks = self._refusing()
            self._show()

    def _refusing(self) -> list[RemovableHandle]:
        return [module.register_forward_pre_hook(_refuse, prepend=True) for module in self._modules]

    def _show(self) -> None:
        for holder, name, _, shown in self._left:
            holder[name] = shown

    def _hide(self) -> None:
        for holder, name, before, shown in self._left:
            if holder.get(name, MISSING) is shown:
                if before is MISSING:
                    del holder[name]
                else:
                    holder[name] = before


def _not_kept() -> torch.Tensor:
    made = torch.empty(0)
    made.__class__ = _kind(torch.Tensor, NotKept)
    return made


def require_free(model: Any) -> None:
    """Raise :class:`InputError` for anything but a model, and for a model with an offloaded or lost
    tensor.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, got {type(model).__name__}", source="model")
    for tensor in (*model.parameters(), *model.buffers()):
        if isinstance(tensor, GuardedTensor):
            raise InputError(f"{type(model).__name__}: {tensor.reason}")
        if tensor.device.type not in ("cpu", "cuda", "meta"):
            raise InputError(
                f"{type(model).__name__} has tensors on {tensor.device}; expected all on the CPU "
                "or a GPU",
                source="model",
            )


@contextmanager
def unguarded(tensor: Any) -> Iterator[Any]:
    """The tensor as if it were not offloaded, while its contents are there."""
    kind = type(tensor)
    if isinstance(tensor, GuardedTensor):
        tensor.__class__ = kind.__mro__[2]
    try:
        yield tensor
    finally:
        tensor.__class__ = kind


@cache
def _kind(kind: Any, mixed: Any) -> Any:
    """The class of a tensor of class ``kind`` with ``mixed`` before it."""
    return type(kind)(f"{mixed.__name__}{kind.__name__}", (mixed, kind), {})


def _refuse(model: torch.nn.Module, *_: Any) -> None:
    raise InputError(
        f"this {type(model).__name__} is offloaded: call what hosim.offload returned, or close "
        "that first"
    )


# -- a model as it was captured --------------------------------------------------------------------


_MEMBERS = "_parameters", "_buffers", "_modules"


class AsCaptured:
    """A model's modes and members when it was captured, and what it reached of Python.

    ``called`` is what is called for it: the model, or its compiled one.
    """

    def __init__(
        self, model: torch.nn.Module, called: torch.nn.Module | None, reached: Reached
    ) -> None:
        self._model = model
        self._called = model if called is None else called
        self._modes = _modes(model)
        self._reached = reached
        self._members = [
            (name, now, dict(now))
            for name, module in unwrapped(model).named_modules()
            for now in (vars(module)[key] for key in _MEMBERS)
        ]

    def require(self) -> None:
        """Raise :class:`InputError` if the model is in another mode, has other members or hooks, or
        reaches other things.
        """
        for name, mode in _modes(self._model).items():
            if mode != self._modes[name]:
                raise InputError(
                    f"the model was captured in another mode ({name}); switch back to it, or "
                    "offload it again"
                )
        for name, now, before in self._members:
            if now.keys() != before.keys() or any(
                now[key] is not value for key, value in before.items()
            ):
                key = next(key for key in (*before, *now) if now.get(key) is not before.get(key))
                raise self._other(
                    f"module {name!r}" if name else type(unwrapped(self._model)).__name__, key
                )
        found = self._reached.changed(by_forward=False)
        if found is not None:
            raise self._other(*found)
        require_no_hooks(self._called)

    def _other(self, place: str, key: str) -> InputError:
        return InputError(
            f"{place} has another {key!r} than when it was captured; set it back, or offload the "
            "model again"
        )


def _modes(model: torch.nn.Module) -> dict[str, object]:
    """The modes and switches that torch asks when it chooses ops and makes tensors."""
    attention = torch.backends.cuda
    return {
        "train or eval": [module.training for module in model.modules()],
        "autocast or none": [
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
            for kind in ("cpu", "cuda")
        ],
        "kernels of attention": (
            attention.flash_sdp_enabled(),
            attention.mem_efficient_sdp_enabled(),
            attention.math_sdp_enabled(),
            attention.cudnn_sdp_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
        ),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "hooks of saved tensors": bool(torch._C._autograd._top_saved_tensors_default_hooks(False)),
    }


def is_autocast() -> bool:
    """Return whether ops compute under autocast here."""
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
