"""Explanations of worse metrics and changes of plans, line by line, from records made by hand: no
two figures are alike.
"""

from __future__ import annotations

from dataclasses import replace

from rendered import facts

from hosim.gate.judged_metrics import REGRESSION, MetricVerdict
from hosim.gate.records import Item, Listing, Measured, PeakRecord, Record, Stay
from hosim.gate.verdicts import PlanChange, explain, plan_changes

HELD = PeakRecord(
    "g",
    {"parameter": 70, "activation": 1100},
    Listing((Item("parameter", "w", 70), Item("activation", "gone", 13))),
)
RECORD = Record(
    case="step",
    asked={"policy": "a"},
    fingerprints={"graph": "1", "machine": "2", "plan": "3"},
    metrics={},
    machine={"device_tier": "hbm", "x": "1"},
    peaks={"hbm": HELD, "ddr": PeakRecord(None, {}, Listing())},
    moved={},
    stalls=Listing(),
    durations=Listing(),
    curve=(),
    hosim="1",
    versions={"replay": 1},
)
OPS = ("f", "g", "h", "i")
MORE_PEAK = MetricVerdict("peak.hbm", 1000, 1300, REGRESSION)
MORE_TIME = MetricVerdict("makespan", 4000, 5000, REGRESSION)
MORE_STALL = MetricVerdict("stall.transfer", 0, 90, REGRESSION)
MORE_MOVED = MetricVerdict("moved.h2d", 100, 2000, REGRESSION)


def residents(
    *items: Item, others: int = 0, op: str | None = "g", away: tuple[str, ...] = ()
) -> PeakRecord:
    return PeakRecord(
        op,
        {},
        Listing(items, others, others),
        Listing(tuple(Item("activation", name, 1) for name in away)),
    )


def now(
    record: Record,
    stays: dict[str, Stay] | None = None,
    tensors: tuple[str, ...] = (),
    waits: dict[str, str] | None = None,
) -> Measured:
    known = frozenset((*tensors, "w", "gone"))
    return Measured(
        record,
        None,
        {("hbm", name): stay for name, stay in (stays or {}).items()},
        {op: i for i, op in enumerate(OPS)},
        known,
        waits or {},
    )


def at_the_peak(
    before: PeakRecord, after: PeakRecord, stays: dict[str, Stay] | None = None, tier: str = "hbm"
) -> list[str]:
    """The explanation of a peak that is worse, less its first line."""
    measured = now(replace(RECORD, peaks={tier: after}), stays)
    metric = MetricVerdict(f"peak.{tier}", 1000, 1300, REGRESSION)
    head, *lines = explain(replace(RECORD, peaks={tier: before}), measured, [metric])
    assert head.startswith(f"peak.{tier}: 1.27 KiB, was 1000 B (+300 B, +30.0 %)")
    return lines


def test_how_each_tensor_came_to_be_held() -> None:
    kinds = ("passing", "issued", "begun", "early", "both", "until", "since", "always")
    items = tuple(Item("activation", name, 90 - k) for k, name in enumerate(kinds))
    stays = {
        "issued": Stay("f", "h", True, "f"),
        "begun": Stay(None, "h", True, None),
        "early": Stay("f", None, True, "i"),
        "both": Stay("f", "h", False, None),
        "until": Stay(None, "i", False, None),
        "since": Stay("f", None, False, None),
        "always": Stay(None, None, False, None),
    }
    after = residents(Item("workspace", "g", 95), *items)
    assert [facts(line, "hbm", "resident") for line in at_the_peak(residents(), after, stays)] == [
        "g, 1, +95 B",
        "passing, hbm, +90 B",
        "issued, f, 0, h, 2, +89 B",
        "begun, h, 2, +88 B",
        "early, i, 3, +87 B",
        "both, resident, f, 0, h, 2, +86 B",
        "until, resident, i, 3, +85 B",
        "since, resident, f, 0, +84 B",
        "always, resident, +83 B",
    ]
    gone = residents(away=("both",))
    assert [facts(line, "resident") for line in at_the_peak(gone, residents(items[4]), stays)] == [
        "both, resident, f, 0, h, 2, +86 B"
    ]
    assert [
        facts(line, "ddr") for line in at_the_peak(residents(), residents(*items[:2]), stays, "ddr")
    ] == ["passing, ddr, +90 B", "issued, ddr, +89 B"]


def test_what_stays_longer_is_what_came_if_the_peak_is_that_of_the_next_layer() -> None:
    """The residual of the second layer takes the place of the first one's, which is there, too."""
    before = residents(Item("activation", "add", 30, "", "f"), Item("activation", "wide", 31))
    after = residents(
        Item("activation", "add", 30, "", "h"),
        Item("activation", "add_1", 30, "", "h"),
        Item("activation", "wide", 31),
        op="h",
    )
    assert [facts(line, "resident") for line in at_the_peak(before, after)] == [
        "add, resident, h, 2, f, +30 B"
    ]


def test_what_has_grown_gone_and_stayed_for_longer() -> None:
    before = residents(
        Item("optimizer_state", "m", 100),
        Item("workspace", "m", 40),
        Item("activation", "a", 30, "", "h"),
        Item("activation", "b", 31, "g", "i"),
        Item("activation", "gone", 13),
    )
    after = residents(
        Item("optimizer_state", "m", 112),
        Item("workspace", "m", 45),
        Item("activation", "a", 30, "f", ""),
        Item("activation", "b", 31, "", "i"),
        op="h",
    )
    assert [facts(line, "resident") for line in at_the_peak(before, after)] == [
        "b, resident, g, 31 B",
        "a, resident, h, 30 B",
        "m, 112 B, 100 B, +12 B",
        "m, 45 B, 40 B, +5 B",
        "gone, -13 B",
    ]
    still = at_the_peak(
        before, replace(after, op="g")
    )  # the same op has the peak: nothing moved it
    assert [facts(line) for line in still] == [
        "m, 112 B, 100 B, +12 B",
        "m, 45 B, 40 B, +5 B",
        "gone, -13 B",
    ]


def test_what_is_gone_is_summed_up() -> None:
    before = residents(
        *(
            Item("activation", f"old.{name}", size)
            for name, size in (("a", 11), ("b", 17), ("c", 5))
        )
    )
    assert [
        facts(line, "hbm") for line in at_the_peak(before, residents(Item("activation", "new", 40)))
    ] == ["new, hbm, +40 B", "old.b, 2, -33 B"]
    assert at_the_peak(before, residents()) == []


def test_what_the_baseline_may_have_left_out_is_no_change() -> None:
    before = residents(Item("activation", "a", 50), Item("activation", "b", 20), others=3)
    after = residents(
        Item("activation", "a", 50),
        Item("activation", "b", 20),
        Item("activation", "c", 21),
        Item("activation", "d", 20),
    )
    assert [facts(line, "hbm") for line in at_the_peak(before, after)] == ["c, hbm, +21 B", "+17 B"]


def test_layers_are_one_line_and_the_rest_is_summed_up() -> None:
    after = residents(
        *(Item("activation", f"layers.{i}.act", 40) for i in range(3)),
        *(Item("activation", f"t{'abcdefghij'[i]}", 30 - i) for i in range(10)),
    )
    assert [facts(line, "hbm") for line in at_the_peak(residents(), after)] == [
        "3, layers.{0-2}.act, hbm, +40 B, 120 B",
        *(f"t{'abcdefg'[i]}, hbm, +{30 - i} B" for i in range(7)),
        "3, +66 B",
    ]


def test_a_moved_tensor_and_the_machine() -> None:
    old = Listing(
        (Item("parameter", "w", 70), Item("activation", "gone", 13), Item("activation", "a", 0))
    )
    new = Listing(
        (
            Item("parameter", "w", 270),
            Item("activation", "a", 5),
            Item("activation", "b", 60),
            Item("activation", "c", 60),
        )
    )
    before = replace(
        RECORD,
        moved={"h2d": old},
        machine={"device_tier": "hbm", "x": "1", "y": "2"},
        asked={"policy": "a", "budget": "9 B"},
    )
    record = replace(
        RECORD,
        moved={"h2d": new},
        machine={"device_tier": "hbm", "x": "3"},
        asked={"policy": "a", "budget": "8 B"},
    )
    assert [
        facts(line, "h2d")
        for line in explain(before, now(record, tensors=("b", "c")), [MORE_MOVED])
    ] == [
        "8 B, 9 B",
        "3, 1",
        "2",
        "h2d, 1.95 KiB, 100 B, +1.86 KiB, +1900.0 %",
        "w, 270 B, 70 B, h2d, +200 B",
        "b, 60 B, h2d, +60 B",
        "c, 60 B, h2d, +60 B",
        "a, 5 B, h2d, +5 B",
    ]
    share = replace(before, asked={"budget": "9%"}, machine={"budget": "9 B"})
    other = replace(record, asked={"budget": "8%"}, machine={"budget": "8 B"})
    assert explain(share, now(other), [MORE_MOVED])[:2] == [
        "case: budget is 8%, was 9%",
        MORE_MOVED.line(),
    ]
    same = replace(other, asked=share.asked)
    assert explain(share, now(same), [MORE_MOVED])[:2] == [
        "machine: budget is 8 B, was 9 B",
        MORE_MOVED.line(),
    ]
    several = replace(record, machine={"device_tier": "hbm", "x": "3", "z": "1"})
    assert explain(before, now(several), [MORE_MOVED])[:4] == [
        "case: budget is 8 B, was 9 B",
        "machine: x is 3, was 1",
        "machine: 2 more changes",
        "moved.h2d: 1.95 KiB, was 100 B (+1.86 KiB, +1900.0 %)",
    ]
    model = replace(share, asked={"workload": "gpt2:phase=decode:batch=8", "policy": "p:n=1"})
    other_model = replace(
        other,
        asked={"workload": "gpt2:phase=decode:batch=9", "policy": "p:n=1:m=2"},
        machine=share.machine,
    )
    assert [facts(line) for line in explain(model, now(other_model), [MORE_MOVED])[:2]] == [
        "2",
        "9, 8",
    ]
    another = replace(
        other_model, asked={"workload": "gpt3:phase=decode:batch=8", "policy": "p:n=1"}
    )
    assert facts(explain(model, now(another), [MORE_MOVED])[0], "decode") == "decode, 8, decode, 8"
    unknown = replace(RECORD, moved={})
    assert explain(
        unknown,
        now(replace(RECORD, moved={"h2d": Listing((Item("parameter", "w", 9),))})),
        [MORE_MOVED],
    )[1:] == ["`w` (parameter) moves 9 B over h2d: +9 B"]


def test_a_renamed_tensor_moves_once() -> None:
    """``lost`` and ``lost_x`` have the kind and size of each other; ``more`` has them too, but
    nothing was lost in its place.
    """
    before = replace(RECORD, moved={"h2d": Listing((Item("activation", "lost", 60),))})
    record = replace(
        RECORD,
        moved={"h2d": Listing((Item("activation", "lost_x", 60), Item("activation", "more", 60)))},
    )
    assert explain(before, now(record, tensors=("lost_x", "more")), [MORE_MOVED])[1:] == [
        "`more` (activation) moves 60 B over h2d: +60 B"
    ]


def test_longer_ops_and_waits() -> None:
    before = replace(
        RECORD,
        durations=Listing(
            (Item("matmul", "f", 1000), Item("matmul", "g", 2000), Item("matmul", "i", 0))
        ),
        stalls=Listing((Item("transfer", "f", 100), Item("capacity", "g", 50))),
    )
    record = replace(
        RECORD,
        durations=Listing(
            (
                Item("matmul", "f", 1300),
                Item("matmul", "g", 1999),
                Item("norm", "h", 250),
                Item("matmul", "i", 20),
            )
        ),
        stalls=Listing(
            (
                Item("transfer", "f", 290),
                Item("capacity", "g", 170),
                Item("transfer", "g", 110),
                Item("dependency", "h", 90),
                Item("runtime", "i", 80),
            )
        ),
    )
    found = explain(
        before, now(record, waits={"f": "w", "g": "v", "h": "u"}), [MORE_STALL, MORE_TIME]
    )
    causes = "transfer", "room", "ops", "runtime"
    assert [facts(line, *causes, "makespan", "takes", "waits") for line in found] == [
        "makespan, 5.00 us, 4.00 us, +1.00 us, +25.0 %",
        "f, 0, takes, 1.30 us, 1.00 us, +300 ns",
        "h, 2, takes, 250 ns, +250 ns",
        "f, 0, waits, 290 ns, transfer, w, 100 ns, +190 ns",
        "g, 1, waits, 170 ns, room, 50 ns, +120 ns",
        "g, 1, waits, 110 ns, transfer, v, +110 ns",
        "h, 2, waits, 90 ns, ops, +90 ns",
        "i, 3, waits, 80 ns, runtime, +80 ns",
        "i, 3, takes, 20 ns, 0 ns, +20 ns",
    ]
    (stall, *_) = explain(before, now(record), [MORE_STALL])
    assert stall == "stall.transfer: 90 ns, was 0 ns (+90 ns)"


def test_several_worse_metrics_share_ten_lines() -> None:
    many = Listing(tuple(Item("activation", f"t{c}", 300 - k) for k, c in enumerate("abcdefgh")))
    times = Listing(tuple(Item("matmul", op, 10 + k) for k, op in enumerate(OPS)))
    record = replace(
        RECORD, peaks={"hbm": PeakRecord("g", {}, many)}, moved={"h2d": many}, durations=times
    )
    before = replace(RECORD, peaks={"hbm": residents()})
    lines = explain(before, now(record), [MORE_MOVED, MORE_TIME, MORE_PEAK])
    assert [facts(line, "hbm", "h2d") for line in lines] == [
        "hbm, 1.27 KiB, 1000 B, +300 B, +30.0 %, g, 1",
        "ta, hbm, +300 B",
        "7, +2.02 KiB",
        "5.00 us, 4.00 us, +1.00 us, +25.0 %",
        "i, 3, 13 ns, +13 ns",
        "3, +33 ns",
        "h2d, 1.95 KiB, 100 B, +1.86 KiB, +1900.0 %",
        "ta, 300 B, h2d, +300 B",
        "tb, 299 B, h2d, +299 B",
        "6, +1.73 KiB",
    ]


def test_another_plan_of_the_same_graph_and_a_baseline_of_one_line() -> None:
    other = replace(RECORD, fingerprints={"graph": "1", "machine": "2", "plan": "4"})
    only = explain(RECORD, now(replace(RECORD, fingerprints={"graph": "5"})), [MORE_TIME])
    assert [facts(line) for line in only] == ["5.00 us, 4.00 us, +1.00 us, +25.0 %"]
    (changed, *rest) = explain(RECORD, now(other), [MORE_TIME])
    assert (facts(changed), rest) == ("", only)
    bare = replace(RECORD, peaks={})
    assert [
        facts(line, "hbm")
        for line in explain(
            bare,
            now(replace(RECORD, fingerprints={"graph": "1", "plan": "4"})),
            [MORE_TIME, MORE_PEAK],
        )
    ] == [
        "",
        "5.00 us, 4.00 us, +1.00 us, +25.0 %",
        "hbm, 1.27 KiB, 1000 B, +300 B, +30.0 %",
        "hbm, 1.07 KiB, 70 B",
    ]
    same = explain(bare, now(RECORD), [MORE_TIME])[0]
    assert facts(same, "graph", "machine", "plan", "replay") == "graph, machine, plan, replay"


def test_what_changed_in_the_plan() -> None:
    """``lost`` is now ``found``; of a listing with others left out, an item that is gone may be
    among them.
    """
    before = replace(
        RECORD,
        fingerprints={},
        moved={
            "h2d": Listing(
                (
                    Item("parameter", "w", 70),
                    Item("activation", "lost", 60),
                    Item("activation", "gone", 13),
                )
            ),
            "d2h": Listing(
                (
                    Item("optimizer_state", "m.0", 8),
                    Item("optimizer_state", "m.1", 8),
                    Item("activation", "b", 17),
                ),
                1,
                3,
            ),
        },
        peaks={
            "hbm": residents(
                Item("activation", "a", 30, "", "h"),
                Item("activation", "b", 31, "g", ""),
                Item("activation", "c", 32, "g", ""),
            )
        },
    )
    record = replace(
        RECORD,
        moved={
            "h2d": Listing(
                (
                    Item("parameter", "w", 71),
                    Item("activation", "found", 60),
                    Item("activation", "b", 19),
                )
            ),
            "d2h": Listing(
                (
                    Item("optimizer_state", "m.0", 18),
                    Item("optimizer_state", "m.1", 18),
                    Item("activation", "a", 8),
                ),
                1,
                1,
            ),
        },
        peaks={
            "hbm": residents(
                Item("activation", "a", 30, "f", "h"),
                Item("activation", "b", 31, "g", "i"),
                Item("activation", "c", 32, "g", ""),
            )
        },
    )
    assert plan_changes(before, now(record, tensors=("found", "a", "b", "c", "m.0", "m.1"))) == [
        PlanChange("b (activation), at the peak", "from g to the end", "from g to i", 31),
        PlanChange("a (activation), at the peak", "from the start to h", "from f to h", 30),
        PlanChange("m.{0-1} (optimizer state, 2 tensors), over d2h", "8 B moved", "18 B moved", 20),
        PlanChange("b (activation), over h2d", "not moved", "19 B moved", 19),
        PlanChange("gone (activation), over h2d", "13 B moved", "not moved", 13),
        PlanChange("w (parameter), over h2d", "70 B moved", "71 B moved", 1),
    ]
    assert plan_changes(record, now(record)) == []


def test_as_many_tensors_are_renamed_as_were_lost() -> None:
    """Over ``h2d`` two of three new ones are the two that were lost; over ``d2h`` one of three lost
    ones is the new one.
    """

    def moved(*names: str) -> Listing:
        return Listing(tuple(Item("activation", name, 60) for name in names))

    before = replace(
        RECORD,
        fingerprints={},
        moved={"h2d": moved("old.a", "old.b"), "d2h": moved("old.c", "old.d", "old.e")},
    )
    record = replace(RECORD, moved={"h2d": moved("x", "y", "z"), "d2h": moved("x")})
    measured = now(record, tensors=("x", "y", "z"))
    assert plan_changes(before, measured) == [
        PlanChange("old.d (activation), over d2h", "60 B moved", "not moved", 60),
        PlanChange("old.e (activation), over d2h", "60 B moved", "not moved", 60),
        PlanChange("z (activation), over h2d", "not moved", "60 B moved", 60),
    ]
    assert (
        explain(before, measured, [MORE_MOVED])[-1] == "`z` (activation) moves 60 B over h2d: +60 B"
    )
    held = replace(RECORD, peaks={"hbm": residents(*moved("old.a", "old.b").items)})
    after = now(
        replace(RECORD, peaks={"hbm": residents(*moved("x", "y", "z").items)}),
        tensors=("x", "y", "z"),
    )
    assert facts(explain(held, after, [MORE_PEAK])[1], "hbm") == "z, hbm, +60 B"


def test_the_metric_that_worsened_most_comes_first_of_its_kind() -> None:
    """By the difference, not by either value; of equal ones by name. Nothing was held in ``a``
    before, so that it has no peak.
    """
    worse = [
        MetricVerdict(f"peak.{tier}", old, new, REGRESSION)
        for tier, old, new in (("hbm", 1000, 1300), ("ddr", 100, 600), ("b", 5, 15), ("a", 0, 10))
    ]
    measured = now(
        replace(
            RECORD,
            peaks={
                tier: residents(Item("activation", "x", 83)) for tier in ("hbm", "ddr", "a", "b")
            },
        )
    )
    assert [facts(line, "ddr") for line in explain(RECORD, measured, worse)] == [
        "ddr, 600 B, 100 B, +500 B, +500.0 %, g, 1",
        "x, ddr, +83 B",
        "1.27 KiB, 1000 B, +300 B, +30.0 %, g, 1",
        "2, +0 B",
        "10 B, 0 B, +10 B, g, 1",
        "x, +83 B",
        "15 B, 5 B, +10 B, +200.0 %, g, 1",
        "x, +83 B",
    ]


def test_more_worse_metrics_than_lines() -> None:
    """With a line about the machine, nine are left: two for each of four peaks, and the head of the
    fifth.
    """
    tiers = [f"t{i}" for i in range(6)]
    held = residents(Item("activation", "x", 8), Item("activation", "y", 7), op=None)
    worse = [MetricVerdict(f"peak.{tier}", 0, 15, REGRESSION) for tier in tiers]
    record = replace(RECORD, peaks=dict.fromkeys(tiers, held))
    lines = [
        line
        for tier in tiers
        for line in (f"peak.{tier}: 15 B, was 0 B (+15 B)", "and 2 more: +15 B")
    ]
    assert explain(RECORD, now(record), worse) == lines[:10]
    slower = replace(record, machine={"device_tier": "hbm", "x": "2"})
    assert explain(RECORD, now(slower), worse) == ["machine: x is 2, was 1", *lines[:9]]
    # a peak alone has all lines that are left: its own, seven changes and the rest
    many = residents(*(Item("activation", c, 30 - k) for k, c in enumerate("abcdefghij")))
    alone = now(replace(slower, peaks={"t0": many}))
    assert [facts(line, "x", "peak.t0", "t0") for line in explain(RECORD, alone, worse[:1])] == [
        "x, 2, 1",
        "peak.t0, 15 B, 0 B, +15 B, g, 1",
        *(f"{c}, t0, +{30 - k} B" for k, c in enumerate("abcdefg")),
        "3, +66 B",
    ]


def test_a_line_of_a_matrix_lists_kinds_by_size_and_then_by_name() -> None:
    kinds = PeakRecord(None, {"b": 5, "a": 5, "c_d": 9}, Listing())
    worse = [
        MORE_PEAK,
        MetricVerdict("moved.hbm", 1, 2, REGRESSION),
    ]  # a channel of that name has no peak
    assert [
        facts(line, "hbm")
        for line in explain(
            replace(RECORD, peaks={}), now(replace(RECORD, peaks={"hbm": kinds})), worse
        )[1:]
    ] == [
        "hbm, 1.27 KiB, 1000 B, +300 B, +30.0 %",
        "hbm, 9 B, 5 B, 5 B",
        "hbm, 2 B, 1 B, +1 B, +100.0 %",
    ]


def test_layers_are_told_by_their_first_number_and_ops_relative_to_it() -> None:
    """The tensor of layer 1 has that number twice; each is fetched after the op of the layer
    before, ``h.9.f``, which is not.
    """
    names = [f"h.{i}.expert.1" for i in range(3)]
    stays = {name: Stay(None, f"h.{i}.f", True, f"h.{i + 1}.f") for i, name in enumerate(names)}
    after = residents(
        *(Item("activation", name, 10) for name in names), Item("activation", "whole", 30), op=None
    )
    assert [facts(line, "hbm") for line in at_the_peak(residents(), after, stays)] == [
        "whole, hbm, +30 B",
        "3, h.{0-2}.expert.1, h.{+1}.f, h.{}.f, +10 B, 30 B",
    ]
    apart = residents(
        *(Item("activation", name, 9) for name in ("a.07", "a.7", "e.0.1", "e.0.2")), op=None
    )
    assert [facts(line, "hbm") for line in at_the_peak(residents(), apart)] == [
        f"{name}, hbm, +9 B" for name in ("a.07", "a.7", "e.0.1", "e.0.2")
    ]


def test_equal_changes_of_time_and_traffic_come_before_what_adds_up_to_as_much() -> None:
    items = (Item("matmul", "l.0", 10), Item("matmul", "l.1", 10), Item("matmul", "one", 20))
    record = replace(RECORD, durations=Listing(items), moved={"h2d": Listing(items)})
    assert explain(RECORD, now(record), [MORE_TIME, MORE_MOVED]) == [
        "makespan: 5.00 us, was 4.00 us (+1.00 us, +25.0 %)",
        "op `one` takes 20 ns: +20 ns",
        "2 x op `l.{0-1}` takes 10 ns: +10 ns, together 20 ns",
        "moved.h2d: 1.95 KiB, was 100 B (+1.86 KiB, +1900.0 %)",
        "`one` (matmul) moves 20 B over h2d: +20 B",
        "2 x `l.{0-1}` (matmul) moves 10 B over h2d: +10 B, together 20 B",
    ]


def test_a_difference_of_one_counts_and_none_does_not() -> None:
    before = replace(
        RECORD,
        peaks={
            "hbm": residents(Item("activation", "a", 50), Item("activation", "b", 20), others=3)
        },
        durations=Listing((Item("matmul", "f", 10), Item("matmul", "g", 10))),
    )
    after = replace(
        RECORD,
        peaks={
            "hbm": residents(
                Item("activation", "a", 51),
                Item("activation", "b", 20),
                Item("activation", "d", 20),
            )
        },
        durations=Listing((Item("matmul", "f", 11), Item("matmul", "g", 10))),
    )
    assert [
        facts(line)
        for line in explain(before, now(after, tensors=("a", "b", "d")), [MORE_PEAK, MORE_TIME])
    ] == [
        "1.27 KiB, 1000 B, +300 B, +30.0 %, g, 1",
        "a, 51 B, 50 B, +1 B",
        "+17 B",
        "5.00 us, 4.00 us, +1.00 us, +25.0 %",
        "f, 0, 11 ns, 10 ns, +1 ns",
    ]


def test_what_is_still_in_the_graph_was_not_renamed() -> None:
    """``old`` and the op ``f`` are still there, so that others of their sizes are new; ``both`` was
    away, so that it is not ``lost``.
    """
    before = residents(
        Item("activation", "old", 60),
        Item("workspace", "f", 40),
        Item("activation", "lost", 50),
        away=("both",),
    )
    after = residents(
        Item("activation", "new", 60), Item("workspace", "h", 40), Item("activation", "both", 50)
    )
    measured = now(
        replace(RECORD, peaks={"hbm": after}),
        {"both": Stay(None, None, False, None)},
        ("old", "new", "both"),
    )
    assert [
        facts(line, "hbm", "resident")
        for line in explain(replace(RECORD, peaks={"hbm": before}), measured, [MORE_PEAK])[1:]
    ] == ["new, hbm, +60 B", "both, resident, +50 B", "h, 2, +40 B", "old, 2, -150 B"]
    two = residents(Item("activation", "p", 3), Item("activation", "q", 4))
    assert [
        facts(line) for line in at_the_peak(two, residents(Item("activation", "r", 9)))[1:]
    ] == ["q, 1, -7 B"]
