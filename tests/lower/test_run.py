"""The executor: every legal plan, in every order that the graph allows, computes the same bits."""

import random
import time

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, Phase, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layers import Layers, machine, program_of  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from occupancy import Occupancy  # noqa: E402
from strategies import plans  # noqa: E402

from hosim.analysis.verifying import verify  # noqa: E402
from hosim.cache_plan import CacheOp, Plan  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower import Executor, capture, insert, order_of  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

OFTEN = settings(max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


class Reused(torch.nn.Module):
    """Views, in-place ops on a buffer and on a value that is moved, and results that are
    several.
    """

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        left, right = torch.mm(x, self.weight.t()).split(4, dim=1)
        y = torch.cat((right, left), dim=1)
        z = y.view(-1)
        y = y * 2
        z = z.reshape(4, 8).add_(1)
        values, indices = torch.sort(z, dim=1)
        self.seen.add_(values.sum(0))
        return torch.mm(values, self.weight) + self.seen, indices, y


LAYERS, X = Layers(), torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
REUSED, Y = Reused(), torch.randn(4, 8, generator=torch.Generator().manual_seed(4))
PROGRAMS = {"layers": program_of(LAYERS, X), "reused": program_of(REUSED, Y, "reused")}


def values_of_toy(name):
    model, x = (LAYERS, X) if name == "layers" else (Reused(), Y)
    program = PROGRAMS[name]
    names = [node.name for node in program.module.graph.nodes if node.op == "placeholder"]
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        n: own[given.name].detach().clone() if given.own else x.clone()
        for n, given in zip(names, program.givens, strict=True)
    }


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


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


class Unkind(CpuDevice):
    """Fills what it allocates with nonsense, and is late with it: whoever does not wait computes
    something else.
    """

    def allocate(self, storage, size_bytes):
        empty = storage.nbytes() == 0
        super().allocate(storage, size_bytes)
        if empty:
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)

    def move(self, *arguments):
        time.sleep(0.0005)
        super().move(*arguments)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(program, plan, hardware, values, data, files, runs=3):
    """Run ``plan`` in its own order and in another one, beside the untransformed program on its own
    values.
    """
    twins = {name: value.clone() for name, value in values.items()}
    lowered = insert(program, plan)
    device = Unkind(
        hardware,
        synchronous=data.draw(st.booleans()),
        directories={"nvme": files},
        ahead=data.draw(st.sampled_from([0, 7, 1024])),
    )
    inputs = {n for n, given in zip(values, program.givens, strict=True) if not given.own}
    with Executor(lowered, hardware, device) as executor, torch.no_grad():
        executor.place({n: v for n, v in values.items() if n not in inputs})
        for number in range(runs):
            order = (
                shuffled(order_of(lowered, "hbm"), data.draw(st.integers(0, 1000)))
                if number % 2
                else None
            )
            wanted = program.module(*twins.values())
            assert same(executor.run({n: values[n] for n in inputs}, order=order), wanted)
            assert all(torch.equal(values[n], twins[n]) for n in inputs)
    assert same(list(values.values()), list(twins.values()))
    assert not list(files.iterdir())


@OFTEN
@given(data=st.data())
def test_every_legal_plan_in_every_order_gives_the_same_bits(tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(PROGRAMS)))
    plan = data.draw(plans(PROGRAMS[name].graph, machine()))
    assume(
        not verify(plan, machine())
    )  # of copies below the device tier that an op's write overtakes
    check(
        PROGRAMS[name], plan, machine(), values_of_toy(name), data, tmp_path_factory.mktemp("nvme")
    )


class Pair(torch.nn.Module):
    def __init__(self, writes):
        super().__init__()
        self.writes = writes

    def forward(self, x, y):
        if self.writes:
            x.add_(1)
        return torch.mm(x, y) + y


@pytest.mark.parametrize("writes", [False, True])
def test_one_tensor_for_two_inputs(writes):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        program = capture(torch.export.export(Pair(writes), (x, x.clone())), name="pair")
    graph = program.graph
    moved = tuple(CacheOp("prefetch", t, "ddr", "hbm") for t in (0, 1))
    back = () if not writes else (CacheOp("store", 0, "hbm", "ddr", len(graph.ops) - 1),)
    away = tuple(CacheOp("detach", t, "hbm", None, len(graph.ops) - 1) for t in (0, 1))
    plan = Plan(graph, "moved", (*moved, *back, *away), {0: ("ddr",), 1: ("ddr",)})
    with Executor(insert(program, plan), machine(), CpuDevice(machine())) as executor:
        if writes:
            with pytest.raises(
                InputError, match="'x' and 'y' share a storage, which the program writes"
            ):
                executor.run({"x": x, "y": x})
            twin = x.clone()
            assert torch.equal(executor.run({"x": twin, "y": x})[0], torch.mm(x + 1, x) + x)
            assert torch.equal(twin, x + 1)
        else:
            assert torch.equal(executor.run({"x": x, "y": x})[0], torch.mm(x, x) + x)


def test_values_die_after_their_last_step():
    """With everything resident, no value is kept that no later step needs."""
    program, values = PROGRAMS["layers"], values_of_toy("layers")
    tracker = LiveStorages(list(values.values()))
    with Executor(
        insert(program, Plan(program.graph)), machine(), CpuDevice(machine())
    ) as executor:
        executor.place({n: v for n, v in values.items() if n != "x"})
        with tracker:
            executor.run({"x": values["x"]})
    assert tracker.peak == replay(Plan(program.graph), machine()).peak_bytes["hbm"]


def test_each_run_begins_where_the_plan_does():
    """The plan keeps a copy on the device to the end of a weight that begins below it."""
    program, hardware = PROGRAMS["layers"], machine()
    weights = [t for t, tensor in enumerate(program.graph.tensors) if tensor.kind == "parameter"]
    first = {t: program.graph.users[t][0] for t in weights}
    ops = [CacheOp("prefetch", t, "ddr", "hbm", first[t] - 1) for t in weights]
    plan = Plan(program.graph, "by hand", ops, dict.fromkeys(weights, ("ddr",)))
    assert not verify(plan, hardware)
    predicted = replay(plan, hardware, account="program").allocator.peak_allocated_bytes
    values = values_of_toy("layers")
    own = {one.placeholder for one in program.givens if one.own}
    with Executor(
        insert(program, plan), hardware, CpuDevice(hardware, synchronous=True)
    ) as executor:
        executor.place({name: value for name, value in values.items() if name in own})
        for _ in range(3):
            assert not any(values[name].untyped_storage().nbytes() for name in own)
            with Occupancy(values) as occupancy:
                executor.run({name: value for name, value in values.items() if name not in own})
            assert occupancy.peak == predicted


class Examples(torch.nn.Module):
    """Large tensors of which only the size or the dtype is asked."""

    def forward(self, x):
        sizes = torch.cat([x, x, x, x])
        small = torch.relu(x[:1]).expand_as(sizes).reshape_as(sizes).view_as(sizes)
        small = small.type_as(sizes).to(sizes)
        return torch.relu(small[:2]) + 1, torch.cat([small[:4] * 2, small[:2]]).sum()


def test_an_example_of_a_size_or_a_dtype_is_not_kept():
    model, x, hardware = Examples(), torch.linspace(-1, 1, 64).reshape(4, 16), machine()
    program = program_of(model, x, "examples")
    plan = Plan(program.graph)
    predicted = replay(plan, hardware, account="program").allocator.peak_allocated_bytes
    (name,) = (one.placeholder for one in program.givens)
    device = CpuDevice(hardware, synchronous=True)
    with Executor(insert(program, plan), hardware, device) as executor, Occupancy([x]) as occupancy:
        results = executor.run({name: x})
    assert occupancy.peak == predicted == 1280
    assert same(results, model(x))
