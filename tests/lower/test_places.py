"""Where tensors lie on a real machine: room in host memory and in files, copies between them, and
the timeline of what was measured.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

torch = pytest.importorskip("torch")

from hosim.cache_plan import PREFETCH, STORE, CacheOp, Plan  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.graph import GraphBuilder  # noqa: E402
from hosim.hardware import Channel, Compute, Hardware, Tier  # noqa: E402
from hosim.on_torch.lower.tiers import (  # noqa: E402
    ALIGNMENT,
    SLAB_BYTES,
    DeviceBytes,
    Done,
    FileTier,
    HostPool,
    Label,
    copy_bytes,
    memory_of_tiers,
    part_of,
    resizable,
    timeline_of,
)
from hosim.result import Stall, Transfer  # noqa: E402


def at_once(after, then):
    then()


class Pins:
    """Notes what is pinned."""

    def __init__(self):
        self.now = {}

    def pin(self, address, size):
        self.now[address] = size

    def unpin(self, address):
        del self.now[address]


def test_host_memory_is_given_and_taken_back():
    """A pool of 100 bytes in one page: blocks lie at multiples of 64 bytes, and share bytes one
    after the other.
    """
    pins = Pins()
    pool = HostPool("ddr", 100, at_once, pins)
    a, b = pool.block(60, "a"), pool.block(40, "b")
    assert (a.take(), b.take(), pool.held_bytes, pool.system_bytes) == (True, True, 100, 4096)
    assert (a.bytes.numel(), a.bytes.dtype, a.take(), pool.held_bytes) == (
        60,
        torch.uint8,
        True,
        100,
    )
    assert b.bytes.data_ptr() - a.bytes.data_ptr() == 64
    c = pool.block(60, "c")
    assert (c.take(), c.bytes, pool.held_bytes) == (False, None, 100)
    place, a.valid = a.bytes.data_ptr(), True
    a.release()
    assert (a.valid, a.bytes, pool.held_bytes) == (False, None, 40)
    a.release()
    assert pool.held_bytes == 40
    assert c.take()
    assert c.bytes.data_ptr() == place
    assert list(pins.now.values()) == [4096]
    c.release()
    pool.close()  # whatever is in it
    assert (pool.system_bytes, pins.now) == (0, {})
    b.release()
    assert pool.held_bytes == 0
    with pytest.raises(ExecutionError) as caught:
        pool.block(101, "big")
    assert str(caught.value) == "tensor 'big' of 101 B does not fit into ddr of 100 B"
    assert pool.block(100, "all").take()


def test_host_memory_in_pieces_is_never_too_small(monkeypatch):
    """Every second of eight pages is free: a block of two gets a slab of its own."""
    pool = HostPool("ddr", 8 * 4096, at_once)
    blocks = [pool.block(4096, "page") for _ in range(8)]
    assert all([block.take() for block in blocks])
    assert pool.system_bytes == 8 * 4096
    for block in blocks[::2]:
        block.release()
    large = pool.block(2 * 4096, "large")
    assert large.take()
    assert (pool.held_bytes, pool.system_bytes) == (6 * 4096, 10 * 4096)
    for block in blocks[1::2]:
        block.release()  # neighbours become one again
    assert pool.block(6 * 4096, "whole").take()
    assert pool.system_bytes == 10 * 4096
    roomy = HostPool("ddr", 4 * SLAB_BYTES, at_once)
    assert roomy.block(100, "w").take()
    assert roomy.block(SLAB_BYTES + 1, "v").take()
    assert (
        roomy.system_bytes == 2 * SLAB_BYTES + 4096
    )  # a slab of the usual size, and one as large as its block


def test_files_hold_as_much_as_their_tier(tmp_path: Path):
    tier = FileTier("nvme", tmp_path, 100, at_once)
    with pytest.raises(ExecutionError) as caught:
        tier.block(101, "big")
    assert str(caught.value) == "tensor 'big' of 101 B does not fit into nvme of 100 B"
    a, b = tier.block(60, "a"), tier.block(41, "b")
    assert [block.path.name for block in (a, b)] == ["0.bin", "1.bin"]
    assert (a.take(), a.take(), b.take(), tier.held_bytes) == (True, True, False, 60)
    a.release()
    assert (tier.held_bytes, b.take(), tier.held_bytes) == (0, True, 41)
    tier.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError) as caught:
        FileTier("nvme", tmp_path / "none", 100, at_once)
    assert (
        str(caught.value)
        == f"{tmp_path / 'none'}: cannot make a folder for tier nvme: No such file or directory; "
        "give a writable one"
    )


TIERS = (Tier("hbm", 1000, 10, "device"), Tier("ddr", 500, 10), Tier("nvme", 2000, 10))


def test_memory_of_every_tier_below_the_device(tmp_path: Path):
    machine = Hardware("toy", TIERS, (), Compute({}), device_tier="hbm")
    made = memory_of_tiers(machine, {"nvme": tmp_path}, at_once, direct=False)
    assert [(name, type(tier), tier.tier, tier.capacity_bytes) for name, tier in made.items()] == [
        ("ddr", HostPool, "ddr", 500),
        ("nvme", FileTier, "nvme", 2000),
    ]
    made["nvme"].close()
    with pytest.raises(InputError) as caught:
        memory_of_tiers(machine, {"hbm": tmp_path}, at_once, direct=False)
    assert (
        str(caught.value)
        == "directories: no tier 'hbm' below the device tier of toy (tiers: ddr, nvme)"
    )
    with pytest.raises(
        InputError, match="cannot make a folder for tier nvme"
    ) as kept:  # keeps what was made from being collected
        memory_of_tiers(
            machine, {"ddr": tmp_path, "nvme": tmp_path / "none"}, at_once, direct=False
        )
    assert not list(tmp_path.iterdir())
    assert kept.tb is not None
    alone = Hardware("alone", TIERS[:1], (), Compute({}), device_tier="hbm")
    with pytest.raises(InputError, match=r"of alone \(tiers: none\)"):
        memory_of_tiers(alone, {"ddr": tmp_path}, at_once, direct=False)
    shared = replace(machine, channels=(Channel("up", "ddr", "hbm", 9, queue="copies"),))
    with pytest.raises(InputError, match="channels share a queue"):
        memory_of_tiers(shared, {}, at_once, direct=False)


def test_bytes_between_memory_and_files(tmp_path: Path):
    """A tensor of ten bytes goes by parts from memory to a file, to another file, and back; a
    buffer may hold the second part alone.
    """
    tier = FileTier("nvme", tmp_path, 100, at_once)
    one, two = tier.block(10, "one"), tier.block(10, "two")
    values = torch.arange(1, 11, dtype=torch.uint8)
    whole, back, part = DeviceBytes(), DeviceBytes(), DeviceBytes()
    result, second = torch.zeros(10, dtype=torch.uint8), torch.zeros(6, dtype=torch.uint8)
    whole.open(values.untyped_storage(), 10)
    back.open(result.untyped_storage(), 10)
    part.open(second.untyped_storage(), 6)
    assert (whole.size_bytes, part.size_bytes) == (10, 6)
    for start, stop in ((0, 4), (4, 10)):
        copy_bytes(whole, one, start, stop, start)
        copy_bytes(one, two, start, stop, start)
    copy_bytes(two, back, 0, 3, 0)
    assert result.tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0, 0]
    copy_bytes(two, part, 4, 10, 4)
    assert second.tolist() == [5, 6, 7, 8, 9, 10]
    copy_bytes(part, back, 4, 10, 4)
    assert result.tolist() == [1, 2, 3, 0, 5, 6, 7, 8, 9, 10]
    copy_bytes(whole, back, 3, 4, 0)
    assert result.tolist() == list(range(1, 11))
    assert (part_of(whole, 4, 10).tolist(), part_of(part, 4, 10).tolist()) == (
        [5, 6, 7, 8, 9, 10],
        [5, 6, 7, 8, 9, 10],
    )
    whole.close()
    assert whole.bytes is None
    tier.close()


def test_the_timeline_of_measured_events():
    """Times of a clock that begins at 1000. Op 1 reads what the prefetch brings from 1030 to 1100,
    and so waits from 1060 to 1105.

    The store of what op 0 made ends within that wait, too, and later, but op 1 does not wait for
    it.
    """
    builder = GraphBuilder("toy")
    builder.tensor("w", 8, "parameter", "ddr")
    builder.tensor("a", 4)
    builder.tensor("y", 4, "output")
    builder.op("f", "matmul", outputs=["a"], duration_ns=1)
    builder.op("g", "matmul", inputs=["a", "w"], outputs=["y"], duration_ns=1)
    graph = builder.build()
    plan = Plan(
        graph, "mine", (CacheOp(PREFETCH, 0, "ddr", "hbm", -1), CacheOp(STORE, 1, "hbm", "ddr", 0))
    )

    def done(queue, start, end, issue, free, **label):
        return Done(
            queue=queue,
            start_ns=start,
            end_ns=end,
            issue_ns=issue,
            free_ns=free,
            label=Label(**label),
        )

    record = [
        done("compute", 1105, 1200, 1000, 1060, text="g", op=1),
        done("compute", 1000, 1060, 1000, 0, text="f", op=0),
        done("h2d", 1030, 1100, 1010, 0, text="w", cache_op=0, size_bytes=8),
        done("d2h", 1062, 1104, 900, 0, text="a", cache_op=1, size_bytes=4),
        done("d2h", 1300, 1310, 1300, 0, text="else"),
    ]
    timeline = timeline_of(plan, record)
    assert (timeline.op_start_ns, timeline.op_end_ns) == ((0, 105), (60, 200))
    assert timeline.transfers == (
        Transfer(0, 0, "h2d", 8, 10, 30, 100, 0),
        Transfer(1, 1, "d2h", 4, 0, 62, 104, 0),
    )
    assert timeline.stalls == (Stall(1, "transfer", 60, 105, 0),)
    assert timeline.residencies == ()
    nothing = timeline_of(plan, [])
    assert (nothing.op_start_ns, nothing.stalls, nothing.transfers) == ((-1, -1), (), ())


def test_a_storage_that_cannot_be_freed_is_replaced_in_all_views():
    """numpy's memory stays numpy's: the views get a copy of it, each at its own place."""
    array = numpy.arange(12, dtype=numpy.float32)
    whole = torch.from_numpy(array)
    views = [whole, whole[3:11].view(2, 4), whole.view(3, 4).t()[1:]]
    before = [(view.clone(), view.storage_offset(), view.stride()) for view in views]
    storage = resizable(views)
    assert storage.resizable()
    assert {view.untyped_storage()._cdata for view in views} == {storage._cdata}
    for view, (value, offset, stride) in zip(views, before, strict=True):
        assert torch.equal(view, value)
        assert (view.storage_offset(), view.stride()) == (offset, stride)
    array[:] = 7
    assert torch.equal(whole, torch.arange(12.0))
    own = torch.ones(3)
    assert resizable([own]).data_ptr() == own.data_ptr()


def test_a_folder_without_direct_transfers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(InputError) as caught:
        FileTier("nvme", tmp_path, 100, at_once, direct=True)
    message = (
        "its file system has no direct transfers (Invalid argument); leave direct out, or "
        "give another folder"
    )
    assert str(caught.value) == f"{tmp_path}: {message}"
    assert not list(tmp_path.iterdir())
    FileTier("nvme", tmp_path, 100, at_once).close()  # which asks for nothing of the kind


def test_a_file_tier_names_its_folder_and_closes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every file that was opened is closed, and readable by its owner alone."""
    opened, closed, real_open, real_close = [], [], os.open, os.close
    monkeypatch.setattr(os, "open", lambda *given: opened.append(real_open(*given)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda file: closed.append(file) or real_close(file))
    tier = FileTier("nvme", tmp_path, 3 * ALIGNMENT, at_once, direct=True)
    assert (tier.held_bytes, tier.folder.parent, tier.folder.name.startswith("hosim-nvme-")) == (
        0,
        tmp_path,
        True,
    )
    assert not list(tier.folder.iterdir())
    block = tier.block(2 * ALIGNMENT + 3, "w")
    assert block.take()
    data = bytes(range(256)) * 32 + b"end"
    for start, stop in ((0, ALIGNMENT), (ALIGNMENT, 2 * ALIGNMENT + 3)):
        block.write(start, data[start:stop])
    assert block.path.stat().st_mode & 0o777 == 0o600
    assert [
        block._is_direct(start, stop)
        for start, stop in ((0, 4096), (0, 8195), (4096, 8195), (0, 8194), (1, 4096))
    ] == [
        *(True, True, True, False, False),
    ]
    back = bytearray(len(data))
    block.read(0, back)
    assert bytes(back) == data
    assert closed == opened
    assert len(opened) == 4  # a trial, two writes, a read
    tier.close()


def test_a_direct_read_ends_where_the_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reads may give less than was asked for: one goes on at the next multiple of the alignment,
    and ends at anything else.
    """
    tier = FileTier("nvme", tmp_path, 1 << 20, at_once)
    size = 3 * ALIGNMENT
    block = tier.block(size, "w")
    data = os.urandom(size)
    block.write(0, data)
    whole, asked = os.preadv, []

    def some(file, buffers, offset):
        asked.append((offset, len(buffers[0])))
        return whole(file, [buffers[0][: min(len(buffers[0]), limit)]], offset)

    monkeypatch.setattr(os, "preadv", some)
    back = bytearray(size)
    limit = 5000
    block.read(0, back)
    assert bytes(back) == data
    assert asked == [(0, size), (5000, size - 5000), (10000, size - 10000)]
    direct = FileTier("nvme", tmp_path, 1 << 20, at_once, direct=True)
    through = direct.block(size, "w")
    through.write(0, data)

    def some_of_it(
        file, buffers, offset
    ):  # a direct read of another length than the system would give
        asked.append((offset, len(buffers[0])))
        part = data[offset : offset + limit]
        buffers[0][: len(part)] = part
        return len(part)

    monkeypatch.setattr(os, "preadv", some_of_it)
    asked.clear()
    with pytest.raises(
        ExecutionError, match=r"ends after 5000 B; expected 12288 B: another program changed it$"
    ):
        through.read(0, back)
    limit = ALIGNMENT
    back = bytearray(size)
    through.read(0, back)
    assert bytes(back) == data
    assert asked == [(0, size), (0, size), (4096, 8192), (8192, 4096)]
    direct.close()
    monkeypatch.setattr(os, "preadv", some)
    written, real = [], os.pwrite

    def little(file, part, offset):
        written.append((offset, len(part)))
        return real(file, part[:7000], offset)

    monkeypatch.setattr(os, "pwrite", little)
    block.write(0, data[::-1])
    assert written == [(0, size), (7000, 5288)]
    limit = size
    block.read(0, back)
    assert bytes(back) == data[::-1]
    tier.close()
