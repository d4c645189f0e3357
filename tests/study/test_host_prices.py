"""What each setting of a runtime's host costs, as `hosim blame` prices it."""

from dataclasses import replace

import hosim
from hosim.cache_plan import CacheOp, Plan
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.graph import GraphBuilder
from hosim.shipped import find_hardware


def test_the_setting_that_holds_the_host_up_is_named() -> None:
    """Of 40 B each, w and v take 40 ns to copy; f and g take 50 ns.

    w is pinned at 10 and there at 50; f ends at 100. v, pinned by 60, is copied from then until
    140, and g ends at 190. Without blocks it is the same, as v is copied after f. Without pins w is
    there at 40, f ends at 90, v is there at 130, and g ends at 180.
    """
    b = GraphBuilder("toy")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("v", 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    b.op("g", "matmul", inputs=["v"], duration_ns=50)
    moves = [CacheOp("prefetch", t, "ddr", "hbm", after=t - 1) for t in (0, 1)]
    plan = Plan(
        b.build(), cache_ops=(*moves, *[CacheOp("detach", t, "hbm", None, after=t) for t in (0, 1)])
    )
    runtime = Runtime("mine", blocks=("prefetch",), pins=("prefetch",), pin=RuntimeFigure(10.0))
    machine = replace(hosim.load_hardware(find_hardware("toy")), software=runtime)
    found = hosim.blame(plan, machine)
    told = {price.added: price.saves_ns for price in found.prices if price.what == "mine"}
    assert told == {"no blocks": 0, "no pins": 10}
    assert "waits for each prefetch" in found.stalls[0].prevented_by
