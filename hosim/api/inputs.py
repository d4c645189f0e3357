"""Read the arguments of the public functions.

A *workload* is the name of a shipped workload, a path, a mapping (a workload file, a spec, or
parameters of a builder), or a :class:`~hosim.graph.Graph`. *hardware* is a name, a path, a mapping,
or a :class:`~hosim.hardware.Hardware`. A *policy* is text such as ``lookahead:k=4``, an object such
as ``hosim.policies.lookahead``, or a function ``(graph, hardware, budget_bytes)`` that returns a
plan. A *budget* is a number of bytes, a size such as ``40 GiB``, a share of the resident peak such
as ``75%`` or 0.75, or ``None`` for the whole device memory. *devices* is the number of devices that
run the program together; ``None`` is the number that the workload is for. Times are integer
nanoseconds, sizes integer bytes.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hosim import io
from hosim.api.cell_progress import in_cell
from hosim.devices_of_graph import on_devices
from hosim.engine import read_budget
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import importers, models, rescaled, runtimes
from hosim.io.options import OPTIONS, RESERVED, Given
from hosim.jitter import Jitter
from hosim.limits import listed_within
from hosim.plain_text import shown
from hosim.result import CACHING, LEDGER
from hosim.study.asked import (
    RECOMPUTE,
    AnyPolicy,
    PolicyChoice,
    as_choice,
    parse_choices,
    read_search_ends,
    without,
)
from hosim.study.runs import POLICY, Counting, Question
from hosim.units import human_size

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

Workload: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | Graph | ExportedProgram | Module"
)
Machine = str | os.PathLike[str] | Mapping[str, Any] | Hardware
AnyRuntime = str | os.PathLike[str] | Mapping[str, Any] | None
Budget = int | float | str | None
Policies: TypeAlias = "AnyPolicy | Iterable[AnyPolicy] | None"
Vary: TypeAlias = str | Iterable[str] | Mapping[str, object] | Sequence[Mapping[str, object]]


def load(
    workload: Workload,
    inputs: Any = None,
    *,
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    optimizer: Any = None,
) -> Graph:
    """Load the graph of a workload.

    Parameters
    ----------
    workload
        The name of a shipped workload, the name of a model with parameters of its builder
        (``gpt2:phase=decode:batch=8``), the path of anything that ``hosim import`` reads, a
        mapping, a program of ``torch.export``, a module of torch, or a graph, which is returned
        unchanged.
        A mapping is the content of a workload file, a spec or a ``config.json`` of transformers, or
        the parameters of a builder (:func:`hosim.io.models.builder.build`), whose ``model`` may also
        be the path of a ``config.json`` or of its folder.
    inputs
        Example inputs of a module: a tensor, a sequence of positional inputs, or a mapping of named
        inputs. Tensors on the meta device are enough.
    loss
        The loss of a module's training step: ``loss(model, inputs)`` gets the inputs by name, and
        its result is differentiated. Without it, the model's output or the output's ``loss`` is.
    optimizer
        An optimizer makes the workload a training step: forward, backward and update. Give an
        optimizer of torch over the module's parameters, a function that makes one from them, or a
        name: ``adamw``, ``adamw-master`` (fp32 copies), ``sgd``, ``sgd-momentum``, ``none``. The
        module and the optimizer are not changed.

    Returns
    -------
    Graph
        Tensors in bytes and ops in execution order.

    Raises
    ------
    InputError
        If there is no such workload, if the file or the mapping is no workload, or if the module
        cannot be exported or trained with these inputs.

    References
    ----------
    ``docs/formats.md`` describes the files; :class:`hosim.io.models.config.Run` has the parameters
    of a builder.

    Examples
    --------
    >>> import hosim
    >>> hosim.load({"model": "llama-3.1-8b", "phase": "decode", "context": 65536, "layers": 1}).name
    'llama-3.1-8b-decode:context=65536:layers=1'
    """
    from hosim.io.importers.torch_programs import import_torch_model, is_torch_model

    if is_torch_model(workload):
        try:
            with in_cell() as tell:
                tell(f"tracing {type(workload).__name__}")
                return import_torch_model(workload, inputs, loss, optimizer)
        except InputError as error:
            raise InputError(error.message, source="workload", where=error.where) from error
    for name, value in (("inputs", inputs), ("loss", loss), ("optimizer", optimizer)):
        if value is not None:
            raise InputError(f"only a module of torch takes {name}", source="workload", where=name)
    if isinstance(workload, Graph):
        return workload
    if not isinstance(workload, Mapping):
        return io.load_named(named(workload, "workload"))
    if "ops" in workload:
        return io.workload_from_dict(dict(workload))
    if "builder" in workload or "importer" in workload:
        return io.make(
            io.check_spec({"format": "hosim.spec/1", **workload}, "workload"), "workload"
        )

    if "model_type" not in workload and "model" not in workload:
        raise InputError(
            "expected a workload (with ops), a spec (with a builder), a config.json (with a "
            "model_type) or parameters of a builder (with a "
            "model); got a mapping with "
            f"{', '.join(map(repr, list(workload)[:8])) or 'nothing in it'}",
            source="workload",
        )
    parameters = importers.builder_parameters(workload)
    with errors_of("workload"):
        return models.build(importers.name_of(parameters), runtimes.with_runtime(parameters))


def under(graph: Graph, runtime: AnyRuntime) -> Graph:
    """Return the graph under ``runtime``, or unchanged for ``None``. Raises :class:`InputError`."""
    return graph if runtime is None else runtimes.under_runtime(graph, runtime)


def machine(hardware: Machine) -> Hardware:
    """Return the profile of a name, a path or a mapping. Raises :class:`InputError`."""
    if isinstance(hardware, Hardware):
        return hardware
    from hosim.shipped import find_hardware

    return (
        io.hardware_from_dict(dict(hardware), source="hardware")
        if isinstance(hardware, Mapping)
        else io.load_hardware(find_hardware(named(hardware, "hardware")))
    )


def several(values: Iterable[Any], argument: str, what: str) -> list[Any]:
    """Return the items of any iterable as a list.

    Raises :class:`InputError` for a value that is not iterable, or has more items than a grid may
    have.
    """
    try:
        return listed_within("grid_points", values, source=argument)
    except TypeError:  # a 0-d array passes as iterable by its type, but has no items
        raise InputError(f"expected {what}, got {shown(values, 60)}", source=argument) from None


def jitter_of(jitter: Jitter | None) -> Jitter | None:
    """Return ``jitter`` unchanged. Raises :class:`InputError` unless it is a ``Jitter`` or
    ``None``.
    """
    if jitter is not None and not isinstance(jitter, Jitter):
        raise InputError(
            f"expected hosim.jitter.Jitter(seed, op_sigma, transfer_sigma), got {shown(jitter)}",
            source="jitter",
        )
    return jitter


def named(given: object, argument: str) -> str:
    """Return a name or a path as text. Raises :class:`InputError` for anything else."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            f"expected a name, a path, a mapping or an object of hosim, got {type(given).__name__}",
            source=argument,
        )
    return os.fspath(given)


def machine_of(graph: Graph, hardware: Machine, devices: int | None) -> Hardware:
    """Return the machine with ``devices`` devices, or with as many as the graph is for. Raises
    :class:`InputError`.
    """
    return on_devices(graph, machine(hardware), devices)


def question(
    workload: Workload,
    hardware: Machine,
    policy: AnyPolicy = "hyperoffload",
    budget: Budget = None,
    **options: Any,
) -> Question:
    """Return the question of one replay; ``options`` are those of :func:`questions`. Raises
    :class:`InputError`.
    """
    return questions(workload, [hardware], [policy], budget, **options)[0]


def questions(
    workload: Workload,
    machines: Sequence[Machine],
    policies: Policies = None,
    budget: Budget = None,
    **options: Any,
) -> list[Question]:
    """Return a question for each machine and policy, from the arguments of a function or a command.

    ``options`` are values of :data:`hosim.io.options.OPTIONS`; omitted options have their defaults.
    Raises :class:`InputError`.
    """
    asked = Given(**{name: one.default for name, one in OPTIONS.items()} | options)
    ends = read_search_ends(asked.within, asked.time, asked.work)
    bounds = read_budget(budget)
    reserved = asked.plan_against == RESERVED
    allocator = CACHING if reserved and asked.allocator == LEDGER else asked.allocator
    profiles = [machine(one) for one in machines]
    graph = _graph(workload, profiles, asked)
    chosen = choices_of(policies, graph, routed=asked.routing is not None)
    if asked.no_recompute:
        chosen = [without(choice, RECOMPUTE) for choice in chosen]
    found = [
        Question(
            here,
            profile,
            choice,
            bounds,
            devices=asked.devices,
            rescale=asked.rescale,
            counting=Counting(allocator, asked.account),
            reserved=reserved,
            jitter=Jitter(asked.seed, asked.op_sigma, asked.transfer_sigma),
            ends=ends,
        )
        for profile in profiles
        for here in [rescaled(graph, profile) if asked.rescale else graph]
        for choice in ends.of(chosen)
    ]
    for one in found[:: len(found) // len(profiles)]:
        _ = one.budget_bytes  # a budget that a machine cannot have raises its error here, not later
    return found


def _graph(workload: Workload, profiles: Sequence[Hardware], asked: Given) -> Graph:
    """Return the graph of a workload under the asked runtime, with the asked steps of a routing.

    A graph with a routing is rescaled to the first machine if ``rescale`` is set.
    """
    if asked.execution_trace is not None:
        from hosim.io.importers.recordings import import_kineto

        graph = import_kineto(named(workload, "workload"), asked.execution_trace)
    else:
        graph = load(workload)
    graph = under(graph, asked.runtime)
    if asked.routing is None:
        return graph
    return _routed(rescaled(graph, profiles[0]) if asked.rescale else graph, asked)


def _routed(graph: Graph, asked: Given) -> Graph:
    """Return the graph with the experts that the asked steps of the routing use."""
    from hosim.data.expert_routing import realise
    from hosim.study.asked import parse_steps

    recipe = graph.meta.get("builder")
    if isinstance(recipe, Mapping) and recipe.get("routing") is not None:
        graph = models.build(
            graph.name, {**recipe, "routing": None}
        )  # the loaded routing replaces the drawn one
    loaded = io.load_routing(asked.routing, graph)
    wanted = parse_steps(asked.steps, len(loaded.steps))
    return realise(loaded, wanted if len(wanted) > 1 else wanted[0])


def less_than_asked(asked: Iterable[Question]) -> list[str]:
    """Return a line for each machine whose device has less memory than the budget."""
    sizes = {one.hardware.name: one.less_than_asked for one in asked}
    return [
        f"using {human_size(size)}, all that the device of {name} has"
        for name, size in sizes.items()
        if size is not None
    ]


def choices_of(
    policies: Policies, graph: Graph | None = None, routed: bool = False
) -> list[PolicyChoice]:
    """Return the policies of a comma-separated text, of one policy or of a list of policies.

    ``None`` is the default list of a comparison, or the part of it that can plan ``graph``. Raises
    :class:`InputError`.
    """
    if policies is None or isinstance(policies, str):
        return parse_choices(policies, routed, graph)
    if isinstance(policies, Iterable):
        choices = [
            as_choice(policy) for policy in several(policies, "policies", "a list of policies")
        ]
        if not choices:
            raise InputError("expected at least one policy, got an empty list", source="policies")
        return _told_apart(choices)
    return [as_choice(policies)]


def policies_in(vary: Vary) -> tuple[Vary, tuple[PolicyChoice, ...]]:
    """Return the values to vary, and the policies in them that are objects or functions.

    In the values, a label replaces each such policy.
    """
    if isinstance(vary, str):
        return vary, ()
    if isinstance(vary, Mapping):
        values = vary.get(POLICY)
        if values is None or isinstance(values, str):
            return vary, ()
        found = choices_of(values)  # type: ignore[arg-type]
        return {**vary, POLICY: [choice.label for choice in found]}, _given(found)
    if hasattr(vary, "to_dict") and hasattr(
        vary, "columns"
    ):  # a pandas frame: one column per field, one row per point
        vary = vary.to_dict("records")
    if isinstance(vary, Iterable):
        vary = several(vary, "vary", "a mapping from fields to values, or a list of points")
    points: list[Any] = list(vary) if isinstance(vary, Iterable) else []
    placed = [
        i
        for i, point in enumerate(points)
        if isinstance(point, Mapping) and point.get(POLICY) is not None
    ]
    found = _told_apart([as_choice(points[i][POLICY]) for i in placed])
    for i, choice in zip(placed, found, strict=True):
        points[i] = {**points[i], POLICY: choice.label}
    return (points, _given(found)) if placed else (vary, ())


def _given(choices: Iterable[PolicyChoice]) -> tuple[PolicyChoice, ...]:
    return tuple({choice.label: choice for choice in choices if choice.given is not None}.values())


def _told_apart(choices: Sequence[PolicyChoice]) -> list[PolicyChoice]:
    """Return the choices with unique labels: functions of the same name, such as lambdas, get a
    number from the second one on.
    """
    functions: dict[str, list[PolicyChoice]] = {}
    labelled = []
    for choice in choices:
        if choice.given is not None and not choice.given.is_own:
            same = functions.setdefault(choice.label, [])
            if choice not in same:
                same.append(choice)
            number = same.index(choice) + 1
            choice = choice if number == 1 else replace(choice, label=f"{choice.label} {number}")
        labelled.append(choice)
    return labelled
