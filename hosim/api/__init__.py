"""What ``import hosim`` offers as functions: names, paths or objects in; plans, results and pandas frames out.

:mod:`hosim.api.inputs` reads the arguments, :mod:`hosim.api.one_plan` has what is asked of one plan, :mod:`hosim.api.many_runs` what takes
many, :mod:`hosim.api.searches` what looks for a value, :mod:`hosim.api.plotting` what is drawn, :mod:`hosim.api.serving_run` what serves
requests. :mod:`hosim` maps its public names to these modules and imports each one when it is first used.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.api.cell_progress import AGAIN_S
    from hosim.api.inputs import load, machine
    from hosim.api.many_runs import compare, diff, robustness, sweep
    from hosim.api.one_plan import blame, explain, plan, replay
    from hosim.api.pipeline_stages import plan_stages, replay_stages
    from hosim.api.plotting import plot
    from hosim.api.repeats import repeated
    from hosim.api.searches import fit, frontier
    from hosim.api.serving_frontier import COSTS, RATES, serve_frontier
    from hosim.api.serving_points import FIGURES, check_options
    from hosim.api.serving_run import PREEMPTIONS, SCHEDULING, SENDING, serve, serve_defaults
    from hosim.api.serving_studies import serve_fit, serve_sweep
    from hosim.api.study_cells import cell
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cell_progress": "AGAIN_S",
            "inputs": "load machine",
            "many_runs": "compare diff robustness sweep",
            "one_plan": "blame explain plan replay",
            "pipeline_stages": "plan_stages replay_stages",
            "plotting": "plot",
            "repeats": "repeated",
            "searches": "fit frontier",
            "serving_frontier": "COSTS RATES serve_frontier",
            "serving_points": "FIGURES check_options",
            "serving_run": "PREEMPTIONS SCHEDULING SENDING serve serve_defaults",
            "serving_studies": "serve_fit serve_sweep",
            "study_cells": "cell",
        },
    )

__all__ = [
    "AGAIN_S", "COSTS", "FIGURES", "PREEMPTIONS", "RATES", "SCHEDULING", "SENDING", "blame", "cell", "check_options", "compare", "diff",
    "explain", "fit", "frontier", "load", "machine", "plan", "plan_stages", "plot", "repeated", "replay", "replay_stages", "robustness",
    "serve", "serve_defaults", "serve_fit", "serve_frontier", "serve_sweep", "sweep",
]  # fmt: skip
