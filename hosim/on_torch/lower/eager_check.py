"""One call of an offloaded model beside one without hosim: the same bits, or a refusal. Imports
torch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from hosim.errors import InputError
from hosim.io.importers.torch_programs import loss_of
from hosim.on_torch.lower.callable import Captured, OffloadedModel
from hosim.on_torch.lower.devices import named_tensors
from hosim.on_torch.lower.exported_call import Inputs
from hosim.on_torch.lower.parameter_hooks import hooks_after, hooks_before
from hosim.on_torch.lower.tiers import Device, in_one_line


def require_eagers_bits(
    captured: Captured,
    make: Callable[[], OffloadedModel],
    inputs: Inputs,
    device: Device,
    optimizer: torch.optim.Optimizer | None,
    loss: Any,
) -> None:
    """Raise :class:`InputError` if a call of what ``make`` returns has other bits than the model
    itself: those of the results and of all tensors that a call writes.

    Afterwards everything is as before. Raises it also for a model that cannot be called once
    without more: it is not on the device or has no room there, or hooks see its calls.
    """
    _require_callable(captured, device, optimizer)

    def eagerly(args: Any, kwargs: Any) -> Any:
        called = captured.model if captured.called is None else captured.called
        if optimizer is None:
            with torch.no_grad():
                return called(*args, **kwargs)
        with torch.enable_grad():
            value = loss_of(called, kwargs, loss)
        value.backward()
        optimizer.step()
        return value.detach()

    def offloaded(args: Any, kwargs: Any) -> Any:
        with make() as model, torch.enable_grad():
            return model(*args, **kwargs)

    try:
        wanted = _undone(captured, optimizer, eagerly, inputs)
    except device.out_of_memory as error:
        raise InputError(
            "check=True calls the model once without hosim, and there may be no room for that "
            f"({in_one_line(error, None)}); leave it out"
        ) from error
    found = _undone(captured, optimizer, offloaded, inputs)
    (ours, spec), (theirs, other) = map(tree_flatten_with_path, (found, wanted))
    if spec != other:
        raise InputError("the captured program returns other results than the model")
    for (path, one), (_, another) in zip(ours, theirs, strict=True):
        if not _are_same(one, another):
            raise InputError(
                f"the captured program has other bits than the model for the example inputs: "
                f"{keystr(path)} differs; leave check=True out if that is near enough"
            )


def _require_callable(
    captured: Captured, device: Device, optimizer: torch.optim.Optimizer | None
) -> None:
    if not all(map(device.has, named_tensors(captured.model).values())):
        raise InputError(
            "check=True calls the model once without hosim, and it is not on the device that is "
            "to run it; leave it out"
        )
    hooked = optimizer is not None and (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or any(hooks_before(p) or hooks_after(p) for p in captured.model.parameters())
    )
    if hooked or (optimizer is not None and captured.retraced is None):
        raise InputError(
            "check=True takes a step more than is asked for, which hooks and other processes "
            "would see; leave it out"
        )


def _undone(
    captured: Captured,
    optimizer: torch.optim.Optimizer | None,
    call: Callable[[Any, Any], Any],
    inputs: Inputs,
) -> dict[str, Any]:
    """The results of a call for copies of the inputs, with what it left in the tensors that it
    writes, which have what they had again.
    """
    graph, tensor_of = captured.program.graph, captured.program.tensor_of
    writes = {t for op in graph.ops for t in op.mutates}
    written = {
        name: tensor for name, tensor in captured.held.items() if tensor_of.get(name) in writes
    }
    kept = {name: tensor.detach().cpu().clone() for name, tensor in written.items()}
    args, kwargs = tree_map_only(torch.Tensor, lambda value: value.clone(), inputs)
    try:
        with _as_before(captured, optimizer), torch.random.fork_rng():
            returned = call(args, kwargs)
            results = tree_map_only(torch.Tensor, lambda value: value.cpu().clone(), returned)
        left = {name: tensor.detach().cpu().clone() for name, tensor in written.items()}
    finally:
        with torch.no_grad():
            for name, tensor in written.items():
                tensor.copy_(kept[name])
    return {"the result": results, "written": left}


@contextmanager
def _as_before(captured: Captured, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Afterwards gradients, the optimizer's attributes and what the model keeps in Python are as
    they were.
    """
    parameters = list(captured.model.parameters())
    grads = [p.grad for p in parameters]
    own = {} if optimizer is None else dict(vars(optimizer))
    for p in parameters:
        p.grad = None
    try:
        yield
    finally:
        captured.reached.restore()
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad
        if optimizer is not None:
            vars(optimizer).clear()
            vars(optimizer).update(own)


def _are_same(one: Any, another: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(another, torch.Tensor):
        return bool(one == another)
    if (one.dtype, one.shape) != (another.dtype, another.shape):
        return False
    bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, another)]
    return bool(torch.equal(*bits))
