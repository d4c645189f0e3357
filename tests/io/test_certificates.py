"""Certificates: hosim/check_certificate.py proves those of replays without hosim, and no forged
one.
"""

from __future__ import annotations

import ast
import csv
import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance, instance_of_parts
from processor_strategies import machines, on_processors
from strategies import cases, graphs, hardware, processor_plans, several, sized

import hosim
from hosim import check_certificate
from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp, Plan
from hosim.check_certificate import FalseClaim, Program, bound, prove
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError, PlanError
from hosim.hardware import Channel, Compute, Fabric, Tier
from hosim.io.certificates import to_certificate
from hosim.jitter import Jitter
from hosim.policies import policy_named

pytestmark = pytest.mark.slow

GB = 10**9
SOME = settings(max_examples=20)
BENCH = Path(__file__).resolve().parent.parent / "bench"


def certified(
    plan: Plan, machine: hosim.Hardware, budget: int | None = None
) -> dict[str, Any] | None:
    """The certificate of a plan, proved; ``None`` if it is illegal or does not fit."""
    try:
        result = replay(plan, machine, budget, record=True)
    except PlanError:
        return None
    if not result.feasible:
        return None
    made = to_certificate(plan, machine, result, repeats=not verify(plan, machine, budget))
    said = prove(json.dumps(made))
    assert f"makespan {result.makespan_ns:,} ns" in said
    assert made["claims"]["lower_bound_ns"] <= made["claims"]["makespan_ns"]
    return made


@SOME
@given(cases(max_streams=3, fabrics=True, roomy=None, uneven=True))
def test_drawn_plans(case) -> None:
    _, machine, plan = case
    certified(plan, machine)


@SOME
@given(cases(max_streams=2, fabrics=True, roomy=None, uneven=True, measured=False))
def test_drawn_plans_whose_copies_slow_ops_down(case) -> None:
    _, machine, plan = case
    certified(plan, machine)


@SOME
@given(st.data())
def test_several_devices(data) -> None:
    _, machine, plan = data.draw(cases(max_streams=2, fabrics=True, roomy=None, uneven=True))
    machine = data.draw(several(machine))
    made = certified(plan, machine)
    assert made is None or len(made["devices"]) == machine.devices


@SOME
@given(st.data())
def test_other_processors(data) -> None:
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, data.draw(st.booleans())))
    certified(data.draw(processor_plans(graph, machine)), sized(machine, graph))


@SOME
@pytest.mark.parametrize(
    "policy", ["on_demand", "lookahead", "unified_memory", "layerwise", "longest_gap"]
)
@given(data=st.data())
def test_policies_on_drawn_graphs(policy: str, data) -> None:
    machine = data.draw(hardware(fabrics=True, uneven=True))
    graph = data.draw(
        graphs(max_ops=10, max_streams=3, homes=[tier.name for tier in machine.tiers])
    )
    machine = sized(machine, graph, machine.device.capacity_bytes)
    budget = data.draw(st.integers(30, machine.device.capacity_bytes))
    try:
        plan = policy_named(policy).plan(graph, machine, budget)
    except InfeasibleError:
        return
    certified(plan, machine, budget)


SHIPPED = (
    ("llama-3.1-8b-prefill-4k", "h100-80gb-sxm", "layerwise", "12GiB"),
    ("llama-3.1-8b-prefill-4k", "h100-80gb-sxm", "on_demand", "12GiB"),
    ("vit-l-16-train", "t4", "memory_peak", "8GiB"),
    ("deepseek-v3-decode-slice", "ascend-910c-supernode", "on_demand", "16GiB"),
    pytest.param("qwen3-30b-a3b-decode", "rtx-4090", "on_demand", "16GiB", marks=pytest.mark.long),
    pytest.param("t5-large-train", "gh200-96gb", "lookahead", "8GiB", marks=pytest.mark.long),
    pytest.param(
        "llama-3.1-8b-train-4k-states-below",
        "h100-80gb-cxl",
        "layerwise",
        "40GiB",
        marks=pytest.mark.long,
    ),
    pytest.param("gpt2-xl-train", "a6000", "memory_peak", "16GiB", marks=pytest.mark.long),
)


@pytest.mark.parametrize(("workload", "machine", "policy", "budget"), SHIPPED)
def test_shipped_workloads(workload: str, machine: str, policy: str, budget: str) -> None:
    profile = hosim.load_hardware(hosim.find_hardware(machine))
    plan = hosim.plan(hosim.load(hosim.find_workload(workload)), profile, policy, budget)
    assert plan.made_for is not None
    assert certified(plan, profile, plan.made_for[1]) is not None


# --------------------------------------------------------------------------------------------------
# the bound


@pytest.mark.parametrize(
    ("file", "draw"),
    [("optima_seed_0.csv", instance), ("optima_parts_seed_0.csv", instance_of_parts)],
)
def test_the_bound_is_below_proved_optima(file: str, draw: Callable[[int], Any]) -> None:
    """And reaches some of them, where the plan is not optimal."""
    gaps = []
    for row in list(csv.DictReader((BENCH / file).read_text().splitlines()))[::5]:
        drawn = draw(int(row["number"]))
        made = planned(drawn)
        if made is not None and row["best_ns"]:
            gaps.append(int(row["best_ns"]) - made["claims"]["lower_bound_ns"])
            assert made["claims"]["makespan_ns"] >= int(row["best_ns"])
    assert len(gaps) >= 10
    assert min(gaps) == 0


def planned(drawn: Any) -> dict[str, Any] | None:
    """The certificate of the first of some policies that has a plan that fits."""
    for policy in ("g10", "memory_peak", "longest_gap", "keep_first"):
        try:
            plan = policy_named(policy).plan(drawn.graph, drawn.hardware, drawn.budget_bytes)
        except InfeasibleError:
            continue
        made = certified(plan, drawn.hardware, drawn.budget_bytes)
        if made is not None:
            return made
    return None


# --------------------------------------------------------------------------------------------------
# forgeries


@cache
def genuine() -> str:
    """The certificate of a plan with prefetches, stores and detaches, on a machine of three tiers
    with routes and a fabric.
    """
    b = hosim.GraphBuilder("genuine")
    for k in range(4):
        b.tensor(f"w{k}", 40, "parameter", home="nvme" if k == 3 else "ddr")
        b.tensor(f"a{k}", 30)
    for k in range(4):
        inputs = [f"w{k}", *([f"a{k - 1}"] if k else [])]
        b.op(
            f"f{k}",
            "matmul",
            inputs=inputs,
            outputs=[f"a{k}"],
            deps=["side"] * (k == 2),
            duration_ns=50 + k,
            workspace_bytes=5,
        )
        if k == 0:
            b.op(
                "side",
                "add",
                inputs=["a0"],
                outputs=[b.tensor("c", 10, "output")],
                duration_ns=7,
                stream="side",
            )
    for k in reversed(range(4)):
        b.op(f"g{k}", "matmul", inputs=[f"a{k}"], mutates=[f"w{k}"], duration_ns=20 + k)
    graph = b.build()
    machine = MACHINE
    plan = Plan(graph, "by hand", tuple(cache_ops(graph)))
    assert not (found := verify(plan, machine, None)), "\n".join(map(str, found))
    made = certified(plan, machine)
    assert made is not None
    return json.dumps(made)


MACHINE = hosim.Hardware(
    "three",
    (
        Tier("hbm", 240, 1000 * GB, "device"),
        Tier("ddr", 1000, 100 * GB),
        Tier("nvme", 1000, 10 * GB),
    ),
    (
        Channel("h2d", "ddr", "hbm", GB, 3),
        Channel("d2h", "hbm", "ddr", GB, 3, engines=2),
        Channel("read", "nvme", "ddr", GB // 2),
        Channel("write", "ddr", "nvme", GB // 2),
    ),
    Compute({}),
    fabrics=(Fabric("pcie", 3 * GB // 2, ("h2d", "d2h")),),
    chunk_bytes=16,
)


def cache_ops(graph: hosim.Graph) -> Iterator[CacheOp]:
    """Weights come in before their ops and go back as they were changed; activations leave for a
    while.
    """
    tensor, op = graph.tensor_index, graph.op_index
    for k in range(4):
        home = "nvme" if k == 3 else "ddr"
        yield CacheOp("prefetch", tensor[f"w{k}"], home, "hbm", op[f"f{k - 2}"] if k > 1 else -1)
    for k in (0, 1):
        yield CacheOp("store", tensor[f"a{k}"], "hbm", "ddr", op[f"f{k + 1}"])
        yield CacheOp("detach", tensor[f"a{k}"], "hbm", None, op["f2"])
    for k in (1, 0):
        yield CacheOp("prefetch", tensor[f"a{k}"], "ddr", "hbm", op[f"g{k + 2}"])
    for k in reversed(range(4)):
        yield CacheOp("store", tensor[f"w{k}"], "hbm", "nvme" if k == 3 else "ddr", op[f"g{k}"])
        yield CacheOp("detach", tensor[f"w{k}"], "hbm", None, op[f"g{k}"])


def forged(change: Callable[[dict[str, Any]], None], *, signed: bool = True) -> str | None:
    """Why the checker does not accept the changed certificate; ``None`` if it does. ``signed``: its
    SHA-256 is that of what it gives.
    """
    made = deepcopy(json.loads(genuine()))
    change(made)
    if signed:
        made["given_sha256"] = hashlib.sha256(
            json.dumps(made["given"], sort_keys=True).encode()
        ).hexdigest()
    try:
        prove(json.dumps(made))
    except (FalseClaim, LookupError, ValueError, TypeError) as error:
        return str(error)
    return None


def each(*path: str | int) -> range:
    """The places of a list in the genuine certificate."""
    return range(len(at(json.loads(genuine()), *path)))


def at(made: Any, *path: str | int) -> Any:
    """What lies under keys and places."""
    for key in path:
        made = made[key]
    return made


def moved(kind: str, k: int, start: int = 0, end: int = 0) -> Callable[[dict[str, Any]], None]:
    """An event of the device that begins or ends so many nanoseconds later."""

    def change(made: dict[str, Any]) -> None:
        event = made["devices"][0][kind][k]
        event[-2:] = event[-2] + start, event[-1] + end

    return change


def put(value: Any, *path: str | int) -> Callable[[dict[str, Any]], None]:
    """Another value at a place; a function is applied to the old one."""

    def change(made: dict[str, Any]) -> None:
        inside = at(made, *path[:-1])
        inside[path[-1]] = value(inside[path[-1]]) if callable(value) else value

    return change


def left_out(*path: str | int) -> Callable[[dict[str, Any]], None]:
    """A list without one of its items."""

    def change(made: dict[str, Any]) -> None:
        del at(made, *path[:-1])[path[-1]]

    return change


def without_a_cache_op(k: int) -> Callable[[dict[str, Any]], None]:
    """A plan without one of its cache ops, whose events stay; those after it move up."""

    def change(made: dict[str, Any]) -> None:
        del made["plan"]["cache_ops"][k]
        events = made["devices"][0]
        events["transfers"] = [
            [x[0] - (x[0] > k), *x[1:]] for x in events["transfers"] if x[0] != k
        ]

    return change


def alone_ns(transfer: list[Any]) -> int:
    """How long a transfer takes at least."""
    _, channel, size, _, _ = transfer
    return 3 + size if channel in ("h2d", "d2h") else 2 * size


def leg_from(a: int, b: int) -> dict[str, Any]:
    """A leg in which nothing is said to move."""
    return {"from": a, "to": b, "weights": {}, "room": {}, "later": {}}


def forgeries() -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Every event, cache op, claim and step of the genuine certificate, in turn, as it did not
    happen or does not follow.
    """
    events, ops = ("devices", 0), json.loads(genuine())["given"]["ops"]
    for k in each(*events, "ops"):
        yield f"op {k} is shorter", moved("ops", k, start=1)
        yield f"op {k} ends sooner", moved("ops", k, end=-1)
        yield f"op {k} begins before time 0", put([-1, 60], *events, "ops", k)
        yield f"op {k} starts at once, before its inputs", put([0, ops[k]["ns"]], *events, "ops", k)
        yield f"op {k} is left out", left_out(*events, "ops", k)
        yield f"op {k} waits for a later one", put([8], "given", "ops", k, "deps")
        yield f"op {k} takes longer", put(lambda ns: ns + 1, "given", "ops", k, "ns")
        yield (
            f"op {k} needs more room",
            put(lambda size: size + 200, "given", "ops", k, "workspace"),
        )
    for k in each(*events, "transfers"):
        yield (
            f"transfer {k} is shorter",
            put(lambda x: [*x[:4], x[3] + alone_ns(x) - 1], *events, "transfers", k),
        )
        yield f"transfer {k} has no time", moved("transfers", k, end=-500)
        yield (
            f"transfer {k} moves fewer bytes",
            put(lambda size: size - 1, *events, "transfers", k, 2),
        )
        yield (
            f"transfer {k} moves more bytes",
            put(lambda size: size + 1, *events, "transfers", k, 2),
        )
        yield (
            f"transfer {k} takes another channel",
            put(lambda on: "h2d" if on != "h2d" else "d2h", *events, "transfers", k, 1),
        )
        yield (
            f"transfer {k} is of another cache op",
            put(lambda one: (one + 1) % 18, *events, "transfers", k, 0),
        )
        yield f"transfer {k} is left out", left_out(*events, "transfers", k)
        yield (
            f"transfer {k} is twice there",
            put(lambda all_, k=k: [*all_, all_[k]], *events, "transfers"),
        )
        yield (
            f"transfer {k} comes first",
            put(lambda x: [*x[:3], 0, x[4] - x[3]], *events, "transfers", k)
            if k
            else put(-1, *events, "transfers", 0, 3),
        )
    for k in each(*events, "copies"):
        yield f"copy {k} begins later", moved("copies", k, start=1)
        yield f"copy {k} is let go sooner", moved("copies", k, end=-1)
        yield f"copy {k} is left out", left_out(*events, "copies", k)
        yield (
            f"copy {k} is in another tier",
            put(lambda tier: "ddr" if tier != "ddr" else "hbm", *events, "copies", k, 1),
        )
    for k in each("plan", "cache_ops")[
        :-1
    ]:  # the last one lets go when all has ended, so nothing shows that it is there
        yield f"cache op {k} is left out", without_a_cache_op(k)
        if k < 13:  # those after it wait for their stores until the last op has ended
            yield f"cache op {k} is issued at the end", put(8, "plan", "cache_ops", k, 4)
        yield (
            f"cache op {k} is of another tensor",
            put(lambda t: (t + 1) % 9, "plan", "cache_ops", k, 1),
        )
    for k in each("plan", "initial"):
        yield (
            f"tensor {k} starts elsewhere",
            put("nvme", "plan", "initial", k, 1) if k < 3 else put("hbm", "plan", "initial", k, 1),
        )
        yield f"tensor {k} starts nowhere", left_out("plan", "initial", k)
    for tier in ("hbm", "ddr", "nvme"):
        yield f"{tier} has a lower peak", put(lambda size: size - 1, "claims", "peak_bytes", tier)
        yield (
            f"{tier} is smaller",
            put(
                lambda size, tier=tier: json.loads(genuine())["claims"]["peak_bytes"][tier] - 1,
                "given",
                "tiers",
                tier,
                "bytes",
            ),
        )
    for k in each("given", "links"):
        yield f"link {k} is slower", put(lambda rate: rate // 2, "given", "links", k, "bytes_per_s")
    for channel in ("h2d", "d2h", "read", "write"):
        yield (
            f"{channel} is slower to begin",
            put(lambda ns: ns + 8, "given", "channels", channel, "latency_ns"),
        )
    yield "fewer engines", put(1, "given", "channels", "d2h", "engines")
    yield "one queue for both", put("h2d", "given", "channels", "d2h", "queue")
    yield "a shorter makespan", put(lambda ns: ns - 1, "claims", "makespan_ns")
    yield "a longer makespan", put(lambda ns: ns + 1, "claims", "makespan_ns")
    yield "a higher bound", put(lambda ns: ns + 1, "claims", "lower_bound_ns")
    yield "no device", put([], "devices")
    yield (
        "a machine of the plan's own",
        put({"hbm": {"bytes": 239, "of": [0]}, "ddr": {}, "nvme": {}}, "claims", "tiers"),
    )
    yield "copies beside the plan", put([["copy", 1, "hbm", "ddr", None]], *events, "decided")
    yield "less than nothing", put(lambda all_: [*all_, [8, "hbm", 500, 0]], *events, "copies")
    yield "a weight below 0", put({"0": [3, 1], "1": ["-2", None]}, "claims", "path", 0, "weights")
    yield "a way back", put(lambda path: [*path, leg_from(8, 0), *path[1:]], "claims", "path")
    yield "a step from nowhere", put(lambda path: [path[-1], *path], "claims", "path")
    yield "a weight above 1", put([2, 1], "claims", "path", 0, "weights", "0")
    yield "two weights above 1", put({"0": [1, 1], "1": [1, 1]}, "claims", "path", 0, "weights")
    yield "a negative price", put([-1, 1], "claims", "path", 0, "room", "hbm")
    yield "a leg that begins later", put(1, "claims", "path", 0, "from")
    yield "a leg to another op", put(4, "claims", "path", 0, "to")
    for k in each("claims", "path"):
        yield f"a path without step {k}", left_out("claims", "path", k)
        yield (
            f"step {k} twice",
            put(lambda path, k=k: [*path[: k + 1], *path[k:]], "claims", "path"),
        )


def test_no_forged_certificate_is_accepted() -> None:
    assert forged(lambda _: None) is None
    tried = dict(forgeries())
    assert len(tried) > 300
    assert [name for name, change in tried.items() if forged(change) is None] == []


def test_channels_of_one_queue_share_its_engines() -> None:
    """In the genuine certificate, which names no queue, copies of both directions overlap."""
    assert '"queue"' not in genuine()

    def in_one_queue(made: dict[str, Any]) -> None:
        made["given"]["channels"]["d2h"]["queue"] = "h2d"

    assert forged(in_one_queue) == "h2d moves more at once than it has engines"


def test_what_is_given_is_signed() -> None:
    """Who makes a larger machine sign for itself gets another SHA-256, which the checker prints."""
    larger = put(lambda size: size * 2, "given", "tiers", "ddr", "bytes")
    assert "SHA-256" in (forged(larger, signed=False) or "")
    made = json.loads(genuine())
    assert made["given_sha256"] in prove(genuine())
    larger(made)
    digest = hashlib.sha256(json.dumps(made["given"], sort_keys=True).encode()).hexdigest()
    assert digest != made["given_sha256"]
    assert digest in prove(json.dumps({**made, "given_sha256": digest}))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("claims", "makespan_ns"), 511, "false: the last event ends at 512 ns, not at 511 ns"),
        (("claims", "lower_bound_ns"), 333, "false: the path takes 332 ns at least, not 333 ns"),
        (("claims", "peak_bytes", "hbm"), 1, "false: hbm holds 235 B at its peak, not 1 B"),
        (("devices", 0, "ops", 0), [43, 92], "false: op f0 ends before its duration is over"),
    ],
)
def test_what_is_false_is_one_line(
    path: tuple[str | int, ...], value: Any, said: str, tmp_path: Path
) -> None:
    made = json.loads(genuine())
    put(value, *path)(made)
    assert checked(tmp_path, json.dumps(made)) == (1, f"{said}\n", "")


def checked(folder: Path, text: str, name: str = "proof.json") -> tuple[int, str, str]:
    """What the copied checker says of a file, in a folder and an interpreter without hosim."""
    content = text.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (folder / "alone.py").write_text(Path(check_certificate.__file__).read_text())
    done = subprocess.run(
        [sys.executable, "-I", "alone.py", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["proof.json", "proof.json.gz"])
def test_the_checker_alone(name: str, tmp_path: Path) -> None:
    assert checked(tmp_path, genuine(), name) == (0, prove(genuine()) + "\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "nothing",
        "[" * 100_000,
        '{"given": 1.5}',
        '{"given": -1}',
        '{"given": NaN}',
        genuine()[:-9],
    ],
)
def test_what_is_no_certificate(text: str, tmp_path: Path) -> None:
    code, stdout, stderr = checked(tmp_path, text)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("no certificate: ")
    assert len(stderr.splitlines()) == 1


def test_it_has_no_imports_but_the_standard_library() -> None:
    tree = ast.parse(Path(check_certificate.__file__).read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"jitter": Jitter(seed=1, op_sigma=0.1)}, "vary"),
        ({"allocator": "caching"}, "caching"),
        ({"record": False}, "record=True"),
    ],
)
def test_what_a_certificate_cannot_say(options: dict[str, Any], named: str) -> None:
    b = hosim.GraphBuilder("toy")
    b.tensor("w", 40, "parameter")
    b.op("f", "matmul", inputs=["w"], duration_ns=50)
    plan = Plan(b.build())
    result = replay(plan, MACHINE, **{"record": True, **options})
    with pytest.raises(InputError, match=named):
        to_certificate(plan, MACHINE, result)


def hand_made(path: list[Any], **claims: Any) -> dict[str, Any]:
    """A certificate's ops f, g, h and k, of which g reads ``next`` and writes ``kept`` and
    ``soon``. The tiers hold 100 and 1,000 B; a byte takes 1 ns in either direction.
    """

    def op(name: str, reads: list[int], writes: list[int], workspace: int = 0) -> dict[str, Any]:
        done = {"name": name, "reads": reads, "writes": writes, "workspace": workspace}
        return {**done, "stream": "compute", "tier": "hbm", "ns": 10, "deps": []}

    ops = [op("f", [0], [0]), op("g", [1], [2, 3]), op("h", [0, 3], [], 35), op("k", [2, 3], [])]
    ends = {"up": ("ddr", "hbm"), "down": ("hbm", "ddr")}
    return {
        "ops": ops,
        "tensors": [["w", 60, True], ["next", 50, False], ["kept", 30, False], ["soon", 5, False]],
        "tiers": {"hbm": {"bytes": 100}, "ddr": {"bytes": 1000}},
        "channels": {name: {"from": a, "to": b} for name, (a, b) in ends.items()},
        "links": [{"carries": [name], "bytes_per_s": 10**9} for name in ends],
        "path": path,
        **({"homes": [], "at_home": False, "repeats": False} | claims),
    }


HALVES = {"weights": {"0": [1, 2], "1": [1, 2]}}


def test_a_leg_between_two_ops_by_hand() -> None:
    """From f to h. Beside f's 60 B the 50 B of ``next`` have no room: they come in 50 ns. Beside
    h's 60 + 5 + 35 B the 30 B of ``kept`` have none: they go in 30 ns, and ``soon`` stays. Each
    link has half of the weight: 25 + 15 ns between two ops of 10 ns.
    """
    leg = {"from": 0, "to": 2, **HALVES, "room": {"hbm": [5, 2]}, "later": {"hbm": [1, 2]}}
    c = hand_made([0, leg, 2])
    assert bound(c, Program(c)) == 10 + 40 + 10


@pytest.mark.parametrize(
    ("repeats", "at_home", "ns"), [(False, True, 55), (True, True, 85), (False, False, 25)]
)
def test_a_leg_over_a_whole_step_by_hand(repeats: bool, at_home: bool, ns: int) -> None:
    """``w`` and ``next`` come from ddr in 60 + 50 ns, at half of the weight. In a step that is
    repeated, ``w``, which f writes, goes back in 60 ns. Where they may start anywhere, hbm has no
    room for both, and ``next`` is the smaller one.
    """
    room = {} if at_home else {"hbm": [5, 2]}
    leg = {"from": None, "to": None, **HALVES, "room": room, "later": {}}
    c = hand_made([leg], repeats=repeats, at_home=at_home, homes=[[0, "ddr"], [1, "ddr"]])
    assert bound(c, Program(c)) == ns
