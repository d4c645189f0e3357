"""Collectives against the literal replays: any ops of any plan made collectives, on machines whose
fabrics they cross.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, several
from test_naive_devices import compare as compare_devices
from test_naive_replay import compare

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Fabric, Hardware
from hosim.jitter import Jitter

_KINDS = (
    "any",
    "all_reduce",
    "all_to_all",
    "custom_all_reduce",
    "broadcast",
    "send",
    "recv",
    "wait_tensor",
)


@st.composite
def with_collectives(draw, plan: Plan, machine: Hardware) -> tuple[Plan, Hardware]:
    """The plan with some of its ops made collectives, and the machine with fabrics that they
    cross.
    """
    graph, ops = plan.graph, []
    for op in plan.graph.ops:
        kind = draw(st.sampled_from(_KINDS))
        sized = kind in ("all_reduce", "all_to_all", "custom_all_reduce")
        sizes = (draw(st.integers(1, 3)), draw(st.sampled_from((0, 1, 30, 500)))) if sized else ()
        ops.append(
            replace(
                op, kind=kind.removeprefix("custom_"), kernel=kind if sized else "", sizes=sizes
            )
        )
    made = replace(plan, graph=Graph(graph.name, graph.tensors, tuple(ops), graph.meta))
    fabrics = [replace(fabric, collectives=draw(st.integers(0, 2))) for fabric in machine.fabrics]
    if draw(st.booleans()):
        names = tuple(c.name for c in machine.channels) if draw(st.booleans()) else ()
        fabrics.append(
            Fabric(
                "bus",
                draw(st.sampled_from((1, 3))) * 10**9,
                names,
                "device",
                draw(st.integers(1, 3)),
            )
        )
    return made, replace(machine, fabrics=tuple(fabrics))


@given(cases(max_ops=6, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_on_one_device(case, data):
    _, machine, plan = case
    plan, machine = data.draw(with_collectives(plan, machine))
    compare(plan, machine, None, compete=data.draw(st.booleans()))


@given(cases(max_ops=5, max_streams=2, fabrics=True, roomy=None, uneven=True), st.data())
def test_on_several_devices(case, data):
    _, machine, plan = case
    plan, machine = data.draw(with_collectives(plan, data.draw(several(machine, 3))))
    compare_devices(
        plan,
        machine,
        Jitter(data.draw(st.integers(0, 9)), 0.5) if data.draw(st.booleans()) else None,
    )
