"""Values of another kind in the place of what a public function or constructor takes: one line of
hosim's own, which names the place.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hosim
from hosim.errors import HosimError
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.jitter import Jitter
from hosim.plain_text import shown
from hosim.serving.requests import Request

DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]
RING: list[Any] = []
RING.append(RING)
HERE = Path(__file__)


def toy() -> hosim.Graph:
    b = hosim.GraphBuilder("toy")
    b.tensor("w", 40, "parameter", home="ddr")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    return b.build()


def machine(**changed: Any) -> Hardware:
    tiers = (Tier("hbm", 2000, 10**12, "device"), Tier("ddr", 20_000, 10**11))
    given: dict[str, Any] = {
        "name": "m",
        "tiers": tiers,
        "channels": (),
        "compute": Compute({"bf16": 10**12}),
    }
    return Hardware(**(given | changed))


def computed(**changed: Any) -> Hardware:
    return machine(compute=Compute({"bf16": 10**12}, **changed))


def stages() -> list[hosim.Plan]:
    a, b = hosim.GraphBuilder("a"), hosim.GraphBuilder("b")
    a.tensor("x", 30), a.op("f", "matmul", outputs=["x"], duration_ns=50)
    a.op("out", "send", inputs=["x"], stream="comm", duration_ns=10, message="x")
    b.tensor("x", 30), b.op("in", "recv", outputs=["x"], stream="comm", duration_ns=10, message="x")
    return [hosim.Plan(a.build()), hosim.Plan(b.build())]


def sweep(vary: Any, **more: Any) -> Any:
    return hosim.sweep(toy(), "toy", "layerwise", vary=vary, jobs=1, **more)


def serve(**options: Any) -> Any:
    return hosim.serve("gpt2", "h100", [Request(0, 40, 3)], blocks=64, **options)


FIELDS: list[tuple[Callable[[], Any], str]] = [
    (lambda: hosim.Tensor(["w"], 4), "tensor ['w'], name: expected a text, got ['w']"),
    (lambda: hosim.Tensor("w", 4, kind=3), "tensor w, kind: expected a text, got 3"),
    (lambda: hosim.Tensor("w", 4, of=None), "tensor w, of: expected a text, got None"),
    (
        lambda: hosim.Tensor("w", 4, persistent="yes"),
        "tensor w, persistent: expected true or false, got 'yes'",
    ),
    (lambda: hosim.Op("f", 2), "op f, kind: expected a text, got 2"),
    (lambda: hosim.Op("f", "add", 5), "op f, inputs: expected a tuple, got 5"),
    (lambda: hosim.Op("f", "add", (RING,)), "op f, inputs: expected a whole number, got [[...]]"),
    (lambda: hosim.Op("f", "add", also_on=("ddr",)), "op f, also_on: expected a tuple, got 'ddr'"),
    (
        lambda: hosim.Op("f", "add", also_on=(("ddr",),)),
        "op f, also_on: expected a tuple of 2, got ('ddr',)",
    ),
    (
        lambda: hosim.Op("f", "add", duration_ns=DEEP),
        "a whole number of ns, got a list that cannot be shown",
    ),
    (lambda: hosim.Graph(3, (), ()), "name: expected a text, got 3"),
    (
        lambda: hosim.Graph("g", np.array(3), ()),
        "tensors: expected a tuple of hosim.Tensor, got array(3)",
    ),
    (
        lambda: hosim.Graph("g", (), (print,)),
        "ops[0]: expected a hosim.Op, got <built-in function print>",
    ),
    (lambda: hosim.Graph("g", (), (), HERE), "meta: expected a mapping"),
    (lambda: hosim.GraphBuilder(None), "workload.name: expected a text, got None"),
    (lambda: hosim.GraphBuilder("g", int), "meta: expected a mapping, got <class 'int'>"),
    (
        lambda: hosim.GraphBuilder("g").op("f", "add", also_on={1: 9}),
        "also_on: expected a mapping of processors to durations, got {1: 9}",
    ),
    (
        lambda: hosim.CacheOp("prefetch", 0, "ddr", 3),
        "cache op prefetch, destination: expected a text, got 3",
    ),
    (
        lambda: hosim.Plan(toy(), initial={"w": ("ddr",)}),
        "initial: expected a mapping from positions of tensors",
    ),
    (lambda: Tier(None, 1, 1), "tier None, name: expected a text, got None"),
    (
        lambda: Channel("h2d", "ddr", "hbm", 1, curve=(3,)),
        "channel h2d, curve: expected a tuple, got 3",
    ),
    (lambda: Fabric("p", 1, "h2d"), "fabric p, channels: expected a tuple, got 'h2d'"),
    (
        lambda: machine(fabrics=([1],)),
        "fabrics: expected an object of hosim.hardware.Fabric, got [1]",
    ),
    (lambda: computed(efficiency="0.5"), "compute, efficiency: expected a number, got '0.5'"),
    (
        lambda: computed(efficiency_of={"matmul": 3}),
        "compute, efficiency_of: expected a mapping, got 3",
    ),
    (lambda: computed(efficiency_of={1: {}}), "compute, efficiency_of: expected a text, got 1"),
    (
        lambda: machine().sharers("all"),
        "scope: unknown scope 'all'; expected one of device, host, global",
    ),
    (lambda: machine().tier_scope([]), "tiers: no tier [] (tiers: hbm, ddr)"),
    (lambda: machine().channel_scope(None), "channels: expected a channel, got None"),
    (lambda: machine().of_devices("2"), "devices: expected a whole number, got '2'"),
    (
        lambda: Jitter(0, np.array(["x"], dtype=object)),
        "op_sigma: expected a relative standard deviation of at least 0",
    ),
    (lambda: Request(0, 40, 3, prefix=7), "request, prefix: expected a tuple, got 7"),
]
CALLS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: hosim.compare(toy(), "toy", np.array(3)),
        "policies: expected a list of policies, got array(3)",
    ),
    (lambda: hosim.compare(toy(), "toy", range(10**12)), "grid_points"),
    (
        lambda: hosim.compare(toy(), memoryview(np.bool_(True))),
        "hardware: expected a list of machines, got <memory",
    ),
    (
        lambda: hosim.compare(
            toy(), "toy", lambda g, h, b: hosim.Plan(g, initial={9: ("ddr",)})
        ).error[0],
        "the graph has 1",
    ),
    (
        lambda: hosim.robustness(toy(), "toy", "layerwise", order=pd.NA),
        "order: expected true or false, got <NA>",
    ),
    (
        lambda: hosim.replay(hosim.Plan(toy()), "toy", compete=pd.NA),
        "compete: expected true or false, got <NA>",
    ),
    (
        lambda: hosim.replay(hosim.Plan(toy()), "toy", account=pd.NA),
        "account: expected a text, got <NA>",
    ),
    (
        lambda: hosim.replay(hosim.Plan(toy()), "toy", 10**30),
        "budget: expected at most 2^63-1 B, got 1000",
    ),
    (lambda: hosim.replay(hosim.Plan(toy()), "toy", DEEP), "got a list that cannot be shown"),
    (lambda: hosim.replay_stages(machine(), "toy"), "plans: expected plans"),
    (
        lambda: hosim.replay_stages(stages(), "toy", jitter=2),
        "jitter: expected hosim.jitter.Jitter",
    ),
    (
        lambda: sweep([{"budget": (object(),)}]),
        "budget: expected a number up to 2^63-1 or a text, got (<object",
    ),
    (
        lambda: sweep([{"budget": 10**30}]),
        "budget: expected a number up to 2^63-1 or a text, got 1000",
    ),
    (lambda: sweep([{"budget": 80, 3: 1}]), "vary: expected the name of a field, got 3"),
    (lambda: sweep({"budget": range(10**12)}), "grid_points"),
    (lambda: sweep(pd.Series([1, 2])), "vary: expected points, each a mapping"),
    (lambda: serve(kv_sending=DEEP), "a list that cannot be shown"),
    (
        lambda: hosim.serve({1: "gpt2"}, "h100", []),
        "model: expected the name of a parameter, got 1",
    ),
    (
        lambda: hosim.serve_sweep(
            "gpt2", "h100", "poisson:rate=1:count=1", vary="blocks=64", seeds=10**9
        ),
        "grid_points",
    ),
    (
        lambda: hosim.serve_sweep(
            "gpt2", "h100", "poisson:rate=1:count=1", vary="blocks=64", kv=DEEP
        ),
        "kv: expected a number or a text",
    ),
    (
        lambda: hosim.serve_frontier(
            "gpt2", "h100", "poisson:rate=1:count=1", vary="blocks=64", of=["throughput"]
        ),
        "unknown figure",
    ),
    (lambda: hosim.load({"model": "gpt2", "context": DEEP}), "context: expected"),
    (lambda: hosim.save_workload(toy(), hosim.Op), "expected the path of a file, got <class"),
    (
        lambda: hosim.save_workload(
            hosim.Graph("g", (), (), {"at": HERE}), "/tmp/hosim-never.yaml"
        ),
        "cannot be written as YAML",
    ),
]


@pytest.mark.parametrize(
    ("call", "said"), FIELDS + CALLS, ids=lambda value: value[:50] if isinstance(value, str) else ""
)
def test_it_is_refused_in_one_line(call: Callable[[], Any], said: str) -> None:
    try:
        found = call()
    except HosimError as error:
        found = str(error)
    assert isinstance(found, str)
    assert said in found
    assert found.isprintable()


def test_lists_and_numbers_of_numpy_do_as_well() -> None:
    op = hosim.Op("f", "matmul", [0], sizes=[16, 128, 64], also_on=[["ddr", 9]])
    assert (op.inputs, op.sizes, op.also_on) == ((0,), (16, 128, 64), (("ddr", 9),))
    graph = hosim.Graph(
        "g", [hosim.Tensor("w", 40, "parameter", "ddr")], [hosim.Op("f", "add", [0], duration_ns=5)]
    )
    assert graph.tensors == (hosim.Tensor("w", 40, "parameter", "ddr"),)
    assert graph.ops == (hosim.Op("f", "add", (0,), duration_ns=5),)
    assert type(hosim.Tensor(np.str_("w"), 40).name) is str
    assert type(computed(efficiency=np.float64(0.5)).compute.efficiency) is float


def test_a_value_without_an_end_is_shown_by_its_type() -> None:
    assert shown(DEEP) == "a list that cannot be shown"
    assert shown(RING) == "[[...]]"


@pytest.mark.parametrize(
    ("field", "value"), [("sizes", 0.0), ("mutates", 0), ("deps", False), ("also_on", 0)]
)
def test_a_value_that_counts_as_nothing_is_no_list(field: str, value: object) -> None:
    b = hosim.GraphBuilder("one op")
    with pytest.raises(hosim.GraphError, match=f"{field}: expected a"):
        b.op("f", "m", duration_ns=5, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "vary", [range(10**12), count(), {"budget": count()}, {"budget": range(10**12)}]
)
def test_what_varies_has_an_end(vary: Any) -> None:
    with pytest.raises(HosimError, match="grid_points"):
        hosim.sweep(toy(), "toy", "resident", vary=vary)
