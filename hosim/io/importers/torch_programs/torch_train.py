"""A training step of an unmodified torch model as one workload graph: forward pass, backward pass
and optimizer, on fake tensors.

torch runs the step with its own autograd, optimizer, activation checkpointing and autocast, but on
fake CPU tensors, without weights, GPU or memory. The mapping:

- An op is an aten op that computes, named ``phase.op_n``; the phase is ``forward``, ``backward``
  (with what checkpointing recomputes there) or ``optimizer``. Views and allocations are as in
  :mod:`hosim.io.importers.torch_programs.torch_kernels`.
- A tensor is a storage, so tied parameters are one. A gradient that accumulates in place is one
  tensor that is mutated.
- A gradient has the name of its parameter and ``.grad``; any other tensor that an op makes has the
  name of the op.
- Kinds: ``parameter`` (``expert`` if its qualified name has a part ``experts``), ``buffer``
  (constants of the code, too), ``input``, ``optimizer_state`` (all that the optimizer keeps, with
  master weights), ``gradient`` (the tensors in ``.grad``), ``output`` (the losses) and
  ``activation`` for the rest. ``meta["saved"]`` names the activations that the forward pass makes
  and the backward pass uses; the others are temporaries. ``meta["shapes"]`` has the shape of each
  tensor (of the first view seen).
- A tensor lives from its first to its last use, as everywhere in hosim. Python's locals may keep
  one a little longer.

Memory is that of eager torch on the CPU: fused attention, one op at a time. torch is imported when
a function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io.importers.torch_programs.storage_graph import StorageGraph
from hosim.io.importers.torch_programs.torch_export import require_torch

if TYPE_CHECKING:
    import torch

    from hosim.io.importers.torch_programs.torch_step import Recorded

OPTIMIZERS = ("adamw", "adamw-master", "sgd", "sgd-momentum", "none")
"""The names that ``optimizer`` takes. ``adamw`` is torch's fused one, in the parameters' dtype;
``adamw-master`` keeps fp32 weights and moments, and updates one parameter after the other.
"""


def import_training(
    model: Callable[[], Any] | torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    name: str,
    optimizer: str | Callable[[list[Any]], Any] | torch.optim.Optimizer = "adamw",
    micro_batches: int = 1,
    dtype: str = "fp32",
    autocast: str | None = None,
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Graph:
    """Return the graph of one training step, with existing optimizer state.

    ``model`` makes the module; it is called on fake tensors and with the default dtype ``dtype``.
    If its initialisation looks at contents (``trunc_normal_``), let it work under
    ``torch.device("meta")``. ``model`` may also be a module, which is not changed and trains in its
    own mode. ``inputs`` are values by argument name; of tensors only shapes and dtypes matter (the
    meta device is enough). ``optimizer`` is one of :data:`OPTIMIZERS`, a function from the
    parameters to a ``torch.optim.Optimizer``, or the optimizer of the given module, which is not
    changed either. Each of ``micro_batches`` passes takes ``inputs`` and adds to the gradients.
    ``autocast`` is the dtype of ``torch.autocast`` around the forward pass. ``loss(model, inputs)``
    is differentiated; by default the model's result, or the ``loss`` in it. ``meta`` is added to
    the graph's.

    Raises :class:`InputError` for an unknown name, for an optimizer of other parameters, and for a
    step that needs the contents of tensors or in which no parameter gets a gradient.
    """
    require_torch()
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise InputError(
            f"unknown optimizer {optimizer!r}; expected one of: {', '.join(OPTIMIZERS)}"
        )
    if micro_batches < 1:
        raise InputError(f"micro_batches is {micro_batches}; expected at least 1")
    import torch

    from hosim.io.importers.torch_programs import torch_step

    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer = torch_step.twin_of_optimizer(optimizer, model)
    recorded = torch_step.record(
        torch_step.twin_of(model) if isinstance(model, torch.nn.Module) else model,
        inputs,
        optimizer=optimizer,
        micro_batches=micro_batches,
        dtype=torch_step.dtype_of(dtype),
        autocast=None if autocast is None else torch_step.dtype_of(autocast),
        loss=loss,
    )
    source = {"source": "torch training step", "torch": torch.__version__.partition("+")[0]}
    return _graph(recorded, name, {**source, **(meta or {})})


def _graph(recorded: Recorded, name: str, meta: Mapping[str, Any]) -> Graph:
    graph = StorageGraph(name, recorded.sizes, recorded.shapes)
    made_in: dict[int, str] = {}
    saved: dict[int, None] = {}

    def kind_of(storage: int) -> str:
        if storage in recorded.gradients:
            return "gradient"
        return "output" if storage in recorded.results else "activation"

    for storage, (wanted, kind) in recorded.held.items():
        graph.tensor(storage, wanted, kind)
    for step in recorded.steps:
        for storage in step.inputs + step.mutates:
            if storage not in graph.names:  # no op made it: a constant of the code
                graph.tensor(storage, f"constant_{storage}", "buffer")
            if step.phase == "backward" and made_in.get(storage) == "forward":
                saved[storage] = None
        kinds = list(map(kind_of, step.outputs))
        graph.outputs(step, kinds, recorded.gradients)
        made_in |= {
            s: step.phase if kind == "activation" else kind
            for s, kind in zip(step.outputs, kinds, strict=True)
        }
        graph.op(step)
    return graph.build({**meta, "saved": [graph.names[s] for s in saved]})
