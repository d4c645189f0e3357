"""The result of ``torch.compile`` for a model, and the part of it that can be offloaded; models are
refused that do more than a captured program would: hooks and other processes. Imports torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as modules

from hosim.errors import InputError
from hosim.on_torch.lower.sharded_tensors import is_sharded

_REFUSED = {
    "triton.cudagraphs": "CUDA graphs, which keep their addresses",
    "freezing": "freezing, which makes other parameters",
    "cpp_wrapper": "cpp_wrapper, whose program is not Python",
    "memory_planning": "memory_planning, which places tensors itself",
    "split_const_graph": "split_const_graph, which computes with parameters before the first call",
}


@dataclass(frozen=True)
class CompiledModel:
    """A model compiled by ``torch.compile`` (``module``), and the settings of inductor."""

    module: Any = field(repr=False)
    settings: Mapping[str, Any]

    def require_cpu(self, device: torch.device) -> None:
        """Raise :class:`InputError` for a device whose programs hosim does not read."""
        if device.type != "cpu":
            raise InputError(
                f"compiled models run on the CPU's machine alone, not on {device}; offload the "
                "model uncompiled"
            )


def uncompiled(model: Any) -> tuple[Any, CompiledModel | None]:
    """The model that ``torch.compile`` was given, and what it made of it; ``None`` for a model that
    is not compiled.

    Raises :class:`InputError` for a model of which only parts are compiled, or in a way that cannot
    be offloaded.
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
        raise InputError(
            f"the model is compiled by torch.compile with another backend than inductor ({got}); "
            "offload it uncompiled"
        )
    settings: dict[str, Any] = dict(backend.config)  # type: ignore[union-attr]
    require_plannable(settings)
    if getattr(backend, "dynamic", None):
        raise InputError(
            "the model is compiled with dynamic=True, and a plan is for fixed sizes; compile it "
            "without"
        )
    _require_not_compiled(model._orig_mod)
    require_no_hooks(model)
    return model._orig_mod, CompiledModel(model, settings)


def require_plannable(settings: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` for settings of inductor by which it decides what hosim plans."""
    for setting, what in _REFUSED.items():
        if settings.get(setting):
            raise InputError(
                f"the model is compiled with {what}, and hosim plans where tensors are; compile "
                "it without"
            )


def _require_not_compiled(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        ):
            place = f"module {name!r}" if name else "the model"
            raise InputError(
                f"{place} is compiled in place by torch.compile, and hosim compiles a whole "
                "model; offload torch.compile(model) "
                "of one without compiled parts"
            )


# -- hooks and other processes ---------------------------------------------------------------------


_OF_MODULES = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}

_TRACED = ("torch.nn.utils.", "torch.distributed.fsdp._fully_shard.", "hosim.on_torch.lower.guard")
"""Modules whose hooks compute with tensors alone, so that tracing sees all that they do; those that
tracing replaces; the guard's own.
"""


def require_no_hooks(model: torch.nn.Module) -> None:
    """Raise :class:`InputError` for a hook of a module of ``model``, or of all modules: a captured
    program would not call it.
    """
    for attribute, what in _OF_MODULES.items():
        if any(_foreign(getattr(modules, f"_global{attribute}", {}))):
            raise InputError(
                f"all modules have {what}, which a captured program would not call; remove it"
            )
    for name, module in model.named_modules():
        for attribute, what in _OF_MODULES.items():
            if any(_foreign(getattr(module, attribute))):
                place = f"module {name!r}" if name else type(model).__name__
                raise InputError(
                    f"{place} has {what}, which a captured program would not call; remove it, or "
                    "do its work in forward"
                )


def require_one_process(model: torch.nn.Module, *, sharded: bool = False) -> None:
    """Raise :class:`InputError` for a model that exchanges gradients or parameters with other
    processes, but for ``sharded`` modules.
    """
    for module in model.modules():
        name = type(module).__name__
        if name == "FullyShardedDataParallel" or (is_sharded(module) and not sharded):
            raise InputError(
                f"{name} is sharded by FSDP, which gathers parameters in objects that a captured "
                "program does not see; offload it unsharded"
            )
        if name == "DistributedDataParallel":
            raise InputError(
                f"{name} exchanges tensors with other processes, which this captured program "
                "would not; offload the model in it"
            )


def _foreign(hooks: Mapping[int, Any]) -> Iterator[bool]:
    for hook in hooks.values():
        home = getattr(hook, "__module__", None) or type(hook).__module__
        yield not f"{home}.".startswith(_TRACED)
