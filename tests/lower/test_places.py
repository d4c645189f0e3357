"""Where tensors lie on a real machine: room in host memory and in files, copies between them, and the timeline of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hosim.cache_plan import PREFETCH, STORE, CacheOp, Plan  # noqa: E402
from hosim.errors import ExecutionError, InputError  # noqa: E402
from hosim.graph import GraphBuilder  # noqa: E402
from hosim.hardware import Compute, Hardware, Tier  # noqa: E402
from hosim.lower.file_tier import FileTier  # noqa: E402
from hosim.lower.host_bytes import DeviceBytes, copy_bytes, part_of  # noqa: E402
from hosim.lower.host_pool import HostPool  # noqa: E402
from hosim.lower.measured_timeline import timeline_of  # noqa: E402
from hosim.lower.tier_memory import memory_of_tiers  # noqa: E402
from hosim.lower.transfers import Done, Label  # noqa: E402
from hosim.result import Stall, Transfer  # noqa: E402


def at_once(after, then):
    then()


def test_host_memory_is_given_and_taken_back():
    """A pool of 100 bytes: blocks of one size share their bytes one after the other, and unused bytes make way for another size."""
    pool = HostPool("ddr", 100, at_once, pinned=False)
    a, b = pool.block(60, "a"), pool.block(40, "b")
    assert (a.take(), b.take(), pool.held_bytes) == (True, True, 100)
    assert (a.bytes.numel(), a.bytes.dtype, a.take(), pool.held_bytes) == (60, torch.uint8, True, 100)
    c = pool.block(60, "c")
    assert (c.take(), c.bytes, pool.held_bytes) == (False, None, 100)
    kept, a.valid = a.bytes, True
    a.release()
    assert (a.valid, a.bytes, pool.held_bytes) == (False, None, 40)
    a.release()
    assert pool.held_bytes == 40
    assert c.take()
    assert c.bytes is kept
    c.release()
    d = pool.block(50, "d")  # 40 held and 60 unused: there is room once the unused go
    assert d.take()
    assert (pool.held_bytes, pool._unused, pool._unused_bytes) == (90, {}, 0)
    d.release()
    b.release()
    assert (pool.held_bytes, pool._unused_bytes) == (0, 90)
    with pytest.raises(ExecutionError) as caught:
        pool.block(101, "big")
    assert str(caught.value) == "tensor 'big' of 101 B does not fit into ddr of 100 B"
    assert pool.block(100, "all").take()


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
    assert str(caught.value) == f"{tmp_path / 'none'}: cannot make a folder for tier nvme: No such file or directory; give a writable one"


TIERS = (Tier("hbm", 1000, 10, "device"), Tier("ddr", 500, 10), Tier("nvme", 2000, 10))


def test_memory_of_every_tier_below_the_device(tmp_path: Path):
    machine = Hardware("toy", TIERS, (), Compute({}), device_tier="hbm")
    made = memory_of_tiers(machine, {"nvme": tmp_path}, at_once, direct=False, pinned=False)
    assert [(name, type(tier), tier.tier, tier.capacity_bytes) for name, tier in made.items()] == [
        ("ddr", HostPool, "ddr", 500),
        ("nvme", FileTier, "nvme", 2000),
    ]
    made["nvme"].close()
    with pytest.raises(InputError) as caught:
        memory_of_tiers(machine, {"hbm": tmp_path}, at_once, direct=False, pinned=False)
    assert str(caught.value) == "directories: no tier 'hbm' below the device tier of toy (tiers: ddr, nvme)"
    with pytest.raises(InputError, match="cannot make a folder for tier nvme") as kept:  # keeps what was made from being collected
        memory_of_tiers(machine, {"ddr": tmp_path, "nvme": tmp_path / "none"}, at_once, direct=False, pinned=False)
    assert not list(tmp_path.iterdir())
    assert kept.tb is not None
    alone = Hardware("alone", TIERS[:1], (), Compute({}), device_tier="hbm")
    with pytest.raises(InputError, match=r"of alone \(tiers: none\)"):
        memory_of_tiers(alone, {"ddr": tmp_path}, at_once, direct=False, pinned=False)


def test_bytes_between_memory_and_files(tmp_path: Path):
    """A tensor of ten bytes goes by parts from memory to a file, to another file, and back; a buffer may hold the second part alone."""
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
    assert (part_of(whole, 4, 10).tolist(), part_of(part, 4, 10).tolist()) == ([5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 10])
    whole.close()
    assert whole.bytes is None
    tier.close()


def test_the_timeline_of_measured_events():
    """Times of a clock that begins at 1000. Op 1 reads what the prefetch brings from 1030 to 1100, and so waits from 1060 to 1105.

    The store of what op 0 made ends within that wait, too, and later, but op 1 does not wait for it.
    """
    builder = GraphBuilder("toy")
    builder.tensor("w", 8, "parameter", "ddr")
    builder.tensor("a", 4)
    builder.tensor("y", 4, "output")
    builder.op("f", "matmul", outputs=["a"], duration_ns=1)
    builder.op("g", "matmul", inputs=["a", "w"], outputs=["y"], duration_ns=1)
    graph = builder.build()
    plan = Plan(graph, "mine", (CacheOp(PREFETCH, 0, "ddr", "hbm", -1), CacheOp(STORE, 1, "hbm", "ddr", 0)))

    def done(queue, start, end, issue, free, **label):
        return Done(queue=queue, start_ns=start, end_ns=end, issue_ns=issue, free_ns=free, label=Label(**label))

    record = [
        done("compute", 1105, 1200, 1000, 1060, text="g", op=1),
        done("compute", 1000, 1060, 1000, 0, text="f", op=0),
        done("h2d", 1030, 1100, 1010, 0, text="w", cache_op=0, size_bytes=8),
        done("d2h", 1062, 1104, 900, 0, text="a", cache_op=1, size_bytes=4),
        done("d2h", 1300, 1310, 1300, 0, text="else"),
    ]
    timeline = timeline_of(plan, record)
    assert (timeline.op_start_ns, timeline.op_end_ns) == ((0, 105), (60, 200))
    assert timeline.transfers == (Transfer(0, 0, "h2d", 8, 10, 30, 100, 0), Transfer(1, 1, "d2h", 4, 0, 62, 104, 0))
    assert timeline.stalls == (Stall(1, "transfer", 60, 105, 0),)
    assert timeline.residencies == ()
    nothing = timeline_of(plan, [])
    assert (nothing.op_start_ns, nothing.stalls, nothing.transfers) == ((-1, -1), (), ())
