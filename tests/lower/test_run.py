"""The executor: every legal plan, in every order that the graph allows, computes the same bits."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import MACHINE, captured, legal_plans, same, values_of  # noqa: E402

from hosim.lower.insert import insert  # noqa: E402
from hosim.lower.on_cpu import CpuDevice  # noqa: E402
from hosim.lower.run import Executor  # noqa: E402

SMALL = ["gpt2", "bert", "mixtral"]


def named(program):
    """The values of placeholders by name: parameters, and inputs."""
    names = [n.name for n in program.module.graph.nodes if n.op == "placeholder"]
    return dict(zip(names, values_of_program(program), strict=True))


def values_of_program(program):
    return values_of(program.graph.name)


def shuffled(order, seed):
    """A random order of the steps in which each is behind those that it needs."""
    draw = random.Random(seed)
    left = {node: len(order.before[node]) for node in order.steps}
    behind = {node: [] for node in order.steps}
    for node, before in order.before.items():
        for earlier in before:
            behind[earlier].append(node)
    free = [node for node, count in left.items() if not count]
    names = []
    while free:
        node = free.pop(draw.randrange(len(free)))
        names.append(node.name)
        for later in behind[node]:
            left[later] -= 1
            if not left[later]:
                free.append(later)
    return names


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@settings(max_examples=12, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_every_legal_plan_in_every_order_gives_the_same_bits(tmp_path_factory, data):
    name = data.draw(st.sampled_from(SMALL))
    program, plan = captured(name), data.draw(legal_plans(name))
    lowered = insert(program, plan)
    values = named(program)
    with torch.no_grad():
        wanted = program.module(*values.values())
        kept = [v.clone() for v in values.values()]
    files = tmp_path_factory.mktemp("nvme")
    device = CpuDevice(
        MACHINE, synchronous=data.draw(st.booleans()), directories={"nvme": files}, ahead=data.draw(st.sampled_from([0, 7, 1024]))
    )
    parameters = {n: v for n, v in values.items() if isinstance(v, torch.nn.Parameter)}
    with Executor(lowered, MACHINE, device) as executor:
        executor.place(parameters)
        inputs = {n: v for n, v in values.items() if n not in parameters}
        assert same(executor.run(inputs), wanted)
        order = shuffled(executor._order, data.draw(st.integers(0, 1000)))
        assert same(executor.run(inputs, order=order), wanted)
        assert same(executor.run(inputs), wanted)
    assert same(list(values.values()), kept)
    assert not list(files.iterdir())
