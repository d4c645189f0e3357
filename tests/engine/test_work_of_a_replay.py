"""What a replay does, counted: events, how many are pending at once, and what it follows of the tensors. ``make bench`` has the times."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from counting import lines_run
from long_chain import MACHINE, chain_and_branches, modelled, on, pooled, supernode

from hosim.cache_plan import Plan
from hosim.costmodel import MemoryUse
from hosim.costmodel.transfers import max_min_rates
from hosim.engine import replay
from hosim.engine.clock import Clock
from hosim.engine.compiled_plan import compile_plan
from hosim.io import load_hardware
from hosim.jitter import Jitter

PROFILES = sorted((Path(__file__).resolve().parents[2] / "hardware_profiles").glob("*.yaml"))


class Watched(Clock):
    """A clock that keeps what it handed out."""

    all: list[Watched] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._eid = count()
        self.most_pending = 0
        Watched.all.append(self)

    def run_instants(self, settle) -> None:
        def settled() -> None:
            settle()
            self.most_pending = max(self.most_pending, len(self.to_come))

        super().run_instants(settled)


@pytest.fixture
def clocks(monkeypatch) -> list[Watched]:
    monkeypatch.setattr(sys.modules["hosim.engine.fast_replay"], "Clock", Watched)
    Watched.all.clear()
    return Watched.all


def events(clock: Watched) -> int:
    return next(clock._eid)


@pytest.mark.parametrize("streams", [1, 2])
def test_events_grow_with_the_ops_and_those_pending_do_not(clocks, streams):
    found = []
    lengths = (1456, 2912, 4368)  # multiples of all that repeats: 4 and 8 ops, 7 sizes, 13 durations
    for ops in lengths:
        result = replay(chain_and_branches(ops, streams), MACHINE)
        assert result.channels["h2d"].transfers == ops // 4
        found.append(events(clocks[-1]))
        assert 2 <= clocks[-1].most_pending <= streams + 1  # one for each stream and one for the channel that is used
    if streams == 1:
        # Ops at whose end nothing is to be done are passed over: an event for every fourth op, behind which a parameter goes, and one for
        # each transfer.
        assert found == [2 * (ops // 4) for ops in lengths]
    assert found[2] - found[1] == found[1] - found[0] < lengths[0]


@pytest.mark.parametrize("streams", [1, 2])
def test_the_work_grows_with_the_ops(streams):
    replay(chain_and_branches(8, streams), MACHINE)
    few, many = (lines_run(replay, chain_and_branches(ops, streams), MACHINE) for ops in (2000, 4000))
    assert many <= 2.01 * few


@pytest.mark.parametrize("way", ["measured", "compete", "modelled"])
@pytest.mark.parametrize("profile", PROFILES, ids=[profile.stem for profile in PROFILES])
def test_rates_are_found_once_where_nobody_contends(monkeypatch, profile, way):
    """Fabrics and memories that transfers could share cost nothing for each transfer where they do not."""
    found, slowdowns = [], []
    monkeypatch.setattr("hosim.engine.link_groups.max_min_rates", lambda *asked: found.append(asked) or max_min_rates(*asked))
    slowdown = MemoryUse.slowdown
    monkeypatch.setattr(MemoryUse, "slowdown", lambda use, left: slowdowns.append(use) or slowdown(use, left))
    plan = chain_and_branches(400, 1)
    here, machine = on(load_hardware(profile), modelled(plan) if way == "modelled" else plan)
    result = replay(here, machine, compete=True if way == "compete" else None)
    assert sum(channel.transfers for channel in result.channels.values()) == 100
    assert sum(channel.contention_ns for channel in result.channels.values()) == 0
    assert len(found) <= (way == "modelled")  # told to the ops that go slower meanwhile; otherwise the end is known without
    # one for each of the 13 durations and 7 sizes of results, while a copy flows and while none does
    assert len(slowdowns) <= 2 * 13 * 7 * (way == "modelled")
    assert (result.slowed_ns is None) == (way == "measured")


@pytest.mark.parametrize("streams", [1, 2])
def test_fabrics_that_nobody_contends_for_make_no_events(clocks, streams):
    plan, machine = on(load_hardware(PROFILES[0]), chain_and_branches(400, streams))
    results = [replay(plan, h) for h in (machine, replace(machine, fabrics=()))]
    assert machine.fabrics
    assert results[0].makespan_ns == results[1].makespan_ns
    assert events(clocks[0]) == events(clocks[1])


def test_a_plan_that_is_replayed_again_is_not_compiled_again(monkeypatch):
    compiled = []
    monkeypatch.setattr(
        sys.modules["hosim.engine.device_programs"], "compile_plan", lambda *asked: compiled.append(asked) or compile_plan(*asked)
    )
    plan = chain_and_branches(8, 1)
    first = replay(plan, MACHINE)
    assert replay(plan, MACHINE, jitter=Jitter(1, 0.1, 0.1)) != first == replay(plan, MACHINE)
    assert len(compiled) == 1
    replay(plan, MACHINE, record=True)  # follows all tensors
    replay(plan, replace(MACHINE, name="other"))
    assert len(compiled) == 3


def test_what_the_plan_moves_is_all_that_is_tracked():
    program = compile_plan(chain_and_branches(1000, 1), MACHINE, (1,) * 1000)
    assert sum(program.tracked) == len(program.tracked_ops) == 250
    assert not program.closing


def test_events_grow_linearly_with_devices(clocks):
    def of(plan: Plan, devices: int, jitter: Jitter | None) -> int:
        """How many events an unfolded replay puts into simpy's schedule."""
        assert replay(plan, supernode(devices), fold=False, jitter=jitter).feasible
        return events(clocks[-1])

    plan = pooled(400)
    # One event an op and device. All devices transfer at once: the switch's alarm rings twice for each of the 100 parameters, when the
    # latencies of all are over and when the bytes of all are through.
    assert [of(plan, n, None) for n in (2, 8, 32)] == [400 * n + 2 * 100 for n in (2, 8, 32)]
    # With jitter each transfer has its own latency and end, and at most once more the alarm rings too soon, where it has slowed others
    jitter = Jitter(1, 0.05, 0.1)
    assert all(400 * n < of(plan, n, jitter) <= (400 + 3 * 100) * n for n in (8, 32))


@pytest.mark.parametrize(("devices", "jitter"), [(48, None), (12, Jitter(1, 0.05, 0.1))], ids=["48", "12 with jitter"])
def test_many_devices_and_one_that_stands_for_all(devices, jitter):
    plan, hardware = pooled(400), supernode(devices)
    result = replay(plan, hardware, fold=False, jitter=jitter)
    assert result.devices.feasible == devices
    assert sum(r.channels["read"].transfers for r in result.by_device) == devices * 100
    if jitter is None:
        assert replay(plan, hardware) == result  # folded
    else:
        assert len({r.makespan_ns for r in result.by_device}) > devices // 2
