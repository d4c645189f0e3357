"""Recorded memory replayed: real traces and histories, those of an independent allocator, and some
that contradict themselves.
"""

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from naive_device import MIB, NaiveDevice
from rendered import facts

from hosim.io.importers.recordings import DeviceOp, HostCall, KinetoTrace, MemoryEvent, read_kineto
from hosim.validate import validate, validation_to_dict
from hosim.validate.snapshots import (
    most_growth,
    parse_snapshot,
    read_snapshot,
    replay_from_nothing,
    replay_history,
    replay_memory,
)

# allocated peak of the recording; reserved peak recorded, which is the reserve that it begins with
TRACES = {
    "h100_qwen1.5_0.5b": (2_088_508_416, 2_629_828_608),
    "h100_bert_small": (101_305_344, 121_634_816),
    "h100_vit_falconsai": (231_332_864, 245_366_784),
    "mi300x_qwen1.5_0.5b": (2_219_047_936, 2_533_359_616),
    "h100_vgg13_training": (39_343_881_216, 61_652_074_496),
}


def shared_file(shared, *parts):
    path = shared.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"no file {path}")
    return path


@pytest.mark.parametrize("name", TRACES)
def test_the_curve_of_a_real_trace_is_exact_at_every_event(shared, name, compared):
    replay = replay_memory(read_kineto(shared_file(shared, "traces", f"{name}.json.gz")))
    peak, reserved = TRACES[name]
    assert replay.measured_peak_bytes == peak
    compared("recorded GPU", name, "allocated peak, bytes", peak, replay.simulated_peak_bytes)
    assert replay.max_abs_error_bytes == 0
    assert (replay.simulated_bytes == replay.measured_bytes).all()
    assert replay.mismatches == ()
    assert replay.account == "program"
    assert (replay.measured_reserved_peak_bytes, replay.reserved_peak_bytes) == (reserved, None)
    assert replay.reserved_low_bytes == reserved <= replay.reserved_high_bytes
    assert "were allocated before the recording" in replay.reserved_unknown
    assert (
        replay.reserved_growth_bytes == replay.measured_reserved_growth_bytes == 0
    )  # none of these recordings reserved more than it began with
    assert replay.addresses_matched > 0.4 * replay.allocations


def test_a_trace_of_2021_has_no_totals_and_no_addresses():
    # As the V100 recording: bytes alone, so the level counts from an unknown start.
    replay = replay_memory(
        trace_of(
            [
                event(0, 1024, None),
                event(1, 512, None),
                event(2, -1024, None),
                event(3, -2048, None),
            ]
        )
    )
    assert list(replay.simulated_bytes) == [1024, 1536, 512, -1536]
    assert replay.simulated_peak_bytes == 1536
    assert (
        replay.measured_peak_bytes
        is replay.max_abs_error_bytes
        is replay.reserved_peak_bytes
        is replay.start_bytes
        is None
    )
    assert (
        replay.reserved_error
        is replay.reserved_growth_bytes
        is replay.measured_reserved_growth_bytes
        is None
    )


def test_a_trace_without_memory_events_says_so(shared):
    replay = replay_memory(read_kineto(shared_file(shared, "traces", "event_sync.json.gz")))
    assert replay.events == 0
    assert (
        replay.measured_peak_bytes
        is replay.simulated_peak_bytes
        is replay.max_abs_error_bytes
        is replay.reserved_peak_bytes
        is None
    )


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("gpt_medium_1024_inference", 1_966_080),
        ("gpt_medium_1024_training", 6_881_280),
        ("gpt_medium_256_training", 13_762_560),
    ],
)
def test_histories_of_real_allocators(shared, name, rest):
    snapshot = read_snapshot(shared_file(shared, "snapshots", f"{name}.json.gz"))
    replay = replay_history(snapshot)
    assert replay.mismatches == ()
    assert (replay.simulated_reserved_bytes == replay.measured_reserved_bytes).all()
    assert replay.addresses_matched == replay.allocations
    # All choices are the recorded ones: the allocator's curve is the measurement, and what blocks
    # keep beyond requests is in it.
    assert replay.max_abs_error_bytes == 0
    assert (replay.simulated_bytes - replay.requested_bytes).max() == rest
    assert (replay.simulated_bytes >= replay.requested_bytes).all()


def trace_of(events):
    return KinetoTrace("toy", 0, (), (), (), (), tuple(events), (), {})


def event(time, size, address, allocated=None, reserved=None, device_type=1, device=0):
    return MemoryEvent(time, device_type, device, size, "1", address, allocated, reserved, None)


def recorded(seed, steps, skip=0):
    """A random program on an independent allocator, with the totals that its own state gives."""
    choose = random.Random(seed)
    device = NaiveDevice(seed)
    live, events = [], []
    for time in range(steps):
        if choose.random() < 0.6 or not live:
            address = device.malloc(choose.randrange(1, choose.choice([4096, MIB, 30 * MIB])))
            live.append(address)
            size = device.segment_of(address)["held"][address][0]
        else:
            address = live.pop(choose.randrange(len(live)))
            size = -device.segment_of(address)["held"][address][0]
            device.free(address)
        allocated = sum(
            block[0] for segment in device.segments for block in segment["held"].values()
        )
        events.append(event(time, size, address, allocated, device.reserved()))
    return events[skip:]


@pytest.mark.parametrize("seed", range(8))
def test_recordings_of_an_independent_allocator_are_exact(seed):
    replay = replay_memory(trace_of(recorded(seed, 300)))
    assert replay.start_bytes == 0
    assert replay.max_abs_error_bytes == 0
    assert (replay.simulated_reserved_bytes == replay.measured_reserved_bytes).all()
    assert replay.reserved_error == 0


@pytest.mark.parametrize("seed", range(4))
def test_recordings_whose_beginning_is_lost(seed):
    replay = replay_memory(trace_of(recorded(seed, 300, skip=120)))
    assert replay.start_bytes > 0
    assert replay.freed_before > 5
    assert replay.max_abs_error_bytes == 0
    assert replay.mismatches == ()
    assert replay.reserved_error is replay.simulated_reserved_bytes is None
    assert (
        replay.reserved_low_bytes
        <= replay.measured_reserved_peak_bytes
        <= replay.reserved_high_bytes
    )


def test_a_cache_from_before_and_memory_of_streams_and_graphs_are_named():
    """20 MiB in a segment of its own; the recording has 22 MiB reserved after it, so that 2 MiB
    were cached.
    """
    cached = replay_memory(trace_of([event(0, 20 * MIB, 1 << 30, 20 * MIB, 22 * MIB)]))
    assert "2.00 MiB" in facts(cached.reserved_unknown)
    assert (cached.reserved_peak_bytes, cached.reserved_low_bytes, cached.reserved_high_bytes) == (
        None,
        22 * MIB,
        42 * MIB,
    )
    before = [event(0, 20 * MIB, 1 << 30, 30 * MIB, 40 * MIB)]
    capture = HostCall("cudaStreamBeginCapture", "other", "1", 0, 1, None)
    captured = replay_memory(replace(trace_of(before), calls=(capture,)))
    assert (captured.reserved_low_bytes, captured.reserved_high_bytes) == (40 * MIB, None)
    assert captured.reserved_unknown.endswith("; graphs that it captures have memory of their own")
    ops = tuple(DeviceOp("kernel", "k", 0, stream, 0, 1, None) for stream in (7, 9))
    streams = replay_memory(replace(trace_of(before), ops=ops))
    assert streams.reserved_high_bytes is None
    assert streams.reserved_unknown.endswith("; 2 streams may each have free memory of their own")


def test_the_most_that_is_reserved_keeps_freed_blocks_apart_and_free_memory_out():
    """Two blocks of 6 MiB in a segment of 20 MiB are freed, and one of 12 MiB comes: side by side
    they serve it, apart they do not.
    """
    joined = [(0, -6 * MIB), (6 * MIB, -6 * MIB), (50 * MIB, 12 * MIB)]
    assert (replay_from_nothing(joined, 12 * MIB).growth_bytes, most_growth(joined, 12 * MIB)) == (
        0,
        12 * MIB,
    )
    # 1 KiB from before is in a segment of 2 MiB, whose rest may have been held by blocks that are
    # not in the recording
    assert (
        replay_from_nothing([(4096, 512)], 1024).growth_bytes,
        most_growth([(4096, 512)], 1024),
    ) == (0, 2 * MIB)


def test_the_level_is_counted_and_not_read():
    events = recorded(1, 200)
    missing = [e for i, e in enumerate(events) if i != 50]
    assert replay_memory(trace_of(missing)).max_abs_error_bytes >= abs(events[50].size_bytes)
    lying = [
        *events[:80],
        event(80, events[80].size_bytes, events[80].address, events[80].total_allocated + 512, 0),
        *events[81:],
    ]
    replay = replay_memory(trace_of(lying))
    assert replay.max_abs_error_bytes == 512
    assert np.count_nonzero(replay.simulated_bytes != replay.measured_bytes) == 1


def test_a_free_gives_back_what_was_allocated_and_says_if_it_was_recorded_otherwise():
    replay = replay_memory(
        trace_of([event(0, 1024, 4096, 1124, 2 * MIB), event(1, -512, 4096, 100, 2 * MIB)])
    )
    assert list(replay.simulated_bytes) == [1124, 100]
    assert [facts(line) for line in replay.mismatches] == ["1, 512, 4096, 1024"]


def test_contradictions_are_reported_and_the_replay_goes_on():
    events = [
        event(0, 512, 4096, 512, 2 * MIB),
        event(1, 512, 4096, 1024, 2 * MIB),
        event(2, -1024, 8192, 0, 2 * MIB),
    ]
    replay = replay_memory(trace_of(events))
    assert replay.max_abs_error_bytes == 0
    assert any("512, 4096, 512" in facts(line) for line in replay.mismatches)
    assert any(
        "from before the recording are freed, but it begins with 0 bytes" in line
        for line in replay.mismatches
    )
    overlapping = [event(0, -1024, 4096, 4096, 0), event(1, -1024, 4608, 3072, 0)]
    replay = replay_memory(trace_of(overlapping))
    assert replay.reserved_growth_bytes is None
    assert "contradict each other" in replay.mismatches[-1]


def test_many_contradictions_are_listed_in_part():
    events = [event(i, 512, 4096, 512 * (i + 1), 2 * MIB) for i in range(40)]
    replay = replay_memory(trace_of(events))
    assert len(replay.mismatches) == 21
    assert replay.mismatches[-1] == "and 19 more"


def test_the_device_with_most_events_unless_it_is_named():
    events = [
        event(0, 512, 4096, 512, 0),
        event(1, 512, 4096, 512, 0, device=1),
        event(2, 512, 8192, 1024, 0, device=1),
    ]
    events += [event(3, 4, 1, 4, 0, device_type=0) for _ in range(5)]  # the host's
    assert replay_memory(trace_of(events)).device == 1
    assert replay_memory(trace_of(events), device=0).measured_peak_bytes == 512
    assert replay_memory(trace_of(events), device=7).events == 0


def test_histories_of_an_independent_allocator():
    device = NaiveDevice(5)
    live = [device.malloc(size) for size in (100, 3 * MIB, 40 * MIB, 700)]
    for address in (live[1], live[0]):
        device.free(address)
    device.empty_cache()
    device.malloc(5 * MIB)
    replay = replay_history(parse_snapshot(device.snapshot()))
    assert replay.max_abs_error_bytes == 0
    assert (replay.simulated_reserved_bytes == replay.measured_reserved_bytes).all()
    assert (replay.measured_peak_bytes, replay.measured_reserved_peak_bytes) == (
        45 * MIB + 1024,
        62 * MIB,
    )


def snapshot_of_one_block(size, asked, address=1 << 30):
    """A large segment whose only block is larger than what was asked for, as a rest of up to 1 MiB
    is not split off.
    """
    block = {"address": address, "size": size, "requested_size": asked, "state": "active_allocated"}
    segment = {
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large",
        "device": 0,
        "blocks": [block],
    }
    entries = [{"action": "segment_alloc", "addr": address, "size": size, "stream": 0}]
    entries.append({"action": "alloc", "addr": address, "size": asked, "stream": 0})
    return {"segments": [segment], "device_traces": [entries]}


@pytest.mark.parametrize(
    ("asked", "exact"), [(20 * MIB, True), (39 * MIB // 2, True), (18 * MIB, False)]
)
def test_a_block_larger_than_what_was_asked_for_is_measured_as_it_is(tmp_path, asked, exact):
    """What is beyond the request is in the measured curve if the allocator chooses as the recorded
    one did; else nothing is known.
    """
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(snapshot_of_one_block(20 * MIB, asked)))
    report = validation_to_dict(validate(tmp_path / "x.pickle"))
    memory = report["memory"]
    assert (memory["requested_peak_bytes"], memory["start_bytes"]) == (asked, 0)
    assert (memory["measured_peak_bytes"], memory["max_abs_error_bytes"]) == (
        (20 * MIB, 0) if exact else (None, None)
    )
    assert memory["simulated_peak_bytes"] == (20 * MIB if exact else asked)
    assert any("chose otherwise" in line for line in report["missing"]) is not exact


def test_every_figure_of_a_small_recording():
    """1024 bytes from before, of which a block of 512 is freed; one of 512 is allocated and stays,
    one of 1024 comes and goes.
    """
    base = 1 << 21
    events = [
        event(3, 512, base, 1536, 2 * MIB),
        event(5, -512, base + 512, 1024, 2 * MIB),
        event(5, 1024, base + 1024, 2048, 4 * MIB),
        event(9, -1024, base + 1024, 1536, 4 * MIB),  # the total is off by 512
    ]
    replay = replay_memory(trace_of(events))
    assert (
        replay.device,
        replay.account,
        replay.start_bytes,
        replay.events,
        replay.allocations,
    ) == (0, "program", 1024, 4, 2)
    assert (replay.freed_before, replay.freed_before_bytes) == (1, 512)
    assert replay.times_ns.tolist() == [3, 5, 5, 9]
    assert replay.measured_bytes.tolist() == [1536, 1024, 2048, 1536]
    assert replay.simulated_bytes.tolist() == [1536, 1024, 2048, 1024]
    assert (
        replay.measured_peak_bytes,
        replay.simulated_peak_bytes,
        replay.max_abs_error_bytes,
    ) == (2048, 2048, 512)
    assert replay.measured_reserved_bytes.tolist() == [2 * MIB, 2 * MIB, 4 * MIB, 4 * MIB]
    assert (replay.measured_reserved_peak_bytes, replay.measured_reserved_growth_bytes) == (
        4 * MIB,
        2 * MIB,
    )
    # all of it is small: at least what it begins with, and 2 MiB more if nothing cached serves the
    # blocks
    assert (replay.simulated_reserved_bytes, replay.reserved_peak_bytes, replay.reserved_error) == (
        None,
        None,
        None,
    )
    assert (replay.reserved_low_bytes, replay.reserved_high_bytes, replay.mismatches) == (
        2 * MIB,
        4 * MIB,
        (),
    )
    # from the addresses: one segment of 2048; the second block goes to base + 512, where the freed
    # one joins what is free behind it
    assert (replay.reserved_growth_bytes, replay.addresses_matched) == (0, 1)


def test_a_recording_that_starts_at_addresses_grows_from_there():
    """A block of 20 MiB has a segment of its own; the second one, elsewhere, lies in one that the
    recording shows.
    """
    events = [
        event(0, 20 * MIB, 1 << 30, 20 * MIB, 20 * MIB),
        event(1, 30 * MIB, 1 << 31, 50 * MIB, 50 * MIB),
    ]
    replay = replay_memory(trace_of(events))
    assert replay.reserved_growth_bytes == 0
    assert replay.simulated_reserved_bytes.tolist() == [20 * MIB, 50 * MIB]
    assert (replay.reserved_error, replay.reserved_unknown) == (0, None)
    silent = replay_memory(
        trace_of([event(0, 20 * MIB, 1 << 30, 20 * MIB)])
    )  # no word of what was reserved
    assert (silent.reserved_peak_bytes, silent.reserved_low_bytes, silent.reserved_high_bytes) == (
        None,
        20 * MIB,
        None,
    )
    assert replay.addresses_matched == replay.allocations == 2


def test_what_is_known_of_a_recording_without_addresses():
    replay = replay_memory(
        trace_of([event(0, 1024, None, 4096, 2 * MIB), event(1, -2048, None, 2048, 2 * MIB)])
    )
    assert (
        replay.start_bytes,
        replay.allocations,
        replay.freed_before,
        replay.freed_before_bytes,
    ) == (3072, 1, 0, 0)
    assert (replay.simulated_bytes.tolist(), replay.measured_bytes.tolist()) == (
        [4096, 2048],
        [4096, 2048],
    )
    assert replay.measured_reserved_bytes.tolist() == [2 * MIB] * 2
    assert (
        replay.simulated_reserved_bytes
        is replay.reserved_growth_bytes
        is replay.addresses_matched
        is None
    )
    assert replay.mismatches == ()
    assert replay.account == "program"
    nothing = replay_memory(trace_of([event(0, 0, 1)]), device=3)
    assert (nothing.device, nothing.events, nothing.measured_reserved_growth_bytes) == (3, 0, None)


def test_of_two_devices_with_as_many_events_the_first_is_taken():
    events = [
        event(0, 512, 1, device=1),
        event(0, 512, 1, device=0),
        event(0, 256, 1, device_type=2, device=0),
    ]
    assert replay_memory(trace_of(events)).simulated_bytes.tolist() == [512]
    assert replay_memory(trace_of(events)).device == 0
    assert replay_memory(trace_of(events[::-1])).simulated_bytes.tolist() == [512]


def test_contradictions_in_full_and_twenty_of_them():
    events = [event(i, 512, 4096, 512 * (i + 1), 2 * MIB) for i in range(21)]
    full = replay_memory(trace_of(events)).mismatches
    assert facts(full[0]) == "1, 512, 4096, 512"
    assert len(full) == 20
    assert full[-1].startswith("event 20: ")
    early = replay_memory(
        trace_of([event(0, -1024, 4096, 0, 0), event(1, -1, 8192, 0, 0)])
    ).mismatches
    assert [facts(line) for line in early] == ["1025, 1024"]
