"""``hosim.offload_callback``: the training loops of transformers and accelerate under a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch

from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import require_torch
from hosim.io.options import keywords
from hosim.on_torch.lower import OFFLOADING, OffloadedStep, offload

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object


class LossAlone(dict[str, torch.Tensor]):
    """The outputs of a model whose step is planned: ``loss``, as a key and as an attribute."""

    def __missing__(self, key: object) -> torch.Tensor:
        raise InputError(
            f"an offloaded step returns its loss, and the loop asks for {key!r}; train without "
            "what needs that, or without offload_callback"
        )

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class _HasRun(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for the checker
    """A loss whose backward has run."""

    @staticmethod
    def forward(ctx: Any, scale: float, loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        ctx.scale = scale
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        given = float(gradient)
        if given != float(torch.tensor(ctx.scale, dtype=gradient.dtype)):
            raise InputError(
                f"the loop scales the loss by {given:g}, and its gradients were made for "
                f"{ctx.scale:g}, when the model was called; train without a scaler, and with whole "
                "rounds of gradient accumulation"
            )
        return None, None, None


class OffloadingLoop(TrainerCallback):  # type: ignore[misc]
    """A training loop under a plan: a callback of ``Trainer``, or :meth:`attached` to a loop.

    ``step`` is the offloaded step (:class:`OffloadedStep`), ``None`` where the model is whole.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.step: OffloadedStep | None = None
        self.predicted_peak_bytes = 0
        """The largest predicted peak of what has run, in bytes of the device tier."""
        self._options = options
        self._model: Any = None
        self._compiled: Any = None
        """What ``torch.compile`` has made of the model's call (``model.compile()``), if anything."""
        self._optimizer: Any = None
        self._rounds = 1

    @contextmanager
    def attached(self, model: torch.nn.Module, optimizer: Any) -> Iterator[OffloadingLoop]:
        """Within, calls of ``model`` and steps of ``optimizer`` run under the plan; after it, the
        model is whole. The optimizer may be one that accelerate has prepared.
        """
        self._attach(model, optimizer, 1)
        try:
            yield self
        finally:
            self._detach()

    def whole(self) -> None:
        """Bring everything back into the model and the optimizer, until the next call."""
        if self.step is not None:
            self._model._compiled_call_impl = self._compiled
            self.step.close()
            self.step = None
        if self._model is not None:
            self._model._compiled_call_impl = self._call

    def _attach(self, model: torch.nn.Module, optimizer: Any, rounds: int) -> None:
        if self._model is not None:
            raise InputError("this callback is attached to a loop already; make one for each")
        self._model, self._compiled = model, model._compiled_call_impl
        self._optimizer, self._rounds = optimizer, rounds
        model._compiled_call_impl = self._call

    def _detach(self) -> None:
        model = self._model
        try:
            self.whole()
        finally:
            if model is not None:
                del model._compiled_call_impl
                if self._compiled is not None:
                    model._compiled_call_impl = self._compiled
            self._model = self._compiled = None

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model
        if not (model.training and torch.is_grad_enabled()):
            self.whole()
            return (self._compiled or model._call_impl)(*args, **kwargs)
        if args:
            raise InputError("an offloaded step takes the model's inputs by name: model(**batch)")
        if self.step is None:
            self._capture(kwargs)
        assert self.step is not None
        scale = self._scale_of(kwargs)
        loss = self.step.backward(gradient=None if scale == 1 else scale, **kwargs)
        self._see()
        return LossAlone(loss=_HasRun.apply(scale, loss, torch.empty((), requires_grad=True)))

    def _scale_of(self, inputs: Mapping[str, Any]) -> float:
        """By how much the loop will scale the loss: ``Trainer`` by its rounds of accumulation,
        unless the model divides by the items of all rounds, and accelerate by its own.
        """
        accelerates = getattr(self._optimizer, "gradient_state", None)
        rounds = 1 if "num_items_in_batch" in inputs else self._rounds
        return 1 / rounds / getattr(accelerates, "num_steps", 1)

    def _capture(self, inputs: dict[str, Any]) -> None:
        self._model._compiled_call_impl = self._compiled
        try:
            optimizer = getattr(self._optimizer, "optimizer", self._optimizer)
            made = offload(self._model, inputs, optimizer=optimizer, **self._options)
            self.step = cast("OffloadedStep", made)
        finally:
            self._model._compiled_call_impl = self._call

    def _see(self) -> None:
        """Take in the peaks of the parts that have run."""
        assert self.step is not None
        for result in self.step.parts.values():
            assert result.allocator is not None
            self.predicted_peak_bytes = max(
                self.predicted_peak_bytes, result.allocator.peak_allocated_bytes
            )

    # -- events of Trainer -------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **at: Any) -> None:
        """Attach to the model and the optimizer."""
        if args.world_size > 1 or args.n_gpu > 1:
            raise InputError(
                "offload_callback trains in one process on one device; for several use "
                "hosim.offload with DistributedDataParallel or FSDP"
            )
        if self._model is at["model"]:
            self._detach()  # an error ended the training before this one, and nothing said so
        self._attach(at["model"], at["optimizer"], args.gradient_accumulation_steps)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **at: Any) -> None:
        """Take in the peak of the update."""
        if self.step is not None:
            self._see()

    def on_step_end(self, args: Any, state: Any, control: Any, **at: Any) -> None:
        """Make the model whole for an evaluation or a checkpoint."""
        if control.should_evaluate or control.should_save:
            self.whole()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **at: Any) -> None:
        """Make the model whole."""
        self._detach()


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
    from hosim.on_torch.bridges.training_loops import OffloadingLoop

    return OffloadingLoop({"hardware": hardware, "budget": budget, **options})
