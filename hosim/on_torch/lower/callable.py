"""The result of :func:`hosim.offload`: a captured model, its plan and the executor that runs it.
Imports torch.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_flatten_with_path

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, HosimError, InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.devices import Loader, origins, views
from hosim.on_torch.lower.guard import AsCaptured, Guard
from hosim.on_torch.lower.planned_program import PlannedProgram, Planner, at_home
from hosim.on_torch.lower.reached_state import Reached
from hosim.on_torch.lower.run import Executor
from hosim.on_torch.lower.tiers import Device, RunMemory
from hosim.on_torch.lower.torch_program import TorchProgram
from hosim.plain_text import counted
from hosim.result import Result


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
    a call without hosim, if it is known. ``example`` has fakes like the inputs (:func:`named_call`).
    ``resized`` captures for inputs of other sizes, under a name; ``retraced`` traces for the same
    ones and raises :class:`InputError` if the program is another one now.
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
    example: Mapping[str, Any] = field(default_factory=dict)
    resized: Callable[[tuple[Any, ...], dict[str, Any], str], Captured] | None = None
    retraced: Callable[[], None] | None = None


@dataclass(frozen=True)
class Sized:
    """A capture for inputs of some sizes: ``whole`` is its program under its plan, and ``parts``
    has the parts of a step that have run separately.
    """

    captured: Any
    whole: PlannedProgram
    parts: dict[str, PlannedProgram]


class OffloadedModel:
    """A model under a plan; a call runs it.

    Users can inspect ``plan``, ``program`` (its graph is the plan's workload) and ``result`` (the
    replay in program order).
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        result: Result,
        hardware: Hardware,
        planner: Planner,
        device: Device,
    ) -> None:
        self._hardware = hardware
        self._planner = planner
        self._whole = whole = PlannedProgram(
            captured.program, plan, result, hardware, device, captured.inputs
        )
        self.program = captured.program
        self.plan = plan
        self.result = result
        self.lowered = whole.lowered
        self._captured = captured
        self._constants = _digests(captured)  # before they are guarded
        self._now = Sized(captured, whole, {})
        self._sized = {sizes_of(captured.example): self._now}
        self._calls = 0
        self.check_every: int | None = None
        """The number of calls after which the code is traced again; it must give the same program.
        """
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
        """Guard the tensors until this model is closed or garbage collected."""
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
        """The executor that holds the tensors."""
        return self._running[0]

    @property
    def sizes(self) -> Mapping[tuple[Any, ...], Result]:
        """The replay of the whole program for each combination of input sizes so far."""
        return {sizes: one.whole.result for sizes, one in self._sized.items()}

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
    def segments(self) -> int:
        """The number of launches for the ops of the last program, with ``graphs=True``; 0 if each
        op is launched separately (:attr:`no_segments`).
        """
        made = self.executor.segments
        return 0 if made is None else made.count

    @property
    def no_segments(self) -> str:
        """The reason why each op is launched separately; empty if segments are launched as one."""
        return "" if self.segments else self.executor.recorder.no_segments

    @property
    def predicted_stall_ns(self) -> int:
        """The predicted stall in nanoseconds, with the times of the hardware profile; on a GPU it
        includes waits for the host, which launches ops or segments, and copies.
        """
        return sum(self.result.stall_ns.values())

    @property
    def predicted_makespan_ns(self) -> int:
        """The predicted time of a call in nanoseconds, with the times of the hardware profile and
        the host's launches of ops and copies.
        """
        return self.result.makespan_ns or 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's results for these inputs, or the loss of a training step.

        Inputs of other sizes than the example's get their own program and plan at their first call,
        within the same budget. Raises :class:`InputError` for inputs that differ from the example's
        in more than that. Raises :class:`hosim.errors.ExecutionError` if the call fails; then
        everything is closed.
        """
        with self._one_at_a_time:
            self._trace_again()
            return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self._require_as_captured()
        now = self._for(args, kwargs)
        return now.captured.result(self._run(now.whole, now.captured.flat(*args, **kwargs)))

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sized:
        """Return the capture for inputs of these sizes; the first call makes and plans it, within
        the common budget.
        """
        given = self._named(args, kwargs)
        sizes = sizes_of(given)
        may_resize = self._captured.resized is not None and sizes not in self._sized
        if may_resize and _differ_in_size_alone(self._captured.example, given, self._is_elsewhere):
            self._require_as_captured()
            self._sized[sizes] = self._resized(args, kwargs)
        self._now = self._sized.get(sizes, next(iter(self._sized.values())))
        return self._now

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return named_call(args, kwargs)

    def _resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sized:
        title = f"{self.program.graph.name}: {len(self._sized) + 1}"
        assert self._captured.resized is not None
        with self._guarding.as_before():
            captured = self._captured.resized(args, kwargs, title)
        if (
            captured.held.keys() != self._captured.held.keys()
            or _digests(captured) != self._constants
        ):
            raise InputError(
                "the program holds other tensors for inputs of these sizes; give inputs of the "
                "sizes that it was captured with, or offload the model again"
            )
        planned = [one.whole for one in self._sized.values()]
        program = at_home(captured.program, planned, self._hardware.device_tier)
        plan, result = self._planner(program)
        return Sized(captured, self._under(program, plan, result, captured.inputs), {})

    def _under(
        self, program: TorchProgram, plan: Plan, result: Result, inputs: Sequence[str]
    ) -> PlannedProgram:
        return PlannedProgram(program, plan, result, self._hardware, self.executor.device, inputs)

    def _require_as_captured(self) -> None:
        """Raise :class:`InputError` if the model has changed since its capture, or has hooks."""
        self._as_captured.require()

    def _trace_again(self) -> None:
        """Count a call, and trace the code again if it is time to (``check_every``)."""
        self._calls += 1
        if self.check_every and self._calls % self.check_every == 0:
            self._require_as_captured()
            assert self._captured.retraced is not None
            with self._guarding.as_before():
                self._captured.retraced()

    def _run(self, planned: PlannedProgram, given: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results of a program for its inputs. If another program ran before, the
        tensors first move to the tiers of this one's plan.
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
        another call moves them.
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


def _forgotten(running: Sequence[Executor], guard: Guard) -> None:
    """Do the work of :meth:`OffloadedModel.close` for a garbage-collected model."""
    with contextlib.suppress(HosimError):
        running[0].close()
    guard.release()


def named_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, or by position as text."""
    return {**{str(i): value for i, value in enumerate(args)}, **kwargs}


def sizes_of(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sizes of the tensors among inputs, by name, with the strides of those that are not
    contiguous.
    """
    leaves, _ = tree_flatten_with_path(dict(sorted(inputs.items())))
    return tuple(
        (
            ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path),
            (*value.shape,),
            *(() if value.is_contiguous() else (value.stride(),)),
        )
        for path, value in leaves
        if isinstance(value, torch.Tensor)
    )


def _digests(captured: Captured) -> dict[str, bytes]:
    """Return a digest of each tensor that the program has and the model lacks."""
    found = {}
    for name in captured.constants:
        bits = captured.held[name].detach().cpu().clone().reshape(-1).view(torch.uint8)
        found[name] = sha256(bits.numpy().tobytes()).digest()
    return found


def _differ_in_size_alone(
    example: Mapping[str, Any], given: Mapping[str, Any], moves: bool
) -> bool:
    """Return whether inputs have the example's names, types and devices; with ``moves`` they may be
    on the CPU.
    """
    (ours, spec), (theirs, other) = (
        tree_flatten(dict(sorted(one.items()))) for one in (example, given)
    )
    return bool(spec == other) and all(
        isinstance(one, torch.Tensor)
        and one.dtype == value.dtype
        and (one.device == value.device or (moves and one.device.type == "cpu"))
        if isinstance(value, torch.Tensor)
        else not isinstance(one, torch.Tensor)
        for value, one in zip(ours, theirs, strict=True)
    )
