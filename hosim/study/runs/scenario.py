"""A question (one workload, machine, policy and budget), and changes of its fields.

Fields have the names that files use. ``workload.`` precedes a parameter of the workload's spec
(``workload.batch``, ``workload.config.hidden_size``) or the runtime of any workload
(``workload.runtime``). ``policy`` is the policy, and ``policy.`` precedes one of its parameters.
``budget`` is the budget. Any other field is a path in the hardware profile
(``channels.h2d.bandwidth``). More bandwidth of a channel raises that of its fabrics by as much
(:mod:`hosim.study.wider_channels`), unless their bandwidth is changed too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from hosim import io
from hosim.analysis.costmodel import rescaled_from
from hosim.base.files import did_you_mean, unknown_name
from hosim.data.runtime import RUNTIME
from hosim.devices_of_graph import DEVICES, on_devices
from hosim.engine import MemoryBudget, read_budget, resident_step
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import models, rescaled
from hosim.io.options import check_known
from hosim.io.runtimes import under_runtime
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on, check_varied
from hosim.notes import Note, notes
from hosim.plain_text import shown
from hosim.result import Result
from hosim.study.asked import (
    PolicyChoice,
    SearchEnds,
    Settings,
    Value,
    as_integer,
    notes_on_choice,
    parse_choice,
    written,
)
from hosim.study.runs.run_policy import (
    BY_BYTES,
    Counting,
    check,
    make_plan,
    replay,
)
from hosim.study.wider_channels import widened

WORKLOAD, POLICY, BUDGET, HARDWARE = "workload.", "policy", "budget", "hardware."
_FIXED = ("format", "name", "source", "device_tier")
"""Keys of a profile that cannot be varied."""
_OPTIONAL = ("pin", "fabrics")
"""Optional mappings inside a profile."""
_KEPT_GRAPHS = 8
_STEADY, _TO_THE_END = Jitter(), SearchEnds()


@dataclass(frozen=True)
class Question:
    """The question that one replay answers.

    ``budget`` is anything that :func:`hosim.engine.budget.read_budget` takes; it is read here.
    ``others`` are policies outside the registry that settings may name by their labels. ``devices``
    is the number of devices, if not the graph's own. ``rescale`` scales durations that were
    measured on another machine to ``profile`` (:mod:`hosim.analysis.costmodel.rescaled`); without
    it, such durations raise :class:`InputError`. ``counting`` is the method of counting the
    device's bytes. With ``reserved`` the budget limits the bytes that the allocator reserves.
    ``jitter`` varies the times of replays, but not of plans. ``ends`` has the limits of searches.
    """

    graph: Graph
    profile: Hardware
    choice: PolicyChoice
    budget: MemoryBudget | int | float | str | None = None
    others: tuple[PolicyChoice, ...] = ()
    devices: int | None = None
    rescale: bool = False
    counting: Counting = BY_BYTES
    reserved: bool = False
    jitter: Jitter = _STEADY
    ends: SearchEnds = _TO_THE_END

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", read_budget(self.budget))
        if self.rescale:
            object.__setattr__(self, "graph", rescaled(self.graph, self.profile))
        check_measured_on(self.graph, self.profile)

    @cached_property
    def hardware(self) -> Hardware:
        """The machine with the devices that run the graph. Raises :class:`InputError` if it has too
        few.
        """
        return on_devices(self.graph, self.profile, self.devices)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes on the workload, its times on the machine, and the policy's parameters, for
        readers of the answer.
        """
        return (
            *notes(self.graph, self.hardware),
            *notes_on_choice(self.choice, self.graph, self.hardware),
        )

    @property
    def budget_bytes(self) -> int:
        """The bytes of the device tier that may be used. Raises :class:`InputError` for an invalid
        budget.
        """
        return self._budget_of()[1]

    @property
    def less_than_asked(self) -> int | None:
        """The device's bytes if the budget exceeds them, else ``None``."""
        wanted, allowed = self._budget_of()
        return allowed if wanted > allowed else None

    def _budget_of(self) -> tuple[int, int]:
        return read_budget(self.budget).of(self.graph, self.hardware)

    def with_settings(self, settings: Settings) -> Question:
        """Return the question with some fields changed. Raises :class:`InputError` for an unknown
        field or an invalid value.
        """
        workload = {
            f.removeprefix(WORKLOAD): v for f, v in settings.items() if f.startswith(WORKLOAD)
        }
        hardware = {
            f.removeprefix(HARDWARE): v
            for f, v in settings.items()
            if not f.startswith(WORKLOAD) and not _is_other(f)
        }
        policy = {
            f.partition(".")[2]: v
            for f, v in settings.items()
            if f == POLICY or f.startswith(f"{POLICY}.")
        }
        software = workload.pop(RUNTIME, None)
        graph = _graph(self.graph, workload) if workload else self.graph
        graph = graph if software is None else under_runtime(graph, software)
        profile = _hardware(self.profile, hardware) if hardware else self.profile
        faster = any([rate_of(path, profile) is not None for path in hardware])
        return replace(
            self,
            graph=rescaled_from(graph, self.profile, profile) if self.rescale and faster else graph,
            profile=profile,
            choice=_choice(self.choice, policy, self.others),
            budget=settings.get(BUDGET, self.budget),
            devices=profile.devices if DEVICES in hardware else self.devices,
        )

    def answer(self) -> Result:
        """Plan, verify and replay, with ``planning_s``, ``replay_s``, the lower bound, and the few
        draws that a row of a table needs.

        Raises :class:`InfeasibleError` if the policy finds no plan, and :class:`PlanError` if its
        plan breaks a rule.
        """
        return bounded_attempt(self.attempt().in_few_draws)

    def attempt(self) -> Result:
        """Return the answer without its lower bound, for a search that shows few of its results;
        :func:`bounded_attempt` adds the bound.
        """
        begin = time.perf_counter()
        budget = self.budget_bytes
        plan = make_plan(self.graph, self.hardware, self.choice, budget)
        planning_s = time.perf_counter() - begin
        check(plan, self.hardware, budget)
        return replace(
            replay(plan, self.hardware, budget, bounds=False),
            policy=self.choice.label,
            planning_s=planning_s,
            ideal_ns=resident_step(self.graph, self.hardware).makespan_ns,
            replayed=(plan, self.hardware),
        )


def bounded_attempt(result: Result) -> Result:
    """Return a result of :meth:`Question.attempt` with its lower bound."""
    if result.replayed is None:
        return result
    from hosim.analysis.lower_bounds import bounded

    plan, hardware = result.replayed
    return bounded(replace(result, replayed=None), plan, hardware, result.budget_bytes)


def check_fields(question: Question, fields: Iterable[str]) -> None:
    """Raise :class:`InputError` for an unknown field, and suggest the nearest known one."""
    for field in fields:
        if field.startswith(WORKLOAD):
            _check_parameter(question.graph, field.removeprefix(WORKLOAD))
        elif field.startswith(f"{POLICY}."):
            known = question.choice.policy.settings
            key = field.partition(".")[2]
            check_known("parameter", key, known, f"policy {question.choice.name}")
        elif not _is_other(field):
            path = field.removeprefix(HARDWARE)
            first = path.partition(".")[0]
            if first not in _OPTIONAL and not _profile_has(question.hardware, first):
                known_fields = [
                    WORKLOAD + "batch",
                    WORKLOAD + "sequence",
                    POLICY,
                    BUDGET,
                    *_paths(question.hardware),
                ]
                hint = did_you_mean(path, known_fields)
                expected = (
                    "; expected workload.X, policy.X, budget, or a path in the profile "
                    "(compare-policies -H a,b compares machines)"
                )
                raise InputError(f"unknown field{hint or expected}", source=field)
            _put(_profile(question.hardware), path, None)
            processor = rate_of(path, question.hardware)
            if processor is not None and not question.rescale:
                check_varied(question.graph, field, processor=processor)


def rate_of(path: str, hardware: Hardware) -> str | None:
    """Return the processor whose op times depend on this path of a profile (its compute rates or
    its memory bandwidth); ``""`` is the device. ``None`` if no op time depends on it.
    """
    first, _, rest = path.partition(".")
    if first == "compute":
        return ""
    tier, _, what = rest.partition(".")
    if first != "tiers" or not (what == "bandwidth" or what.startswith("compute")):
        return None
    return "" if tier == hardware.device_tier else tier


def check_values(question: Question, points: Iterable[Settings]) -> None:
    """Raise :class:`InputError` for values that are wrong in any point: an unknown policy, a budget
    of one byte among shares, a number without its unit.

    Other values are checked in each point, because they may be valid only together.
    """
    profile = _profile(question.hardware)
    values = {
        (type(value), field, value): (field, value)
        for point in points
        for field, value in point.items()
    }.values()
    budgets = [value for field, value in values if field == BUDGET]
    shares = [value for value in budgets if isinstance(value, float) and value < 1]
    if shares and any(type(value) is int and value == 1 for value in budgets):
        raise InputError(
            f"1 is one byte, beside shares such as {shares[0]}; write 1.0 or '100%' for all of it",
            source=BUDGET,
        )
    for field, value in values:
        if field == POLICY:
            _ = _choice(question.choice, {"": value}, question.others).policy
        if (
            field.startswith(WORKLOAD)
            or _is_other(field)
            or isinstance(value, bool)
            or not isinstance(value, int | float)
        ):
            continue
        now = as_integer(_value_at(profile, field.removeprefix(HARDWARE)))
        if now is not None:
            suffix, _ = now
            raise InputError(
                f"expected a quantity with its unit, such as {written(suffix, value)!r}, got "
                f"{shown(value)}",
                source=field,
            )


def _value_at(profile: Mapping[str, Any], path: str) -> Value:
    node: Any = profile
    for step in path.split("."):
        if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            node = node.get(step) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) else None


def _is_other(field: str) -> bool:
    return field in (BUDGET, POLICY) or field.startswith(f"{POLICY}.")


# -- the policy
# --------------------------------------------------------------------------------------------------


def _choice(
    choice: PolicyChoice, settings: Mapping[str, Value], others: Sequence[PolicyChoice]
) -> PolicyChoice:
    """Return the choice with other parameters; the empty key names another policy, of the registry
    or of ``others``.
    """
    named = settings.get("")
    if named is not None:
        choice = next((other for other in others if other.label == named), None) or parse_choice(
            str(named)
        )
    policy = choice.policy
    parameters = dict(choice.parameters)
    for key, value in settings.items():
        if key:
            parameters[key] = policy.read(key, value) if isinstance(value, str) else value
    if parameters == dict(choice.parameters):
        return choice
    written = (
        f"{key}={json.dumps(value) if isinstance(value, bool) else value}"
        for key, value in parameters.items()
    )
    return replace(choice, parameters=parameters, label=":".join([choice.name, *written]))


# -- the hardware profile
# ------------------------------------------------------------------------------------------


def _profile(hardware: Hardware) -> dict[str, Any]:
    return io.hardware_to_dict(hardware)


def _hardware(hardware: Hardware, settings: Mapping[str, Value]) -> Hardware:
    data = _profile(hardware)
    for path, value in settings.items():
        _put(data, path, _multiplied(data, path, value))
    _cap_channels(data, settings)
    changed = io.hardware_from_dict(data, source=hardware.name)
    before = {channel.name: channel.bandwidth_bytes_per_s for channel in hardware.channels}
    more = {
        channel.name: max(0, channel.bandwidth_bytes_per_s - before[channel.name])
        for channel in changed.channels
    }
    if not any(more.values()):
        return changed
    set_too = [
        fabric.name for fabric in hardware.fabrics if f"fabrics.{fabric.name}.bandwidth" in settings
    ]
    return replace(changed, fabrics=widened(changed, more, set_too)[0].fabrics)


def _cap_channels(data: Mapping[str, Any], settings: Mapping[str, Value]) -> None:
    """If a channel's bandwidth is set, lower its bandwidths for small copies and beside other
    channels to at most that.
    """
    for name, channel in data["channels"].items():
        most = as_integer(channel["bandwidth"])
        if most is None or f"channels.{name}.bandwidth" not in settings:
            continue
        beside = channel.get("beside", {})
        points = [(point, "bandwidth") for point in channel.get("curve", ())]
        for where, key in (*points, *((beside, other) for other in beside)):
            given = as_integer(where.get(key))
            if given is not None and given[1] > most[1]:
                where[key] = channel["bandwidth"]


_TIMES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)x")


def _multiplied(data: Mapping[str, Any], path: str, value: Value) -> Value:
    """Return the value; a multiple such as ``2x`` becomes that multiple of the profile's own value.
    Raises :class:`InputError` if the profile has no quantity there.
    """
    times = _TIMES.fullmatch(value) if isinstance(value, str) else None
    if times is None:
        return value
    now = as_integer(_value_at(data, path))
    if now is None:
        raise InputError(f"{value} of what? The profile has no such quantity there", source=path)
    return written(now[0], int(Fraction(times[1]) * now[1]))


def _profile_has(hardware: Hardware, key: str) -> bool:
    return key in ("devices", "devices_per_host", "chunk") or key in _profile(hardware)


def _paths(hardware: Hardware) -> list[str]:
    """Return every path of the profile that leads to a value and can be varied."""

    def walk(node: Any, path: str) -> Iterable[str]:
        if isinstance(node, Mapping):
            for key, below in node.items():
                yield from walk(below, f"{path}.{key}" if path else key)
        elif path not in _FIXED:
            yield path

    return list(walk(_profile(hardware), ""))


def _put(data: dict[str, Any], path: str, value: Value) -> None:
    """Set the value at ``path``. Raises :class:`InputError` if the path does not exist."""
    *way, last = path.split(".")
    node: Any = data
    if path in _FIXED:
        raise InputError("this field cannot be varied", source=path)
    for i, step in enumerate(way):
        if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
            continue
        if isinstance(node, dict) and step not in node and step in _OPTIONAL:
            node[step] = {}
        if not isinstance(node, dict) or step not in node:
            known = list(node) if isinstance(node, dict) else []
            raise InputError(unknown_name("field", step, known), source=".".join(way[: i + 1]))
        node = node[step]
    if isinstance(node, list) and last.isdecimal() and int(last) < len(node):
        node[int(last)] = value
        return
    if not isinstance(node, dict) or isinstance(node.get(last), dict):
        known = list(node[last]) if isinstance(node, dict) else []
        raise InputError(
            f"expected a path to one value{f', such as {path}.{known[0]}' if known else ''}",
            source=path,
        )
    allowed = (
        *node,
        "latency",
        "engines",
        "queue",
        "pageable",
        "scope",
        "source",
        "time",
        "pool",
        "devices_per_host",
        "chunk",
        "bandwidth",
    )
    if last not in allowed:
        raise InputError(unknown_name("field", last, list(node)), source=path)
    node[last] = value


# -- the workload
# --------------------------------------------------------------------------------------------------


def recipe(graph: Graph) -> Mapping[str, Any] | None:
    """Return the spec in a graph's ``meta`` that it was built from, without the name; ``None`` if
    there is none.
    """
    meta = graph.meta
    if isinstance(meta.get("builder"), Mapping):
        return {"builder": meta["builder"]}
    if isinstance(meta.get("model"), Mapping) and isinstance(meta.get("inputs"), Mapping):
        traced = (
            {"importer": "torch_train", "training": meta["training"]}
            if "training" in meta
            else {"importer": "torch_export"}
        )
        return {**traced, "model": meta["model"], "inputs": meta["inputs"]}
    return None


def _recipe(graph: Graph) -> dict[str, Any]:
    found = recipe(graph)
    if found is None:
        raise InputError(
            f"{graph.name} does not say how it was built, so its fields cannot be varied; give a "
            "spec with a builder, such as "
            "llama-3.1-8b-prefill-32k",
            source="workload",
        )
    copied: dict[str, Any] = json.loads(json.dumps(found))
    return copied


def _check_parameter(graph: Graph, key: str) -> None:
    if key == RUNTIME:  # any graph may have a runtime
        return
    found = _recipe(graph)
    if "builder" not in found:
        if key.partition(".")[0] not in found:
            fields = unknown_name("field", key, found)
            raise InputError(
                f"{fields}; the workload is traced from a model, and its sizes are in 'model' and "
                "'inputs'",
                source="workload",
            )
        _put(found, key, None)
        return

    known = models.parameters_of(found["builder"])
    check_known("parameter", key, known, "workload")


def _graph(graph: Graph, settings: Mapping[str, Value]) -> Graph:
    found = _recipe(graph)
    target = found.get("builder", found)
    for key, value in settings.items():
        *way, last = key.split(".")
        if "builder" not in found:
            _put(found, key, value)
            continue
        node = target
        for step in way:
            node = node.setdefault(step, {})
        node[last] = value
    return _made(graph.name, json.dumps(found, sort_keys=True))


@lru_cache(_KEPT_GRAPHS)
def _made(name: str, spec: str) -> Graph:
    """Build the graph of a spec; the cache serves later points with the same spec."""
    try:
        return io.make({"name": name, **json.loads(spec)}, "workload")
    except InputError as error:
        where = (error.where or "").removeprefix("builder.")
        raise InputError(error.message, source="workload", where=where or None) from None


def failure(error: BaseException) -> str:
    """Return an error's text in one line; errors that are not hosim's begin with their type."""
    text = str(error) if isinstance(error, HosimError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
