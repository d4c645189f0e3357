"""The exact models of drawn instances, a row each, without solving them: what may be decided, and
every constraint of the program.

A redundant constraint that is gone changes no optimum, one too many is only seen where it excludes
what was best; these rows say when the program is another one. Beside it: the schedules that the
search begins at, what they conflict with when they are delayed, and the plans that they become.
After a change that is meant to alter models::

    python tests/kept/write.py kept_models

writes the table anew. The text of a program is that of OR-tools 9.15 and later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from instances import Instance, instance
from kept_table import KeptTable, Row, checksum

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.hardware import Hardware
from hosim.planner.exact import (
    Model,
    Schedule,
    Space,
    add_lower_capacities,
    add_redundant_constraints,
    conflicts,
    forbid,
    hint,
    observed,
    placed,
    plan_of,
    serial,
    space_of,
)
from hosim.policies import policy_named

COLUMNS = ("instance", "machine", "what", "first", "second", "checksum")
SEED = 29
INSTANCES = range(10)
BEGINNINGS = ("distance", "layerwise", "g10")


def machines(drawn: Instance) -> Iterator[tuple[str, Hardware]]:
    """The drawn one; one whose tiers below are tight; one that is only left, or only entered, by
    some channels.
    """
    hardware = drawn.hardware
    yield "drawn", hardware
    everything = sum(tensor.size_bytes for tensor in drawn.graph.tensors)
    home = sum(tensor.size_bytes for tensor in drawn.graph.tensors if tensor.home == "ddr")
    tight = tuple(
        replace(tier, capacity_bytes=home + everything // 3) if tier.name == "ddr" else tier
        for tier in hardware.tiers
    )
    yield "tight", replace(hardware, tiers=tight)
    if len(hardware.tiers) > 2:
        yield (
            "one way",
            replace(hardware, channels=tuple(c for c in hardware.channels if c.name != "d2h1")),
        )


def rows(number: int) -> Iterator[Row]:
    """The rows of one instance."""
    drawn = instance(number, SEED)
    for name, hardware in machines(drawn):
        durations = [op.duration_ns or 0 for op in drawn.graph.ops]
        space = space_of(drawn.graph, hardware, durations, drawn.budget_bytes)
        asked = (drawn.name, name)
        absences = sum(len(movable.absences) for movable in space.movables)
        told = (
            space.lower,
            space.movables,
            space.fixed,
            space.idle,
            space.most_bytes,
            space.lower_tight,
            space.horizon_ns,
        )
        yield (*asked, "space", str(len(space.movables)), str(absences), checksum(told))
        model, program = Model(space, space.horizon_ns), _Program()
        yield (*asked, "model", *program.added(model))
        add_redundant_constraints(model)
        yield (*asked, "redundant constraints", *program.added(model))
        add_lower_capacities(model)
        yield (*asked, "lower capacities", *program.added(model))
        for begins, schedule in _schedules(drawn, hardware, space):
            yield (
                *asked,
                begins,
                str(schedule.makespan_ns),
                str(len(schedule.aways)),
                checksum(schedule),
            )
            order = placed(space, schedule)
            yield (
                *asked,
                f"plan of {begins}",
                str(len(order)),
                "",
                checksum((order, plan_of(space, schedule, order, "kept"))),
            )
            hint(model, schedule)
            hinted = model.cp.proto.solution_hint
            yield (
                *asked,
                f"hint of {begins}",
                str(len(hinted.vars)),
                "",
                checksum(list(zip(hinted.vars, hinted.values, strict=True))),
            )
            for wait, delayed in _delayed(schedule):
                broken = conflicts(space, delayed)
                for conflict in broken[:3]:
                    forbid(model, conflict)
                _, constraints, text = program.added(model)
                yield (
                    *asked,
                    f"conflicts of {begins} with {wait}",
                    str(len(broken)),
                    constraints,
                    checksum((broken, text)),
                )
        small = Model(replace(space, capacity_bytes=space.capacity_bytes // 2), sum(durations) + 9)
        yield (*asked, "shorter horizon", *_Program().added(small))


def _schedules(drawn: Instance, hardware: Hardware, space: Space) -> Iterator[tuple[str, Schedule]]:
    first = serial(space)
    if first is not None:
        yield "serial", first
    for name in BEGINNINGS:
        try:
            plan: Plan = policy_named(name).plan(drawn.graph, hardware, drawn.budget_bytes)
        except InfeasibleError:
            continue
        result = replay(plan, hardware, drawn.budget_bytes, record=True)
        if result.feasible:
            yield name, observed(space, plan, result)


def _delayed(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Ops later by a little more each, or transfers back by a few nanoseconds: no engine would wait
    so.
    """
    later = tuple(start + 3 * i for i, start in enumerate(schedule.op_start_ns))
    yield (
        "ops later",
        replace(schedule, op_start_ns=later, makespan_ns=schedule.makespan_ns + 3 * len(later)),
    )
    for wait in (1, 4, 9):
        aways = tuple(
            away if away.back_ns is None else replace(away, back_ns=away.back_ns + wait)
            for away in schedule.aways
        )
        yield f"returns {wait} ns later", replace(schedule, aways=aways)


class _Program:
    """The text of what a program has more than when it was last looked at."""

    def __init__(self) -> None:
        self._variables = self._constraints = 0

    def added(self, model: Model) -> tuple[str, str, str]:
        """How many variables and constraints, and a checksum of them without names."""
        proto = model.cp.proto
        variables, constraints = (
            list(proto.variables)[self._variables :],
            list(proto.constraints)[self._constraints :],
        )
        self._variables += len(variables)
        self._constraints += len(constraints)
        text = (
            [list(variable.domain) for variable in variables],
            [_NAME.sub("", str(constraint)) for constraint in constraints],
        )
        return str(len(variables)), str(len(constraints)), checksum(text)


_NAME = re.compile(r'name: "[^"]*"')


TABLE = KeptTable("kept_models", COLUMNS, lambda: chain.from_iterable(map(rows, INSTANCES)))
