"""Run a training step on fake tensors, and record the effect of each aten op on storages. Imports
torch.

A phase is the call in which an op runs: the model's (``forward``), ``backward()``'s or the
optimizer's.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hosim.errors import InputError
from hosim.io.importers.torch_programs.torch_kernels import DTYPES, KernelRecorder, tensors
from hosim.io.importers.torch_programs.torch_run import ProgramStep, quiet
from hosim.plain_text import shown


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded training step. ``held`` has the names and kinds of the storages that exist from
    the start, ``gradients`` the names of the gradients' storages, and ``results`` the losses'
    storages.
    """

    held: Mapping[int, tuple[str, str]]
    steps: Sequence[ProgramStep]
    gradients: Mapping[int, str]
    results: frozenset[int]
    sizes: Sequence[int]
    shapes: Sequence[tuple[int, ...]]


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of this name, hosim's (``bf16``) or torch's. Raises :class:`InputError` for
    any other name.
    """
    known = {ours: dtype for dtype, ours in DTYPES.items() if ours != "fp8"}
    found = known.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InputError(
            f"unknown dtype {name!r}; expected one of: {', '.join(known)}, or torch's own name of "
            "one"
        )
    return found


def record(
    make_model: Callable[[], torch.nn.Module],
    inputs: Mapping[str, Any],
    *,
    optimizer: str | Callable[[list[Any]], Any],
    micro_batches: int,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    loss: Callable[[Any, Mapping[str, Any]], Any] | None,
) -> Recorded:
    """Run one step; the parameters are those of
    :func:`hosim.io.importers.torch_programs.torch_train.import_training`.
    """
    recorder = _StepRecorder()
    # for Python the fakes are CPU tensors: backward runs in this thread, where the recorder sees it
    with (
        failures("write the model with static shapes and control flow"),
        quiet(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        with default_dtype(dtype):
            model = _off_meta(make_model())
        given = {
            name: _fake(value) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }
        learned = [p for p in model.parameters() if p.requires_grad]
        updates = _updates(optimizer, learned)
        _warm_up(learned, updates)
        held = _held(recorder, model, updates, given)
        gradients: dict[int, str] = {}

        def note(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                name, _ = held[recorder.number(parameter)]
                gradients.setdefault(recorder.number(parameter.grad), f"{name}.grad")

        hooks = [p.register_post_accumulate_grad_hook(note) for p in learned]
        results = []
        with recorder:
            for _ in range(micro_batches):
                recorder.phase = "forward"
                with nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast):
                    value = loss_of(model, given, loss)
                if micro_batches > 1:
                    value = value / micro_batches
                recorder.phase = "backward"
                value.backward()
                results.append(value.detach())
                del value
            recorder.phase = "optimizer"
            updates.step(note)
        for hook in hooks:
            hook.remove()
        if learned and not gradients:
            raise InputError(
                "no parameter gets a gradient; the loss has to call the model that it is given"
            )
        numbers = frozenset(map(recorder.number, results))
    return Recorded(held, recorder.steps, gradients, numbers, recorder.sizes, recorder.shapes)


def loss_of(
    model: Callable[..., Any],
    given: Mapping[str, Any],
    loss: Callable[[Any, Mapping[str, Any]], Any] | None,
) -> torch.Tensor:
    """Return the loss that a step differentiates: ``loss(model, given)``, or by default the model's
    result, or the key or attribute ``loss`` of it. Raises :class:`InputError` for anything that is
    no loss.
    """
    if loss is None:
        value = _called("the model", given, lambda: model(**given))
        by_key = isinstance(value, Mapping) and "loss" in value
        value = value["loss"] if by_key else getattr(value, "loss", value)
        called = "the model's output"
    elif not callable(loss):
        raise InputError(f"expected a function loss(model, inputs), got {shown(loss, 60)}")
    else:
        called = "loss(model, inputs)"
        value = _called(called, given, lambda: loss(model, given))
    number = isinstance(value, torch.Tensor) and value.numel() == 1
    if number and value.requires_grad:
        return value
    size = f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    why = "and no single number; give the model labels, or loss=, a function of model and inputs"
    if number:
        why = "which depends on no parameter that learns"
    elif size and loss is not None:
        why = "and no single number; reduce it, as .mean() does"
    raise InputError(
        f"the step gives no loss to differentiate: {called} is {size or type(value).__name__}, "
        f"{why}"
    )


def _called(what: str, given: Mapping[str, Any], call: Callable[[], Any]) -> Any:
    """Return the result of the caller's own code; an error in it says so."""
    try:
        return call()
    except InputError:
        raise
    except Exception as error:
        if _of_contents(error):
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        gets = "its inputs" if what == "the model" else "the model and a dictionary of its inputs"
        raise InputError(
            f"{what} raised {type(error).__name__}: {reason[:200]}; it gets {gets} by name: "
            f"{', '.join(given)}"
        ) from error


class _StepRecorder(KernelRecorder):
    """Records a :class:`ProgramStep` for each kernel, with the phase in which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[ProgramStep] = []
        self.phase = "forward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = len(self.sizes)
        self.kernels = []
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for kernel in self.kernels:
            outputs = {n for n in map(self.number, tensors((result,))) if n >= first}
            self.steps.append(
                ProgramStep(
                    f"{self.phase}.{str(func).split('.')[1]}_{len(self.steps)}",
                    str(func),
                    tuple(n for n in kernel.reads if n not in kernel.writes),
                    tuple(n for n in kernel.writes if n in outputs),
                    tuple(n for n in kernel.writes if n not in outputs),
                    kernel.bytes_accessed,
                    kernel.flops,
                    kernel.dtype,
                    random=kernel.random,
                    phase=self.phase,
                    kernel=kernel.kernel,
                )
            )
        return result


@dataclass(frozen=True, slots=True)
class _Updates:
    """The optimizers of a step. ``masters`` has an fp32 copy of the parameter for each optimizer;
    None if they update the parameters themselves.
    """

    optimizers: Sequence[Any]
    learned: Sequence[Any]
    masters: Sequence[Any] | None

    def step(self, note: Callable[[Any], None]) -> None:
        """Update every parameter. ``note`` is called with each master weight when it has its
        gradient.
        """
        if self.masters is None:
            for one in self.optimizers:
                one.step()
            return
        with torch.no_grad():
            for one, parameter, master in zip(
                self.optimizers, self.learned, self.masters, strict=True
            ):
                if parameter.grad is not None:
                    master.grad = parameter.grad.float()
                    note(master)
                    one.step()
                    parameter.copy_(master)
                    master.grad = None


def _updates(optimizer: str | Callable[[list[Any]], Any], learned: list[Any]) -> _Updates:
    if not learned and optimizer != "none":
        raise InputError("no parameter of the model learns: each has requires_grad=False")
    if callable(optimizer):
        made = optimizer(learned)
        if not hasattr(made, "param_groups"):
            raise InputError(
                f"expected the function to return an optimizer of torch, got {shown(made, 60)}"
            )
        return _Updates([made], learned, None)
    if optimizer == "adamw-master":
        masters = [p.detach().to(torch.float32, copy=True) for p in learned]
        return _Updates([torch.optim.AdamW([m], fused=True) for m in masters], learned, masters)
    makers: dict[str, Callable[[], Any]] = {
        "adamw": lambda: torch.optim.AdamW(learned, fused=True),
        "sgd": lambda: torch.optim.SGD(learned, fused=True),
        "sgd-momentum": lambda: torch.optim.SGD(learned, momentum=0.9, fused=True),
    }
    return _Updates([makers[optimizer]()] if optimizer in makers else [], learned, None)


def _warm_up(learned: Sequence[Any], updates: _Updates) -> None:
    """Do one update with gradients without contents, so that the optimizer makes its state."""
    for parameter in learned:
        parameter.grad = torch.empty_like(parameter)
    updates.step(lambda _: None)
    for parameter in learned:
        parameter.grad = None


def _held(
    recorder: KernelRecorder,
    model: torch.nn.Module,
    updates: _Updates,
    given: Mapping[str, Any],
) -> dict[int, tuple[str, str]]:
    """Return the name and kind of every storage that exists from the start, by number."""
    held: dict[int, tuple[str, str]] = {}
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        held.setdefault(
            recorder.number(parameter),
            (name, "expert" if "experts" in name.split(".") else "parameter"),
        )
    for name, buffer in model.named_buffers():
        held.setdefault(recorder.number(buffer), (name, "buffer"))
    for parameter, master in zip(updates.learned, updates.masters or (), strict=False):
        names[id(master)] = names[id(parameter)]
        held.setdefault(
            recorder.number(master), (f"{names[id(parameter)]}.master", "optimizer_state")
        )
    for one in updates.optimizers:
        for parameter, state in one.state.items():
            for key, value in state.items():
                for tensor in tensors((value,)):
                    held.setdefault(
                        recorder.number(tensor),
                        (f"{names[id(parameter)]}.{key}", "optimizer_state"),
                    )
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            held.setdefault(recorder.number(value), (name, "input"))
    return held


def twin_of(model: torch.nn.Module) -> Callable[[], torch.nn.Module]:
    """Return a function that copies a module with its parameters and buffers on the meta device,
    where they take no memory.
    """

    def twin() -> torch.nn.Module:
        held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return copy.deepcopy(model, {key: _on_meta(tensor) for key, tensor in held.items()})

    return twin


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
    )
    learned = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(made, tensor.requires_grad) if learned else made


def twin_of_optimizer(
    optimizer: torch.optim.Optimizer, model: object
) -> Callable[[list[Any]], torch.optim.Optimizer]:
    """Return a function that makes the optimizer for the twin of its module, from the twin's
    parameters. The optimizer begins without state. Frozen parameters get no gradient, so that it
    skips them. Raises :class:`InputError` if it has parameters that the module does not have.
    """
    held = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    own = [p for p in held if p.requires_grad]
    given = [p for group in optimizer.param_groups for p in group["params"]]
    if {id(p) for p in given} - {id(p) for p in held}:
        raise InputError(
            "the optimizer has parameters that the model does not have; make it with "
            "model.parameters()"
        )

    def twin(learned: list[Any]) -> torch.optim.Optimizer:
        twins = {id(p): new for p, new in zip(own, learned, strict=True)}
        made = copy.copy(optimizer)
        made.param_groups = [
            {**group, "params": [twins[id(p)] for p in group["params"] if id(p) in twins]}
            for group in optimizer.param_groups
        ]
        made.state = defaultdict(dict)
        return made

    return twin


def _off_meta(model: torch.nn.Module) -> torch.nn.Module:
    """Move ``model``'s parameters and buffers from the meta device to the CPU; tied weights stay
    one tensor.
    """
    moved: dict[int, Any] = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, old in own.items():
                if old is None or old.device.type != "meta":
                    continue
                if id(old) not in moved:
                    new = torch.empty_strided(
                        old.size(), old.stride(), dtype=old.dtype, device="cpu"
                    )
                    moved[id(old)] = (
                        torch.nn.Parameter(new, old.requires_grad)
                        if isinstance(old, torch.nn.Parameter)
                        else new
                    )
                own[name] = moved[id(old)]
    return model


def _fake(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        value.size(),
        value.stride(),
        dtype=value.dtype,
        device="cpu",
        requires_grad=value.requires_grad,
    )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make parameters in ``dtype``. Buffers that a model explicitly makes in fp32 keep it, as when
    it is loaded from a checkpoint.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def failures(advice: str, done: str = "run") -> Iterator[None]:
    """Turn errors of torch or of the model's code, while a step is ``done``, into an
    :class:`InputError`; ``advice`` is for steps that depend on data.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        name = type(error).__name__
        if _of_contents(error):
            raise InputError(f"the step depends on the contents of a tensor; {advice}") from error
        reason = (str(error).strip().splitlines() or [name])[0]
        raise InputError(
            f"the step cannot {done} on fake tensors: {name}: {reason[:200]}"
        ) from error


def _of_contents(error: Exception) -> bool:
    """Return whether torch raises this error for code that looks at the contents of a
    fake tensor.
    """
    return any(said in type(error).__name__ for said in ("DataDependent", "DynamicOutputShape"))
