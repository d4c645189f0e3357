"""Offload schemes predicted from a resident recording: times derived by hand, on the imaginary GPU of `recorded_toy`."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_toy import LAYERS, START_BYTES, TEMPORARY, recorded, sweep, write

from hosim.errors import InputError
from hosim.importers.kineto import parse_kineto
from hosim.validate.offload_prediction import SCHEMES, Sizes, machine_of, plan_of, predict, predict_recording
from hosim.validate.recorded_step import last_step

US = 1000
RESIDENT = {False: 820 * US, True: (820 + 10 + 1600 + 10 + 10 + 200 + 10) * US}


def predicted(scheme, *, train, kept=100_000, layer_parameters=1000, speed=1000, both=None, smallest=1):
    """``speed`` in bytes a microsecond."""
    step = last_step(parse_kineto(recorded(train, kept), "toy"))
    return predict(step, Sizes(layer_parameters, smallest), machine_of(sweep(speed, both)), SCHEMES[scheme])


@pytest.mark.parametrize("train", [False, True])
def test_the_step_is_read_by_phases(train):
    step = last_step(parse_kineto(recorded(train, 100_000), "toy"))
    assert step.makespan_ns == RESIDENT[train]
    assert step.layers == LAYERS
    assert step.trains == train
    assert step.start_bytes == START_BYTES
    assert [step.durations_ns[p.first : p.stop] for p in step.phases if p.name == "layer.2.forward"] == [(100 * US, 100 * US)]
    assert [[b.size_bytes for b in step.kept_blocks(i, 1)] for i in range(LAYERS)] == [[100_000]] * LAYERS
    assert step.kept_blocks(0, 100_001) == ()


@pytest.mark.parametrize("train", [False, True])
def test_resident_takes_what_was_recorded(train):
    found = predicted("resident", train=train)
    assert (found.makespan_ns, found.stall_ns) == (RESIDENT[train], 0)
    assert found.peak_bytes == START_BYTES + LAYERS * 100_000 + TEMPORARY
    assert set(found.moved_bytes.values()) == {0}


def test_streamed_parameters_that_are_slower_than_their_layers():
    # 300 us each. Transfers of the four layers: 0..300, 300..600, then each issued when the layer two before it has ended:
    # 600..900, 900..1200. Layers: 300..500, 600..800, 900..1100, 1200..1400; head ..1410.
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
    assert found.moved_bytes == {"h2d": 3 * 100_000, "d2h": 3 * 100_000 + 3}  # a byte a layer to wait for
    # At most those of two layers (a layer's own and the one before's) and the last layer's, which stay: while layer 3 runs, layers 2 and 3.
    # While layer 3 goes back, 2 is coming: 2 and 3 again.
    assert found.peak_bytes == START_BYTES + 2 * 100_000 + TEMPORARY


def test_activations_that_are_too_slow_hold_the_computation_up():
    # 500 us each. Forward: layer 0 10..210, its store 110..610; layer 1 210..410, store 610..1110; layer 2 waits for the first store:
    # 610..810, store 1110..1610; layer 3 for the second: 1110..1310; head for the third: 1610..1620, and back ..1630.
    # Backward: 2 comes 1630..2130 while layer 3 runs ..2030; layer 2 2130..2530; 1 comes 2130..2630; layer 1 2630..3030;
    # 0 comes 2630..3130; layer 0 3130..3530; the rest 230.
    found = predicted("offload-activations", train=True, kept=500_000)
    assert abs(found.makespan_ns - 3760 * US) < 20


def test_optimizer_states_wait_for_their_buffer():
    # 400 us each way. From the embedding's update on: states of 0 come 0..400, of 1 400..800; update 0 400..450, back 450..850;
    # states of 2 wait for that buffer: 850..1250; update 1 800..850, back 850..1250; 3: 1250..1650; update 2 1250..1300, back 1300..1700;
    # update 3 1650..1700, back 1700..2100, while the head's update has ended. Resident it was 220.
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
        {"direction": d, "pinned": True, "bytes": s, "median_ns": t}
        for (d, s), t in zip(product(("h2d", "d2h"), sizes), times, strict=True)
    ]
    machine = machine_of({"copies": [*rows, {"direction": "both", "pinned": True, "bytes": 1 << 30, "median_ns": both}]})
    assert {channel.name for channel in machine.channels} >= {"h2d", "d2h"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_bandwidth_never_hurts(scheme):
    spans = [predicted(scheme, train=True, kept=300_000, layer_parameters=80_000, speed=s).makespan_ns for s in (300, 1000, 3000, 10**6)]
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
    found = {p.scheme: p for p in predict_recording(tmp_path, "prefill", 64)}
    assert set(found) == set(SCHEMES) - {"offload-optimizer"}
    assert (found["resident"].measured_ns, found["resident"].measured_stall_ns, found["resident"].measured_peak_bytes) == (830 * US, 0, 5)
    assert (found["stream-params"].makespan_ns, found["stream-params"].measured_ns) == (1410 * US, 1500 * US)
    assert found["stream-params"].measured_stall_ns == 670 * US
    assert found["both"].measured_ns is None


def test_what_is_no_recording_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"meta\.json: cannot be read"):
        predict_recording(tmp_path, "train", 64)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(InputError, match=r"expected a file of hosim\.record"):
        predict_recording(tmp_path, "train", 64)
    (tmp_path / "meta.json").write_text('{"format": "hosim.recording/1"}')
    with pytest.raises(InputError, match="expected the key 'model'"):
        predict_recording(tmp_path, "train", 64)
    from kineto_toys import step

    with pytest.raises(InputError, match=r"expected a recording of hosim\.record, with its annotations"):
        last_step(parse_kineto(step(), "toy"))
    with pytest.raises(InputError, match="expected pinned copies of direction h2d"):
        machine_of({"copies": []})
