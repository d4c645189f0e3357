"""Trees of orders, held against all orders of a few items that are tried one by one."""

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.packing import ApartError, any_order, gather, items_in_order, order_like

ITEMS = range(5)
groups = st.frozensets(st.sampled_from(ITEMS), min_size=1)


def orders(tree):
    """All orders of a tree, from what its nodes say."""
    if isinstance(tree, int):
        return {(tree,)}
    arrangements = (
        (tree.children, tree.children[::-1]) if tree.fixed else permutations(tree.children)
    )
    return {
        sum(parts, ()) for children in arrangements for parts in product(*map(orders, children))
    }


def stand_together(order, group):
    places = [order.index(item) for item in group]
    return max(places) - min(places) == len(group) - 1


def possible(asked):
    return {
        order
        for order in permutations(ITEMS)
        if all(stand_together(order, group) for group in asked)
    }


@given(st.lists(groups, min_size=1, max_size=5))
def test_a_tree_has_all_orders_in_which_the_groups_stand_together_and_no_others(asked):
    tree = any_order(ITEMS)
    for count, group in enumerate(asked):
        expected = possible(asked[: count + 1])
        try:
            tree = gather(tree, group, 1 << count)
        except ApartError as error:
            assert not expected
            # The reasons alone are enough: the groups that they name stand together in no order
            # either.
            assert not possible(
                [
                    named
                    for number, named in enumerate(asked[: count + 1])
                    if error.cause >> number & 1
                ]
            )
            return
        assert orders(tree) == expected
        assert tuple(items_in_order(tree)) in expected


@given(st.lists(groups, max_size=3), groups, st.integers(1, 3))
def test_others_stand_where_the_group_stood(asked, group, count):
    tree = any_order(ITEMS)
    try:
        for other in asked:
            tree = gather(tree, other, 0)
        before = gather(tree, group, 0)
    except ApartError:
        return
    others = tuple(range(10, 10 + count))
    after = gather(tree, group, 0, any_order(others))
    expected = set()
    for order in orders(before):
        at = min(order.index(item) for item in group)
        rest = [item for item in order if item not in group]
        expected |= {(*rest[:at], *placed, *rest[at:]) for placed in permutations(others)}
    assert orders(after) == expected
    # And each order after has one before that agrees with it.
    for order in expected:
        positions = {item: place for place, item in enumerate(order)}
        at = min(positions[item] for item in others)
        found = tuple(order_like(before, positions | dict.fromkeys(group, at)))
        assert found in orders(before)
        assert [item for item in found if item not in group] == [
            item for item in order if item not in others
        ]
        assert found.index(min(group, key=found.index)) == at


def test_the_reasons_are_those_of_what_the_group_takes_a_part_of():
    tree = any_order(range(7))
    for bit, pair in ((1, {0, 1}), (2, {0, 2}), (4, {3, 4}), (8, {5, 6})):
        tree = gather(tree, pair, bit)
    # 0 has two neighbours already; 3 and 4 are met, though it is not their fault; 5 and 6 are not.
    with pytest.raises(ApartError) as error:
        gather(tree, {0, 3}, 16)
    assert error.value.cause == 1 | 2 | 4 | 16
