"""Folded names stand for exactly the names that were folded."""

from hypothesis import given
from hypothesis import strategies as st

from hosim.gate.records import absolute, fold, relative, unfold

NAMES = st.lists(
    st.lists(
        st.sampled_from(["a", "b.", "{", "}", "{1}", "1", "2", "3", "07", "10", "-", ",", "²"]),
        max_size=6,
    ).map("".join),
    unique=True,
)


@given(NAMES)
def test_unfolding_gives_the_names_back_each_once(names: list[str]) -> None:
    folded = fold(names)
    assert sorted(name for text, _ in folded for name in unfold(text)) == sorted(names)
    assert [count for _, count in folded] == [len(unfold(text)) for text, _ in folded]


def test_layers_and_experts_are_one_line() -> None:
    names = [f"layers.{i}.experts.{j}.w" for i in range(12) for j in range(8)]
    assert fold(names) == [("layers.{0-11}.experts.{0-7}.w", 96)]


@given(
    *[
        st.lists(
            st.sampled_from(["a", ".", "1", "2", "07", "9", "12", "²", "{", "}"]), max_size=6
        ).map("".join)
    ]
    * 2
)
def test_what_is_seen_from_a_name_is_told_back(op: str, name: str) -> None:
    seen = relative(op, name)
    if "{" not in op and "}" not in op:
        assert absolute(seen, name) == op
    else:
        assert seen == op


def test_what_belongs_to_a_layer_looks_the_same_from_every_layer() -> None:
    assert {relative(f"h.{i - 2}.mlp.2", f"h.{i}.w") for i in range(12, 40)} == {"h.{-2}.mlp.2"}
    assert relative("h.1.mlp", "h.40.w") == "h.1.mlp"
