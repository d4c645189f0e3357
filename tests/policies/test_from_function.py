"""A function of somebody's own is a policy: its name, its parameters, and what it is told when it
is none.
"""

import functools

import pytest

import hosim
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.policies import policy_of


def keep(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, twice: bool = False, lead: int = 4
) -> hosim.Plan:
    """Moves nothing.

    Really.
    """
    return hosim.Plan(graph, f"keep {lead}")


def test_a_function_has_a_name_a_line_and_parameters() -> None:
    policy = policy_of(keep)
    assert (policy.name, policy.summary) == ("keep", "Moves nothing.")
    assert [(key, p.default, p.type) for key, p in policy.settings.items()] == [
        ("twice", False, "bool"),
        ("lead", 4, "int"),
    ]
    assert policy_of(functools.partial(keep, lead=2)).parameters["lead"] == 2
    assert policy_of(lambda *taken: None).name == "lambda"
    assert policy_of(max).settings == {}


class Maker:
    def __call__(self, graph: Graph, hardware: Hardware, budget_bytes: int) -> hosim.Plan:
        return hosim.Plan(graph)


def test_an_object_that_can_be_called_is_one_as_well() -> None:
    assert policy_of(Maker()).name == "Maker"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda graph: None,
            "policy lambda: expected a function (graph, hardware, budget_bytes), got lambda(graph)",
        ),
        (lambda *, graph, hardware, budget: None, "got lambda(*, graph, hardware, budget)"),
        (
            lambda graph, hardware, budget, more: None,
            "expected a number, true, false or text as the default of its parameter more",
        ),
        (lambda graph, hardware, budget, more=[]: None, "as the default of its parameter more"),
    ],
)
def test_a_function_that_takes_something_else(function: object, said: str) -> None:
    with pytest.raises(InputError) as refused:
        policy_of(function)
    assert said in str(refused.value)
