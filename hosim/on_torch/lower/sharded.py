"""FSDP2 (``fully_shard``) in a captured step: parameters are gathered and gradients reduced by ops
of their own. Imports torch.

The step holds each process's shards, as the optimizer does. Where torch gathers a module's
parameters, before its forward and again before its backward if it is resharded between, the traced
step has an all-gather of each; where torch reduces a gradient, a reduce-scatter. Both are copies of
bytes and sums of the same values as torch's, so the bits are eager's. Torch sends a module's
parameters in one message, and this step each by itself; with more than two processes the order of a
sum, and so its last bits, may differ.

What of torch's is read here has no public name: the states that ``fully_shard`` gives modules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.fx import GraphModule
from torch.utils._pytree import tree_map_only

from hosim.errors import InputError
from hosim.on_torch.lower.compiled import StepOp
from hosim.on_torch.lower.parameter_hooks import hooks_after, hooks_before
from hosim.on_torch.lower.replicas import all_gather, reduce_scatter
from hosim.on_torch.lower.sharded_tensors import is_sharded, local, sharded_modules

_DTYPES = (torch.float32, torch.bfloat16)
"""Those whose gradients torch lets the collective average; for others it scales before and
after.
"""


@dataclass(frozen=True)
class _ShardedParameter:
    """A sharded parameter. ``places`` are the modules that have it, with its name there."""

    parameter: Any
    rows: int
    places: tuple[tuple[torch.nn.Module, str], ...]


@dataclass(frozen=True)
class _GatheredTogether:
    """The parameters that are gathered together for a module: ``regathers`` says whether they are
    gathered again for backward.
    """

    number: int
    module: torch.nn.Module
    shards: tuple[_ShardedParameter, ...]
    regathers: bool
    world: int
    gathers_in: Any
    reduces_in: Any
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None


class Shards:
    """The exchanges of a model that ``fully_shard`` has sharded. Raises :class:`InputError` for
    what is exchanged in another way.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._states = sharded_modules(model)
        groups: list[_GatheredTogether] = []
        names = {id(module): name for name, module in model.named_modules()}
        roots: list[str] = []
        for module, state in self._states:
            name = names[id(module)]
            is_root = not any(not root or name.startswith(f"{root}.") for root in roots)
            if is_root:
                roots.append(name)
            for group in state._fsdp_param_groups:
                self._require(name, state, group)
                after = group.post_forward_mesh_info
                if is_root and state._auto_reshard_after_forward:
                    after = None
                groups.append(_group(len(groups), module, group, after is not None))
        self._groups = groups
        self._policies = {id(module): state._mp_policy for module, state in self._states}

    def begin(self, fakes: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """While a step is traced, before forward: nothing is exchanged."""

    def register(
        self, fakes: Mapping[int, torch.Tensor], learned: Sequence[torch.Tensor]
    ) -> list[Any]:
        """Before a step is traced: gradients are reduced where parameters were gathered, and need
        no hooks.
        """
        return []

    def require_gradients(self, learned: Sequence[torch.Tensor], there: Sequence[int]) -> None:
        """A parameter without a gradient is left out, as torch leaves it out."""

    @contextmanager
    def tracing(self, fakes: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """While a step is traced: modules gather fakes of their shards where torch would gather the
        shards.
        """
        traced = _GatheredInTrace(self._groups, fakes)
        with ExitStack() as stack:
            for module, state in self._states:
                policy, mine = (
                    self._policies[id(module)],
                    [group for group in self._groups if group.module is module],
                )
                stack.enter_context(
                    _hooks_replaced(
                        module, state, traced.before(mine, policy), traced.after(mine, policy)
                    )
                )
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(traced.pack, traced.unpack)
            )
            yield

    def bind(self, module: GraphModule) -> None:
        """Let the ops of a graph exchange."""
        for node in module.graph.nodes:
            if node.target is all_gather:
                node.target = StepOp(
                    "all_gather", partial(_all_gather, self._groups[node.args[2]].gathers_in)
                )
            elif node.target is reduce_scatter:
                node.target = StepOp(
                    "reduce_scatter",
                    partial(_reduce_scatter, self._groups[node.args[2]].reduces_in),
                )
        module.recompile()

    def ready(self) -> None:
        """Raise :class:`InputError` for a setting that has changed since the step was captured."""
        for module, state in self._states:
            for group in state._fsdp_param_groups:
                self._require(type(module).__name__, state, group)

    def ended(self) -> None:
        """After a call nothing is gathered."""

    def _require(self, name: str, state: Any, group: Any) -> None:
        """Raise :class:`InputError` for what a captured step would not do as torch does."""
        mesh = group.mesh_info
        after = group.post_forward_mesh_info
        trained = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
        reduced = {
            group.mp_policy.reduce_dtype or group.mp_policy.param_dtype or one.sharded_param.dtype
            for one in trained
        }
        odd = {
            "several modules in one group": len(state._modules) != 1,
            "its parameters gathered: call reshard() first": group._sharded_state.name != "SHARDED",
            "a mesh of more than one dimension": type(mesh).__name__ != "FSDPMeshInfo",
            "reshard_after_forward to fewer processes": after is not None
            and after.shard_mesh_size != mesh.shard_mesh_size,
            "an offload policy": type(group.offload_policy).__name__ != "OffloadPolicy",
            "gradients of a dtype that torch scales before it adds them": any(
                dtype not in _DTYPES for dtype in reduced
            ),
            "set_requires_gradient_sync(False)": not group.reduce_grads,
            "a factor for gradients": group.gradient_divide_factor is not None,
            "sums forced for its collectives": group.force_sum_reduction_for_comms,
            "gradients of unused parameters": group.reduce_scatter_unused_params,
            "an all-reduce hook": group._all_reduce_hook is not None,
            "collectives of its own": (
                type(group._all_gather_comm).__name__,
                type(group._reduce_scatter_comm).__name__,
            )
            != ("DefaultAllGather", "DefaultReduceScatter"),
            "parameters sharded along another dimension": any(
                one.fsdp_placement.dim for one in group.fsdp_params
            ),
            "parameters that were sharded already": any(
                one.is_dtensor for one in group.fsdp_params
            ),
            "parameters that gather in a way of their own": any(
                hasattr(local(one.sharded_param), "fsdp_pre_all_gather")
                for one in group.fsdp_params
            ),
            "shards loaded since it ran: run its forward once": any(
                _storage(local(one.sharded_param)) != _storage(one._sharded_param_data)
                for one in group.fsdp_params
            ),
            "hooks of parameters": any(
                hooks_before(one.sharded_param) or hooks_after(one.sharded_param)
                for one in group.fsdp_params
            ),
        }
        for what, there in odd.items():
            if there:
                raise InputError(
                    f"{name or 'the model'} is sharded by FSDP with {what}, which a captured step "
                    "does not follow"
                )


class _GatheredInTrace:
    """The parameters that a step gathers while it is traced."""

    def __init__(
        self, groups: Sequence[_GatheredTogether], fakes: Mapping[int, torch.Tensor]
    ) -> None:
        self._fakes = fakes
        self._forward: set[int] = set()
        self._saved: dict[int, tuple[_GatheredTogether, _ShardedParameter]] = {}
        self._again: dict[int, torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []  # so that no other storage gets the address of one

    def before(self, groups: Sequence[_GatheredTogether], policy: Any) -> Callable[..., Any]:
        """Return the hook that runs before a module's forward."""

        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            if policy.cast_forward_inputs and policy.param_dtype is not None:
                args, kwargs = _cast((args, kwargs), policy.param_dtype)
            for group in groups:
                self._gather(group)
            return args, kwargs

        return hook

    def after(self, groups: Sequence[_GatheredTogether], policy: Any) -> Callable[..., Any]:
        """Return the hook that runs after a module's forward."""

        def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
            for group in groups:
                if group.regathers:
                    for shard in group.shards:
                        _set(shard, self._fakes[id(shard.parameter)])
            return output if policy.output_dtype is None else _cast(output, policy.output_dtype)

        return hook

    def _gather(self, group: _GatheredTogether) -> None:
        is_backward = torch._C._current_graph_task_id() != -1  # checkpointing runs forward again
        if not is_backward and group.number in self._forward:
            raise InputError(
                "a module sharded by FSDP is called twice in a step, which a captured step does "
                "not follow; shard one around it"
            )
        self._forward.add(group.number)
        for shard in group.shards:
            full = _Gathered.apply(self._fakes[id(shard.parameter)], group, shard.rows)
            if not is_backward and group.regathers:
                self._saved[_storage(full)] = group, shard
                self._keep.append(full)
            _set(shard, full)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return the value that is kept for backward: where a tensor is part of a parameter that is
        gathered again, only which part.
        """
        found = self._saved.get(_storage(tensor))
        if found is None or tensor.dtype != (found[0].param_dtype or found[1].parameter.dtype):
            return tensor
        return found, tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(self, kept: Any) -> torch.Tensor:
        """Return the value that backward takes."""
        if isinstance(kept, torch.Tensor):
            return kept
        (group, shard), size, stride, offset = kept
        if id(shard) not in self._again:
            with torch.no_grad():
                self._again[id(shard)] = _gathered(
                    self._fakes[id(shard.parameter)], group, shard.rows
                )
        return self._again[id(shard)].as_strided(size, stride, offset)


class _Gathered(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for the type checker
    """Gathers a parameter, whose gradient is averaged over the processes, each of which gets its
    rows.
    """

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: _GatheredTogether, rows: int) -> torch.Tensor:
        ctx.group, ctx.rows, ctx.dtype = group, len(shard), shard.dtype
        return _gathered(shard, group, rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        group = ctx.group
        gradient = gradient.to(group.reduce_dtype or gradient.dtype).contiguous()
        padded = _padded(gradient, -len(gradient) % group.world)
        reduced = reduce_scatter(padded, group.world, group.number).narrow(0, 0, ctx.rows)
        return reduced.to(ctx.dtype), None, None


def _gathered(shard: torch.Tensor, group: _GatheredTogether, rows: int) -> torch.Tensor:
    shard = shard.detach().to(group.param_dtype or shard.dtype)
    return all_gather(
        _padded(shard, -(-rows // group.world) - len(shard)), group.world, group.number
    ).narrow(0, 0, rows)


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A tensor with rows of zeros behind it: the last processes have fewer rows than the first
    ones, if not all have the same.
    """
    return torch.cat((tensor, tensor.new_zeros(rows, *tensor.shape[1:]))) if rows else tensor


def _all_gather(group: Any, shard: torch.Tensor, world: int, number: int) -> torch.Tensor:
    """The shards of all processes, one behind the other."""
    full = shard.new_empty(world * len(shard), *shard.shape[1:])
    distributed.all_gather_single(full, shard.contiguous(), group=group)
    return full


def _reduce_scatter(group: Any, gradient: torch.Tensor, world: int, number: int) -> torch.Tensor:
    """The rows of this process of a gradient averaged over all."""
    mine = gradient.new_empty(len(gradient) // world, *gradient.shape[1:])
    way = distributed.ReduceOp.AVG if world > 1 else distributed.ReduceOp.SUM
    distributed.reduce_scatter_single(mine, gradient, op=way, group=group)
    return mine


def shards_of(model: torch.nn.Module) -> Shards | None:
    """The exchanges of a sharded model; ``None`` for one that is not."""
    return Shards(model) if any(map(is_sharded, model.modules())) else None


def _group(number: int, module: torch.nn.Module, group: Any, regathers: bool) -> _GatheredTogether:
    policy, mesh = group.mp_policy, group.mesh_info
    shards = []
    for one in group.fsdp_params:
        info = one._module_info
        others = zip(info.shared_modules, info.shared_param_names, strict=True)
        shards.append(
            _ShardedParameter(
                one.sharded_param,
                one.sharded_param.shape[0],
                ((info.module, info.param_name), *others),
            )
        )
    return _GatheredTogether(
        number,
        module,
        tuple(shards),
        regathers,
        mesh.shard_mesh_size,
        group._all_gather_process_group,
        group._reduce_scatter_process_group,
        policy.param_dtype,
        policy.reduce_dtype,
    )


@contextmanager
def _hooks_replaced(module: torch.nn.Module, state: Any, before: Any, after: Any) -> Iterator[None]:
    """Other hooks where torch's are that gather a module's parameters."""
    replaced = [(state._pre_forward_hook_handle, before), (state._post_forward_hook_handle, after)]
    kept = []
    try:
        for handle, hook in replaced:
            hooks = handle.hooks_dict_ref()
            kept.append((hooks, handle.id, hooks[handle.id]))
            hooks[handle.id] = hook
        yield
    finally:
        for hooks, number, hook in kept:
            hooks[number] = hook


def _set(shard: _ShardedParameter, value: torch.Tensor) -> None:
    for module, name in shard.places:
        module._parameters[name] = value


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """All floating-point tensors in nested arguments in a dtype, as torch casts them."""
    return tree_map_only(
        torch.Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, value
    )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
