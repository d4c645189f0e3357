"""What ``torch.compile`` has made of a model, and which of it can be offloaded. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hosim.errors import InputError

_REFUSED = {
    "triton.cudagraphs": "CUDA graphs, which keep their addresses",
    "freezing": "freezing, which makes other parameters",
    "cpp_wrapper": "cpp_wrapper, whose program is not Python",
    "memory_planning": "memory_planning, which places tensors itself",
    "split_const_graph": "split_const_graph, which computes with parameters before the first call",
}


def uncompiled(model: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """The model that ``torch.compile`` was given, and the settings of inductor; ``None`` for a model that is not compiled.

    Raises :class:`InputError` for a model of which only parts are compiled, or in a way that cannot be offloaded.
    """
    if type(model).__name__ != "OptimizedModule":
        if isinstance(model, torch.nn.Module):
            _require_not_compiled(model)
        return model, None
    backend = getattr(model.dynamo_ctx, "callback", None)
    while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = inner
    name = getattr(backend, "compiler_name", None)
    if name != "inductor":
        got = name or getattr(backend, "__name__", None) or type(backend).__name__
        raise InputError(f"the model is compiled by torch.compile with another backend than inductor ({got}); offload it uncompiled")
    settings: dict[str, Any] = dict(backend.config)  # type: ignore[union-attr]
    require_plannable(settings)
    if getattr(backend, "dynamic", None):
        raise InputError("the model is compiled with dynamic=True, and a plan is for fixed sizes; compile it without")
    _require_not_compiled(model._orig_mod)
    return model._orig_mod, settings


def require_plannable(settings: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` for settings of inductor by which it decides what hosim plans."""
    for setting, what in _REFUSED.items():
        if settings.get(setting):
            raise InputError(f"the model is compiled with {what}, and hosim plans where tensors are; compile it without")


def _require_not_compiled(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            place = f"module {name!r}" if name else "the model"
            raise InputError(
                f"{place} is compiled in place by torch.compile, and hosim compiles a whole model; offload torch.compile(model) "
                "of one without compiled parts"
            )
