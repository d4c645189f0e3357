"""A program or a module of torch that the caller has in memory, as a workload. Its code is the
caller's own, and runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from hosim.errors import InputError
from hosim.graph import Graph

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module


def is_torch_model(value: object) -> TypeGuard[ExportedProgram | Module]:
    """Return whether a value is an exported program or a module; torch is not imported for it.

    >>> is_torch_model("llama-3.1-8b-prefill-4k")
    False
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    exported = getattr(sys.modules.get("torch.export"), "ExportedProgram", ())
    return isinstance(value, (torch.nn.Module, exported))


def import_torch_model(
    model: ExportedProgram | Module, inputs: Sequence[Any] | Mapping[str, Any] | None
) -> Graph:
    """The graph of a model's forward pass.

    Parameters
    ----------
    model
        An exported program, or a module, which is exported with ``torch.export.export(module,
        inputs, strict=False)``.
    inputs
        For a module its example inputs: positional ones in a sequence, or named ones in a mapping.
        Tensors on the meta device will do.

    Returns
    -------
    Graph
        The graph, named after the module's class; that of an exported program is named ``program``.

    Raises
    ------
    InputError
        If a module has no inputs or cannot be exported with them, or an exported program has some.

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

    from hosim.importers.torch_programs.torch_export import import_exported

    if not isinstance(model, torch.nn.Module):
        if inputs is not None:
            raise InputError(
                "an exported program has its inputs already; give inputs with a module only",
                source="workload",
                where="inputs",
            )
        return import_exported(model, name="program")
    name = type(model).__name__
    if inputs is None:
        raise InputError(
            "a module needs example inputs: hosim.load(model, inputs=...), positional or by "
            f"name; got {name}",
            source="workload",
        )
    if (
        isinstance(inputs, torch.Tensor)
        or not isinstance(inputs, Mapping | Sequence)
        or isinstance(inputs, str)
    ):
        # a tensor is a sequence of its rows, too: without its first dimension, a module may well
        # run
        raise InputError(
            "expected a sequence or a mapping of inputs, such as inputs=(x,), got "
            f"{type(inputs).__name__}",
            source="workload",
            where="inputs",
        )
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    try:
        program = exported(model, args, kwargs, name)
    except InputError as error:
        raise InputError(error.message, source="workload", where=error.where) from error
    return import_exported(program, name=name)


def exported(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> ExportedProgram:
    """The program of a module called with these inputs. Raises :class:`InputError`, with ``name``
    for the module, if there is none.
    """
    import torch

    try:
        return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # torch and the model's code raise all kinds of errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"torch.export cannot export {name} with these inputs: {reason[:200]}", where="inputs"
        ) from error
