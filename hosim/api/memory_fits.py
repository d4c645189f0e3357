"""``hosim.fits``: find out if a step fits a device, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hosim.api.cell_progress import in_cell
from hosim.api.inputs import Machine, Workload, load, question
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io import importers, models, runtimes
from hosim.io.options import declared, keywords

if TYPE_CHECKING:
    from hosim.data.memory_fit import MemoryFit
    from hosim.study.runs import Question


@keywords(*declared("batch sequence optimizer runtime devices"))
def fits(
    workload: Workload,
    hardware: Machine,
    inputs: Any = None,
    *,
    loss: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    **options: Any,
) -> MemoryFit:
    """Find out if a step fits the memory of a device, and what would make it fit.

    Parameters
    ----------
    workload
        The name of a model of hosim or of the Hugging Face hub, or anything else that
        :func:`hosim.load` takes, including a module of torch.
    inputs
        Example inputs of a module, as :func:`hosim.load` takes them.
    loss
        The loss of a module's training step, as :func:`hosim.load` takes it.

    Returns
    -------
    MemoryFit
        ``verdict`` is ``"fits"``, ``"may fit"`` or ``"does not fit"``. ``peak_bytes`` is the peak
        of tensors, ``seen`` the memory that the runtime needs for them. ``by_kind`` and
        ``by_module`` divide the peak, ``largest`` has the largest batch and sequence that fit, and
        ``remedies`` has the changes that need less memory, and their cost. A cell of a notebook
        shows the tables.

    Raises
    ------
    InputError
        If an argument is invalid.

    References
    ----------
    :mod:`hosim.study.searches.memory_fits` describes the computation, ``docs/runtimes.md`` the
    intervals.

    Examples
    --------
    >>> import hosim
    >>> answer = hosim.fits("gpt2", "rtx-4090", optimizer="adamw", runtime="hf-trainer")
    >>> answer.verdict, answer.largest[0].field
    ('fits', 'batch')
    """
    from hosim.io.importers.torch_programs import is_torch_model
    from hosim.study.searches import memory_fit

    if is_torch_model(workload):
        for name in ("batch", "sequence"):
            if options[name] is not None:
                raise InputError(
                    "a module has the sizes of its inputs: leave it out", source="fits", where=name
                )
        workload = load(workload, inputs, loss=loss, optimizer=options["optimizer"])
        options["optimizer"] = None
    elif not isinstance(options["optimizer"], str | None):
        raise InputError(
            "an optimizer of torch is for a module of torch; of a model name adamw or none",
            source="fits",
            where="optimizer",
        )
    elif inputs is not None or loss is not None:
        raise InputError(
            "only a module of torch takes inputs and loss", source="fits", where="workload"
        )
    with in_cell() as tell:
        return memory_fit(fit_question(workload, hardware, options), tell)


def fit_question(workload: Any, hardware: Machine, options: Mapping[str, Any]) -> Question:
    """Return the question of a step with the batch, sequence and optimizer of ``options``. Raises
    :class:`InputError`.
    """
    asked = dict(options)
    sizes = {name: asked.pop(name) for name in ("batch", "sequence", "optimizer")}
    wanted = {name: value for name, value in sizes.items() if value is not None}
    if (parameters := _parameters(workload)) is not None:
        settings = _settings(wanted, parameters)
        for name, value in settings.items():
            if parameters.get(name, value) != value:
                raise InputError(
                    f"is {parameters[name]} in the workload and {value} beside it: keep one",
                    source="fits",
                    where=name,
                )
        return question(_built({**parameters, **settings}, asked.pop("runtime")), hardware, **asked)
    found = question(workload, hardware, **asked)
    recipe = found.graph.meta.get("builder")
    if wanted and not isinstance(recipe, Mapping):
        raise InputError(
            f"only a model of hosim's has this setting; {found.graph.name} has the sizes that it "
            "was made with",
            source="fits",
            where=next(iter(wanted)),
        )
    settings = _settings(wanted, recipe or {})
    return found.with_settings({f"workload.{name}": value for name, value in settings.items()})


def _settings(wanted: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the builder's parameters for the wanted batch, sequence and optimizer."""
    settings = dict(wanted)
    if "optimizer" in wanted:
        settings["phase"] = "train"
    elif "sequence" in wanted and recipe.get("phase") == "decode":
        settings["context"] = settings.pop("sequence")
    return settings


def _parameters(workload: Any) -> dict[str, Any] | None:
    """Return the builder's parameters if a workload names a model, else ``None``."""
    from hosim.io import names_model

    if isinstance(workload, str):
        return importers.builder_parameters(workload) if names_model(workload) else None
    return (
        importers.builder_parameters(workload)
        if isinstance(workload, Mapping) and ("model" in workload or "model_type" in workload)
        else None
    )


def _built(parameters: Mapping[str, Any], runtime: Any) -> Graph:
    """Build the step under a runtime. Raises :class:`InputError`."""
    from hosim.data.runtime import RUNTIME, as_data

    under = {}
    if runtime is not None:
        software = runtimes.runtime_named(runtime)
        kind = "train" if parameters.get("phase") == "train" else "inference"
        if software.runs and kind not in software.runs:
            raise InputError(
                f"{software.name} is for {' and '.join(software.runs)}, and this step is for "
                f"{kind}: name another runtime (see 'hosim runtime list') or another phase",
                source="runtime",
            )
        under = {RUNTIME: as_data(software)}
    with errors_of("workload"):
        return models.build(
            importers.name_of(parameters), {**runtimes.with_runtime(parameters), **under}
        )
