"""Programs of a few lines that call hosim's functions and constructors, and how one is changed: a
value becomes a hostile one.

A program runs in the child of the fuzzer as a command does: an error of hosim is its line of error
and exit code, what else is raised is a finding. Only values that are given to hosim are changed,
never which function is called or by which name an argument goes.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import traceback
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

HOSTILE = (
    *(
        "None",
        "True",
        "False",
        "0",
        "1",
        "-1",
        "2",
        "1.5",
        "0.0",
        "-0.5",
        "1e308",
        "5e-324",
        "2**31",
        "2**53 + 1",
        "2**63 - 1",
        "2**63",
    ),
    *(
        "2**64",
        "10**30",
        "10**400",
        "-(10**400)",
        "nan",
        "inf",
        "-inf",
        "1j",
        "...",
        "NotImplemented",
    ),
    *(
        "np.float64('nan')",
        "np.float64(3.0)",
        "np.int64(3)",
        "np.int8(-1)",
        "np.uint64(2**63)",
        "np.bool_(True)",
        "np.str_('w')",
    ),
    *(
        "np.array(3)",
        "np.array([1, 2])",
        "np.array([])",
        "np.array(['w', None], dtype=object)",
        "np.datetime64('nat')",
        "pd.NA",
        "pd.NaT",
    ),
    *(
        "pd.Series([1, 2])",
        "pd.DataFrame({'a': [1]})",
        "Decimal('NaN')",
        "Decimal('1.5')",
        "Fraction(1, 3)",
    ),
    *(
        "''",
        "' '",
        "'x'",
        "'w'",
        "'hbm'",
        "'a\\nb'",
        "'\\x1b[31m'",
        "'\\x00'",
        "'\\ud800'",
        "'x' * 20_000",
        "'75%'",
        "'1 kB'",
        "'-1 B'",
        "'nan'",
    ),
    *(
        "b''",
        "b'w'",
        "bytearray(b'x')",
        "memoryview(b'x')",
        "Path('.')",
        "Path('w')",
        "'/dev/null'",
        "'missing/x'",
        "'\\u202e'",
    ),
    *(
        "[]",
        "()",
        "{}",
        "set()",
        "frozenset({'w'})",
        "[None]",
        "[[]]",
        "['w', 'w']",
        "{'w': None}",
        "{None: 1}",
        "{1: 'w'}",
        "{'w'}",
        "('w',)",
    ),
    *(
        "[1]",
        "(0,)",
        "(-1,)",
        "(0, 0)",
        "[True]",
        "(1.5,)",
        "(nan,)",
        "('x', 1)",
        "(('x', 1),)",
        "(('x', None),)",
        "((1, 2, 3),)",
    ),
    *(
        "ring",
        "ring_of_names",
        "deep",
        "deep_names",
        "(x for x in ['w'])",
        "iter([])",
        "range(3)",
        "range(10**12)",
        "map(str, [1])",
        "zip()",
    ),
    *(
        "object()",
        "object",
        "int",
        "str",
        "type",
        "len",
        "print",
        "hosim",
        "(lambda *a, **k: None)",
        "(lambda *a, **k: 1)",
        "ValueError('x')",
    ),
    *(
        "graph",
        "machine",
        "plan",
        "result",
        "builder",
        "hosim.Op",
        "hosim.Plan",
        "tensor",
        "op",
        "Path",
    ),
)
"""Expressions in the names of :data:`BEFORE`."""

BEFORE = """import hosim, numpy as np, pandas as pd
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from math import nan, inf
from hosim.hardware import Channel, Compute, Fabric, Hardware, ProcessorFigures, Tier
from hosim.jitter import Jitter
from hosim.serving.requests.request import Request
ring = []; ring.append(ring)
ring_of_names = {}; ring_of_names["w"] = ring_of_names
deep, deep_names = [], {}
for _ in range(3000): deep, deep_names = [deep], {"w": deep_names}
builder = hosim.GraphBuilder("toy")
builder.tensor("w", 40, "parameter", home="ddr"); builder.tensor("v", 40, "parameter", home="ddr"); builder.tensor("a", 8)
builder.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50); builder.op("g", "matmul", inputs=["v", "a"], duration_ns=50)
graph = builder.build()
tensor, op = graph.tensors[0], graph.ops[0]
machine = hosim.load_hardware(hosim.find_hardware("toy"))
plan = hosim.plan(graph, machine, "layerwise", "60 B")
result = hosim.replay(plan)
"""
"""What every program begins with; it is not changed."""

PROGRAMS: dict[str, str] = {
    "builder": """b = hosim.GraphBuilder("toy", {"made": "by hand", "count": 3})
b.tensor("x", 8, "input")
b.tensor("w", 40, "parameter", home="ddr", persistent=True)
b.tensor("a", 30, "activation", None, False)
b.op("f", "matmul", inputs=["w", "x"], outputs=["a"], duration_ns=50, flops=900, bytes_accessed=60, dtype="bf16", workspace_bytes=16)
b.op("side", "gemm", mutates=["x"], deps=["f"], stream="other", kernel="gemm", sizes=(16, 128, 64))
b.op("h", "add", inputs=["a"], duration_ns=10, processor="", also_on={"ddr": 900}, message="")
g = b.build()
again(hosim.load, hosim.save_workload, g)
hosim.replay(hosim.plan(g, "toy", "layerwise"))
g.to_networkx()
""",
    "graph": """t = (hosim.Tensor("w", 40, "parameter", "ddr", True), hosim.Tensor("a", 30, kind="activation", home=None, persistent=False))
o = hosim.Op("f", "matmul", inputs=(0,), outputs=(1,), mutates=(), deps=(), stream="compute", duration_ns=50, flops=9, bytes_accessed=6)
p = hosim.Op("g", "add", (1,), deps=(0,), dtype="bf16", workspace_bytes=3, kernel="", sizes=(), processor="", also_on=(), message="")
g = hosim.Graph("toy", t, (o, p), {"made": "by hand"})
again(hosim.load, hosim.save_workload, g)
repr(g), g.streams, g.users, g.writers, g.initial, g.survives, g.producers
hosim.replay(hosim.plan(g, "toy", "layerwise"))
""",
    "hardware": """tiers = (Tier("hbm", 2000, 10**12, "device"), Tier("ddr", 20000, 10**11, scope="host", pageable=("input",), pin_ns=5,
    pin_pool=True, compute=Compute({"bf16": 10**12}, 0.5, 20), dma=True))
channels = (Channel("h2d", "ddr", "hbm", 10**9, 7, 1, ((100, 10**8),), 5 * 10**8),
    Channel("d2h", "hbm", "ddr", 10**9, beside=(("h2d", 10**8),)))
computed = Compute({"bf16": 10**12}, efficiency=0.5, launch_ns=10, efficiency_of={"matmul": {"bf16": 0.6}},
    processor=ProcessorFigures(100, 10**9, 4 * 10**7, 3 * 10**11, 0), kernels={}, tables=(), beside_copies=0.9)
fabric = Fabric("pcie", 10**9, ("h2d", "d2h"), "host")
m = Hardware("small", tiers, channels, computed, "hbm", (fabric,), 5, devices=2, devices_per_host=2, chunk_bytes=1000, source="me",
    version=1, price_per_hour=2.5)
repr(m), m.device, m.sharers("host"), m.of_devices(2), m.channel_scope(channels[0])
again_hardware(m)
hosim.replay(hosim.plan(graph, m, "layerwise", "75%"))
""",
    "plan object": """moves = (hosim.CacheOp("prefetch", 0, "ddr", "hbm", -1), hosim.CacheOp("prefetch", 1, "ddr", "hbm", after=0),
    hosim.CacheOp("detach", 0, "hbm", None, 0))
p = hosim.Plan(graph, "manual", moves, initial={0: ("ddr",), 1: ("ddr",)})
repr(p)
r = hosim.replay(p, machine, "80 B")
again_plan(p)
hosim.explain(p, machine)
hosim.diff(p, plan, hardware=machine)
""",
    "plans": """p = hosim.plan(graph, "toy", "layerwise", 80, devices=1)
r = hosim.replay(p, machine, "75%", record=True)
hosim.explain(p, "toy", "80 B", devices=None)
hosim.blame(graph, "toy", "layerwise", "80 B")
hosim.blame(p)
hosim.plot(r, "out.svg")
""",
    "jitter": """hosim.replay(plan, "toy", jitter=Jitter(1, 0.1, 0.1), allocator="ledger", account="time", compete=True)
hosim.replay(plan, budget=0.9, record=True)
""",
    "comparisons": """hosim.compare(graph, "toy", ["layerwise", "on_demand"], "80 B", devices=1, rescale=False, regret=1)
hosim.compare(graph, machine, "layerwise,resident", budget=80)
hosim.diff("layerwise", "on_demand", graph, "toy", "80 B", devices=1)
hosim.robustness(graph, "toy", "layerwise", "80 B", runs=2, op_sigma=0.05, transfer_sigma=0.1, seed=3, order=False)
""",
    "policies": """mine = lambda g, hardware, budget_bytes: hosim.plan(g, hardware, "layerwise", budget_bytes)
hosim.compare(graph, "toy", [mine, hosim.policies.belady, "layerwise"], "80 B")
hosim.plan(graph, "toy", hosim.policies.lookahead, "80 B")
hosim.compare(graph, "toy", [lambda g, h, b: hosim.Plan(g, "mine", (), {0: ("ddr",)}), lambda g, h, b: None], 80)
hosim.sweep(graph, machine, lambda g, h, b: hosim.plan(g, h, "resident"), vary={"policy": ["layerwise", mine]}, jobs=1)
""",
    "several machines": """hosim.compare(graph, ["toy", "h100"], ["layerwise"], 1.0)
hosim.diff(plan, result, hardware="toy")
""",
    "sweeps": """hosim.sweep(graph, "toy", "layerwise", "80 B", vary={"budget": ["60 B", 80], "channels.h2d.bandwidth": ["1 GB/s"]}, jobs=1)
hosim.sweep(graph, machine, vary=[{"budget": "75%"}, {"budget": 80}], output="rows.csv", jobs=1, progress=None, policy="layerwise")
hosim.sweep(graph, machine, "layerwise", vary="budget=60%,80%", jobs=1, devices=1, rescale=False)
""",
    "searches": """hosim.frontier(graph, "toy", "layerwise", None, points=3, refine=1, price=2.0, devices=1)
hosim.fit(graph, "toy", "layerwise", "80 B", smallest="channels.h2d.bandwidth=1..10GB/s:4", slowdown=1.5, devices=None)
hosim.fits({"model": "gpt2", "layers": 1}, "h100", batch=2, sequence=64, optimizer="adamw", runtime="torchtune", devices=None)
hosim.fits(graph, "toy", None, loss=None, optimizer=None)
""",
    "runtimes": """Path("my.log").write_text("run gpt2:phase=train:sequence=64:layers=1 -H h100\\nstep time 3.1 ms\\n")
hosim.runtime_fit("my.log", "megatron-te", name="mine").left
""",
    "stages": """a, b = hosim.GraphBuilder("a"), hosim.GraphBuilder("b")
a.tensor("x", 30), a.op("f", "matmul", outputs=["x"], duration_ns=50)
a.op("out", "send", inputs=["x"], stream="comm", duration_ns=10, message="x")
b.tensor("x", 30), b.op("in", "recv", outputs=["x"], stream="comm", duration_ns=10, message="x")
b.op("g", "matmul", inputs=["x"], duration_ns=50)
s = hosim.plan_stages([a.build(), b.build()], "toy", "layerwise", "100%")
r = hosim.replay_stages(s, "toy", budget=None, record=True, jitter=Jitter(1, 0.1, 0.1), compete=None)
hosim.replay_stages([hosim.Plan(a.build()), hosim.Plan(b.build())], machine, 100)
list(r.rows()), r.bubble, r.notes
""",
    "serving": """rows = [Request(0, 40, 3, prefix=(1, 2), priority=0), Request(500_000_000, prompt_tokens=20, output_tokens=2)]
hosim.serve({"model": "gpt2", "tensor": 1}, "h100", rows, blocks=64, block_tokens=16, token_budget=2048, max_sequences=8,
    memory_share=0.9, overhead="1 ms", ahead=True, instances=1, router="round_robin", kv=None, preemption="recompute",
    scheduling_policy="fcfs", prefill_instances=0, decode_instances=0, kv_link=None, kv_sending="whole", prefill_hardware=None,
    prefill_tensor=None, weights=None, weights_memory=None, iterations=None)
""",
    "serving studies": """arrivals = "poisson:rate=10:count=3:prompt=40:output=3"
hosim.serve_sweep("gpt2", "h100", arrivals, vary={"blocks": [64, 128]}, limit="ttft=2s", seeds=1, output="rows.csv", jobs=1,
    token_budget=64)
hosim.serve_fit("gpt2", "h100", arrivals, smallest="blocks=64..128:2", within={"ttft.p95": "1000 s"}, blocks=None)
hosim.serve_frontier("gpt2", "h100", arrivals, vary="blocks=64,128", of="throughput", against="cache", limit=None, jobs=1)
""",
    "files": """hosim.save_workload(graph, "out.json")
hosim.load_workload("out.json")
hosim.save_plan(plan, "out.yaml")
hosim.load_plan("out.yaml", graph)
hosim.load("gpt2:phase=decode:batch=1:layers=1", inputs=None)
hosim.load({"model": "gpt2", "phase": "decode", "context": 64, "layers": 1, "batch": 2})
hosim.load({"format": "hosim.workload/1", "name": "toy", "tensors": [{"name": "w", "bytes": 40, "home": "ddr"}],
    "ops": [{"name": "f", "kind": "add", "inputs": ["w"]}]})
hosim.load_hardware(hosim.find_hardware("toy"))
hosim.find_workload("llama-3.1-8b-train-4k")
""",
}
"""Valid programs, by what they try."""

FUNCTIONS = {"again", "again_hardware", "again_plan"}
"""Functions of :mod:`fuzz_readback` in a program: they write an object, read it back and
compare.
"""


def changed_calls(draw: Random, content: bytes) -> bytes:
    """The program with one to three of its values changed; calls to hosim stay."""
    tree = ast.parse(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        holder, field, at = draw.choice(places)
        values = getattr(holder, field)
        value = _value(
            draw, [_at(*place) for place in places], values if at is None else values[at]
        )
        if at is None:
            setattr(holder, field, value)
        else:
            values[at] = value
        _relist(draw, tree)
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


def _at(holder: Any, field: str, at: int | None) -> Any:
    found = getattr(holder, field)
    return found if at is None else found[at]


def _places(tree: ast.AST) -> Any:
    """The places of values: arguments of calls, items of lists and of mappings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            own = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS | {"repr", "list"}
            if not own:
                yield from ((node, "args", i) for i in range(len(node.args)))
                yield from (
                    (keyword, "value", None) for keyword in node.keywords if keyword.arg != "jobs"
                )  # it would start processes
        elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
            if not any(isinstance(item, ast.Call | ast.Attribute) for item in node.elts[:1]):
                yield from ((node, "elts", i) for i in range(len(node.elts)))
        elif isinstance(node, ast.Dict):
            yield from ((node, "keys", i) for i in range(len(node.keys)))
            yield from ((node, "values", i) for i in range(len(node.values)))


def _value(draw: Random, others: list[Any], value: Any) -> ast.expr:
    way = draw.randrange(10)
    if way < 2 and any(
        "find_" in ast.unparse(each) for each in (value, *others)
    ):  # what is shipped stays as it is
        way = 2
    if way == 0:
        return deepcopy(draw.choice(others))
    if way == 1:
        wrapped = draw.choice(
            (
                "[{}]",
                "({},)",
                "{{'w': {}}}",
                "str({})",
                "[{}] * 3",
                "iter([{}])",
                "(lambda *a, **k: {})",
            )
        )
        return _expression(wrapped.format(ast.unparse(value)))
    return _expression(draw.choice(HOSTILE))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _relist(draw: Random, tree: ast.AST) -> None:
    """Sometimes a list that has an item less, one twice, or another order."""
    if draw.random() < 0.8:
        return
    lists = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.List | ast.Tuple) and isinstance(n.ctx, ast.Load) and n.elts
    ]
    if lists:
        items = draw.choice(lists).elts
        way = draw.randrange(3)
        if way == 0:
            del items[draw.randrange(len(items))]
        elif way == 1:
            items.append(deepcopy(draw.choice(items)))
        else:
            draw.shuffle(items)


def run_program(path: str) -> None:
    """Run a program as the interpreter would; an error of hosim ends it with its line and its exit
    code.
    """
    from fuzz_readback import again, again_hardware, again_plan

    from hosim.errors import HosimError

    names: dict[str, Any] = {
        "again": again,
        "again_hardware": again_hardware,
        "again_plan": again_plan,
        "__name__": "__main__",
    }
    with contextlib.suppress(SyntaxError, ValueError):  # a program that was made smaller by halves
        code = compile(BEFORE + Path(path).read_text(), path, "exec")
        try:
            exec(code, names)
        except HosimError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except Exception as error:
            if any(
                part in frame.filename
                for frame in traceback.extract_tb(error.__traceback__)
                for part in ("/hosim/", "readback")
            ):
                raise
            print("error: the program's own, as a key that cannot be one", file=sys.stderr)
            sys.exit(HosimError.exit_code)
