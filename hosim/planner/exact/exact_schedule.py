"""Schedules of the exact model: when everything happens, and what the solver knows about it."""

from __future__ import annotations

from dataclasses import dataclass

from hosim.planner.exact.decision_space import OptionalAbsence


@dataclass(frozen=True, slots=True)
class TakenAbsence:
    """An absence that the schedule takes: the contents are in ``tier`` (None: nobody needs them).

    ``release_ns`` is when the device tier's bytes are released, ``back_ns`` when the transfer back
    reserves them again (None: never).
    """

    absence: OptionalAbsence
    tier: str | None
    release_ns: int
    back_ns: int | None


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store of a version of a tensor to ``tier``."""

    tensor: int
    version: int
    tier: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Schedule:
    """A solution of the model. ``op_start_ns`` by op; ``initial`` has the tiers at time 0 of
    tensors whose start the plan chooses.
    """

    makespan_ns: int
    op_start_ns: tuple[int, ...]
    aways: tuple[TakenAbsence, ...]
    stores: tuple[StoreAt, ...]
    initial: dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SolverResult:
    """The solver's answer: the best schedule it has (None: none found), a lower bound, and whether
    there can be no schedule at all.

    ``solver_s`` is wall time, ``spent`` deterministic time.
    """

    schedule: Schedule | None
    bound_ns: int
    infeasible: bool
    solver_s: float
    spent: float
