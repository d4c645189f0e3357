"""Runs of policies: questions, tasks, and the processes that compute them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.study.runs.on_dask import cluster
    from hosim.study.runs.run_policy import (
        BY_BYTES,
        Counting,
        check,
        failed,
        make_plan,
        replay,
        unplanned,
    )
    from hosim.study.runs.runners import Runner, cores, here, pool, processes
    from hosim.study.runs.scenario import (
        BUDGET,
        HARDWARE,
        POLICY,
        Question,
        bounded_attempt,
        check_fields,
        check_values,
        failure,
        rate_of,
        recipe,
    )
    from hosim.study.runs.tasks import AnyTask, Packed, Task, digest, pack, point_key, solve
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "on_dask": "cluster",
            "run_policy": "BY_BYTES Counting check failed make_plan replay unplanned",
            "runners": "Runner cores here pool processes",
            "scenario": "BUDGET HARDWARE POLICY Question bounded_attempt check_fields "
            "check_values failure rate_of recipe",
            "tasks": "AnyTask Packed Task digest pack point_key solve",
        },
    )

__all__ = [
    "BUDGET", "BY_BYTES", "HARDWARE", "POLICY", "AnyTask", "Counting", "Packed", "Question",
    "Runner", "Task", "bounded_attempt", "check", "check_fields", "check_values", "cluster",
    "cores", "digest", "failed", "failure", "here", "make_plan", "pack", "point_key", "pool",
    "processes", "rate_of", "recipe", "replay", "solve", "unplanned",
]  # fmt: skip
