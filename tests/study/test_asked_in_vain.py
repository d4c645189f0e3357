"""What is asked for and has no effect: a time to pin that nobody spends, a placement that leaves
some weights elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import hosim
from hosim.errors import InputError
from hosim.graph import Graph

TOY = hosim.load_hardware(hosim.find_hardware("toy"))
PINNED = replace(
    TOY,
    tiers=tuple([replace(tier, pin_ns=7) if tier.name == "ddr" else tier for tier in TOY.tiers]),
)


def streamed(written: bool = False) -> Graph:
    """Three weights of 40 B, of which the device has room for two; they are only read, or written,
    too.
    """
    b = hosim.GraphBuilder("weights")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
        b.op(
            f"f{i}",
            "m",
            duration_ns=50,
            **({"mutates": [f"w{i}"]} if written else {"inputs": [f"w{i}"]}),
        )
    return b.build()


def test_a_time_to_pin_that_nobody_spends_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"toy: tiers\.ddr\.pin: changes nothing here, since no plan moves a tensor to ddr",
    ):
        hosim.compare(streamed(), PINNED, "layerwise", 90)
    spent, plain = (
        hosim.compare(streamed(written=True), machine, "layerwise", 90) for machine in (PINNED, TOY)
    )
    assert spent["makespan_ns"][0] > plain["makespan_ns"][0]


def test_where_nothing_moves_no_time_is_in_vain() -> None:
    above = replace(
        streamed(), tensors=tuple(replace(t, home=None, size_bytes=20) for t in streamed().tensors)
    )
    assert hosim.compare(above, PINNED, "resident")["feasible"][0]


@pytest.mark.parametrize(
    ("placement", "left"),
    [
        ("by_kind/parameter=ddr", "expert, 40 B"),
        ("by_kind/expert=ddr", "parameter, 40 B"),
        ("by_kind/parameter=ddr/expert=ddr", None),
        ("by_kind", None),
    ],
)
def test_a_placement_that_leaves_some_weights_elsewhere_says_so(
    placement: str, left: str | None
) -> None:
    b = hosim.GraphBuilder("experts")
    for kind in ("parameter", "expert"):
        b.tensor(kind, 40, kind)
        b.op(f"f {kind}", "m", inputs=[kind], duration_ns=50)
    for table in (
        hosim.compare(b.build(), "toy", f"layerwise:placement={placement}", 45),
        hosim.frontier(
            b.build(), "toy", f"layerwise:placement={placement}", 45, points=2, refine=0
        ).frame,
    ):
        said = [note for note in table.attrs["notes"] if note.startswith("placement: ")]
        assert len(said) == (left is not None)
        assert all(f" kind {left}" in note for note in said)


def test_an_account_in_program_order_says_whose_order_it_is() -> None:
    """Of a step on several streams: on one, nothing is freed late."""
    from hosim.result import IN_PROGRAM_ORDER
    from hosim.study.runs import Counting, replay

    b = hosim.GraphBuilder("streams")
    for name in ("x", "y"):
        b.tensor(name, 8)
        b.op(f"make {name}", "m", outputs=[name], duration_ns=5, stream=name)
    for graph, said in ((b.build(), True), (streamed(), False)):
        notes = replay(
            hosim.Plan(graph), TOY, 100, counting=Counting("caching", IN_PROGRAM_ORDER)
        ).notes
        assert any(line.startswith("account: ") for line in notes) == said
