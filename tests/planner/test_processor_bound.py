"""The lower bound where ops run on other processors, or may: by hand, and beside plans for every
choice of processors.
"""

from dataclasses import replace
from itertools import product

import pytest
from test_choice_of_processors import instance

from hosim.analysis import homes_below
from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import lower_bound_ns, processor_bound_ns
from hosim.edits import on_processors
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named


def machine(room: int) -> Hardware:
    """A byte a nanosecond both ways, and a CPU below."""
    tiers = Tier("hbm", room, 10**12, "device"), Tier("ddr", 10**4, 10**12, compute=Compute({}))
    return Hardware(
        "one",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
    )


def pair(*, home: str | None = None, processor: str = "", **may: int):
    """A makes h of 20 bytes in 10 ns on the device, and e reads it and a weight of 100 in 5 ns
    there or in 30 on the CPU.
    """
    b = GraphBuilder("pair")
    b.tensor("w", 100, "parameter", home)
    for name in ("h", "y"):
        b.tensor(name, 20)
    b.op("a", "any", outputs=["h"], duration_ns=10)
    b.op(
        "e",
        "any",
        inputs=["h", "w"],
        outputs=["y"],
        duration_ns=30 if processor else 5,
        processor=processor,
        stream=processor or "compute",
        also_on=may or None,
    )
    return b.build()


@pytest.mark.parametrize(
    ("room", "given", "least"),
    [
        (60, {"processor": "ddr"}, 10 + 20 + 30),  # h goes down between the two
        (60, {"ddr": 30}, 10 + 20 + 30),  # what e needs does not fit into the device
        (200, {"ddr": 30}, 10 + 5),  # everything is there
        (
            200,
            {"ddr": 30, "home": "ddr"},
            10 + 20 + 30,
        ),  # on the device the weight would take 100, and then e 5
        (200, {"ddr": 96, "home": "ddr"}, 100 + 5),  # as it does if the CPU takes 10 + 20 + 96
    ],
)
def test_bounds_by_hand(room, given, least) -> None:
    graph, hardware = pair(**given), machine(room)
    found = lower_bound_ns(
        graph, op_durations(graph, hardware), hardware, homes_below(graph, hardware)
    )
    assert found == least


def test_what_goes_down_takes_the_time_of_its_own_channel() -> None:
    """Two tensors of 20 bytes go down at half a byte a nanosecond: 80 ns, where the second could
    be computed on the CPU at 20 + 40 + 5.
    """
    b, hardware = GraphBuilder("down"), machine(200)
    for k in range(2):
        b.op(f"a{k}", "any", outputs=[b.tensor(f"h{k}", 20)], duration_ns=10)
    for k in range(2):
        b.op(f"e{k}", "any", inputs=[f"h{k}"], duration_ns=5, processor="ddr", stream="ddr")
    up, down = hardware.channels
    hardware = replace(hardware, channels=(up, replace(down, bandwidth_bytes_per_s=10**9 // 2)))
    graph = b.build()
    assert lower_bound_ns(graph, op_durations(graph, hardware), hardware, {}) == 80


def test_shares_by_hand() -> None:
    """Four weights of 100 with room for 200: two are there. Of the other two the channel brings as
    much as the CPU takes time.

    Each op takes 10 ns on the device and 150 on the CPU, one after the other on each. With a share
    s of the four on the CPU, 600 s pass there, and 400 (1 - s) - 200 bytes come in: they take as
    long as each other at s = 0.2, 120 ns.
    """
    b = GraphBuilder("four")
    for k in range(4):
        b.tensor(f"w{k}", 100, "parameter")
        b.tensor(f"y{k}", 1)
        b.op(
            f"e{k}",
            "any",
            inputs=[f"w{k}"],
            outputs=[f"y{k}"],
            duration_ns=10,
            also_on={"ddr": 150},
        )
    graph, hardware = b.build(), machine(200)
    assert (
        processor_bound_ns(graph, op_durations(graph, hardware), hardware, {}, 200, repeats=True)
        == 120
    )
    # whole ops: one on the CPU takes 150 there, none 200 on the channel
    assert lower_bound_ns(graph, op_durations(graph, hardware), hardware) >= 150


def beside_all_choices(seed: int, effort: float) -> tuple[int, int] | None:
    """The bound, and the makespan of the best plan found, of all choices; the bound of each choice
    is held to that choice's plan.
    """
    graph, hardware = instance(seed)
    names = [graph.ops[i].name for i in graph.movable]
    try:
        best = replay(
            policy_named("hyperoffload").plan(graph, hardware, effort=effort), hardware
        ).makespan_ns
    except InfeasibleError:
        return None
    for choice in product(("", "ddr"), repeat=len(names)):
        fixed = on_processors(graph, list(zip(names, choice, strict=True)))
        least = lower_bound_ns(fixed, op_durations(fixed, hardware), hardware)
        try:
            result = replay(
                policy_named("hyperoffload").plan(fixed, hardware, effort=effort), hardware
            )
        except InfeasibleError:
            continue
        if result.feasible and result.makespan_ns is not None:
            assert least <= result.makespan_ns
            best = min(best or result.makespan_ns, result.makespan_ns)
    return (
        None
        if best is None
        else (lower_bound_ns(graph, op_durations(graph, hardware), hardware), best)
    )


@pytest.mark.parametrize("seed", [3011, 3054])
def test_no_choice_of_processors_beats_the_bound(seed: int) -> None:
    found = beside_all_choices(seed, 1.0)
    assert found is not None
    assert found[0] <= found[1]
    assert seed != 3011 or found == (384, 384)


@pytest.mark.long
def test_the_bound_beside_all_choices_of_many_graphs() -> None:
    """docs/processors.md states these figures."""
    ratios = []
    for seed in range(3000, 3060):
        if (found := beside_all_choices(seed, 1.0)) is not None:
            assert found[0] <= found[1]
            ratios.append(found[1] / found[0])
    assert len(ratios) == 59
    assert sum(ratios) / len(ratios) < 1.085
    assert max(ratios) < 1.88


@pytest.mark.parametrize("room", [pytest.param(8, marks=pytest.mark.long), 24])
def test_experts_of_a_mixture(room: int) -> None:
    """Eight layers of Mixtral: a plan is near the bound, which counts no fewer experts on the CPU
    than do not fit.
    """
    from hosim.io import load_hardware
    from hosim.io.models import build
    from hosim.shipped import find_hardware

    hardware = load_hardware(find_hardware("rtx-4090"))
    given = {
        "model": "mixtral-8x7b",
        "phase": "decode",
        "merged": True,
        "layers": 8,
        "context": 128,
        "experts_on": "device/ddr",
    }
    graph, budget = build("decode", given), room * 2**30
    plan = policy_named("hyperoffload").plan(graph, hardware, budget, effort=0.0)
    took = replay(plan, hardware, budget).makespan_ns
    least = lower_bound_ns(graph, op_durations(graph, hardware), hardware, {}, budget)
    assert least <= took <= 1.3 * least
