"""What planning takes, and how it grows: ten times the ops."""

import resource

from measures import cpu_seconds, least, measure
from test_every_policy import RIVALS
from test_every_policy import training as layers_of_ten

from hosim.engine import read_budget, replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import load_hardware, make
from hosim.policies import policy_named
from hosim.shipped import find_hardware


def training(layers: int, larger: int = 1) -> Graph:
    """A step of 5 ops a layer: two forward, two backward, one update; activations and parameters
    have gaps, 76 in 100 ops.

    Activations are so many times ``larger``.
    """
    b = GraphBuilder(f"training of {layers} layers")
    last = b.tensor("x", 1000, "input")
    for k in range(layers):
        b.tensor(f"w{k}", 2000 + k % 7, "parameter")
        b.tensor(f"m{k}", 4000, "optimizer_state")
        b.tensor(f"h{k}", 3000 * larger + k % 5)
        b.tensor(f"a{k}", 1000 * larger)
        b.op(
            f"up{k}", "matmul", inputs=[last, f"w{k}"], outputs=[f"h{k}"], duration_ns=4000 + k % 11
        )
        b.op(f"act{k}", "gelu", inputs=[f"h{k}"], outputs=[f"a{k}"], duration_ns=500)
        last = f"a{k}"
    for k in reversed(range(layers)):
        b.tensor(f"gh{k}", 3000 * larger)
        b.tensor(f"ga{k}", 1000 * larger)
        b.tensor(f"gw{k}", 2000 + k % 7, "gradient")
        b.op(f"act_grad{k}", "gelu", inputs=[last, f"h{k}"], outputs=[f"gh{k}"], duration_ns=700)
        before = f"a{k - 1}" if k else "x"
        b.op(
            f"up_grad{k}",
            "matmul",
            inputs=[f"gh{k}", f"w{k}", before],
            outputs=[f"ga{k}", f"gw{k}"],
            duration_ns=8000 + k % 13,
        )
        last = f"ga{k}"
        b.op(f"update{k}", "adam", inputs=[f"gw{k}"], mutates=[f"w{k}", f"m{k}"], duration_ns=600)
    return b.build()


def plan_training(layers: int, bytes_per_s: int = 10**9, larger: int = 1) -> float:
    """CPU seconds to plan a step within 60 % of what it takes; at a third of the bandwidth it waits
    for transfers, whoever plans.
    """
    graph = training(layers, larger)
    held = (6_000 + 4_000 * larger) * layers
    hardware = Hardware(
        "bench",
        (Tier("hbm", held * 60 // 100, 10**12, "device"), Tier("ddr", 100 * held, 10**11)),
        (Channel("h2d", "ddr", "hbm", bytes_per_s), Channel("d2h", "hbm", "ddr", bytes_per_s)),
        Compute({}),
    )
    plans = []
    taken = cpu_seconds(
        lambda: plans.append(
            policy_named("hyperoffload").plan(graph, hardware, hardware.device.capacity_bytes)
        )
    )
    assert replay(plans[0], hardware).feasible
    return taken


@measure("hyperoffload for 100,000 ops, in plans for 10,000", most=15)
def tenfold() -> float:
    small = min(plan_training(2_000) for _ in range(2))
    return plan_training(20_000) / small


@measure("hyperoffload for 100,000 ops: the most memory of the process", most=2, unit="GB")
def memory() -> float:
    plan_training(20_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


SLOW = 3 * 10**8
"""Bytes a second at which the channels are what takes the time."""


@measure("hyperoffload for 2,000 ops that wait for transfers", most=1, unit="s")
def two_thousand() -> float:
    return min(plan_training(400, SLOW) for _ in range(2))


@measure(
    "hyperoffload for eight layers of a prefill on an H100 at 75 %, 335 ops that wait for "
    "transfers",
    most=1,
    unit="s",
)
def eight_layers() -> float:
    machine = load_hardware(find_hardware("h100-80gb-sxm"))
    builder = {
        "model": "llama-3.1-8b",
        "phase": "prefill",
        "sequence": 4096,
        "batch": 1,
        "layers": 8,
    }
    graph = make(
        {"format": "hosim.spec/1", "name": "eight layers", "builder": builder}, "eight layers"
    )
    _, budget = read_budget("75%").of(graph, machine)
    replay(policy_named("resident").plan(graph, machine, 10**12), machine)  # imports what it needs
    return cpu_seconds(lambda: policy_named("hyperoffload").plan(graph, machine, budget))


@measure("hyperoffload for 10,000 ops that wait for transfers", most=5, unit="s")
def ten_thousand() -> float:
    return plan_training(2_000, SLOW)


@measure("hyperoffload for 100,000 ops that wait for transfers", most=30, unit="s")
def hundred_thousand() -> float:
    return plan_training(20_000, SLOW)


@measure(
    "hyperoffload for 100,000 ops that wait for transfers, with activations four times as large",
    most=30,
    unit="s",
)
def hundred_thousand_of_large_activations() -> float:
    return plan_training(20_000, SLOW, larger=4)


@measure("hyperoffload for 300,000 ops that wait for transfers", most=120, unit="s")
def three_hundred_thousand() -> float:
    return plan_training(60_000, SLOW)


@measure("the slowest to grow of the other policies: 6,000 ops, in plans for 600", most=40)
def rivals() -> float:
    return max(growth(policy) for policy in RIVALS)


def growth(policy: str) -> float:
    def planning(layers: int):
        graph, machine = layers_of_ten(layers)

        def call() -> None:
            plan = policy_named(policy).plan(graph, machine, 70_000 * layers)
            if plan.runtime is not None:
                replay(plan, machine, 70_000 * layers)

        return call

    few, many = least([planning(60), planning(600)], rounds=2)
    return many / max(few, 0.01)
