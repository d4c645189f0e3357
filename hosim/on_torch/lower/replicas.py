"""DistributedDataParallel in a captured step: its exchanges with other processes as ops of their
own. Imports torch.

The ops of FSDP's exchanges (:mod:`hosim.on_torch.lower.sharded`) are defined here too.

The model inside is traced, and the exchanges stand where torch makes them: each gradient is
averaged when it is accumulated, after the parameter's own hooks, and buffers are broadcast from the
first process before forward. Whether a call exchanges at all (``no_sync``) is asked at each run.
The ops keep their order, which must be that of the other processes.

Torch adds gradients up in buckets of several: with two processes that gives the same bits, with
more the last ones may differ.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.fx import GraphModule

from hosim.errors import InputError
from hosim.on_torch.lower.compiled import IN_ORDER, StepOp

STREAM = "collectives"
"""The stream of the ops in the graph of a step."""

_library = torch.library.Library("hosim_step", "FRAGMENT")
_library.define("all_reduce(Tensor(a!) gradient) -> ()", tags=IN_ORDER)
_library.define("broadcast(Tensor(a!) buffer) -> ()", tags=IN_ORDER)
_library.impl("all_reduce", lambda gradient: None, "CompositeExplicitAutograd")
_library.impl("broadcast", lambda buffer: None, "CompositeExplicitAutograd")
_library.define("all_gather(Tensor shard, int world, int group) -> Tensor", tags=IN_ORDER)
_library.define("reduce_scatter(Tensor gradient, int world, int group) -> Tensor", tags=IN_ORDER)
_library.impl(
    "all_gather",
    lambda x, world, group: x.new_empty(world * len(x), *x.shape[1:]),
    "CompositeExplicitAutograd",
)
_library.impl(
    "reduce_scatter",
    lambda x, world, group: x.new_empty(len(x) // world, *x.shape[1:]),
    "CompositeExplicitAutograd",
)

all_reduce = torch.ops.hosim_step.all_reduce.default
broadcast = torch.ops.hosim_step.broadcast.default

all_gather = torch.ops.hosim_step.all_gather.default
reduce_scatter = torch.ops.hosim_step.reduce_scatter.default

COLLECTIVES = (all_reduce, broadcast, all_gather, reduce_scatter)


class Replicas:
    """The exchanges of a wrapped model. Raises :class:`InputError` for settings that exchange in
    another way.
    """

    def __init__(self, wrapped: Any) -> None:
        odd = {
            "a communication hook": bool(getattr(wrapped, "_comm_hooks", ())),
            "mixed_precision": getattr(wrapped, "mixed_precision", None) is not None,
            "delay_all_reduce_named_params": bool(getattr(wrapped, "_delay_all_reduce_params", ())),
        }
        for what, there in odd.items():
            if there:
                raise InputError(
                    f"DistributedDataParallel has {what}, which a captured step does not follow; "
                    "wrap the model without it"
                )
        self._wrapped = wrapped
        self._reduced = {id(p) for p in wrapped._module_parameters}

    def begin(self, fakes: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """While a step is traced, before forward: broadcast the buffers."""
        if self._wrapped.broadcast_buffers:
            for buffer in self._wrapped.modules_buffers:
                broadcast(fakes(buffer))

    def register(
        self, fakes: Mapping[int, torch.Tensor], learned: Sequence[torch.Tensor]
    ) -> list[Any]:
        """Before a step is traced: let each gradient be averaged when it is accumulated, behind all
        other hooks; returns the handles.
        """

        def accumulated(traced: torch.Tensor) -> None:
            all_reduce(traced.grad)

        mine = [fakes[id(p)] for p in learned if p.requires_grad and id(p) in self._reduced]
        return [fake.register_post_accumulate_grad_hook(accumulated) for fake in mine]

    def require_gradients(self, learned: Sequence[torch.Tensor], there: Sequence[int]) -> None:
        """Raise :class:`InputError` for a parameter without a gradient, which another process may
        have.
        """
        if any(
            id(p) in self._reduced and p.requires_grad and i not in there
            for i, p in enumerate(learned)
        ):
            raise InputError(
                "a parameter under DistributedDataParallel gets no gradient; give the optimizer "
                "those that do"
            )

    def bind(self, module: GraphModule) -> None:
        """Let the ops of a graph exchange."""
        for node in module.graph.nodes:
            if node.target is all_reduce:
                node.target = StepOp("all_reduce", partial(_average, self._wrapped), begins=True)
            elif node.target is broadcast:
                node.target = StepOp("broadcast", partial(_from_the_first, self._wrapped))
        module.recompile()

    @contextmanager
    def tracing(self, fakes: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """While a step is traced: the model is as it is."""
        yield

    def ready(self) -> None:
        """Before a call: settings that may change are asked at each exchange."""

    def ended(self) -> None:
        """After a call, as after torch's forward: the next one broadcasts if this one exchanged
        gradients.
        """
        self._wrapped.require_forward_param_sync = self._wrapped.require_backward_grad_sync


def _average(wrapped: Any, gradient: torch.Tensor) -> Any:
    """Begin to average a gradient over the processes, as torch does (scaled first, then added up);
    returns what to wait for.
    """
    if not wrapped.require_backward_grad_sync:
        return None
    group = wrapped.process_group
    gradient.mul_(1.0 / distributed.get_world_size(group))
    return distributed.all_reduce(gradient, group=group, async_op=True)


def _from_the_first(wrapped: Any, buffer: torch.Tensor) -> None:
    """Copy a buffer from the first process."""
    if wrapped.require_forward_param_sync:
        group = wrapped.process_group
        distributed.broadcast(buffer, distributed.get_global_rank(group, 0), group=group)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside a wrapper, or the model itself."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def replicas_of(model: torch.nn.Module) -> Replicas | None:
    """The exchanges of a model that is wrapped whole; ``None`` for one that is not."""
    return None if unwrapped(model) is model else Replicas(model)


# -- exchanges under way ---------------------------------------------------------------------------


class ExchangesUnderWay:
    """The exchanges that have begun and not been waited for, by the tensor that each reads and
    writes.

    Torch's ``wait`` lets the device's queue wait, or the host for a CPU; either way what comes
    after it finds the result.
    """

    def __init__(self) -> None:
        self._works: dict[int, Any] = {}

    def begun(self, tensors: Iterable[int], work: Any) -> None:
        """An exchange of these tensors has begun; ``None`` is one that has ended."""
        if work is not None:
            for t in tensors:
                self._works[t] = work

    def settle(self, tensors: Iterable[int]) -> None:
        """Wait for what has begun with these tensors."""
        if self._works:
            for t in tensors:
                work = self._works.pop(t, None)
                if work is not None:
                    work.wait()

    def settle_all(self) -> None:
        """Wait for everything, in the order in which it began."""
        self.settle(list(self._works))

    def forget(self) -> None:
        """Wait for nothing: the run has failed, and another process may never answer."""
        self._works.clear()
