"""The result of :func:`hosim.offload`: a captured model, its plan and the executor that runs it.
Imports torch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, HosimError, InputError
from hosim.hardware import Hardware
from hosim.io.importers.torch_programs import quiet
from hosim.on_torch.lower.as_captured import AsCaptured, is_autocast
from hosim.on_torch.lower.compiled import CompiledModel, require_no_hooks, require_one_process
from hosim.on_torch.lower.devices import (
    Loader,
    fake_on,
    fakes,
    named_tensors,
    origins,
    views,
)
from hosim.on_torch.lower.eager_peak import eager_peak_bytes
from hosim.on_torch.lower.guard import Guard
from hosim.on_torch.lower.insert import insert
from hosim.on_torch.lower.python_state import python_state_kept, writes_undone_in
from hosim.on_torch.lower.reached_state import Made, Reached
from hosim.on_torch.lower.run import Executor
from hosim.on_torch.lower.stand_ins import stand_ins
from hosim.on_torch.lower.tiers import Device, RunMemory
from hosim.on_torch.lower.torch_program import TorchProgram, capture
from hosim.on_torch.lower.true_layouts import TrueLayouts
from hosim.on_torch.lower.two_traces import (
    require_of_modules,
    require_own_results,
    settled,
    written,
)
from hosim.plain_text import counted, shown
from hosim.result import Result

T = TypeVar("T")


@dataclass(frozen=True)
class Captured:
    """A program with the tensors that it holds.

    ``model`` is the captured model; ``held`` has its tensors and the optimizer's by placeholder.
    ``flat`` returns a call's inputs in the order of ``inputs``, the other placeholders; ``result``
    turns the program's results into those of the call. ``settings`` are the inputs that are the
    optimizer's. ``constants`` are those of ``held`` that are the program's and not the model's, and
    ``load`` gives what tensors on meta have to contain. ``others`` are further tensors with the
    contents of those in ``held``. ``called`` is what ``torch.compile`` has made of the model.
    ``reached`` is the state of Python that it was captured with. ``eager_peak_bytes`` is the peak of
    a call without hosim, if it is known.
    """

    model: torch.nn.Module
    program: TorchProgram
    held: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    flat: Callable[..., list[Any]]
    result: Callable[[tuple[Any, ...]], Any]
    reached: Reached
    settings: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    load: Loader | None = None
    others: tuple[torch.Tensor, ...] = ()
    called: torch.nn.Module | None = None
    eager_peak_bytes: int | None = None


class PlannedProgram:
    """A program under a plan, with the executor that runs it."""

    def __init__(
        self,
        program: TorchProgram,
        plan: Plan,
        result: Result,
        hardware: Hardware,
        device: Device,
        inputs: Sequence[str],
    ) -> None:
        self.program = program
        self.plan = plan
        self.result = result
        self.lowered = insert(program, plan, hardware.device_tier)
        self.executor = Executor(self.lowered, hardware, device, result.budget_bytes)
        self.inputs = tuple(inputs)
        self._device = device
        self._called = {one.placeholder: one.name or one.placeholder for one in program.givens}
        self._examples = {given.placeholder: given.value for given in program.givens}
        graph, tensor_of = program.graph, program.tensor_of
        written = {t for op in graph.ops for t in op.mutates}
        self._bytes = {
            name: graph.tensors[tensor_of[name]].size_bytes
            for name in self.inputs
            if name in tensor_of
        }
        self._written = {name for name in self._bytes if tensor_of[name] in written}

    def values(
        self, given: Sequence[Any], held: Set[int], unchecked: Set[str], *, moves: bool = False
    ) -> dict[str, Any]:
        """The inputs by placeholder, each tensor on a storage of its own.

        ``held`` are the storages of offloaded tensors. Values of ``unchecked`` may differ from the
        example's. With ``moves``, inputs may be on the CPU. Raises :class:`InputError` for inputs
        unlike the example's.
        """
        values = dict(zip(self.inputs, given, strict=True))
        taken: set[int] = set()
        for name, value in values.items():
            if name not in unchecked:
                _check_input(self._called[name], value, self._examples[name], moves)
            if isinstance(value, torch.Tensor):
                if moves and name not in unchecked and not self._device.has(value):
                    value = self._moved(name, value)
                values[name] = self._by_itself(name, value, taken, held)
        return values

    def _by_itself(
        self, name: str, value: torch.Tensor, taken: set[int], held: Set[int]
    ) -> torch.Tensor:
        """``value`` on a storage of its own, laid out like the example: unchanged, or a copy."""
        storage = value.untyped_storage()
        if storage._cdata in held:  # it may be empty, which crashes torch
            raise InputError(
                f"input {self._called[name]!r} is a tensor of the offloaded model; give a copy made before "
                "offloading"
            )
        own = storage._cdata not in taken and self.fits(name, value)
        taken.add(storage._cdata)
        if own:
            return value
        if name in self._written:
            raise InputError(
                f"input {self._called[name]!r} is written by the model, and is part of another tensor or has "
                "another layout; give a copy"
            )
        return self.copy(name, value)

    def _moved(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if name in self._written:
            raise InputError(
                f"input {self._called[name]!r} is written by the model, and is not on "
                f"{self._device.torch_device}; give it there"
            )
        return self.on_device(value)

    def on_device(self, value: torch.Tensor) -> torch.Tensor:
        """A copy on the device of the program's tensors."""
        return torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=self._device.torch_device
        ).copy_(value)

    def fits(self, name: str, value: torch.Tensor) -> bool:
        """Return whether a tensor has the layout and the storage of the example."""
        return bool(
            value.stride() == self._examples[name].stride()
            and value.untyped_storage().nbytes() == self._bytes.get(name)
        )

    def filled(self, name: str, value: Any) -> torch.Tensor:
        """A tensor like the example with a value everywhere, on the device of the program's
        tensors.
        """
        example = self._examples[name]
        return torch.empty_strided(
            example.size(), example.stride(), dtype=example.dtype, device=example.device
        ).copy_(torch.as_tensor(value))

    def copy(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A copy with the layout of the example. Raises :class:`InputError` for a value that is not
        expanded where the example is.
        """
        strides = self._examples[name].stride()
        made = torch.empty_strided(value.size(), strides, dtype=value.dtype, device=value.device)
        whole = made
        for d, (step, size) in enumerate(zip(strides, value.shape, strict=True)):
            if step == 0 and size > 1:
                if value.stride(d) != 0:
                    raise InputError(
                        f"input {self._called[name]!r} was captured expanded along dimension {d}, "
                        "and is not; expand it, or offload the model again"
                    )
                made, value = made.narrow(d, 0, 1), value.narrow(d, 0, 1)
        made.copy_(value)
        return whole


class OffloadedModel:
    """A model under a plan; calling it runs it.

    ``plan``, ``program`` (its graph is the plan's workload) and ``result`` (the replay in program
    order) may be inspected.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        result: Result,
        hardware: Hardware,
        device: Device,
    ) -> None:
        self._whole = whole = PlannedProgram(
            captured.program, plan, result, hardware, device, captured.inputs
        )
        self.program = captured.program
        self.plan = plan
        self.result = result
        self.lowered = whole.lowered
        self._captured = captured
        self._running = [whole.executor]
        models = {
            name: tensor for name, tensor in captured.held.items() if name not in captured.constants
        }
        found = origins(models, captured.model, device, captured.load)
        placed = {**captured.held, **views({name: captured.held[name] for name in found}, device)}
        self._is_elsewhere = bool(found)
        self._as_captured = AsCaptured(captured.model, captured.called, captured.reached)
        self._one_at_a_time = threading.RLock()
        try:
            self.executor.place(placed, found)
        except BaseException as error:
            self._guard()  # nobody must read what is lost, or has no room yet
            if not self.executor.left:
                self.close()
                raise
            raise self._with_what_is_left(error) from error
        self._held = frozenset(
            tensor.untyped_storage()._cdata
            for tensor in (*captured.held.values(), *placed.values())
        )
        self._guard()

    def _guard(self) -> None:
        """Guard the tensors until this is closed, or garbage collected."""
        captured = self._captured
        tensors = *captured.held.values(), *captured.others
        self._guarding = guard = Guard(captured.model, tensors, captured.reached)
        self._release = guard.release
        self._forgotten = weakref.finalize(self, _forgotten, self._running, guard)
        self._forgotten.atexit = False

    def _with_what_is_left(self, error: BaseException) -> ExecutionError:
        """An error of the placement by which the caller can bring back what there was no room
        for.
        """
        said = error if isinstance(error, ExecutionError) else ExecutionError("interrupted")
        return ExecutionError(
            said.message,
            lost=said.lost,
            left=self.executor.left,
            for_host=self.executor.left_for_host,
            held=self,
        )

    @property
    def executor(self) -> Executor:
        """The executor that has the tensors."""
        return self._running[0]

    @property
    def predicted_peak_bytes(self) -> int:
        """The predicted peak of the device memory that the program allocates, in bytes, in program
        order.
        """
        assert self.result.allocator is not None
        return self.result.allocator.peak_allocated_bytes

    @property
    def eager_peak_bytes(self) -> int | None:
        """The peak of a call without hosim, in bytes of tensors, by the lifetimes that Python gives
        them; ``None`` where it is not known: the code looks at contents when it is not traced, is
        compiled, or exchanges tensors with other processes.
        """
        return self._captured.eager_peak_bytes

    @property
    def memory(self) -> RunMemory:
        """Return the peak of the device's memory in the last call: allocated, still read by
        transfers, both at once, and reserved.
        """
        memory: RunMemory = self.executor.device.memory
        return memory

    @property
    def predicted_stall_ns(self) -> int:
        """The predicted stall, with the times of the hardware profile; on a GPU also for the host,
        which launches ops and copies one by one.
        """
        return sum(self.result.stall_ns.values())

    @property
    def predicted_makespan_ns(self) -> int:
        """The predicted time of a call, with the times of the hardware profile and what the host
        takes to launch its ops and copies.
        """
        return self.result.makespan_ns or 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results for these inputs, or the loss of a training step.

        Raises :class:`InputError` for inputs of other sizes than the example's. Raises
        :class:`hosim.errors.ExecutionError` if the call fails; then everything is closed.
        """
        with self._one_at_a_time:
            return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self._require_as_captured()
        return self._captured.result(self._run(self._whole, self._captured.flat(*args, **kwargs)))

    def _require_as_captured(self) -> None:
        """Raise :class:`InputError` if the model is no longer as it was captured, or has hooks."""
        self._as_captured.require()

    def _run(self, planned: PlannedProgram, given: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a program for its inputs. The tensors move to where its plan has them, if
        another one ran before.
        """
        values = planned.values(
            given, self._held, self._captured.settings, moves=self._is_elsewhere
        )
        try:
            if planned.executor is not self.executor:
                before, self._running[0] = self.executor, planned.executor
                self.executor.take_over(before)
            return self.executor.run(values)
        except BaseException:
            if self.executor.closed and not self.executor.left:
                self._release()  # everything that could be recovered is back
            raise

    def close(self) -> None:
        """Move every tensor back into the model, and release memory and files.

        Raises :class:`hosim.errors.ExecutionError` if there is no room for some: they are kept, and
        closing again goes on with them.
        """
        try:
            self.executor.close()
        finally:
            if not self.executor.left:
                self._forgotten.detach()
                self._release()

    def __enter__(self) -> OffloadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = (
            f"{counted(len(self.plan.graph.ops), 'op')}, "
            f"{counted(len(self.plan.cache_ops), 'cache op')}, policy {self.plan.policy}"
        )
        return (
            f"<offloaded {self.program.graph.name}: {state}, peak {self.predicted_peak_bytes:,} B>"
        )


def inference(
    model: torch.nn.Module,
    example_inputs: Any,
    name: str,
    device: Device,
    load: Loader | None = None,
    compiled: CompiledModel | None = None,
) -> Captured:
    """``model`` exported for inputs like the example, on the device that is to run it, and compiled
    as ``compiled`` is, if given.

    Raises :class:`InputError` if it cannot be.
    """
    args, kwargs = _each_of_its_own(_arguments(example_inputs))
    if compiled is not None:
        compiled.require_cpu(device.torch_device)
    if is_autocast():
        raise InputError(
            f"torch.export does not see autocast; offload {name} outside of it, and convert the "
            "model to the dtype that it should "
            "compute in"
        )
    require_one_process(model)
    require_no_hooks(model)
    own: Mapping[str, torch.Tensor] = named_tensors(model)
    there: Callable[[], contextlib.AbstractContextManager[None]] = nullcontext
    if any(not device.has(tensor) for tensor in own.values()):
        mode = TrueLayouts()
        there = partial(stand_ins, model, fakes(mode, model, device.torch_device))
        args, kwargs = tree_map_only(
            torch.Tensor, lambda value: fake_on(mode, value, device.torch_device), (args, kwargs)
        )
    reached = Reached(model, {})
    first, kept = _exported(model, (args, kwargs), name, reached, there, [])

    def again() -> tuple[ExportedProgram, list[Any]]:
        found, _ = _exported(model, (args, kwargs), name, reached, there, kept)
        return found, written(found.graph_module)

    exported = settled(written(first.graph_module), kept, again)
    require_of_modules(exported.constants, [*first.constants.values()], reached)
    program = capture(exported, name=name)
    require_own_results(program)
    if compiled is not None:
        from hosim.on_torch.lower.compiled import compiled_program

        program = compiled_program(program, compiled.settings)
    own = {**exported.state_dict, **exported.constants, **own}
    held = {one.placeholder: own[one.name] for one in program.givens if one.own}
    models = {id(tensor) for tensor in named_tensors(model).values()}
    constants = frozenset(name for name, tensor in held.items() if id(tensor) not in models)
    inputs = tuple(one.placeholder for one in program.givens if not one.own)
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec

    def flat(*args: Any, **kwargs: Any) -> list[Any]:
        order = list(in_spec.child(1).context)
        if set(order) != set(kwargs):
            raise InputError(
                f"expected the arguments {', '.join(order) or 'by position alone'}, got "
                f"{', '.join(kwargs) or 'none by name'}"
            )
        values, spec = tree_flatten((args, {key: kwargs[key] for key in order}))
        if spec != in_spec:
            raise InputError("expected inputs nested like the example's")
        return list(values)

    called = None if compiled is None else compiled.module
    eager_peak = None
    if compiled is None:
        eager_peak = _eager_peak(model, (args, kwargs), reached, device, kept)

    def result(results: tuple[Any, ...]) -> Any:
        return tree_unflatten(results, out_spec)

    return Captured(
        model,
        program,
        held,
        inputs,
        flat,
        result,
        reached,
        constants=constants,
        load=load,
        called=called,
        eager_peak_bytes=eager_peak,
    )


def _eager_peak(
    model: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    reached: Reached,
    device: Device,
    kept: Sequence[Made],
) -> int | None:
    """The peak of a call of ``model`` without hosim and without gradients, if it is known."""
    mode = TrueLayouts()
    own = fakes(mode, model, device.torch_device)
    args, kwargs = tree_map_only(
        torch.Tensor, lambda value: fake_on(mode, value, device.torch_device), inputs
    )
    with (
        torch.no_grad(),
        quiet(),
        python_state_kept(model, reached, kept=kept),
        writes_undone_in(model),
        stand_ins(model, own),
        mode,
    ):
        held = [*own.values(), args, kwargs]
        return eager_peak_bytes(held, lambda: model(*args, **kwargs))


def _exported(
    model: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    name: str,
    reached: Reached,
    there: Callable[[], contextlib.AbstractContextManager[None]],
    kept: Sequence[Made],
) -> tuple[ExportedProgram, list[Made]]:
    """``model`` as torch exports it for inputs within what ``there`` gives, and the tensors that it
    keeps (``kept`` were, before).
    """
    try:
        with (
            torch.no_grad(),
            quiet(),
            python_state_kept(model, reached, kept=kept) as made,
            writes_undone_in(model),
            there(),
        ):
            return torch.export.export(model, *inputs, strict=False), made
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(
            " See https"
        )[0]
        hint = (
            "; with config.use_cache = False, models of transformers return only tensors"
            if "Cache" in reason
            else ""
        )
        raise InputError(f"torch.export cannot export {name}: {reason[:200]}{hint}") from error


def _forgotten(running: Sequence[Executor], guard: Guard) -> None:
    """What :meth:`OffloadedModel.close` does, for models that are garbage collected."""
    with contextlib.suppress(HosimError):
        running[0].close()
    guard.release()


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _each_of_its_own(inputs: T) -> T:
    """Inputs of which no two are one tensor, which torch.export would take for one input."""
    seen: set[int] = set()

    def own(value: torch.Tensor) -> torch.Tensor:
        is_first = id(value) not in seen
        seen.add(id(value))
        return value if is_first else value.detach().clone()

    return cast(T, tree_map_only(torch.Tensor, own, inputs))


def _check_input(name: str, value: Any, example: Any, moves: bool) -> None:
    if not isinstance(example, torch.Tensor):
        if value != example:
            raise InputError(
                f"input {name!r} is {example!r} in the captured program, got {shown(value, 60)}; "
                "offload it again"
            )
        return
    if (
        not isinstance(value, torch.Tensor)
        or value.shape != example.shape
        or value.dtype != example.dtype
    ):
        got = (
            f"{tuple(value.shape)} of {value.dtype}"
            if isinstance(value, torch.Tensor)
            else type(value).__name__
        )
        raise InputError(
            f"input {name!r} is {got}; it was captured with {tuple(example.shape)} of "
            f"{example.dtype}"
        )
    if value.device != example.device and not (moves and value.device.type == "cpu"):
        raise InputError(
            f"input {name!r} is on {value.device}; it was captured on {example.device}"
        )


def machine_of(
    model: torch.nn.Module,
    device: Any,
    hardware: Hardware,
    directories: Mapping[str, str | os.PathLike[str]],
) -> Device:
    """The machine that runs a model: the given one, or the one of torch's device; by default the
    GPU that has the model.

    A model on meta goes to a GPU, if there is one. Without a GPU the machine is made of the CPU's
    memory. Raises :class:`InputError` for what is no machine.
    """
    if device is None:
        kinds = {tensor.device.type: tensor.device for tensor in named_tensors(model).values()}
        device = kinds.get(
            "cuda", torch.device("cuda" if "meta" in kinds and torch.cuda.is_available() else "cpu")
        )
    elif isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise InputError(
                f"torch knows no device {device!r}; expected cuda, cuda:1 or cpu", source="device"
            ) from error
    if not isinstance(device, torch.device):
        return cast(Device, device)
    if device.type == "cuda":
        from hosim.on_torch.lower.devices import CudaDevice

        return CudaDevice(hardware, directories=directories, index=device.index)
    if device.type == "cpu":
        from hosim.on_torch.lower.devices import CpuDevice

        return CpuDevice(hardware, directories=directories)
    raise InputError(f"plans run on GPUs and CPUs, not on {device}", source="device")
