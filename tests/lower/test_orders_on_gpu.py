"""Programs that write what they hold, tensors that move in chunks over several channels, and plans
that leave something to do at their end: every two accesses that need it are ordered by events.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from fake_cuda import Launched  # noqa: E402
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layers import lowered, machine, program_of, streamed  # noqa: E402
from strategies import plans  # noqa: E402

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan  # noqa: E402
from hosim.errors import ExecutionError  # noqa: E402
from hosim.on_torch.lower import Executor  # noqa: E402
from hosim.on_torch.lower.devices import CudaDevice  # noqa: E402
from hosim.on_torch.lower.tiers import HostPool  # noqa: E402

MACHINE = replace(machine(), chunk_bytes=400)  # a tensor of 1,024 B takes a route in three parts


class Writes(torch.nn.Module):
    """Weights, a state that two ops write, and an activation that is written in place."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weights = torch.nn.ParameterList(
            torch.randn(16, 16, generator=generator) / 4 for _ in range(3)
        )
        self.register_buffer("state", torch.eye(16))

    def forward(self, x):
        x = torch.mm(x, self.weights[0])
        self.state.mul_(0.5)
        x = torch.mm(x, self.state)
        self.state.add_(self.weights[1])
        x.mul_(2)
        return torch.mm(torch.mm(x, self.weights[2]), self.state)


X = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))
PROGRAM = program_of(Writes(), X, "writes")


def values_of(model):
    """The tensors that the program holds, by placeholder."""
    own = dict((*model.named_parameters(), *model.named_buffers()))
    return {one.placeholder: own[one.name].detach() for one in PROGRAM.givens if one.own}


def run(plan, cuda, folder, look=lambda values, device: None):
    """Results of two runs, and what the program holds afterwards, copied while copies may run."""
    model, folders = Writes(), {} if folder is None else {"nvme": folder}
    values, device = values_of(model), CudaDevice(MACHINE, directories=folders, index=0)
    (x,) = (one.placeholder for one in PROGRAM.givens if not one.own)
    with Launched(cuda), Executor(lowered(PROGRAM, plan), MACHINE, device) as executor:
        executor.place(values)
        results = [executor.run({x: X})[0] for _ in range(2)]
        look(values, device)
        results = [one.clone() for one in results]
    return results, list(values.values())


def eagerly():
    model = Writes()
    return [model(X).detach() for _ in range(2)], list(values_of(model).values())


@pytest.fixture
def cuda(monkeypatch):
    return fake_cuda.install(monkeypatch, ns_per_byte=200.0)  # copies are slower than ops


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(plan=plans(PROGRAM.graph, MACHINE))
def test_a_program_that_writes_has_eagers_bits_under_any_plan(plan, cuda, tmp_path):
    for found, wanted in zip(run(plan, cuda, tmp_path), eagerly(), strict=True):
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("home", ["ddr", "nvme"])
def test_chunks_of_what_is_read_at_once(cuda, tmp_path, home):
    """An op waits for the last chunk of what it reads, and the next copy for all of them."""
    for found, wanted in zip(
        run(streamed(PROGRAM, home, down=home), cuda, tmp_path), eagerly(), strict=True
    ):
        assert all(map(torch.equal, found, wanted))


def moved(*, first=(), last=()):
    """A plan with these moves of the state (kind, from, to) at its start, and after its last op."""
    graph, end = PROGRAM.graph, len(PROGRAM.graph.ops) - 1
    (state,) = (t for t, one in enumerate(graph.tensors) if one.kind == "buffer")
    (result,) = (t for t, one in enumerate(graph.tensors) if one.kind == "output")
    of = {"state": state, "result": result}
    at = [(AT_START, *one) for one in first] + [(end, *one) for one in last]
    moves = tuple(CacheOp(kind, of[name], source, to, when) for when, name, kind, source, to in at)
    initial = {state: ("ddr",)} if first else {}
    return Plan(graph, "by hand", moves, initial)


def test_the_caller_waits_for_the_last_prefetch(cuda):
    """No op reads what it brings, so that the end of the run has to wait for it."""
    last = (
        ("result", STORE, "hbm", "ddr"),
        ("result", DETACH, "hbm", None),
        ("result", PREFETCH, "ddr", "hbm"),
    )
    found, wanted = run(moved(last=last), cuda, None), eagerly()
    assert all(map(torch.equal, found[0], wanted[0]))


def test_a_copy_beside_its_home_leaves_the_device(cuda):
    """The plan stores the state and lets its copy be: the next run begins without it."""
    first, last = [("state", PREFETCH, "ddr", "hbm")], [("state", STORE, "hbm", "ddr")]

    def look(values, device):
        device.wait()
        sizes = {name: value.untyped_storage().nbytes() for name, value in values.items()}
        assert [size for name, size in sizes.items() if "state" in name] == [0]

    found, wanted = run(moved(first=first, last=last), cuda, None, look), eagerly()
    assert all(map(torch.equal, found[1], wanted[1]))


def test_what_another_plan_has_written_is_taken_over_on_any_stream(cuda):
    """The first plan has the state on the device, where its last op writes it; the second one has
    it on the host, and takes it over under a stream that the first one's run knows nothing of.
    """
    model, device = Writes(), CudaDevice(MACHINE, index=0)
    (x,) = (one.placeholder for one in PROGRAM.givens if not one.own)
    below = moved(first=[("state", PREFETCH, "ddr", "hbm")], last=[("state", STORE, "hbm", "ddr")])
    plans_of = Plan(PROGRAM.graph, "resident"), below
    before, after = (Executor(lowered(PROGRAM, plan), MACHINE, device) for plan in plans_of)
    with Launched(cuda), after:
        before.place(values_of(model))
        results = [before.run({x: X})[0]]
        with cuda.stream(cuda.Stream(0)):
            after.take_over(before)
        results.append(after.run({x: X})[0])
        results = [one.clone() for one in results]
    assert all(map(torch.equal, results, eagerly()[0]))


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), max_size=30))
def test_blocks_of_host_memory_never_overlap(asked):
    """Each is filled with its own number, and has it as long as it is held."""
    pool = HostPool("ddr", 4096, lambda after, then: then())
    held = []
    for number, (size, goes) in enumerate(asked):
        block = pool.block(size, "t")
        if block.take():
            block.bytes.fill_(number)
            held.append((block, number))
        if goes < len(held):
            held.pop(goes)[0].release()
        assert all(bool((one.bytes == filled).all()) for one, filled in held)
        assert pool.held_bytes == sum(one.size_bytes for one, _ in held) <= 4096
    for block, _ in held:
        block.release()
    pool.shrink()
    assert (pool.held_bytes, pool.system_bytes) == (0, 0)
    pool.close()


def replayed(plan, cuda, folder, times=4):
    """Results of runs, of which those from the second on launch segments as one, what the program
    holds afterwards, and how many segments there are.
    """
    model, folders = Writes(), {} if folder is None else {"nvme": folder}
    values, device = values_of(model), CudaDevice(MACHINE, directories=folders, index=0)
    device.captures = True
    (x,) = (one.placeholder for one in PROGRAM.givens if not one.own)
    with Launched(cuda), Executor(lowered(PROGRAM, plan), MACHINE, device) as executor:
        executor.place(values)
        results = [executor.run({x: X + n})[0] for n in range(times)]
        results = [one.clone() for one in results]
        segments = executor.segments and executor.segments.count
        reason = executor.recorder.no_segments
    return results, list(values.values()), segments, reason


def eagerly_shifted():
    model = Writes()
    return [model(X + n).detach() for n in range(4)], list(values_of(model).values())


STORED = Plan(
    PROGRAM.graph,
    "stored",
    tuple(
        CacheOp(STORE, t, "hbm", "ddr", 0)
        for t, one in enumerate(PROGRAM.graph.tensors)
        if one.name == "mm"
    ),
)
"""The first product dies, and a later one takes its place, while a copy of it goes down."""
BELOW = moved(first=[("state", PREFETCH, "ddr", "hbm")], last=[("state", STORE, "hbm", "ddr")])


@pytest.mark.parametrize(
    ("plan", "count"),
    [
        (Plan(PROGRAM.graph, "resident"), 1),
        (BELOW, 3),
        (STORED, 3),
        (streamed(PROGRAM, "ddr"), 7),
        (streamed(PROGRAM, "nvme", lead=2, down="nvme"), 7),
        (streamed(PROGRAM, "ddr", lead=3, down="nvme"), 7),
    ],
)
def test_segments_run_as_one(cuda, tmp_path, plan, count):
    """The state is written at each call, and lies on the device or below."""
    found, held, segments, reason = replayed(plan, cuda, tmp_path)
    wanted = eagerly_shifted()
    assert (segments, reason) == (count, "")
    assert all(map(torch.equal, (*found, *held), (*wanted[0], *wanted[1])))


@settings(max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(plan=plans(PROGRAM.graph, MACHINE))
def test_where_segments_cannot_be_ops_run_one_by_one(plan, cuda, tmp_path):
    found, _, segments, reason = replayed(plan, cuda, tmp_path, times=3)
    wanted = eagerly_shifted()
    assert bool(segments) != bool(reason)
    assert all(map(torch.equal, found, wanted[0]))


def test_two_plans_in_turn_whose_segments_run_as_one(cuda):
    """Each records anew when it has the tensors again, which are at other addresses then."""
    model, device = Writes(), CudaDevice(MACHINE, index=0)
    device.captures = True
    (x,) = (one.placeholder for one in PROGRAM.givens if not one.own)
    plans_of = Plan(PROGRAM.graph, "resident"), BELOW
    one, other = (Executor(lowered(PROGRAM, plan), MACHINE, device) for plan in plans_of)
    values, wanted, results = values_of(model), Writes(), []
    with Launched(cuda), one:
        one.place(values)
        for _ in range(2):
            results += [one.run({x: X})[0] for _ in range(3)]
            other.take_over(one)
            assert one.segments is None
            assert one.recorder.no_segments
            results += [other.run({x: X})[0] for _ in range(3)]
            sizes = {n: value.untyped_storage().nbytes() for n, value in values.items()}
            assert [size for name, size in sizes.items() if "state" in name] == [0]
            one.take_over(other)
        one.run({x: X}, record=True)
        assert one.recorder.no_segments
        results = [result.clone() for result in results]
    assert all(torch.equal(result, wanted(X).detach()) for result in results)


def test_contents_are_back_after_a_call_of_segments_that_fails(cuda, monkeypatch):
    """The copy down of what the last call has written fails: it is on the device, at the address
    that the segments gave it.
    """
    model, device = Writes(), CudaDevice(MACHINE, index=0)
    device.captures = True
    (x,) = (one.placeholder for one in PROGRAM.givens if not one.own)
    values, wanted = values_of(model), eagerly_shifted()
    with Launched(cuda), Executor(lowered(PROGRAM, BELOW), MACHINE, device) as executor:
        executor.place(values)
        for n in range(3):
            executor.run({x: X + n})
        move = CudaDevice.move

        def fails(device, channel, *ends):
            if channel == "d2h":
                raise OSError(5, "Input/output error")
            return move(device, channel, *ends)

        monkeypatch.setattr(CudaDevice, "move", fails)
        with pytest.raises(ExecutionError, match="store of 'state'"):
            executor.run({x: X + 3})
    assert all(map(torch.equal, values.values(), wanted[1]))
