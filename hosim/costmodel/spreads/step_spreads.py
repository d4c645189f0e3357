"""How far whole steps are off, beyond their kernels: ``make intervals`` found these, from steps
that people timed, each source left out in turn (tests/judge_intervals.py).

By software that nobody names, steps take longer than their kernels alone say: training 1.4 times as
long in the mean, inference 1.1 times. No makespan changes by that, but its interval does.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The mean and the standard deviation of the logarithm of measured over predicted time."""

    mean: float
    spread: float


TRAINING = StepSpread(0.36, 0.3)
"""Training steps by software that nobody names, or of whose speed nothing is known."""

INFERENCE = StepSpread(0.11, 0.3)
"""Steps of inference by such software."""

UNMEASURED_MACHINE = 0.1
"""What comes on top for a machine none of whose kernels were measured."""
