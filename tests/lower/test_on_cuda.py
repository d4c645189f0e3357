"""The GPU machine's logic on a stand-in for torch.cuda: same bits, and every two accesses that need
it are ordered by events.
"""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from fake_cuda import Launched  # noqa: E402
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from layers import Layers, lowered, machine, program_of, streamed, values_of  # noqa: E402
from strategies import plans  # noqa: E402

import hosim  # noqa: E402
from hosim.analysis import static_peak  # noqa: E402
from hosim.analysis.costmodel import machine_under  # noqa: E402
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.on_torch.lower import Executor, StepValues, planned  # noqa: E402
from hosim.on_torch.lower.devices import CudaDevice, CudaEvent  # noqa: E402
from hosim.on_torch.lower.tiers import SLAB_BYTES, Done, Label  # noqa: E402


@pytest.fixture
def fake(monkeypatch):
    return fake_cuda.install(monkeypatch)


MODEL, X = Layers(), torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
PROGRAM = program_of(MODEL, X)


def run(plan, cuda, folder, hardware=None, times=2, budget=None):
    values = values_of(PROGRAM, MODEL, X)
    directories = {"nvme": folder} if folder is not None else {}
    device = CudaDevice(hardware or machine(), directories=directories, index=0)
    with Launched(cuda), Executor(lowered(PROGRAM, plan), machine(), device, budget) as executor:
        executor.place({n: v for n, v in values.items() if v is not X})
        return [executor.run({n: v for n, v in values.items() if v is X})[0] for _ in range(times)]


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(plan=plans(PROGRAM.graph, machine()))
def test_any_legal_plan_gives_the_same_bits_without_races(plan, fake, tmp_path):
    wanted = PROGRAM.module(*values_of(PROGRAM, MODEL, X).values())[0]
    before = [p.clone() for p in MODEL.parameters()]
    assert all(torch.equal(result, wanted) for result in run(plan, fake, tmp_path))
    assert all(torch.equal(p, kept) for p, kept in zip(MODEL.parameters(), before, strict=True))


@pytest.mark.parametrize("home", ["ddr", "nvme"])
def test_weights_from_host_memory_and_from_files(fake, tmp_path, home):
    wanted = PROGRAM.module(*values_of(PROGRAM, MODEL, X).values())[0]
    assert all(
        torch.equal(result, wanted) for result in run(streamed(PROGRAM, home), fake, tmp_path)
    )
    assert not list(tmp_path.iterdir())


def that_returns_from_below(plan):
    """The plan, whose result is stored after the last op: the caller waits for its prefetch."""
    last = len(plan.graph.ops) - 1
    (result,) = [t for t, one in enumerate(plan.graph.tensors) if one.kind == "output"]
    moves = (
        CacheOp(STORE, result, "hbm", "ddr", last),
        CacheOp(DETACH, result, "hbm", None, last),
    )
    return Plan(plan.graph, "down", (*plan.cache_ops, *moves), dict(plan.initial))


@pytest.mark.parametrize("index", [0, 1, None])
def test_the_machine_is_on_its_own_device(fake, index):
    values = values_of(PROGRAM, MODEL, X)
    wanted = PROGRAM.module(*values.values())[0]
    plan = that_returns_from_below(streamed(PROGRAM))
    device = CudaDevice(machine(), index=index)
    other = 1 - fake.used
    assert (fake.used, fake.current_device()) == (index or 0, other)
    fake.set_per_process_memory_fraction(0.5, fake.used)
    with Launched(fake), Executor(lowered(PROGRAM, plan), machine(), device, 1 << 20) as executor:
        executor.place({n: v for n, v in values.items() if v is not X})
        for _ in range(2):
            (result,) = executor.run({n: v for n, v in values.items() if v is X})
            assert torch.equal(result, wanted)
    assert {stream.device for stream in fake.streams[2:]} == {fake.used}
    assert fake.current_device() == other
    assert (fake.fractions[fake.used], fake.fractions[other]) == (0.5, 1.0)


class Kept(torch.nn.Module):
    """Eight layers whose activations are added up at the end, the last one first."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.eye(16) for _ in range(8))

    def forward(self, x):
        kept = []
        for weight in self.layers:
            x = torch.relu(torch.mm(x, weight))
            kept.append(x)
        for value in reversed(kept):
            x = x + value
        return x


def test_the_host_waits_for_copies_that_its_budget_has_no_room_for(fake):
    """Seven activations leave as soon as the next product has read them; copies down are slow,
    without a budget all wait at once.
    """
    model, x = Kept(), torch.ones(4, 16)
    program, fake.ns_per_byte = program_of(model, x, "kept"), 1e6
    graph, placed = program.graph, []
    for t, tensor in enumerate(graph.tensors):
        if tensor.kind == "activation" and len(graph.users[t]) == 3:
            made, read, added = graph.users[t]
            moves = (
                (made, STORE, "hbm", "ddr"),
                (read, DETACH, "hbm", None),
                (added - 1, PREFETCH, "ddr", "hbm"),
            )
            placed += [CacheOp(op, t, source, to, after) for after, op, source, to in moves]
    plan = Plan(graph, "leaves", tuple(sorted(placed, key=lambda cache_op: cache_op.after)))

    def use(budget):
        device, values = CudaDevice(machine()), values_of(program, model, x)
        with (
            Launched(fake),
            Executor(lowered(program, plan), machine(), device, budget) as executor,
        ):
            executor.place({n: v for n, v in values.items() if v is not x})
            assert torch.equal(
                executor.run({n: v for n, v in values.items() if v is x})[0], model(x)
            )
        return device.memory

    free = use(None)
    assert (free.pending_bytes, free.held_bytes) == (7 * 512, free.allocated_bytes + 7 * 512 - 512)
    assert use(free.allocated_bytes).held_bytes == free.allocated_bytes
    within = use(free.allocated_bytes + 2 * 512)
    assert within.held_bytes == free.allocated_bytes + 2 * 512 > within.allocated_bytes


class Waves(torch.nn.Module):
    """Twenty activations of 2 MiB, which backward reads again."""

    def __init__(self):
        super().__init__()
        self.phase = torch.nn.Parameter(torch.full((1 << 19,), 0.1))

    def forward(self, x):
        for _ in range(20):
            x = torch.sin(x + self.phase)
        return x


def test_a_step_reserves_no_more_than_its_budget(monkeypatch):
    """Copies down take 20 ms, ops 20 us: freed blocks wait for copies, and the host has to wait
    with them.

    At 8704295 the counter of allocated bytes kept to the budget, and the allocator reserved nearly
    as much as without a plan.
    """
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    cuda = fake_cuda.install(monkeypatch, expandable=True)
    model, eager, x = Waves(), Waves(), torch.linspace(0, 1, 1 << 19)

    def loss(model, inputs):
        return model(**inputs).sum()

    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, fused=True) for one in (model, eager)]
    loss(eager, {"x": x}).backward()
    optimizers[1].step()
    given = {"optimizer": optimizers[0], "loss": loss, "budget": "60%", "policy": "longest_gap"}
    with (
        Launched(cuda),
        hosim.offload(
            model, {"x": x}, hardware=machine(), device=CudaDevice(machine()), **given
        ) as step,
    ):
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        step(x=x)
        assert step.plan.count("store") > 5
        assert cuda.max_memory_reserved() <= 1.05 * step.result.budget_bytes
        assert step.executor.hardware.software == step.executor.device.runtime
        assert step.result.stall_ns["runtime"] > 0  # ops wait for the host that launches them
    assert torch.equal(model.phase, eager.phase)


class Drops(torch.nn.Module):
    """Layers with dropout, whose numbers are drawn anew at each call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.dropout(torch.relu(layer(x)), 0.2)
        return x


def test_a_step_whose_ops_are_launched_as_segments(fake, monkeypatch):
    """The learning rate is another one at each step, so that updates are launched by themselves."""
    hardware = machine()
    xs, launches, ends = [torch.linspace(-1, k, 16 * 64).reshape(16, 64) for k in range(4)], [], []

    def loss(model, inputs):
        return model(**inputs).square().mean()

    for graphs in (False, True):
        model = Drops()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        options = {"hardware": hardware, "budget": "128 MiB", "policy": "layerwise", "loss": loss}
        options |= {"optimizer": optimizer, "device": CudaDevice(hardware), "graphs": graphs}
        torch.manual_seed(1)
        losses = []
        with Launched(fake), hosim.offload(model, {"x": xs[0]}, **options) as step:
            for k, x in enumerate(xs):
                optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
                before = fake.main.clock.get(fake.main.number, 0)
                losses.append(step(x=x).clone())
                launches.append(fake.main.clock[fake.main.number] - before)
            assert bool(step.segments) is graphs is not bool(step.no_segments), step.no_segments
            assert step.memory.held_bytes <= step.result.budget_bytes
        ends.append([*losses, *(p.detach() for p in model.parameters())])
    assert all(map(torch.equal, *ends))
    assert len({*launches[:5]}) == 1
    assert max(launches[5:]) < launches[0] / 2


def test_the_parts_of_a_step_in_turn_are_launched_as_segments(fake):
    """Gradients are what the update writes by torch's schema, so that it runs op by op, beside the
    pool of forward and backward.
    """
    hardware, ends = machine(), []
    xs = [torch.linspace(-1, k, 16 * 64).reshape(16, 64) for k in range(1, 5)]

    def loss(model, inputs):
        return model(**inputs).square().mean()

    for graphs in (False, True):
        model, counts = Drops(), []
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        options = {"hardware": hardware, "budget": "128 MiB", "policy": "resident", "loss": loss}
        options |= {"optimizer": optimizer, "device": CudaDevice(hardware), "graphs": graphs}
        torch.manual_seed(1)
        with Launched(fake), hosim.offload(model, {"x": xs[0]}, **options) as step:
            for x in xs:
                losses = [step.backward(x=x).clone()]
                counts.append(step.segments)
                step.optimizer_step()
                assert step.memory.held_bytes <= step.result.budget_bytes
                optimizer.zero_grad()
        assert counts == ([0, 1, 1, 1] if graphs else [0] * 4), step.no_segments
        ends.append([*losses, *(p.detach() for p in model.parameters())])
    assert all(map(torch.equal, *ends))


class Views(torch.nn.Module):
    def forward(self, x):
        f = torch.fft.fft(x)
        return f.conj(), f.conj().imag[1:], f, x.t(), x.new_empty(0)


def test_results_of_segments_that_are_views(fake):
    """Conjugated, negated, of one storage, of an input, and of no bytes."""
    hardware, xs = machine(), [torch.linspace(-1, k, 4 * 8).reshape(4, 8) for k in range(3)]
    options = {"hardware": hardware, "budget": "128 MiB", "policy": "resident", "graphs": True}
    device = CudaDevice(hardware)
    with Launched(fake), hosim.offload(Views(), {"x": xs[0]}, device=device, **options) as model:
        found = [[one.clone() for one in model(x=x)] for x in xs]
        assert model.segments, model.no_segments
    for x, results in zip(xs, found, strict=True):
        assert all(map(torch.equal, results, Views()(x)))


@torch.library.custom_op("waits_without_a_tag::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """Looks at what a tensor contains, which no tag says."""
    return x * float(x.sum())


@waits.register_fake
def _(x):
    return torch.empty_like(x)


class Looks(torch.nn.Module):
    def forward(self, x):
        return waits(torch.relu(x)).abs().sqrt()


def test_an_op_that_cannot_be_captured_is_launched_with_all_others(fake):
    hardware, xs = machine(), [torch.linspace(-1, k, 32) for k in range(1, 4)]
    options = {"hardware": hardware, "budget": "128 MiB", "policy": "resident", "graphs": True}
    device = CudaDevice(hardware)
    with Launched(fake), hosim.offload(Looks(), {"x": xs[0]}, device=device, **options) as model:
        found = [model(x=x).clone() for x in xs]
        assert "op 'waits' cannot be captured: RuntimeError: " in model.no_segments
    assert all(map(torch.equal, found, map(Looks(), xs)))


def test_predictions_count_the_calls_of_segments(fake):
    """Ten ops of 12 us each, or one call; op by op where a weight leaves the device, on which the
    call begins.
    """
    hardware, x = machine(), torch.ones(4, 64)
    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(10)]

    def predicted(graphs, **options):
        device, model = CudaDevice(hardware), torch.nn.Sequential(*layers)
        options |= {"hardware": hardware, "device": device, "graphs": graphs}
        with Launched(fake), hosim.offload(model, x, **options) as offloaded:
            for _ in range(3):
                offloaded(x)
            assert bool(offloaded.segments) is (graphs and "plan" not in options)
            return offloaded.plan, offloaded.predicted_makespan_ns

    (plan, whole), (_, one_by_one) = (predicted(g, policy="resident") for g in (True, False))
    assert one_by_one - 10 * 12_000 == (whole - 12_000) / 10  # one op after its call; all of them
    (t,) = (t for t, one in enumerate(plan.graph.tensors) if one.name == "3.weight")
    moves = (CacheOp(STORE, t, "hbm", "ddr", 3), CacheOp(DETACH, t, "hbm", None, 4))
    back = CacheOp(PREFETCH, t, "ddr", "hbm", 9), CacheOp(DETACH, t, "ddr", None, 9)
    leaves = replace(plan, cache_ops=(*moves, *back))
    assert len({predicted(graphs, plan=leaves)[1] for graphs in (True, False)}) == 1


class Mixed(torch.nn.Module):
    """Blocks of six small weights and two large ones."""

    def __init__(self, blocks=6, width=256):
        super().__init__()
        shapes = [(width,)] * 6 + [(width, 4 * width), (4 * width, width)]
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes * blocks)

    def forward(self, x):
        weights = list(self.weights)
        while weights:
            for small in weights[:6]:
                x = x * small
            x, weights = x + torch.relu(x @ weights[6]) @ weights[7], weights[8:]
        return x


def test_a_plan_is_made_for_the_host_that_launches_it(fake):
    """The planner takes small weights with the large ones where launching is free, and fewer
    where each copy takes the host 42 us; another plan where a segment is one call, which each copy
    cuts.
    """
    free = machine(rate=5 * 10**10)
    device = CudaDevice(free)
    launched = machine_under(free, device.runtime)
    graph = program_of(Mixed(), torch.zeros(512, 256), "mixed").graph
    budget = static_peak(graph).bytes * 52 // 100
    grouped = replace(launched, software=replace(launched.software, segments=True))
    machines = free, launched, grouped
    plans = for_free, for_launched, for_grouped = [planned(graph, m, budget)[0] for m in machines]
    assert len(for_launched.cache_ops) < len(for_free.cache_ops)
    for own, machine_of_it in ((for_launched, launched), (for_grouped, grouped)):
        times = [replay(plan, machine_of_it, budget).makespan_ns for plan in plans]
        # of plans that are at most 0.5 % apart the planner takes the steadiest
        assert replay(own, machine_of_it, budget).makespan_ns <= 1.005 * min(times)
    assert len(for_grouped.cache_ops) < len(for_free.cache_ops)


def test_what_a_dead_tensor_still_holds_counts(fake):
    """Seven activations are copied, stay on the device, and die while copies, which are slow, still
    read them.
    """
    model, x = Kept(), torch.ones(4, 16)
    program, fake.ns_per_byte = program_of(model, x, "kept"), 1e6
    graph, ways = (
        program.graph,
        [t for t, tensor in enumerate(program.graph.tensors) if tensor.kind == "activation"],
    )
    stores = [
        CacheOp(STORE, t, "hbm", "ddr", graph.users[t][0]) for t in ways if len(graph.users[t]) == 3
    ]
    plan, device, values = (
        Plan(graph, "copies", tuple(stores)),
        CudaDevice(machine()),
        values_of(program, model, x),
    )
    with Launched(fake), Executor(lowered(program, plan), machine(), device, 1 << 26) as executor:
        executor.place({n: v for n, v in values.items() if v is not x})
        for _ in range(
            3
        ):  # the host never waits: what a run leaves behind is read in the next ones
            assert torch.equal(
                executor.run({n: v for n, v in values.items() if v is x})[0], model(x)
            )
        assert device.memory.pending_bytes >= 3 * 6 * 512
        device.budget_bytes = None
        device.wait()
        assert device._memory._pending_bytes == 0
        assert torch.equal(executor.run({n: v for n, v in values.items() if v is x})[0], model(x))
        assert device.memory.pending_bytes <= 7 * 512


def test_an_op_without_room_is_done_again(fake):
    """A request that is refused once ends nothing where waiting for copies may make room; refused
    for good, it is one line.
    """
    wanted = PROGRAM.module(*values_of(PROGRAM, MODEL, X).values())[0]
    plan, call = streamed(PROGRAM), StepValues.call

    def refuse(executor, node):
        if node.name == "mm_1":
            fake.refused, refusals[0] = refusals[0] > 0, refusals[0] - 1
        return call(executor, node)

    for count in (1, 100):
        refusals = [count]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StepValues, "call", refuse)
            if count == 1:
                assert torch.equal(run(plan, fake, None, times=1, budget=1 << 20)[0], wanted)
            else:
                with pytest.raises(
                    ExecutionError, match=r"^op 'mm_1': OutOfMemoryError: CUDA out of memory"
                ):
                    run(plan, fake, None, times=1, budget=1 << 20)
        assert refusals[0] < count


def test_weights_come_back_when_the_device_has_room_again(fake, tmp_path):
    """torch refuses memory at the end, and its second try too: the weights stay in host memory and
    files until it does not.
    """
    for home in ("ddr", "nvme"):
        values = values_of(PROGRAM, MODEL, X)
        before = [value.clone() for value in values.values()]
        executor = Executor(
            lowered(PROGRAM, streamed(PROGRAM, home)),
            machine(),
            CudaDevice(machine(), directories={"nvme": tmp_path}, index=0),
        )
        with Launched(fake):
            executor.place({n: v for n, v in values.items() if v is not X})
            fake.refused = 4
            with pytest.raises(ExecutionError) as caught:
                executor.close()
            assert caught.value.left == ("layers.0", "layers.1")
            executor.close()
        assert all(
            torch.equal(value, kept) for value, kept in zip(values.values(), before, strict=True)
        )
    assert not list(tmp_path.iterdir())


def test_a_run_ends_before_the_device_has_done_it_and_the_next_one_follows(fake):
    """Slow ops, slow copies: the host never waits for the end. Plans that store and fetch
    everything give the same bits run after run.
    """
    fake.op_ns, fake.ns_per_byte, values = 10**6, 1e3, values_of(PROGRAM, MODEL, X)
    wanted = PROGRAM.module(*values.values())[0]
    with (
        Launched(fake),
        Executor(lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine())) as executor,
    ):
        executor.place({n: v for n, v in values.items() if v is not X})
        for _ in range(3):
            (result,) = executor.run({n: v for n, v in values.items() if v is X})
            assert fake.now_ns < fake.main.free_ns - fake.op_ns
            assert torch.equal(result, wanted)


def test_a_caller_on_another_stream_is_ordered(fake):
    """It writes the input before the call and reads the result after it, on its own stream, and
    drops both: no race.
    """
    values = values_of(PROGRAM, MODEL, X)
    wanted = PROGRAM.module(*values.values())[0]
    with (
        Launched(fake),
        Executor(lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine())) as executor,
    ):
        executor.place({n: v for n, v in values.items() if v is not X})
        with fake.stream(fake.Stream(fake.used)):
            x = X.clone()
            (result,) = executor.run({n: x for n, v in values.items() if v is X})
            doubled = result * 2
            x.zero_()
            del x, result
        fake.synchronize(fake.used)
        assert torch.equal(doubled, wanted * 2)


def test_pinned_memory_is_taken_in_slabs_and_given_back(fake):
    """Three weights of 1024 B and more lie in one slab that the driver pins; nothing is torch's,
    and nothing is pinned after the close.
    """
    values = values_of(PROGRAM, MODEL, X)
    with Launched(fake):
        with Executor(
            lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine())
        ) as executor:
            executor.place({n: v for n, v in values.items() if v is not X})
            executor.run({n: v for n, v in values.items() if v is X})
            assert list(fake.registered.values()) == [SLAB_BYTES]
        assert (fake.registered, fake.pinned_bytes) == ({}, 0)
    fake.unpinnable = True
    executor = Executor(lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine()))
    with pytest.raises(
        ExecutionError,
        match=r"the driver cannot pin 256 MiB of host memory \(CUDA error 2\): lower the tier's "
        r"capacity",
    ):
        executor.place({n: v for n, v in values.items() if v is not X})


def test_a_drive_without_a_folder_is_no_host_memory(fake):
    with pytest.raises(
        InputError,
        match=r"directories: the plan uses tier nvme, which is not host memory: .* Name a folder "
        r"for it",
    ):
        Executor(lowered(PROGRAM, streamed(PROGRAM, "nvme")), machine(), CudaDevice(machine()))


class Forgetful:
    """A stream whose waits number ``these`` are left out."""

    def __init__(self, monkeypatch, these):
        waits = itertools.count()
        held = CudaEvent.hold
        self.left_out = 0

        def hold(event, stream):
            if next(waits) in these:
                self.left_out += 1
            else:
                held(event, stream)

        monkeypatch.setattr(CudaEvent, "hold", hold)


def test_the_race_finder_finds_a_wait_that_is_left_out(fake, monkeypatch):
    """Of the waits of a run, those that order something are needed: without them there is a race,
    so the tests above can fail.
    """
    plan = streamed(PROGRAM)
    raced = 0
    for which in range(12):
        with monkeypatch.context() as patch:
            forgetful = Forgetful(patch, {which})
            try:
                run(plan, fake, None, times=1)
            except (AssertionError, ExecutionError) as error:
                raced += "race" in str(error) or "freed under" in str(error)
        assert forgetful.left_out
        fake.__init__()
    assert raced >= 6


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="expected a CUDA device, torch finds none"):
        CudaDevice(machine())


def test_files_are_reached_over_host_memory_alone(fake, tmp_path):
    with pytest.raises(InputError, match="channel h2d joins files and the device tier"):
        CudaDevice(machine(), directories={"ddr": tmp_path})


def test_a_folder_of_no_tier(fake, tmp_path):
    with pytest.raises(InputError, match=r"no tier 'disk' below the device tier of small"):
        CudaDevice(machine(), directories={"disk": tmp_path})


def test_a_file_that_vanished(fake, tmp_path):
    values = values_of(PROGRAM, MODEL, X)
    before = {n: v.clone() for n, v in values.items()}
    executor = Executor(
        lowered(PROGRAM, streamed(PROGRAM, "nvme")),
        machine(),
        CudaDevice(machine(), directories={"nvme": tmp_path}),
    )
    executor.place({n: v for n, v in values.items() if v is not X})
    sorted(tmp_path.rglob("*.bin"))[2].unlink()
    with pytest.raises(
        ExecutionError, match=r"^prefetch of 'layers\.2' from nvme to hbm: No such file"
    ):
        executor.run({n: v for n, v in values.items() if v is X})
    assert not list(tmp_path.iterdir())
    lost = [n for n, v in values.items() if v.untyped_storage().nbytes() == 0]
    assert len(lost) == 1
    MODEL.layers[2].data = before[lost[0]].clone()
    assert all(torch.equal(v, before[n]) for n, v in values.items() if n not in lost)


def test_a_recorded_run_has_a_timeline(fake):
    values = values_of(PROGRAM, MODEL, X)
    with Executor(
        lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine())
    ) as executor:
        executor.place({n: v for n, v in values.items() if v is not X})
        executor.run({n: v for n, v in values.items() if v is X}, record=True)
        timeline = executor.timeline
    assert min(timeline.op_start_ns) >= 0
    assert {t.channel for t in timeline.transfers} == {"h2d", "d2h"}


@pytest.mark.parametrize("channel", ["h2d", "read"])
def test_what_never_finds_room_is_said_with_the_work(fake, tmp_path, channel):
    device = CudaDevice(machine(), directories={"nvme": tmp_path})
    work = Label("prefetch of 'w'")

    def run():
        with device.running():
            device.channel(channel).submit(lambda: None, (), Label("what came before"))
            device.channel(channel).submit(lambda: None, (), work, lambda: False)

    with pytest.raises(ExecutionError, match="finds no room") as caught:
        run()
    assert device.blame(caught.value) == "prefetch of 'w': finds no room"
    with device.running():
        pass
    assert device.blame(caught.value) == "finds no room"  # the next run knows nothing of it
    device.close()


@pytest.mark.parametrize("channel", ["h2d", "read"])
def test_an_error_between_two_works_is_no_works(fake, tmp_path, channel):
    device = CudaDevice(machine(), directories={"nvme": tmp_path})

    def run():
        with device.running():
            device.channel(channel).submit(lambda: None, (), Label("what came before"))
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else") as caught:
        run()
    assert device.blame(caught.value) == "ValueError: something else"
    device.close()


class Later:
    """An event that is done once somebody has waited for it."""

    def __init__(self, name, log):
        self.name, self.log, self.waited, self.queue = name, log, False, "d2h"

    def done(self):
        return self.waited

    def wait(self):
        self.log.append(self.name)
        self.waited = True


def test_the_host_waits_for_room_one_release_at_a_time(fake):
    """Two releases wait for events: the first makes no room, the second does, and the third is
    nobody's concern.
    """
    device, log = CudaDevice(machine()), []
    one, two, three, four = (Later(name, log) for name in ("one", "two", "three", "four"))
    device.later([one, two], lambda: log.append("first released"))
    device.later([three], lambda: log.append("second released"))
    device.later([four], lambda: log.append("third released"))
    device.calls.find(lambda: "second released" in log)
    assert log == ["one", "two", "first released", "three", "second released"]
    four.waited = True
    device.calls.find(lambda: True)  # looks at once
    assert log[-1] == "third released"
    with pytest.raises(ExecutionError, match=r"^finds no room$"):
        device.calls.find(lambda: False)


def test_marks_and_times_of_events(fake):
    """An event of torch, held by another stream: whether it is done, and nanoseconds from another
    one.
    """
    calls = []
    end = SimpleNamespace(query=lambda: 1, synchronize=lambda: calls.append("synchronize"))
    event = CudaEvent(end)
    assert event.done() is True
    assert not event.is_timed
    event.wait()
    event.hold(SimpleNamespace(wait_event=calls.append))
    assert calls == ["synchronize", end]
    assert (
        event.elapsed_ns(
            CudaEvent(SimpleNamespace(elapsed_time=lambda other: 0.25 if other is end else None))
        )
        == 250_000
    )


def test_a_record_of_work_on_streams(fake):
    """Times since the run began: when what it waits for had ended, when its stream was free, its
    start and its end.

    torch tells times of events made for it alone: what a transfer waits for is often work without a
    label.
    """
    ms, fake.launch_ns = 1_000_000, 0
    device = CudaDevice(machine())
    first, second, third = (
        Label("op 'f'", op=0),
        Label("store of 'a'", cache_op=0),
        Label("op 'g'", op=1),
    )
    device.recording = True
    with device.running():
        device.compute.submit(lambda: fake.current.launch(1 * ms), label=first)
        done = device.compute.submit(lambda: fake.current.launch(2 * ms))
        stored = device.channel("d2h").submit(lambda: fake.current.launch(4 * ms), (done,), second)
        device.compute.submit(lambda: fake.current.launch(5 * ms), (stored,), third)
    assert device.take_record() == (
        Done(first, "compute", 0, 0, 0, 1 * ms),
        Done(second, "d2h", 3 * ms, 0, 3 * ms, 7 * ms),
        Done(third, "compute", 7 * ms, 3 * ms, 7 * ms, 12 * ms),
    )
    assert device.take_record() == ()
    device.recording = False
    with device.running():
        device.compute.submit(lambda: None, label=first)
    assert device.take_record() == ()


def test_streams_of_a_channel_take_turns(fake):
    hardware = replace(
        machine(), channels=tuple(replace(channel, engines=2) for channel in machine().channels)
    )
    device, seen = CudaDevice(hardware), []
    with device.running():
        for _ in range(3):
            device.channel("h2d").submit(lambda: seen.append(fake.current.number))
        device.channel("d2h").submit(lambda: seen.append(fake.current.number))
        device.compute.submit(lambda: seen.append(fake.current is fake.main))
    first, second, again, other, main = seen
    assert first == again
    assert len({first, second, other}) == 3
    assert main


def test_bytes_move_at_once_between_any_two_places(fake, tmp_path):
    """Between device and files they pass through a block of host memory, which is given back."""
    device = CudaDevice(machine(), directories={"nvme": tmp_path})
    values, result = torch.arange(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
    here, there = device.on_device(), device.on_device()
    here.open(values.untyped_storage(), 100)
    there.open(result.untyped_storage(), 100)
    file, host = device.block("nvme", 100, "w"), device.block("ddr", 100, "w")
    assert file.take()
    assert host.take()
    device.move_now(here, file)
    assert file.path.read_bytes() == bytes(range(100))
    device.move_now(file, there)
    assert torch.equal(result, values)
    device.move_now(file, host)
    assert torch.equal(host.bytes, values)
    result.zero_()
    device.move_now(host, there)
    assert torch.equal(result, values)
    assert device._tiers["ddr"].held_bytes == 100
    device.close()
    assert not list(tmp_path.iterdir())


def test_file_threads_and_what_is_left_of_them(fake, tmp_path):
    """Work of files runs in threads named after the channel; after an error, work that waits is
    dropped.
    """
    hardware = replace(
        machine(), channels=tuple(replace(channel, engines=2) for channel in machine().channels)
    )
    device = CudaDevice(hardware, directories={"nvme": tmp_path})
    names, meet = [], threading.Barrier(2, timeout=600)
    with device.running():
        for _ in range(2):
            device.channel("read").submit(
                lambda: (meet.wait(), names.append(threading.current_thread().name))
            )
    assert sorted(names) == ["hosim read_0", "hosim read_1"]
    done, failed, before = [], Label("store of 'w'"), Label("store of 'v'")

    def fail():
        raise OSError(5, "Input/output error")

    def run():
        with device.running():
            first = device.channel("write").submit(fail, label=failed)
            device.channel("write").submit(lambda: done.append(1), (first,), before)
            device.channel("read").submit(lambda: done.append(2))

    with pytest.raises(OSError, match="Input/output") as caught:
        run()
    assert device.blame(caught.value) == "store of 'w': Input/output error"
    assert 1 not in done
    assert device._run.stopped
    device.close()
