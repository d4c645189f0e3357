"""What a replay does, counted: lines of Python by the loop's table and by the reference, rates.
``make bench`` has the times.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from counting import calls_run, lines_run
from long_chain import MACHINE, chain_and_branches, modelled, on, pooled, supernode

from hosim.analysis.costmodel import MemoryUse
from hosim.analysis.costmodel.transfers import max_min_rates
from hosim.engine import replay
from hosim.graph import Op, Tensor
from hosim.io import load_hardware
from hosim.jitter import Jitter

pytestmark = pytest.mark.slow

PROFILES = sorted((Path(__file__).resolve().parents[2] / "hardware_profiles").glob("*.yaml"))


@pytest.mark.parametrize("engine", ["loop", "reference"])
@pytest.mark.parametrize("streams", [1, 2])
def test_the_work_grows_with_the_ops(engine: str, streams: int) -> None:
    replay(chain_and_branches(8, streams), MACHINE, engine=engine)
    few, many = (
        lines_run(replay, chain_and_branches(ops, streams), MACHINE, engine=engine)
        for ops in (2000, 4000)
    )
    assert many <= 2.01 * few


def test_no_object_is_made_for_each_op_and_tensor() -> None:
    """A graph of columns is built and replayed with as many tensors and ops as differ in more than
    their names.
    """

    def parts() -> int:
        return sum([isinstance(each, Tensor | Op) for each in gc.get_objects()])

    before = parts()
    plan = chain_and_branches(2000, 1)
    replay(plan, MACHINE, engine="loop")
    assert 0 < parts() - before < 100
    assert len(plan.graph.ops[0].outputs) == 1  # they are made when somebody looks at one
    assert parts() - before > 2000


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("slowed", [False, True])
def test_the_calls_of_the_reference(streams: int, slowed: bool) -> None:
    def calls(ops: int) -> int:
        plan = chain_and_branches(ops, streams)
        plan = modelled(plan) if slowed else plan
        replay(plan, MACHINE, engine="reference")  # what is kept with the graph is found once
        return calls_run(replay, plan, MACHINE, engine="reference")

    few, some, many = calls(200), calls(400), calls(800)
    assert many - some == pytest.approx(2 * (some - few), rel=0.02)
    assert (many - some) / 400 < (110 if slowed else 90)


def test_rates_of_alike_devices_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one device or another, only how many copy counts: eight have eight combinations and the
    one in which none copies.
    """
    asked: list[int] = []
    fluid = sys.modules["hosim.engine.reference.fluid"]
    monkeypatch.setattr(
        fluid,
        "max_min_rates",
        lambda classes, carried: asked.append(len(classes)) or max_min_rates(classes, carried),
    )
    result = replay(pooled(100), supernode(8), engine="reference", jitter=Jitter(1, 0.3, 0.3))
    assert result.channels["read"].transfers == 25
    assert len(asked) == len(set(asked)) <= 9


def test_the_work_grows_with_the_devices() -> None:
    few, many = (lines_run(replay, pooled(200), supernode(n), fold=False) for n in (2, 8))
    assert many <= 4.1 * few


@pytest.mark.parametrize("way", ["measured", "compete", "modelled"])
@pytest.mark.parametrize("profile", PROFILES, ids=[profile.stem for profile in PROFILES])
def test_rates_are_found_once(monkeypatch: pytest.MonkeyPatch, profile: Path, way: str) -> None:
    """Fabrics and memories that transfers could share cost nothing for each transfer."""
    found, slowdowns = [], []
    monkeypatch.setattr(
        "hosim.engine.transfer_rates.max_min_rates",
        lambda *asked: found.append(asked) or max_min_rates(*asked),
    )
    slowdown = MemoryUse.slowdown
    monkeypatch.setattr(
        MemoryUse, "slowdown", lambda use, left: slowdowns.append(use) or slowdown(use, left)
    )
    plan = chain_and_branches(400, 1)
    here, machine = on(load_hardware(profile), modelled(plan) if way == "modelled" else plan)
    result = replay(here, machine, compete=True if way == "compete" else None, engine="loop")
    assert sum(channel.transfers for channel in result.channels.values()) == 100
    assert sum(channel.contention_ns for channel in result.channels.values()) == 0
    assert len(found) == 2  # of nothing, and of one copy
    # one for each of the 13 durations and 7 sizes of results, while a copy flows and while none
    # does
    assert len(slowdowns) <= 2 * 13 * 7 * (way == "modelled")
    assert (result.slowed_ns is None) == (way == "measured")


@pytest.mark.parametrize(
    ("devices", "jitter"), [(48, None), (12, Jitter(1, 0.05, 0.1))], ids=["48", "12 with jitter"]
)
def test_many_devices_and_one_that_stands_for_all(devices: int, jitter: Jitter | None) -> None:
    plan, hardware = pooled(400), supernode(devices)
    result = replay(plan, hardware, fold=False, jitter=jitter)
    assert result.devices.feasible == devices
    assert sum(r.channels["read"].transfers for r in result.by_device) == devices * 100
    if jitter is None:
        assert replay(plan, hardware) == replay(plan, hardware, record=True) == result
    else:
        assert len({r.makespan_ns for r in result.by_device}) > devices // 2
