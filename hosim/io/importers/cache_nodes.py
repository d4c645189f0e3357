"""Cache ops as nodes of a torch graph: the registered ops ``hosim::prefetch`` and so on. Imports
torch.

In plain torch each is the identity, so that a graph computes the same with them as without. The
schema of each but ``ready`` says that it writes its argument, so that dead-code elimination keeps
it. Each carries its position among the plan's cache ops, so that common-subexpression elimination
never merges two.

- ``prefetch(x, source, destination, number)`` returns ``x``; ops that use the storage after a
  prefetch to the device tier take that value,
- ``ready(view, prefetched)`` returns ``view``, another view of the storage, for ops that use it
  after the prefetch,
- ``store(x, source, destination, number)`` and ``detach(x, source, number)`` return nothing,
- ``initial(x, tiers)``, at the top of a graph, lists the tiers with a valid copy of ``x`` at time
  0, if the device tier is not the only one.
"""

from typing import Any

import torch

NAMESPACE = "hosim"

_library = torch.library.Library(NAMESPACE, "DEF")


def _first(x: Any, *_: Any) -> Any:
    return x


def _nothing(*_: Any) -> None:
    return None


for _schema, _kernel in (
    ("prefetch(Tensor(a!) x, str source, str destination, int number) -> Tensor(a!)", _first),
    ("store(Tensor(a!) x, str source, str destination, int number) -> ()", _nothing),
    ("detach(Tensor(a!) x, str source, int number) -> ()", _nothing),
    ("ready(Tensor(a) view, Tensor prefetched) -> Tensor(a)", _first),
    ("initial(Tensor(a!) x, str[] tiers) -> ()", _nothing),
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _kernel, "CompositeExplicitAutograd")

prefetch = torch.ops.hosim.prefetch.default
store = torch.ops.hosim.store.default
detach = torch.ops.hosim.detach.default
ready = torch.ops.hosim.ready.default
initial = torch.ops.hosim.initial.default


def is_cache_node(target: Any) -> bool:
    """Return whether a node's target is one of these ops."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == NAMESPACE
