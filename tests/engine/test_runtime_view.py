"""What a runtime policy sees of a device, and what becomes of tiers that there are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from hosim import engine
from hosim.cache_plan import DETACH, PREFETCH, CacheOp, MemoryView, Plan
from hosim.engine import resolve_hop
from hosim.errors import PlanError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.schedule import plan_for

GB = 10**9
MACHINE = Hardware(  # a byte a nanosecond; nothing leads down to ssd, and nothing to nor from rom
    "toy",
    (
        Tier("ddr", 1000, GB),
        Tier("hbm", 100, GB, "device"),
        Tier("ssd", 1000, GB),
        Tier("rom", 1000, GB),
    ),
    (
        Channel("up", "ddr", "hbm", GB),
        Channel("down", "hbm", "ddr", GB),
        Channel("read", "ssd", "ddr", GB),
    ),
    Compute({}),
)


def toy() -> Graph:
    b = GraphBuilder("toy")
    b.tensor("a", 10)
    b.tensor("w", 20, "parameter", "ddr")
    b.op("f", "op", outputs=["a"], duration_ns=5)
    b.op("g", "op", inputs=["w"], duration_ns=5)
    b.op("h", "op", inputs=["a", "w"], duration_ns=5)
    return b.build()


@dataclass
class Watcher:
    """Prefetches w before g, and notes what it sees before each op."""

    seen: list[tuple[object, ...]] = field(default_factory=list)

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        tiers = [tuple(view.tiers_of(t)) for t in range(2)]
        held = (
            [view.is_resident(t) for t in range(2)],
            [view.is_busy(t) for t in range(2)],
            list(view.residents()),
        )
        self.seen.append((op, view.now_ns, view.capacity_bytes, view.free_bytes, tiers, *held))
        return [CacheOp(PREFETCH, 1, "ddr", "hbm")] if op == 1 else []

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        return ()


def test_what_a_policy_sees() -> None:
    """Also where the workload lists its tensors in another order than the policy's graph."""
    graph = toy()
    ops = [
        replace(
            op, **{role: tuple(1 - t for t in getattr(op, role)) for role in ("inputs", "outputs")}
        )
        for op in graph.ops
    ]
    listed = Graph(graph.name, tuple(graph.tensors)[::-1], tuple(ops), graph.meta)
    for workload in (graph, listed):
        watcher = Watcher()
        plan = Plan(graph, runtime=lambda watcher=watcher: watcher)
        # f 0..5, w up 5..25, g 25..30, h 30..35
        assert engine.replay(plan_for(plan, workload), MACHINE, 70).makespan_ns == 35
        assert watcher.seen == [
            (0, 0, 70, 70, [(), ("ddr",)], [False, False], [False, False], []),
            (1, 5, 70, 60, [(), ("ddr",)], [True, False], [False, False], [0]),
            (2, 30, 70, 40, [(), ("ddr",)], [True, True], [False, False], [0, 1]),
        ]


@dataclass
class Detouring(Watcher):
    """Prefetches w before g by a route, which the loop does not cover."""

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        self.seen.append((op,))
        return [CacheOp(PREFETCH, 1, "ssd", "hbm")] if op == 1 else []


def test_a_policy_decides_in_one_replay() -> None:
    made: list[Detouring] = []

    def make() -> Detouring:
        made.append(Detouring())
        return made[-1]

    result = engine.replay(Plan(toy(), runtime=make, initial={1: ("ssd",)}), MACHINE, 70)
    assert (result.makespan_ns, result.engine) == (55, "reference")
    assert [policy.seen for policy in made] == [[(0,), (1,), (2,)]]


def test_a_policy_that_finds_no_room_is_asked_once() -> None:
    watcher = Watcher()
    assert not engine.replay(Plan(toy(), runtime=lambda: watcher), MACHINE, 15).feasible
    assert [seen[0] for seen in watcher.seen] == [0, 1]


def test_a_cache_op_resolves_to_its_tiers_and_its_channel() -> None:
    assert resolve_hop("store", "hbm", "ddr", MACHINE, "there") == ("store", 1, 0, 1)
    assert resolve_hop(PREFETCH, "ddr", "hbm", MACHINE, "there") == (PREFETCH, 0, 1, 0)
    several = resolve_hop(PREFETCH, "ssd", "hbm", MACHINE, "there")
    assert several[:3] == (PREFETCH, 2, 1)
    assert several.channel < -1
    assert resolve_hop(DETACH, "ssd", None, MACHINE, "there") == (DETACH, 2, -1, -1)


@pytest.mark.parametrize(
    ("op", "source", "destination", "message"),
    [
        (PREFETCH, "disk", "hbm", "there.from: no tier 'disk' on toy (tiers: ddr, hbm, ssd, rom)"),
        (PREFETCH, "ddr", "disk", "there.to: no tier 'disk' on toy (tiers: ddr, hbm, ssd, rom)"),
        (PREFETCH, "ddr", None, "there.to: a prefetch needs a tier to copy to"),
        ("store", "hbm", "ssd", "there: no channels lead from hbm to ssd on toy"),
    ],
)
def test_a_cache_op_that_cannot_be(
    op: str, source: str, destination: str | None, message: str
) -> None:
    with pytest.raises(PlanError) as raised:
        resolve_hop(op, source, destination, MACHINE, "there")
    assert str(raised.value) == message
    assert raised.value.where == message.partition(":")[0]


def test_a_tensor_cannot_start_in_a_tier_that_is_not_there() -> None:
    with pytest.raises(PlanError) as raised:
        engine.replay(Plan(toy(), initial={1: ("disk",)}), MACHINE)
    assert (
        str(raised.value)
        == "initial: tensor 'w' starts in tier 'disk', which toy has not (tiers: ddr, hbm, ssd, "
        "rom)"
    )
