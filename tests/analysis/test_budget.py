"""Budgets as people write them."""

import numpy as np
import pytest

from hosim.engine import read_budget
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Compute, Hardware, Tier

HARDWARE = Hardware("toy", (Tier("hbm", 1000, 1),), (), Compute({}))


@pytest.fixture
def graph() -> Graph:
    """A resident peak of 1011 bytes."""
    b = GraphBuilder("toy")
    b.tensor("w", 1000, "parameter")
    b.tensor("a", 11)
    b.op("f", "matmul", inputs=["w"], outputs=["a"])
    return b.build()


@pytest.mark.parametrize(
    ("text", "wanted", "counts"),
    [
        (None, 1000, 1000),
        ("400 B", 400, 400),
        ("0.4kB", 400, 400),
        ("2 GiB", 2**31, 1000),
        ("50%", 505, 505),
        (" 12.5 % ", 126, 126),
        ("100%", 1011, 1000),
        ("0.1%", 1, 1),
        (0.5, 505, 505),
        (0.7, 707, 707),  # 0.7 in binary is a little less
        (0.29, 293, 293),
        (1.0, 1011, 1000),
        ("0.5", 505, 505),
        (".5", 505, 505),
        (1e-3, 1, 1),
        (400, 400, 400),
        (np.int64(400), 400, 400),
        (np.float32(0.5), 505, 505),
    ],
)
def test_sizes_and_shares_of_the_resident_peak(
    text: float | str | None, wanted: int, counts: int, graph: Graph
) -> None:
    assert read_budget(text).of(graph, HARDWARE) == (wanted, counts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("40", "expected a size with its unit, such as '80 GiB', got '40'"),
        ("40 Gb", "'b' would be bits: write 'B' for bytes"),
        ("40 GB/s", "unknown unit 'GB/s'"),
        ("-1 GiB", "expected a size from 0"),
        ("-5%", "expected a share of the resident peak above 0, such as '75%', got '-5%'"),
        ("-.5", "expected a share of the resident peak above 0, such as '75%', got '-.5'"),
        ("", "got ''"),
        ("lots", "got 'lots'"),
        ("0 B", "0 B leaves no memory at all"),
        ("0%", "0% leaves no memory at all; expected a size such as '40 GiB' or a share"),
        (1.5, "got 1.5"),
        (
            12e9,
            "expected whole bytes, a size such as '40 GiB' or a share of the resident peak such "
            "as '75%' or 0.75, got 12000000000.0",
        ),
        (float("nan"), "got nan"),
        (0.0, "0.0 leaves no memory at all; expected whole bytes, a size"),
        (1e-9, "1e-09 leaves no memory at all"),
        ("1.5", "expected a size with its unit"),
        ("0.01%", "0.01% leaves no memory at all"),
    ],
)
def test_what_is_no_budget_is_refused_in_one_line(
    text: float | str, said: str, graph: Graph
) -> None:
    with pytest.raises(InputError) as refused:
        read_budget(text).of(graph, HARDWARE)
    message = str(refused.value)
    assert message.startswith("budget: ")
    assert said in message
    assert "75%" in message
    assert "\n" not in message


@pytest.mark.parametrize("budget", ["50%", 0.5, "0.5"])
def test_a_share_of_a_recording_without_memory(budget: str | float) -> None:
    builder = GraphBuilder("recorded")
    builder.op("f", "kernel", duration_ns=5)
    with pytest.raises(
        InputError,
        match=r"of the workload's memory is nothing, as it has no tensors; give a size such as "
        r"'40 GiB'$",
    ):
        read_budget(budget).of(builder.build(), HARDWARE)
