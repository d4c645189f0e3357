"""The record of a measured case, field by field, from timelines derived by hand: 1 byte takes 1 ns
on every channel.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosim.analysis import canonical, digest, graph_fingerprint, plan_fingerprint
from hosim.api import machine
from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.data.versions import VERSIONS
from hosim.errors import InputError, PlanError
from hosim.gate import Case, measure, measure_graph, measure_lines
from hosim.gate.records import GraphRecord, Item, Listing, Measured, PeakRecord, Record, Stay
from hosim.graph import Graph, GraphBuilder
from hosim.io import hardware_from_dict, load_plan, save_hardware, save_plan, save_workload
from hosim.study.asked import parse_choice
from hosim.study.runs import make_plan
from hosim.version import __version__

TOY = {
    "name": "toy",
    "device_tier": "hbm",
    "devices": "1",
    "runtime.inspect": "20 us",
    "compute.peak.bf16": "1 TFLOP/s",
    "compute.efficiency": "1.0",
    "compute.launch": "0 ns",
    "tiers.hbm.capacity": "100 B",
    "tiers.hbm.bandwidth": "1 TB/s",
    "tiers.hbm.scope": "device",
    "tiers.ddr.capacity": "1 kB",
    "tiers.ddr.bandwidth": "100 GB/s",
    "tiers.ddr.scope": "host",
    "channels.h2d.from": "ddr",
    "channels.h2d.to": "hbm",
    "channels.h2d.bandwidth": "1 GB/s",
    "channels.h2d.latency": "0 ns",
    "channels.h2d.engines": "1",
    "channels.d2h.from": "hbm",
    "channels.d2h.to": "ddr",
    "channels.d2h.bandwidth": "1 GB/s",
    "channels.d2h.latency": "0 ns",
    "channels.d2h.engines": "1",
}
"""The shipped profile, flat."""

SHAPES = (
    "reduce k on 1*comm in 1*bf16",
    "matmul f reads 1*w writes 1*a in 1*bf16",
    "norm e in 1*bf16",
    "matmul g reads 1*a 1*w in 1*bf16",
    "relu h reads 1*a writes 1*c in 1*bf16",
)
"""What the ops of ``step`` use."""


def step() -> Graph:
    """``k`` runs beside the others, on a stream of its own, and is not the last to start."""
    b = GraphBuilder("step")
    b.tensor("w", 10, "parameter", home="ddr")
    b.tensor("a", 8)
    b.tensor("c", 30)
    b.op("k", "reduce", stream="comm", duration_ns=80)
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=5)
    b.op("e", "norm", duration_ns=10)
    b.op("g", "matmul", inputs=["a", "w"], duration_ns=10)
    b.op("h", "relu", inputs=["a"], outputs=["c"], workspace_bytes=7, duration_ns=45)
    return b.build()


def case(
    folder: Path, graph: Graph, *moves: tuple[str, str, str, str | None, str | None], **given: Any
) -> Case:
    """A case of a plan with these moves: what, the tensor, from, to, and the op after which."""
    cache_ops = [
        CacheOp(
            op,
            graph.tensor_index[t],
            source,
            to,
            AT_START if after is None else graph.op_index[after],
        )
        for op, t, source, to, after in moves
    ]
    save_workload(graph, folder / "step.json")
    save_plan(Plan(graph, "manual", tuple(cache_ops)), folder / "plan.json")
    return Case(
        "c",
        **{
            "hardware": "toy",
            "folder": str(folder),
            "workload": "step.json",
            "plan": "plan.json",
            **given,
        },
    )


def test_a_step_that_fetches_twice_and_stores(tmp_path: Path) -> None:
    """w comes at 0..10, f runs 10..15, e 15..25, w comes again at 25..35, g runs 35..45, h 45..90;
    a is stored at 45..53.

    The device tier holds w until 10, w and a until 15, a until 25, a and w until 45, and then c and
    7 B beside them: 55 B. A column of the curve is 1.5 ns: it begins at a whole nanosecond before
    that, and ends at one after.
    """
    asked = case(
        tmp_path,
        step(),
        ("prefetch", "w", "ddr", "hbm", None),
        ("detach", "w", "hbm", None, "f"),
        ("prefetch", "w", "ddr", "hbm", "e"),
        ("detach", "w", "hbm", None, "h"),
        ("store", "a", "hbm", "ddr", "g"),
    )
    w, a = Item("parameter", "w", 10, "e", "h"), Item("activation", "a", 8, "", "h")
    ran = canonical(step())
    plan = load_plan(tmp_path / "plan.json", ran)
    record = Record(
        case="c",
        asked={"workload": "step.json", "hardware": "toy", "plan": "plan.json"},
        fingerprints={
            "graph": graph_fingerprint(ran),
            "plan": plan_fingerprint(plan, "hyperoffload"),
        },
        metrics={
            "peak.hbm": 55,
            "peak.ddr": 18,
            "makespan": 90,
            "stall.dependency": 0,
            "stall.transfer": 20,
            "stall.capacity": 0,
            "stall.runtime": 0,
            "moved.h2d": 20,
            "moved.d2h": 8,
        },
        machine={**TOY, "budget": "100 B"},
        peaks={
            "hbm": PeakRecord(
                "h",
                {"parameter": 10, "activation": 38, "workspace": 7},
                Listing((a, Item("activation", "c", 30, "", "h"), w, Item("workspace", "h", 7))),
            ),
            "ddr": PeakRecord(
                "h",
                {"parameter": 10, "activation": 8},
                Listing((Item("activation", "a", 8, "g", "h"), Item("parameter", "w", 10))),
            ),
        },
        moved={
            "h2d": Listing((Item("parameter", "w", 20),)),
            "d2h": Listing((Item("activation", "a", 8),)),
        },
        stalls=Listing((Item("transfer", "f", 10), Item("transfer", "g", 10))),
        durations=Listing(
            (
                *(Item("matmul", "f", 5), Item("matmul", "g", 10), Item("norm", "e", 10)),
                *(Item("reduce", "k", 80), Item("relu", "h", 45)),
            )
        ),
        curve=(*[10] * 6, *[18] * 4, *[8] * 6, *[18] * 14, *[55] * 30),
        hosim=__version__,
        versions=VERSIONS,
        notes=("durations: times as given for all 5 ops",),
        graph=GraphRecord(
            tensors=Listing(
                (
                    Item("activation", "a", 8),
                    Item("activation", "c", 30),
                    Item("parameter in ddr", "w", 10),
                )
            ),
            workspaces=Listing((Item("relu", "h", 7),)),
            times=Listing(
                (
                    *(Item("norm", "e", 10), Item("matmul", "f", 5), Item("matmul", "g", 10)),
                    *(Item("relu", "h", 45), Item("reduce", "k", 80)),
                )
            ),
            shapes=dict.fromkeys(SHAPES, 1),
            again={},
        ),
    )
    found = measure(asked)
    assert found.record is not None
    assert len(found.record.fingerprints["source"]) == 16  # of the file
    record = replace(record, fingerprints=found.record.fingerprints | record.fingerprints)
    assert found == Measured(
        record,
        stays={
            ("hbm", "w"): Stay("g", None, True, "e"),
            ("hbm", "a"): Stay("h", None, False, None),
            ("hbm", "c"): Stay("h", None, False, None),
            ("ddr", "w"): Stay("g", None, False, None),
            ("ddr", "a"): Stay("h", None, True, "g"),
        },
        positions={"k": 0, "f": 1, "e": 2, "g": 3, "h": 4},
        tensors=frozenset("wac"),
        waits_for={"f": "w", "g": "w"},
        shapes={shape: [shape.split(" ")[1]] for shape in SHAPES},
        reads={op: found.reads[op] for op in "kfegh"},
    )
    assert found.reads["h"] == ("a", "c")
    assert measure_graph(asked, step(), found.record.fingerprints["source"]) == found


def test_what_is_away_at_the_peak_and_what_was_fetched_at_the_start(tmp_path: Path) -> None:
    """e runs 0..30 while u is fetched, f 30..40, i 40..60 while v is, g 60..70. The peak is at 30:
    p, z, u, a and 20 B.

    v is away then; x is not, because g writes it only later.
    """
    b = GraphBuilder("away")
    b.tensor("p", 50, "parameter", home="hbm")
    b.tensor("u", 11, "parameter", home="ddr")
    b.tensor("v", 12, "optimizer_state", home="ddr")
    b.tensor("z", 3, "input", home="hbm")
    b.tensor("a", 9)
    b.tensor("x", 4)
    b.op("e", "any", inputs=["z"], duration_ns=30)
    b.op("f", "any", inputs=["u", "p"], outputs=["a"], workspace_bytes=20, duration_ns=10)
    b.op("i", "any", inputs=["a"], duration_ns=20)
    b.op("g", "any", inputs=["u", "v"], outputs=["x"], duration_ns=10)
    asked = case(
        tmp_path,
        b.build(),
        ("prefetch", "u", "ddr", "hbm", None),
        ("prefetch", "v", "ddr", "hbm", "f"),
        ("detach", "u", "hbm", None, "g"),
        ("detach", "v", "hbm", None, "g"),
    )
    found = measure(asked)
    assert found.record is not None
    assert found.record.metrics["peak.hbm"] == 93
    assert found.record.peaks["hbm"] == PeakRecord(
        "f",
        {"parameter": 61, "activation": 9, "input": 3, "workspace": 20},
        Listing(
            (
                *(Item("activation", "a", 9, "", "i"), Item("input", "z", 3)),
                *(
                    Item("parameter", "p", 50),
                    Item("parameter", "u", 11, "", "g"),
                    Item("workspace", "f", 20),
                ),
            )
        ),
        Listing((Item("optimizer_state", "v", 12),)),
    )
    assert {name: stay for (tier, name), stay in found.stays.items() if tier == "hbm"} == {
        "p": Stay("f", None, False, None),
        "u": Stay("f", "g", True, None),
        "z": Stay("e", None, False, None),
        "a": Stay("f", "i", False, None),
    }


@pytest.mark.parametrize(
    ("of_f", "of_h", "op", "held", "away", "stays"),
    [
        (
            70,
            0,
            "f",
            {"a": ("", "g"), "s": ("", "i"), "f": ("", "")},
            (),
            {"a": Stay("f", "g", False, None), "s": Stay("f", "i", False, None)},
        ),
        (0, 30, "h", {"b": ("", "j"), "h": ("", "")}, ("a",), {"b": Stay("h", "j", False, None)}),
        (
            0,
            0,
            None,
            {"a": ("h", "j"), "b": ("", "j")},
            (),
            {"a": Stay("g", "j", True, "h"), "b": Stay("h", "j", False, None)},
        ),
    ],
    ids=["at 0 ns", "at 50 ns", "at 80 ns"],
)
def test_a_tensor_that_leaves_and_comes_back(
    of_f: int,
    of_h: int,
    op: str | None,
    held: dict[str, tuple[str, str]],
    away: tuple[str, ...],
    stays: dict[str, Stay],
    tmp_path: Path,
) -> None:
    """f runs 0..10, g 10..20, i 20..50, h 50..80, j 100..110 and, on another stream, k 100..105.
    The workspaces say which peak is highest.

    a is stored at 20..40, then dropped, and fetched at 80..100, while nothing runs. s is held until
    i has ended at 50, when h begins.
    """
    b = GraphBuilder("back")
    sizes = {"a": 20, "s": 5, "b": 60, "f": of_f, "h": of_h}
    for name in "asb":
        b.tensor(name, sizes[name])
    b.op("f", "any", outputs=["a", "s"], workspace_bytes=of_f, duration_ns=10)
    b.op("g", "any", inputs=["a"], duration_ns=10)
    b.op("i", "any", inputs=["s"], duration_ns=30)
    b.op("h", "any", outputs=["b"], workspace_bytes=of_h, duration_ns=30)
    b.op("j", "any", inputs=["a", "b"], duration_ns=10)
    b.op("k", "any", inputs=["a"], stream="comm", duration_ns=5)
    moves = [
        ("store", "a", "hbm", "ddr", "g"),
        ("detach", "a", "hbm", None, "g"),
        ("prefetch", "a", "ddr", "hbm", "h"),
    ]
    found = measure(case(tmp_path, b.build(), *moves))
    assert found.record is not None
    peak = found.record.peaks["hbm"]
    kinds = [
        ("workspace" if name in "fh" else "activation", name)
        for name in sorted(held, key=lambda name: (name in "fh", name))
    ]
    assert peak.op == op
    assert peak.residents == Listing(
        tuple(Item(kind, name, sizes[name], *held[name]) for kind, name in kinds)
    )
    assert peak.away == Listing(tuple(Item("activation", name, sizes[name]) for name in away))
    assert {name: stay for (tier, name), stay in found.stays.items() if tier == "hbm"} == stays
    assert found.record.metrics["makespan"] == 110


def test_a_copy_that_follows_another_at_once_and_a_step_without_time(tmp_path: Path) -> None:
    """w is dropped at 15, at the end of f, and fetched again at 15..25 for g, while d is, so that
    the peak is there.
    """
    b = GraphBuilder("again")
    b.tensor("w", 10, "parameter", home="ddr")
    b.tensor("d", 30, "parameter", home="ddr")
    b.op("f", "any", inputs=["w"], duration_ns=5)
    b.op("g", "any", inputs=["w", "d"], duration_ns=5)
    moves = [
        ("prefetch", "w", "ddr", "hbm", None),
        ("detach", "w", "hbm", None, "f"),
        ("prefetch", "w", "ddr", "hbm", "f"),
        ("prefetch", "d", "ddr", "hbm", "f"),
        ("detach", "w", "hbm", None, "g"),
        ("detach", "d", "hbm", None, "g"),
    ]
    found = measure(case(tmp_path, b.build(), *moves))
    assert found.record is not None
    assert found.record.peaks["hbm"].residents == Listing(
        (Item("parameter", "d", 30, "f", "g"), Item("parameter", "w", 10, "f", "g"))
    )
    empty = GraphBuilder("empty")
    empty.tensor("a", 3)
    empty.op("f", "any", outputs=["a"], duration_ns=0)
    at_once = measure_graph(Case("c", "toy", policy="resident"), empty.build())
    assert at_once.record is not None
    assert (at_once.record.curve, at_once.record.metrics["makespan"]) == ((), 0)


def test_chunks_on_their_way_through_a_tier(tmp_path: Path) -> None:
    """Chunks of 4, 4 and 2 B go up at 0..4..8..10 and on at 4..8..12..14: from 4 on the first two
    are in ddr, and nothing runs.
    """
    tiers = {name: {"capacity": "100 B", "bandwidth": "1 TB/s"} for name in ("hbm", "ddr", "pool")}
    channels = {
        "up": {"from": "pool", "to": "ddr", "bandwidth": "1 GB/s"},
        "h2d": {"from": "ddr", "to": "hbm", "bandwidth": "1 GB/s"},
    }
    machine = {
        "format": "hosim.hardware/1",
        "name": "three",
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
        "chunk": "4 B",
    }
    save_hardware(
        hardware_from_dict({**machine, "tiers": tiers, "channels": channels}),
        tmp_path / "three.yaml",
    )
    b = GraphBuilder("staged")
    b.tensor("w", 10, "parameter", home="pool")
    b.op("f", "any", inputs=["w"], duration_ns=6)
    moves = [("prefetch", "w", "pool", "hbm", None), ("detach", "w", "hbm", None, "f")]
    found = measure(case(tmp_path, b.build(), *moves, hardware="three.yaml"))
    assert found.record is not None
    assert found.record.peaks["ddr"] == PeakRecord(
        None, {"parameter": 8}, Listing((Item("staged", "w", 8),))
    )
    assert found.record.peaks["hbm"] == PeakRecord(
        None, {"parameter": 10}, Listing((Item("parameter", "w", 10, "", "f"),))
    )
    assert found.record.moved == {
        name: Listing((Item("parameter", "w", 10),)) for name in ("up", "h2d")
    }
    assert found.stays == {
        ("hbm", "w"): Stay(None, "f", True, None),
        ("pool", "w"): Stay(None, "f", False, None),
    }
    assert (found.record.metrics["makespan"], found.waits_for) == (20, {"f": "w"})


def test_a_policy_that_decides_during_the_replay(tmp_path: Path) -> None:
    """It looks at each op for 20 us; f waits for v, and g for w in the place of v. Where a copy
    came from is not known.
    """
    b = GraphBuilder("two")
    b.tensor("v", 60, "parameter", home="ddr")
    b.tensor("w", 70, "parameter", home="ddr")
    b.op("f", "any", inputs=["v"], duration_ns=5)
    b.op("g", "any", inputs=["w"], duration_ns=5)
    found = measure_graph(Case("c", "toy", policy="on_demand"), b.build())
    made = make_plan(canonical(b.build()), machine("toy"), parse_choice("on_demand"), 100)
    assert found.record is not None
    assert found.record.fingerprints["plan"] == plan_fingerprint(made, "on_demand")
    assert found.record.peaks["hbm"] == PeakRecord(
        None,
        {"parameter": 70},
        Listing((Item("parameter", "w", 70),)),
        Listing((Item("parameter", "v", 60),)),
    )
    assert found.stays["hbm", "w"] == Stay(None, "g", False, None)
    looked, waited = (
        (Item("runtime", op, 20_000) for op in "fg"),
        (Item("transfer", op, size) for op, size in (("f", 60), ("g", 70))),
    )
    assert found.record.stalls == Listing((*looked, *waited))
    assert found.waits_for == {"f": "v", "g": "w"}


def test_what_does_not_fit_and_what_breaks_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = step()
    asked = case(
        tmp_path, graph, ("detach", "w", "hbm", None, "h"), ("detach", "a", "hbm", None, "f")
    )
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError) as broken:
        measure(asked)
    assert (
        str(broken.value)
        == f"{path}: breaks a rule: read: op 'f' reads tensor 'w', which is in ddr: no prefetch "
        "brings it to hbm (and 1 more)"
    )
    first, second = broken.value.findings
    assert (first, second.partition(":")[0]) == (
        str(broken.value).partition("breaks a rule: ")[2].removesuffix(" (and 1 more)"),
        "last-copy",
    )
    case(tmp_path, graph, ("prefetch", "w", "ddr", "pool", None))
    with pytest.raises(InputError) as unknown:
        measure(asked)
    assert (
        str(unknown.value)
        == f"{path}: cache_ops[0].to: unknown tier 'pool' (known: hbm, ddr); the hardware is 'toy'"
    )
    with monkeypatch.context() as patched:
        patched.setattr(
            "hosim.gate.measured_case.make_plan", lambda *given: Plan(canonical(graph), "sloppy")
        )
        with pytest.raises(
            PlanError,
            match="policy sloppy made a plan that breaks a rule, which is a bug of the policy: "
            "read: op 'f'",
        ):
            measure(Case("c", "toy", str(tmp_path), "step.json"))
    later = (
        "out of memory: op 'h' wants 37 B of hbm at 80 ns, where 18 B of 50 B are held; "
        "largest residents: w 10 B, a 8 B"
    )
    least = (
        "out of memory: op 'h' needs 45 B of hbm for what it uses and its workspace; the "
        "budget is 40 B: give it at least that"
    )
    for budget, policy, error in (
        ("50 B", "resident", later),
        ("40 B", "on_demand", least),
        ("40 B", "belady", least),
    ):
        unfit = Case("c", "toy", str(tmp_path), "step.json", policy=policy, budget=budget)
        found = measure(unfit)
        assert (found.record, found.error) == (None, error)
        assert found.wanted is not None
        assert found.wanted.asked["budget"] == budget
        assert found.wanted.graph.tensors.count == 3
        assert list(measure_lines([unfit])) == [Measured(None, error)]


def test_a_line_of_a_matrix(tmp_path: Path) -> None:
    """20 us for each of f, e, g and h, 10 ns for w, and 70 ns for the ops: with a full cache w
    stays.
    """
    case(tmp_path, step())
    save_hardware(machine("toy"), tmp_path / "own.yaml")
    asked = [
        Case(f"m/{k}", hardware, str(tmp_path), "step.json", policy="on_demand")
        for k, hardware in enumerate(("toy", "own.yaml"))
    ]
    peaks = {
        "hbm": PeakRecord(None, {"parameter": 10, "activation": 38, "workspace": 7}, Listing()),
        "ddr": PeakRecord(None, {"parameter": 10}, Listing()),
    }
    metrics = {
        "peak.hbm": 55,
        "peak.ddr": 10,
        "makespan": 80080,
        "stall.dependency": 0,
        "stall.transfer": 10,
        "stall.capacity": 0,
        "stall.runtime": 80000,
        "moved.h2d": 10,
        "moved.d2h": 0,
    }
    found = [each.record for each in measure_lines(asked)]
    (one, other) = found
    assert one is not None
    assert other is not None
    said = ("durations: times as given for all 5 ops",)
    nothing: tuple[Any, ...] = {}, Listing(), Listing(), ()
    assert one == Record(
        "m/0",
        asked[0].asked(),
        one.fingerprints,
        metrics,
        {},
        peaks,
        *nothing,
        __version__,
        VERSIONS,
        said,
    )
    made = make_plan(canonical(step()), machine("toy"), parse_choice("on_demand"), 100)
    assert {key: one.fingerprints[key] for key in ("graph", "plan")} == {
        "graph": graph_fingerprint(canonical(step())),
        "plan": plan_fingerprint(made, "on_demand"),
    }
    assert one.fingerprints["machine"] == digest(repr(sorted(TOY.items())))
    assert one.fingerprints == other.fingerprints
    faster = replace(machine("toy"), inspect_ns=7)
    save_hardware(faster, tmp_path / "own.yaml")
    (third,) = measure_lines(asked[1:])
    assert third.record is not None
    assert third.record.fingerprints["machine"] != one.fingerprints["machine"]


def test_files_beside_the_cases_come_first(tmp_path: Path) -> None:
    """A folder that is named as a shipped profile does not hide it, but a file does."""
    case(tmp_path, step())
    (tmp_path / "toy").mkdir()
    asked = Case("c", "toy", str(tmp_path), "step.json", policy="on_demand")
    first = measure(asked)
    assert first.record is not None
    (tmp_path / "toy").rmdir()
    save_hardware(replace(machine("toy"), name="mine"), tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").rename(tmp_path / "toy")
    own = measure(asked)
    assert own.record is not None
    assert (first.record.machine["name"], own.record.machine["name"]) == ("toy", "mine")


def test_a_case_may_name_a_model(tmp_path):
    def measured(text):
        (line,) = measure_lines(
            [Case("c", "h100-80gb-sxm", str(tmp_path), text, policy="resident")]
        )
        return line.record.fingerprints

    found = [measured(f"gpt2:layers=1:sequence={n}") for n in (8, 8, 9)]
    assert found[0] == found[1]
    assert found[0]["source"] == digest("gpt2:layers=1:sequence=8") != found[2]["source"]
    assert found[0]["graph"] != found[2]["graph"]


def test_what_a_recipe_says_is_asked(tmp_path: Path) -> None:
    spec = {
        "format": "hosim.spec/1",
        "name": "m",
        "builder": {"model": "gpt2", "layers": 1, "phase": "train", "checkpoint": True},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    found = measure(
        Case("c", "h100-80gb-sxm", str(tmp_path), workload="spec.json", policy="resident")
    )
    assert found.record is not None
    assert {
        key: value for key, value in found.record.asked.items() if key.startswith("workload.")
    } == {
        "workload.builder.model": "gpt2",
        "workload.builder.layers": "1",
        "workload.builder.phase": "train",
        "workload.builder.checkpoint": "true",
    }
