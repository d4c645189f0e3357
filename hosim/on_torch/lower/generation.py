"""Generation on an offloaded model: prompt and tokens as programs of their own over the same
tensors. Imports torch.

``generate`` itself is transformers' and runs as ever, on a twin of the model whose ``forward`` runs
captured programs. A call of the model with a cache runs them too. A call with other
sizes or constants than all before is traced by torch on fake tensors and planned within the same
budget. With a static cache that is one program for the prompt and one for every token after it. The
cache's tensors are inputs, which the program writes in place or, where transformers makes them,
results.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import PlaceholderInput, failures, quiet
from hosim.on_torch.lower.callable import Captured, OffloadedModel
from hosim.on_torch.lower.planned_program import PlannedProgram, Planner, at_home
from hosim.on_torch.lower.python_state import WritesUndone, python_state_kept, stand_ins
from hosim.on_torch.lower.reached_state import Reached
from hosim.on_torch.lower.tiers import Device
from hosim.on_torch.lower.torch_program import TorchProgram, lift_constants, read
from hosim.on_torch.lower.true_layouts import TrueLayouts
from hosim.on_torch.lower.two_traces import require_own_results
from hosim.result import Result

_FORMER = "past_key_values"
"""The name of a model's cache in arguments and results of transformers before 5.24. Later versions
take it, too.
"""

_CONSTANTS = (type(None), bool, int, float, str, torch.dtype)
"""Types of arguments that are constants of a program."""

_STATIC = (
    "an offloaded model needs a cache of fixed sizes, because one that grows needs a program for "
    "each token: give generate "
    "cache_implementation='static', or the model a StaticCache(config=model.config, "
    "max_cache_len=...)"
)
_ADVICE = "write the model's forward without looking at what tensors contain"


class OffloadedGenerator(OffloadedModel):
    """An offloaded model of transformers that can :meth:`generate`."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        result: Result,
        hardware: Hardware,
        planner: Planner,
        device: Device,
    ) -> None:
        self._by_id = {id(tensor): name for name, tensor in captured.held.items()}
        super().__init__(captured, plan, result, hardware, planner, device)
        self._programs: dict[Any, _Program] = {}
        self._twin: Any = None
        self._cache = _cache_name(captured.model)

    @property
    def programs(self) -> Sequence[Result]:
        """The replay, in program order, of each program that :meth:`generate` has made."""
        return [one.planned.result for one in self._programs.values()]

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the model's ``generate`` for these arguments; with a static cache
        unless a cache is given.

        The first call for a prompt of some length captures and plans a program for it, and one for
        each further token. The cache, which stays in device memory between programs, counts.

        Raises :class:`InputError` for a cache that grows, an encoder with a decoder, or anything
        else that needs other sizes at each token. Raises :class:`hosim.errors.ExecutionError` as
        calling the model does.
        """
        model = self._captured.model
        self._require_caches()
        if getattr(model.config, "is_encoder_decoder", False):
            raise InputError(
                "generate calls encoder and decoder apart, and only models without an encoder can "
                "do so offloaded"
            )
        config = args[1] if len(args) > 1 else kwargs.get("generation_config")
        if (
            all(kwargs.get(name) is None for name in (self._cache, _FORMER))
            and getattr(config or model.generation_config, "cache_implementation", None) is None
        ):
            kwargs.setdefault("cache_implementation", "static")
        kwargs["disable_compile"] = True
        with self._one_at_a_time:
            return self._copy().generate(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results; with a cache by programs as those of :meth:`generate`."""
        if self._cache not in kwargs and kwargs.get(_FORMER) is not None:
            kwargs[self._cache] = kwargs.pop(_FORMER)
        if kwargs.get(self._cache) is None:
            return super()._call(*args, **kwargs)
        self._require_caches()
        names = list(inspect.signature(self._captured.model.forward).parameters)
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or given.keys() & kwargs.keys():
            raise InputError("the same argument is given twice, by position and by name")
        self._copy()
        return self._forward(**given, **kwargs)

    def _require_caches(self) -> None:
        if self._is_elsewhere:
            raise InputError(
                "a cache needs the model on the device that runs it when it is offloaded; this "
                "one was on the CPU or on meta"
            )

    def _copy(self) -> Any:
        """The twin of the model, made at its first use."""
        if self._twin is None:
            self._twin = _twin(self._captured.model, weakref.WeakMethod(self._forward))
        return self._twin

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._require_as_captured()
        if args:
            raise InputError(
                "generate calls this model with arguments by position, which it cannot do offloaded"
            )
        cache = kwargs.pop(self._cache, None)
        layers = _static_layers(cache)
        for layer in layers:
            for name, tensor in _tensors(layer).items():
                setattr(layer, name, tensor.to(self._twin.device))
        leaves, spec = tree_flatten(kwargs)
        key = (
            spec,
            tuple(map(_kind, leaves)),
            tuple(
                tuple((name, _kind(value)) for name, value in vars(layer).items())
                for layer in layers
            ),
        )
        if key not in self._programs:
            self._programs[key] = self._captured_forward(leaves, spec, cache)
        return self._programs[key].result(self._run, leaves, cache)

    def _captured_forward(self, leaves: Sequence[Any], spec: TreeSpec, cache: Any) -> _Program:
        name = f"{self.program.graph.name}: generate {len(self._programs) + 1}"
        whole = self._whole.program
        with self._guarding.as_before():
            traced = _traced(self._twin, self._by_id, whole, leaves, spec, cache, name)
        program = at_home(
            traced.program,
            [self._whole, *(one.planned for one in self._programs.values())],
            self._hardware.device_tier,
        )
        plan, result = self._planner(program)
        return _Program(self._under(program, plan, result, traced.inputs), traced)


@dataclass(frozen=True)
class _Traced:
    """A traced call. ``inputs`` are the placeholders of its tensors, of the cache's, and of
    ``constants``.

    The program returns the tensors of ``spec`` (the others are ``leaves``), and then the cache's
    new tensors: ``made`` has layer and name of each. ``after`` are the other attributes of each
    layer after the call. ``cache`` is its name among the results.
    """

    program: TorchProgram
    inputs: tuple[str, ...]
    constants: tuple[torch.Tensor, ...]
    spec: TreeSpec
    leaves: tuple[Any, ...]
    made: tuple[tuple[int, str], ...]
    after: tuple[Mapping[str, Any], ...]
    cache: str


@dataclass(frozen=True)
class _Program:
    """A traced call under its plan."""

    planned: PlannedProgram
    traced: _Traced

    def result(self, run: Any, leaves: Sequence[Any], cache: Any) -> Any:
        """Return the result of the model, with the cache as it leaves it."""
        traced = self.traced
        given = [
            *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)),
            *[tensor for layer in cache.layers for tensor in _tensors(layer).values()],
            *traced.constants,
        ]
        results = iter(run(self.planned, given))
        output = tree_unflatten(
            [next(results) if leaf is _TENSOR else leaf for leaf in traced.leaves], traced.spec
        )
        for i, name in traced.made:
            setattr(cache.layers[i], name, next(results))
        for layer, after in zip(cache.layers, traced.after, strict=True):
            vars(layer).update(after)
        output[traced.cache] = cache
        return output


_TENSOR = object()
"""Stands for a tensor among the results of a traced call."""


def _traced(
    twin: Any,
    placeholders: Mapping[int, str],
    whole: TorchProgram,
    leaves: Sequence[Any],
    spec: TreeSpec,
    cache: Any,
    name: str,
) -> _Traced:
    """The program of ``forward``, whose tensors are those of ``placeholders``, for arguments like
    ``leaves`` and a cache like this one.
    """
    held = [one for one in whole.givens if one.own]
    cache_name = _cache_name(twin)
    traced = copy.copy(cache)
    traced.layers = [copy.copy(layer) for layer in cache.layers]
    seen: dict[str, Any] = {}
    with (
        failures(_ADVICE, "be traced"),
        quiet(),
        TrueLayouts() as mode,
    ):
        by_name = {one.placeholder: _like(one.value) for one in held}
        given, inputs = _faked(mode, leaves, traced.layers)
        before = {id(tensor) for tensor in inputs}

        def call(*_: torch.Tensor) -> list[torch.Tensor]:
            output = type(twin).forward(twin, **tree_unflatten(given, spec), **{cache_name: traced})
            return _results(output, cache_name, traced, before, seen)

        with (
            torch.no_grad(),
            python_state_kept(twin, Reached(twin, {})),
            stand_ins(twin, {one: by_name[name] for one, name in placeholders.items()}),
            WritesUndone(),
        ):
            module = make_fx(call, tracing_mode="real")(*by_name.values(), *inputs)
    _require_repeatable(cache, traced, seen["made"])
    module.graph.eliminate_dead_code()
    constants = lift_constants(module)
    names = [*by_name, *(f"input_{i}" for i in range(len(inputs))), *constants]
    added = [PlaceholderInput("", one, "", "input") for one in (*inputs, *constants.values())]
    named = [
        replace(one, placeholder=key, name=one.name or key)
        for one, key in zip([*held, *added], names, strict=True)
    ]
    source = {"source": "transformers generate"}
    program, _ = read(_renamed(module, names), named, name=name, meta=source)
    require_own_results(program)
    after = tuple(
        {key: value for key, value in vars(layer).items() if not isinstance(value, torch.Tensor)}
        for layer in traced.layers
    )
    return _Traced(
        program,
        tuple(names[len(held) :]),
        tuple(constants.values()),
        **seen,
        after=after,
        cache=cache_name,
    )


def _faked(
    mode: TrueLayouts, leaves: Sequence[Any], layers: Sequence[Any]
) -> tuple[list[Any], list[torch.Tensor]]:
    """Arguments with fakes for their tensors, and all fakes, those of the cache's layers too, which
    have these instead of their tensors then.
    """
    given = [
        mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]
    for layer in layers:
        for key, value in _tensors(layer).items():
            setattr(layer, key, mode.from_tensor(value, static_shapes=True))
    return given, [
        *(one for one in given if isinstance(one, torch.Tensor)),
        *(value for layer in layers for value in _tensors(layer).values()),
    ]


def _results(
    output: Any, cache_name: str, cache: Any, before: Set[int], seen: dict[str, Any]
) -> list[torch.Tensor]:
    """The tensors that a traced call returns, and those that its cache has anew; ``seen`` gets what
    else :class:`_Traced` says of them.
    """
    kept: Any = getattr(output, cache_name, None)
    if kept is not cache:
        raise InputError(
            "the model does not return the cache that it is given; call it with "
            "use_cache=True, and not with return_dict=False"
        )
    output[cache_name] = None
    results, seen["spec"] = tree_flatten(output)
    seen["leaves"] = tuple(
        _TENSOR if isinstance(result, torch.Tensor) else result for result in results
    )
    seen["made"] = tuple(
        (i, key)
        for i, layer in enumerate(cache.layers)
        for key, value in _tensors(layer).items()
        if id(value) not in before
    )
    made = [getattr(cache.layers[i], key) for i, key in seen["made"]]
    return [result for result in results if isinstance(result, torch.Tensor)] + made


def _require_repeatable(cache: Any, traced: Any, made: Sequence[tuple[int, str]]) -> None:
    """Raise :class:`InputError` for a cache that each call changes in another way."""
    for i, (old, new) in enumerate(zip(cache.layers, traced.layers, strict=True)):
        if _counts(old, new) or any((i, key) in made for key in _tensors(old)):
            raise InputError(
                f"{type(old).__name__} changes at each token in a way that a captured program "
                "cannot repeat; give generate no cache, "
                "and it makes one that keeps all tokens"
            )


def _renamed(module: GraphModule, names: Sequence[str]) -> GraphModule:
    """The same graph with other names of its placeholders."""
    graph = Graph()
    env: dict[Any, Any] = {}
    for node, name in zip(module.graph.find_nodes(op="placeholder"), names, strict=True):
        env[node] = graph.placeholder(name)
        env[node].name = name  # which may be that of a builtin
        env[node].meta = dict(node.meta)
    graph.output(graph.graph_copy(module.graph, env))
    return GraphModule(module, graph)


def _twin(model: Any, forward: Callable[[], Any]) -> Any:
    """A model that shares everything with ``model`` but its guard, and whose ``forward`` is what
    ``forward`` returns.
    """
    twin = copy.copy(model)
    twin._forward_pre_hooks = OrderedDict()
    twin._prepare_static_cache = functools.partial(
        _whole_cache, type(twin)._prepare_static_cache, twin
    )
    twin.forward = functools.wraps(model.forward)(
        lambda *args, **kwargs: forward()(*args, **kwargs)
    )
    return twin


def _whole_cache(prepared: Callable[..., Any], twin: Any, *args: Any, **kwargs: Any) -> Any:
    """The static cache that ``generate`` makes, without layers that slide: they keep all tokens,
    and the mask of attention has the window.

    A layer that slides counts tokens in Python, so that each token would need a program of its own.
    """
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    cache = prepared(twin, *args, **kwargs)
    length = twin._previous_max_cache_length
    cache.layers = [
        StaticLayer(max_cache_len=length) if type(one) is StaticSlidingWindowLayer else one
        for one in cache.layers
    ]
    return cache


def _cache_name(model: Any) -> str:
    """Return the name that this model's ``forward`` gives its cache: ``cache`` since transformers
    5.24.
    """
    return _FORMER if _FORMER in inspect.signature(model.forward).parameters else "cache"


def _static_layers(cache: Any) -> Sequence[Any]:
    """The layers of a cache of fixed sizes. Raises :class:`InputError` for another one."""
    layers = getattr(cache, "layers", None)
    if (
        not layers
        or cache.offloading
        or not all(getattr(layer, "is_compileable", False) for layer in layers)
    ):
        got = "no cache" if cache is None else type(cache).__name__
        if cache is not None and cache.offloading:
            got = f"an offloaded {got}"
        raise InputError(f"{_STATIC} (got {got})")
    return list(layers)


def _counts(before: Any, after: Any) -> bool:
    """Return whether a layer has a number that differs after each call, so that each token would
    need another program.
    """
    return any(
        type(value) is int and vars(after)[key] != value for key, value in vars(before).items()
    )


def _tensors(layer: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}


def _kind(value: Any) -> Any:
    """Return the part of an argument that a program depends on."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, (*_CONSTANTS, torch.Size, torch.device)):
        return type(value).__name__, value
    raise InputError(
        f"generate gives the model a {type(value).__name__}, which a captured program cannot take"
    )


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).requires_grad_(tensor.requires_grad)  # by which torch chooses kernels, also without gradients
