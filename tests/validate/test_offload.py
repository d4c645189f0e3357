"""Offload schemes predicted from a resident recording: times derived by hand, on the imaginary GPU
of `recorded_toy`.
"""

import json
from itertools import accumulate, product
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_toy import LAYERS, START_BYTES, TEMPORARY, recorded, sweep, write

from hosim.errors import InputError
from hosim.hardware import Channel, Tier
from hosim.io.importers.recordings import parse_kineto
from hosim.validate import validate_schemes
from hosim.validate.kit import SCHEMES, BandwidthSweep, SweptCopies, bandwidth_sweep
from hosim.validate.offloads import (
    Sizes,
    last_step,
    machine_of,
    plan_of,
    predict,
    predict_recording,
)
from hosim.validate.snapshots import replay_from_nothing

US = 1000
RESIDENT = {False: 820 * US, True: (820 + 10 + 1600 + 10 + 10 + 200 + 10) * US}


def swept(speed, both=None):
    """As :func:`recorded_toy.sweep`, as it is read."""
    rows = sweep(speed, both)["copies"]
    return BandwidthSweep(
        tuple(
            SweptCopies(row["direction"], row["pinned"], row["bytes"], tuple(row["ns"]))
            for row in rows
        )
    )


def predicted(
    scheme, *, train, kept=100_000, layer_parameters=1000, speed=1000, both=None, smallest=1
):
    """``speed`` in bytes a microsecond."""
    step = last_step(parse_kineto(recorded(train, kept), "toy"))
    return predict(
        step, Sizes(layer_parameters, smallest), machine_of(swept(speed, both)), SCHEMES[scheme]
    )


@pytest.mark.parametrize("train", [False, True])
def test_the_step_is_read_by_phases(train):
    step = last_step(parse_kineto(recorded(train, 100_000), "toy"))
    assert step.makespan_ns == RESIDENT[train]
    assert step.layers == LAYERS
    assert step.trains == train
    assert step.start_bytes == START_BYTES
    assert [
        step.durations_ns[p.first : p.stop] for p in step.phases if p.name == "layer.2.forward"
    ] == [(100 * US, 100 * US)]
    assert [[b.size_bytes for b in step.kept_blocks(i, 1)] for i in range(LAYERS)] == [
        [100_000]
    ] * LAYERS
    assert step.kept_blocks(0, 100_001) == ()


@pytest.mark.parametrize("train", [False, True])
def test_resident_takes_what_was_recorded(train):
    found = predicted("resident", train=train)
    assert (found.makespan_ns, found.stall_ns) == (RESIDENT[train], 0)
    assert found.peak_bytes == START_BYTES + LAYERS * 100_000 + TEMPORARY
    assert set(found.moved_bytes.values()) == {0}


def test_streamed_parameters_that_are_slower_than_their_layers():
    # 300 us each. Transfers of the four layers: 0..300, 300..600, then each issued when the layer
    # two before it has ended: 600..900, 900..1200. Layers: 300..500, 600..800, 900..1100,
    # 1200..1400; head ..1410.
    found = predicted("stream-params", train=False, layer_parameters=150_000)
    assert found.makespan_ns == 1410 * US
    assert found.stall_ns == 590 * US
    assert found.moved_bytes == {"h2d": 4 * 300_000, "d2h": 0}
    # Two of the four layers are on the device at once.
    assert found.peak_bytes == START_BYTES + LAYERS * 100_000 + TEMPORARY - 2 * 300_000


def test_streamed_parameters_that_keep_up_cost_the_first_transfer():
    # 100 us each: only the first is waited for, 100 us less the 10 us of the embedding.
    assert predicted("stream-params", train=False, layer_parameters=50_000).stall_ns == 90 * US


def test_streamed_parameters_in_training_are_loaded_for_each_pass_and_stored_after_the_update():
    found = predicted("stream-params", train=True, layer_parameters=50_000)
    # Forward 4; backward 2 (two are still there); update 2 (so are two), each stored.
    assert found.moved_bytes == {"h2d": 8 * 100_000, "d2h": 4 * 100_000}


def test_activations_that_keep_up_cost_nothing():
    found = predicted("offload-activations", train=True, kept=100_000)
    assert 0 <= found.stall_ns < 10
    assert found.moved_bytes == {
        "h2d": 3 * 100_000,
        "d2h": 3 * 100_000 + 3,
    }  # a byte a layer to wait for
    # At most those of two layers (a layer's own and the one before's) and the last layer's, which
    # stay: while layer 3 runs, layers 2 and 3. While layer 3 goes back, 2 is coming: 2 and 3 again.
    assert found.peak_bytes == START_BYTES + 2 * 100_000 + TEMPORARY


def test_activations_that_are_too_slow_hold_the_computation_up():
    # 500 us each. Forward: layer 0 10..210, its store 110..610; layer 1 210..410, store 610..1110;
    # layer 2 waits for the first store: 610..810, store 1110..1610; layer 3 for the second:
    # 1110..1310; head for the third: 1610..1620, and back ..1630. Backward: 2 comes 1630..2130
    # while layer 3 runs ..2030; layer 2 2130..2530; 1 comes 2130..2630; layer 1 2630..3030; 0 comes
    # 2630..3130; layer 0 3130..3530; the rest 230.
    found = predicted("offload-activations", train=True, kept=500_000)
    assert abs(found.makespan_ns - 3760 * US) < 20


def test_optimizer_states_wait_for_their_buffer():
    # 400 us each way. From the embedding's update on: states of 0 come 0..400, of 1 400..800;
    # update 0 400..450, back 450..850; states of 2 wait for that buffer: 850..1250; update 1
    # 800..850, back 850..1250; 3: 1250..1650; update 2 1250..1300, back 1300..1700; update 3
    # 1650..1700, back 1700..2100, while the head's update has ended. Resident it was 220.
    found = predicted("offload-optimizer", train=True, layer_parameters=50_000)
    assert found.stall_ns == (2100 - 220) * US
    assert found.peak_bytes == START_BYTES + LAYERS * 100_000 + TEMPORARY - 2 * 400_000
    assert found.moved_bytes == {"h2d": 4 * 400_000, "d2h": 4 * 400_000}


def test_both_directions_at_once_take_from_each_other():
    alone = predicted("both", train=True, kept=200_000, layer_parameters=100_000)
    shared = predicted("both", train=True, kept=200_000, layer_parameters=100_000, both=600)
    assert shared.makespan_ns > alone.makespan_ns
    assert alone.peak_bytes == shared.peak_bytes
    fast = predicted("both", train=True, kept=200_000, layer_parameters=100_000, speed=10**6)
    assert fast.stall_ns < 0.02 * alone.stall_ns


def test_keys_and_values_of_a_prefill_go_and_do_not_come_back():
    found = predicted("offload-activations", train=False, kept=100_000)
    assert found.moved_bytes == {"h2d": 0, "d2h": 4 * 100_000 + 4}
    assert found.stall_ns < 20
    assert found.peak_bytes == START_BYTES + 2 * 100_000 + TEMPORARY


@given(st.lists(st.integers(1, 10**8), min_size=38, max_size=38), st.integers(10**6, 10**9))
def test_whatever_was_measured_makes_a_machine(times, both):
    sizes = [1 << power for power in range(12, 31)]
    rows = [
        SweptCopies(d, True, s, (t,))
        for (d, s), t in zip(product(("h2d", "d2h"), sizes), times, strict=True)
    ]
    machine = machine_of(BandwidthSweep((*rows, SweptCopies("both", True, 1 << 30, (both,)))))
    assert {channel.name for channel in machine.channels} >= {"h2d", "d2h"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_bandwidth_never_hurts(scheme):
    spans = [
        predicted(scheme, train=True, kept=300_000, layer_parameters=80_000, speed=s).makespan_ns
        for s in (300, 1000, 3000, 10**6)
    ]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] < 1.01 * RESIDENT[True]


def test_small_blocks_stay():
    found = predicted("offload-activations", train=True, kept=100_000, smallest=100_001)
    assert set(found.moved_bytes.values()) == {0}
    assert found.peak_bytes == START_BYTES + LAYERS * 100_000 + TEMPORARY


def test_the_plan_names_the_scheme_and_its_moves():
    step = last_step(parse_kineto(recorded(True, 1000), "toy"))
    plan = plan_of(step, Sizes(1000, 1), SCHEMES["offload-optimizer"])
    assert plan.policy == "offload-optimizer"
    assert [plan.count(op) for op in ("prefetch", "store", "detach")] == [4, 4, 2]


def test_a_recording_is_compared_with_what_was_measured(tmp_path):
    runs = {"resident": ([900 * US, 830 * US, 825 * US], 5), "stream-params": ([1500 * US], 4)}
    write(tmp_path, False, 100_000, 150_000, sweep(1000), runs)
    found = {p.scheme: p for p in predict_recording(tmp_path, "toy", "prefill", 64)}
    assert set(found) == set(SCHEMES) - {"offload-optimizer"}
    assert (
        found["resident"].measured_ns,
        found["resident"].measured_stall_ns,
        found["resident"].measured_peak_bytes,
    ) == (830 * US, 0, 5)
    assert (found["stream-params"].makespan_ns, found["stream-params"].measured_ns) == (
        1410 * US,
        1500 * US,
    )
    assert found["stream-params"].measured_stall_ns == 670 * US
    assert found["both"].measured_ns is None


def test_what_is_no_recording_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"meta\.json: no such file"):
        predict_recording(tmp_path, "toy", "train", 64)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected a file that `python -m hosim\.gpu` writes"):
        predict_recording(tmp_path, "toy", "train", 64)
    (tmp_path / "meta.json").write_text('{"format": "hosim.gpu/1"}')
    with pytest.raises(InputError, match="expected the key 'models'"):
        predict_recording(tmp_path, "toy", "train", 64)
    from kineto_toys import step

    with pytest.raises(
        InputError, match=r"expected a recording of hosim\.gpu, with its annotations"
    ):
        last_step(parse_kineto(step(), "toy"))
    with pytest.raises(InputError, match="expected pinned copies of direction h2d"):
        machine_of(BandwidthSweep(()))


# ---- the plan of a scheme, and its changes of memory


def step_of(train, kept=100_000):
    return last_step(parse_kineto(recorded(train, kept), "toy"))


def moves(plan):
    """Each cache op: what goes (``<`` up, ``>`` down, ``-`` dropped, ``~`` to where a stream sees
    it), and after which op.
    """
    names = plan.graph.tensors
    signs = {
        ("ddr", "hbm"): "<",
        ("hbm", "ddr"): ">",
        ("hbm", None): "-",
        ("ddr", "seen"): "~",
        ("seen", "hbm"): "<~",
    }
    assert [op.after for op in plan.cache_ops] == sorted(op.after for op in plan.cache_ops)
    kinds = {(op.op, signs[op.source, op.destination]) for op in plan.cache_ops}
    assert kinds <= {
        ("prefetch", "<"),
        ("store", ">"),
        ("detach", "-"),
        ("store", "~"),
        ("prefetch", "<~"),
    }
    return [
        f"{signs[op.source, op.destination]}{names[op.tensor].name.removeprefix('layer.')}@{op.after}"
        for op in plan.cache_ops
    ]


def used(plan):
    """By op that uses any: tensors read, made and changed."""
    name = [tensor.name.removeprefix("layer.") for tensor in plan.graph.tensors]
    found = {
        i: tuple([name[t] for t in part] for part in (op.inputs, op.outputs, op.mutates))
        for i, op in enumerate(plan.graph.ops)
    }
    return {i: parts for i, parts in found.items() if any(parts)}


def tensors(plan):
    return [
        (t.name.removeprefix("layer."), t.size_bytes, t.kind, t.home) for t in plan.graph.tensors
    ]


def test_the_plan_that_streams_parameters():
    """Ops: embedding 0, forward 1 to 8, head 9 and 10, backward 11 to 18, embedding 19 and 20,
    updates 21 to 24, head 25.

    Forward i and i + 1 lie in the two buffers; backward finds 3 and 2 there, update 0 and 1; each
    is stored once it is updated.
    """
    plan = plan_of(step_of(True), Sizes(1000, 1), SCHEMES["stream-params"])
    forward = ["<0.p@-1", "<1.p@0", "-0.p@2", "<2.p@2", "-1.p@4", "<3.p@4"]
    backward = ["-3.p@12", "<1.p@12", "-2.p@14", "<0.p@14"]
    update = [
        ">0.p@21",
        "-0.p@21",
        "<2.p@21",
        ">1.p@22",
        "-1.p@22",
        "<3.p@22",
        ">2.p@23",
        ">3.p@24",
    ]
    assert [move.replace("arameters", "") for move in moves(plan)] == [*forward, *backward, *update]
    assert tensors(plan) == [(f"{i}.parameters", 2000, "parameter", "ddr") for i in range(LAYERS)]
    readers = {
        op: layer
        for layer in range(LAYERS)
        for op in (1 + 2 * layer, 2 + 2 * layer, 17 - 2 * layer, 18 - 2 * layer)
    }
    expected = {op: ([f"{layer}.parameters"], [], []) for op, layer in readers.items()}
    expected |= {21 + i: ([f"{i}.parameters"], [], [f"{i}.parameters"]) for i in range(LAYERS)}
    assert used(plan) == expected
    names = [
        "embedding ",
        *["layer forward"] * 8,
        *["head "] * 2,
        *["layer backward"] * 8,
        *["embedding "] * 2,
        *["layer update"] * 4,
        "head ",
    ]
    assert [(op.name, op.kind, op.duration_ns) for op in plan.graph.ops] == [
        (f"{i} {name}", "kernel", duration)
        for i, (name, duration) in enumerate(zip(names, plan_durations(), strict=True))
    ]
    assert plan.graph.name == "recorded step"
    prefill = plan_of(step_of(False), Sizes(1000, 1), SCHEMES["stream-params"])
    assert [move.replace("arameters", "") for move in moves(prefill)] == forward


def plan_durations():
    us = [10, *[100] * 8, 10, 10, *[200] * 8, 10, 10, *[50] * 4, 10]
    return [duration * US for duration in us]


def test_the_plan_that_streams_optimizer_states():
    plan = plan_of(step_of(True), Sizes(1000, 1), SCHEMES["offload-optimizer"])
    assert [move.replace("optimizer_state", "s") for move in moves(plan)] == [
        *(
            "<0.s@19",
            "<1.s@20",
            ">0.s@21",
            "-0.s@21",
            "<2.s@21",
            ">1.s@22",
            "-1.s@22",
            "<3.s@22",
            ">2.s@23",
            ">3.s@24",
        )
    ]
    assert tensors(plan) == [
        (f"{i}.optimizer_state", 8000, "optimizer_state", "ddr") for i in range(LAYERS)
    ]
    assert used(plan) == {
        21 + i: ([f"{i}.optimizer_state"], [], [f"{i}.optimizer_state"]) for i in range(LAYERS)
    }
    prefill = plan_of(step_of(False), Sizes(1000, 1), SCHEMES["offload-optimizer"])
    assert (moves(prefill), tensors(prefill), used(prefill)) == ([], [], {})


def away(layer):
    """A layer's copy out behind its first op, and the fence behind its second one."""
    first, second = 1 + 2 * layer, 2 + 2 * layer
    return [
        f">{layer}.activation.0@{first}",
        *(f"{sign}{layer}.fence@{second}" for sign in (">", "~", "-", "<~")),
    ]


def test_the_plan_that_offloads_activations():
    """Each is dropped after the next layer, and comes while the layer above it goes back; the last
    layer's stay.
    """
    plan = plan_of(step_of(True), Sizes(1000, 1), SCHEMES["offload-activations"])
    drops = [[], ["-0.activation.0@4"], ["-1.activation.0@6"]]
    out = [move for layer in range(3) for move in (*away(layer), *drops[layer])]
    back = ["-2.activation.0@8", "<2.activation.0@10", "<1.activation.0@12", "<0.activation.0@14"]
    assert moves(plan) == [*out, *back]
    made = [
        (name, size, "activation", None)
        for i in range(3)
        for name, size in ((f"{i}.activation.0", 100_000), (f"{i}.fence", 1))
    ]
    assert tensors(plan) == [*made, ("ballast", 300_003, "gradient", None)]
    assert used(plan) == {
        1: ([], ["0.activation.0"], []),
        2: ([], ["0.fence"], []),
        3: ([], ["1.activation.0"], []),
        4: ([], ["1.fence"], []),
        5: (["0.fence"], ["2.activation.0"], []),
        6: ([], ["2.fence"], []),
        7: (["1.fence"], [], []),
        9: (["2.fence"], [], []),
        **{
            op: ([f"{layer}.activation.0"], [], [])
            for layer in range(3)
            for op in (17 - 2 * layer, 18 - 2 * layer)
        },
        20: ([], ["ballast"], []),
        25: (["ballast"], [], []),
    }


def test_the_plan_that_sends_keys_and_values_away():
    plan = plan_of(
        step_of(False), Sizes(1000, 1 << 20), SCHEMES["offload-activations"]
    )  # of any size
    drops = [
        [],
        ["-0.activation.0@4"],
        ["-1.activation.0@6"],
        ["-2.activation.0@8", "-3.activation.0@8"],
    ]
    assert moves(plan) == [move for layer in range(4) for move in (*away(layer), *drops[layer])]
    assert tensors(plan) == [
        entry
        for i in range(4)
        for entry in (
            (f"{i}.activation.0", 100_000, "output", None),
            (f"{i}.fence", 1, "activation", None),
        )
    ]
    assert used(plan)[9] == (["2.fence", "3.fence"], [], [])


def test_the_changes_of_memory():
    """Blocks are numbered by event: of layer i, 3 i + 1 is kept and 3 i + 2 is its own. ``-n`` is
    block n as it comes back.
    """
    k, own = 100_000, TEMPORARY
    forward = [[(3 * i + 1, k), (3 * i + 2, own), (3 * i + 2, -own)] for i in range(LAYERS)]
    out = [*forward[0], *forward[1], (1, -k), *forward[2], (4, -k), *forward[3], (7, -k)]
    # as layer 3 goes back, 2 comes; with layer 1 goes what layer 2 had, and what layer 0 had comes
    back = [(-7, k), (10, -k), (-4, k), (-7, -k), (-1, k), (-4, -k), (-1, -k)]
    scheme = SCHEMES["offload-activations"]
    freed = [(3 * i + 1, -k) for i in range(LAYERS)]
    whole = [change for layer in forward for change in layer]
    weights, states = 2 * 2000, 2 * 8000  # of two layers, which are away
    for trains, smallest, of, start, changes in (
        (True, k, scheme, START_BYTES, [*out, *back]),
        (False, 1 << 20, scheme, START_BYTES, [*out, (10, -k)]),
        (True, k + 1, scheme, START_BYTES, [*whole, *freed[::-1]]),
        (True, k + 1, SCHEMES["both"], START_BYTES - weights - states, [*whole, *freed[::-1]]),
        (False, 1, SCHEMES["both"], START_BYTES - weights, [*out, (10, -k)]),
    ):
        found = predict(step_of(trains), Sizes(1000, smallest), machine_of(swept(1000)), of)
        assert found.peak_bytes == start + max(accumulate([size for _, size in changes]))
        assert found.reserved_bytes == replay_from_nothing(changes, start).peak_bytes


def test_everything_at_once_in_training():
    """Weights of 160 kB go up 8 times and down 4 times, states of 640 kB 4 times each, activations
    of 300 kB 3 times and a byte each.
    """
    found = predicted("both", train=True, kept=300_000, layer_parameters=80_000)
    assert found.moved_bytes == {
        "h2d": 8 * 160_000 + 4 * 640_000 + 3 * 300_000,
        "d2h": 4 * 160_000 + 4 * 640_000 + 3 * 300_003 - 3 * 2,
    }
    assert found.peak_bytes == START_BYTES - 2 * 160_000 - 2 * 640_000 + 2 * 300_000 + TEMPORARY
    # 98.4 MB at the start are 47 times 2 MiB; all that comes and goes is small, and fits into 2 MiB
    # more
    assert found.reserved_bytes == 48 * (2 << 20)
    assert predicted("resident", train=True).reserved_bytes == 49 * (2 << 20)


def test_the_machine_of_a_sweep():
    """A curve's larger copy is never quicker than a smaller one; copies of pageable memory do not
    count; both ways, the largest counts.
    """
    rows = [
        ("h2d", 30, 3, True),
        ("h2d", 10, 2, True),
        ("h2d", 20, 0, True),
        ("h2d", 40, 1, False),
        ("d2h", 10, 1, True),
    ]
    rows += [("both", 5, 1, True), ("both", 9, 2, True), ("both", 7, 7, False)]
    machine = machine_of(
        BandwidthSweep(
            tuple(SweptCopies(way, pinned, size, (time,)) for way, size, time, pinned in rows)
        )
    )
    giga, instant, room = 10**9, 10**12, 1 << 50
    assert machine.channels == (
        Channel(
            "h2d",
            "ddr",
            "hbm",
            10 * giga,
            curve=((10, 5 * giga), (20, 10 * giga), (30, 10 * giga)),
            beside=(("d2h", 9 * giga // 2),),
        ),
        Channel(
            "d2h",
            "hbm",
            "ddr",
            10 * giga,
            curve=((10, 10 * giga),),
            beside=(("h2d", 9 * giga // 2),),
        ),
        Channel("noted", "ddr", "seen", instant),
        Channel("told", "seen", "hbm", instant),
    )
    assert machine.tiers == (
        Tier("hbm", room, instant, "device"),
        Tier("ddr", room, instant),
        Tier("seen", room, instant),
    )
    assert [channel.beside for channel in machine_of(swept(1000)).channels] == [
        ()
    ] * 4  # as quick as alone
    with pytest.raises(InputError) as caught:
        machine_of(
            BandwidthSweep(tuple(row for row in swept(1000).copies if row.direction != "d2h"))
        )
    assert str(caught.value) == "bandwidth.json: copies: expected pinned copies of direction d2h"


def test_the_phases_of_a_step():
    """A layer's phase has its mark, two blocks, two launches and a free at 0, 1, 2, 3, 5 and 6 us,
    others mark and launch at 0 and 2.
    """
    step = step_of(False)
    begin = step.phases[0].begin_ns
    layers = [(f"layer.{i}.forward", 4 + 7 * i, 1 + 2 * i, 3 + 2 * i) for i in range(LAYERS)]
    assert [(p.name, (p.begin_ns - begin) // US, p.first, p.stop) for p in step.phases] == [
        ("embedding.forward", 0, 0, 1),
        *layers,
        ("head.forward", 32, 9, 10),
    ]
    launches = [2, *(at + own for _, at, *_ in layers for own in (3, 5)), 34]
    assert [(time - begin) // US for time in step.issued_ns] == launches
    assert step.begin_of("head.forward") == begin + 32 * US
    assert [step.producer_of(step.kept_blocks(i, 1)[0]) for i in range(LAYERS)] == [1, 3, 5, 7]
    assert [block.size_bytes for block in step.kept_blocks(3, 100_000)] == [100_000]


# ---- all schemes of a folder


def test_a_report_of_all_schemes(tmp_path):
    """Of two lengths, the smaller one first; a sweep of 1 GB/s; two runs measured."""
    runs = {"resident": ([900 * US, 830 * US, 825 * US], 5), "stream-params": ([1500 * US], 404)}
    write(tmp_path, False, 100_000, 150_000, sweep(1000), runs)
    copytree(tmp_path / "toy-prefill-64-resident", tmp_path / "toy-prefill-128-resident")
    (tmp_path / "toy-prefill-64-resident-old").mkdir()
    report = validate_schemes(tmp_path)
    assert {key: report[key] for key in report if key != "runs"} == {
        "format": "hosim.schemes/2",
        "recording": tmp_path.name,
        "device": "Toy",
        "dry_run": False,
        "plans": [],
    }
    schemes = ["resident", "stream-params", "offload-activations", "both"]
    assert [(run["mode"], run["length"], run["scheme"]) for run in report["runs"]] == [
        ("prefill", length, scheme) for length in (64, 128) for scheme in schemes
    ]
    peak = START_BYTES + LAYERS * 100_000 + TEMPORARY
    assert report["runs"][0] == {
        "model": "toy",
        "mode": "prefill",
        "length": 64,
        "scheme": "resident",
        "makespan": {"measured_ns": 830 * US, "simulated_ns": 820 * US, "error": 820 / 830 - 1},
        "stall": {"measured_ns": 0, "simulated_ns": 0},
        "peak": {"measured_bytes": 5, "simulated_bytes": peak, "error": peak / 5 - 1},
        "reserved": {
            "measured_bytes": 5,
            "simulated_bytes": 49 * (2 << 20),
            "error": 49 * (2 << 20) / 5 - 1,
        },
        "moved_bytes": {"h2d": 0, "d2h": 0},
    }
    streamed = report["runs"][1]
    assert streamed["stall"] == {"measured_ns": 670 * US, "simulated_ns": 590 * US}
    assert (streamed["peak"]["measured_bytes"], streamed["moved_bytes"]) == (
        404,
        {"h2d": 4 * 300_000, "d2h": 0},
    )
    assert report["runs"][5]["makespan"] == {
        "measured_ns": None,
        "simulated_ns": 1410 * US,
        "error": None,
    }
    assert report["runs"][5]["stall"]["measured_ns"] is None
    assert report["runs"][5]["peak"]["measured_bytes"] is None
    (tmp_path / "toy-prefill-128-resident" / "run.json").unlink()
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"device": "Toy"}))
    report = validate_schemes(tmp_path)
    assert report["device"] is None
    assert report["runs"][4]["makespan"]["measured_ns"] is None
    (tmp_path / "toy-prefill-128-stream-params").mkdir()
    content = {"format": "hosim.gpu/1", "wall_ns": [1], "memory": None}
    (tmp_path / "toy-prefill-128-stream-params" / "run.json").write_text(json.dumps(content))
    streamed = validate_schemes(tmp_path)["runs"][5]
    assert streamed["makespan"]["measured_ns"] == 1
    assert [
        streamed[key]["measured_ns" if key == "stall" else "measured_bytes"]
        for key in ("stall", "peak", "reserved")
    ] == [None] * 3


def test_a_folder_without_a_resident_run(tmp_path):
    (tmp_path / "meta.json").write_text(
        '{"format": "hosim.gpu/1", "device": null, "dry_run": false, "models": {}}'
    )
    with pytest.raises(InputError) as caught:
        validate_schemes(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: no resident run (MODEL-MODE-LENGTH-resident) to predict from; record it "
        "with: python -m hosim.gpu measure"
    )


@pytest.mark.parametrize(
    ("key", "bad", "place", "expected"),
    [
        ("bytes", 0, "bytes", "a whole number of at least 1"),
        ("ns", [1, -1], "ns[1]", "a whole number of at least 0"),
        ("ns", [], "ns", "a list of at least one time in ns"),
        ("direction", "up", "direction", "one of h2d, d2h, both"),
        ("pinned", 1, "pinned", "true or false"),
    ],
)
def test_damaged_copies_of_a_sweep(tmp_path, key, bad, place, expected):
    """A rate would be divided by no bytes; a clock may well say that a copy took no time."""
    row = {"direction": "h2d", "bytes": 1, "ns": [0, 3, 2], "pinned": True}
    path = tmp_path / "bandwidth.json"
    sweep = {"format": "hosim.gpu/1", "device": {"name": "GPU"}, "copies": [row, row]}
    path.write_text(json.dumps(sweep))
    copies = SweptCopies("h2d", True, 1, (0, 3, 2))
    assert bandwidth_sweep(path) == BandwidthSweep((copies, copies), "GPU")
    assert copies.median_ns == 2
    path.write_text(json.dumps(sweep | {"copies": [row, row | {key: bad}]}))
    with pytest.raises(InputError) as refused:
        bandwidth_sweep(path)
    assert str(refused.value) == f"{path}: copies[1].{place}: expected {expected}"
