"""Hooks of parameters as ops of a captured step, and the marks that its tracing leaves. Imports
torch.

A hook is Python code that may do anything, so it is not traced but called: at each run, where torch
would call it, with what torch would give it. Its op is ``hosim_step::hooked`` for hooks that see a
gradient before it is accumulated (``Tensor.register_hook``), and ``hosim_step::accumulated`` for
those after it (``register_post_accumulate_grad_hook``), which also see the parameter.
``hosim_step::mark`` marks a value while a step is traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from hosim.errors import InputError
from hosim.on_torch.lower.compiled import IN_ORDER, StepOp
from hosim.on_torch.lower.guard import unguarded

_library = torch.library.Library("hosim_step", "DEF")
_library.define("mark(Tensor(a!) x, int number) -> ()")
_library.define("hooked(Tensor gradient, int number) -> Tensor", tags=IN_ORDER)
_library.define(
    "accumulated(Tensor(a!) parameter, Tensor(b!) gradient, int number) -> ()", tags=IN_ORDER
)
_library.impl("mark", lambda x, number: None, "CompositeExplicitAutograd")
_library.impl(
    "hooked", lambda gradient, number: torch.empty_like(gradient), "CompositeExplicitAutograd"
)
_library.impl("accumulated", lambda parameter, gradient, number: None, "CompositeExplicitAutograd")

mark = torch.ops.hosim_step.mark.default
hooked = torch.ops.hosim_step.hooked.default
accumulated = torch.ops.hosim_step.accumulated.default


def hooks_before(parameter: torch.Tensor) -> tuple[Callable[..., Any], ...]:
    """The hooks that see a gradient before it is accumulated. Raises :class:`InputError` for one
    of torch itself, which asks the engine of autograd.
    """
    found = tuple((parameter._backward_hooks or {}).values())
    if any(str(getattr(one, "__module__", "")).startswith("torch.autograd.") for one in found):
        raise InputError(
            "a parameter has a hook of several gradients (register_multi_grad_hook), which only "
            "autograd's own engine can call; give each parameter a hook of its own"
        )
    return found


def hooks_after(parameter: torch.Tensor) -> tuple[Callable[..., Any], ...]:
    """The hooks that see a parameter when its gradient is accumulated."""
    return tuple((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values())


def register(fake: torch.Tensor, parameter: torch.Tensor, number: int) -> list[Any]:
    """Let tracing call the ops of a parameter's hooks on its fake, and mark the gradient; returns
    the handles of what was registered.
    """
    handles = []
    if hooks_before(parameter):
        handles.append(fake.register_hook(lambda gradient: hooked(gradient, number)))

    def after(traced: torch.Tensor) -> None:
        assert traced.grad is not None
        mark(traced.grad, number)
        if hooks_after(parameter):
            accumulated(traced, traced.grad, number)

    handles.append(fake.register_post_accumulate_grad_hook(after))
    return handles


def _call_before(parameter: torch.Tensor, gradient: torch.Tensor, number: int) -> torch.Tensor:
    """Return the result of the hooks that see a gradient before it is accumulated, in memory of its
    own.
    """
    result = gradient
    for hook in hooks_before(parameter):
        given = hook(result)
        result = result if given is None else given
    return torch.empty_like(gradient).copy_(_like(result, gradient))


def _call_after(
    parameter: torch.Tensor, traced: torch.Tensor, gradient: torch.Tensor, number: int
) -> None:
    """Call the hooks that see the parameter when its gradient is accumulated, and take over the
    gradient that they leave.
    """
    with unguarded(parameter) as own:
        before, own.grad = own.grad, gradient
        try:
            for hook in hooks_after(own):
                hook(own)
            left = own.grad
        finally:
            own.grad = before
    if left is None:
        raise InputError(
            "a hook takes the gradient of a parameter away, so that the step would not learn it; "
            "leave it to the optimizer"
        )
    if left is not gradient:
        gradient.copy_(_like(left, gradient))


def call_hooks(module: GraphModule, parameters: Sequence[torch.Tensor]) -> None:
    """Make the ops of hooks call the hooks of these parameters."""
    for node in module.graph.nodes:
        if node.target is hooked:
            node.target = StepOp("hooked", partial(_call_before, parameters[node.args[-1]]))
        elif node.target is accumulated:
            node.target = StepOp("accumulated", partial(_call_after, parameters[node.args[-1]]))
    module.recompile()


def _like(value: Any, gradient: torch.Tensor) -> torch.Tensor:
    if (
        isinstance(value, torch.Tensor)
        and value.shape == gradient.shape
        and value.dtype == gradient.dtype
    ):
        return value
    raise InputError("a hook gives a gradient of another shape or dtype")
