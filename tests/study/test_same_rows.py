"""What is said of a study that varies what no replay reads."""

from typing import Any

import pytest
from rendered import facts

import hosim
from hosim.graph import GraphBuilder
from hosim.io import hardware_to_dict, load_hardware
from hosim.shipped import find_hardware
from hosim.study import notes_on_rows
from hosim.study.asked import Settings, parse_choice
from hosim.study.runs import Question

B = GraphBuilder("toy")
B.tensor("w", 40, "parameter")
B.op("f", "matmul", inputs=["w"], duration_ns=50)
QUESTION = Question(B.build(), load_hardware(find_hardware("toy")), parse_choice("resident"))


@pytest.mark.parametrize(
    ("makespans", "budgets", "said"),
    [
        ([50, 50], [100, 40], True),
        ([50, 50], [100, 39], False),  # less than the resident peak
        ([50, 60], [100, 100], False),
        ([50], [100], False),
        ([None, None], [100, 100], False),
        ([50, 50], [100, None], False),
    ],
)
def test_rows_that_are_the_same_as_everything_fits(
    makespans: list[Any], budgets: list[Any], said: bool
) -> None:
    rows = [
        {"makespan_ns": makespan, "budget_bytes": budget}
        for makespan, budget in zip(makespans, budgets, strict=True)
    ]
    points: list[Settings] = [{"budget": budget} for budget in budgets]
    assert notes_on_rows(QUESTION, points, rows) == (
        [
            "every row takes 50 ns: everything fits within 40 B (the resident peak is 40 B), so "
            "that nothing has to move; give a smaller budget, such as -b 75%"
        ]
        if said
        else []
    )


@pytest.mark.parametrize(
    ("field", "values", "said"),
    [
        (
            "tiers.hbm.bandwidth",
            ("1 TB/s", "2 TB/s"),
            "the times of the 3 ops on hbm are given, so they read no compute rate",
        ),
        (
            "hardware.compute.peak.bf16",
            ("1 TFLOP/s", "2 TFLOP/s"),
            "the times of the 3 ops on hbm are given, so they read no compute rate",
        ),
        ("channels.d2h.bandwidth", ("1 GB/s", "2 GB/s"), "no transfer used d2h"),
        ("channels.d2h.bandwidth+channels.h2d.bandwidth", ("1 GB/s", "2 GB/s"), None),
        ("channels.h2d.bandwidth", ("1 GB/s", "2 GB/s"), None),
    ],
)
def test_why_nothing_changes_is_what_the_replays_read(
    field: str, values: tuple[str, str], said: str | None
) -> None:
    """At revision 0775890d a bandwidth that no op reads was varied without a word, or with
    'everything fits' where nothing did.
    """
    b = GraphBuilder("below")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    table = hosim.sweep(
        b.build(),
        "toy",
        "layerwise",
        "80 B",
        vary={field: values} if "+" not in field else [f"{field}={','.join(values)}"],
        jobs=1,
    )
    notes = [note for note in table.attrs["notes"] if note.startswith("every row takes")]
    assert (said is None) == (not notes)
    assert said is None or said in notes[0]
    assert "everything fits" not in " ".join(notes)


def placements(placement: str, **vary: list[str]) -> list[str]:
    """The notes on placements of a sweep over a machine with ``nvme`` beside ``ddr``."""
    b = GraphBuilder("two ways")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    machine = hardware_to_dict(load_hardware(find_hardware("toy")))
    machine["tiers"]["nvme"] = {"capacity": "1 kB", "bandwidth": "3 GB/s"}
    machine["tiers"]["hbm"]["capacity"] = "1 kB"
    machine["channels"] |= {
        "read": {"from": "nvme", "to": "hbm", "bandwidth": "3 GB/s"},
        "write": {"from": "hbm", "to": "nvme", "bandwidth": "1 GB/s"},
    }
    fields = {field.replace("_", "."): values for field, values in vary.items()}
    table = hosim.sweep(b.build(), machine, f"static_split{placement}", "80 B", vary=fields, jobs=1)
    return [note for note in table.attrs["notes"] if "placements" in note]


def test_rows_that_place_tensors_in_other_tiers_say_so() -> None:
    """2 GB/s was faster than 14.7 GB/s without a word, as weights came from NVMe there alone."""
    (said,) = placements("", channels_h2d_bandwidth=["1 GB/s", "4 GB/s", "5 GB/s"])
    first = "lie in ddr in 2 rows (first at channels.h2d.bandwidth=4 GB/s), in nvme in 1 row (at "
    assert first in said
    assert facts(said, "placement=nearest").endswith("placement=nearest")
    assert not placements("", channels_h2d_bandwidth=["4 GB/s", "5 GB/s"])
    nearest = ":placement=nearest"
    assert not placements(nearest, channels_h2d_bandwidth=["1 GB/s", "4 GB/s"])
    (said,) = placements(nearest, tiers_ddr_capacity=["50 B", "1 kB"])
    assert facts(said, "ddr", "nvme").endswith("ddr, nvme, 1, ddr, 50 B")


def test_rows_in_which_nothing_is_offloaded_are_no_other_placement() -> None:
    assert not placements("", budget=["80 B", "1 kB"])
