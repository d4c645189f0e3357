"""What the reader makes of a snapshot, value by value, and every refusal as it is printed."""

import json

import pytest

from hosim.engine.allocators import BlockState, SegmentState
from hosim.errors import InputError
from hosim.validate.snapshots import (
    AllocatorSettings,
    Entry,
    Snapshot,
    parse_snapshot,
    read_snapshot,
)

BLOCK = {"size": 512, "state": "inactive"}
SEGMENT = {
    "address": 4096,
    "total_size": 2560,
    "stream": 3,
    "segment_type": "small",
    "blocks": [BLOCK],
}
ENTRY = {"action": "alloc", "addr": 4096, "size": 7, "stream": 3}


def raw(**more):
    return {"segments": [], "device_traces": [], **more}


def test_a_snapshot_as_read():
    """Blocks without an address follow each other; what a block was asked for is its size unless it
    says so.
    """
    blocks = [
        {"size": 512, "state": "active_allocated", "requested_size": 500},
        {"size": 1024, "state": "active_pending_free"},
        {"size": 256, "state": "active_awaiting_free", "address": 9000},
        {"size": 768, "state": "inactive"},
    ]
    large = {
        **SEGMENT,
        "address": 1 << 20,
        "segment_type": "large",
        "is_expandable": True,
        "segment_pool_id": [1, 2],
        "device": 2,
    }
    trace = [
        ENTRY,
        {**ENTRY, "action": "oom", "time_us": 9, "pool_id": [4, 5]},
        {"action": "snapshot", "size": 0, "stream": 0},
    ]
    settings = {
        "expandable_segments": True,
        "max_split_size": 99,
        "garbage_collection_threshold": 0.5,
        "roundup_power2_divisions": {"1": 4},
    }
    found = parse_snapshot(
        raw(
            segments=[{**SEGMENT, "blocks": blocks}, large],
            device_traces=[trace, []],
            allocator_settings=settings,
        )
    )
    assert found == Snapshot(
        {
            0: (
                SegmentState(
                    address=4096,
                    size_bytes=2560,
                    stream=3,
                    small=True,
                    blocks=(
                        BlockState(4096, 512, "allocated", 500),
                        BlockState(4608, 1024, "pending", 1024),
                        BlockState(9000, 256, "pending", 256),
                        BlockState(4096 + 512 + 1024 + 256, 768, "free", 768),
                    ),
                    expandable=False,
                    pool_id=(0, 0),
                ),
            ),
            2: (
                SegmentState(
                    address=1 << 20,
                    size_bytes=2560,
                    stream=3,
                    small=False,
                    blocks=(BlockState(1 << 20, 512, "free", 512),),
                    expandable=True,
                    pool_id=(1, 2),
                ),
            ),
        },
        (
            (
                Entry("alloc", 4096, 7, 3, 0, None),
                Entry("oom", 4096, 7, 3, 9, (4, 5)),
                Entry("snapshot", 0, 0, 0, 0, None),
            ),
            (),
        ),
        AllocatorSettings(True, 99, 0.5, {1: 4}),
    )


@pytest.mark.parametrize(
    ("given", "limit"),
    [(-1, None), (0, None), (1, 1), ((1 << 62) - 1, (1 << 62) - 1), (1 << 62, None)],
)
def test_a_limit_of_splitting(given, limit):
    assert parse_snapshot(
        raw(allocator_settings={"max_split_size": given})
    ).settings == AllocatorSettings(max_split_bytes=limit)


def test_settings_that_were_not_recorded():
    for settings in ({}, None, {"roundup_power2_divisions": None}):
        assert parse_snapshot(raw(allocator_settings=settings)).settings == AllocatorSettings(
            False, None, 0.0, {}
        )
    assert parse_snapshot(raw()).settings == AllocatorSettings()


def test_the_device_of_a_snapshot():
    """The only one with a history, else with segments, else the first."""
    assert parse_snapshot(raw(device_traces=[[], [ENTRY]])).device(None) == 1
    assert (
        parse_snapshot(raw(segments=[{**SEGMENT, "device": 4}], device_traces=[[]])).device(None)
        == 4
    )
    assert parse_snapshot(raw()).device(None) == 0
    two = parse_snapshot(raw(device_traces=[[ENTRY], [ENTRY]]))
    assert [two.device(d) for d in (0, 1)] == [0, 1]
    for device, message in {
        None: "expected a recording of one device, got one of [0, 1]: name the device",
        2: "expected a device below 2, got 2",
        -1: "expected a device below 2, got -1",
    }.items():
        with pytest.raises(InputError) as caught:
            two.device(device)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected a mapping, got list"),
        ({"segments": []}, "expected the key 'device_traces'"),
        (raw(segments=[{}]), "segments[0]: expected the key 'blocks'"),
        (
            raw(segments=[SEGMENT, {**SEGMENT, "blocks": [{**BLOCK, "state": "lost"}]}]),
            "segments[1]: expected a block state of active_allocated, active_pending_free, "
            "active_awaiting_free, inactive, got 'lost'",
        ),
        (
            raw(segments=[{**SEGMENT, "segment_type": "huge"}]),
            "segments[0]: expected a segment_type 'small' or 'large', got 'huge'",
        ),
        (
            raw(device_traces=[[], [ENTRY, {**ENTRY, "action": "sing"}]]),
            "device_traces[1][1]: expected an action of alloc, free_completed, free_requested, "
            "oom, segment_alloc, segment_free, "
            "segment_map, segment_unmap, snapshot, user_defined, got 'sing'",
        ),
        (
            raw(device_traces=[[{**ENTRY, "size": 1.5}]]),
            "device_traces[0][0]: expected a size from 0 to 4398046511104 bytes, got 1.5",
        ),
        (
            raw(device_traces=[[{**ENTRY, "addr": "x"}]]),
            "device_traces[0][0]: expected a whole number of at most 62 bits, got 'x'",
        ),
        (raw(device_traces=[5]), "device_traces[0]: object of type 'int' has no len()"),
        (raw(allocator_settings=[1]), "allocator_settings: 'list' object has no attribute 'get'"),
    ],
)
def test_refusals(content, message):
    with pytest.raises(InputError) as caught:
        parse_snapshot(content, source="file")
    assert str(caught.value) == f"file: {message}"


def test_no_more_blocks_and_entries_than_bytes():
    content = raw(segments=[SEGMENT, SEGMENT], device_traces=[[ENTRY]])
    assert len(parse_snapshot(content, largest=3).histories) == 1
    for largest, where in ((2, "device_traces[0]"), (1, "segments[1]")):
        with pytest.raises(InputError) as caught:
            parse_snapshot(content, largest=largest)
        assert (
            str(caught.value)
            == f"{where}: expected no more than {largest} blocks and entries in a file of as many "
            "bytes"
        )


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(raw()))
    size = path.stat().st_size
    monkeypatch.setenv("HOSIM_LIMITS", f"file_bytes={size}")
    assert read_snapshot(str(path)) == Snapshot({}, ())
    monkeypatch.setenv("HOSIM_LIMITS", f"file_bytes={size - 1}")
    with pytest.raises(InputError, match=f"expected at most {size - 1}B in a file, got {size}B; "):
        read_snapshot(path)
    monkeypatch.undo()
    path.write_text("{")
    with pytest.raises(InputError) as caught:
        read_snapshot(path)
    assert str(caught.value).startswith(
        f"{path}: expected a memory snapshot (JSON, or a pickle of plain containers): Expecting "
        "property name"
    )
