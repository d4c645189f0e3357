"""What judging a plan takes in the planner's search: a change of a few choices on a graph of 2,000
ops, in time and in replays.
"""

from measures import cpu_seconds, measure
from planning import training

from hosim.engine import replay
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import Problem, analyse, insert

LAYERS, CHANGES = 400, 400
"""Layers of five ops each, and changes judged."""


def within_a_share(share: float) -> Problem:
    """A step of 2,000 ops, with memory for ``share`` of it, on a machine whose two channels share a
    fabric.
    """
    held = 10_000 * LAYERS
    hardware = Hardware(
        "bench",
        (Tier("hbm", int(held * share), 10**12, "device"), Tier("ddr", 100 * held, 10**11)),
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
        fabrics=(Fabric("half duplex", 15 * 10**8, ("h2d", "d2h")),),
    )
    return analyse(training(LAYERS), hardware)


def judging(share: float) -> tuple[float, float]:
    """CPU seconds of a judgement and of a replay: random changes of a sweep's choices, one in two
    with what the search would accept.
    """
    problem = within_a_share(share)
    budget = problem.hardware.device.capacity_bytes
    choices = select(problem, budget, Weights()).choices
    simulator = PlanSimulator(problem, budget)
    cost = simulator.begin(choices)
    kernel = simulator.kernel
    kernel.begin(0, 0, 1)
    kernel.look()

    def judge_all() -> None:
        for k in range(CHANGES):
            kernel.draw()
            kernel.judge(cost[1] if k % 2 else -1)
            kernel.take_back()

    taken = cpu_seconds(judge_all)
    plan = insert(problem, choices, "bench")
    whole = min(cpu_seconds(lambda: replay(plan, problem.hardware, budget)) for _ in range(3))
    return taken / CHANGES, whole


@measure("judging a change of a plan of 2,000 ops, 1,000 times", most=1, unit="s")
def thousand() -> float:
    return judging(0.6)[0] * 1000


@measure("a judgement on 2,000 ops, in hundredths of a replay", most=5, unit="hundredths")
def in_replays() -> float:
    judged, whole = judging(0.6)
    return 100 * judged / whole
