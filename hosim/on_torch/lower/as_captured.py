"""The assumptions of a captured program about its model, which must still hold at each call.
Imports torch.
"""

from __future__ import annotations

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
        if _modes(self._model) != self._modes:
            raise InputError(
                "the model was captured in another mode (train or eval, autocast or none); switch "
                "back to it, or offload it again"
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


def _modes(model: torch.nn.Module) -> list[bool]:
    return [is_autocast(), *(module.training for module in model.modules())]


def is_autocast() -> bool:
    """Return whether ops compute under autocast here."""
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
