"""The assumptions of a captured program about its model, which must still hold at each call.
Imports torch.
"""

import torch

from hosim.errors import InputError
from hosim.on_torch.lower.compiled import require_no_hooks
from hosim.on_torch.lower.reached_state import Reached
from hosim.on_torch.lower.replicas import unwrapped

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
    """What torch asks of its modes and switches when it chooses ops and makes tensors."""
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
