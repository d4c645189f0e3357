"""The functions that ``import hosim`` offers: names, paths or objects in; plans, results and pandas
frames out.

:mod:`hosim.api.inputs` reads the arguments. :mod:`hosim.api.one_plan` has the functions on one
plan, :mod:`hosim.api.many_runs` those on several plans and those that search for a value, and
:mod:`hosim.api.plotting` the figures. :mod:`hosim` maps its public names to these modules and
imports each one when it is first used.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.api.cell_progress import in_cell, repeated
    from hosim.api.inputs import (
        Machine,
        Vary,
        load,
        machine,
        named,
        question,
        questions,
    )
    from hosim.api.many_runs import (
        compare,
        diff,
        fit,
        frontier,
        robustness,
        sweep,
    )
    from hosim.api.memory_fits import fit_question, fits
    from hosim.api.notebook import cell, what_if
    from hosim.api.one_plan import (
        blame,
        explain,
        plan,
        replay,
    )
    from hosim.api.pipeline_stages import plan_stages, replay_stages
    from hosim.api.plotting import (
        figure_of,
        plot,
        several_values,
    )
    from hosim.api.runtime_fits import runtime_fit
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cell_progress": "in_cell repeated",
            "inputs": "Machine Vary load machine named question questions",
            "many_runs": "compare diff fit frontier robustness sweep",
            "memory_fits": "fit_question fits",
            "notebook": "cell what_if",
            "one_plan": "blame explain plan replay",
            "pipeline_stages": "plan_stages replay_stages",
            "plotting": "figure_of plot several_values",
            "runtime_fits": "runtime_fit",
        },
    )

__all__ = [
    "Machine", "Vary", "blame", "cell", "compare", "diff", "explain", "figure_of", "fit",
    "fit_question", "fits", "frontier", "in_cell", "load", "machine", "named", "plan",
    "plan_stages", "plot", "question", "questions", "repeated", "replay", "replay_stages",
    "robustness", "runtime_fit", "several_values", "sweep", "what_if",
]  # fmt: skip
