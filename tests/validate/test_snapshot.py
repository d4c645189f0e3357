"""Recorded allocators replayed: real recordings, and those of an allocator written independently
(`naive_device`).
"""

import gzip
import json
import pickle
import random

import pytest
from naive_device import LARGE, MIB, SMALL, NaiveDevice
from rendered import facts

from hosim.errors import InputError
from hosim.validate.snapshots import parse_snapshot, read_snapshot, replay_snapshot

REAL = [
    ("gpt_medium_1024_inference", 1280),
    ("gpt_medium_1024_training", 7591),
    ("gpt_medium_256_training", 6624),
]


@pytest.mark.parametrize(("name", "allocations"), REAL)
def test_real_recordings_give_every_recorded_address(shared, name, allocations, compared):
    path = shared / "data" / "snapshots" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    snapshot = read_snapshot(path)
    replay = replay_snapshot(snapshot)
    compared("recorded allocator", name, "addresses", allocations, replay.matched)
    assert replay.allocations == allocations
    assert replay.mismatches == ()
    assert replay.same_end
    assert replay.stats.reserved_bytes == sum(
        segment.size_bytes for segment in snapshot.segments[0]
    )
    assert replay.allocated_bytes[-1] == replay.stats.allocated_bytes
    assert replay.allocated_bytes.max() == replay.stats.peak_allocated_bytes


def run_program(device, seed, steps, sizes, streams=2):
    """A random program on a device: allocations, frees (some waiting for another stream) and
    emptied caches.
    """
    choose = random.Random(seed)
    live, waiting = [], []
    for _ in range(steps):
        action = choose.random()
        if action < 0.55 or not live:
            address = device.malloc(sizes(choose), choose.randrange(streams))
            if address is not None:
                live.append(address)
            # what waited is complete once memory ran out
            waiting = [
                a
                for a in waiting
                if any(
                    a in s["held"] and s["held"][a][2] == "active_pending_free"
                    for s in device.segments
                )
            ]
        elif action < 0.9:
            address = live.pop(choose.randrange(len(live)))
            elsewhere = choose.random() < 0.2
            device.free(address, used_elsewhere=elsewhere)
            if elsewhere:
                waiting.append(address)
        elif action < 0.97:
            if waiting:
                device.complete(waiting.pop(choose.randrange(len(waiting))))
        else:
            device.empty_cache()
            waiting = []
    return device


def any_size(choose):
    top = choose.choice([4096, MIB, 10 * MIB, 64 * MIB])
    return choose.randrange(1, top)


def whole_size(choose):
    """Sizes that leave no rest of up to 1 MiB in the large pool: what a truncated history cannot
    tell does then not matter.
    """
    return choose.choice([choose.randrange(1, MIB), 2 * MIB * choose.randrange(1, 20)])


def assert_exact(raw):
    replay = replay_snapshot(parse_snapshot(json.loads(json.dumps(raw))))
    assert replay.mismatches == ()
    assert replay.matched == replay.allocations
    assert replay.segments_matched == replay.segment_entries
    assert replay.same_end
    return replay


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_whole_histories_of_an_independent_allocator(seed, expandable):
    device = run_program(NaiveDevice(seed, 300 * MIB, expandable=expandable), seed, 400, any_size)
    assert device.retries
    replay = assert_exact(device.snapshot())
    assert replay.allocations > 100
    assert replay.segment_entries > 10
    assert replay.start == ()


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_histories_whose_beginning_is_lost(seed, expandable):
    device = run_program(NaiveDevice(seed, 900 * MIB, expandable=expandable), seed, 400, whole_size)
    for skip in (1, 2, 3, 100, 101, len(device.trace) - 1, len(device.trace)):
        assert_exact(device.snapshot(skip))


SETTINGS = {
    "divisions": {"divisions": 4},
    "garbage collection": {"threshold": 0.5},
    "split limit": {"split_limit": 24 * MIB},
    "all": {"split_limit": 40 * MIB, "divisions": 8, "threshold": 0.7},
    "expandable, divisions": {"expandable": True, "divisions": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_histories_under_other_settings(name, seed):
    device = run_program(NaiveDevice(seed, 300 * MIB, **SETTINGS[name]), seed, 400, any_size)
    assert device.retries
    assert assert_exact(device.snapshot()).segment_entries > 10
    device = run_program(NaiveDevice(seed, 300 * MIB, **SETTINGS[name]), seed, 400, whole_size)
    for skip in (1, 100, 203):
        assert_exact(device.snapshot(skip))


@pytest.mark.parametrize("seed", range(6))
def test_histories_with_a_split_limit(seed):
    device = run_program(NaiveDevice(seed, split_limit=24 * MIB), seed, 300, any_size)
    assert_exact(device.snapshot())


def test_the_end_of_a_truncated_history_agrees_with_the_whole():
    device = run_program(NaiveDevice(3), 3, 200, whole_size)
    whole = replay_snapshot(parse_snapshot(device.snapshot()))
    part = replay_snapshot(parse_snapshot(device.snapshot(80)))
    assert (part.allocated_bytes == whole.allocated_bytes[80:]).all()
    assert (part.reserved_bytes == whole.reserved_bytes[80:]).all()


def entries(*rows):
    return [
        {"action": a, "addr": addr, "size": size, "stream": stream, "time_us": i}
        for i, (a, addr, size, stream) in enumerate(rows)
    ]


def recording(rows, segments=(), **settings):
    return parse_snapshot(
        {
            "segments": list(segments),
            "device_traces": [entries(*rows)],
            "allocator_settings": settings,
        }
    )


def segment(address, size, blocks, kind="large", **more):
    listed = [{"size": size, "requested_size": size, "state": state} for size, state in blocks]
    return {
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": kind,
        "blocks": listed,
        **more,
    }


def test_a_rest_too_small_to_split_is_the_blocks():
    # 11.5 MiB in a segment of 12 MiB was freed: it reached over all 12 MiB, for a rest of 0.5 MiB
    # is not split off.
    rows = [
        ("free_requested", 0x1000000, 11 * MIB + MIB // 2, 0),
        ("free_completed", 0x1000000, 11 * MIB + MIB // 2, 0),
    ]
    (start,) = replay_snapshot(
        recording(rows, [segment(0x1000000, 12 * MIB, [(12 * MIB, "inactive")])])
    ).start
    assert [(b.size_bytes, b.requested_bytes, b.use) for b in start.blocks] == [
        (12 * MIB, 11 * MIB + MIB // 2, "allocated")
    ]


def test_how_far_a_block_reached_shows_when_its_neighbour_comes_back():
    # Two blocks of a segment of 24 MiB, freed right to left: the left one asked for 11.5 MiB and
    # reached 12 MiB, up to the right one.
    base = 0x2000000
    rows = [
        ("free_requested", base + 12 * MIB, 12 * MIB, 0),
        ("free_completed", base + 12 * MIB, 12 * MIB, 0),
        ("free_requested", base, 11 * MIB + MIB // 2, 0),
        ("free_completed", base, 11 * MIB + MIB // 2, 0),
    ]
    (start,) = replay_snapshot(
        recording(rows, [segment(base, 24 * MIB, [(24 * MIB, "inactive")])])
    ).start
    assert [b.size_bytes for b in start.blocks] == [12 * MIB, 12 * MIB]


def test_a_segment_too_many_and_one_too_few_are_mismatches():
    # The recorded allocator asked for a new segment though one of 20 MiB was cached; hosim's takes
    # the cached one.
    base, other = 0x10000000, 0x20000000
    rows = [("segment_alloc", other, LARGE, 0), ("alloc", other, 5 * MIB, 0)]
    segments = [
        segment(base, LARGE, [(LARGE, "inactive")]),
        segment(other, LARGE, [(5 * MIB, "active_allocated"), (15 * MIB, "inactive")]),
    ]
    replay = replay_snapshot(recording(rows, segments))
    assert (
        replay.matched,
        replay.allocations,
        replay.segments_matched,
        replay.segment_entries,
    ) == (0, 1, 0, 1)
    assert [(m.index, m.instead) for m in replay.mismatches] == [
        (0, "asked for none"),
        (1, f"chose address {base}"),
    ]
    assert not replay.same_end
    # And the other way round: no segment recorded, none cached.
    stale = segment(
        base, SMALL, [(512, "active_allocated"), (SMALL - 512, "inactive")], "small", stream_of=1
    )
    replay = replay_snapshot(recording([("alloc", base, 512, 1)], [stale]))
    assert replay.matched == 0
    assert any("2097152 bytes" in m.instead for m in replay.mismatches)


def test_a_history_may_begin_where_memory_has_just_run_out():
    # 15 MiB at the end of the segment at base were set free by waiting for another stream, which
    # was recorded before what is left of the history; they could serve the 8 MiB, but after that
    # wait PyTorch asks the driver, which has room once a segment went back.
    base, gone, new = 0x10000000, 0x20000000, 0x30000000
    rows = [
        ("segment_free", gone, 34 * MIB, 1),
        ("segment_alloc", new, LARGE, 0),
        ("alloc", new, 8 * MIB, 0),
    ]
    segments = [
        segment(base, LARGE, [(5 * MIB, "active_allocated"), (15 * MIB, "inactive")]),
        segment(new, LARGE, [(8 * MIB, "active_allocated"), (12 * MIB, "inactive")]),
    ]
    assert replay_snapshot(recording(rows, segments)).exact
    # Not at the beginning, nothing says so: the 15 MiB were cached all the time, and should have
    # served.
    rows = [("free_requested", gone - MIB, 512, 0), *rows]
    segments.append(
        segment(
            gone - 2 * MIB,
            SMALL,
            [(MIB, "inactive"), (512, "active_pending_free"), (MIB - 512, "inactive")],
            "small",
        )
    )
    assert not replay_snapshot(recording(rows, segments)).exact


def test_entries_of_a_users_own_are_passed_over():
    base = 0x10000000
    rows = [
        ("user_defined", 0, 0, 0),
        ("segment_alloc", base, SMALL, 0),
        ("alloc", base, 100, 0),
        ("snapshot", 0, 0, 0),
    ]
    held = segment(base, SMALL, [(512, "active_allocated"), (SMALL - 512, "inactive")], "small")
    assert replay_snapshot(recording(rows, [held])).exact


def test_a_cached_segment_that_stays_is_a_mismatch():
    base, other = 0x10000000, 0x20000000
    rows = [("segment_free", other, SMALL, 0)]
    replay = replay_snapshot(recording(rows, [segment(base, LARGE, [(LARGE, "inactive")])]))
    assert [facts(m.instead) for m in replay.mismatches] == [f"{LARGE}, {base}"]
    assert replay_snapshot(
        recording(
            rows, [segment(base, LARGE, [(LARGE, "inactive")])], garbage_collection_threshold=0.8
        )
    ).exact


def test_private_pools_are_kept_apart():
    # A CUDA graph's pool has a free block that fits; the allocation outside it may not take it, the
    # one inside does.
    shared_base, private_base = 0x20000000, 0x10000000
    segments = [
        segment(
            private_base,
            SMALL,
            [(512, "active_allocated"), (SMALL - 512, "inactive")],
            "small",
            segment_pool_id=(0, 1),
        ),
        segment(
            shared_base,
            SMALL,
            [(512, "active_allocated"), (SMALL - 512, "inactive")],
            "small",
            segment_pool_id=(0, 0),
        ),
    ]
    replay = replay_snapshot(
        recording([("alloc", shared_base, 512, 0), ("alloc", private_base, 100, 0)], segments)
    )
    assert replay.exact


def test_pickles_of_plain_containers_are_read_and_others_refused(tmp_path):
    device = run_program(NaiveDevice(1), 1, 60, any_size)
    raw = device.snapshot()
    expected = parse_snapshot(raw)
    for name, data in {
        "a.pickle": pickle.dumps(raw),
        "b.json": json.dumps(raw).encode(),
        "c.pickle.gz": gzip.compress(pickle.dumps(raw)),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert read_snapshot(tmp_path / name) == expected
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps({"segments": print}))
    with pytest.raises(InputError, match=r"evil.pickle: .*builtins.print"):
        read_snapshot(tmp_path / "evil.pickle")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a memory snapshot"),
        (b"{", "expected a memory snapshot"),
        (b"\x1f\x8bnonsense", "damaged gzip file"),
        (b"\x80\x04garbage", "expected a memory snapshot"),
        (b"[]", "expected a mapping, got list"),
        (b"{}", "expected the key 'segments'"),
        (
            b'{"segments": [], "device_traces": [[{"action": "alloc", "size": 1, "stream": 0}]]}',
            r"device_traces\[0\]\[0\]: expected the key 'addr'",
        ),
        (
            b'{"segments": [], "device_traces": [[{"action": "sing", "addr": 1, "size": 1, '
            b'"stream": 0}]]}',
            r"device_traces\[0\]\[0\]: .*'sing'",
        ),
        (
            b'{"segments": [{"address": 1}], "device_traces": []}',
            r"segments\[0\]: expected the key",
        ),
    ],
)
def test_what_is_not_a_snapshot_is_refused_in_one_line(tmp_path, data, message):
    path = tmp_path / "snapshot"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_snapshot(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("alloc", 4096, 10, 0)],
            r"device_traces\[0\]\[0\]: expected a block held at address 4096",
        ),
        ([("free_completed", 4096, 10, 0)], r"expected a segment from 4096"),
        ([("segment_alloc", 4096, SMALL, 0)], r"expected a segment from 4096"),
        (
            [("segment_free", 4096, SMALL, 0), ("segment_free", 8192, SMALL, 0)],
            r"\[0\]: two segments overlap: one at address 4096, .* at 8192",
        ),
        (
            [("segment_free", 8192, SMALL, 0), ("segment_free", 4096, SMALL, 0)],
            r"\[0\]: two segments overlap: one at address 8192, .* at 4096",
        ),
    ],
)
def test_histories_that_do_not_lead_to_their_end_are_refused(rows, message):
    with pytest.raises(InputError, match=message):
        replay_snapshot(recording(rows))


def test_segments_at_the_end_that_overlap_are_refused():
    twice = [segment(1 << 24, 2 * MIB, []), segment(1 << 24, 2 * MIB, [])]
    with pytest.raises(
        InputError, match="two segments overlap: one at address 16777216, the other at 16777216"
    ):
        replay_snapshot(recording([("snapshot", 0, 0, 0)], twice))


def test_several_devices_want_a_choice():
    one = entries(("segment_free", 1 << 30, SMALL, 0))
    snapshot = parse_snapshot({"segments": [], "device_traces": [one, one]})
    with pytest.raises(InputError, match="name the device"):
        replay_snapshot(snapshot)
    assert replay_snapshot(snapshot, 1).segments_matched == 1
    with pytest.raises(InputError, match="below 2"):
        replay_snapshot(snapshot, 2)


PAGES = 0x4000000
UNMAPPED = ("segment_unmap", PAGES, LARGE, 0)


def lived(address, size):
    """A block that comes and goes."""
    return [(action, address, size, 0) for action in ("alloc", "free_requested", "free_completed")]


@pytest.mark.parametrize(
    ("rows", "small"),
    [
        (
            [("segment_unmap", PAGES, LARGE + 2 * MIB, 0)],
            True,
        ),  # pages of the large pool are mapped 20 MiB at a time
        ([UNMAPPED], False),
        ([*lived(PAGES, MIB), UNMAPPED], True),
        ([*lived(PAGES, MIB + 1), UNMAPPED], False),
        ([*lived(PAGES + LARGE - 512, 512)[1:], UNMAPPED], True),
        ([*lived(PAGES + LARGE, 512)[1:], UNMAPPED], False),  # right behind it
        ([*lived(PAGES - 512, 512)[1:], UNMAPPED], False),
        ([("segment_map", PAGES, 2 * MIB, 0), UNMAPPED], True),
        ([*lived(PAGES, 512), *lived(PAGES, 2 * MIB), UNMAPPED], False),  # the last one tells
        ([UNMAPPED, *lived(PAGES - 512, 512)], False),  # what comes later does not count
    ],
)
def test_which_pool_unmapped_pages_were_of(rows, small):
    """What lies beside the pages is in segments of 2 MiB."""
    beside = [
        segment(at, SMALL, [(SMALL, "inactive")], "small")
        for at in (PAGES - SMALL, PAGES + LARGE + 2 * MIB * (len(rows) == 1))
    ]
    start = replay_snapshot(recording(rows, beside)).start
    assert {
        one.small for one in start if PAGES <= one.address < PAGES + LARGE and one.expandable
    } == {small}
