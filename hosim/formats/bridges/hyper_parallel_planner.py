"""hosim as the planner of hyper-parallel's activation offload.

With ``OffloadConfig(planner=HosimPlanner())``, an ``OffloadSession`` plans its replay with hosim.
Source: github mindspore-ai/hyper-parallel (Apache-2.0), package
``hyper_parallel.auto_parallel.hyper_offload``: the protocol ``ResidencyPlanner`` (``build(trace)``
returns a ``ResidencySchedule``), and ``ReplayExecutor`` and ``ResidencyManager``, which execute it:

- before an op (``pre``) only ``COPY_H2D`` is allowed, after it (``post``) the other three actions;
- a copy takes its device memory where it is issued, in program order, and ``RELEASE_DEVICE``
  releases it where it is listed;
- ``COPY_D2H`` does nothing if there is a host copy, so a stale copy must be released before the
  next one;
- one stream makes the copies of both directions;
- a storage that is never released keeps its memory until the step ends.

:mod:`hosim.formats.bridges.residency_schedule` makes the schedule.
"""

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

from hosim.base.files import write
from hosim.errors import InfeasibleError, InputError
from hosim.formats import read_document
from hosim.formats.bridges.residency_schedule import (
    AHEAD,
    DEVICE,
    HOST_BYTES,
    Action,
    Planned,
    hardware_of,
    plan_of,
    plan_trace,
)
from hosim.policies import policy_named
from hosim.units import human_size, human_time

# -- later steps -----------------------------------------------------------------------------------


class LaterStep:
    """Replaces ``pre_actions`` of a schedule until its session's first op; ``switch`` lets the
    session record its next step.
    """

    def __init__(
        self, schedule: Any, active: Callable[[], Any], switch: Callable[[Any], None]
    ) -> None:
        self._schedule = schedule
        self._actions = schedule.pre_actions
        self._active = active
        self._switch = switch
        schedule.pre_actions = self

    def __call__(self, op: int) -> Any:
        """Return the actions before an op."""
        session = self._active()
        if session is not None:
            self._schedule.pre_actions = self._actions
            self._at_the_next_step(session)
        return self._actions(op)

    def _at_the_next_step(self, session: Any) -> None:
        def reset() -> None:
            self._switch(session)
            session.executor.reset()

        session.executor.reset = reset


# -- the planner -----------------------------------------------------------------------------------


__all__ = [
    "Action",
    "HosimPlanner",
    "Planned",
    "document_of",
    "hardware_of",
    "plan_of",
    "plan_trace",
]

_LIBRARY = "hyper_parallel.auto_parallel.hyper_offload"
_TYPES = f"{_LIBRARY}.ir.schedule"
_OWN = f"{_LIBRARY}.planning.greedy"
_WARM_UP = f"{_LIBRARY}.execution.warmup"
_SESSION = f"{_LIBRARY}.api.session"


class HosimPlanner:
    """A planner for hyper-parallel: what ``OffloadConfig(planner=...)`` takes.

    Parameters
    ----------
    policy
        A policy of hosim that plans ahead.
    host_bytes
        The most bytes of host memory that copies may take.
    save
        A file (``.json`` or ``.json.gz``) to which each trace is written, as a workload for every
        command.
    schedule
        The class ``ResidencySchedule``, if not that of the installed hyper-parallel.
    actions
        The class ``ResidencyActionType``, if not that of the installed hyper-parallel.
    fallback
        The planner whose schedule is taken, with a warning, where no plan fits; by default
        hyper-parallel's own, if it is installed.
    again
        Whether the session's third step is recorded and planned from, as :meth:`plan_again` does
        it: the first step's durations have paging and lazy initialisation in them.
    **parameters
        Values of the policy's parameters.

    Attributes
    ----------
    planned
        After :meth:`build`: the actions, the plan that they amount to, and its replay with the
        predicted peak and stalls.

    Raises
    ------
    InputError
        If there is no such policy, or it decides during the run.

    References
    ----------
    docs/bridges.md shows it in a session.

    Examples
    --------
    >>> HosimPlanner("longest_gap").policy
    'longest_gap'
    """

    def __init__(
        self,
        policy: str = "hyperoffload",
        *,
        host_bytes: int = HOST_BYTES,
        save: str | os.PathLike[str] | None = None,
        schedule: Callable[[], Any] | None = None,
        actions: Any = None,
        fallback: Any = None,
        again: bool = True,
        **parameters: Any,
    ) -> None:
        if policy_named(policy).runtime:
            raise InputError(f"{policy} decides during the run; {AHEAD}", source="policy")
        self.policy = policy
        self.parameters = parameters
        self.host_bytes = host_bytes
        self.save = save
        self.planned: Planned | None = None
        self._schedule = schedule
        self._actions = actions
        self._fallback = fallback
        self._again = again
        self._is_later = False
        self._limit_bytes: int | None = None

    def build(self, trace: Any) -> Any:
        """Plan a trace.

        Parameters
        ----------
        trace
            hyper-parallel's ``ActivationTrace`` of the warm-up step.

        Returns
        -------
        Any
            A ``ResidencySchedule``: for each op, the actions before and after it.

        Raises
        ------
        InfeasibleError
            If nothing fits within the trace's limit, and there is no planner to fall back on.
        InputError
            If the trace contradicts itself, or hyper-parallel's classes can neither be imported nor
            were given.
        """
        document = document_of(trace)
        if self.save is not None:
            write(self.save, document)
        make, kinds = self._types()
        self._limit_bytes = trace.memory_limit_bytes
        if not document["ops"]:
            return make()
        self.planned, is_later, self._is_later = None, self._is_later, False
        try:
            planned = plan_trace(
                read_document(document), self.policy, self.host_bytes, **self.parameters
            )
        except InfeasibleError as error:
            fallback = self._fallback_planner()
            if fallback is None:
                raise
            warnings.warn(
                f"hosim found no plan, so {type(fallback).__name__} plans this session: {error}",
                stacklevel=2,
            )
            return fallback.build(trace)
        schedule = make()
        for action in planned.actions:
            add = schedule.add_pre if action.before else schedule.add_post
            add(action.op, kinds[action.kind], action.storage)
        self.planned = planned
        session = (
            _class(_SESSION, "OffloadSession")
            if self._again and not is_later and planned.result is not None
            else None
        )
        if session is not None and _class(_WARM_UP, "WarmupExecutor") is not None:
            LaterStep(schedule, session.get_active, self.plan_again)
        if planned.result is not None and planned.result.makespan_ns is not None:
            peak, stall = planned.result.peak_bytes[DEVICE], planned.result.stall_ns["transfer"]
            logging.getLogger("hosim").info(
                "%s: predicted peak %s, step %s, of which %s wait for transfers",
                planned.plan.policy,
                human_size(peak),
                human_time(planned.result.makespan_ns),
                human_time(stall),
            )
        return schedule

    def plan_again(self, session: Any, warm_up: Callable[..., Any] | None = None) -> None:
        """Let a session record its next step and plan from it, instead of the first step.

        The first step's durations have paging and lazy initialisation in them. Call it between two
        steps.

        Parameters
        ----------
        session
            The ``OffloadSession``; it has run its first step with this planner.
        warm_up
            The class ``WarmupExecutor``, if not that of the installed hyper-parallel.

        Raises
        ------
        InputError
            If the session has not planned with this planner, or hyper-parallel's class can neither
            be imported nor was given.
        """
        if session.mode != "replay" or session.planner is not self or self._limit_bytes is None:
            raise InputError(
                "plan again after the first step of a session with this planner and a limit",
                source="HosimPlanner",
            )
        make = warm_up or _class(_WARM_UP, "WarmupExecutor")
        if make is None:
            raise InputError(
                "hyper-parallel cannot be imported; install it, or give its WarmupExecutor as "
                "warm_up=",
                source="HosimPlanner",
            )
        session.executor = make(
            residency_manager=session.residency_manager, memory_limit_bytes=self._limit_bytes
        )
        session.mode = "warmup"
        self._is_later = True

    def _fallback_planner(self) -> Any:
        if self._fallback is not None:
            return self._fallback
        own = _class(_OWN, "GreedyResidencyPlanner")
        return None if own is None else own()

    def _types(self) -> tuple[Callable[[], Any], Any]:
        if self._schedule is not None and self._actions is not None:
            return self._schedule, self._actions
        from importlib import import_module

        try:
            module = import_module(_TYPES)
        except ImportError as error:
            message = (
                f"hyper-parallel cannot be imported ({error}); install it, or give its "
                "classes as schedule= and actions="
            )
            raise InputError(message, source="HosimPlanner") from None
        return (
            self._schedule or module.ResidencySchedule,
            self._actions or module.ResidencyActionType,
        )


def _class(module: str, name: str) -> Any:
    """Return a class of hyper-parallel; ``None`` if that is not installed."""
    from importlib import import_module

    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


def document_of(trace: Any) -> dict[str, Any]:
    """Return an ``ActivationTrace`` of hyper-parallel as plain data, in the form that
    :mod:`hosim.formats.activation_trace` reads.
    """
    return {
        "ops": [
            {
                "name": op.name,
                "duration_ms": op.duration_ms,
                "accesses": [
                    {"op_id": a.op_id, "storage_id": a.storage_id, "kind": a.kind.name}
                    for a in op.accesses
                ],
            }
            for op in trace.ops
        ],
        "storage_sizes": {str(sid): size for sid, size in sorted(trace.storage_sizes.items())},
        "retained_sids": sorted(trace.retained_sids),
        "memory_limit_bytes": trace.memory_limit_bytes,
        "d2h_bandwidth_gbps": trace.d2h_bandwidth_gbps,
        "h2d_bandwidth_gbps": trace.h2d_bandwidth_gbps,
    }
