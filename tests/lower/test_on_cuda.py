"""The GPU machine's logic on a stand-in for torch.cuda: same bits, and every two accesses that need it are ordered by events."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import FakeCuda, Races  # noqa: E402
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from layers import Layers, lowered, machine, program_of, streamed, values_of  # noqa: E402
from strategies import plans  # noqa: E402

from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.lower import host_pool, on_cuda  # noqa: E402
from hosim.lower.on_cuda import CudaDevice  # noqa: E402
from hosim.lower.run import Executor  # noqa: E402
from hosim.lower.transfers import Label  # noqa: E402


@pytest.fixture
def fake(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(on_cuda, "cuda", cuda)
    monkeypatch.setattr(on_cuda, "_used_on", lambda tensor, stream: used_on(cuda, tensor, stream))
    empty = torch.empty
    monkeypatch.setattr(host_pool.torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    return cuda


def used_on(cuda, tensor, stream):
    cuda.used_on.setdefault(tensor.untyped_storage()._cdata, set()).add(stream.number)


class Checked(CudaDevice):
    """Says to the race finder what is freed."""

    races: Races

    def free(self, storage, after):
        self.races.freed(storage)
        super().free(storage, after)


MODEL, X = Layers(), torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
PROGRAM = program_of(MODEL, X)


def run(plan, cuda, folder, hardware=None, times=2):
    values = values_of(PROGRAM, MODEL, X)
    directories = {"nvme": folder} if folder is not None else {}
    device = Checked(hardware or machine(), directories=directories)
    device.races = Races(cuda)
    with Executor(lowered(PROGRAM, plan), machine(), device) as executor:
        executor.place({n: v for n, v in values.items() if v is not X})
        results = []
        for _ in range(times):
            with device.races:
                results.append(executor.run({n: v for n, v in values.items() if v is X})[0])
    return results


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(plan=plans(PROGRAM.graph, machine()))
def test_any_legal_plan_gives_the_same_bits_without_races(plan, fake):
    wanted = PROGRAM.module(*values_of(PROGRAM, MODEL, X).values())[0]
    before = [p.clone() for p in MODEL.parameters()]
    assert all(torch.equal(result, wanted) for result in run(plan, fake, None))
    assert all(torch.equal(p, kept) for p, kept in zip(MODEL.parameters(), before, strict=True))


@pytest.mark.parametrize("home", ["ddr", "nvme"])
def test_weights_from_host_memory_and_from_files(fake, tmp_path, home):
    wanted = PROGRAM.module(*values_of(PROGRAM, MODEL, X).values())[0]
    assert all(torch.equal(result, wanted) for result in run(streamed(PROGRAM, home), fake, tmp_path))
    assert not list(tmp_path.iterdir())


class Forgetful:
    """A stream whose waits number ``these`` are left out."""

    def __init__(self, monkeypatch, these):
        waits = itertools.count()
        held = on_cuda.CudaEvent.hold
        self.left_out = 0

        def hold(event, stream):
            if next(waits) in these:
                self.left_out += 1
            else:
                held(event, stream)

        monkeypatch.setattr(on_cuda.CudaEvent, "hold", hold)


def test_the_race_finder_finds_a_wait_that_is_left_out(fake, monkeypatch):
    """Of the waits of a run, those that order something are needed: without them there is a race, so the tests above can fail."""
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
    monkeypatch.setattr(on_cuda.cuda, "is_available", lambda: False)
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
    executor = Executor(lowered(PROGRAM, streamed(PROGRAM, "nvme")), machine(), CudaDevice(machine(), directories={"nvme": tmp_path}))
    executor.place({n: v for n, v in values.items() if v is not X})
    sorted(tmp_path.rglob("*.bin"))[2].unlink()
    with pytest.raises(ExecutionError, match=r"^prefetch of 'layers\.2' from nvme to hbm: No such file"):
        executor.run({n: v for n, v in values.items() if v is X})
    assert not list(tmp_path.iterdir())
    lost = [n for n, v in values.items() if v.untyped_storage().nbytes() == 0]
    assert len(lost) == 1
    MODEL.layers[2].data = before[lost[0]].clone()
    assert all(torch.equal(v, before[n]) for n, v in values.items() if n not in lost)


def test_a_recorded_run_has_a_timeline(fake):
    values = values_of(PROGRAM, MODEL, X)
    with Executor(lowered(PROGRAM, streamed(PROGRAM)), machine(), CudaDevice(machine())) as executor:
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
