"""What an exact model allows: the least and the greatest value of each of its variables, as lines
of text, and every schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortools.sat.python import cp_model

from hosim.cache_plan import AT_START
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.exact import Model, Schedule, schedule_of, space_of


def model_of(
    graph: Graph, hardware: Hardware, budget: int, horizon: int, kind: type[Model] = Model
) -> Model:
    """The model of a graph whose ops all have durations, without redundant constraints."""
    return kind(
        space_of(graph, hardware, [op.duration_ns or 0 for op in graph.ops], budget), horizon
    )


def allows(model: Model, *pins: Any) -> bool:
    """Whether there is a schedule in which all the ``pins`` hold."""
    cp = model.cp.clone()
    cp.clear_objective()
    for pin in pins:
        cp.add(pin)
    return _solved(cp) is not None


def span(model: Model, variable: Any, *pins: Any) -> tuple[int, int] | None:
    """Least and greatest value of a variable where all the ``pins`` hold; None where they
    cannot.
    """
    ends = []
    for sign in (1, -1):
        cp = model.cp.clone()
        for pin in pins:
            cp.add(pin)
        cp.minimize(sign * variable)
        solver = _solved(cp)
        if solver is None:
            return None
        ends.append(solver.value(variable))
    return ends[0], ends[1]


def ranges(model: Model, *pins: Any) -> list[str]:
    """The makespan, the start of each op, each tier in which a tensor may start (``a@ddr``), then
    each absence and each store that is possible; a literal is yes, no or either.
    """
    graph = model.space.graph
    variables = [
        ("makespan", model.makespan),
        *zip([op.name for op in graph.ops], model.start, strict=True),
    ]
    lines = [f"{name} {_times(span(model, variable, *pins))}" for name, variable in variables]
    for t, literal in model.init_device.items():
        lines.append(f"{graph.tensors[t].name}@hbm: {_choice(model, literal, pins)}")
    for (t, tier), literal in model.init_lower.items():
        lines.append(f"{graph.tensors[t].name}@{tier}: {_choice(model, literal, pins)}")
    lines += _absences(model, pins)
    for (t, version, tier), (start, present) in model.stores.items():
        times = span(model, start, present == 1, *pins)
        lines.append(
            f"{graph.tensors[t].name} version {version} to {tier}: "
            f"stored={_choice(model, present, pins)} start={_times(times)}"
        )
    return lines


def _absences(model: Model, pins: tuple[Any, ...]) -> Iterator[str]:
    graph = model.space.graph
    for (t, after), var in model.aways.items():
        released = span(model, var.release, var.away == 1, *pins)
        yield " ".join(
            [
                f"{graph.tensors[t].name} after",
                f"{graph.ops[after].name if after != AT_START else 'start'}:",
                f"away={_choice(model, var.away, pins)}",
                f"release={_times(released) if var.stored else 'once'}",
                f"back={_times(span(model, var.back, var.away == 1, *pins))}",
                f"staying={_times(span(model, var.back, var.away == 0, *pins))}",
                f"kept={_choices(model, var.keep, pins)}",
                f"fetched={_choices(model, var.fetch, pins)}",
            ]
        )


def _choices(model: Model, literals: dict[str, Any], pins: tuple[Any, ...]) -> str:
    chosen = [f"{tier}:{_choice(model, literal, pins)}" for tier, literal in literals.items()]
    return ",".join(chosen) or "nowhere"


def _choice(model: Model, literal: Any, pins: tuple[Any, ...]) -> str:
    found = (int(literal),) * 2 if isinstance(literal, bool) else span(model, literal, *pins)
    return "-" if found is None else {(0, 0): "no", (1, 1): "yes", (0, 1): "either"}[found]


def _times(found: tuple[int, int] | None) -> str:
    return "never" if found is None else f"{found[0]}..{found[1]}"


def _solved(cp: Any) -> Any:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return solver if solver.solve(cp) == cp_model.OPTIMAL else None


def schedules(model: Model) -> dict[str, Schedule]:
    """Every schedule that the model allows, by what it looks like."""
    found = {}

    class Read(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            schedule = schedule_of(model, self)
            found[repr(schedule)] = schedule

    cp = model.cp.clone()
    cp.clear_objective()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    solver.solve(cp, Read())
    return found
