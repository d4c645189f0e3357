"""The verdict on a recording: what is explained, what is not and why, and the trivial predictions
beside the replay.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kineto_toys import COPY, KERNEL, call, device_op, trace
from rendered import facts

from hosim.gate import assert_explained
from hosim.io.importers.recordings import (
    DeviceOp,
    KinetoTrace,
    parse_kineto,
    program_order,
    read_kineto,
    waits,
)
from hosim.report.of_studies import rival_rows, verdict_lines
from hosim.validate import Validation, validation_to_dict
from hosim.validate.recorded_steps import (
    GivenTimes,
    StartErrors,
    is_collective,
    percentile95,
    start_errors,
    structure,
)
from hosim.validate.replay_verdicts import (
    Verdict,
    behind,
    beyond,
    by_held_host,
    by_launches,
    complaint,
    replay_and_judge,
    starts_given,
    within,
)


def chain(
    count: int, late: dict[int, float] | None = None, moved: float = 0
) -> list[dict[str, Any]]:
    """Launches of 5 us every 20 us, and their kernels of 10 us, 3 us after; from those in ``late``
    on, all are that much later.
    """
    events, host = [], moved
    for i in range(count):
        delay = (late or {}).get(i, 0)
        events.append(call("cudaLaunchKernel", host, 5, i + 1))
        events.append(device_op(KERNEL, f"k{i}", host + 8 + delay, 10, i + 1))
        if delay:  # the host waits for it
            events.append(call("cudaDeviceSynchronize", host + 10, 8 + delay + 4, 1000 + i))
            host += delay + 20
        host += 20
    return events


def launch(correlation: int) -> list[dict[str, Any]]:
    return [call("cudaLaunchKernel", 0, 5, correlation), device_op(KERNEL, "k", 8, 10, correlation)]


def of(*events: dict[str, Any]) -> KinetoTrace:
    return parse_kineto(trace(*events), "toy")


def test_launches_alone_and_launches_with_synchronisations() -> None:
    """Kernels of 100 and 10 us, launched until 5 and 15; the host waits from 20 to 120 for the
    first one, which ends at 108, and launches at 130. Launches alone know that the third was
    launched until 135; with waits the host goes on at 115, when the second has ended: 10 us after
    that it launches, as it did, for 5 us.
    """
    recording = of(
        call("cudaLaunchKernel", 0, 5, 1),
        device_op(KERNEL, "a", 8, 100, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        device_op(KERNEL, "b", 110, 10, 2),
        call("cudaDeviceSynchronize", 20, 105, 3),
        call("cudaLaunchKernel", 135, 5, 4),
        device_op(KERNEL, "c", 143, 10, 4),
    )
    order = program_order(recording)
    assert by_launches(recording, order) == (5_000, 105_000, 140_000)
    assert by_held_host(recording, order, waits(recording, order)) == (5_000, 105_000, 130_000)


def test_trivial_predictions_of_a_copy_that_blocks_and_of_ops_launched_before() -> None:
    """The first op has its recorded start, 0; the next follows it at 10. The copy keeps the host
    from 20 to 40, and ends at 35.
    """
    recording = of(
        device_op(KERNEL, "before", 0, 10, 77),
        device_op(KERNEL, "before too", 15, 10, 78),
        call("cudaMemcpyAsync", 20, 20, 1),
        device_op(COPY, "Memcpy DtoH (Device -> Pageable)", 28, 7, 1, bytes=8),
        call("cudaLaunchKernel", 50, 5, 2),
        device_op(KERNEL, "a", 58, 10, 2),
    )
    order = program_order(recording)
    assert by_launches(recording, order) == (0, 10_000, 40_000, 55_000)
    # the copy takes from 20 to 27, 13 less than its call did
    assert by_held_host(recording, order, waits(recording, order)) == (0, 10_000, 20_000, 42_000)


def test_a_copy_whose_bytes_are_not_recorded_counts_without_bytes() -> None:
    recording = of(
        call("cudaMemcpyAsync", 0, 5, 1),
        device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 8, 7, 1, bytes=8),
        call("cudaMemcpyAsync", 10, 5, 2),
        device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 20, 9, 2),
    )
    times, verdict = replay_and_judge(recording)
    report = validation_to_dict(Validation("toy", "GPU", times, None, (), verdict))
    copies = {key: report["copies"][key] for key in ("count", "bytes", "total_ns")}
    assert copies == {"count": 2, "bytes": 8, "total_ns": 16_000}


def test_errors_of_starts_in_every_way() -> None:
    """Kernels at 0, 20 and 50 of 10 us; predicted at 5, 25 and 60: gaps of 10 and 25 where 10 and
    20 were recorded.
    """
    ops = [DeviceOp("kernel", "k", 0, 7, at, at + 10, None) for at in (0, 20, 50)]
    found = start_errors(ops, [5, 25, 60])
    assert (found.span_ns, found.makespan_ns, found.p95_ns, found.aligned_p95_ns) == (60, 65, 10, 5)
    assert (found.gap_p95_ns, found.gaps_ns, found.waiting_ns, found.idle_ns) == (5, 5, 30, 30)
    assert (found.worst_ns, found.of_idle, found.of_waiting) == (10, 5 / 30, 5 / 30)
    assert found.makespan_error == 65 / 60 - 1
    nothing = start_errors([], [])
    assert (nothing.makespan_error, nothing.of_span, nothing.of_idle, nothing.of_waiting) == (
        0,
        0,
        None,
        None,
    )
    assert percentile95([-3, 2]) == 3


def test_what_counts_as_behind() -> None:
    ops = [DeviceOp("kernel", "k", 0, 7, at, at + 10, None) for at in (0, 990)]
    near, far = start_errors(ops, [0, 993]), start_errors(ops, [0, 1002])
    assert (near.worst_ns, far.worst_ns) == (3, 12)
    assert (behind(near, far), behind(far, near), behind(far, near, far)) == (0, 9, 9)
    assert (within(near), within(far), within(far, 0.02)) == (True, False, True)


def test_an_explained_recording() -> None:
    _, found = replay_and_judge(of(*chain(20)))
    assert (found.explained, found.spans, found.rest, found.rest_explained) == (
        True,
        (),
        None,
        True,
    )
    assert complaint(found, 0.01) == ""
    assert complaint(None, 0.01) == "not validated: it cannot be replayed in time"


def delayed() -> KinetoTrace:
    """One of 40 kernels starts 500 us later than its launch says, and nothing in the recording says
    why.
    """
    return of(*chain(40, {20: 500}))


def test_a_delay_is_named_with_its_span_and_its_cause() -> None:
    recording = delayed()
    _, found = replay_and_judge(recording)
    assert not found.explained
    (span,) = found.spans
    assert (span.ops, span.calls, span.cause, span.off_ns) == (
        (20,),
        (),
        "a wait on the device without cause",
        500_000,
    )
    assert (span.start_ns, span.end_ns) == (408_000, 908_000)
    assert found.rest is not None
    assert found.rest_explained
    assert found.rest.worst_ns < found.errors.worst_ns / 100
    given = starts_given(structure(recording), GivenTimes(frozenset({20})))
    assert (
        max(abs(start - op.start_ns) for start, op in zip(given, recording.ops, strict=True))
        < 1_000
    )
    assert complaint(found, 0.01) == "not validated: a wait on the device without cause"


def test_reports_of_the_verdict() -> None:
    recording = delayed()
    times, found = replay_and_judge(recording)
    data = validation_to_dict(Validation("toy", None, times, None, (), found))
    assert data["explained"] is False
    (reason,) = data["reasons"]
    assert reason == {
        "cause": "a wait on the device without cause",
        "start_ns": 408_000,
        "end_ns": 908_000,
        "off_ns": 500_000,
        "ops": [[20, 20]],
        "calls": [],
        "names": ["k20"],
        "streams": [7],
    }
    assert facts(verdict_lines(data)[0]).startswith("1, 0.0")
    assert facts(verdict_lines(data)[1]) == "1, 408 us, 908 us"
    assert rival_rows(data["errors"])[0][0] == "makespan"
    rest = {**data, "errors": {**data["errors"], "rest_explained": False}}
    assert "not known" in verdict_lines(rest)[0]
    assert verdict_lines({**data, "explained": True})[0].startswith("validated: ")


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        (
            [
                device_op(KERNEL, "old", 0, 10, 900),
                device_op(KERNEL, "older", 5_000, 10, 901),
                *chain(9, moved=6_000),
            ],
            "launched before the recording began",
        ),
        (
            [
                *chain(20),
                call("cudaGraphLaunch", 420, 20, 500),
                *(
                    device_op(KERNEL, f"g{i}", at, 10, 500)
                    for i, at in enumerate((450, 470, 9_000, 9_020))
                ),
            ],
            "edges inside a CUDA graph unknown",
        ),
        (
            [
                *chain(20),
                call("cudaLaunchKernel", 420, 5, 500),
                device_op(KERNEL, "ncclDevKernel_AllReduce", 9_000, 10, 500, 20),
            ],
            "a collective that waits for other ranks",
        ),
        (
            [
                *chain(20),
                call("cudaLaunchKernel", 9_000, 5, 500),
                device_op(KERNEL, "k", 500, 10, 500),
            ],
            "damaged",
        ),
        (
            [
                *chain(20),
                call("cudaDeviceSynchronize", 395, 9_000, 499),
                *(one | {"ts": one["ts"] + 9_500} for one in launch(500)),
            ],
            "a host gap without cause",
        ),
        (
            [
                *chain(20),
                call("cudaStreamWaitEvent", 415, 2, 400),
                call("cudaLaunchKernel", 420, 5, 500),
                device_op(KERNEL, "k", 9_000, 10, 500),
            ],
            "launched before the recording began",
        ),
    ],
    ids=["before", "graph", "collective", "damaged", "host", "waited"],
)
def test_causes(events: list[dict[str, Any]], cause: str) -> None:
    recording = of(*events)
    _, found = replay_and_judge(recording)
    assert not found.explained
    assert cause in [span.cause for span in found.spans]


def test_names_of_collectives() -> None:
    names = (
        "ncclDevKernel_AllGather_RING_LL",
        "void cross_device_reduce_1stage<half>",
        "ncclKernel_SendRecv",
        "allreduce_fusion",
    )
    assert all(map(is_collective, names))
    assert not any(map(is_collective, ("reduce_kernel", "gemm", "gather_kernel")))


def test_a_shift_and_another_order_of_events_change_nothing() -> None:
    events = chain(40, {20: 500})
    expected = replay_and_judge(of(*events))[1]
    moved = [{**event, "ts": event["ts"] + 12_345} for event in events]
    random.Random(3).shuffle(moved)
    assert replay_and_judge(of(*moved))[1] == expected


def test_a_kernel_on_the_critical_path_moves_the_makespan_by_its_length() -> None:
    """Kernels queued behind one another: one of twice its length is felt to the end."""
    events = [event for i in range(9) for event in chain_of_queued(i)]
    recording = of(*events)
    longer = [
        2 * op.duration_ns if i == 4 else op.duration_ns for i, op in enumerate(recording.ops)
    ]
    latencies = structure(recording).latencies
    from hosim.validate.recorded_steps import structural_replay

    before, after = (
        structural_replay(structure(recording, latencies=latencies, durations_ns=d))
        for d in (None, longer)
    )
    assert after.simulated_ns - before.simulated_ns == recording.ops[4].duration_ns


def chain_of_queued(i: int) -> list[dict[str, Any]]:
    return [
        call("cudaLaunchKernel", 6 * i, 5, i + 1),
        device_op(KERNEL, f"k{i}", 8 + 102 * i, 100, i + 1),
    ]


def test_perturbed_starts_are_not_followed() -> None:
    """Each kernel up to 3 us later than it was: the replay stays where the launches are, but for
    the constants.
    """
    recording = of(*chain(40))
    draw = random.Random(5)
    late = [draw.randrange(3_000) for _ in recording.ops]
    ops = tuple(
        replace(op, start_ns=op.start_ns + d, end_ns=op.end_ns + d)
        for op, d in zip(recording.ops, late, strict=True)
    )
    latencies = structure(recording).latencies
    from hosim.validate.recorded_steps import structural_replay

    a, b = (
        structural_replay(structure(one, latencies=latencies))
        for one in (recording, replace(recording, ops=ops))
    )
    assert [op.simulated_start_ns for op in a.ops] == [op.simulated_start_ns for op in b.ops]


def test_the_assertion_for_tests(tmp_path: Path) -> None:
    import json

    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(trace(*chain(20))))
    bad.write_text(json.dumps(trace(*chain(40, {20: 500}))))
    assert assert_explained(good).explained
    for arguments, said in (
        ({}, "bad.json: not validated: a wait on the device without cause"),
        ({"max_error": "2"}, "expected a share from 0 to 1 such as '1%', got '2'"),
    ):
        with pytest.raises(pytest.fail.Exception, match=said):
            assert_explained(bad, **arguments)


DEVELOPED_WITH = ("h100_vit_falconsai", "h100_vgg13_training", "mi300x_qwen1.5_0.5b")


@pytest.mark.parametrize("name", DEVELOPED_WITH)
def test_real_recordings_are_explained(shared: Path, name: str) -> None:
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    found: Verdict = replay_and_judge(read_kineto(path))[1]
    assert found.explained
    assert found.errors.worst_ns < min(found.launches.worst_ns, found.held_host.worst_ns)


def test_a_real_recording_may_be_shifted_and_shuffled(shared: Path) -> None:
    import gzip
    import json

    path = shared / "data" / "traces" / "event_sync_multi_stream.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    document = json.loads(gzip.decompress(path.read_bytes()))
    moved = [
        {**event, "ts": event["ts"] + 4_096} if "ts" in event else event
        for event in document["traceEvents"]
    ]
    random.Random(11).shuffle(moved)
    expected, found = (
        replay_and_judge(parse_kineto(one, "t"))[1]
        for one in (document, {**document, "traceEvents": moved})
    )
    assert found == expected


@pytest.mark.parametrize(
    ("makespan", "p95", "said"),
    [
        (1020, 5, "validated, but 2.00 % of the span off, more than 1.00 %"),
        (995, 15, "validated, but 1.50 % of the span off, more than 1.00 %"),
        (990, 10, ""),
    ],
)
def test_a_bound_is_said_with_what_is_compared_with_it(makespan: int, p95: int, said: str) -> None:
    """Makespan and starts count, not the starts after aligning the first op."""
    assert beyond(StartErrors(1000, makespan, p95, 900, 0, 0, 0, 0), 0.01) == said
