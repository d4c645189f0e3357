"""What the busiest rank of a mixture has to do."""

import pytest

from hosim.analysis.costmodel.kernels.op_families import busiest, expected_loads


def test_recorded_loads_of_the_rank_with_the_most_rows() -> None:
    found = busiest((1, 0, 0, 0, 17, 3, 0, 70), ranks=2)
    assert (found.rows, found.touched) == (90, 3)
    assert found.padded == (32 + 16 + 80, 64 + 64 + 128, 3 * 128)


def test_one_rank_has_all_rows_of_any_distribution() -> None:
    for distribution in ("uniform", "power_law_1.2", "power_law_1.01"):
        assert expected_loads(1000, 4, 32, 1, distribution).rows == pytest.approx(4000)


def test_uniform_choices_touch_the_expected_number_of_experts() -> None:
    # each of 3 tokens misses an expert with probability 3/4
    assert expected_loads(3, 2, 8, 1, "uniform").touched == pytest.approx(8 * (1 - 0.75**3))


def test_a_power_law_loads_one_rank_more_and_touches_fewer_experts() -> None:
    even, uneven = (
        expected_loads(64, 2, 64, 8, distribution) for distribution in ("uniform", "power_law_1.2")
    )
    assert uneven.rows > even.rows > 64 * 2 / 8
    assert (
        expected_loads(64, 2, 64, 1, "power_law_1.2").touched
        < expected_loads(64, 2, 64, 1, "uniform").touched
    )


def test_no_expert_has_more_rows_than_there_are_tokens() -> None:
    assert expected_loads(1, 2, 2, 2, "power_law_1.2").rows == 1
    assert expected_loads(5, 8, 8, 8, "uniform").rows == 5


@pytest.mark.parametrize("distribution", ["zipf", "power_law_", "power_law_1.0", "power_law_x"])
def test_another_distribution_is_refused(distribution: str) -> None:
    with pytest.raises(ValueError, match="unknown distribution"):
        expected_loads(8, 2, 8, 1, distribution)
