"""The calls of a program that inductor compiled, as ops of a captured program. Imports torch.

Until it is planned, an op only says what its call does to fake tensors; bound, it runs the lines of
inductor's text. So each call is inductor's own, and results are those of ``torch.compile`` to the
bit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from hosim.errors import InputError
from hosim.io.importers.torch_programs import OwnOp, extent
from hosim.on_torch.lower.compiled.wrapper_text import (
    CHECKS,
    GATHERED,
    READ,
    UPDATED,
    WRITTEN,
    WrapperCall,
    read_wrapper,
)

# -- ops in the place of those that tracing recorded, which only say what they make ----------------


IN_ORDER = (torch.Tag.nondeterministic_seeded,)
"""Tags of ops that run once each, in the order of the step, as random ones do."""


class StepOp(OwnOp):
    """A function as the target of a node. ``begins`` says that it only begins something, and
    returns what to wait for.
    """

    __module__ = "hosim_step"

    def __init__(
        self, name: str, function: Callable[..., Any], *, tags: Any = IN_ORDER, begins: bool = False
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.tags = tags
        self.begins = begins
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the function."""
        return self._function(*args, **kwargs)

    def __str__(self) -> str:
        return self.__name__


# -- calls of inductor's text ----------------------------------------------------------------------


OURS: Mapping[str, Any] = {
    "allow_buffer_reuse": False,
    "memory_planning": False,
    "cpp_wrapper": False,
    "graph_partition": False,
    "triton.cudagraphs": False,
}
"""Settings of inductor by which its text has one buffer for each result, and is one piece of
Python.
"""

_library = torch.library.Library("hosim_step", "FRAGMENT")
_library.define("fused(Tensor[] reads, Tensor(a!)[] updates, *, Tensor(b!)[] out) -> ()")
_library.impl("fused", lambda reads, updates, *, out: None, "CompositeExplicitAutograd")


class CompiledCall(StepOp):
    """A call that says what it does to fake tensors. ``real`` computes. Calls of one ``text`` (the
    program and the lines in it) are equal.
    """

    # torch.fx keeps it where nothing takes its results, since it may write what it is given
    _nondeterministic_seeded = True

    def __init__(
        self,
        name: str,
        told: Callable[..., Any],
        real: Callable[..., Any],
        tags: Any,
        text: tuple[str, ...],
    ) -> None:
        super().__init__(name, told, tags=tags)
        self.real = StepOp(name, real, tags=tags)
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompiledCall) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def bind_calls(module: GraphModule) -> None:
    """Make the calls in a graph compute."""
    for node in module.graph.nodes:
        if isinstance(node.target, CompiledCall):
            node.target = node.target.real


class InductorProgram:
    """A program as inductor wrote it: its calls (``wrapper``), and what the names in its text
    are.
    """

    def __init__(self, compiled: Any) -> None:
        """Read what ``compile_fx_inner`` gave. Raises :class:`InputError` for a program whose calls
        cannot be planned.
        """
        source = str(getattr(compiled, "source_code", ""))
        if any(isinstance(value, torch.Tensor) for value in (compiled.constants or {}).values()):
            raise InputError(
                "inductor's program has constant tensors of its own, which a plan does not see; "
                "offload the model uncompiled"
            )
        self.wrapper = read_wrapper(source)
        names: dict[str, Any] = {"__name__": "hosim.on_torch.lower.compiled.compiled_calls.text"}
        exec(compile(source, "<inductor>", "exec"), names)
        roles = {name: _told(roles) for name, roles in self.wrapper.kernels.items()}
        checks = {name: lambda *_: None for name in names if name.startswith(CHECKS)}
        views = {"reinterpret_tensor": _reinterpreted, "empty_strided_cpu": _allocated}
        self._source = source
        self._names = names
        self._told = {**names, **roles, **checks, **views}

    def op(self, call: WrapperCall) -> CompiledCall:
        """The op of a call. It takes the values in ``call.takes``, and gives those in
        ``call.gives``, several as a tuple.
        """
        title = (
            "hosim.fused.default"
            if call.function in self.wrapper.kernels
            else _title(call.function)
        )
        tags = getattr(self._called(call.function), "tags", ()) if call.function else ()
        text = (self._source, *call.takes, *call.lines, *call.gives)
        told, real = _function(call, self._told), _function(call, self._names)
        return CompiledCall(title, told, real, tags, text)

    def name(self, call: WrapperCall) -> str:
        """The name of a call's node: ``mm`` for ``extern_kernels.mm``, and ``fused_add_relu`` for
        ``cpp_fused_add_relu_3``; the graph numbers those that are alike.
        """
        if call.function in self.wrapper.kernels:
            return call.function.removeprefix("cpp_").rstrip("0123456789").rstrip("_")
        return _title(call.function).split(".")[1].strip("_")

    def told(self, call: WrapperCall) -> Callable[..., Any]:
        """The lines of a call as a function that only says what they do."""
        return _function(call, self._told)

    def _called(self, function: str) -> Any:
        found: Any = None
        for i, part in enumerate(function.split(".")):
            found = self._names.get(part) if i == 0 else getattr(found, part, None)
        return found


def _function(call: WrapperCall, names: dict[str, Any]) -> Callable[..., Any]:
    """The lines of a call as a function of what they take."""
    given = call.gives[0] if len(call.gives) == 1 else f"({', '.join(call.gives)})"
    text = "\n    ".join(
        (
            f"def call({', '.join(call.takes)}):",
            *call.lines,
            f"return {given if call.gives else None}",
        )
    )
    made: dict[str, Any] = {}
    exec(compile(text, "<a call of inductor's program>", "exec"), names, made)
    function: Callable[..., Any] = made["call"]
    return function


def _told(roles: Sequence[str]) -> Callable[..., None]:
    """Return a kernel for fake tensors with the effect of a compiled one: it says what it reads and
    writes.
    """

    def kernel(*tensors: torch.Tensor) -> None:
        by_role = {
            role: [t for t, own in zip(tensors, roles, strict=True) if own == role]
            for role in (READ, UPDATED, WRITTEN, GATHERED)
        }
        most = max(
            (t.numel() for t, own in zip(tensors, roles, strict=True) if own != GATHERED), default=0
        )
        rows = [
            _reinterpreted(t, (min(most, extent(t) // t.itemsize),), (1,), 0)
            for t in by_role[GATHERED]
        ]
        torch.ops.hosim_step.fused.default(
            [*by_role[READ], *rows], by_role[UPDATED], out=by_role[WRITTEN]
        )

    return kernel


def _reinterpreted(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return torch.as_strided(x, size, stride, int(x.storage_offset()) + offset)


def _allocated(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _title(function: str) -> str:
    """The name of an op by what is called: ``aten.mm.default`` for ``extern_kernels.mm``."""
    if not function:
        return "hosim.result.default"
    parts = function.removeprefix("torch.ops.").split(".")
    return f"aten.{parts[1]}.default" if parts[0] == "extern_kernels" else ".".join(parts)
