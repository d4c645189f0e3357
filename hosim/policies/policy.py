"""A policy as the rest of hosim sees it: a name, a summary, parameters, and a function that makes
plans.
"""

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hosim.analysis import needed_bytes
from hosim.base.files import did_you_mean
from hosim.base.in_cells import InCells
from hosim.base.search_control import (
    BY_CALLBACK,
    BY_CTRL_C,
    BY_TIME,
    DONE,
    SearchRecord,
    one_planning,
)
from hosim.cache_plan import MANUAL, Plan
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import planned_in_order_of_uses
from hosim.policies.computed_elsewhere import ComputedElsewhere, computed_there
from hosim.policies.strangers import FAILURES, PolicyError, bug, guarded
from hosim.processors import refuse_other_processors
from hosim.units import human_size, parse_share, parse_size

__all__ = ["Maker", "Parameter", "Policy", "unknown_policy", "written_settings"]

Maker = Callable[..., Plan]
"""``make(graph, hardware, budget_bytes, **parameters)``, with every parameter given."""

Initial = Mapping[int, tuple[str, ...]]
"""By tensor position, the tiers with a valid copy at time 0."""

_EXPECTED = {
    "int": "a whole number of at least 0",
    "float": "a number of at least 0",
    "bool": "true or false",
    "size": "a size such as '4 GiB'",
    "share": "a share from 0 to 1 such as '1%'",
}


def written_settings(settings: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    """Yield the parameter and the value of each text such as ``k=2``. Raises :class:`InputError`
    for a text without ``=``, and for a parameter given twice.

    >>> dict(written_settings(["k=2", "lead=8"], "policy lookahead"))
    {'k': '2', 'lead': '8'}
    """
    seen = set()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(
                f"expected parameter=value after the colon, got {setting!r}", source=source
            )
        if key in seen:
            raise InputError("is given twice; keep one", source=source, where=key)
        seen.add(key)
        yield key, value


def unknown_policy(name: str, names: Sequence[str]) -> str:
    """Return the error message for an unknown policy name.

    >>> unknown_policy("lru2", ["lru", "pinned"])
    "unknown policy 'lru2'; did you mean lru? (policies: lru, pinned)"
    """
    close = get_close_matches(name, names, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"unknown policy {name!r}{hint} (policies: {', '.join(names)})"


class Parameter(NamedTuple):
    """One parameter of a policy.

    Parameters
    ----------
    default
        The value if none is given. ``None`` stands for what ``help`` says, such as the budget.
    type
        ``int``, ``float``, ``bool``, ``str``, ``size``: whole bytes, given as text with a unit, or
        ``share``: from 0 to 1, given as ``1%``.
    help
        What it means, in one line.

    References
    ----------
    docs/authors.md shows a policy with a parameter.

    Examples
    --------
    >>> Parameter(4, "int", "ops between a prefetch and its use").read("8", where="lead")
    8
    """

    default: int | float | bool | str | None
    type: Literal["int", "float", "bool", "str", "size", "share"]
    help: str

    def read(self, text: str, where: str) -> Any:
        """Read a value from text.

        Parameters
        ----------
        text
            What somebody typed.
        where
            What an error names as the place.

        Returns
        -------
        Any
            A value of this parameter's type; a ``size`` in bytes.

        Raises
        ------
        InputError
            If the text is not such a value.
        """
        text = text.strip()
        value: Any = text
        if self.type == "bool":
            value = {"true": True, "false": False}.get(text)
        elif self.type in ("size", "share"):
            try:
                value = parse_size(text) if self.type == "size" else parse_share(text)
            except InputError as error:
                raise InputError(error.message, where=where) from None
        elif self.type in ("int", "float"):
            try:
                value = int(text) if self.type == "int" else float(text)
            except ValueError:
                value = None
        if value is None:
            raise InputError(f"expected {_EXPECTED[self.type]}, got {text!r}", where=where)
        return self.check(value, where)

    def check(self, value: Any, where: str) -> Any:
        """Check that a value is one for this parameter.

        Parameters
        ----------
        value
            The value.
        where
            What an error names as the place.

        Returns
        -------
        Any
            The value.

        Raises
        ------
        InputError
            If it is of another type, negative or not finite.
        """
        if value is None and self.default is None:
            return None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.type == "str":
            right = isinstance(value, str)
        elif self.type == "bool":
            right = isinstance(value, bool)
        elif self.type in ("float", "share"):
            right = (
                number
                and math.isfinite(value)
                and 0 <= value <= (1 if self.type == "share" else math.inf)
            )
        else:
            right = number and isinstance(value, int) and value >= 0
        if not right:
            raise InputError(
                f"expected {_EXPECTED.get(self.type, 'text')}, got {value!r}", where=where
            )
        return value


@dataclass(frozen=True)
class Policy(InCells):
    """A policy: a name, a line, parameters, and a function that makes plans.

    Parameters
    ----------
    name
        What people call it: ``hosim plan --policy NAME``.
    summary
        One line for ``hosim policies``.
    make
        The function ``make(graph, hardware, budget_bytes, **parameters)``, which returns a plan; or
        where it is (``"module:function"``), so that listing the policies does not import it.
    settings
        Its parameters by name.
    runtime
        Whether it decides during the replay.
    foresees
        Whether it looks at ops to come while it decides during the replay.
    needs_routing
        Whether it does the same as another policy unless there is a routing.
    by_name_only
        Whether a comparison of all policies leaves it out, because it takes long or is a setting of
        another one.
    models
        Whose system it models.
    leaves_out
        What of that system it does not model.
    slower
        What of it makes real runs slower than its replays, which every result says.
    other_processors
        Whether it plans for ops that run on other processors than the device by itself. If not, one
        of hosim's own plans around them (:mod:`hosim.planner.schedule.forced_moves`), unless it
        decides during the replay; all others refuse workloads that have some.
    elsewhere
        What the system computes beside the device, which the workload has to say
        (:mod:`hosim.policies.computed_elsewhere`).
    chooses
        Where the function is (``"module:function"``) that chooses the processors of ops that may
        run on several. Without one such ops run on the first that the workload names for them.

    References
    ----------
    docs/authors.md shows how a package announces a policy.

    Examples
    --------
    >>> import hosim
    >>> nothing = Policy(
    ...     "nothing",
    ...     "moves nothing",
    ...     lambda graph, hardware, budget_bytes: hosim.Plan(graph, "nothing"),
    ... )
    >>> b = hosim.GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> nothing.plan(b.build(), hosim.load_hardware(hosim.find_hardware("toy"))).cache_ops
    ()
    """

    name: str
    summary: str
    make: Maker | str = field(repr=False)
    settings: Mapping[str, Parameter] = field(default_factory=dict)
    runtime: bool = False
    foresees: bool = False
    needs_routing: bool = False
    by_name_only: bool = False
    models: str = ""
    leaves_out: str = ""
    slower: str = ""
    other_processors: bool = False
    elsewhere: ComputedElsewhere | None = field(default=None, repr=False)
    chooses: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return (
            "<Policy "
            f"{':'.join([self.name, *(f'{key}={value}' for key, value in self.parameters.items())])}>"
        )

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The default value of each parameter."""
        return MappingProxyType(
            {key: parameter.default for key, parameter in self.settings.items()}
        )

    @property
    def is_own(self) -> bool:
        """Return True if it is hosim's own, so that its failures are bugs of hosim."""
        return isinstance(self.make, str)

    def read(self, key: str, text: str) -> Any:
        """Read the value of a parameter from text.

        Parameters
        ----------
        key
            The parameter's name.
        text
            What somebody typed.

        Returns
        -------
        Any
            A value of the parameter's type.

        Raises
        ------
        InputError
            If there is no such parameter, or the text is not a value for it.
        """
        return self._setting(key).read(text, f"policy {self.name}: {key}")

    def plans_for(self, graph: Graph) -> bool:
        """Return whether it plans for the processors that a workload's ops run on.

        Parameters
        ----------
        graph
            The workload.

        Returns
        -------
        bool
            False if some op runs on another processor than the device and the policy refuses such
            workloads.
        """
        return not graph.elsewhere or self.other_processors or (self.is_own and not self.runtime)

    def plan(
        self, graph: Graph, hardware: Hardware, budget_bytes: int | None = None, **parameters: Any
    ) -> Plan:
        """Make a plan.

        Parameters
        ----------
        graph
            The workload.
        hardware
            The machine. The policy plans with a fair share of what several devices share.
        budget_bytes
            Bytes of the device tier that may be used; ``None``: all of it.
        **parameters
            Values of the policy's parameters.

        Returns
        -------
        Plan
            The plan. Whether it fits is for the replay to say.

        Raises
        ------
        InputError
            If a parameter is unknown or a value is invalid, a policy that is not hosim's own fails,
            or some op runs on a processor that the policy does not plan for, or what its system
            computes beside the device is on it and cannot be moved there.
        InfeasibleError
            If an op needs more than the budget, or the policy's rule leaves no plan that fits.
        """
        for key, value in parameters.items():
            self._setting(key).check(value, f"policy {self.name}: {key}")
        capacity = hardware.device.capacity_bytes
        budget = capacity if budget_bytes is None else min(capacity, budget_bytes)
        _homes_exist(graph, hardware)
        if not self.plans_for(graph):
            refuse_other_processors(graph, f"policy {self.name} plans for ops of the device alone")
        given = {**self.parameters, **parameters}
        if self.elsewhere is not None:
            graph = computed_there(graph, hardware, self.name, self.elsewhere)
        if not self.is_own:
            return self._planned(graph, hardware, budget, given)
        if "work" not in self.settings:
            return self._in_order_of_uses(graph, hardware, budget, given)
        with one_planning() as planning:
            plan = self._in_order_of_uses(graph, hardware, budget, given)
        done = planning.record
        asked = {**given, "work": given["work"] if done.ended == DONE else done.work}
        said = [
            f"{key}={json.dumps(value) if isinstance(value, bool) else value}"
            for key, value in asked.items()
        ]
        changed = [
            text
            for text, (key, value) in zip(said, asked.items(), strict=True)
            if value != self.settings[key].default
        ]
        return _noted(plan, replace(done, again=":".join([self.name, *changed])))

    def _in_order_of_uses(
        self, graph: Graph, hardware: Hardware, budget: int, given: Mapping[str, Any]
    ) -> Plan:
        """Return the plan of one of hosim's own policies; it does not depend on the order in which
        the workload lists its tensors.
        """
        from hosim.planner.schedule import (
            as_asked,
            idle_parts_below,
        )  # here, as listing policies imports nothing that plans

        def made(ordered: Graph) -> Plan:
            eased = idle_parts_below(ordered, hardware, budget)
            return as_asked(self._planned(eased, hardware, budget, given), eased, ordered)

        return planned_in_order_of_uses(made, graph)

    def _planned(
        self, graph: Graph, hardware: Hardware, budget: int, given: Mapping[str, Any]
    ) -> Plan:
        """Return the plan; for movable ops the policy chooses the processors first if it can."""
        if graph.movable and self.chooses:

            def fixed(graph: Graph, initial: Initial, changed: Mapping[str, Any]) -> Plan:
                return self._fixed(graph, hardware, budget, {**given, **changed}, initial)

            plan: Plan = _function(self.chooses)(graph, hardware.fair_share, budget, fixed, given)
            return plan
        return self._fixed(graph, hardware, budget, given)

    def _fixed(
        self,
        graph: Graph,
        hardware: Hardware,
        budget: int,
        parameters: Mapping[str, Any],
        initial: Initial | None = None,
    ) -> Plan:
        """Return the plan for the processors that the ops name. ``initial`` has the start tiers of
        tensors of other processors that do not start at home.
        """
        _ops_fit(graph, hardware, budget)
        make = partial(self._made, parameters=parameters)
        if graph.elsewhere and not self.other_processors:
            from hosim.planner.schedule import (
                planned_around,  # here, as the engine takes long to import
            )

            plan = planned_around(graph, hardware.fair_share, budget, make, initial)
        else:
            plan = make(graph, hardware.fair_share, budget)
        _start_fits(plan, hardware.fair_share, budget)
        return plan

    def _made(
        self, graph: Graph, hardware: Hardware, budget: int, parameters: Mapping[str, Any]
    ) -> Plan:
        if isinstance(self.make, str):
            plan = _function(self.make)(graph, hardware, budget, **parameters)
            return plan if plan.policy == self.name else replace(plan, policy=self.name)
        try:
            plan = self.make(graph, hardware, budget, **parameters)
        except HosimError:
            raise
        except FAILURES as error:
            raise bug(self.name, error) from error
        if not isinstance(plan, Plan):
            raise PolicyError(
                f"policy {self.name} has a bug: expected a hosim.Plan, got {type(plan).__name__}"
            )
        if plan.workload is not graph and plan.workload != graph:
            raise PolicyError(
                f"policy {self.name} has a bug: its plan is for another graph "
                f"({plan.workload.name}) than the one given"
            )
        if plan.policy == MANUAL:
            plan = replace(plan, policy=self.name)
        return (
            plan
            if plan.runtime is None
            else replace(plan, runtime=guarded(self.name, plan.runtime, len(plan.graph.tensors)))
        )

    def _setting(self, key: str) -> Parameter:
        if key not in self.settings:
            known = ", ".join(f"{k}={p.default}" for k, p in self.settings.items()) or "none"
            raise InputError(
                f"no parameter {key!r}{did_you_mean(key, self.settings)} (parameters: {known})",
                where=f"policy {self.name}",
            )
        return self.settings[key]


_ENDED = {
    BY_TIME: "its time was over",
    BY_CTRL_C: "of Ctrl-C",
    BY_CALLBACK: "its progress callback said so",
}


def _noted(plan: Plan, done: SearchRecord) -> Plan:
    """Return the plan with its search record, and with a note if the search was ended by a
    condition that another run does not repeat.
    """
    record = replace(
        plan.search or SearchRecord(), work=done.work, ended=done.ended, again=done.again
    )
    if done.ended not in _ENDED:
        return replace(plan, search=record)
    from hosim.notes import Note  # here, as listing policies imports no costs

    line = (
        f"ended after {done.work:,} of work, because {_ENDED[done.ended]}; {done.again} makes "
        "the plan again"
    )
    return replace(plan, search=record, notes=(*plan.notes, str(Note("search", line))))


def _function(path: str) -> Maker:
    module, _, name = path.partition(":")
    maker: Maker = getattr(importlib.import_module(module), name)
    return maker


def _homes_exist(graph: Graph, hardware: Hardware) -> None:
    """Raise :class:`InfeasibleError` if tensors start in a tier that the machine does not have."""
    tiers = hardware.tier_index
    for tensor in graph.tensors.alike:
        if tensor.home is not None and tensor.home not in tiers:
            raise InfeasibleError(
                f"tensors start in {tensor.home!r}, which {hardware.name} does not have "
                f"(tiers: {', '.join(tiers)})"
            )


def _ops_fit(graph: Graph, hardware: Hardware, budget: int) -> None:
    """Raise :class:`InfeasibleError` if an op's tensors and workspace exceed the budget, so that it
    cannot run under any plan.
    """
    every = graph.derived(needed_bytes)
    if max(every, default=0) <= budget:
        return
    for op, needed in zip(graph.ops, every, strict=True):
        if needed > budget:
            raise InfeasibleError(
                f"out of memory: op {op.name!r} needs {_exact(needed)} of {hardware.device_tier} "
                "for what it uses and its workspace; the budget is "
                f"{_exact(budget)}: give it at least that"
            )


def _start_fits(plan: Plan, hardware: Hardware, budget: int) -> None:
    """Raise :class:`InfeasibleError` if the plan's tensors do not fit where they are at time 0."""
    held: dict[str, int] = {}
    sizes = plan.graph.tensors.column(lambda tensor: tensor.size_bytes)
    for t, where in plan.residency(hardware.device_tier).items():
        for tier in where if 0 <= t < len(sizes) else ():  # the verifier reports bad positions
            held[tier] = held.get(tier, 0) + sizes[t]
    for name, size in held.items():
        capacity = (
            hardware.tiers[hardware.tier_index[name]].capacity_bytes
            if name in hardware.tier_index
            else size
        )
        if name == hardware.device_tier:
            capacity = budget
        if size > capacity:
            text = (
                f"out of memory: {plan.policy} has {_exact(size)} of tensors in {name} at "
                "time 0; "
                f"there are {_exact(capacity)}"
            )
            raise InfeasibleError(
                text + (_below(held, hardware) if name == hardware.device_tier else "")
            )


def _below(held: dict[str, int], hardware: Hardware) -> str:
    """Return the occupancy of the lower tiers at time 0 as text: full ones explain why the rest is
    in the device tier.
    """
    tiers = [
        tier for tier in hardware.tiers if tier.name != hardware.device_tier and held.get(tier.name)
    ]
    lines = [
        f"{tier.name} {human_size(held[tier.name])} of {human_size(tier.capacity_bytes)}"
        for tier in tiers
    ]
    return f"; the lower tiers hold {', '.join(lines)}" if lines else ""


def _exact(size: int) -> str:
    """Return a size as text, followed by the exact bytes if it is rounded."""
    return human_size(size) if size < 1024 else f"{human_size(size)} ({size:,} B)"
