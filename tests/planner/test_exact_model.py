"""The exact model alone: what it allows on toys of a few ops, every range derived by hand. 1 byte
takes 1 ns on each channel.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from model_ranges import allows, model_of, ranges, span
from toys import Build, dead_in_between, graph, machine

from hosim.graph import GraphBuilder
from hosim.hardware import Hardware
from hosim.planner.exact import Model, add_lower_capacities, serial, space_of


def away_once(b: GraphBuilder) -> None:
    """Written by f, read by h, and too large beside g."""
    b.tensor("a", 20)
    b.tensor("b", 15)
    b.op("f", "op", outputs=["a"], duration_ns=10)
    b.op("g", "op", outputs=["b"], duration_ns=30, workspace_bytes=5)
    b.op("h", "op", inputs=["a"], duration_ns=10)


def below(b: GraphBuilder) -> None:
    """At home in ddr, and written by u."""
    b.tensor("o", 20, "optimizer_state", "ddr")
    b.op("f", "op", duration_ns=50, workspace_bytes=10)
    b.op("u", "op", mutates=["o"], duration_ns=10)
    b.op("g", "op", duration_ns=5)


def written(b: GraphBuilder) -> None:
    """As before, but it starts wherever the plan likes, and is in the way of f and of g."""
    b.tensor("o", 20, "optimizer_state")
    b.op("f", "op", duration_ns=50, workspace_bytes=10)
    b.op("u", "op", mutates=["o"], duration_ns=10)
    b.op("g", "op", duration_ns=5, workspace_bytes=10)


def pair(b: GraphBuilder) -> None:
    """Two parameters that do not fit together."""
    b.tensor("early", 50, "parameter")
    b.tensor("late", 40, "parameter")
    b.op("f", "op", inputs=["early"], duration_ns=60)
    b.op("g", "op", inputs=["late"], duration_ns=60)


def beside_w(b: GraphBuilder) -> None:
    """Two activations, of which w leaves no room for one or for both."""
    b.tensor("a", 20)
    b.tensor("b", 10)
    b.op("f", "op", outputs=["a"], duration_ns=10)
    b.op("g", "op", outputs=["b"], duration_ns=5)
    b.op("w", "op", duration_ns=50, workspace_bytes=30)
    b.op("h", "op", inputs=["a"], duration_ns=10)
    b.op("k", "op", inputs=["b"], duration_ns=10)


def over_two(b: GraphBuilder) -> None:
    """Too large beside g; machines below have ssd at half the rate of ddr."""
    b.tensor("a", 20)
    b.op("f", "op", outputs=["a"], duration_ns=10)
    b.op("g", "op", duration_ns=30, workspace_bytes=20)
    b.op("h", "op", inputs=["a"], duration_ns=10)


@pytest.mark.parametrize("budget", [20, 39])
def test_what_does_not_fit_beside_an_op_is_stored_before_it_and_back_after_it(budget: int) -> None:
    # f 0..10, store 10..30, g 30..60, fetch 60..80, h 80..90; until 100 each has 10 to spare
    assert ranges(model_of(graph(away_once), machine(), budget, 100)) == [
        "makespan 90..100",
        "f 0..10",
        "g 30..40",
        "h 80..90",
        "a@ddr: no",
        "a after f: away=yes release=30..40 back=60..70 staying=never kept=ddr:yes fetched=ddr:yes",
        "a version 0 to ddr: stored=yes start=10..20",
    ]


def test_what_fits_has_no_absences() -> None:
    assert ranges(model_of(graph(away_once), machine(), 40, 100)) == [
        "makespan 50..100",
        "f 0..50",
        "g 10..60",
        "h 40..90",
    ]


def test_what_is_below_comes_up_and_goes_back_when_written() -> None:
    # fetched 50..70 (f leaves 10 of 20), u 70..80, stored 80..100 beside g
    assert ranges(model_of(graph(below), machine(), 20, 120)) == [
        "makespan 100..120",
        "f 0..20",
        "u 70..90",
        "g 80..115",
        "o@hbm: no",
        "o@ddr: yes",
        "o after start: away=yes release=once back=50..70 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "o after u: away=yes release=100..120 back=100..120 staying=never kept=ddr:yes "
        "fetched=nowhere",
        "o version 1 to ddr: stored=yes start=80..100",
    ]


def test_what_is_written_and_cannot_be_stored_cannot_come_back() -> None:
    assert not allows(
        model_of(graph(below), replace(machine(), channels=machine().channels[:1]), 20, 120)
    )
    assert allows(model_of(graph(below), machine(), 20, 100))
    assert not allows(model_of(graph(below), machine(), 20, 99))


def test_what_starts_anywhere_ends_where_it_started() -> None:
    model = model_of(graph(written), machine(), 29, 170)
    # starts in hbm: stored 0..20, f 20..70, back 70..90, u 90..100, stored 100..120, g 120..125,
    # back 125..145
    assert ranges(model, model.init_device[0] == 1) == [
        "makespan 145..170",
        "f 20..45",
        "u 90..115",
        "g 120..145",
        "o@hbm: yes",
        "o@ddr: no",
        "o after start: away=yes release=20..45 back=70..95 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "o after u: away=yes release=120..145 back=125..150 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "o version 0 to ddr: stored=yes start=0..25",
        "o version 1 to ddr: stored=yes start=100..125",
    ]
    # starts below: f 0..50, back 50..70, u 70..80, stored 80..100, g 100..105
    assert ranges(model, model.init_lower[0, "ddr"] == 1) == [
        "makespan 105..170",
        "f 0..65",
        "u 70..135",
        "g 100..165",
        "o@hbm: no",
        "o@ddr: yes",
        "o after start: away=yes release=0..0 back=50..115 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "o after u: away=yes release=100..165 back=105..170 staying=never kept=ddr:yes "
        "fetched=ddr:no",
        "o version 0 to ddr: stored=no start=never",
        "o version 1 to ddr: stored=yes start=80..145",
    ]
    assert not allows(model, model.init_lower[0, "ddr"] == 0, model.init_device[0] == 0)


def test_what_starts_in_both_tiers_is_stored_again_when_written() -> None:
    b = GraphBuilder("toy")
    b.tensor("o", 20, "optimizer_state")
    b.op("f", "op", inputs=["o"], duration_ns=10)
    b.op("w", "op", duration_ns=30, workspace_bytes=20)
    b.op("u", "op", mutates=["o"], duration_ns=10)
    model = model_of(b.build(), machine(), 20, 100)
    device, lower = model.init_device[0] is True, model.init_lower[0, "ddr"] == 1
    # f 0..10, gone at once, w 10..40, back 40..60, u 60..70, stored 70..90
    assert ranges(model, device, lower) == [
        "makespan 90..100",
        "f 0..10",
        "w 10..20",
        "u 60..70",
        "o@hbm: yes",
        "o@ddr: yes",
        "o after f: away=yes release=10..20 back=40..50 staying=never kept=ddr:yes fetched=ddr:yes",
        "o version 0 to ddr: stored=no start=never",
        "o version 1 to ddr: stored=yes start=70..80",
    ]
    # hbm alone: stored 0..20 beside f, w 20..50, back 50..70, u 70..80
    alone = model.init_lower[0, "ddr"] == 0
    assert span(model, model.makespan, device, alone) == (80, 100)
    assert span(model, model.start[1], device, alone) == (20, 40)


def test_what_is_overwritten_first_starts_somewhere_all_the_same() -> None:
    b = GraphBuilder("toy")
    b.tensor("o", 20, "optimizer_state")
    b.op("f", "op", duration_ns=10, workspace_bytes=20)
    b.op("make", "op", outputs=["o"], duration_ns=10)
    b.op("w", "op", duration_ns=10, workspace_bytes=20)
    model = model_of(b.build(), machine(), 20, 100)
    # dropped at the start for nothing, stored 20..40, w 40..50; back 50..70 where it began in hbm
    assert span(model, model.makespan) == (50, 100)
    assert span(model, model.makespan, model.init_device[0] == 1) == (70, 100)
    assert not allows(model, model.init_device[0] == 0, model.init_lower[0, "ddr"] == 0)


def test_a_parameter_that_is_never_written_has_a_copy_below() -> None:
    model = model_of(graph(pair), machine(), 50, 240)
    # early starts in hbm: f 0..60, late up 60..100, g 100..160, early back 160..210
    # both start below: early up 0..50, f 50..110, late up 110..150, g 150..210
    assert ranges(model) == [
        "makespan 210..240",
        "f 0..80",
        "g 100..180",
        "early@hbm: either",
        "late@hbm: no",
        "early@ddr: yes",
        "late@ddr: yes",
        "early after start: away=either release=once back=0..30 staying=0..0 kept=ddr:either "
        "fetched=ddr:either",
        "early after f: away=yes release=once back=160..240 staying=never kept=ddr:yes "
        "fetched=ddr:either",
        "late after start: away=yes release=once back=60..140 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "late after g: away=yes release=once back=210..240 staying=never kept=ddr:yes "
        "fetched=ddr:no",
    ]
    here = model.init_device[0] == 1
    assert [
        line for line in ranges(model, here) if line.startswith(("f ", "g ", "early after"))
    ] == [
        "f 0..30",
        "g 100..130",
        "early after start: away=no release=once back=never staying=0..0 kept=ddr:no "
        "fetched=ddr:no",
        "early after f: away=yes release=once back=160..190 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
    ]
    assert not allows(model, model.init_device[0] == 1, model.init_device[1] == 1)


def test_a_parameter_without_a_copy_below_is_stored_before_it_leaves() -> None:
    """The tier below could not hold both: so the plan says who is there at time 0."""
    model = model_of(graph(pair), machine(below=89), 50, 300)
    # late stored 0..40, early up 40..90, f 90..150, late back 150..190, g 190..250; late stays
    assert ranges(model, model.init_lower[1, "ddr"] == 0) == [
        "makespan 250..300",
        "f 90..140",
        "g 190..240",
        "early@hbm: no",
        "late@hbm: yes",
        "early@ddr: yes",
        "late@ddr: no",
        "early after start: away=yes release=0..0 back=40..90 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "early after f: away=yes release=150..200 back=250..300 staying=never kept=ddr:yes "
        "fetched=ddr:no",
        "late after start: away=yes release=40..90 back=150..200 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "late after g: away=either release=250..260 back=250..260 staying=250..300 "
        "kept=ddr:either fetched=ddr:either",
        "early version 0 to ddr: stored=no start=never",
        "late version 0 to ddr: stored=yes start=0..50",
    ]


def test_transfers_of_one_channel_run_one_at_a_time() -> None:
    # f 0..10, a stored 10..30, g 10..15, b stored 30..40, w 40..90, a back 90..110, h 110..120 and
    # b back beside it, k 120..130
    assert ranges(model_of(graph(beside_w), machine(), 30, 160)) == [
        "makespan 130..160",
        "f 0..30",
        "g 10..55",
        "w 40..70",
        "h 110..140",
        "k 120..150",
        "a@ddr: no",
        "b@ddr: no",
        "a after f: away=yes release=30..70 back=90..120 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "b after g: away=yes release=25..70 back=90..140 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "a version 0 to ddr: stored=yes start=10..50",
        "b version 0 to ddr: stored=yes start=15..60",
    ]
    # with room for b beside w: w 30..80, a back 80..100, h 100..110, k 110..120
    assert ranges(model_of(graph(beside_w), machine(), 40, 160)) == [
        "makespan 120..160",
        "f 0..40",
        "g 10..65",
        "w 30..70",
        "h 100..140",
        "k 110..150",
        "a@ddr: no",
        "b@ddr: no",
        "a after f: away=yes release=30..70 back=80..120 staying=never kept=ddr:yes "
        "fetched=ddr:yes",
        "b after g: away=either release=25..140 back=25..140 staying=15..70 kept=ddr:either "
        "fetched=ddr:either",
        "a version 0 to ddr: stored=yes start=10..50",
        "b version 0 to ddr: stored=either start=15..150",
    ]


def test_of_two_tiers_one_keeps_the_contents() -> None:
    model = model_of(graph(over_two), machine("ddr", "ssd"), 20, 150)
    keep = model.aways[0, 0].keep
    # in ddr: stored 10..30, g 30..60, back 60..80, h 80..90
    assert ranges(model, keep["ddr"] == 1) == [
        "makespan 90..150",
        "f 0..60",
        "g 30..90",
        "h 80..140",
        "a@ddr: no",
        "a@ssd: no",
        "a after f: away=yes release=30..90 back=60..120 staying=never kept=ddr:yes,ssd:no "
        "fetched=ddr:yes,ssd:no",
        "a version 0 to ddr: stored=yes start=10..70",
        "a version 0 to ssd: stored=either start=10..110",
    ]
    # in ssd: stored 10..50, g 50..80, back 80..120, h 120..130
    assert ranges(model, keep["ssd"] == 1) == [
        "makespan 130..150",
        "f 0..20",
        "g 50..70",
        "h 120..140",
        "a@ddr: no",
        "a@ssd: no",
        "a after f: away=yes release=50..70 back=80..100 staying=never kept=ddr:no,ssd:yes "
        "fetched=ddr:no,ssd:yes",
        "a version 0 to ddr: stored=either start=10..130",
        "a version 0 to ssd: stored=yes start=10..30",
    ]
    assert not allows(model, keep["ddr"] == 1, keep["ssd"] == 1)


def test_a_tensor_is_stored_to_two_tiers_one_after_the_other_and_while_it_is_there() -> None:
    model = model_of(graph(over_two), machine("ddr", "ssd"), 20, 150)
    fast, slow = (model.stores[0, 0, tier][1] == 1 for tier in ("ddr", "ssd"))
    # in ddr 10..30, back 60..80, in ssd 80..120; it would be 130 if both were before g
    assert span(model, model.makespan, fast, slow) == (120, 150)
    away = model.aways[0, 0]
    start = model.stores[0, 0, "ssd"][0]
    assert span(model, start, fast, slow, away.back == 60) == (80, 110)
    assert span(model, start, fast, slow, model.start[1] == 70) == (
        10,
        30,
    )  # 10..50 before ddr or 30..70 after it


@pytest.mark.parametrize(
    ("without", "makespan", "fetches"),
    [
        ("up_ssd", 90, ["ddr"]),
        ("down_ssd", 90, ["ddr", "ssd"]),
        ("up_ddr", 130, ["ssd"]),
        ("down_ddr", 130, ["ddr", "ssd"]),
    ],
)
def test_a_tier_joined_one_way_keeps_nothing_that_must_come_back(
    without: str, makespan: int, fetches: list[str]
) -> None:
    both = machine("ddr", "ssd")
    model = model_of(
        graph(over_two),
        replace(both, channels=tuple(c for c in both.channels if c.name != without)),
        20,
        150,
    )
    assert span(model, model.makespan) == (makespan, 150)
    assert list(model.aways[0, 0].fetch) == fetches


@pytest.mark.parametrize(("horizon", "tiers"), [(39, ["ddr"]), (40, ["ddr", "ssd"])])
def test_a_store_that_takes_longer_than_the_horizon_is_left_out(
    horizon: int, tiers: list[str]
) -> None:
    assert [
        tier for _, _, tier in model_of(graph(over_two), machine("ddr", "ssd"), 20, horizon).stores
    ] == tiers


def test_large_sizes_are_rounded_in_favour_of_the_plan() -> None:
    toy = graph(over_two)
    small = model_of(toy, machine(), 2**24 + 1, 150)
    assert (small.unit, small.capacity, small.exact) == (2, 2**23 + 1, False)
    assert [small.units(size) for size in (1, 2, 3)] == [0, 1, 1]
    fine = model_of(toy, machine(), 2**24 - 3, 150)
    assert (fine.unit, fine.capacity, fine.exact) == (1, 2**24 - 3, True)
    tens = model_of(toy, machine(), 20 * 2**24, 150)  # everything is a multiple of 20
    assert (tens.unit, tens.capacity, tens.exact) == (20, 2**24, True)
    assert (
        model_of(toy, machine(), 20 * 2**24 + 20, 150).unit,
        model_of(toy, machine(), 20 * 2**24 + 20, 150).exact,
    ) == (21, False)


# -- tiers below that could not hold everything
# ------------------------------------------------------------------------


def small_below(build: Build, budget: int, horizon: int, below: int) -> Model:
    """The model with the capacity of its tier below; budgets are odd, so that no size is
    rounded.
    """
    model = model_of(graph(build), machine(below=below), budget, horizon)
    add_lower_capacities(model)
    return model


@pytest.mark.parametrize(
    ("build", "budget", "least"),
    [(pair, 51, 90), (beside_w, 31, 30), (beside_w, 41, 20), (written, 29, 20)],
)
def test_a_tier_below_holds_what_is_away_at_once(build: Build, budget: int, least: int) -> None:
    """``pair``: while one is stored the other is still below. ``beside_w``: both are away at once;
    or a alone, with more room above.
    """
    assert allows(small_below(build, budget, 300, least))
    assert not allows(small_below(build, budget, 300, least - 1))


def test_a_copy_below_makes_room_when_its_transfer_back_has_ended() -> None:
    model = small_below(beside_w, 41, 160, 20)
    (first, there), (second, also) = model.stores[0, 0, "ddr"], model.stores[1, 0, "ddr"]
    # a stored 10..30, w 30..80, back 80..100: b is stored from then on, for nothing perhaps
    assert span(
        model, second, there == 1, also == 1, first == 10, model.aways[0, 0].back == 80
    ) == (100, 150)
    # a stored 40..60: b may have been stored before
    gone = model.aways[1, 1].away == 1
    assert span(model, second, there == 1, also == 1, gone, first == 40) == (
        15,
        130,
    )  # w 60..110, a back 110..130, b stored 130..140 and back
    assert not allows(model, there == 1, also == 1, first == 40, second == 31)
    assert allows(model, there == 1, also == 1, first == 40, second == 30)


@pytest.mark.parametrize(
    ("kind", "written_to", "least"),
    [("parameter", False, 40), ("optimizer_state", True, 40), ("activation", False, 20)],
)
def test_what_must_be_below_at_the_end_stays_there(kind: str, written_to: bool, least: int) -> None:
    """While a is below, so is x, or what was written of it, unless it is of this step alone."""

    def build(b: GraphBuilder) -> None:
        b.tensor("x", 20, kind, "ddr")
        b.tensor("a", 20)
        b.op(
            "f",
            "op",
            inputs=[] if written_to else ["x"],
            mutates=["x"] if written_to else [],
            duration_ns=10,
        )
        b.op("g", "op", outputs=["a"], duration_ns=10)
        b.op("w", "op", duration_ns=10, workspace_bytes=30)
        b.op("h", "op", inputs=["a"], duration_ns=10)

    assert allows(small_below(build, 41, 200, least))
    assert not allows(small_below(build, 41, 200, least - 1))


def test_what_lies_below_and_never_moves_takes_its_room() -> None:
    def build(b: GraphBuilder) -> None:
        below(b)
        b.tensor("unused", 5, "parameter", "ddr")
        b.tensor("z", 1)
        b.op("last", "op", outputs=["z"], duration_ns=1)

    assert allows(small_below(build, 21, 120, 25))
    assert not allows(small_below(build, 21, 120, 24))


# -- one thing at a time
# -----------------------------------------------------------------------------------------------


def one_at_a_time(build: Build, hardware: Hardware, budget: int) -> list[str] | None:
    """The serial schedule: when ops start, and where each tensor is between two ops."""
    toy = graph(build)
    schedule = serial(space_of(toy, hardware, [op.duration_ns or 0 for op in toy.ops], budget))
    if schedule is None:
        return None
    tensors, places = [t.name for t in toy.tensors], [*(op.name for op in toy.ops), "end", "start"]
    lines = [f"ends {schedule.makespan_ns}, ops {schedule.op_start_ns}"]
    for a in schedule.aways:
        between = f"{places[a.absence.after]}-{places[a.absence.before]}"
        lines.append(
            f"{tensors[a.absence.tensor]} {between}: {a.tier}, {a.release_ns}..{a.back_ns}"
        )
    lines += [
        f"{tensors[s.tensor]} version {s.version} to {s.tier} {s.start_ns}..{s.end_ns}"
        for s in schedule.stores
    ]
    return lines + [f"{tensors[t]}@{','.join(tiers)}" for t, tiers in schedule.initial.items()]


@pytest.mark.parametrize(
    ("build", "budget", "expected"),
    [
        (
            away_once,
            39,
            ["ends 90, ops (0, 30, 80)", "a f-h: ddr, 30..60", "a version 0 to ddr 10..30"],
        ),
        (
            below,
            20,
            [
                "ends 105, ops (0, 70, 100)",
                "o start-u: ddr, 0..50",
                "o u-end: ddr, 100..None",
                "o version 1 to ddr 80..100",
            ],
        ),
        (
            written,
            29,
            [
                "ends 105, ops (0, 70, 100)",
                "o start-u: ddr, 0..50",
                "o u-end: ddr, 100..None",
                "o version 1 to ddr 80..100",
                "o@ddr",
            ],
        ),
        (
            pair,
            50,
            [
                "ends 210, ops (50, 150)",
                "early start-f: ddr, 0..0",
                "late start-g: ddr, 0..110",
                "early f-end: ddr, 110..None",
                "late g-end: ddr, 210..None",
                "early@ddr",
                "late@ddr",
            ],
        ),
        (
            beside_w,
            30,
            [
                "ends 145, ops (0, 30, 45, 115, 135)",
                "a f-h: ddr, 30..95",
                "b g-k: ddr, 45..125",
                "a version 0 to ddr 10..30",
                "b version 0 to ddr 35..45",
            ],
        ),
        (
            dead_in_between,
            40,
            [
                "ends 40, ops (0, 10, 20, 30)",
                "buf use-again: None, 20..None",
                "buf@hbm",
            ],
        ),
    ],
)
def test_the_serial_schedule(build: Build, budget: int, expected: list[str]) -> None:
    assert one_at_a_time(build, machine(), budget) == expected


def test_the_serial_schedule_takes_the_first_tier_joined_both_ways() -> None:
    both = machine("ddr", "ssd")
    in_ssd = ["ends 130, ops (0, 50, 120)", "a f-h: ssd, 50..80", "a version 0 to ssd 10..50"]
    assert one_at_a_time(over_two, both, 20) == [
        "ends 90, ops (0, 30, 80)",
        "a f-h: ddr, 30..60",
        "a version 0 to ddr 10..30",
    ]
    for without in ("up_ddr", "down_ddr"):
        channels = tuple(c for c in both.channels if c.name != without)
        assert one_at_a_time(over_two, replace(both, channels=channels), 20) == in_ssd
    assert one_at_a_time(over_two, replace(machine(), channels=machine().channels[:1]), 20) is None
