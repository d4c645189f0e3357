"""A program under its plan, and several of them over the same tensors: each begins with them where
the others have them between runs. Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.on_torch.lower.insert import insert
from hosim.on_torch.lower.run import Executor
from hosim.on_torch.lower.tiers import Device, unlike
from hosim.on_torch.lower.torch_program import TorchProgram
from hosim.plain_text import shown
from hosim.result import Result

Planner = Callable[[TorchProgram], tuple[Plan, Result]]
"""Plans a program within the budget that all programs of one model have."""


def at_home(
    program: TorchProgram, others: Sequence[PlannedProgram], device_tier: str
) -> TorchProgram:
    """``program`` with the tensors that others have below the device tier at time 0 at home there,
    so that they need not move.
    """
    homes: dict[int, str] = {}
    for other in others:
        below = {
            t: tiers[0]
            for t, tiers in other.plan.residency(device_tier).items()
            if device_tier not in tiers
        }
        for placeholder, t in other.program.tensor_of.items():
            if t in below and placeholder in program.tensor_of and placeholder not in other.inputs:
                homes[program.tensor_of[placeholder]] = below[t]
    survivors = {t: tier for t, tier in homes.items() if program.graph.tensors[t].persistent}
    graph = program.graph
    tensors = [replace(tensor, home=survivors.get(t)) for t, tensor in enumerate(graph.tensors)]
    return replace(program, graph=Graph(graph.name, tensors, graph.ops, graph.meta))


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
                    if name in self._written:
                        raise InputError(
                            f"input {self._called[name]!r} is written by the model, and is not on "
                            f"{self._device.torch_device}; give it there"
                        )
                    value = self.on_device(value)
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


def _check_input(name: str, value: Any, example: Any, moves: bool) -> None:
    if not isinstance(example, torch.Tensor):
        if value != example:
            raise InputError(
                f"input {name!r} is {example!r} in the captured program, got {shown(value, 60)}; "
                "offload it again"
            )
        return
    got = unlike(value, example)
    if got is not None:
        raise InputError(
            f"input {name!r} is {got}; it was captured with {tuple(example.shape)} of "
            f"{example.dtype}"
        )
    if value.device != example.device and not (moves and value.device.type == "cpu"):
        raise InputError(
            f"input {name!r} is on {value.device}; it was captured on {example.device}"
        )
