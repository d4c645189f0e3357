"""A model's call as torch exports it, for inputs of the example's sizes and of others. Imports
torch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from hosim.errors import InputError
from hosim.io.importers.torch_programs import quiet
from hosim.on_torch.lower.callable import Captured, named_call
from hosim.on_torch.lower.compiled import CompiledModel, require_no_hooks, require_one_process
from hosim.on_torch.lower.devices import Loader, fake_on, fakes, named_tensors
from hosim.on_torch.lower.eager_peak import eager_peak_bytes
from hosim.on_torch.lower.guard import is_autocast
from hosim.on_torch.lower.python_state import (
    no_look_is_hidden,
    python_state_kept,
    stand_ins,
    writes_undone_in,
)
from hosim.on_torch.lower.reached_state import Made, Reached
from hosim.on_torch.lower.tiers import Device
from hosim.on_torch.lower.torch_program import capture
from hosim.on_torch.lower.true_layouts import TrueLayouts
from hosim.on_torch.lower.two_traces import (
    require_alike,
    require_of_modules,
    require_own_results,
    settled,
    written,
)

T = TypeVar("T")

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, by position and by name."""


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
    inputs = _each_of_its_own(arguments(example_inputs))
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
    mode = TrueLayouts()
    on_fakes = any(not device.has(tensor) for tensor in own.values())
    made = fakes(mode, model, device.torch_device)
    return _ExportedCall(
        model, name, device, load, compiled, Reached(model, {}), mode, made, own, on_fakes
    ).captured(inputs)


@dataclass(frozen=True)
class _ExportedCall:
    """The data that captures of one model share: ``fakes`` stand in for its tensors (``own``, by
    name) while it is traced ``on_fakes``.
    """

    model: torch.nn.Module
    name: str
    device: Device
    load: Loader | None
    compiled: CompiledModel | None
    reached: Reached
    mode: FakeTensorMode
    fakes: Mapping[int, torch.Tensor] = field(repr=False)
    own: Mapping[str, torch.Tensor] = field(repr=False)
    on_fakes: bool

    def captured(self, inputs: Inputs) -> Captured:
        """The call for inputs like these. Raises :class:`InputError` if it cannot be."""
        model, reached, name = self.model, self.reached, self.name
        given = self._faked(inputs) if self.on_fakes else inputs
        first, kept = self._exported(given, [])

        def again() -> tuple[ExportedProgram, list[Any]]:
            found, _ = self._exported(given, kept)
            return found, written(found.graph_module)

        exported = settled(written(first.graph_module), kept, again)
        require_of_modules(exported.constants, [*first.constants.values()], reached)
        program = capture(exported, name=name)
        require_own_results(program)
        if self.compiled is not None:
            from hosim.on_torch.lower.compiled import compiled_program

            program = compiled_program(program, self.compiled.settings)
        own = {**exported.state_dict, **exported.constants, **self.own}
        held = {one.placeholder: own[one.name] for one in program.givens if one.own}
        models = {id(tensor) for tensor in self.own.values()}
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

        # What outlives this function must not keep the inputs, which an ExportedProgram does.
        like, calls = self._faked(inputs, everywhere=False), written(exported.graph_module)

        def retraced() -> None:
            found, _ = replace(self, on_fakes=True)._exported(self._faked(like), kept)
            require_alike(calls, written(found.graph_module))

        return Captured(
            model,
            program,
            held,
            tuple(one.placeholder for one in program.givens if not one.own),
            flat,
            lambda results: tree_unflatten(results, out_spec),
            reached,
            constants=frozenset(key for key, tensor in held.items() if id(tensor) not in models),
            load=self.load,
            called=None if self.compiled is None else self.compiled.module,
            eager_peak_bytes=None if self.compiled is not None else self._eager_peak(given, kept),
            example=named_call(*like),
            resized=None if self.compiled is not None else self._resized,
            retraced=None if self.compiled is not None else retraced,
        )

    def _resized(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Captured:
        """The call for inputs of other sizes, when the model's tensors may be anywhere."""
        return replace(self, name=name, on_fakes=True).captured(_each_of_its_own((args, kwargs)))

    def _faked(self, inputs: Inputs, *, everywhere: bool = True) -> Inputs:
        """Fakes like the tensors among inputs: on the device that is to run the model, or where
        each of them is.
        """

        def fake(value: torch.Tensor) -> torch.Tensor:
            return fake_on(
                self.mode, value, self.device.torch_device if everywhere else value.device
            )

        return cast(Inputs, tree_map_only(torch.Tensor, fake, inputs))

    def _eager_peak(self, inputs: Inputs, kept: Sequence[Made]) -> int | None:
        """The peak of a call without hosim and without gradients, if it is known."""
        args, kwargs = self._faked(inputs)
        with (
            torch.no_grad(),
            quiet(),
            python_state_kept(self.model, self.reached, kept=kept),
            writes_undone_in(self.model),
            stand_ins(self.model, self.fakes),
            self.mode,
        ):
            held = [*self.fakes.values(), args, kwargs]
            return eager_peak_bytes(held, lambda: self.model(*args, **kwargs))

    def _exported(self, inputs: Inputs, kept: Sequence[Made]) -> tuple[ExportedProgram, list[Made]]:
        """The model as torch exports it, and the tensors that it keeps (``kept`` were, before)."""
        there: Callable[[], AbstractContextManager[None]] = nullcontext
        if self.on_fakes:
            there = partial(stand_ins, self.model, self.fakes)
        try:
            with (
                torch.no_grad(),
                quiet(),
                python_state_kept(self.model, self.reached, kept=kept) as made,
                writes_undone_in(self.model),
                there(),
                no_look_is_hidden(),
            ):
                return torch.export.export(self.model, *inputs, strict=False), made
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
            raise InputError(
                f"torch.export cannot export {self.name}: {reason[:200]}{hint}"
            ) from error


def arguments(inputs: Any) -> Inputs:
    """Example inputs as the arguments of a call."""
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
