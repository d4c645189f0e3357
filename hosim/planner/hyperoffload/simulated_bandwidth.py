"""How bandwidth is divided in a simulated step: the rates of all that flows, and what copies leave to the ops that need memory too."""

from __future__ import annotations

from fractions import Fraction

from hosim.planner.hyperoffload.simulator_state import (
    CHANNEL,
    CLASS,
    END,
    FLOWING,
    LEFT,
    MOVE,
    NEVER,
    PHASE,
    RATE,
    SINCE,
    Flow,
    RunState,
    Work,
    advance,
)
from hosim.planner.hyperoffload.step_model import StepModel
from hosim.planner.hyperoffload.transfer_rates import Rate, flow_ns, volume


def let_flow(step: StepModel, flow: Flow, now: int) -> None:
    """A transfer's latency is over."""
    _, alone, length, rate = step.flow_kind(flow[CHANNEL], flow[MOVE].t)
    flow[PHASE] = FLOWING
    if alone:
        flow[END], flow[RATE] = now + length, rate
    else:
        flow[END], flow[LEFT], flow[RATE], flow[SINCE] = NEVER, volume(step.sizes[flow[MOVE].t]), 0, now


def share(step: StepModel, state: RunState, now: int) -> None:
    """Set the rates of all that flows, and the ends of the ops that copies slow down."""
    flowing = [flow for flow in state.flows if flow[PHASE]]
    rates, taken = step.rates.of([flow[CLASS] for flow in flowing])
    for flow, rate in zip(flowing, rates, strict=True):
        if rate != flow[RATE]:
            flow[LEFT] -= flow[RATE] * (now - flow[SINCE])
            flow[RATE], flow[SINCE] = rate, now
            flow[END] = now + flow_ns(flow[LEFT], rate)
    if taken == state.taken or not step.uses:
        return
    state.taken = taken
    for s, entry in enumerate(state.work):
        if entry is not None:
            slow, fast = slowdown(step, state.running[s], taken)
            if slow != entry[3] or fast != entry[4]:
                advance(entry, now)
                entry[3], entry[4] = slow, fast
                state.op_end[s] = max(now, op_end(entry))


def slowdown(step: StepModel, i: int, taken: Rate) -> tuple[int, int]:
    """The factor by which copies slow down an op, as a fraction; (0, 0) where it stands still."""
    known = step.slowdowns[taken]
    if i not in known:
        found = step.uses[i].slowdown(Fraction(taken))
        known[i] = (0, 0) if found is None else (found.numerator, found.denominator)
    return known[i]


def op_end(work: Work) -> int:
    """The first whole nanosecond at which all of an op is done, at its present speed."""
    since, left, parts, slow, fast = work
    return since - (-left * slow // (parts * fast)) if slow else NEVER
