"""What the engine does not wait for: the schedules that conflict, and that the constraint on a
conflict excludes those and no others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ortools")

from model_ranges import model_of, schedules
from toys import Build, graph, machine

from hosim.cache_plan import AT_START
from hosim.graph import GraphBuilder
from hosim.hardware import Hardware
from hosim.planner.exact import (
    Conflict,
    Schedule,
    Space,
    StoreAt,
    TakenAbsence,
    conflicts,
    forbid,
    need,
)


def two_activations(b: GraphBuilder) -> None:
    """Both leave for w; b may be on its way back before, during or after h."""
    b.tensor("a", 2)
    b.tensor("b", 1)
    b.op("f", "op", outputs=["a"], duration_ns=1)
    b.op("g", "op", outputs=["b"], duration_ns=1)
    b.op("w", "op", duration_ns=3, workspace_bytes=3)
    b.op("h", "op", inputs=["a"], duration_ns=3)
    b.op("k", "op", inputs=["b"], duration_ns=1)


def states_below(b: GraphBuilder) -> None:
    """Both come up; o is written twice and goes down again."""
    b.tensor("o", 2, "optimizer_state", "ddr")
    b.tensor("p", 1, "parameter", "ddr")
    b.op("f", "op", duration_ns=2, workspace_bytes=2)
    b.op("u", "op", mutates=["o"], duration_ns=2)
    b.op("v", "op", mutates=["o"], inputs=["p"], duration_ns=2)


def used_again(b: GraphBuilder) -> None:
    """Between h and j there is room for a; p comes up in between."""
    b.tensor("a", 2)
    b.tensor("p", 2, "parameter", "ddr")
    b.op("f", "op", outputs=["a"], duration_ns=1)
    b.op("w", "op", duration_ns=3, workspace_bytes=4)
    b.op("h", "op", inputs=["a"], duration_ns=1)
    b.op("i", "op", duration_ns=2, workspace_bytes=1)
    b.op("j", "op", inputs=["a"], duration_ns=1)
    b.op("k", "op", inputs=["p"], duration_ns=1)


def beside_others(b: GraphBuilder) -> None:
    """Two activations move beside a parameter and short-lived tensors that stay."""
    b.tensor("all", 2, "parameter")
    b.tensor("a", 2)
    b.tensor("b", 1)
    b.tensor("c", 1)
    b.tensor("d", 1)
    b.op("f", "op", inputs=["all"], outputs=["a", "c"], duration_ns=1)
    b.op("g", "op", inputs=["all", "c"], outputs=["b"], duration_ns=1)
    b.op("w", "op", inputs=["all"], duration_ns=3, workspace_bytes=3)
    b.op("h", "op", inputs=["all", "a"], outputs=["d"], duration_ns=2)
    b.op("k", "op", inputs=["all", "b", "d"], duration_ns=1)


def from_two_tiers(b: GraphBuilder) -> None:
    """Weights below, two of them in ddr and one in ssd."""
    for name, home in (("p", "ddr"), ("q", "ssd"), ("r", "ddr")):
        b.tensor(name, 1, "parameter", home)
    b.op("f", "op", inputs=["p"], duration_ns=2)
    b.op("g", "op", inputs=["q"], duration_ns=1)
    b.op("h", "op", inputs=["r"], duration_ns=1)


@pytest.mark.parametrize(
    ("build", "hardware", "budget", "horizon", "kinds"),
    [
        (two_activations, machine(), 3, 14, "3b 3b!"),
        (states_below, machine(), 3, 12, "0p 0p! 1p 1p!"),
        (used_again, machine(), 4, 16, "2p! 3a 3a! 3p! 4p!"),
        (beside_others, machine(), 6, 12, "3b 3b!"),
        (from_two_tiers, machine("ddr", "ssd"), 3, 6, "0q 0q! 0r 0r! 1r!"),
    ],
)
def test_a_constraint_excludes_every_schedule_that_conflicts_and_no_other(
    build: Build, hardware: Hardware, budget: int, horizon: int, kinds: str
) -> None:
    """``kinds`` lists ops and tensors that conflict in some schedule; ``!`` where the op goes
    first.
    """
    toy = graph(build)
    model = model_of(toy, hardware, budget, horizon)
    broken = {text: conflicts(model.space, schedule) for text, schedule in schedules(model).items()}
    found = {conflict for listed in broken.values() for conflict in listed}
    assert (
        " ".join(sorted(f"{c.op}{toy.tensors[c.tensor].name}{'!' * c.op_first}" for c in found))
        == kinds
    )
    for conflict in found:
        stricter = model_of(toy, hardware, budget, horizon)
        forbid(stricter, conflict)
        assert set(schedules(stricter)) == {
            text for text, listed in broken.items() if conflict not in listed
        }


def two_schedule(start_h: int, back_b: int, *, back_a: int = 7, release_b: int = 4) -> Schedule:
    """f 0..1, a stored 1..3, g 1..2, b stored 3..4, w 4..7, then h and k as said."""
    model = model_of(graph(two_activations), machine(), 3, 20)
    gap_a, gap_b = (movable.absences[0] for movable in model.space.movables)
    aways = (TakenAbsence(gap_a, "ddr", 3, back_a), TakenAbsence(gap_b, "ddr", release_b, back_b))
    stores = (StoreAt(0, 0, "ddr", 1, 3), StoreAt(1, 0, "ddr", 3, 4))
    return Schedule(start_h + 4, (0, 1, 4, start_h, start_h + 3), aways, stores, {})


@pytest.mark.parametrize(
    ("start_h", "back_b", "expected"),
    [
        (9, 9, []),  # h first, then b, at one instant
        (9, 10, []),  # the channel is busy with a until h starts
        (10, 8, []),  # a arrives at 9: h is not ready
        (10, 6, []),  # w runs, and left no time
        (10, 9, [Conflict(3, 1, 1, True)]),  # h is ready at 9 and fits
        (10, 10, []),
        (
            10,
            11,
            [Conflict(3, 1, 1, False)],
        ),  # idle since 9, and there is room: it would have started at 9
        (10, 12, [Conflict(3, 1, 1, False)]),
        (10, 13, []),  # h has ended
    ],
)
def test_a_transfer_neither_overtakes_an_op_that_is_ready_nor_waits_for_it(
    start_h: int, back_b: int, expected: list[Conflict]
) -> None:
    space = model_of(graph(two_activations), machine(), 3, 20).space
    assert conflicts(space, two_schedule(start_h, back_b)) == expected


def test_without_room_there_is_no_conflict() -> None:
    """With 2 B for a alone, b could not have started before h ended, nor could an op of 1 B
    have.
    """
    space = model_of(graph(two_activations), machine(), 3, 20).space
    late = two_schedule(10, 11)
    assert conflicts(space, late) == [Conflict(3, 1, 1, False)]
    assert conflicts(replace(space, capacity_bytes=2), late) == []
    assert conflicts(space, two_schedule(10, 11, release_b=9)) == [Conflict(3, 1, 1, False)]
    assert conflicts(space, two_schedule(10, 11, release_b=10)) == []  # it left only when h started


@pytest.mark.parametrize(
    ("store", "waits"),
    [(None, False), ((0, 2), True), ((0, 1), False), ((1, 3), False), ((-1, 4), True)],
)
def test_an_op_waits_for_the_store_of_what_it_writes(
    store: tuple[int, int] | None, waits: bool
) -> None:
    def build(b: GraphBuilder) -> None:
        b.tensor("o", 2, "optimizer_state")
        b.tensor("p", 1, "parameter", "ddr")
        b.op("f", "op", inputs=["o"], duration_ns=1)
        b.op("u", "op", mutates=["o"], duration_ns=2)
        b.op("v", "op", inputs=["p"], duration_ns=2, workspace_bytes=2)

    space = model_of(graph(build), machine(), 3, 20).space
    gap = space.movables[1].absences[0]
    for tensor, free in ((0, False), (1, True)):
        stores = () if store is None else (StoreAt(tensor, 0, "ddr", *store),)
        schedule = Schedule(9, (0, 2, 7), (TakenAbsence(gap, "ddr", 0, 1),), stores, {0: ("hbm",)})
        # f 0..1, u 2..4 although it could start at 1, where p comes up
        assert conflicts(space, schedule) == (
            [] if waits and not free else [Conflict(1, 1, -1, True)]
        )


def test_an_op_needs_its_workspace_and_what_it_is_the_first_to_write() -> None:
    def build(b: GraphBuilder) -> None:
        b.tensor("a", 8)  # moves
        b.tensor("c", 4)  # stays
        b.tensor("o", 2, "buffer")  # its contents are dead between g and h
        b.op("f", "op", outputs=["a", "c"], duration_ns=1, workspace_bytes=1)
        b.op("g", "op", mutates=["o"], inputs=["c"], duration_ns=1)
        b.op("w", "op", duration_ns=1, workspace_bytes=16)
        b.op("h", "op", inputs=["a"], outputs=["o"], duration_ns=1)

    space = model_of(graph(build), machine(), 16, 60).space
    assert [need(space, i) for i in range(4)] == [13, 0, 16, 2]


def every_life(b: GraphBuilder) -> None:
    """Tensors of every life, each of a size of its own; w and x leave no room for any of them."""
    b.tensor("all", 1, "parameter")  # stays, from start to end
    b.tensor("c", 2)  # stays, from f to g
    b.tensor("s", 4, "output")  # from h on
    b.tensor("a", 8)  # from f to i
    b.tensor("q", 16, "parameter", "ddr")  # comes up for k
    b.tensor("p", 32, "parameter", "ddr")  # comes up for k
    b.tensor("o", 64, "buffer")  # its contents are dead between f and i
    b.tensor("e", 128, "output")  # from i on
    b.tensor("r", 256, "parameter", "ddr")  # comes up for x
    b.op("f", "op", inputs=["all", "o"], outputs=["a", "c"], duration_ns=4)
    b.op("g", "op", inputs=["all", "c"], duration_ns=4)
    b.op("w", "op", inputs=["all"], duration_ns=4, workspace_bytes=999)
    b.op("h", "op", inputs=["all"], outputs=["s"], duration_ns=4)
    b.op("i", "op", inputs=["all", "a"], outputs=["o", "e"], duration_ns=4)
    b.op("k", "op", inputs=["all", "p", "q"], duration_ns=4)
    b.op("x", "op", inputs=["all", "r"], duration_ns=4, workspace_bytes=999)


def least_capacity(space: Space, schedule: Schedule, conflict: Conflict) -> int:
    """The least capacity at which the schedule conflicts: what is held, and what is wanted."""
    return next(
        c for c in range(10**4) if conflict in conflicts(replace(space, capacity_bytes=c), schedule)
    )


@pytest.mark.parametrize(
    ("op", "op_first", "changed", "bytes_"),
    [
        # i could start at 25, when p comes up: it needs o and e, 192, beside all, s and a, 13; c
        # and the old o are gone, q is not there yet
        ("i", True, {"back_p": 25}, 192 + 13),
        ("i", True, {"back_p": 25, "back_q": 25}, 192 + 13),
        ("i", True, {"back_p": 25, "back_q": 24}, 192 + 13 + 16),
        # f could start at once: it needs a and c, 10, beside all and o
        ("f", True, {"back_p": 0}, 10 + 65),
        ("f", True, {"back_p": 1}, 10 + 65),
        ("f", True, {"back_p": 1, "initial": {4: ("hbm",)}, "release_q": 1}, 10 + 65),
        ("f", True, {"back_p": 1, "initial": {4: ("hbm",)}, "release_q": 2}, 10 + 65 + 16),
        # g could start at 9: it needs nothing, beside all and c, and a until it has left
        ("g", True, {"back_p": 9}, 3),
        ("g", True, {"back_p": 9, "release_a": 10}, 3 + 8),
        # p could have started before h did at 24: 32 bytes beside all, and a if it left only at 24;
        # s is not there yet
        ("h", False, {"back_p": 25, "starts": (3, 10, 14, 24, 40, 80, 84)}, 32 + 1),
        (
            "h",
            False,
            {"back_p": 25, "starts": (3, 10, 14, 24, 40, 80, 84), "release_a": 23},
            32 + 1,
        ),
        (
            "h",
            False,
            {"back_p": 25, "starts": (3, 10, 14, 24, 40, 80, 84), "release_a": 24},
            32 + 1 + 8,
        ),
        # k could start at 50, when r comes up: it needs nothing, beside all that has come and the
        # new o; a is gone with i
        ("k", True, {"back_p": 10, "back_q": 30, "back_r": 50}, 1 + 4 + 16 + 32 + 64 + 128),
    ],
)
def test_what_is_held_and_what_is_wanted(
    op: str, op_first: bool, changed: dict[str, Any], bytes_: int
) -> None:
    toy = graph(every_life)
    space = model_of(toy, machine(), 1000, 10**4).space
    assert space.fixed == ((0, AT_START, 7), (1, 0, 1))
    at = {
        "back_p": 50,
        "back_q": 60,
        "back_r": 900,
        "release_q": 0,
        "release_a": 9,
        "starts": (3, 10, 14, 18, 40, 80, 84),
        "initial": {},
    } | changed
    back_a = 12 if op == "i" else 30
    gaps = {toy.tensors[m.tensor].name: m.absences for m in space.movables}
    aways = (
        TakenAbsence(gaps["a"][0], "ddr", at["release_a"], back_a),
        TakenAbsence(gaps["q"][0], "ddr", at["release_q"], at["back_q"]),
        TakenAbsence(gaps["p"][0], "ddr", 0, at["back_p"]),
        TakenAbsence(gaps["q"][1], "ddr", 84, None),
        TakenAbsence(gaps["o"][1], None, 7, None),
        TakenAbsence(gaps["r"][0], "ddr", 0, at["back_r"]),
    )
    schedule = Schedule(88, at["starts"], aways, (), at["initial"])
    moved = toy.tensor_index["r" if op == "k" else "p"]
    assert (
        least_capacity(space, schedule, Conflict(toy.op_index[op], moved, AT_START, op_first))
        == bytes_
    )
