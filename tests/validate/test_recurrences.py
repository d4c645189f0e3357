"""What a recording repeats: waits for other streams and delays that it does not list, of at least
three ops that are alike.
"""

from __future__ import annotations

from typing import Any

import pytest
from kineto_toys import COPY, KERNEL, call, device_op, trace

from hosim.errors import InputError
from hosim.io.importers.recordings import KinetoTrace, parse_kineto, program_order, waits
from hosim.validate import refuse_damage
from hosim.validate.recorded_steps import (
    kernels_wait_for_room,
    recurring_structure,
    structural_replay,
    structure,
)
from hosim.validate.replay_verdicts import replay_and_judge


def of(*events: dict[str, Any]) -> KinetoTrace:
    return parse_kineto(trace(*events), "toy")


def launch(
    at: float, number: int, name: str, start: float, duration: float, stream: int = 7
) -> list[dict[str, Any]]:
    return [
        call("cudaLaunchKernel", at, 5, number),
        device_op(KERNEL, name, start, duration, number, stream),
    ]


def steps(count: int, late: Any, name: str = "late", duration: Any = 200) -> list[dict[str, Any]]:
    """Steps of 1 ms: on stream 20 one kernel, at 8 us; on stream 7 one at 30 us and another which
    ``late(step)`` moves.
    """
    events = []
    for k in range(count):
        at = 1000 * k
        long = duration(k) if callable(duration) else duration
        events += launch(at, 3 * k + 1, "other", at + 8, long, 20)
        events += launch(at + 22, 3 * k + 2, "first", at + 30, 10)
        events += launch(at + 40, 3 * k + 3, name, at + late(k), 50)
    return events


def test_a_wait_that_is_not_recorded_is_inferred_from_its_repetitions() -> None:
    """The other stream's kernel takes 200 to 240 us, and ends 2 us before the late one starts in
    each step.
    """
    recording = of(*steps(5, lambda k: 8 + 200 + 10 * k + 2, duration=lambda k: 200 + 10 * k))
    built = recurring_structure(structure(recording))
    late = [i for i, op in enumerate(recording.ops) if op.name == "late"]
    assert {i: [recording.ops[a].name for a in built.waits.of_ops[i]] for i in late} == {
        i: ["other"] for i in late
    }
    assert (built.waits.inferred, built.known.delays) == (5, {})
    times, found = replay_and_judge(recording)
    assert found.explained
    assert times.inferred_waits == 5
    longer = [2 * op.duration_ns if op.name == "other" else op.duration_ns for op in recording.ops]
    moved = structural_replay(
        structure(recording, durations_ns=longer, latencies=built.latencies, known=built.known)
    )
    assert [op.simulated_start_ns for op in moved.ops if op.op.name == "late"] > [
        op.op.start_ns for op in moved.ops if op.op.name == "late"
    ]


def test_a_delay_that_recurs_is_one_constant() -> None:
    """Without anything that ends before it: 300, 302, 304 us after the launch."""
    recording = of(*steps(3, lambda k: 45 + 300 + 2 * k, duration=20))
    built = recurring_structure(structure(recording))
    (recurring,) = built.known.recurring
    assert (recurring.name, recurring.stream, recurring.samples) == ("late", 7, 3)
    assert recurring.low_ns <= recurring.delay_ns <= recurring.high_ns == recurring.low_ns + 4_000
    times, found = replay_and_judge(recording)
    assert found.explained
    assert times.given.constants == times.constants.count + 1


@pytest.mark.parametrize(
    "events",
    [
        steps(2, lambda k: 345, duration=20),
        steps(6, lambda k: 345 if k < 3 else 700 - 50 * k, duration=20),
    ],
    ids=["two", "not the same"],
)
def test_what_does_not_recur_stays_unexplained(events: list[dict[str, Any]]) -> None:
    assert recurring_structure(structure(of(*events))).known.recurring == ()
    assert not replay_and_judge(of(*events))[1].explained


def test_a_delay_inside_a_graph_of_which_the_recording_has_the_rest() -> None:
    """Three launches of a graph, whose second node starts 400 us after the first; of one before the
    recording there are only the nodes.
    """
    events = []
    for k in range(-1, 3):
        at = 1000 * k
        if k >= 0:
            events.append(call("cudaGraphLaunch", at, 5, 10 + k))
        events += [
            device_op(KERNEL, name, at + start, 10, 10 + k)
            for name, start in (("a", 8), ("b", 418), ("c", 430))
        ]
    built = recurring_structure(structure(of(*events)))
    assert len(built.known.delays) == 4
    assert [one.name for one in built.known.recurring] == ["b"]


def room(starts: float) -> KinetoTrace:
    """Three times a kernel of 400 blocks on a device that holds 4, and one of another stream that
    could start 10 us after it.
    """
    events = []
    for k in range(3):
        at = 10_000 * k
        events += [
            call("cudaLaunchKernel", at, 5, 2 * k + 1),
            call("cudaLaunchKernel", at + 10, 5, 2 * k + 2),
        ]
        events.append(
            device_op(
                KERNEL, "big", at + 8, 4000, 2 * k + 1, 7, grid=[400, 1, 1], block=[512, 1, 1]
            )
        )
        events.append(
            device_op(
                KERNEL, "small", at + starts, 10, 2 * k + 2, 20, grid=[1, 1, 1], block=[32, 1, 1]
            )
        )
    document = trace(*events)
    document["deviceProperties"][0] |= {"numSms": 1, "maxThreadsPerMultiprocessor": 2048}
    return parse_kineto(document, "room")


@pytest.mark.parametrize(("starts", "waits_for_room"), [(4000, True), (18, False)])
def test_kernels_wait_for_room_if_most_of_them_did(starts: float, waits_for_room: bool) -> None:
    recording = room(starts)
    order = program_order(recording)
    assert kernels_wait_for_room(recording, order, waits(recording, order)) is waits_for_room
    assert replay_and_judge(recording)[1].explained


def twice(
    first: tuple[float, float],
    second: tuple[float, float],
    kind: str = KERNEL,
    api: str = "cudaLaunchKernel",
) -> KinetoTrace:
    """Two ops of one stream, by when they start and how long they take."""
    a, b = (
        device_op(kind, f"op{n}", start, duration, n)
        for n, (start, duration) in enumerate((first, second), 1)
    )
    return of(call(api, 0, 5, 1), a, call(api, 10, 5, 2), b)


@pytest.mark.parametrize(
    ("recording", "over"),
    [
        (twice((20, 800), (300, 200)), "200 us"),  # the second one ends before the first one
        (twice((20, 3000), (1500, 3000)), "1.52 ms"),
        (twice((20, 500), (300, 500), COPY, "cudaMemcpyAsync"), "220 us"),
    ],
    ids=["inside", "long", "copies"],
)
def test_ops_of_one_stream_that_run_at_once_are_refused(recording: KinetoTrace, over: str) -> None:
    with pytest.raises(
        InputError,
        match=f"damaged: two ops of stream 7 run at once for {over}, which no GPU allows",
    ) as refused:
        refuse_damage(recording, "t.json")
    assert refused.value.source == "t.json"


def test_overlaps_that_devices_allow() -> None:
    refuse_damage(twice((20, 500), (515, 500)), "t.json")  # by 5 us
    refuse_damage(
        twice((20, 500), (300, 500)), "t.json"
    )  # a launch that does not wait for the end of the kernel before
    refuse_damage(twice((20, 800), (300, 200), KERNEL, "hipLaunchKernel"), "t.json")
    graph = [
        device_op(KERNEL, name, at, duration, 1)
        for name, at, duration in (("a", 8, 900), ("b", 300, 100))
    ]
    refuse_damage(of(call("cudaGraphLaunch", 0, 5, 1), *graph), "t.json")


def test_a_graph_on_a_stream_of_its_own_is_ordered_on_that_of_its_launch() -> None:
    """Stream 7 has a kernel before the launch and one after; the nodes run on stream 20. A kernel
    that did not wait is left alone.
    """

    def recording(after: float) -> KinetoTrace:
        nodes = [device_op(KERNEL, name, at, 100, 2, 20) for name, at in (("n0", 60), ("n1", 162))]
        return of(
            *launch(0, 1, "before", 8, 50),
            call("cudaGraphLaunch", 10, 5, 2),
            *nodes,
            *launch(30, 3, "after", after, 10),
        )

    def awaited(trace_: KinetoTrace) -> dict[str, list[str]]:
        found = waits(trace_, program_order(trace_))
        return {
            trace_.ops[i].name: [trace_.ops[k].name for k in ones]
            for i, ones in found.of_ops.items()
        }

    assert awaited(recording(264)) == {"n0": ["before"], "after": ["n1"]}
    assert awaited(recording(70)) == {"n0": ["before"]}
    assert replay_and_judge(recording(264))[0].inferred_waits == 2


def test_the_first_op_of_a_device_that_was_busy_has_its_start() -> None:
    """It was launched 5 ms before it started, with nothing before it in the recording; that is one
    number that is given.
    """
    events = [
        event for k in range(20) for event in launch(20 * k, k + 1, f"k{k}", 5_000 + 12 * k, 10)
    ]
    times, found = replay_and_judge(of(*events))
    assert found.explained
    assert times.given.starts == 1
    second = [*launch(0, 900, "first", 8, 10), *(one | {"ts": one["ts"] + 100} for one in events)]
    assert not replay_and_judge(of(*second))[
        1
    ].explained  # nobody says what the second one waits for


def test_an_op_that_follows_each_repetition_of_another_waits_for_it() -> None:
    """Of four, one was launched before the recording: what the host's calls say of the others, it
    does as well.
    """
    events = []
    for k in range(4):
        at = 1000 * k
        if k:
            events += launch(at, 10 * k, "a", at + 8, 300)
            events += [
                call("cudaEventRecord", at + 6, 1, 10 * k + 1),
                call("cudaStreamWaitEvent", at + 7, 1, 10 * k + 2),
            ]
            events += launch(at + 10, 10 * k + 3, "b", at + 310, 20, 20)
        else:
            events += [
                device_op(KERNEL, "a", at + 8, 300, 901),
                device_op(KERNEL, "b", at + 2, 4, 902, 20),
            ]
            events.append(device_op(KERNEL, "b", at + 310, 20, 903, 20))
    times, found = replay_and_judge(of(*events))
    assert found.explained
    assert max(abs(op.start_error_ns) for op in times.ops) < 10_000
