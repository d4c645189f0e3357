"""Held-out prediction: nothing of what is predicted is learned from; toys by hand, and the training
traces of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, span, trace
from rendered import facts
from synthetic_trace import TRUTH, recording

from hosim.errors import InputError
from hosim.io.importers.recordings import DeviceOp, KinetoTrace, parse_kineto, read_kineto
from hosim.validate import (
    HeldOut,
    Measurements,
    calibrate,
    hold_out,
    learn_before,
    learn_from,
    learned_part,
    predict_trace,
)
from hosim.validate.op_costs import OpTimes, keys_of, learn
from hosim.validate.recorded_steps import before, issued_from, repetitions


def made(iterations: int, seed: int = 1, **given: Any) -> KinetoTrace:
    return parse_kineto(recording(iterations, seed, **given), "made")


def sequence(names: str, step: int | None = None) -> KinetoTrace:
    """A launch every 10 us, its kernel 5 us later; with ``step``, a range of the profiler around
    every so many.
    """
    events = [event for i, name in enumerate(names) for event in one(name, i)]
    if step:
        events += [
            span("user_annotation", f"ProfilerStep#{i}", 10 * i, 10 * step)
            for i in range(0, len(names), step)
        ]
    return parse_kineto(trace(*events), "sequence")


def one(name: str, i: int, duration: float = 2, blocks: int = 1) -> list[dict[str, Any]]:
    return [
        call("cudaLaunchKernel", 10 * i, 3, i),
        device_op(KERNEL, name, 10 * i + 5, duration, i, grid=[blocks, 1, 1], block=[1, 1, 1]),
    ]


# ---- iterations


def test_ranges_of_the_profiler_are_iterations() -> None:
    found = repetitions(sequence("abcdef" * 2, step=6))
    assert (found.found_by, found.starts_ns) == ("ProfilerStep", (0, 60_000))


def test_repeated_ops_are_iterations() -> None:
    """The first iteration is another one; within an iteration, ops repeat as well."""
    found = repetitions(sequence("zzyx" + "abababcdefgh" * 3))
    assert (found.found_by, found.starts_ns) == ("repeated ops", (40_000, 160_000, 280_000))


@pytest.mark.parametrize(
    "names",
    ["abcdefghijklmnopqrstuvwx", "a", "abcdefghijklmnop" + "qrqrqrqr"],
    ids=["all other", "one", "loop at the end"],
)
def test_no_iterations(names: str) -> None:
    assert repetitions(sequence(names)).count == 1


def test_a_recording_is_parted_by_what_the_host_had_begun() -> None:
    whole = made(4)
    instant = repetitions(whole).starts_ns[2]
    part, rest = before(whole, instant), issued_from(whole, instant)
    assert len(part.ops) + len(rest) == len(whole.ops)
    assert part.ops == tuple(op for i, op in enumerate(whole.ops) if i not in set(rest))
    for op in part.ops:
        assert op.call is not None
        assert part.calls[op.call] == whole.calls[op.call]
        operator = part.calls[op.call].cpu_op
        assert operator is None or part.cpu_ops[operator] == whole.cpu_ops[operator]


# ---- times of ops


def test_the_closest_of_what_is_known() -> None:
    ops = [
        one("k", i, duration, blocks)
        for i, (duration, blocks) in enumerate([(10, 1), (20, 3), (22, 3), (26, 3), (1, 9)])
    ]
    known = parse_kineto(trace(*(event for op in ops for event in op)), "known")
    times = learn(zip(known.ops, keys_of(known, ()), strict=True))

    def predicted(name: str, blocks: int, table: OpTimes = times) -> tuple[int, str]:
        other = parse_kineto(trace(*one(name, 0, 99, blocks)), "other")
        return table.predict(other.ops[0], keys_of(other, ())[0])

    assert predicted("k", 3) == (20_000, "place")  # the first of the three
    assert predicted("k", 2) == (16_000, "name")  # half way from 10 to 22 us
    assert predicted("k", 18) == (2_000, "name")  # twice the largest
    assert predicted("other", 3) == (20_000, "kind")
    assert predicted("k", 3, learn(())) == (0, "nothing")


# ---- the held-out part is not learned from


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_what_is_held_out_leaves_the_fit_as_it_is(factor: float) -> None:
    as_made, other = made(6), made(6, stretched=(3, factor))
    assert [op.duration_ns for op in as_made.ops] != [op.duration_ns for op in other.ops]
    fits = []
    for whole in (as_made, other):
        found = repetitions(whole)
        assert found.count == 6
        fits.append(
            repr(
                (
                    learn_before(whole, found, found.starts_ns[3]),
                    calibrate(Measurements((learned_part(whole, 0.5),))),
                )
            ).encode()
        )
    assert fits[0] == fits[1]
    right, wrong = hold_out(as_made), hold_out(other)
    assert right.ops.median is not None
    assert wrong.ops.median is not None
    assert right.ops.median < 0.05
    assert wrong.ops.median > 0.5
    assert right.iterations == (3, 3)


def test_what_is_held_out_within_one_iteration_is_not_learned_from() -> None:
    """Groups of four like ops: the first two are learned, whatever the others take."""
    names = [("k", blocks) for blocks in (1, 2, 3)] * 4

    def predictions(later: float) -> HeldOut:
        events = [
            event
            for i, (name, blocks) in enumerate(names)
            for event in one(name, i, 2 if i < 6 else later, blocks)
        ]
        whole = parse_kineto(trace(*events), "one")
        return hold_out(whole)

    same, longer = predictions(2), predictions(4)
    assert same.parted == longer.parted
    assert "groups" in same.parted
    assert (same.ops.samples, same.ops.median, longer.ops.median) == (6, 0, 0.5)
    assert same.measured_ns is None
    assert "one iteration only" in same.missing[0]


def test_nothing_alike() -> None:
    with pytest.raises(InputError, match="no two of its ops are alike"):
        hold_out(sequence("abcdef"))


@pytest.mark.parametrize("share", [0, 1, -0.5, 2])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        hold_out(made(2), share)


QUIET = replace(TRUTH, outliers=0, channels=TRUTH.channels[:2])
"""Without copies of pageable memory: they keep the host, which these recordings do not show."""


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_makespan_comes_from_predicted_times(factor: float) -> None:
    """Ops that take three times as long when nobody looks: what is predicted stays, and is a third
    of what is measured.
    """
    kernels = replace(QUIET, channels=())
    as_made = hold_out(made(6, truth=kernels))
    found = hold_out(made(6, truth=kernels, stretched=(3, factor)))
    assert found.predicted_ns == pytest.approx(as_made.predicted_ns, rel=0.02)
    assert found.makespan_error == pytest.approx(1 / factor - 1, abs=0.03)


def test_another_recording_is_predicted() -> None:
    predicted = predict_trace(
        made(3, seed=2, truth=QUIET), learn_from([made(4, seed=1, truth=QUIET)])
    )
    assert predicted.ops.median is not None
    assert predicted.ops.median < 0.05
    assert predicted.transfers.median is not None
    assert predicted.transfers.median < 0.05
    assert predicted.makespan_error == pytest.approx(0, abs=0.05)
    assert set(predicted.levels) == {"exact"}


def test_a_kind_of_host_memory_that_was_not_learned_is_counted() -> None:
    whole = made(3)
    ops = tuple(replace(op, source="array") if op.source == "pageable" else op for op in whole.ops)
    learned = learn_from([whole])
    strange = predict_trace(
        replace(whole, ops=ops),
        learn_from([whole], {k: v for k, v in learned.ways.items() if k[1] == "pinned"}),
    )
    assert strange.strange_transfers > 0


# ---- real traces: 5 % of op times, 10 % of transfers that the clock resolves (all of them step by
# a microsecond)

TRACES = {
    "a100_training_copies": (3, 3),
    "rtx2080ti_resnet_pageable_h2d": (15, 14),
    "v100_resnet50_old_schema": (3, 3),
    "h100_vgg13_training": None,
    "alexnet": (1, 1),
}


LONG = {"a100_training_copies", "rtx2080ti_resnet_pageable_h2d", "v100_resnet50_old_schema"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in TRACES],
)
def test_the_second_half_of_others_recordings(
    shared: Path, name: str, compared: Callable[..., None]
) -> None:
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}: it is the recorded trace that this test reads")
    found = hold_out(read_kineto(path))
    assert found.iterations == TRACES[name]
    subject = f"{name}, second half from the first"
    compared("recorded", subject, "median error of op times", 0, found.ops.median, slack=0.05)
    compared(
        "recorded",
        subject,
        "median error of op times of 20 us or more",
        0,
        found.ops.resolved_median,
        slack=0.05,
    )
    if found.transfers.samples:
        compared(
            "recorded",
            subject,
            "median error of transfers of 20 us or more",
            0,
            found.transfers.resolved_median,
            slack=0.10,
        )
        # those of 1 to 3 steps of the clock cannot be told to 10 %: with them, two of the
        # recordings are beyond it (10.4 and 10.9 %)
        compared(
            "recorded",
            subject,
            "median error of all transfers",
            0,
            found.transfers.median,
            slack=0.11,
        )
    else:
        assert name in (
            "h100_vgg13_training",
            "alexnet",
        )  # the one has no copy, the other none after its first forward pass
    if found.measured_ns is not None:
        compared(
            "recorded", subject, "makespan, ns", found.measured_ns, found.predicted_ns, within=0.05
        )
    else:
        assert name == "h100_vgg13_training"


def test_the_period_is_that_between_the_iterations_learned_from() -> None:
    """Six steps of 60 us: the three that are held out take 180 us by the period; so does each that
    is predicted from elsewhere.
    """
    steps = sequence("abcdef" * 6, step=6)
    found = hold_out(steps)
    assert found.iterations == (3, 3)
    assert found.by_period_ns == 3 * 60_000
    # their first kernel starts 5 us after its launch; the last starts 50 us after that of its step,
    # and takes 2 us
    assert found.measured_ns == 2 * 60_000 + 50_000 + 2_000
    assert found.to_dict()["makespan"]["by_period_error"] == pytest.approx(180 / 172 - 1)
    assert (
        predict_trace(steps, learn_from([sequence("abcdef" * 4, step=6)])).by_period_ns
        == 6 * 60_000
    )


def test_the_report_of_a_part_in_full() -> None:
    """Groups of kernels of 1, 2 and 3 blocks: two of 2 us predict two of 3 us each. Of 33 us, one
    kernel of 3 us is like no other.
    """
    names = [("k", blocks) for blocks in (1, 2, 3)] * 4 + [("z", 1)]
    events = [
        event
        for i, (name, blocks) in enumerate(names)
        for event in one(name, i, 2 if i < 6 else 3, blocks)
    ]
    error = abs(2000 - 3000) / 3000
    nothing = dict.fromkeys(("median", "p95", "resolved_median", "total")) | dict.fromkeys(
        ("samples", "resolved", "zeros"), 0
    )
    assert hold_out(parse_kineto(trace(*events), "one")).to_dict() == {
        "trace": "one",
        "learned_from": ["one"],
        "parted": "within groups of like ops",
        "iterations": None,
        "ops": nothing
        | {
            "samples": 6,
            "median": error,
            "p95": error,
            "total": 12 / 18 - 1,
            "levels": {"shapes": 6},
        }
        | {"unpredicted": 0, "by_profile": None},
        "transfers": nothing | {"not_learned": 0, "ways": []},
        "makespan": dict.fromkeys(
            ("measured_ns", "predicted_ns", "error", "by_period_ns", "by_period_error")
        ),
        "worst": [{"name": "k", "ops": 6, "measured_ns": 18_000, "predicted_ns": 12_000}],
        "missing": [
            "one iteration only: parted within groups of like ops, the first of each group "
            "predict the others",
            "1 op, 9 % of the time, is like no other: left out",
            "the makespan: the rest of the iteration is what it would be learned from",
            "transfers: the held-out part has none",
        ],
    }


def test_shares_of_a_group_and_of_iterations() -> None:
    """Of a group at least one is learned and one predicted; so of iterations."""
    groups = sequence("aaaa" + "bb" + "c")
    assert [hold_out(groups, share).ops.samples for share in (0.1, 0.5, 0.75, 0.99)] == [
        1 + 1,
        2 + 1,
        3 + 1,
        3 + 1,
    ]
    steps = sequence("abcdef" * 6, step=6)
    assert [hold_out(steps, share).iterations for share in (0.01, 0.33, 0.99)] == [
        (5, 1),
        (4, 2),
        (1, 5),
    ]
    assert [len(learned_part(steps, share).ops) for share in (0.01, 0.33, 0.99)] == [30, 24, 6]
    alone = sequence("ab")
    assert learned_part(alone, 0.5) is alone
    with pytest.raises(InputError) as caught:
        hold_out(steps, 1.5)
    assert str(caught.value) == "hold-out: expected a share between 0 and 1, got 1.5"
    with pytest.raises(InputError) as caught:
        hold_out(sequence("abcdef"))
    assert (
        str(caught.value)
        == "sequence: nothing can be held out: no two of its ops are alike; give another "
        "recording with --predict"
    )


def test_the_worst_groups_are_those_with_the_largest_sum_of_errors() -> None:
    """Twelve names, of which the ten furthest off are listed; of two as far off, the first by
    name.
    """
    known = learn_from(
        [
            parse_kineto(
                trace(*(event for i, name in enumerate("abcdefghijkl") for event in one(name, i))),
                "known",
            )
        ]
    )
    durations = {name: 2 + min(k, 10) for k, name in enumerate("lkjihgfedcba")}
    other = parse_kineto(
        trace(
            *(event for i, (name, us) in enumerate(durations.items()) for event in one(name, i, us))
        ),
        "other",
    )
    found = predict_trace(other, known)
    assert [row[0] for row in found.worst] == ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    assert found.worst[0] == ("a", 1, 12_000, 2_000)
    assert (found.parted, found.iterations, found.learned_from, found.levels) == (
        "another recording",
        None,
        ("known",),
        {"exact": 12},
    )
    assert found.by_period_ns is None


def transfer(i: int, size: int, us: float, memory: str = "Pinned") -> list[dict[str, Any]]:
    return [
        call("cudaMemcpyAsync", 100 * i, 3, 50 + i),
        device_op(
            "gpu_memcpy", f"Memcpy HtoD ({memory} -> Device)", 100 * i + 5, us, 50 + i, bytes=size
        ),
    ]


def test_transfers_take_the_median_of_their_size_or_the_time_of_their_channel() -> None:
    """Learned: 1000 bytes in 10, 12 and 20 us, 3000 bytes in 32 us. A kind of memory that is not
    known takes the time of its direction.
    """
    samples = [(1000, 10), (1000, 20), (1000, 12), (3000, 32)]
    learned = learn_from(
        [
            parse_kineto(
                trace(
                    *(
                        event
                        for i, (size, us) in enumerate(samples)
                        for event in transfer(i, size, us)
                    )
                ),
                "known",
            )
        ]
    )
    way = ("h2d", "pinned")
    assert learned.copies == {(way, 1000): 12_000, (way, 3000): 32_000}
    other = parse_kineto(
        trace(*transfer(0, 1000, 16), *transfer(1, 2000, 30), *transfer(2, 2000, 30, "Pageable")),
        "other",
    )
    found = predict_trace(other, learned)
    between = learned.ways[way].predict(2000)
    errors = sorted([4 / 16, abs(between - 30_000) / 30_000])
    assert found.transfers.samples == 2
    assert found.transfers.median == pytest.approx(sum(errors) / 2)
    assert (found.strange_transfers, list(found.ways), found.ways[way].samples) == (1, [way], 2)
    assert found.missing == ()
    assert found.ops.samples == 0
    strange = predict_trace(
        parse_kineto(trace(*transfer(2, 2000, 30, "Pageable")), "strange"), learned
    )
    assert [line.partition(":")[0] for line in strange.missing] == ["transfers"]
    report = found.to_dict()["transfers"]
    assert report["not_learned"] == 1
    assert report["ways"] == [{"direction": "h2d", "memory": "pinned", **found.ways[way].to_dict()}]


def test_the_time_of_an_op_by_what_it_shares_with_others() -> None:
    """Between 10 ns at 4 blocks and 40 ns at 10, a block more is 5 ns; beyond, time grows with the
    blocks; below, it is the smallest's.
    """
    times = OpTimes({"shape": 7}, {"k": ((4, 10), (10, 40)), "none": ((0, 9),)}, {"kernel": 3})

    def predicted(
        blocks: int, *keys: str, name: str = "k", kind: str = "kernel"
    ) -> tuple[int, str]:
        op = DeviceOp(kind, name, 0, 7, 0, 1, None, size_bytes=blocks, grid=(blocks, 1, 1))
        return times.predict(op, keys)

    assert predicted(5, "place", "shape", "grid") == (7, "shapes")
    assert predicted(5, "shape") == (7, "place")
    assert [predicted(blocks, "x")[0] for blocks in (1, 4, 5, 8, 10, 15)] == [
        10,
        10,
        15,
        30,
        40,
        60,
    ]
    assert predicted(5, "x") == (15, "name")
    assert predicted(5, name="none") == (9, "name")
    assert predicted(5, name="other") == (3, "kind")
    assert predicted(5, name="other", kind="memset") == (0, "nothing")


def test_keys_number_like_ops_by_iteration() -> None:
    """A second ``a`` within an iteration is the second of its kind; in the next iteration the count
    begins again.
    """
    steps = sequence("aab" * 2, step=3)
    starts = repetitions(steps).starts_ns
    places = [keys[0][1] for keys in keys_of(steps, starts)]  # type: ignore[index]
    assert places == [0, 1, 0, 0, 1, 0]
    assert [keys[0][1] for keys in keys_of(steps, ())] == [0, 1, 0, 2, 3, 1]  # type: ignore[index]
    grid = ("grid", "a", (1, 1, 1), (1, 1, 1), None)
    assert keys_of(steps, starts)[0] == (
        ("place", 0, ("shapes", *grid, ())),
        ("shapes", *grid, ()),
        grid,
    )


def test_what_is_learned_is_the_lower_median_and_leaves_transfers_out() -> None:
    events = [
        event
        for i, (us, blocks) in enumerate([(4, 2), (2, 2), (8, 1)])
        for event in one("k", i, us, blocks)
    ]
    known = parse_kineto(trace(*events, *transfer(9, 1000, 10)), "known")
    times = learn(zip(known.ops, keys_of(known, ()), strict=True))
    assert times.by_name == {"k": ((1, 8_000), (2, 2_000))}
    assert times.by_kind == {"kernel": 4_000}
    assert set(times.by_key.values()) == {2_000, 4_000, 8_000}


def test_how_much_has_to_repeat() -> None:
    """Of ten ops one may differ, and two may not; half of the recording has to repeat; a period has
    eight ops at least.
    """
    assert repetitions(sequence("abcdefghij" + "abcdefghiX")).starts_ns == (0, 100_000)
    assert repetitions(sequence("abcdefghij" + "abcdefghXY")).count == 1
    assert repetitions(sequence("abcdefgh" * 2)).count == 2
    assert repetitions(sequence("abcdefg" * 2)).count == 1
    other = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert repetitions(sequence(other[:16] + "abcdefgh" * 2)).starts_ns == (160_000, 240_000)
    assert repetitions(sequence(other[:17] + "abcdefgh" * 2)).count == 1
    assert repetitions(sequence("abcdefgh" * 2)).found_by == "repeated ops"
    assert repetitions(sequence("abc", step=3)).found_by == "nothing"  # one range is no repetition


def test_iterations_and_launches_that_are_missing() -> None:
    steps = sequence("abcdef" * 6, step=6)
    assert hold_out(steps).to_dict()["iterations"] == {"learned": 3, "held_out": 3}
    once = predict_trace(
        sequence("ab"), learn_from([steps])
    )  # it does not repeat, what was learned does
    assert (once.iterations, once.by_period_ns, once.measured_ns) == (None, None, 12_000)
    silent = parse_kineto(
        trace(device_op(KERNEL, "a", 5, 2, 0, grid=[1, 1, 1], block=[1, 1, 1])), "silent"
    )
    said = (
        "the makespan: no launch was recorded; record with ProfilerActivity.CPU as well",
        "transfers: the held-out part has none",
    )
    assert predict_trace(sequence("aa"), learn_from([silent])).missing == said
    assert predict_trace(silent, learn_from([steps])).missing == said


def test_an_op_that_is_like_none_before_is_left_out_and_said() -> None:
    """One kernel of two: more than a fifth, so that there is no total, and no makespan."""
    found = predict_trace(sequence("az"), learn_from([sequence("ab")]))
    assert (found.ops.samples, found.ops.total, found.unpredicted, found.measured_ns) == (
        1,
        None,
        1,
        None,
    )
    assert [facts(line) for line in found.missing] == ["1, 2", "", "20 %", ""]
    assert found.missing[3].startswith("transfers: ")
    assert (
        predict_trace(sequence("aaaaz"), learn_from([sequence("ab")])).ops.total == 0
    )  # one of five


def test_the_makespan_has_the_latencies_that_were_learned() -> None:
    """The host waits 2 us longer than the first kernel's 20 us, and 6 us later the second launch
    has ended: its latency is learned.
    """

    def waited(latency: int) -> KinetoTrace:
        after = 3 + latency + 20 + 2
        kernels = (
            device_op(KERNEL, "a", 3 + latency, 20, 0),
            device_op(KERNEL, "b", after + 6 + latency, 2, 2),
        )
        calls = (
            call("cudaLaunchKernel", 0, 3, 0),
            call("cudaDeviceSynchronize", 4, after - 4, 1),
            call("cudaLaunchKernel", after + 3, 3, 2),
        )
        return parse_kineto(trace(*calls, *kernels), "waited")

    for learned in (2, 9):
        found = predict_trace(waited(2), learn_from([waited(learned)]))
        assert (found.measured_ns, found.predicted_ns) == (
            32_000,
            (20 + 2 + 6 + learned + 2) * 1000,
        )
