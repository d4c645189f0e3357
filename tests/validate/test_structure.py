"""Structural replay: toys with times derived by hand, real traces, and the critical path of
networkx as oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
from kineto_toys import COPY, KERNEL, MEMSET, call, device_op, span, step, trace

from hosim.errors import InputError
from hosim.io.importers.recordings import DeviceOp, KinetoTrace, parse_kineto, read_kineto
from hosim.validate.recorded_steps import (
    GivenNumbers,
    Latencies,
    ReplayedOp,
    StructuralReplay,
    Structure,
    centre,
    label,
    structural_replay,
    structure,
)

TRACES = {
    "a100_training_copies": 8568,
    "rtx2080ti_resnet_pageable_h2d": 9628,
    "v100_resnet50_old_schema": 8772,
    "h100_qwen1.5_0.5b": 1465,
    "mi300x_qwen1.5_0.5b": 1516,
    "h100_bert_small": 60,
    "h100_vit_falconsai": 154,
    "h100_vgg13_training": 292,
    "alexnet": 79,
}
"""Those with more than 50 kernels, and how many they have."""


def of(*events: dict[str, Any]) -> KinetoTrace:
    return parse_kineto(trace(*events), "toy")


def launch(
    at: float,
    correlation: int,
    kernel_at: float,
    duration: float,
    stream: int = 7,
    tid: str = "11",
    **args: Any,
) -> list[dict]:
    """A launch that takes 5 us, and its kernel."""
    return [
        call("cudaLaunchKernel", at, 5, correlation, tid),
        device_op(KERNEL, f"k{correlation}", kernel_at, duration, correlation, stream, **args),
    ]


def starts_us(replayed: StructuralReplay) -> list[float]:
    return [op.simulated_start_ns / 1000 for op in replayed.ops]


def oracle(built: Structure, replayed: StructuralReplay) -> int:
    """Nanoseconds of the longest path through the graph, its streams and the order in which the
    replay gave the room on the device.
    """
    view: networkx.DiGraph[int] = networkx.DiGraph()
    last: dict[str, int] = {}
    ops = built.graph.ops
    for i, op in enumerate(ops):
        view.add_node(i)
        for before in (*op.deps, *([last[op.stream]] if op.stream in last else [])):
            view.add_edge(before, i, weight=ops[before].duration_ns)
        last[op.stream] = i
        view.add_edge(i, "end", weight=op.duration_ns)
    room = sorted(
        (start.simulated_start_ns, bool(ops[head].duration_ns), head)
        for start, head in zip(replayed.ops, built.heads, strict=True)
        if ops[head].workspace_bytes
    )
    filler = -1
    for _, fills, head in room:
        if filler >= 0:
            view.add_edge(filler, head, weight=ops[filler].duration_ns)
        filler = head if fills else filler
    return int(networkx.dag_longest_path_length(view))


# ---- toys: launches of 5 us, kernels 3 us after, 2 us between kernels


SINGLE = (launch(0, 1, 8, 10), launch(30, 2, 38, 100), launch(40, 3, 140, 10))
SYNC = call("cudaDeviceSynchronize", 45, 109, 4)
AFTER = launch(160, 5, 168, 10)


def test_a_synchronisation_is_as_long_as_what_it_waits_for() -> None:
    recording = of(*SINGLE[0], *SINGLE[1], *SINGLE[2], SYNC, *AFTER)
    replayed = structural_replay(structure(recording))
    assert starts_us(replayed) == [8, 38, 140, 168]
    assert replayed.makespan_error == 0
    # Kernels of half their length: 38..88, 90..95; the host returns at 99 and launches 6 us later.
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.5))) == [
        8,
        38,
        90,
        99 + 6 + 8,
    ]
    # Twice their length: the third has to wait for the second, 38..238, 240..260.
    assert starts_us(structural_replay(structure(recording, kernel_scale=2))) == [
        8,
        38,
        240,
        264 + 6 + 8,
    ]
    assert replayed.given.starts == 0
    assert replayed.given.device_durations == 4


def test_a_copy_of_pageable_memory_keeps_the_host() -> None:
    copy = [
        call("cudaMemcpyAsync", 40, 111, 3),
        device_op(COPY, "Memcpy DtoH (Device -> Pageable)", 140, 10, 3, bytes=8),
    ]
    recording = of(*SINGLE[0], *SINGLE[1], *copy, *AFTER)
    assert starts_us(structural_replay(structure(recording))) == [8, 38, 140, 168]
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.5))) == [
        8,
        38,
        90,
        101 + 9 + 8,
    ]


def test_a_free_waits_for_the_device_and_then_takes_its_time() -> None:
    """Recorded as 45..180, of which 30 us after the last kernel had ended; then a launch 6 us
    later.
    """
    recording = of(
        *SINGLE[0], *SINGLE[1], *SINGLE[2], call("cudaFree", 45, 135, 4), *launch(186, 5, 194, 10)
    )
    assert starts_us(structural_replay(structure(recording))) == [8, 38, 140, 194]
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.5))) == [
        8,
        38,
        90,
        95 + 30 + 6 + 8,
    ]


def test_a_free_of_nothing_does_not_wait() -> None:
    recording = of(
        *SINGLE[0], *SINGLE[1], *SINGLE[2], call("cudaFree", 45, 2, 4), *launch(50, 5, 152, 10)
    )
    assert (
        structural_replay(structure(recording, kernel_scale=0.5)).ops[-1].simulated_start_ns
        == 97_000
    )
    assert structural_replay(structure(recording)).contradicted_waits == 1


def test_a_pinned_copy_does_not() -> None:
    copy = [
        call("cudaMemcpyAsync", 40, 5, 3),
        device_op(COPY, "Memcpy DtoH (Device -> Pinned)", 140, 10, 3, bytes=8),
    ]
    recording = of(*SINGLE[0], *SINGLE[1], *copy, *AFTER)
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.5))) == [8, 38, 90, 168]


def sync_record(correlation: int, stream: int, on: int, record: int) -> dict[str, Any]:
    args = {
        "stream": stream,
        "wait_on_stream": on,
        "wait_on_cuda_event_record_corr_id": record,
        "device": 0,
    }
    return span("cuda_sync", "Stream Wait Event", 45, 1, stream, correlation=correlation, **args)


WAITING = (
    *launch(0, 1, 8, 100),
    call("cudaEventRecord", 10, 1, 2),
    *launch(20, 3, 110, 50),
    call("cudaStreamWaitEvent", 40, 1, 4),
)


def test_a_recorded_stream_wait() -> None:
    """The event is recorded between the two kernels of stream 7: stream 20 waits for the first
    alone.
    """
    recording = of(*WAITING, sync_record(4, 20, 7, 2), *launch(50, 5, 112, 10, stream=20))
    replayed = structural_replay(structure(recording))
    assert starts_us(replayed) == [8, 110, 112]
    assert (replayed.stream_waits, replayed.inferred_waits) == (1, 0)
    assert replayed.measured_wait_ns == replayed.simulated_wait_ns == (108 - 58) * 1000
    assert starts_us(structural_replay(structure(recording, kernel_scale=2))) == [8, 210, 212]


def test_an_inferred_stream_wait() -> None:
    """No record says what the wait joins: the stream launched on next, and the other one launched
    on last.
    """
    replayed = structural_replay(structure(of(*WAITING, *launch(50, 5, 164, 10, stream=20))))
    assert starts_us(replayed) == [8, 110, 164]
    assert (replayed.stream_waits, replayed.inferred_waits, replayed.contradicted_waits) == (
        1,
        1,
        0,
    )


def test_an_inference_that_the_recording_contradicts() -> None:
    replayed = structural_replay(structure(of(*WAITING, *launch(50, 5, 58, 10, stream=20))))
    assert starts_us(replayed) == [8, 58, 110]
    assert (replayed.stream_waits, replayed.contradicted_waits) == (0, 1)


def test_a_thread_that_takes_over() -> None:
    """Thread 12 goes on 6 us after thread 11 has synchronised, whenever that is."""
    recording = of(*SINGLE[0], *SINGLE[1], *SINGLE[2], SYNC, *launch(160, 5, 168, 10, tid="12"))
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.5))) == [
        8,
        38,
        90,
        99 + 6 + 8,
    ]


def test_threads_side_by_side() -> None:
    """Thread 12's launches are its own: it has been at work until right before."""
    other = [
        *launch(0, 6, 8, 1, stream=20, tid="12"),
        *launch(152, 5, 160, 10, stream=20, tid="12"),
    ]
    busy = [
        event
        for i in range(7)
        for event in launch(20 * i + 10, 20 + i, 20 * i + 18, 1, stream=20, tid="12")
    ]
    recording = of(*SINGLE[0], *SINGLE[1], *SINGLE[2], SYNC, *other, *busy)
    halved = structural_replay(structure(recording, kernel_scale=0.5))
    assert halved.ops[-1].simulated_start_ns == 160_000


def test_a_full_queue_blocks_the_launch() -> None:
    """A launch a microsecond, kernels of 10: from the 1025th launch on the host waits for the first
    of 1024 to end.
    """
    events = []
    free, host = 0, 0
    ends: list[int] = []
    for n in range(1300):
        begin = host
        if n >= 1024:
            host = max(host, ends[n - 1024])
        host += 1
        start = max(free + 1 if n else 0, host + 3)
        free = start + 10
        ends.append(free)
        events += [
            call("cudaLaunchKernel", begin, host - begin, n),
            device_op(KERNEL, "k", start, 10, n),
        ]
    replayed = structural_replay(structure(of(*events)))
    assert replayed.makespan_error == 0
    assert (
        structural_replay(structure(of(*events), kernel_scale=2)).simulated_ns
        == 1300 * 21_000 - 1_000
    )


DEVICE = {
    "id": 0,
    "name": "Toy",
    "numSms": 10,
    "maxThreadsPerMultiprocessor": 1024,
    "regsPerMultiprocessor": 65536,
}


def test_a_kernel_that_fills_the_device() -> None:
    """40 blocks of 512 threads, 20 at once: others start when the last 20 are placed, half way
    through.
    """
    filling = launch(30, 1, 38, 100, grid=[40, 1, 1], block=[512, 1, 1])
    small = launch(50, 2, 88, 10, stream=20, grid=[1, 1, 1], block=[512, 1, 1])
    document = trace(*launch(0, 3, 8, 1), *filling, *small) | {"deviceProperties": [DEVICE]}
    recording = parse_kineto(document, "toy")
    assert starts_us(structural_replay(structure(recording))) == [8, 38, 88]
    assert starts_us(structural_replay(structure(recording, kernel_scale=2))) == [8, 38, 138]
    assert starts_us(structural_replay(structure(recording, kernel_scale=0.1))) == [8, 38, 58]


def test_launches_under_way_do_not_wait_for_each_other() -> None:
    """24 us from the call to the op, and a launch every 5 us."""
    events = [event for i in range(8) for event in launch(5 * i, 1 + i, 5 * i + 29, 3)]
    latencies = Latencies({"kernel": 24_000}, {}, {}, {}, {}, 0)
    assert starts_us(structural_replay(structure(of(*events), latencies=latencies))) == [
        5 * i + 29 for i in range(8)
    ]


def test_ops_launched_before_the_recording() -> None:
    events = [
        span("cpu_op", "aten::mm", 0, 40),
        device_op(KERNEL, "before", 10, 50, 1),
        device_op(KERNEL, "before", 62, 50, 2),
        *launch(20, 3, 114, 10),
    ]
    replayed = structural_replay(structure(of(*events), kernel_scale=2))
    assert starts_us(replayed) == [10, 112, 214]
    assert replayed.given.starts == 1


def test_kernels_that_overlap_on_a_stream() -> None:
    events = [*launch(0, 1, 8, 100), *launch(10, 2, 105, 50), *launch(20, 3, 157, 10)]
    replayed = structural_replay(structure(of(*events)))
    assert starts_us(replayed) == [8, 105, 157]
    assert [op.simulated_end_ns for op in replayed.ops] == [108_000, 155_000, 167_000]
    assert replayed.given.overlaps == 1


def test_a_graph_launch_releases_all_its_kernels() -> None:
    events = [
        call("cudaGraphLaunch", 0, 10, 1),
        *(device_op(KERNEL, f"k{i}", 12 + 11 * i, 10, 1) for i in range(3)),
    ]
    assert starts_us(structural_replay(structure(of(*events)))) == [12, 23, 34]


def test_one_kernel() -> None:
    replayed = structural_replay(structure(of(*SINGLE[0])))
    assert (replayed.measured_ns, replayed.simulated_ns) == (10_000, 10_000)


def test_no_launches() -> None:
    with pytest.raises(InputError) as caught:
        structural_replay(structure(of(device_op(KERNEL, "k", 0, 1, 1))))
    assert (
        str(caught.value)
        == "toy: no launch of a kernel or copy was recorded; record with ProfilerActivity.CPU as "
        "well"
    )


def test_the_step_of_the_reader() -> None:
    replayed = structural_replay(structure(parse_kineto(step(), "step")))
    assert replayed.makespan_error == pytest.approx(0, abs=0.02)
    assert replayed.measured_overlap_ns == replayed.simulated_overlap_ns == 0


# ---- whole graphs

GIVEN = Latencies(
    launch={"kernel": 3_000, "memset": -1_000},
    entry={"copy d2h pageable small": 6_000, "copy h2d pageable": 4_000},
    back={"device_sync": 4_000, "copy d2h pageable small": 1_000, "copy h2d pageable": -2_000},
    unblocked={"device_sync": 7_000},
    gap={
        ("kernel", "kernel"): 2_000,
        ("kernel", "copy"): 500,
        ("copy", "copy"): 600,
        ("copy", "kernel"): 700,
        ("kernel", "memset"): 800,
    },
    wait=900,
)
EVERY_CALL = (
    *launch(0, 1, 8, 10),
    call("cudaFree", 10, 20, 2),
    call("cudaDeviceSynchronize", 34, 7, 3),
    call("cudaMemcpyAsync", 50, 30, 4),
    device_op(COPY, "Memcpy DtoH (Device -> Pageable)", 57, 18, 4, bytes=8),
    call("cudaMemcpyAsync", 90, 10, 5),
    device_op(COPY, "Memcpy HtoD (Pageable -> Device)", 95, 15, 5, bytes=100_000),
    call("cudaLaunchKernel", 106, 3, 6, "12"),
    device_op(KERNEL, "k6", 115, 5, 6),
    call("cudaMemsetAsync", 110, 6, 7, "12"),
    device_op(MEMSET, "Memset", 122, 3, 7, bytes=8),
    call("cudaLaunchKernel", 200, 6, 8),
    device_op(KERNEL, "k8", 210, 60, 8),
    call("cudaLaunchKernel", 236, 4, 9, "12"),
    device_op(KERNEL, "k9", 265, 11, 9),
)


def listed(built: Structure) -> list[tuple[str, str, int, tuple[int, ...], int]]:
    return [
        (op.name, op.stream, op.duration_ns, op.deps, op.workspace_bytes) for op in built.graph.ops
    ]


def test_the_graph_of_every_kind_of_call() -> None:
    """Of one stream, whose kernels need no room; with the constants of :data:`GIVEN`."""
    built = structure(of(*EVERY_CALL), latencies=GIVEN)
    assert listed(built) == [
        ("host.0", "host11", 5_000, (), 0),  # until the launch's end
        ("latency.1", "lane0.host11", 3_000, (0,), 0),
        ("kernel.2", "stream7", 10_000, (1,), 0),
        ("host.3", "host11", 5_000, (), 0),  # until the free, at 10
        ("host.4", "host11", 12_000, (2,), 0),  # the kernel ended at 18, the free at 30
        ("host.5", "host11", 4_000, (), 0),
        ("sync.6", "host11", 3_000, (), 0),  # 7 without anything to wait for, 4 of these after it
        ("return.7", "host11", 4_000, (2,), 0),
        (
            "host.8",
            "host11",
            20_000,
            (),
            0,
        ),  # from 41 to 61: the call ends at 80, 1 after the copy, which takes 18
        ("gap.9", "stream7", 500, (), 0),
        ("copy.10", "stream7", 18_000, (8,), 0),
        ("return.11", "host11", 1_000, (10,), 0),
        (
            "host.12",
            "host11",
            10_000,
            (),
            0,
        ),  # from 80 to the start of the next one's, which would leave it nothing: 100 + 2 - 15
        ("gap.13", "stream7", 600, (), 0),
        ("copy.14", "stream7", 13_000, (12,), 0),
        ("rest.15", "stream7", 2_000, (), 0),  # the host goes on without it
        ("return.16", "host11", 0, (14,), 0),
        (
            "host.17",
            "host12",
            9_000,
            (16,),
            0,
        ),  # a new thread takes over at 100, and launches until 109
        ("latency.18", "lane0.host12", 3_000, (17,), 0),
        ("gap.19", "stream7", 700, (), 0),
        ("kernel.20", "stream7", 5_000, (18,), 0),
        (
            "host.21",
            "host12",
            6_000,
            (),
            0,
        ),  # until 115: a memset starts 1 before its call, which ends at 116, is over
        ("gap.22", "stream7", 800, (), 0),
        ("memset.23", "stream7", 3_000, (21,), 0),
        (
            "host.24",
            "host11",
            106_000,
            (),
            0,
        ),  # from 100: 84 after the other's last call is more than a quarter of 100
        ("latency.25", "lane0.host11", 3_000, (24,), 0),
        ("gap.26", "stream7", 2_000, (), 0),  # a kind without samples has the gap of two kernels
        ("kernel.27", "stream7", 55_000, (25,), 0),  # the next one starts 5 before it has ended
        (
            "host.28",
            "host12",
            34_000,
            (24,),
            0,
        ),  # from 206 to 240: 30 after the other's last call is a quarter of 120
        ("latency.29", "lane0.host12", 3_000, (28,), 0),
        ("kernel.30", "stream7", 11_000, (29,), 0),
    ]
    assert built.heads == (2, 10, 14, 20, 23, 27, 30)
    assert built.given == GivenNumbers(
        device_durations=7, host_segments=10, overlaps=1, starts=0, constants=14
    )
    assert built.given.total == 7 + 10 + 1 + 14
    assert built.durations_ns == (10_000, 18_000, 15_000, 5_000, 3_000, 60_000, 11_000)
    assert built.streams == ((0, 1, 2, 3, 4, 5, 6),)
    assert (built.graph.name, built.graph.meta) == (
        "toy",
        {"source": "structure of a profiler trace"},
    )
    scaled = structure(of(*EVERY_CALL), latencies=GIVEN, kernel_scale=0.5)
    assert scaled.durations_ns == (5_000, 18_000, 15_000, 2_500, 3_000, 30_000, 5_500)
    own = structure(of(*EVERY_CALL), latencies=GIVEN, durations_ns=range(1_000, 8_000, 1_000))
    assert own.durations_ns == tuple(range(1_000, 8_000, 1_000))


def queued(start: float, end: float) -> list[tuple[str, str, int, tuple[int, ...], int]]:
    """A stream takes two launches; the third one's call is from ``start`` to ``end``, and the
    kernel that it waits for ends at 58 us.
    """
    third = [call("cudaLaunchKernel", start, end - start, 3), device_op(KERNEL, "k3", 110, 10, 3)]
    fourth = [call("cudaLaunchKernel", 66, 4, 4, "12"), device_op(KERNEL, "k4", 122, 5, 4)]
    return listed(
        structure(of(*launch(0, 1, 8, 50), *launch(5, 2, 58, 50), *third, *fourth), latencies=GIVEN)
    )


def test_the_graph_of_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the call after the wait is its own; a call that ends before the wait does, or
    begins after it, is as it was.
    """
    monkeypatch.setattr("hosim.validate.recorded_steps.step_structure.QUEUE_DEPTH", 2)
    assert queued(10, 60) == [
        ("host.0", "host11", 5_000, (), 0),
        ("latency.1", "lane0.host11", 3_000, (0,), 0),
        ("kernel.2", "stream7", 50_000, (1,), 0),
        ("host.3", "host11", 5_000, (), 0),
        ("latency.4", "lane0.host11", 3_000, (3,), 0),
        ("gap.5", "stream7", 2_000, (), 0),
        ("kernel.6", "stream7", 50_000, (4,), 0),
        ("host.7", "host11", 0, (), 0),
        ("host.8", "host11", 2_000, (2,), 0),
        (
            "latency.9",
            "lane1.host11",
            3_000,
            (8,),
            0,
        ),  # 12 us of work, and the first lane is free after 13
        ("gap.10", "stream7", 2_000, (), 0),
        ("kernel.11", "stream7", 10_000, (9,), 0),
        (
            "host.12",
            "host12",
            10_000,
            (6, 8),
            0,
        ),  # after the second kernel, and after the other thread's call
        ("latency.13", "lane0.host12", 3_000, (12,), 0),
        ("gap.14", "stream7", 2_000, (), 0),
        ("kernel.15", "stream7", 5_000, (13,), 0),
    ]
    assert queued(58, 60)[7] == ("host.7", "host11", 50_000, (2,), 0)
    assert queued(10, 58)[7] == ("host.7", "host11", 48_000, (2,), 0)


def test_the_graph_of_kernels_on_two_streams() -> None:
    """A kernel goes through a gate that needs the room on the device. A stream waits for another
    0.9 us; the one before is over by then.
    """
    recording = of(*WAITING, sync_record(4, 20, 7, 2), *launch(50, 5, 112, 10, stream=20))
    assert listed(structure(recording, latencies=GIVEN))[2:4] + listed(
        structure(recording, latencies=GIVEN)
    )[6:] == [
        ("gate.2", "stream7", 0, (1,), 1),
        ("kernel.3", "stream7", 100_000, (), 0),
        ("gap.6", "stream7", 2_000, (), 0),
        ("gate.7", "stream7", 0, (5,), 1),
        ("kernel.8", "stream7", 50_000, (), 0),
        ("host.9", "host11", 30_000, (), 0),
        ("latency.10", "lane0.host11", 3_000, (9,), 0),
        ("wait.11", "stream20", 900, (3,), 0),
        ("gate.12", "stream20", 0, (10,), 1),
        ("kernel.13", "stream20", 10_000, (), 0),
    ]


def test_the_graph_of_ops_launched_before_the_recording() -> None:
    """The first of each stream is given its start; the one launched at 20..25 us started 89 us
    later, of which one sample explains 20.
    """
    before = [
        device_op(KERNEL, "before", 10, 50, 1),
        device_op(KERNEL, "before", 62, 50, 2),
        device_op(KERNEL, "other", 15, 10, 9, 20),
    ]
    built = structure(of(span("cpu_op", "aten::mm", 0, 40), *before, *launch(20, 3, 114, 10)))
    assert listed(built) == [
        ("given.0", "given1", 10_000, (), 0),
        ("gate.1", "stream7", 0, (0,), 1),
        ("kernel.2", "stream7", 50_000, (), 0),
        ("given.3", "given2", 15_000, (), 0),
        ("gate.4", "stream20", 0, (3,), 1),
        ("kernel.5", "stream20", 10_000, (), 0),
        ("gap.6", "stream7", 2_000, (), 0),
        ("gate.7", "stream7", 0, (), 1),
        ("kernel.8", "stream7", 50_000, (), 0),
        ("host.9", "host11", 25_000, (), 0),
        ("latency.10", "lane0.host11", 20_000, (9,), 0),
        ("gap.11", "stream7", 2_000, (), 0),
        ("gate.12", "stream7", 0, (10,), 1),
        ("kernel.13", "stream7", 10_000, (), 0),
    ]
    assert built.given == GivenNumbers(
        device_durations=4, host_segments=1, overlaps=0, starts=2, constants=3
    )
    assert built.streams == ((0, 2, 3), (1,))


def test_the_graph_of_ops_without_a_launch_among_others() -> None:
    """Before the first call that begins once they have started, and given their starts; a gap is
    the middle of 2 and 12 us.
    """
    without = [device_op(KERNEL, "between", 20, 5, 99), device_op(KERNEL, "last", 60, 5, 98)]
    built = structure(of(*launch(0, 1, 8, 10), *without, *launch(30, 2, 38, 10)))
    assert listed(built) == [
        ("host.0", "host11", 5_000, (), 0),
        ("latency.1", "lane0.host11", 3_000, (0,), 0),
        ("kernel.2", "stream7", 10_000, (1,), 0),
        ("given.3", "given1", 20_000, (), 0),
        ("gap.4", "stream7", 7_000, (), 0),
        ("kernel.5", "stream7", 5_000, (3,), 0),
        ("host.6", "host11", 30_000, (), 0),
        ("latency.7", "lane0.host11", 3_000, (6,), 0),
        ("gap.8", "stream7", 7_000, (), 0),
        ("kernel.9", "stream7", 10_000, (7,), 0),
        ("given.10", "given2", 60_000, (), 0),
        ("gap.11", "stream7", 7_000, (), 0),
        ("kernel.12", "stream7", 5_000, (10,), 0),
    ]


def test_a_launch_that_has_just_ended_frees_its_lane() -> None:
    """A launch every 5 us, each 25 us under way: the sixth has done 30 us of work, and the first
    one's lane is free from then on.
    """
    events = [event for i in range(8) for event in launch(5 * i, 1 + i, 5 * i + 30, 3)]
    latencies = Latencies({"kernel": 25_000}, {}, {}, {}, {}, 0)
    lanes = [
        op.stream
        for op in structure(of(*events), latencies=latencies).graph.ops
        if op.kind == "latency"
    ]
    assert lanes == [f"lane{k}.host11" for k in (0, 1, 2, 3, 4, 0, 1, 2)]


def test_the_constants_of_every_kind_of_call() -> None:
    """From the end of the call to the start of a kernel on a stream at rest 3 and 4 us: the lower
    median. k6, k9 and the memset were not at rest, and were issued less than 20 us before they
    could start. Copies that keep the host start 7 and 5 us into their call.
    """
    found = structure(of(*EVERY_CALL)).latencies
    small, large = "copy d2h pageable small", "copy h2d pageable"
    assert found == Latencies(
        launch={"kernel": 3_000},
        entry={small: 7_000, large: 5_000},
        back={small: 5_000, large: -10_000},
        unblocked={"device_sync": 7_000},
        gap={},
        wait=0,
        samples={
            "launch kernel": 2,
            f"entry {small}": 1,
            f"entry {large}": 1,
            f"back {small}": 1,
            f"back {large}": 1,
            "unblocked device_sync": 1,
        },
    )
    assert found.listed == {
        "launch kernel": 3_000,
        f"entry {small}": 7_000,
        f"entry {large}": 5_000,
        f"back {small}": 5_000,
        f"back {large}": -10_000,
        "unblocked device_sync": 7_000,
        "wait": 0,
    }
    assert found.count == 7


def test_constants_that_were_not_measured() -> None:
    def op(
        kind: str, source: str | None = None, target: str | None = None, size: int | None = 8
    ) -> DeviceOp:
        return DeviceOp(kind, "op", 0, 7, 0, 1, None, size_bytes=size, source=source, target=target)

    kernel, memset = op("kernel"), op("memset")
    down, up = op("copy", "device", "pageable"), op("copy", "pinned", "device")
    assert [label(x) for x in (kernel, memset, down, up)] == [
        "kernel",
        "memset",
        "copy d2h pageable small",
        "copy h2d pinned",
    ]
    sizes = [label(op("copy", "device", "pageable", size)) for size in (None, 65_536, 65_537)]
    assert sizes == ["copy d2h pageable small", "copy d2h pageable small", "copy d2h pageable"]
    assert label(op("copy", "device", "device")).endswith(" device")
    assert [GIVEN.launch_of(x) for x in (memset, kernel, down)] == [-1_000, 3_000, 3_000]
    assert [GIVEN.entry_of(x) for x in (down, up)] == [
        6_000,
        5_000,
    ]  # that of no such copy is the mean of the others
    assert [GIVEN.gap_of(a, b) for a, b in ((kernel, up), (memset, kernel))] == [500, 2_000]
    nothing = Latencies({}, {"copy h2d pinned": -5}, {}, {}, {("kernel", "kernel"): -1}, 0)
    assert (nothing.launch_of(kernel), nothing.entry_of(up), nothing.gap_of(kernel, kernel)) == (
        0,
        0,
        0,
    )
    assert [
        centre(values) for values in ([1000, *[10] * 18, 0], [1000, *[10] * 17, 0], [1, 2])
    ] == [10, 62, 2]


def test_kernels_queued_behind_each_other_have_a_gap() -> None:
    """The second was issued by 25 us, and its stream was free more than 20 us later, at 46: the gap
    is 4 us. At 45 it is not clear.
    """
    for end, gap in ((46, {("kernel", "kernel"): 4_000}), (45, {})):
        assert (
            structure(of(*launch(0, 1, 8, end - 8), *launch(20, 2, end + 4, 5))).latencies.gap
            == gap
        )


def test_a_synchronisation_returns_after_what_it_waits_for() -> None:
    """It is called at 45, its kernel ends at 46, and it returns at 50; one whose kernel has ended
    at its call takes its own time.
    """
    waited = structure(of(*launch(0, 1, 8, 38), call("cudaDeviceSynchronize", 45, 5, 4))).latencies
    assert (waited.back, waited.unblocked) == ({"device_sync": 4_000}, {})
    free = structure(of(*launch(0, 1, 8, 37), call("cudaDeviceSynchronize", 45, 5, 4))).latencies
    assert (free.back, free.unblocked) == ({}, {"device_sync": 5_000})


# ---- figures of a replay


def figures(*ops: ReplayedOp) -> StructuralReplay:
    return StructuralReplay(
        "t",
        None,
        ops,
        *[0] * 8,
        GivenNumbers(0, 0, 0, 0, 0),
        Latencies({}, {}, {}, {}, {}, 0),
        (),
        0,
    )


def off_by(error: int, start: int = 0, kind: str = "kernel", name: str = "k") -> ReplayedOp:
    return ReplayedOp(
        DeviceOp(kind, name, 0, 7, start, start + 10, None), start + error, start + error + 10
    )


def test_errors_of_starts() -> None:
    """Of 20 kernels the 20th error is the 95th percentile, of 100 the 96th; what is no kernel
    counts only where there is none.
    """
    twenty = figures(*(off_by(i if i % 2 else -i) for i in range(20)), off_by(500, kind="copy"))
    assert (twenty.mean_start_error_ns, twenty.p95_start_error_ns) == (round(190 / 20), 19)
    assert figures(*(off_by(i) for i in range(100))).p95_start_error_ns == 95
    assert (
        figures(off_by(7, kind="copy")).mean_start_error_ns,
        figures(off_by(-7)).p95_start_error_ns,
    ) == (7, 7)
    assert len(twenty.kernels) == 20


def test_the_ops_that_are_furthest_off() -> None:
    """Late or early alike; of two that are as far off, the one that was recorded to start first."""
    ops = [off_by(3, 50), off_by(-9, 40), off_by(9, 30), off_by(0, 20)]
    assert [op.op.start_ns for op in figures(*ops).worst()] == [30, 40, 50, 20]
    assert [op.op.start_ns for op in figures(*ops).worst(1)] == [30]
    assert len(figures(*(off_by(i) for i in range(11))).worst()) == 10
    assert (figures(*ops).measured_ns, figures(*ops).simulated_ns) == (60 - 20, 63 - 20)
    assert figures(*ops).makespan_error == 43 / 40 - 1
    instant = ReplayedOp(DeviceOp("kernel", "k", 0, 7, 5, 5, None), 5, 9)
    assert figures(instant).makespan_error == 0


def test_copies_under_kernels() -> None:
    """Kernels run from 0 to 20 and from 30 to 40. Copies overlap each other, and what only touches
    a kernel is not under it.
    """
    times = [(30, 40), (0, 10), (5, 8), (10, 20), (15, 35), (16, 18), (40, 50), (20, 30), (2, 50)]
    events = []
    for n, (start, end) in enumerate(times, 1):
        what = (KERNEL, "k") if n <= 4 else (COPY, "Memcpy HtoD (Pinned -> Device)")
        events += [
            [
                call("cudaLaunchKernel", n, 0.5, n),
                device_op(*what, 100 + start, end - start, n, stream=n),
            ]
        ]

    def overlap(some: list[list[dict[str, Any]]]) -> int:
        return (
            structural_replay(
                structure(of(*[event for pair in some for event in pair]))
            ).measured_overlap_ns
            // 1000
        )

    assert overlap(events) == (5 + 5) + 2 + 0 + 0 + (18 + 10)
    assert overlap(events[4:]) == overlap(events[:4]) == 0


# ---- real traces


@lru_cache
def read(path: Path) -> KinetoTrace:
    return read_kineto(path)


@lru_cache
def replayed_as_recorded(path: Path) -> StructuralReplay:
    return structural_replay(structure(read(path)))


def path_of(shared: Path, name: str) -> Path:
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    return path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if TRACES[name] > 8000 else name
        for name in TRACES
    ],
)
def test_real_traces(shared: Path, name: str, compared: Callable[..., None]) -> None:
    replayed = replayed_as_recorded(path_of(shared, name))
    assert len(replayed.kernels) == TRACES[name]
    compared(
        "recorded GPU", name, "makespan, ns", replayed.measured_ns, replayed.simulated_ns, 0.01
    )
    compared(
        "recorded GPU",
        name,
        "P95 error of starts, ns",
        0,
        replayed.p95_start_error_ns,
        slack=0.01 * replayed.measured_ns,
    )
    assert replayed.given.starts <= 1
    assert replayed.given.constants < 20
    for before, after in pairwise(
        op for op in replayed.ops if op.op.stream == replayed.ops[0].op.stream
    ):
        assert before.simulated_start_ns <= after.simulated_start_ns


@pytest.mark.long
def test_overlap_of_copies_with_kernels(shared: Path, compared: Callable[..., None]) -> None:
    replayed = replayed_as_recorded(path_of(shared, "a100_training_copies"))
    assert replayed.measured_overlap_ns == pytest.approx(34.7e6, rel=0.001)
    measured = replayed.measured_overlap_ns, replayed.measured_wait_ns
    compared(
        "recorded GPU",
        "a100_training_copies",
        "copies under kernels, ns",
        measured[0],
        replayed.simulated_overlap_ns,
        0.03,
    )
    compared(
        "recorded GPU",
        "a100_training_copies",
        "waits for streams, ns",
        measured[1],
        replayed.simulated_wait_ns,
        0.01,
    )


SHORT = [name for name in TRACES if TRACES[name] < 2000]


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for name in SHORT for scale in (0.5, 2)]
    + [pytest.param("a100_training_copies", 2, marks=pytest.mark.long)],
)
def test_scaled_kernels_move_the_makespan_as_the_critical_path_says(
    shared: Path, name: str, scale: float
) -> None:
    recording = read(path_of(shared, name))
    replayed = structural_replay(structure(recording, kernel_scale=scale))
    assert replayed.end_ns == oracle(structure(recording, kernel_scale=scale), replayed)
    as_recorded = replayed_as_recorded(path_of(shared, name))
    longer = sum(op.op.duration_ns for op in as_recorded.kernels) * (scale - 1)
    moved = replayed.simulated_ns - as_recorded.simulated_ns
    assert min(longer, 0) <= moved <= max(longer, 0)


def test_constants_of_one_recording_explain_another(shared: Path) -> None:
    """The launch latencies of one model on an H100 are those of another."""
    latencies = structure(read(path_of(shared, "h100_bert_small"))).latencies
    replayed = structural_replay(
        structure(read(path_of(shared, "h100_vit_falconsai")), latencies=latencies)
    )
    assert abs(replayed.makespan_error) < 0.002
    assert replayed.p95_start_error_ns < 0.002 * replayed.measured_ns
