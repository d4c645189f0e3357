"""A compiled model in a training step: each call of inductor's forward and backward programs is one
op of the traced step. Imports torch.

While the step is traced, torch itself compiles the model: dynamo captures it, AOT autograd divides
it into a forward and a backward program and does what stands around them, and inductor writes their
texts. Only the texts do not run: their calls become nodes of the trace. So the step has what torch
runs, in torch's order, and what forward saves for backward is a tensor of the plan.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import _symbolic_trace as symbolic_trace
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)

from hosim.errors import InputError
from hosim.on_torch.lower.compiled.compiled_calls import OURS, CompiledCall, InductorProgram
from hosim.on_torch.lower.compiled.compiled_models import CompiledModel, require_plannable
from hosim.on_torch.lower.compiled.wrapper_text import WrapperCall


@contextmanager
def traced_by_calls(compiled: CompiledModel) -> Iterator[None]:
    """While a step is traced: calling the compiled model traces the calls of inductor's programs.

    Calling it raises :class:`InputError` for a model that torch compiles to several graphs, or not
    at all, or to programs that cannot be planned.
    """
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.exc import Unsupported
    from torch._functorch import config as functorch_config
    from torch._inductor import config

    settings = compiled.settings
    require_plannable({**config.get_config_copy(), **settings})
    model = compiled.module._orig_mod
    name = type(model).__name__
    # a region of its own, so that what torch has compiled and counted for the user stays as it is
    twin = torch.compile(
        model,
        backend=partial(_compile, settings),
        fullgraph=True,
        dynamic=False,
        isolate_recompiles=True,
    )

    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            with (
                dynamo_config.patch(
                    error_on_nested_fx_trace=False, force_compile_during_fx_trace=True
                ),
                functorch_config.patch(
                    enable_autograd_cache=False, force_non_lazy_backward_lowering=True
                ),
                _modules_as_called(),
            ):
                return twin.forward(*args, **kwargs)
        except Unsupported as error:
            raise InputError(
                f"torch.compile breaks {name} into several graphs, and hosim trains models of "
                f"one: {_reason(error)}; offload it uncompiled"
            ) from error
        except Exception as error:
            inner: Any = error
            while (cause := getattr(inner, "inner_exception", None)) is not None:
                inner = cause
            if isinstance(inner, InputError):
                raise inner from error
            raise InputError(f"torch.compile cannot compile {name}: {_reason(inner)}") from error

    own = vars(compiled.module)
    before = own["forward"]
    own["forward"] = forward
    try:
        yield
    finally:
        own["forward"] = before


@contextmanager
def _modules_as_called() -> Iterator[None]:
    """Modules are called as without torch.fx, whose tracer replaces how: dynamo would follow
    that.
    """
    module: Any = torch.nn.Module
    own = (
        ("__call__", symbolic_trace._orig_module_call),
        ("__getattr__", symbolic_trace._orig_module_getattr),
    )
    before = [(name, getattr(module, name)) for name, _ in own]
    for name, function in own:
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in before:
            setattr(module, name, function)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _compile(
    settings: Mapping[str, Any], module: GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Torch's own backend, but that its programs are traced."""
    from torch._inductor import compile_fx as inductor

    compiled: Callable[..., Any] = inductor.compile_fx(
        module, inputs, inner_compile=_traced_instead, config_patches={**settings, **OURS}
    )
    return compiled


def _traced_instead(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return the function that inductor compiles, as one that traces its calls."""
    from torch._inductor import compile_fx as inductor

    compiled: Callable[..., Any] = inductor.compile_fx_inner(*args, **kwargs)
    if not hasattr(compiled, "source_code"):
        return compiled  # a graph that computes nothing
    program = InductorProgram(compiled)

    def run(given: list[Any]) -> list[Any]:
        values = dict(zip(program.wrapper.inputs, given, strict=True))
        given.clear()
        return _Tracing(program, values).results()

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@dataclass(eq=False)
class _Tracing:
    """One run of a program in a trace, with the values of its text by their names."""

    program: InductorProgram
    values: dict[str, Any]

    def results(self) -> list[Any]:
        """Return the results of the program; those that are views are made by ops of torch."""
        for call in self.program.wrapper.calls:
            made = _as_node(self.program.op(call), self.program.name(call), self.taken(call))
            self.values.update(
                zip(call.gives, (made,) if len(call.gives) == 1 else made or (), strict=True)
            )
        return [self.program.told(call)(*self.taken(call)) for call in self.program.wrapper.results]

    def taken(self, call: WrapperCall) -> list[Any]:
        return [self.value(name) for name in call.takes]

    def value(self, name: str) -> Any:
        """A value, that of one of several results among them."""
        if name not in self.values:
            base, i = self.program.wrapper.items[name]
            self.values[name] = self.value(base)[i]
        return self.values[name]


def _as_node(op: CompiledCall, name: str, taken: Sequence[Any]) -> Any:
    """Return the result of an op on fake tensors, noted as a node of the trace."""
    mode = get_proxy_mode()
    with disable_proxy_modes_tracing():
        made = op(*taken)
    proxies = tuple(mode.tracer.unwrap_proxy(one) for one in taken)
    proxy = mode.tracer.create_proxy("call_function", op, proxies, {}, name=name)
    return track_tensor_tree(made, proxy, constant=None, tracer=mode.tracer)
