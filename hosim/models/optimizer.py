"""The optimizer step: AdamW as one kernel per parameter."""

from __future__ import annotations

from math import prod

from hosim.models.config import Run
from hosim.models.tape import Learned, Tape


def adamw(t: Tape, run: Run, learned: Learned, *, master: bool) -> None:
    """For each parameter, or shard of one, that has a gradient: its two moments and, with ``master``, the fp32 parameter that it rounds.

    The states are fp32 and live in ``run.states_home``. The kernel reads the gradient, and reads and writes the states.
    """
    with t.scope("optimizer"):
        for parameter, gradient in learned:
            names = ("master", "exp_avg", "exp_avg_sq") if master else ("exp_avg", "exp_avg_sq")
            shape = (prod(parameter.shape),)
            states = [t.held(f"{parameter.tensor}.{name}", shape, "fp32", "optimizer_state", run.states_home) for name in names]
            written = sum([2 * state.size for state in states]) + parameter.size * (1 if master else 2)
            t.ops(parameter.tensor, "optimizer", [gradient], [], mutates=[parameter, *states], accessed=gradient.size + written)
