"""Run an exported program on fake tensors, node by node, and record the effect of each node on
storages. Imports torch.

All tensors are fake ones on the CPU, whatever device the program was exported on: they have the
shapes, strides and aliases of a real run, but no contents. Composite ops take their CPU path, so
attention is the fused kernel and not the quadratic one of the meta device. Only registered torch
ops and arithmetic on sizes are executed.
"""

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._meta_registrations import _create_grouped_mm_output_tensor, meta_grouped_mm
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.node import map_aggregate

from hosim.analysis.costmodel.kernels import UNKNOWN, KernelSizes
from hosim.errors import InputError
from hosim.io.importers import cache_nodes
from hosim.io.importers.op_kinds import kind_of
from hosim.io.importers.stored import COPIED, Use
from hosim.io.importers.torch_programs import torch_guard
from hosim.io.importers.torch_programs.torch_kernels import Kernel, KernelRecorder, tensors
from hosim.io.importers.torch_programs.torch_uses import partly_kept

CPU = torch.device("cpu")
_GROUPED = torch.ops.aten._grouped_mm.default

_HELD = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "buffer",
    InputKind.USER_INPUT: "input",
}
_UPDATES = {
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    getattr(OutputKind, "PARAMETER_MUTATION", None),
}


@dataclass(frozen=True, slots=True)
class Held:
    """A storage that exists from the start; ``kind`` is parameter, buffer or input."""

    storage: int
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One op that computes; storages are given by number. ``workspace_bytes``: the memory that it
    allocates and frees, besides its outputs.

    ``random``: it draws from torch's generator. ``phase``: the call of a training step in which it
    runs. ``kernel``: the class of its kernel, and the sizes. ``uses``: its uses of storages that
    exist from the start.
    """

    name: str
    target: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    mutates: tuple[int, ...]
    bytes_accessed: int
    flops: int
    dtype: str
    workspace_bytes: int = 0
    random: bool = False
    phase: str = ""
    kernel: KernelSizes = UNKNOWN
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheNode:
    """A cache op in the program; ``after`` is the step that it follows (-1: none)."""

    number: int
    op: str
    storage: int
    source: str
    destination: str | None
    after: int


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The run of a program: its steps, its storages and its results. ``sizes`` and ``shapes`` are
    by storage number; ``results`` are the storages that it returns.

    ``moves`` and ``initial`` are those of its cache nodes. ``places`` has the storage of each
    node's value that is one tensor, by the node's name, and of each tensor in a value that is
    several, as ``name[0]``.
    """

    held: tuple[Held, ...]
    steps: tuple[ProgramStep, ...]
    results: frozenset[int]
    sizes: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    moves: tuple[CacheNode, ...] = ()
    initial: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlaceholderInput:
    """The value of a program's placeholder: a number or another constant, or a tensor like
    ``value``, with its name and kind.

    With ``own`` it is the tensor itself, which may share its storage with others; otherwise a new
    tensor with the same sizes.
    """

    placeholder: str
    value: Any
    name: str = ""
    kind: str = ""
    own: bool = False


@dataclass(frozen=True, slots=True)
class RunnableProgram:
    """A module with a graph, and the input of each placeholder.

    ``updates``: for each output, the placeholder that it updates and the name of the copy for that;
    ``None`` for a result. Without ``kernels``, an op that cannot run on fake tensors is an error;
    with them, torch may run it on zeros. ``mode`` makes the fake tensors, by default torch's own.
    """

    module: torch.nn.Module
    taken: Sequence[PlaceholderInput]
    updates: Sequence[tuple[str, str] | None]
    kernels: bool = True
    mode: FakeTensorMode | None = None


def run(program: ExportedProgram | RunnableProgram) -> ProgramRun:
    """Run ``program`` on fake tensors. Raises :class:`InputError` if it depends on the contents of
    tensors.
    """
    if isinstance(program, RunnableProgram):
        return _run(program)
    specs = program.graph_signature.output_specs
    updates = [
        None if (held := updated(program, spec)) is None else (held, f"update.{spec.target}")
        for spec in specs
    ]
    return _run(RunnableProgram(program.graph_module, given(program), updates))


def run_module(
    module: torch.fx.GraphModule,
    taken: Sequence[PlaceholderInput],
    mode: FakeTensorMode | None = None,
) -> ProgramRun:
    """Run a graph that returns only its results, on the fake tensors of ``mode``, the mode of its
    trace. Raises :class:`InputError` as :func:`run` does.
    """
    returned = module.graph.output_node().args[0]
    count = len(returned) if isinstance(returned, (list, tuple)) else 1
    return _run(RunnableProgram(module, taken, [None] * count, mode=mode))


def _run(program: RunnableProgram) -> ProgramRun:
    recorder = KernelRecorder()
    mode = program.mode or FakeTensorMode(
        allow_non_fake_inputs=True, allow_fallback_kernels=program.kernels
    )
    with torch.no_grad(), quiet(), mode:
        values, held = _placeholders(program.taken, recorder)
        recorder.watched = frozenset(one.storage for one in held)
        with recorder:
            machine = _Machine(program.module, recorder)
            steps = list(machine.steps(program.module.graph, values))
            results: set[int] = set()
            for update, value in zip(program.updates, machine.returned, strict=True):
                if update is not None and isinstance(value, torch.Tensor):
                    target = values[update[0]]
                    assert isinstance(target, torch.Tensor)
                    steps += machine.update(update[1], target, value)
                else:
                    results.update(recorder.number(t) for t in tensors((value,)))
    return ProgramRun(
        tuple(held),
        tuple(steps),
        frozenset(results),
        recorder.sizes,
        recorder.shapes,
        tuple(machine.moves),
        machine.initial,
        machine.places,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the fake mode's log lines for ops that the CPU lacks, for which the recorder uses the
    meta kernel.

    Grouped products in other dtypes than bf16 are allowed; the CPU multiplies them, but torch's
    fakes refuse them.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    had = op_implementations_dict.get(_GROUPED)
    op_implementations_dict[_GROUPED] = _grouped_product
    try:
        yield
    finally:
        logger.setLevel(level)
        if had is None:
            op_implementations_dict.pop(_GROUPED, None)
        else:
            op_implementations_dict[_GROUPED] = had


def _grouped_product(
    mode: Any, func: Any, a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """The fake result of a grouped product, checked like one in bf16."""
    with mode:
        meta_grouped_mm(a.to(torch.bfloat16), b.to(torch.bfloat16), offs, bias)
        return _create_grouped_mm_output_tensor(a, b, offs, out_dtype)


def given(program: ExportedProgram) -> list[PlaceholderInput]:
    """Return the value of each placeholder of ``program``. Raises :class:`InputError` for anything
    but tensors and numbers.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    taken = []
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if isinstance(spec.arg, ConstantArgument):
            taken.append(PlaceholderInput(name, spec.arg.value))
            continue
        value = nodes[name].meta.get("val")
        if not isinstance(spec.arg, TensorArgument):
            if not isinstance(
                value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
            ):
                raise InputError(
                    f"input {name!r} is a {type(spec.arg).__name__}; only tensors and numbers can "
                    "be imported"
                )
            taken.append(PlaceholderInput(name, _concrete(value, name)))
            continue
        own = _own_tensor(program, spec.target)
        known = spec.target if spec.target is not None else name
        kind = kind_of(_HELD.get(spec.kind, "buffer"), known)
        taken.append(
            PlaceholderInput(name, value if own is None else own, known, kind, own is not None)
        )
    return taken


def _placeholders(
    taken: Sequence[PlaceholderInput], recorder: KernelRecorder
) -> tuple[dict[str, Any], list[Held]]:
    """Return a value for each placeholder, by name, and the storages that exist from the start.
    Fakes share a storage if the program's own tensors do.
    """
    values: dict[str, Any] = {}
    held: dict[int, Held] = {}
    bases: dict[int, torch.Tensor] = {}
    for one in taken:
        if not isinstance(one.value, torch.Tensor):
            values[one.placeholder] = one.value
            continue
        values[one.placeholder] = fake = _fake(
            one.value, one.placeholder, bases if one.own else None
        )
        number = recorder.number(fake)
        held.setdefault(number, Held(number, one.name, one.kind))
    return values, list(held.values())


def _own_tensor(program: ExportedProgram, name: str | None) -> torch.Tensor | None:
    """The program's parameter, buffer or constant of this name; ``None`` for an input."""
    if name is None:
        return None
    found = program.state_dict.get(name, program.constants.get(name))
    return found if isinstance(found, torch.Tensor) else None


def _fake(example: torch.Tensor, name: str, bases: dict[int, torch.Tensor] | None) -> torch.Tensor:
    """A fake CPU tensor with the sizes, strides and storage size of ``example``.

    ``bases`` has the fake storages made so far for storages of the program's tensors, by address:
    tied parameters share one.
    """
    size = [_concrete(n, name) for n in example.size()]
    stride = [_concrete(n, name) for n in example.stride()]
    if bases is None:
        return torch.empty_strided(size, stride, dtype=example.dtype, device=CPU)
    storage = example.untyped_storage()
    if storage._cdata not in bases:
        bases[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=CPU)
    base = bases[storage._cdata]
    typed = base[: len(base) // example.itemsize * example.itemsize].view(example.dtype)
    return typed.as_strided(size, stride, int(example.storage_offset()))


def _concrete(number: Any, name: str) -> Any:
    """The number for a symbolic size: that of the example input with which the program was
    exported.
    """
    if isinstance(number, (int, float)):
        return number
    hint = number.node.hint
    if hint is None:
        raise InputError(
            f"{name!r} has the size {number}, of which the program keeps no example; export it "
            "with static shapes"
        )
    return hint


def updated(program: ExportedProgram, spec: Any) -> str | None:
    """Return the placeholder that an output of a functional program updates: by name for an input,
    by qualified name for a buffer; ``None`` for a plain result.
    """
    if spec.kind not in _UPDATES:
        return None
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return str(spec.target)
    return next(
        str(one.arg.name)
        for one in program.graph_signature.input_specs
        if one.target == spec.target
    )


class _Machine:
    """Runs the nodes of a graph one by one, and yields a step for each node that computes."""

    def __init__(self, owner: torch.nn.Module, recorder: KernelRecorder) -> None:
        self.owner = owner
        self.recorder = recorder
        self.returned: Sequence[Any] = ()
        self.moves: list[CacheNode] = []
        self.initial: dict[int, tuple[str, ...]] = {}
        self.places: dict[str, int] = {}
        self._made = 0
        self._scattered: dict[int, frozenset[int]] = {}

    def steps(
        self,
        graph: torch.fx.Graph,
        env: Mapping[str, Any],
        owner: torch.nn.Module | None = None,
        prefix: str = "",
    ) -> Iterator[ProgramStep]:
        """Yield the steps of ``graph`` with the values ``env`` for its placeholders; ``returned``
        has its results afterwards.
        """
        values = {node: env[node.name] for node in graph.nodes if node.op == "placeholder"}
        for node in graph.nodes:
            if node.op == "placeholder":
                self._place(prefix + node.name, values[node])
                continue
            if node.op == "output":
                result = _resolved(node.args[0], values)
                self.returned = result if isinstance(result, (list, tuple)) else (result,)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(owner or self.owner)
            elif node.op == "call_function" and wrapped(node) is not None:
                context, inner, operands = _inside(node, values)
                names = [n.name for n in inner.graph.nodes if n.op == "placeholder"]
                with context:
                    yield from self.steps(
                        inner.graph,
                        dict(zip(names, operands, strict=True)),
                        inner,
                        f"{prefix}{node.name}.",
                    )
                values[node] = self.returned
            elif node.op == "call_function" and cache_nodes.is_cache_node(node.target):
                values[node] = self.cache(node.target, _resolved(node.args, values))
            elif node.op == "call_function":
                args, kwargs = _resolved(node.args, values), _resolved(node.kwargs, values)
                torch_guard.check_call(node, args, kwargs)
                values[node], step = self.call(prefix + node.name, node.target, args, kwargs)
                torch_guard.check_number(node, values[node])
                if step is not None:
                    self._made += 1
                    yield step
            else:
                raise InputError(
                    f"node {node.name!r} is a {node.op}; a program from torch.export has only "
                    "functions"
                )
            if node.op != "output":
                self._place(prefix + node.name, values[node])

    def _place(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.places[name] = self.recorder.number(value)
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self.places[f"{name}[{i}]"] = self.recorder.number(item)

    def cache(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Record a cache node; its value is its first argument or nothing."""
        x, *rest = args
        storage = self.recorder.number(x)
        if target is cache_nodes.ready:
            return x
        if target is cache_nodes.initial:
            self.initial[storage] = tuple(rest[0])
            return None
        op = str(target.overloadpacket.__name__)
        destination = rest[1] if len(rest) == 3 else None
        self.moves.append(CacheNode(rest[-1], op, storage, rest[0], destination, self._made - 1))
        return x if op == "prefetch" else None

    def update(self, name: str, target: torch.Tensor, value: torch.Tensor) -> list[ProgramStep]:
        """The copy of a new value into the buffer or input that it updates; the caller of a
        functional program makes it.
        """
        _, step = self.call(name, torch.ops.aten.copy_.default, (target, value), {})
        if step is None or self.recorder.number(target) == self.recorder.number(value):
            return []
        if self.recorder.number(target) in self._scattered.get(self.recorder.number(value), ()):
            return [
                replace(
                    step,
                    uses=tuple(
                        replace(use, why=COPIED) if use.writes else use for use in step.uses
                    ),
                )
            ]
        return [step]

    def call(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ProgramStep | None]:
        """Return the result of a node and its step; None as the step if the node only makes views
        or numbers.
        """
        recorder = self.recorder
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None, None  # it also asserts the device that the program was exported on
        first, before = len(recorder.sizes), recorder.live_bytes
        recorder.peak_bytes = before
        recorder.kernels = []
        try:
            result = target(*args, **kwargs)
        except InputError as error:
            raise InputError(f"node {name!r} ({target}): {error.message}") from error
        except Exception as error:
            raise _cannot_run(name, target, error) from error
        kernels = recorder.kernels
        outputs = dict.fromkeys(n for n in map(recorder.number, tensors((result,))) if n >= first)
        if not kernels:
            return result, None
        mutates = dict.fromkeys(n for kernel in kernels for n in kernel.writes if n < first)
        inputs = dict.fromkeys(
            n for kernel in kernels for n in kernel.reads if n < first and n not in mutates
        )
        main = max(kernels, key=_weight)
        kept = [recorder.number(t) for t in tensors(partly_kept(target, args))]
        self._scattered |= {
            n: frozenset(kept).union(*[self._scattered.get(k, ()) for k in kept])
            for n in outputs
            if kept
        }
        return result, ProgramStep(
            name,
            str(target),
            tuple(inputs),
            tuple(outputs),
            tuple(mutates),
            sum(kernel.bytes_accessed for kernel in kernels),
            sum(kernel.flops for kernel in kernels),
            main.dtype,
            recorder.peak_bytes - before - sum(recorder.sizes[n] for n in outputs),
            any(kernel.random for kernel in kernels),
            kernel=main.kernel if sum(kernel.flops > 0 for kernel in kernels) == 1 else UNKNOWN,
            uses=tuple(use for kernel in kernels for use in kernel.uses),
        )


def _weight(kernel: Kernel) -> tuple[int, int]:
    return kernel.flops, kernel.bytes_accessed


def _cannot_run(name: str, target: Any, error: Exception) -> InputError:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "DataDependent" in type(error).__name__ or "DynamicOutputShape" in type(error).__name__:
        return InputError(
            f"node {name!r} ({target}) depends on the contents of a tensor; export the model with "
            "static shapes and control flow"
        )
    return InputError(f"node {name!r} ({target}) cannot run on fake tensors: {first_line[:200]}")


def _resolved(value: Any, values: Mapping[Node, Any]) -> Any:
    """``value`` with nodes replaced by their values, and every device by the CPU."""

    def leaf(x: Any) -> Any:
        return values[x] if isinstance(x, Node) else CPU if isinstance(x, torch.device) else x

    return map_aggregate(value, leaf)


def wrapped(node: Node) -> str | None:
    """Return the name of a higher-order op that only sets a mode around a subgraph; ``None`` for
    every other target.
    """
    name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else None
    return name if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast") else None


def _inside(node: Node, values: Mapping[Node, Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Return the context, the subgraph and the operands of a node that :func:`wrapped` names."""
    args = _resolved(node.args, values)
    if wrapped(node) == "wrap_with_set_grad_enabled":
        return torch.no_grad(), args[1], args[2:]  # hosim imports inference: gradients stay off
    device, dtype, enabled, cache, inner, *operands = args
    del device
    return _autocast(dtype, enabled, cache), inner, operands


@contextmanager
def _autocast(dtype: Any, enabled: bool, cache: bool | None) -> Iterator[None]:
    with torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache):
        yield
