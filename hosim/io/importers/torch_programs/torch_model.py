"""A torch program or module in memory, as a workload. Its code is the caller's own, and is run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.plain_text import shown

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module


def is_torch_model(value: object) -> TypeGuard[ExportedProgram | Module]:
    """Return whether a value is an exported program or a module, without importing torch.

    >>> is_torch_model("llama-3.1-8b-prefill-4k")
    False
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    exported = getattr(sys.modules.get("torch.export"), "ExportedProgram", ())
    return isinstance(value, (torch.nn.Module, exported))


def import_torch_model(
    model: ExportedProgram | Module,
    inputs: Any,
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    optimizer: Any = None,
    name: str = "",
) -> Graph:
    """Return the graph of a model's forward pass or, with an optimizer, of a training step.

    Parameters
    ----------
    model
        An exported program, or a module, which is exported with ``torch.export.export(module,
        inputs, strict=False)``. It is not changed or moved.
    inputs
        The example inputs of a module: a tensor, a sequence of positional ones, or a mapping of
        named ones. Tensors on the meta device are enough.
    loss
        ``loss(model, inputs)``, with the inputs by name, is differentiated; by default the model's
        result, or the ``loss`` in it.
    optimizer
        An optimizer for :func:`hosim.io.importers.torch_programs.torch_train.import_training`.
    name
        The graph's name; by default the module's class, and ``program`` for an exported program.

    Returns
    -------
    Graph
        Tensors in bytes and ops in execution order.

    Raises
    ------
    InputError
        If a module has no inputs, or cannot be exported or trained with them, or if inputs are
        given for an exported program.

    References
    ----------
    The documentation of ``torch.export``.

    Examples
    --------
    >>> import torch  # doctest: +SKIP
    >>> import_torch_model(torch.nn.Linear(8, 4), [torch.zeros(2, 8)]).name  # doctest: +SKIP
    'Linear'
    """
    import torch

    from hosim.io.importers.torch_programs.torch_export import import_exported

    trained = loss is not None or optimizer is not None
    if not isinstance(model, torch.nn.Module):
        if inputs is not None or trained:
            given = {"inputs": inputs, "loss": loss, "optimizer": optimizer}
            raise InputError(
                "an exported program has its inputs already, and is no training step; give inputs, "
                "loss and optimizer with a module only",
                where=next(name for name, value in given.items() if value is not None),
            )
        return import_exported(model, name=name or "program")
    name = name or type(model).__name__
    if inputs is None:
        raise InputError(
            "a module needs example inputs: hosim.load(model, inputs=...), positional or by "
            f"name; got {name}",
        )
    if isinstance(inputs, torch.Tensor):  # a tensor is also a sequence of its rows
        inputs = (inputs,)
    if not isinstance(inputs, Mapping | Sequence) or isinstance(inputs, str):
        raise InputError(
            "expected a tensor, a sequence or a mapping of inputs, such as inputs=(x,), got "
            f"{type(inputs).__name__}",
            where="inputs",
        )
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    if trained:
        return _training_step(model, args, kwargs, loss, optimizer, name)
    return import_exported(exported(model, args, kwargs, name), name=name)


def _training_step(
    model: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Any,
    optimizer: Any,
    name: str,
) -> Graph:
    import torch

    from hosim.io.importers.torch_programs.torch_train import OPTIMIZERS, import_training

    if optimizer is None:
        raise InputError(
            "there is a loss, and no optimizer to train with: give one of torch, or one of "
            f"{', '.join(OPTIMIZERS)}",
            where="optimizer",
        )
    if not isinstance(optimizer, str | torch.optim.Optimizer) and not callable(optimizer):
        raise InputError(
            f"expected an optimizer of torch, or one of {', '.join(OPTIMIZERS)}; got "
            f"{shown(optimizer, 60)}",
            where="optimizer",
        )
    try:
        given = kwargs or inspect.signature(model.forward).bind_partial(*args).arguments
    except TypeError as error:
        raise InputError(f"wrong example inputs: {error}", where="inputs") from error
    return import_training(model, given, name=name, optimizer=optimizer, loss=loss)


def exported(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> ExportedProgram:
    """Export a module called with these inputs. Raises :class:`InputError`, which names the module
    ``name``, if torch cannot.
    """
    import torch

    from hosim.io.importers.torch_programs.torch_run import quiet

    try:
        with quiet():
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # torch and the model's code raise all kinds of errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"torch.export cannot export {name} with these inputs: {reason[:200]}", where="inputs"
        ) from error
