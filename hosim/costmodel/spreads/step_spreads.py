"""How far whole steps are off, beyond their kernels: ``make intervals`` found these, from steps that
people timed (tests/judge_intervals.py).

Of software that nobody names, kernels alone say too little time: its steps take the median times as
long, as the speeds of the runtimes that are known are below 1. No figure of an answer changes by that; its
interval does.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The mean and the standard deviation of the logarithm of measured over predicted time."""

    mean: float
    spread: float


TRAINING = StepSpread(0.39, 0.3)
"""Training steps by software that nobody names, or of whose speed nothing is known."""

INFERENCE = StepSpread(0.1, 0.15)
"""Steps of inference by such software."""

UNMEASURED_MACHINE = 0.2
"""What comes on top for a machine none of whose kernels were measured."""
