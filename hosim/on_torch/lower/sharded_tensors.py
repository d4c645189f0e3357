"""Tensors and modules that FSDP2 (``fully_shard``) has sharded: which they are, and what of them
this process has. Imports torch.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from hosim.on_torch.lower.devices import fake_on


def sharded_modules(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Any]]:
    """The modules that ``fully_shard`` has sharded, from outside to inside, with torch's state of
    each.
    """
    return [(module, module._get_fsdp_state()) for module in model.modules() if is_sharded(module)]


def is_sharded(module: torch.nn.Module) -> bool:
    """Return whether ``fully_shard`` has sharded this module itself."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def local(tensor: Any) -> Any:
    """The part of a sharded tensor that this process has, or a tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def sharded_like(parameter: Any, part: torch.Tensor) -> torch.Tensor:
    """A tensor sharded as a parameter is, of which ``part`` is this process's; ``part`` itself if
    the parameter is not sharded.
    """
    if local(parameter) is parameter:
        return part
    from torch.distributed.tensor import DTensor

    sizes = {"shape": parameter.shape, "stride": parameter.stride()}
    made: torch.Tensor = DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, **sizes
    )
    return made


def fake_of(
    mode: FakeTensorMode, tensor: torch.Tensor, device: torch.device | None = None
) -> torch.Tensor:
    """The fake of a tensor, of its part in this process if it is sharded."""
    if device not in (None, tensor.device) or isinstance(tensor, FakeTensor):
        return fake_on(mode, tensor, device or tensor.device)
    fake = mode.from_tensor(local(tensor), static_shapes=True)
    assert isinstance(fake, torch.Tensor)
    if local(tensor) is not tensor:
        fake.requires_grad_(tensor.requires_grad)
    fake.grad = None  # gradients are made within the step
    return fake


def behind(model: torch.nn.Module) -> list[torch.Tensor]:
    """Torch's own views of the shards, by which it would gather them."""
    groups = (group for _, state in sharded_modules(model) for group in state._fsdp_param_groups)
    return [one._sharded_param_data for group in groups for one in group.fsdp_params]
