"""``hosim runtime fit``: fit a runtime to lines of a user's logs."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hosim.api.inputs import machine
from hosim.api.one_plan import plan, replay
from hosim.base.files import name_of_file
from hosim.data.runtime import NONE, ONE, Runtime
from hosim.errors import HosimError, InputError
from hosim.extensions import added
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.io import load_named
from hosim.io.models import Run
from hosim.io.runtimes import runtime_named, under_runtime
from hosim.plain_text import counted
from hosim.shipped import runtimes
from hosim.validate.logged import FittedRuntime, LoggedRun, RunBeside, fit_runtime, read_logged_runs

_GIB = 2**30


def runtime_fit(
    path: str | os.PathLike[str], base: str | os.PathLike[str] | Runtime, name: str = "mine"
) -> FittedRuntime:
    """Fit a runtime to lines of your own logs.

    Parameters
    ----------
    path
        A file of runs. Each run is a line ``run WORKLOAD -H HARDWARE`` and unedited lines of its
        log: step times, tokens/s, memory reserved or allocated; for a server the lines of vLLM or
        SGLang, or a page of vLLM's metrics.
    base
        The runtime that supplies the figures that the log lacks: a name, a path or an object.
    name
        The name of the fitted runtime.

    Returns
    -------
    FittedRuntime
        Pass ``runtime`` to other functions as ``runtime=``. ``left`` has, for each run, its fitted
        time divided by the measured one; ``moved`` has the figures that changed, before and after;
        ``warnings`` name what was not used, and why.

    Raises
    ------
    InputError
        If the file, a workload or a machine is invalid, if a run does not fit its machine (the
        error has the line), or if no figure can be fitted.

    References
    ----------
    ``docs/runtimes.md`` describes the file. Each run is replayed under the base, but with kernel
    times as without a runtime.

    Examples
    --------
    >>> import hosim, tempfile, pathlib
    >>> step = "gpt2:phase=train:sequence=64:layers=1"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = pathlib.Path(folder, "my.log")
    ...     _ = log.write_text(f"run {step} -H h100{chr(10)}step time 3.1 ms")
    ...     mine = hosim.runtime_fit(log, "megatron-te").runtime
    >>> mine.name, mine.speed.one_row
    ('mine', True)
    """
    found, source = runtime_named(base), name_of_file(path)
    runs = read_logged_runs(source)
    beside = [
        each
        for run in runs
        for each in (_served(run, found, source) or [_beside(run, found, source)])
    ]
    kinds = {"inference" if _is_served(run) else _kind(load_named(run.workload)) for run in runs}
    known = [each for each in map(runtime_named, runtimes()) if kinds & set(each.runs)]
    fitted = fit_runtime(found, name, beside, known)
    if not fitted.moved:
        why = "; ".join(fitted.warnings) or "every figure is what the base says already"
        raise InputError(f"nothing is fitted: {why}", source=source)
    return fitted


def _is_served(run: LoggedRun) -> bool:
    return "blocks" in run.figures or bool(run.server.steps)


def _beside(run: LoggedRun, base: Runtime, source: str) -> RunBeside:
    where = f"line {run.line}"
    name = f"{run.workload} ({where})"
    alone = replace(base, speed=ONE, cpu_optimizer=NONE)
    try:
        graph = under_runtime(load_named(run.workload), alone)
        profile = machine(run.hardware)
        result = replay(plan(graph, profile, run.policy), profile)
    except HosimError as error:
        raise InputError(str(error), source=source, where=where) from None
    if not result.feasible or result.makespan_ns is None:
        raise InputError(
            f"{run.workload} does not fit {profile.name} as it is asked: {result.error}",
            source=source,
            where=where,
        )
    optimizers = [graph.ops[i] for i in graph.elsewhere if graph.ops[i].kind == "optimizer"]
    after = (result.drain_ns or 0) if optimizers else 0
    true_s = run.figures.get("step", 0.0)
    if not true_s and "tokens/s" in run.figures:
        true_s = tokens_of(graph, source, where) / run.figures["tokens/s"]
    return RunBeside(
        name,
        (result.makespan_ns - after) / 1e9,
        after / 1e9,
        _share(optimizers[0], profile) if after else 0.0,
        result.peak_bytes[profile.device_tier] / _GIB,
        true_s,
        {key: run.figures[key] for key in ("reserved", "allocated") if key in run.figures},
    )


def _served(run: LoggedRun, base: Runtime, source: str) -> list[RunBeside]:
    """Return the memory of a server's largest iteration and the times of its iterations, from its
    log; an empty list if the run is not a server's.
    """
    if not _is_served(run):
        return []
    where = f"line {run.line}"
    found = added("logged_iterations")
    if not found:
        raise InputError("a server's log needs the room serving", source=source, where=where)
    steps, name = run.server.steps, f"{run.workload} ({where})"
    try:
        memory, alone_s = found[0](
            run.workload, machine(run.hardware), base, run.limits, run.figures.get("blocks"), steps
        )
    except HosimError as error:
        raise InputError(str(error), source=source, where=where) from None
    return [
        RunBeside(name, 0.0, 0.0, 0.0, 1.0, 0.0, {}, memory, run.server.request_s),
        *(
            RunBeside(
                f"{name}, {counted(round(step.sequences), 'sequence')}",
                alone,
                0.0,
                0.0,
                1.0,
                step.seconds,
                {},
            )
            for step, alone in zip(steps, alone_s, strict=True)
        ),
    ]


def tokens_of(graph: Graph, source: str, where: str) -> float:
    """Return the tokens that a device processes in a step. Raises :class:`InputError` for a graph
    that no builder made.
    """
    recipe = graph.meta.get("builder")
    if not isinstance(recipe, Mapping) or "phase" not in recipe:
        raise InputError(
            "tokens/s need a workload of hosim's builders, which says its tokens; give a step time",
            source=source,
            where=where,
        )
    batch = _of(recipe, "batch") * _of(recipe, "micro_batches")
    return (
        batch
        if recipe["phase"] == "decode"
        else batch * _of(recipe, "sequence", Run().sequence) / _of(recipe, "context_parallel")
    )


def _of(recipe: Mapping[str, Any], key: str, default: int = 1) -> int:
    return int(recipe.get(key) or default)


def _kind(graph: Graph) -> str:
    recipe = graph.meta.get("builder")
    return (
        "train" if isinstance(recipe, Mapping) and recipe.get("phase") == "train" else "inference"
    )


def _share(op: Op, profile: Hardware) -> float:
    """Return the share of its tier's bandwidth that an optimizer op reaches on its processor."""
    compute = profile.tiers[profile.tier_index[op.processor]].compute
    assert compute is not None
    return float(compute.efficiency_for("optimizer", "fp32"))
