"""Refuses models that do more than a captured program would: hooks and other processes. Imports
torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules import module as modules

from hosim.errors import InputError
from hosim.on_torch.lower.sharded_tensors import is_sharded

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
