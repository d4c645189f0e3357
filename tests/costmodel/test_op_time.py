"""Roofline durations, on hardware slow enough to check by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.costmodel import op_durations
from hosim.errors import HardwareError
from hosim.graph import Graph, Op
from hosim.hardware import Compute, Hardware, Tier


def machine(peak=None, efficiency=1.0, launch_ns=0, bandwidth=10**9):
    compute = Compute({"bf16": 10**9} if peak is None else peak, efficiency, launch_ns)
    return Hardware("slow", (Tier("hbm", 100, bandwidth, "device"),), (), compute)


def duration(hardware, **fields):
    return op_durations(Graph("g", (), (Op("f", "matmul", **fields),)), hardware)[0]


def test_the_slower_of_compute_and_memory_decides():
    # 1 FLOP/ns and 1 B/ns: 7 FLOP take 7 ns, 9 bytes take 9 ns.
    assert duration(machine(), flops=7, bytes_accessed=3) == 7
    assert duration(machine(), flops=7, bytes_accessed=9) == 9


def test_efficiency_scales_both_and_launch_comes_on_top():
    # at half efficiency 7 FLOP take 14 ns and 9 bytes 18 ns; the launch adds 5
    assert duration(machine(efficiency=0.5, launch_ns=5), flops=7, bytes_accessed=3) == 19
    assert duration(machine(efficiency=0.5, launch_ns=5), flops=7, bytes_accessed=9) == 23


def test_efficiency_by_kind_and_dtype():
    # a matmul in bf16 reaches a quarter of both: 7 FLOP take 28 ns, 9 bytes 36 ns; everything else
    # half
    compute = Compute({"bf16": 10**9, "fp32": 10**9}, 0.5, 0, {"matmul": {"bf16": 0.25}})
    hardware = Hardware("slow", (Tier("hbm", 100, 10**9, "device"),), (), compute)
    assert duration(hardware, flops=7, bytes_accessed=3) == 28
    assert duration(hardware, flops=7, bytes_accessed=9) == 36
    assert duration(hardware, flops=7, dtype="fp32") == 14
    ops = (Op("f", "norm", bytes_accessed=9), Op("g", "matmul", bytes_accessed=9))
    assert op_durations(Graph("g", (), ops), hardware) == (18, 36)


def test_a_measured_duration_wins():
    assert duration(machine(launch_ns=5), flops=7, bytes_accessed=9, duration_ns=2) == 2
    assert duration(machine(launch_ns=5), flops=7, bytes_accessed=9, duration_ns=0) == 0


def test_an_op_of_nothing_takes_its_launch():
    assert duration(machine(launch_ns=5)) == 5


def test_rounding_is_up_and_has_no_binary_residue():
    # 0.7 is not a binary fraction: 7 FLOP at 1 FLOP/ns x 0.7 are 10 ns exactly, not
    # 10.000000000000002 rounded up to 11
    assert duration(machine(efficiency=0.7), flops=7) == 10
    assert duration(machine(efficiency=0.7), flops=8) == 12  # 11.43 ns
    # 1e18 FLOP + 1 at 1e9 FLOP/s: beyond the 53 bits of a float
    assert duration(machine(), flops=10**18 + 1) == 10**18 + 1


def test_a_time_that_no_file_could_hold_is_an_error():
    assert duration(machine(), flops=2**63 - 1) == 2**63 - 1
    for flops, efficiency in ((2**63 - 1, 0.5), (1, 5e-324)):
        with pytest.raises(
            HardwareError,
            match=rf"^compute: op 'f' would take .* at an efficiency of {efficiency:g}$",
        ):
            duration(machine(efficiency=efficiency), flops=flops)


def test_a_missing_dtype_takes_the_next_wider_one():
    wide = machine(peak={"fp32": 10**9, "fp64": 10**8})
    assert duration(wide, flops=7, dtype="bf16") == 7
    assert duration(wide, flops=7, dtype="fp64") == 70
    assert duration(machine(peak={"fp16": 10**9, "fp32": 10**8}), flops=7, dtype="bf16") == 7


def test_a_dtype_without_any_peak_is_an_error_that_names_it():
    with pytest.raises(
        HardwareError,
        match=r"op 'f' computes in 'fp32', for which 'slow' has no peak \(it has: bf16\)",
    ):
        duration(machine(), flops=1, dtype="fp32")
    assert duration(machine(), bytes_accessed=3, dtype="fp32") == 3


@given(flops=st.integers(0, 10**16), peak=st.integers(10**9, 10**16), percent=st.integers(1, 100))
def test_it_is_the_first_whole_nanosecond_at_which_the_work_is_done(flops, peak, percent):
    ns = duration(machine(peak={"bf16": peak}, efficiency=percent / 100), flops=flops)
    # work done in t ns, times 100e9: peak * percent * t
    assert peak * percent * ns >= flops * 100 * 10**9
    assert ns == 0 or peak * percent * (ns - 1) < flops * 100 * 10**9


@given(st.integers(1, 40), st.integers(0, 30), st.integers(1, 80))
def test_in_fp32_causal_attention_computes_the_scores_that_the_mask_leaves(queries, before, window):
    """Its FLOP count all keys for each query, and no kernel was measured in this dtype."""
    seen = [min(before + i, window) for i in range(1, queries + 1)]
    for kernel in ("context_attention", "context_gradient"):
        op = {"kernel": kernel, "sizes": (1, queries, before, 1, 1, 4, window)}
        slow = machine({"fp32": 10**9, "bf16": 10**9})
        assert duration(slow, dtype="fp32", flops=5 * queries * seen[-1], **op) == 5 * sum(seen)
        assert (
            duration(slow, dtype="bf16", flops=5 * queries * seen[-1], **op)
            == 5 * queries * seen[-1]
        )
