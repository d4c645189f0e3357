"""Blame on timelines derived by hand (1 byte takes 1 ns), and its sum on every policy's plans."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from quick_cases import one_in
from rendered import facts
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.cli.main import app
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Compute, Fabric
from hosim.io import save_hardware, save_plan, save_workload
from hosim.study import Blame, ExplainedStall, blame, stall_rows, stalls_of
from hosim.study.asked import parse_choice
from hosim.study.runs import Question, make_plan


def graph(first_ns: int = 20, others: tuple[str, ...] = ()) -> Graph:
    """``f0``, then ``f1`` which reads ``w`` of 40 bytes; the ``others`` of 30 bytes are read by
    ``f2``.
    """
    b = GraphBuilder("two")
    for name in ("w", *others):
        b.tensor(name, 40 if name == "w" else 30, "parameter", home="ddr")
    b.op("e", "any", duration_ns=5)
    b.op("f0", "any", duration_ns=first_ns)
    b.op("f1", "any", inputs=["w"], duration_ns=10)
    b.op("f2", "any", inputs=list(others), duration_ns=10)
    return b.build()


def blamed(made: Graph, *moves: tuple[str, int], budget: int | None = None) -> list[ExplainedStall]:
    """The stalls of a plan that prefetches and drops again."""
    prefetches = [
        CacheOp("prefetch", made.tensor_index[name], "ddr", "hbm", after) for name, after in moves
    ]
    drops = [
        CacheOp("detach", made.tensor_index[name], "hbm", None, len(made.ops) - 1)
        for name, _ in moves
    ]
    return stalls_of(Plan(made, cache_ops=(*prefetches, *drops)), MACHINE, budget)[1]


def full_until_f0_has_ended(issued_after: int) -> Plan:
    """u (70 B) is held from e to f0, which ends at 55; w (40 B) is for f1, and fetched after the op
    of this number.
    """
    b = GraphBuilder("full")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("u", 70)
    b.op("e", "any", outputs=["u"], duration_ns=5)
    b.op("f0", "any", inputs=["u"], duration_ns=50)
    b.op("f1", "any", inputs=["w"], duration_ns=10)
    return Plan(
        b.build(),
        cache_ops=(
            CacheOp("prefetch", 0, "ddr", "hbm", issued_after),
            CacheOp("detach", 0, "hbm", None, 2),
        ),
    )


def test_a_transfer_that_only_more_bandwidth_shortens() -> None:
    (stall,) = blamed(graph(), ("w", AT_START))  # 0..40; f0 ends at 25
    assert (stall.op, stall.cause, stall.start_ns, stall.end_ns, stall.stall_ns) == (
        "f1",
        "transfer",
        25,
        40,
        15,
    )
    assert (stall.tensor, stall.channel, stall.size_bytes) == ("w", "h2d", 40)
    assert (stall.issued_ns, stall.started_ns, stall.ended_ns) == (0, 0, 40)
    assert (stall.occupied, stall.occupied_ns, stall.held_back_ns) == ((), 0, 0)
    assert stall.bandwidth_bytes_per_s == 40 * 10**9 // 25
    assert stall.prevented_by == "1.60 GB/s of h2d for it"


def test_a_transfer_issued_late() -> None:
    (stall,) = blamed(graph(100), ("w", 1))  # issued at 105, ends at 145
    assert (stall.start_ns, stall.end_ns, stall.bandwidth_bytes_per_s) == (105, 145, None)
    assert facts(stall.prevented_by, "w", "h2d") == "w, 40 ns, h2d"


def test_a_transfer_issued_late_that_would_find_no_room_before() -> None:
    """u holds 70 B until f0 has ended at 55, when w (40 B) is issued; 40 ns before there would be
    30 B for it.
    """
    plan = full_until_f0_has_ended(issued_after=1)
    (stall,) = stalls_of(plan, MACHINE, 100)[1]
    assert (stall.issued_ns, stall.started_ns, stall.end_ns) == (55, 55, 95)
    assert facts(stall.prevented_by, "w", "hbm", "h2d") == "w, 40 ns, 10 B, hbm, h2d"
    (enough,) = stalls_of(plan, MACHINE, 110)[1]
    assert facts(enough.prevented_by, "w", "h2d") == "w, 40 ns, h2d"


def test_a_transfer_behind_another() -> None:
    (stall,) = blamed(
        graph(50, ("v",)), ("v", AT_START), ("w", AT_START)
    )  # v 0..30, w 30..70, f0 ends at 55
    assert (stall.start_ns, stall.end_ns) == (55, 70)
    assert (stall.occupied, stall.occupied_ns, stall.held_back_ns) == (("v",), 30, 0)
    assert facts(stall.prevented_by, "v", "h2d") == "v, 30 B, h2d, 1.60 GB/s, h2d"


def test_a_transfer_without_room() -> None:
    # u fills the device tier until f0 has ended at 55; then w has room
    (stall,) = stalls_of(full_until_f0_has_ended(issued_after=0), MACHINE, 100)[1]
    assert (stall.issued_ns, stall.started_ns, stall.start_ns, stall.end_ns) == (5, 55, 55, 95)
    assert (stall.occupied_ns, stall.held_back_ns) == (0, 50)
    assert facts(stall.prevented_by, "h2d") == "40 ns, h2d"


def test_a_transfer_that_shares_a_link() -> None:
    """v goes down while w comes up, each at half of the link's rate: they take 80 ns instead of 40,
    and f1 waits from 40 on.
    """
    b = GraphBuilder("shared")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("v", 40, "parameter", home="hbm")
    b.op("f0", "any", duration_ns=40)
    b.op("f1", "any", inputs=["w", "v"], duration_ns=10)
    moves = (
        CacheOp("prefetch", 0, "ddr", "hbm"),
        CacheOp("store", 1, "hbm", "ddr"),
        CacheOp("detach", 0, "hbm", None, 1),
    )
    machine = replace(MACHINE, fabrics=(Fabric("link", 10**9, ("h2d", "d2h")),))
    (stall,) = stalls_of(Plan(b.build(), cache_ops=moves), machine)[1]
    assert (stall.start_ns, stall.end_ns, stall.contention_ns, stall.held_back_ns) == (
        40,
        80,
        40,
        0,
    )
    assert facts(stall.prevented_by, "h2d") == "h2d, 40 ns, 1.00 GB/s, h2d"


@pytest.mark.parametrize(
    ("size", "prevented_by"),
    [
        (50, "10.0 GB/s of h2d for it"),  # 50 B in 5 ns: ten times as fast as it is
        (51, "w living in hbm and not in ddr"),
    ],
)
def test_ten_times_the_bandwidth_is_the_most_that_is_advised(size: int, prevented_by: str) -> None:
    b = GraphBuilder("fast")
    b.tensor("w", size, "parameter", home="ddr")
    b.op("f0", "any", duration_ns=5)
    b.op("f1", "any", inputs=["w"], duration_ns=10)
    moves = (CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, 1))
    (stall,) = stalls_of(Plan(b.build(), cache_ops=moves), MACHINE)[1]
    assert (stall.start_ns, stall.end_ns) == (5, size)
    assert stall.prevented_by == prevented_by


def test_a_transfer_behind_several_and_one_issued_as_early_as_could_be() -> None:
    """Five of 30 B go before w: 0..150, then w to 190; f0 ends at 30, so that w is 160 ns late, of
    which 150 ns are theirs.
    """
    others = ("v", "u", "t", "s", "r")
    (stall, *_) = blamed(graph(25, others), *((name, AT_START) for name in others), ("w", AT_START))
    assert (stall.start_ns, stall.end_ns, stall.occupied, stall.occupied_ns) == (
        30,
        190,
        others,
        150,
    )
    assert facts(stall.prevented_by, "w", "hbm", "ddr", "h2d") == "w, hbm, ddr, h2d"
    (stall, *_) = blamed(graph(35, others), *((name, AT_START) for name in others), ("w", AT_START))
    assert facts(stall.prevented_by, "v", "u", "t", "h2d") == "v, u, t, 2, 150 B, h2d"
    # issued at 5, w is 40 - 20 = 20 ns late: it could have been issued at 0 at the earliest, which
    # is 5 ns before
    (stall,) = blamed(graph(20), ("w", 0))
    assert (stall.issued_ns, stall.start_ns, stall.end_ns) == (5, 25, 45)
    assert stall.prevented_by == "2.00 GB/s of h2d for it"
    (stall,) = blamed(graph(35), ("w", 0))  # just in time, if issued at 0
    assert (stall.start_ns, stall.end_ns) == (40, 45)
    assert facts(stall.prevented_by, "w", "h2d") == "w, 5 ns, 0, h2d, 1.14 GB/s, h2d"


def test_parts_of_a_tensor_that_go_before_are_named_together() -> None:
    """As above, with parts among the five: they are one of the three names, and each of them is in
    ``occupied``.
    """
    b = GraphBuilder("parts")
    ahead = {"v[2]": "v", "u": "", "v[0]": "v", "t": "", "v[1]": "v", "s": "", "r": ""}
    for name, of in {**ahead, "w": ""}.items():
        b.tensor(name, 30, "parameter", home="ddr", of=of)
    b.op("f0", "any", duration_ns=235)
    b.op("f1", "any", inputs=["w"], duration_ns=10)
    b.op("f2", "any", inputs=list(ahead), duration_ns=10)
    (stall, *_) = blamed(
        b.build(), *((name, AT_START) for name in ahead), ("w", AT_START)
    )  # w: 210..240
    assert stall.occupied == tuple(ahead)
    assert facts(stall.prevented_by, "v", "u", "t", "h2d").startswith(
        "v, 0, 3, u, t, 2, 210 B, h2d"
    )


def test_rows_and_sums_of_stalls() -> None:
    stalls = blamed(graph(50, ("v",)), ("v", AT_START), ("w", AT_START))
    assert stall_rows(stalls) == [
        {
            "stream": "compute",
            "op": "f1",
            "cause": "transfer",
            "start_ns": 55,
            "end_ns": 70,
            "stall_ns": 15,
            "processor": None,
            "tensor": "w",
            "channel": "h2d",
            "size_bytes": 40,
            "issued_ns": 0,
            "started_ns": 30,
            "ended_ns": 70,
            "occupied": "v",
            "occupied_ns": 30,
            "held_back_ns": 0,
            "contention_ns": 0,
            "bandwidth_bytes_per_s": 1_600_000_000,
            "prevented_by": stalls[0].prevented_by,
        }
    ]
    waits = [
        ("transfer", 5, "h2d"),
        ("capacity", 9, None),
        ("transfer", 3, "h2d"),
        ("transfer", 7, "d2h"),
        ("runtime", 1, "d2h"),
    ]
    listed = [
        ExplainedStall("s", "op", cause, 10, 10 + ns, "", channel=channel)
        for cause, ns, channel in waits
    ]
    found = Blame("by hand", replay(Plan(chain(1)), MACHINE), listed, (), False)
    assert list(found.by_cause.items()) == [
        (("capacity", ""), 9),
        (("transfer", "h2d"), 8),
        (("transfer", "d2h"), 7),
        (("runtime", "d2h"), 1),
    ]
    said = facts(str(found).partition("wait")[2], "capacity", "transfer", "runtime", "h2d", "d2h")
    assert said == "25 ns, 9 ns, capacity, 8 ns, h2d, 7 ns, d2h, 1 ns, runtime, d2h"


def test_an_op_that_the_runtime_looks_at() -> None:
    found = blame(
        Question(chain(1), replace(MACHINE, inspect_ns=30), parse_choice("on_demand"), 100)
    )
    (stall,) = found.stalls
    assert (stall.cause, facts(stall.prevented_by)) == ("runtime", "30 ns")
    assert (
        facts(str(found), "on_demand", "hbm") == "on_demand, 50 ns, 30 ns, 30 ns, 30 ns, 20 ns, hbm"
    )
    assert (
        facts(str(blame(Question(chain(2), MACHINE, parse_choice("resident"), 1000))), "resident")
        == "resident, 40 ns"
    )


def test_an_op_without_room() -> None:
    # v is stored until 105, and only then dropped: f1 has no room for its 50 bytes beside it
    b = GraphBuilder("room")
    b.tensor("v", 100, "parameter")
    b.tensor("a", 50)
    b.op("f0", "any", inputs=["v"], duration_ns=5)
    b.op("f1", "any", outputs=["a"], duration_ns=10)
    made = b.build()
    moves = (
        CacheOp("store", 0, "hbm", "ddr", 0),
        CacheOp("detach", 0, "hbm", None, 0),
        CacheOp("prefetch", 0, "ddr", "hbm", 1),
    )
    stall, drain = stalls_of(Plan(made, cache_ops=moves), MACHINE, 150 - 10)[1]
    assert (stall.op, stall.cause, stall.start_ns, stall.end_ns) == ("f1", "capacity", 5, 105)
    assert facts(stall.prevented_by, "hbm", "v") == "10 B, hbm, v"
    assert (drain.op, drain.cause, drain.start_ns, drain.end_ns, drain.channel) == (
        "",
        "drain",
        115,
        215,
        "h2d",
    )
    assert facts(drain.prevented_by, "v", "h2d") == "v, h2d, h2d, 100 ns"


def test_an_op_that_waits_for_another_stream() -> None:
    b = GraphBuilder("streams")
    b.tensor("a", 1)
    b.op("slow", "any", outputs=["a"], stream="comm", duration_ns=50)
    b.op("f", "any", inputs=["a"], duration_ns=10)
    (stall,) = stalls_of(Plan(b.build()), MACHINE)[1]
    assert (stall.stream, stall.op, stall.cause, stall.stall_ns) == (
        "compute",
        "f",
        "dependency",
        50,
    )
    assert facts(stall.prevented_by, "slow", "comm") == "slow, comm"


@pytest.mark.parametrize(
    "policy",
    one_in(
        2, ["on_demand", "hyperoffload", "layerwise", "lookahead", "belady", "g10", "memory_peak"]
    ),
)
@pytest.mark.parametrize("budget", one_in(3, [200, 100, 400]))
def test_what_is_blamed_on_a_channel_is_its_exposed_time(policy: str, budget: int) -> None:
    made = make_plan(chain(24), replace(MACHINE, inspect_ns=3), parse_choice(policy), budget)
    result, stalls = stalls_of(made, replace(MACHINE, inspect_ns=3), budget)
    for name, figures in result.channels.items():
        assert (
            sum(s.stall_ns for s in stalls if s.channel == name and s.cause == "transfer")
            == figures.exposed_ns
        )
    for cause, spent in result.stall_ns.items():
        assert sum(s.stall_ns for s in stalls if s.cause == cause) == spent
    assert sum(s.stall_ns for s in stalls if s.cause == "drain") == result.drain_ns
    for s in stalls:
        if s.channel is not None and s.cause == "transfer":
            assert s.started_ns - s.issued_ns == s.occupied_ns + s.held_back_ns
            assert min(s.occupied_ns, s.held_back_ns) >= 0
            assert s.ended_ns == s.end_ns
        assert s.prevented_by


def test_prices_are_finite_differences() -> None:
    question = Question(chain(24), MACHINE, parse_choice("belady"), 100)
    found = blame(question, more_memory_bytes=100, more_bandwidth_bytes_per_s=10**9)
    by_name = {price.what: price for price in found.prices if price.added in ("100 B", "1.00 GB/s")}
    assert set(by_name) == {"hbm", "h2d"}
    plan = make_plan(question.graph, MACHINE, question.choice, 100)
    wider = replay(plan, question.with_settings({"channels.h2d.bandwidth": "2 GB/s"}).hardware, 100)
    assert by_name["h2d"].makespan_ns == wider.makespan_ns
    assert by_name["h2d"].saves_ns == found.result.makespan_ns - wider.makespan_ns > 0
    roomier = replace(question, budget=200).answer()
    assert by_name["hbm"].saves_ns == found.result.makespan_ns - roomier.makespan_ns
    assert str(by_name["h2d"]).startswith("+1.00 GB/s of h2d saves ")
    assert found.replanned
    assert list(found.frame["stall_ns"]) == [s.stall_ns for s in found.stalls]
    assert "saves" in found._repr_html_()


def test_a_channel_is_raised_with_its_fabrics() -> None:
    machine = replace(MACHINE, fabrics=(Fabric("link", 10**9, ("h2d",)),))
    made = make_plan(chain(6), machine, parse_choice("layerwise"), 100)
    found = blame(Question(chain(6), machine, parse_choice("layerwise"), 100), made, 1, 10**9)
    step, twice = [p for p in found.prices if p.what == "h2d"]
    assert step.together == twice.together == ("link",)
    assert step.saves_ns == twice.saves_ns > 0
    assert not found.replanned
    with pytest.raises(InputError, match="at least 1 B of memory"):
        blame(Question(chain(6), machine, parse_choice("layerwise"), 100), made, 0)


def test_what_does_not_fit_is_no_stall() -> None:
    with pytest.raises(InfeasibleError, match="out of memory"):
        blame(Question(chain(6), MACHINE, parse_choice("resident"), 50))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(chain(12), "w.json")
    save_hardware(MACHINE, "hw.yaml")
    save_plan(make_plan(chain(12), MACHINE, parse_choice("layerwise"), 150), "plan.json")
    arguments = ["blame", "w.json", "-H", "hw.yaml", "-b", "150 B"]
    done = CliRunner().invoke(app, [*arguments, "-p", "layerwise", "--json"])
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["format"] == "hosim.blame/1"
    assert sum(row["stall_ns"] for row in data["stalls"]) > 0
    assert {
        (price["what"], price["added"]) for price in data["prices"] if price["saves_ns"] is not None
    } == {
        *[("hbm", added) for added in ("1 GB", "twice the room")],
        *[("h2d", added) for added in ("10.0 GB/s", "twice the bandwidth")],
        ("ddr", "twice the room"),
    }
    assert {
        price["note"]
        for price in data["prices"]
        if price["what"] == "hbm" and price["saves_ns"] is None
    } == {"the times of all of its ops are given"}
    assert sum(part["ns"] for part in data["critical_path"]) == data["makespan_ns"]
    table = CliRunner().invoke(
        app, [*arguments, "--plan", "plan.json", "--top", "2", "--detail"], env={"COLUMNS": "140"}
    )
    assert table.exit_code == 0
    assert "Stalls (the longest 2 of" in table.stdout
    assert "of h2d saves" in table.stdout
    wrong = CliRunner().invoke(app, [*arguments, "--more-memory", "1 GB/s"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert CliRunner().invoke(app, [*arguments[:-1], "50 B", "-p", "resident"]).exit_code == 3


def test_the_place_of_an_earlier_issue_is_the_op_that_ended_by_then() -> None:
    """``z`` takes no time: it has ended at 0, when w would have had to be issued; at 1, when ``f0``
    runs, it is the last one, too.
    """
    b = GraphBuilder("at once")
    b.tensor("w", 40, "parameter", home="ddr")
    b.op("z", "any", duration_ns=0)
    b.op("f0", "any", duration_ns=5)
    b.op("f1", "any", duration_ns=35)
    b.op("f2", "any", inputs=["w"], duration_ns=10)
    (stall,) = blamed(b.build(), ("w", 1))  # 5..45; f1 ends at 40
    assert (stall.issued_ns, stall.start_ns, stall.end_ns) == (5, 40, 45)
    assert facts(stall.prevented_by, "w", "z", "h2d") == "w, 5 ns, z, h2d, 1.14 GB/s, h2d"


def on_the_cpu() -> list[ExplainedStall]:
    """f makes g (30 B) in 30 ns; u on the CPU makes w (20 B) of it in 50, with 40 B of states and 9
    of workspace; h reads w for 10.
    """
    b = GraphBuilder("step")
    for name, size, kind in (("w", 20, "parameter"), ("g", 30, "gradient")):
        b.tensor(name, size, kind)
    b.tensor("s", 40, "optimizer_state", "ddr")
    b.tensor("z", 50, "parameter", "ddr")
    b.op("f", "any", inputs=["w"], outputs=["g"], duration_ns=30)
    b.op(
        "u",
        "any",
        inputs=["g"],
        mutates=["s"],
        outputs=["w"],
        duration_ns=50,
        workspace_bytes=9,
        stream="cpu",
        processor="ddr",
    )
    b.op("h", "any", inputs=["w"], duration_ns=10)
    store, back = CacheOp("store", 1, "hbm", "ddr", 0), CacheOp("prefetch", 0, "ddr", "hbm", 1)
    tiers = tuple(
        [
            replace(tier, capacity_bytes=1000, compute=Compute({})) if tier.name == "ddr" else tier
            for tier in MACHINE.tiers
        ]
    )
    return stalls_of(Plan(b.build(), cache_ops=(store, back)), replace(MACHINE, tiers=tiers))[1]


def test_ops_on_other_processors_wait_for_copies_into_their_tier() -> None:
    """f until 30, g down until 60, u until 110, w up until 130. No copy could have begun before its
    tensor was made.
    """
    found = [
        (
            s.stream,
            s.op,
            s.cause,
            s.start_ns,
            s.end_ns,
            s.tensor,
            s.channel or s.processor,
            s.prevented_by,
        )
        for s in on_the_cpu()
    ]
    assert found == [
        ("cpu", "u", "dependency", 0, 30, None, "hbm", "f of stream compute ending earlier"),
        (
            "cpu",
            "u",
            "transfer",
            30,
            60,
            "g",
            "d2h",
            "f of stream compute, which writes g, ending earlier",
        ),
        ("compute", "h", "dependency", 30, 110, None, "ddr", "u of stream cpu ending earlier"),
        (
            "compute",
            "h",
            "transfer",
            110,
            130,
            "w",
            "h2d",
            "u of stream cpu, which writes w, ending earlier",
        ),
    ]
