"""Room that an expert cache makes when it is asked for it."""

from __future__ import annotations

from dataclasses import dataclass

import moe_toy
import pytest

from hosim.cache_plan import DETACH, CacheOp
from hosim.data.expert_routing import realise, routed
from hosim.planner.schedule.experts import ExpertCache, Rule, expert_table


@dataclass
class View:
    """A device tier with so many free bytes; what is in ``coming`` has not begun to arrive."""

    free_bytes: int
    coming: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()

    def is_resident(self, tensor: int) -> bool:
        return tensor not in self.coming

    def is_busy(self, tensor: int) -> bool:
        return tensor in self.busy


def cache_of_three() -> tuple[ExpertCache, list[int]]:
    """A cache that holds experts 0, 1 and 2 of 40 bytes each, of which 0 was used first; and their
    tensors.
    """
    graph = realise(moe_toy.routing(1, 4, [((3,),)]), 0)
    dynamic = routed(graph)
    assert dynamic is not None
    table = expert_table(graph, dynamic, 120, "hbm", dict.fromkeys(dynamic.marked, ("ddr", "hbm")))
    cache = ExpertCache(table, Rule("none"))
    held = [dynamic.experts[0][e][0] for e in range(3)]
    for t in held:
        cache._fetch(t, 0, True, [])
    return cache, held


@pytest.mark.parametrize(
    ("wanted", "free", "coming", "busy", "gone"),
    [
        (40, 40, (), (), []),
        (41, 40, (), (), [0]),
        (80, 40, (), (), [0]),
        (81, 40, (), (), [0, 1]),
        (500, 40, (), (), [0, 1, 2]),
        (81, 40, (), (0,), [1, 2]),  # what is in use stays
        (40, 40, (2,), (), [0]),  # what has been asked for takes 40 more, and is not there to go
        (80, 40, (2,), (), [0, 1]),
    ],
)
def test_room_is_made_of_what_was_used_longest_ago(
    wanted: int, free: int, coming: tuple[int, ...], busy: tuple[int, ...], gone: list[int]
) -> None:
    cache, held = cache_of_three()
    view = View(free, tuple(held[e] for e in coming), tuple(held[e] for e in busy))
    assert list(cache.make_room(0, wanted, view)) == [
        CacheOp(DETACH, held[e], "hbm", None) for e in gone
    ]  # type: ignore[arg-type]
    assert list(cache.here) == [t for e, t in enumerate(held) if e not in gone]
    assert cache.used == 40 * (3 - len(gone))
