"""What the busiest rank of a mixture has to do."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.costmodel.kernels.op_families import busiest, expected_loads


def test_recorded_loads_of_the_rank_with_the_most_rows() -> None:
    found = busiest((1, 0, 0, 0, 17, 3, 0, 70), ranks=2)
    assert (found.rows, found.touched) == (90, 3)
    assert found.padded == (32 + 16 + 80, 64 + 64 + 128, 3 * 128)


def test_one_rank_has_all_rows_of_any_distribution() -> None:
    for distribution in ("uniform", "zipf_1.0", "power_law_1.2", "power_law_1.01"):
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
    assert expected_loads(5, 2, 8, 8, "zipf_50").rows == pytest.approx(5)


def drawn_rows(random: Random, tokens: int, top: int, experts: int) -> list[int]:
    """Rows of each expert under ``power_law_2``: shares of 1 to 0.8 of the tokens (0.01 to 2 if
    choices are few), scaled and rounded; then one after the other is given or taken back.
    """
    low, high = (1, max(1, 0.8 * tokens)) if tokens * top > experts else (0.01, 2)
    shares = [1 / (1 / low + (1 / high - 1 / low) * random.random()) for _ in range(experts)]
    rows = [min(tokens, round(share * tokens * top / sum(shares))) for share in shares]
    largest_first = sorted(range(experts), key=rows.__getitem__)[::-1]
    while sum(rows) < tokens * top:
        for e in largest_first:
            rows[e] += rows[e] < tokens and sum(rows) < tokens * top
    for e in largest_first[::-1]:
        while rows[e] and sum(rows) > tokens * top:
            rows[e] -= 1
    return rows


@given(st.integers(1, 40), st.integers(1, 4), st.integers(4, 7))
def test_the_largest_expert_takes_what_rounding_left_over(tokens, top, experts) -> None:
    random = Random(0)
    most = [max(drawn_rows(random, tokens, top, experts)) for _ in range(12)]
    found = expected_loads(tokens, top, experts, experts, "power_law_2")
    assert found.rows == pytest.approx(sum(most) / 12)


def test_two_experts_of_which_one_is_twice_as_popular() -> None:
    # two tokens miss the popular one with probability 1/9, and the other one with 4/9
    found = expected_loads(2, 1, 2, 1, "zipf_1.0")
    assert (found.rows, found.touched) == (pytest.approx(2), pytest.approx(8 / 9 + 5 / 9))


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4))
def test_zipf_with_equal_weights_is_uniform(tokens: int, top: int, each: int, ranks: int) -> None:
    experts = each * ranks
    top = min(top, experts)
    even, same = (
        expected_loads(tokens, top, experts, ranks, name) for name in ("uniform", "zipf_0")
    )
    assert (same.rows, same.touched) == (pytest.approx(even.rows), pytest.approx(even.touched))
    assert same.padded == pytest.approx(even.padded, abs=each * 128 * 1e-6) or even.rows % 16 < 1e-6


@pytest.mark.parametrize(("exponent", "most"), [(20, 10), (99, 8.1)])
def test_a_steep_distribution_touches_little_more_than_the_most_popular_experts(
    exponent: int, most: float
) -> None:
    """The probability of the least popular of 128 experts is too small for a number of 64 bits."""
    found = expected_loads(64, 8, 128, 1, f"zipf_{exponent}")
    assert found.rows == pytest.approx(8 * 64)
    assert 8 <= found.touched < most
    assert found.padded[0] < 16 * (found.rows / 16 + most)
    assert expected_loads(64, 8, 128, 8, f"zipf_{exponent}").touched < found.touched


@pytest.mark.parametrize(("tokens", "top", "experts"), [(12, 1, 16), (16, 4, 128), (4, 2, 8)])
def test_popular_experts_are_those_of_drawn_tokens(tokens: int, top: int, experts: int) -> None:
    random, draws = Random(0), 300
    weights = [1 / (rank + 1) for rank in range(experts)]
    touched = 0
    for _ in range(draws):
        seen = set()
        for _ in range(tokens):  # the smallest of exponential times: draws without replacement
            times = [random.expovariate(weight) for weight in weights]
            seen |= set(sorted(range(experts), key=times.__getitem__)[:top])
        touched += len(seen)
    assert expected_loads(tokens, top, experts, 1, "zipf_1.0").touched == pytest.approx(
        touched / draws, rel=0.04
    )


@pytest.mark.parametrize(
    "distribution", ["zipf", "zipf_-1", "power_law_", "power_law_1.0", "power_law_x"]
)
def test_another_distribution_is_refused(distribution: str) -> None:
    with pytest.raises(ValueError, match="unknown distribution"):
        expected_loads(8, 2, 8, 1, distribution)
