"""``hosim.offload_callback``: the training loops of transformers and accelerate under a plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import require_torch
from hosim.io.options import keywords
from hosim.on_torch.lower import OFFLOADING

if TYPE_CHECKING:
    from hosim.on_torch.bridges.offloading_loop import OffloadingLoop


@keywords(*OFFLOADING)
def offload_callback(
    *,
    hardware: Hardware | str | os.PathLike[str],
    budget: int | float | str | None = None,
    **options: Any,
) -> OffloadingLoop:
    """A callback for ``Trainer`` of transformers, under which it trains within a budget of device
    memory.

    The first batch captures the step and plans it, as :func:`hosim.offload` does. From then on a
    call of the model runs forward and backward under the plan, ``loss.backward()`` has nothing left
    to do, and ``optimizer.step()`` updates under the plan; what the loop does between them (clipping
    of gradients, schedules, accumulation) it does as before. The model is whole again for an
    evaluation or a checkpoint, and at the end.

    A loop of accelerate, or of your own, needs no ``Trainer``: ``with
    hosim.offload_callback(...).attached(model, optimizer):`` around it.

    Parameters
    ----------
    hardware
        As :func:`hosim.offload` takes it.
    budget
        As :func:`hosim.offload` takes it; a share is of the peak of a whole step.

    Returns
    -------
    OffloadingLoop
        For ``Trainer(callbacks=[...])``; ``predicted_peak_bytes`` is what hosim predicts.

    Raises
    ------
    InputError
        If torch is not installed, and for an option that :func:`hosim.offload` does not take. What
        the loop calls raises what :func:`hosim.offload` raises, and :class:`InputError` for a loop
        that scales the loss in a way that it did not say.

    References
    ----------
    ``docs/bridges.md``, Trainer and accelerate.

    Examples
    --------
    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(8, 8)
    ...
    ...     def forward(self, x):
    ...         return {"loss": self.layer(x).square().mean()}
    >>> net = Net()
    >>> optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    >>> callback = offload_callback(hardware="h100-80gb-sxm", budget="100%")
    >>> with callback.attached(net, optimizer):
    ...     for _ in range(2):
    ...         loss = net(x=torch.ones(4, 8))["loss"]
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> callback.predicted_peak_bytes > 0
    True
    """
    require_torch()
    from hosim.on_torch.bridges.offloading_loop import OffloadingLoop

    return OffloadingLoop({"hardware": hardware, "budget": budget, **options})
