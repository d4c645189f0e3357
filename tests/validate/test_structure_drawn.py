"""Structural replay of drawn programs: what it predicts for shorter and longer kernels is what such
programs do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_toys import COPY, KERNEL, call, device_op, span, trace

from hosim.io.importers.recordings import parse_kineto, read_kineto
from hosim.validate.recorded_steps import structural_replay, structure

Action = tuple[Any, ...]
LAUNCH, LATENCY, GAP, RETURN, SMALL = 5, 3, 2, 4, 2
"""Microseconds: a launch call, from its end to the op, between ops (and after what is waited for),
back to the host, any other call.
"""

PROLOGUE: Sequence[Action] = (
    ("launch", 7, 100),
    ("launch", 7, 100),
    ("wait", 20, 7),
    ("launch", 20, 100),
    ("stream_sync", 7),
    ("stream_sync", 7),
    ("device_sync",),
    ("device_sync",),
    ("launch", 7, 40),
    ("copy", 7, 10),
    ("work", 100),
    ("copy", 7, 10),
)
"""Something of everything, so that each constant can be fitted."""

streams = st.sampled_from([7, 20, 21])
actions = st.one_of(
    st.tuples(st.just("launch"), streams, st.integers(1, 200).map(lambda n: 2 * n)),
    st.tuples(st.just("wait"), streams, streams),
    st.tuples(st.just("stream_sync"), streams),
    st.tuples(st.just("device_sync")),
    st.tuples(st.just("work"), st.integers(1, 200)),
    st.tuples(st.just("copy"), streams, st.integers(1, 50)),
)


def run(program: Sequence[Action], scale: float) -> tuple[list[dict[str, Any]], list[float]]:
    """The profiler's entries for a program, and the starts of its ops: an account of its own of
    what waits for what.
    """
    host, entries = 0.0, []
    free: dict[int, float] = {}
    owed: dict[int, float] = {}
    starts: list[float] = []

    def op(
        category: str,
        name: str,
        stream: int,
        duration: float,
        released: float,
        number: int,
        **args: Any,
    ) -> float:
        begin = max(released, free.get(stream, -GAP) + GAP, owed.pop(stream, -GAP) + GAP)
        entries.append(device_op(category, name, begin, duration, number, stream, **args))
        starts.append(begin)
        free[stream] = begin + duration
        return free[stream]

    def sync(name: str, number: int, until: float, stream: int | None) -> float:
        end = max(host, until) + RETURN
        entries.append(call(name, host, end - host, number))
        if stream is not None:
            entries.append(
                span(
                    "cuda_sync",
                    "Stream Sync",
                    host,
                    end - host,
                    stream,
                    stream=stream,
                    correlation=number,
                    device=0,
                )
            )
        return end

    for number, (what, *rest) in enumerate(program, start=1):
        match what:
            case "work":
                host += rest[0]
            case "launch":
                entries.append(call("cudaLaunchKernel", host, LAUNCH, number))
                host += LAUNCH
                op(KERNEL, "k", rest[0], rest[1] * scale, host + LATENCY, number)
            case "copy":
                end = (
                    op(
                        COPY,
                        "Memcpy DtoH (Device -> Pageable)",
                        rest[0],
                        rest[1],
                        host + LATENCY,
                        number,
                        bytes=8,
                    )
                    + RETURN
                )
                entries.append(call("cudaMemcpyAsync", host, end - host, number))
                host = end
            case "wait":
                waiter, awaited = rest
                entries.append(call("cudaEventRecord", host, SMALL, 10_000 + number))
                entries.append(call("cudaStreamWaitEvent", host + SMALL, SMALL, number))
                args = {
                    "stream": waiter,
                    "wait_on_stream": awaited,
                    "wait_on_cuda_event_record_corr_id": 10_000 + number,
                    "device": 0,
                }
                entries.append(
                    span(
                        "cuda_sync",
                        "Stream Wait Event",
                        host + SMALL,
                        SMALL,
                        waiter,
                        correlation=number,
                        **args,
                    )
                )
                if waiter != awaited and awaited in free:
                    owed[waiter] = max(owed.get(waiter, -GAP), free[awaited])
                host += 2 * SMALL
            case "stream_sync":
                host = sync("cudaStreamSynchronize", number, free.get(rest[0], 0), rest[0])
            case "device_sync":
                host = sync("cudaDeviceSynchronize", number, max(free.values(), default=0), None)
    return entries, starts


@given(st.lists(actions, max_size=40))
def test_shorter_and_longer_kernels(drawn: list[Action]) -> None:
    program = (*PROLOGUE, *drawn)
    entries, starts = run(program, 1)
    recording = parse_kineto(trace(*entries), "drawn")
    for scale in (1, 0.5, 2):
        replayed = structural_replay(structure(recording, kernel_scale=scale))
        assert sorted(op.simulated_start_ns for op in replayed.ops) == sorted(
            round(1000 * at) for at in run(program, scale)[1]
        )
    assert replayed.given.starts == replayed.given.overlaps == 0
    assert len(replayed.ops) == len(starts)


def test_recorded_starts_are_not_used(shared: Path) -> None:
    """With other starts recorded, each op up to a millisecond later than the one before, the same
    constants give the same replay.
    """
    path = shared / "data" / "traces" / "h100_vit_falconsai.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    recording = read_kineto(path)
    late, moved, draw = 0, [], random.Random(7)
    for op in recording.ops:
        late += draw.randrange(1_000_000)
        moved.append(replace(op, start_ns=op.start_ns + late, end_ns=op.end_ns + late))
    latencies = structure(recording).latencies
    expected = structural_replay(structure(recording, latencies=latencies))
    replayed = structural_replay(
        structure(replace(recording, ops=tuple(moved)), latencies=latencies)
    )
    assert [op.simulated_start_ns for op in replayed.ops] == [
        op.simulated_start_ns for op in expected.ops
    ]
    assert replayed.makespan_error < -0.8
