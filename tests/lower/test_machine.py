"""The CPU machine by itself: order, waits, overlap, pace, room, files. No graphs."""

import gc
import os
import threading
import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from slow_clock import Clock, Gate, use  # noqa: E402

from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.hardware import Channel, Compute, Hardware, Tier  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice, CpuEvent  # noqa: E402
from hosim.on_torch.lower.tiers import ALIGNMENT, CHUNK_BYTES, FileTier, Label, copy_bytes  # noqa: E402

MIB = 1 << 20


def machine(rate=10**12, latency=0, engines=1, ddr=1 << 30):
    channels = (
        Channel("h2d", "ddr", "hbm", rate, latency, engines),
        Channel("d2h", "hbm", "ddr", rate, latency, engines),
        Channel("write", "ddr", "nvme", rate),
        Channel("read", "nvme", "ddr", rate),
    )
    tiers = (
        Tier("hbm", 1 << 30, 10**12, "device"),
        Tier("ddr", ddr, 10**11),
        Tier("nvme", 1 << 30, 10**10),
    )
    return Hardware("small", tiers, channels, Compute({}))


def at_once(after, then):
    then()


def storage_of(size, fill=1):
    return torch.full((size,), fill, dtype=torch.uint8).untyped_storage()


def view(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def down(device, storage, after=(), channel="d2h"):
    """Store a storage: the block it goes to, and the event of its end."""
    block, place = device.block("ddr", storage.nbytes(), "w"), device.on_device()
    place.open(storage, storage.nbytes())
    label = Label("store of 'w'", cache_op=0, size_bytes=storage.nbytes())
    event = device.channel(channel).submit(
        lambda: device.move(channel, place, block, 0, storage.nbytes()), after, label, block.take
    )
    return block, event


def test_work_starts_in_order_and_waits_for_events():
    device = CpuDevice(machine())
    log = []
    with device.running():
        up, back, compute = device.channel("h2d"), device.channel("d2h"), device.compute
        first = compute.submit(lambda: log.append("op 0"))
        late = back.submit(lambda: (time.sleep(0.02), log.append("store")), (first,))
        up.submit(lambda: log.append("prefetch"), (late,))
        up.submit(
            lambda: log.append("behind it")
        )  # it waits for nothing itself, but the head of its channel does
        compute.submit(lambda: log.append("op 1"), (late,))
        assert not log  # the host is ahead of the computation
    assert log.index("op 0") < log.index("store") < log.index("prefetch") < log.index("behind it")
    assert log.index("store") < log.index("op 1")


def test_work_takes_its_place_when_what_it_joins_is_done():
    device = CpuDevice(machine())
    log = []
    with device.running():
        gate = device.compute.submit(lambda: time.sleep(0.02))
        up = device.channel("h2d")
        up.submit(lambda: log.append("late"), joins=(gate,))
        up.submit(lambda: log.append("early"))
    assert log == ["early", "late"]


def test_copies_run_beside_the_computation_and_beside_each_other():
    device = CpuDevice(machine())
    meet = threading.Barrier(3, timeout=600)  # all three have to be under way at once
    with device.running():
        device.channel("h2d").submit(meet.wait)
        device.channel("d2h").submit(meet.wait)
        device.compute.submit(meet.wait)


def test_engines_of_a_channel_run_at_once_and_start_in_order():
    device = CpuDevice(machine(engines=2))
    meet = threading.Barrier(2, timeout=600)
    log = []
    with device.running():
        queue = device.channel("h2d")
        gate = device.compute.submit(lambda: (time.sleep(0.02), log.append("gate")))
        queue.submit(lambda: (log.append("first"), meet.wait()), (gate,))
        queue.submit(lambda: (log.append("second"), meet.wait()))
    assert log[0] == "gate"  # also before the second, which does not wait for it itself
    assert set(log[1:]) == {"first", "second"}


@pytest.mark.parametrize("ahead", [0, 3])
def test_the_host_is_only_so_far_ahead(ahead):
    device = CpuDevice(machine(), ahead=ahead)
    done = []
    with device.running():
        for i in range(10):
            device.compute.submit(lambda i=i: done.append(i))
            assert len(done) == max(0, i + 1 - ahead)
    assert done == list(range(10))


def test_a_throttled_transfer_takes_what_the_profile_says(monkeypatch):
    clock = Clock()
    use(monkeypatch, clock, clock.sleep)
    device = CpuDevice(machine(rate=100 * 10**6, latency=30_000_000), throttle=True)
    device.recording = True
    with device.running():
        for fill in (1, 2):
            down(device, storage_of(10 * 10**6, fill))
    # each 30 ms of latency and 100 ms for 10 MB at 100 MB/s, to the nanosecond
    assert [(done.start_ns, done.end_ns) for done in device.take_record()] == [
        (0, 130_000_000),
        (130_000_000, 260_000_000),
    ]


def test_throttled_transfers_do_not_hold_back_the_computation(monkeypatch):
    gate = Gate(monkeypatch)
    device = CpuDevice(machine(), throttle=True)
    device.recording = True
    with device.running():
        down(device, storage_of(MIB))
        device.compute.submit(gate.open, label=Label("op", op=0))
    op, store = device.take_record()
    assert (op.label.op, store.queue) == (0, "d2h")


def test_bytes_arrive_and_freed_storages_come_back():
    device = CpuDevice(machine())
    storage = storage_of(3 * MIB, 7)
    with device.running():
        block, stored = down(device, storage)
        device.compute.submit(lambda: device.free(storage, (stored,)), (stored,))
        device.compute.submit(lambda: sizes.append(storage.nbytes()))
        sizes = []
        filled = device.on_device()
        issued = device.compute.submit(
            lambda: (device.allocate(storage, 3 * MIB), filled.open(storage, 3 * MIB))
        )
        device.channel("h2d").submit(
            lambda: device.move("h2d", block, filled, 0, 3 * MIB), (issued, stored)
        )
    assert sizes == [0]
    assert torch.equal(view(storage), torch.full((3 * MIB,), 7, dtype=torch.uint8))


def test_a_storage_keeps_its_bytes_while_a_transfer_reads_them(monkeypatch):
    gate = Gate(monkeypatch)
    device = CpuDevice(machine(), throttle=True)
    storage = storage_of(MIB, 9)
    seen = []
    with device.running():
        block, stored = down(device, storage)
        device.compute.submit(lambda: device.free(storage, (stored,)))
        device.compute.submit(lambda: (seen.append(storage.nbytes()), gate.open()))
        device.compute.submit(lambda: seen.append(storage.nbytes()), (stored,))
    assert seen == [MIB, 0]
    assert torch.equal(block.bytes, torch.full((MIB,), 9, dtype=torch.uint8))


def test_host_memory_is_used_again_and_waits_for_room():
    device = CpuDevice(machine(ddr=3 * MIB))
    with device.running():
        first, stored = down(device, storage_of(2 * MIB))
        second, later = down(
            device, storage_of(2 * MIB)
        )  # finds no room before the first is given back
        device.compute.submit(
            lambda: (time.sleep(0.02), addresses.append(first.bytes.data_ptr()), first.release()),
            (stored,),
        )
        addresses = []
    assert later.done()
    assert second.bytes.data_ptr() == addresses[0]


def test_what_can_never_find_room_is_said_at_once():
    device = CpuDevice(machine(ddr=3 * MIB))

    def too_much():
        with device.running():
            down(device, storage_of(2 * MIB))
            down(device, storage_of(2 * MIB))

    with pytest.raises(ExecutionError, match="nothing can proceed: no room for store of 'w'"):
        too_much()
    with pytest.raises(
        ExecutionError, match=r"'big' of 4.00 MiB does not fit into ddr of 3.00 MiB"
    ):
        device.block("ddr", 4 * MIB, "big")


def test_the_first_failure_ends_the_run_and_its_threads():
    device = CpuDevice(machine())

    def fail():
        raise ValueError("broken")

    done = []

    def run():
        with device.running():
            device.channel("h2d").submit(fail, label=Label("prefetch of 'w'"))
            gate = device.channel("d2h").submit(lambda: time.sleep(0.05))
            device.compute.submit(
                lambda: done.append(1), (gate, device.channel("h2d").submit(lambda: None))
            )

    with pytest.raises(ValueError, match="broken") as caught:
        run()
    assert not done
    assert device.blame(caught.value) == "prefetch of 'w': ValueError: broken"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hosim")]
    with device.running():  # and the next one is as new
        device.compute.submit(lambda: done.append(2))
    assert done == [2]


def test_threads_are_named_after_their_channels():
    device = CpuDevice(machine(engines=2))
    seen = []
    with device.running():
        device.compute.submit(
            lambda: seen.extend(
                thread.name for thread in threading.enumerate() if thread.name.startswith("hosim ")
            )
        )
    assert sorted(seen) == [
        "hosim d2h",
        "hosim d2h",
        "hosim h2d",
        "hosim h2d",
        "hosim read",
        "hosim write",
    ]


@pytest.mark.parametrize(
    ("label", "what"), [(Label("prefetch of 'w'"), "prefetch of 'w'"), (None, "some work")]
)
def test_work_that_waits_for_what_never_ends(label, what):
    device = CpuDevice(machine())

    def run():
        with device.running():
            device.compute.submit(lambda: None)  # which ends, and is no culprit
            device.channel("h2d").submit(lambda: None, (CpuEvent(),), label)

    with pytest.raises(ExecutionError) as caught:
        run()
    assert str(caught.value) == f"nothing can proceed: {what} waits for work that never ends"
    assert device.blame(caught.value) == str(caught.value)


# --------------------------------------------------------------------------------------------------
# files


def file_tier(folder, direct):
    try:
        return FileTier("nvme", folder, 1 << 30, at_once, direct)
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("size", [1, ALIGNMENT, ALIGNMENT + 1, CHUNK_BYTES, CHUNK_BYTES + 5])
def test_files_keep_bytes(tmp_path, direct, size):
    tier = file_tier(tmp_path, direct)
    block = tier.block(size, "w")
    assert block.take()
    data = os.urandom(size)
    block.write(0, data)
    assert not block.valid  # whoever moves the bytes says when all have come
    back = bytearray(size)
    block.read(0, back)
    assert bytes(back) == data
    assert block.path.stat().st_size == size
    half = size // 2
    part = bytearray(size - half)
    block.read(half, part)  # from a place that is no multiple of anything
    assert bytes(part) == data[half:]
    block.release()
    assert not list(tier.folder.iterdir())
    tier.close()
    assert not list(tmp_path.iterdir())


def test_parts_of_a_file_are_written_in_any_order(tmp_path):
    tier = file_tier(tmp_path, direct=True)
    size = 3 * ALIGNMENT + 10
    data = os.urandom(size)
    block = tier.block(size, "w")
    for start, stop in ((2 * ALIGNMENT, size), (0, ALIGNMENT), (ALIGNMENT, 2 * ALIGNMENT)):
        block.write(start, data[start:stop])
    back = bytearray(size)
    block.read(0, back)
    assert bytes(back) == data
    tier.close()


def test_from_file_to_file(tmp_path):
    size, data = ALIGNMENT + 7, os.urandom(ALIGNMENT + 7)
    tier = file_tier(tmp_path, direct=False)
    source, destination = tier.block(size, "w"), tier.block(size, "w again")
    source.write(0, data)
    destination.write(0, bytes(size))
    copy_bytes(source, destination, 3, size - 1, 0)
    back = bytearray(size)
    destination.read(0, back)
    assert bytes(back) == bytes(3) + data[3:-1] + bytes(1)
    tier.close()


def test_files_over_two_hops(tmp_path):
    device = CpuDevice(machine(), directories={"nvme": tmp_path})
    storage = storage_of(3 * MIB + 3, 5)
    with device.running():
        block, stored = down(device, storage)
        file = device.block("nvme", block.size_bytes, "w")
        written = device.channel("write").submit(
            lambda: device.move("write", block, file, 0, block.size_bytes),
            (stored,),
            None,
            file.take,
        )
        again = device.block("ddr", block.size_bytes, "w")
        device.channel("read").submit(
            lambda: device.move("read", file, again, 0, block.size_bytes),
            (written,),
            None,
            again.take,
        )
    assert torch.equal(again.bytes, view(storage))
    device.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    ("size", "left"),
    [(100, 60), (CHUNK_BYTES + 100, CHUNK_BYTES + 60), (2 * CHUNK_BYTES, CHUNK_BYTES)],
)
def test_a_file_that_something_else_cut_is_not_used(tmp_path, size, left, direct):
    tier = file_tier(tmp_path, direct)
    block = tier.block(size, "w")
    block.write(0, bytes(size))
    os.truncate(block.path, left)
    with pytest.raises(ExecutionError, match=f"ends after {left} B; expected {size} B"):
        block.read(0, bytearray(size))
    tier.close()


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(
        InputError, match="cannot make a folder for tier nvme: No such file or directory"
    ):
        CpuDevice(machine(), directories={"nvme": tmp_path / "none"})
    with pytest.raises(
        InputError, match=r"no tier 'disk' below the device tier of small \(tiers: ddr, nvme\)"
    ):
        CpuDevice(machine(), directories={"disk": tmp_path})
    assert not list(tmp_path.iterdir())


def test_a_file_tier_that_is_forgotten_removes_its_folder(tmp_path):
    device = CpuDevice(replace(machine()), directories={"nvme": tmp_path})
    assert list(tmp_path.iterdir())
    del device
    gc.collect()
    assert not list(tmp_path.iterdir())
