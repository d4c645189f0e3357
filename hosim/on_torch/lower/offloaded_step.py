"""A training step under a plan: whole, or forward and backward apart from the optimizer's update.
Imports torch.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.callable import Captured, OffloadedModel, Sized
from hosim.on_torch.lower.compiled import CompiledModel
from hosim.on_torch.lower.devices import fake_on
from hosim.on_torch.lower.guard import is_autocast
from hosim.on_torch.lower.parameter_hooks import hooks_after
from hosim.on_torch.lower.planned_program import PlannedProgram, Planner, at_home
from hosim.on_torch.lower.sharded_tensors import behind, local, sharded_like
from hosim.on_torch.lower.step_parts import (
    LOSS_GRADIENT,
    backward_part,
    gradient_input,
    update_part,
)
from hosim.on_torch.lower.tiers import Device, resizable
from hosim.on_torch.lower.training import Loss, TrainingStep, capture_training
from hosim.on_torch.lower.true_layouts import TrueLayouts
from hosim.on_torch.lower.two_traces import require_alike, written
from hosim.plain_text import shown
from hosim.result import Result

_BACKWARD, _ACCUMULATE, _UPDATE = "backward", "accumulate", "update"


@dataclass(frozen=True)
class CapturedTraining(Captured):
    """A captured step with its optimizer. ``named`` returns a call's inputs by placeholder."""

    step: TrainingStep | None = None
    optimizer: Any = None
    named: Callable[..., dict[str, Any]] = dict


class OffloadedStep(OffloadedModel):
    """A training step under a plan: calling it performs a whole one.

    :meth:`backward` and :meth:`optimizer_step` are its parts, between which gradients are tensors
    to read and write. ``optimizer.step()`` is the latter until the step is closed. ``parts`` has
    the plan's replay of each part that has run.
    """

    def __init__(
        self,
        captured: CapturedTraining,
        plan: Plan,
        result: Result,
        hardware: Hardware,
        planner: Planner,
        device: Device,
    ) -> None:
        by_storage: dict[int, list[torch.Tensor]] = {}
        for tensor in captured.held.values():
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        for views in by_storage.values():
            resizable(views)  # now, while they are not guarded
        assert captured.step is not None
        self._inputs = captured.example
        self._optimizer = captured.optimizer
        self._replaced = self._optimizer.__dict__.get("step")
        super().__init__(captured, plan, result, hardware, planner, device)
        self._learned = captured.step.parts.learned
        self._cast = torch.nn.Parameter(torch.ones(1, 1, device=device.torch_device))
        self._optimizer.step = _step_through(self, self._optimizer)

    @property
    def parts(self) -> Mapping[str, Result]:
        """The replay, in program order, of each part that has run by itself, for inputs of the
        sizes that were last given.
        """
        return {name: planned.result for name, planned in self._now.parts.items()}

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._inputs, args, strict=False)), **kwargs}

    @property
    def _step(self) -> TrainingStep:
        """The step for inputs of the sizes that were last given."""
        step: TrainingStep = self._now.captured.step
        return step

    def backward(self, *args: Any, gradient: Any = None, **kwargs: Any) -> torch.Tensor:
        """Forward and backward for these inputs: returns the loss, and leaves each parameter its
        gradient (``.grad``), as torch does.

        If the parameters have gradients, new ones are added to them. ``gradient`` scales the loss
        for its gradients: ``scaler.scale(torch.ones(()))`` with a ``GradScaler``. The first call
        plans this part, within the same budget.

        Raises as calling the step does.
        """
        with self._one_at_a_time:
            self._trace_again()
            return self._backward(gradient, *args, **kwargs)

    def optimizer_step(self) -> None:
        """Update parameters and states by the gradients that the parameters have, with all hooks of
        the optimizer's step.

        Without any gradient it does nothing else. Raises :class:`InputError` if only some
        parameters have one.
        """
        with self._one_at_a_time:
            self._update()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if any(p.grad is not None for p in self._learned):
            raise InputError(
                "a parameter has a gradient already, which this step would not add to: call "
                "zero_grad() first"
            )
        if not any((*_hooks_before(self._optimizer), *_hooks_after(self._optimizer))):
            now = self._for(args, kwargs)
            self._require_as_captured()
            return now.captured.result(self._run(now.whole, now.captured.flat(*args, **kwargs)))
        loss = self._backward(None, *args, **kwargs)
        self._update()
        for p in self._learned:
            p.grad = None
        return loss

    def _backward(self, gradient: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._require_as_captured()
        learned = {id(p) for p in self._learned}
        for name, p in self._captured.model.named_parameters():
            if p.requires_grad and id(p) not in learned:
                raise InputError(
                    f"parameter {name!r} is not the optimizer's, so that it would get no "
                    "gradient: first requires_grad_(False)"
                )
        values = self._for(args, kwargs).captured.named(*args, **kwargs)
        there = [n for n in self._step.parts.gradients if self._learned[n].grad is not None]
        if there and len(there) < len(self._step.parts.gradients):
            raise InputError(
                "some parameters have gradients already and others have none: call zero_grad() "
                "first"
            )
        part, device = self._part(_ACCUMULATE if there else _BACKWARD), self.executor.device
        if LOSS_GRADIENT in part.inputs:
            values[LOSS_GRADIENT] = part.filled(LOSS_GRADIENT, 1 if gradient is None else gradient)
        elif gradient is not None:
            raise InputError(
                "the loss does not begin with a gradient of its own, so that none can be given; "
                "scale the loss itself"
            )
        for n in there:
            name, p = gradient_input(n), self._learned[n]
            if not part.fits(name, local(p.grad)):
                p.grad = sharded_like(p, part.copy(name, local(p.grad)))
            own = local(p.grad)
            values[name] = own if device.has(own) else part.on_device(own)
        loss, *made = self._run(part, [values[name] for name in part.inputs])
        for n in there:
            own = local(self._learned[n].grad)
            if own is not values[gradient_input(n)]:
                own.copy_(values[gradient_input(n)])
        seen = set()
        for n, made_one in zip(self._step.parts.gradients, made, strict=False):
            storage = made_one.untyped_storage()._cdata
            made_one = made_one.clone() if storage in seen else made_one
            made_one = device.to_host(made_one) if self._is_elsewhere else made_one
            self._learned[n].grad = sharded_like(self._learned[n], made_one)
            seen.add(storage)
        if self._step.exchanges is not None:
            self._step.exchanges.ended()
        assert isinstance(loss, torch.Tensor)
        return loss

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sized:
        if not torch.is_grad_enabled():
            raise InputError(
                "gradients are off here (torch.no_grad or inference_mode), so that a step would "
                "have no backward; call the offloaded step outside of it"
            )
        if is_autocast() and not self._are_casts_fresh():
            raise InputError(
                "autocast has been on since the step before, so that torch would compute with the "
                "weights that it cast then; use autocast around each step, or within the loss"
            )
        return super()._for(args, kwargs)

    def _are_casts_fresh(self) -> bool:
        """Return whether autocast casts a parameter anew that has changed since the last call."""
        with torch.no_grad():
            self._cast.neg_()
        one = torch.ones_like(self._cast, requires_grad=False)
        return bool(torch.nn.functional.linear(one, self._cast) == self._cast)

    def _require_as_captured(self) -> None:
        super()._require_as_captured()
        if self._step.exchanges is not None:
            self._step.exchanges.ready()

    def _update(self) -> None:
        optimizer = self._optimizer
        self._require_as_captured()
        for hook in _hooks_before(optimizer):
            hook(optimizer, (), {})
        gradients = {n: local(p.grad) for n, p in enumerate(self._learned) if p.grad is not None}
        scale, skipped = (
            getattr(optimizer, "grad_scale", None),
            getattr(optimizer, "found_inf", None),
        )
        if gradients and not (skipped is not None and skipped.item()):
            if set(gradients) != set(self._step.parts.gradients):
                raise InputError(
                    "the parameters with gradients are not those of the captured step; call "
                    "backward() first"
                )
            if scale is not None:
                if any(g.dtype != torch.float32 for g in gradients.values()):
                    raise InputError("call unscale_(optimizer) of the GradScaler before its step")
                torch._foreach_div_(list(gradients.values()), scale)
            part = self._part(_UPDATE)
            values = _settings(self._step)
            for n, gradient in gradients.items():
                values[gradient_input(n)] = (
                    gradient if self.executor.device.has(gradient) else part.on_device(gradient)
                )
            self._run(part, [values[name] for name in part.inputs])
        optimizer._opt_called = True
        for hook in _hooks_after(optimizer):
            hook(optimizer, (), {})

    def _part(self, name: str) -> PlannedProgram:
        """A part under its plan. Tensors that others have below the device tier between runs begin
        there, so that they need not move.
        """
        if name not in self._now.parts:
            title = f"{self.program.graph.name}: {name}"
            parts = self._step.parts
            program = (
                update_part(parts, title)
                if name == _UPDATE
                else backward_part(parts, title, accumulate=name == _ACCUMULATE)
            )
            program = at_home(
                program, [self._now.whole, *self._now.parts.values()], self._hardware.device_tier
            )
            plan, result = self._planner(program)
            inputs = [
                one.placeholder
                for one in program.givens
                if one.placeholder not in self._captured.held
            ]
            self._now.parts[name] = self._under(program, plan, result, inputs)
        return self._now.parts[name]

    def close(self) -> None:
        """Move every tensor back into the model and the optimizer, and release memory and files."""
        own = self._optimizer.__dict__.get("step")
        if (
            isinstance(own, MethodType)
            and getattr(own.__func__, "offloaded", None) is self._forgotten
        ):
            if self._replaced is None:
                del self._optimizer.step
            else:
                self._optimizer.step = self._replaced
        super().close()


def training(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    loss: Loss | None,
    name: str,
    device: Device,
    compiled: CompiledModel | None = None,
) -> CapturedTraining:
    """A training step of ``model``, or of what ``torch.compile`` has made of it, on the device that
    is to run it.

    Raises :class:`InputError` if it cannot be captured.
    """
    if compiled is not None:
        compiled.require_cpu(device.torch_device)
    is_elsewhere = any(not device.has(p) for p in model.parameters())
    if any(p.is_meta for p in model.parameters()):
        raise InputError(
            "a model on meta has no place for what a step learns; load it on the CPU",
            source="model",
        )
    if is_elsewhere and any(hooks_after(p) for p in model.parameters()):
        raise InputError(
            f"the parameters are on the CPU and their gradients on {device.torch_device}, so that "
            "hooks that see both cannot be called; "
            "remove those of register_post_accumulate_grad_hook, or move the model"
        )
    if is_elsewhere and any(local(p) is not p for p in model.parameters()):
        raise InputError(
            f"the model is sharded by FSDP on the CPU, and the plan is for {device.torch_device}; "
            "shard it there",
            source="model",
        )
    elsewhere = device.torch_device if is_elsewhere else None
    step = capture_training(
        model, inputs, optimizer, name=name, loss=loss, device=elsewhere, compiled=compiled
    )
    return _captured(step, model, inputs, optimizer, compiled)


def _captured(
    step: TrainingStep,
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    compiled: CompiledModel | None,
) -> CapturedTraining:
    """A step that was captured for ``inputs``, as a call."""
    like = _fakes_like(inputs)
    settings = frozenset(step.settings)
    held = {
        one.placeholder: value
        for one, value in zip(step.program.givens, step.values, strict=True)
        if value is not None and one.placeholder not in settings
    }
    names = tuple(one.placeholder for one in step.program.givens if one.placeholder not in held)
    named = _namer(step, like, names)

    def flat(*args: Any, **kwargs: Any) -> list[Any]:
        values = _settings(step) | named(*args, **kwargs)
        return [values[name] for name in names]

    def result(results: tuple[Any, ...]) -> Any:
        optimizer._opt_called = True  # schedulers ask for it
        if step.exchanges is not None:
            step.exchanges.ended()
        return results[0]

    def resized(args: tuple[Any, ...], kwargs: dict[str, Any], title: str) -> CapturedTraining:
        given = {**dict(zip(like, args, strict=False)), **kwargs}
        return _captured(_again(step, given, title), model, given, optimizer, compiled)

    constants = frozenset(
        one.placeholder for one in step.program.givens if one.own and one.name in step.constants
    )
    states = [value for state in optimizer.state.values() for value in state.values()]
    return CapturedTraining(
        model,
        step.program,
        held,
        names,
        flat,
        result,
        step.reached,
        settings,
        constants,
        others=(
            *[one for one in (*model.parameters(), *states) if local(one) is not one],
            *behind(model),
        ),
        called=None if compiled is None else compiled.module,
        eager_peak_bytes=step.eager_peak_bytes,
        step=step,
        optimizer=optimizer,
        named=named,
        example=like,
        resized=None if step.resized is None else resized,
        retraced=None if step.resized is None else partial(_retraced, step, like),
    )


def _fakes_like(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with a fake for each tensor."""
    mode = TrueLayouts()
    return {
        key: fake_on(mode, value, value.device) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }


def _again(step: TrainingStep, inputs: Mapping[str, Any], name: str) -> TrainingStep:
    """The step for inputs of other sizes."""
    assert step.resized is not None
    return step.resized(inputs, name)


def _retraced(step: TrainingStep, inputs: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` if the step for these inputs is another program now."""
    found = _again(step, inputs, step.program.graph.name)
    require_alike(written(step.parts.module), written(found.parts.module))


def _namer(
    step: TrainingStep, inputs: Mapping[str, Any], names: Sequence[str]
) -> Callable[..., dict[str, Any]]:
    """Return what gives a call's inputs by placeholder, for a step captured with ``inputs``, whose
    placeholders besides what it holds are ``names``.
    """
    own = [name for name in names if name not in step.settings]

    def named(*args: Any, **kwargs: Any) -> dict[str, Any]:
        given = {**dict(zip(inputs, args, strict=False)), **kwargs}
        if set(given) != set(inputs) or len(args) > len(inputs):
            raise InputError(
                f"expected the inputs {', '.join(inputs)}, got {', '.join(given) or 'none'}"
            )
        for key in step.inputs:
            if isinstance(given[key], torch.Tensor) and given[key].requires_grad:
                raise InputError(
                    f"input {key!r} requires a gradient, which a captured step would not give it; "
                    "detach() it"
                )
        for key in set(inputs) - set(step.inputs):
            if given[key] is not inputs[key] and given[key] != inputs[key]:
                raise InputError(
                    f"input {key!r} is {shown(inputs[key], 60)} in the captured step, got "
                    f"{shown(given[key], 60)}; offload it again"
                )
        return dict(zip(own, (given[key] for key in step.inputs), strict=True))

    return named


def _settings(step: TrainingStep) -> dict[str, Any]:
    """The optimizer's settings as they are now, by placeholder."""
    return dict(zip(step.settings, step.settings_now(), strict=True))


def _step_through(offloaded: OffloadedStep, optimizer: torch.optim.Optimizer) -> MethodType:
    """Return what ``optimizer.step()`` is until the offloaded step is closed."""
    found = weakref.ref(offloaded)

    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        owner = found()
        if owner is None or owner.executor.closed:
            return type(self).step(self, closure)
        if closure is not None:
            raise InputError(
                "an offloaded step takes no closure: call backward() and then optimizer_step()"
            )
        return owner.optimizer_step()

    step.offloaded = offloaded._forgotten  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler that comes later leaves it as it is
    return MethodType(step, optimizer)


def _hooks_before(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
    return [
        *optimizers._global_optimizer_pre_hooks.values(),
        *optimizer._optimizer_step_pre_hooks.values(),
    ]


def _hooks_after(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
    return [
        *optimizer._optimizer_step_post_hooks.values(),
        *optimizers._global_optimizer_post_hooks.values(),
    ]
