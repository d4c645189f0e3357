"""Durations that were measured on one machine say nothing of another one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hosim
from hosim.data.runtime import RUNTIME, Runtime, RuntimeFigure, as_data
from hosim.errors import InputError

H100 = "NVIDIA H100 80GB HBM3"


def recorded(
    device: str | None = H100, measured: int = 3, flops: int = 10**9, kind: str = "matmul"
) -> hosim.Graph:
    """Three ops, of which the first have a duration, measured on a device."""
    b = hosim.GraphBuilder("recorded", {"measured_on": device} if device else {})
    for i in range(3):
        b.tensor(f"w{i}", 4 << 20, "parameter")
        times = {"duration_ns": 10_000} if i < measured else {}
        b.op(
            f"f{i}",
            kind,
            inputs=[f"w{i}"],
            flops=flops,
            bytes_accessed=4 << 20 if flops else 0,
            **times,
        )
    return b.build()


ASKED: dict[str, Callable[..., object]] = {
    "plan": lambda graph, hw, **o: hosim.plan(graph, hw, "resident", **o),
    "compare": lambda graph, hw, **o: hosim.compare(graph, hw, "resident", **o),
    "compare machines": lambda graph, hw, **o: hosim.compare(
        graph, ["h100-80gb-cxl", hw], "resident", **o
    ),
    "sweep": lambda graph, hw, **o: hosim.sweep(
        graph, hw, "resident", vary="channels.h2d.bandwidth=1..2GB/s:2", jobs=1, **o
    ),
    "fit": lambda graph, hw, **o: hosim.fit(
        graph, hw, "resident", largest="budget=50..100%:2", **o
    ),
    "frontier": lambda graph, hw, **o: hosim.frontier(
        graph, hw, "resident", points=2, refine=0, **o
    ),
    "robustness": lambda graph, hw, **o: hosim.robustness(graph, hw, "resident", runs=1, **o),
    "blame": lambda graph, hw, **o: hosim.blame(graph, hw, "resident", **o),
}


@pytest.mark.parametrize("asked", ASKED)
def test_another_machine_is_refused_and_rescaled_on_demand(asked: str) -> None:
    ask, graph = ASKED[asked], recorded()
    with pytest.raises(InputError, match="hosim calibrate") as caught:
        ask(graph, "rtx-4090")
    assert H100 in str(caught.value)
    assert "rescale" in str(caught.value)
    assert "rtx-4090" in str(caught.value)
    ask(graph, "h100")
    ask(graph, "rtx-4090", rescale=True)


def test_a_plan_of_one_machine_is_not_replayed_on_another() -> None:
    plan = hosim.plan(recorded(), "h100", "resident")
    assert hosim.replay(plan).makespan_ns == 30_000
    with pytest.raises(InputError, match="measured on"):
        hosim.replay(plan, "a100")


@pytest.mark.parametrize(
    "field",
    [
        "tiers.hbm.bandwidth=1TB/s,2TB/s",
        "compute.peak.bf16=1TFLOP/s,2TFLOP/s",
        "hardware.compute.launch=1us,2us",
    ],
)
@pytest.mark.parametrize("measured", [1, 3])
def test_a_rate_that_measured_durations_do_not_follow_is_not_varied(
    field: str, measured: int
) -> None:
    with pytest.raises(InputError, match=f"{measured} of 3 ops|all 3 ops"):
        hosim.sweep(recorded(measured=measured), "h100", "resident", vary=field, jobs=1)
    rows = hosim.sweep(
        recorded(measured=measured), "h100", "resident", vary=field, jobs=1, rescale=True
    )
    assert rows["makespan_ns"].nunique() == 2
    assert (rows["makespan_high_ns"] > rows["makespan_ns"]).any()


def test_fit_refuses_it_as_sweep_does() -> None:
    with pytest.raises(InputError, match="do not follow from it"):
        hosim.fit(recorded(), "h100", "resident", smallest="tiers.hbm.bandwidth=1..3TB/s:3")


def test_times_that_name_no_machine_are_as_given_and_said_to_be() -> None:
    for measured, said in ((3, "all 3 ops"), (2, "2 of 3 ops")):
        frame = hosim.compare(recorded(None, measured), "rtx-4090", "resident")
        assert any("times as given" in note and said in note for note in frame.attrs["notes"])
    assert not any(
        "as given" in note
        for note in hosim.compare(recorded(None, 0), "rtx-4090", "resident").attrs["notes"]
    )
    assert any(
        H100 in note for note in hosim.compare(recorded(), "h100", "resident").attrs["notes"]
    )


def test_a_profile_is_for_the_device_that_its_source_names() -> None:
    mine = replace(hosim.load_hardware(hosim.find_hardware("h100")), name="box", source="")
    with pytest.raises(InputError, match="box is another machine"):
        hosim.compare(recorded(), mine, "resident")
    for named in (
        replace(mine, source=f"calibrated on {H100}"),
        replace(mine, name="h100-80gb-cxl"),
    ):
        assert hosim.compare(recorded(), named, "resident").makespan_ns[0] == 30_000


@pytest.mark.parametrize(
    ("device", "profile", "others"),
    [
        (H100, "h100-80gb-sxm", ["h100-96gb", "a100", "h200"]),
        ("NVIDIA A100-PG509-200", "a100", ["h100", "gh200"]),
        ("AMD Instinct MI300X VF", "mi300x", ["h100"]),
        ("Tesla V100-DGXS-32GB", "v100", ["t4"]),
        ("NVIDIA A100-SXM4-40GB", "g10-a100-40gb", ["a100"]),
        ("rtx-4090", "rtx-4090", ["rtx-5090"]),
        ("h100", "h100", ["h200"]),
    ],
)
def test_which_profiles_are_for_a_device(device: str, profile: str, others: list[str]) -> None:
    graph = recorded(device)
    assert hosim.compare(graph, profile, "resident").makespan_ns[0] == 30_000
    for other in others:
        with pytest.raises(InputError, match="measured on"):
            hosim.compare(graph, other, "resident")


@pytest.mark.parametrize(
    "device",
    ["NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 PCIe"],
)
def test_a_device_that_no_profile_is_for_is_another_one_than_all(device: str) -> None:
    for options in ({}, {"rescale": True}):
        with pytest.raises(InputError, match="no shipped profile is for"):
            hosim.compare(recorded(device), "rtx-4090", "resident", **options)


@given(
    st.sampled_from([0, 10**6, 10**9, 10**12]),
    st.sampled_from(["matmul", "add", "attention"]),
    st.sampled_from(["rtx-4090", "b200", "t4"]),
)
def test_rescaled_durations_have_an_interval(flops: int, kind: str, other: str) -> None:
    graph = recorded(flops=flops, kind=kind)
    there = hosim.replay(hosim.plan(graph, other, "resident", rescale=True))
    assert there.makespan_low_ns is not None
    assert there.makespan_low_ns < there.makespan_ns < there.makespan_high_ns
    assert (there.makespan_ns >= 30_000) == (other != "b200")
    assert any(H100 in note and "ratio" in note for note in there.notes)


def test_the_interval_of_rescaled_times_is_wider_than_that_of_the_model() -> None:
    """By software of which as much is known: that of a recording is in its durations."""
    bare = recorded(measured=0, flops=10**12)  # so long that gaps hardly count
    known = as_data(Runtime("known", speed=RuntimeFigure(1.0, 1e-9)))
    bare = replace(bare, meta={**bare.meta, RUNTIME: known})
    bare = hosim.replay(hosim.plan(bare, "rtx-4090", "resident"))
    scaled = hosim.replay(hosim.plan(recorded(), "rtx-4090", "resident", rescale=True))
    assert scaled.makespan_high_ns / scaled.makespan_ns > bare.makespan_high_ns / bare.makespan_ns


def test_what_has_no_durations_or_no_device_cannot_be_rescaled() -> None:
    for graph in (recorded(None), recorded(measured=0)):
        with pytest.raises(InputError, match="nothing to rescale"):
            hosim.compare(graph, "rtx-4090", "resident", rescale=True)
