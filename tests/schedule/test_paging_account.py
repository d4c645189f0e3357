"""The account of a runtime policy that pages: the bytes that it takes for free are those that will
be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized

from hosim import engine
from hosim.analysis import needed_bytes
from hosim.cache_plan import CacheOp, MemoryView
from hosim.planner.schedule import Paging, paging_plan
from hosim.policies.own import FarthestNextUse, LeastRecentlyUsed


class Audited(Paging):
    """Checked where an op of the one stream is launched, and where it waits for room: nothing else
    will be there.
    """

    checks = 0
    makes: tuple[int, ...] | None = None
    """The tensors that a launched op makes, which the account has and the device may not, where the
    account is to be checked.
    """

    def _launch(self, op: int) -> None:
        super()._launch(op)
        self.makes = ()

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        self.makes = tuple(t for t in self.graph.ops[op].outputs if not view.is_resident(t))
        return super().make_room(op, wanted_bytes, view)

    def _free(self, view: MemoryView) -> int:
        free = super()._free(view)
        if self.makes is not None:
            kept = [
                t
                for t in range(len(self.sizes))
                if self.here[t]
                and t not in self.stored
                and (t not in self.makes or t in self.coming)
            ]
            self.makes, held = None, sum(self.sizes[t] for t in kept)
            assert free == view.capacity_bytes - held
            Audited.checks += 1
        return free


@pytest.mark.parametrize("victims", [FarthestNextUse, LeastRecentlyUsed])
@pytest.mark.parametrize("k", [0, 3])
def test_free_bytes_are_those_that_will_be(victims: Any, k: int) -> None:
    Audited.checks = 0

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        graph = data.draw(graphs(max_ops=12, max_held=6))
        machine = sized(data.draw(hardware(max_tiers=2)), graph, 10**4)
        least = max(needed_bytes(graph))
        budget = data.draw(st.integers(least, least + 40))
        plan = paging_plan(graph, machine, budget, "paging", victims, k)
        assert plan.runtime is not None
        made = plan.runtime()
        assert isinstance(made, Paging)
        engine.replay(
            replace(plan, runtime=lambda: Audited(made.table, victims(), k)), machine, budget
        )

    holds()
    assert Audited.checks > 100
