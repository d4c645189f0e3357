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
    assert "prefetch" in found.stalls[0].prevented_by


def test_a_setting_beside_its_repair(tmp_path) -> None:
    """Both copies stand before the step: of two parameters of 40 B, which are pinned in 10 ns each,
    the first is there at 60; f and g take 50 each. With memory that is pinned once it is there at
    40.
    """
    b = GraphBuilder("toy")
    for name in ("w", "v"):
        b.tensor(name, 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    b.op("g", "matmul", inputs=["v"], duration_ns=50)
    text = "format: hosim.runtime/1\nname: mine\npins: [prefetch]\npin: {value: 10 ns}\n"
    (tmp_path / "each.yaml").write_text(text)
    (tmp_path / "once.yaml").write_text(f"{text}pins_once: true\n")
    files = [str(tmp_path / name) for name in ("each.yaml", "once.yaml")]
    rows = hosim.sweep(b.build(), "toy", "layerwise", vary={"workload.runtime": files}, jobs=1)
    each, once = rows["makespan_ns"]
    assert (each - once, once) == (20, 140)
    rows = hosim.sweep(b.build(), "toy", vary={"workload.runtime": ["nobody"]}, jobs=1)
    assert "no shipped runtime" in rows["error"][0]
