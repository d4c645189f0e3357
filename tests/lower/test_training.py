"""A captured training step: torch's own, to the bit, with forward, backward and optimizer in one graph."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from exported_models import MODELS  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import MACHINE, same  # noqa: E402
from random_plans import legal_plans  # noqa: E402
from steps import case  # noqa: E402

from hosim.lower.insert import insert  # noqa: E402
from hosim.lower.program import read  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_is_the_eager_one(name):
    made = case(name)
    with torch.no_grad():
        (loss,) = made.step.program.module(*made.values(name))
    assert torch.equal(loss, made.loss)
    assert same(made.live, made.end)
    assert not same(made.start, made.end)


def test_kinds_and_updates_by_tensor():
    graph = case("gpt2").step.program.graph
    kinds = {kind: [t.name for t in graph.tensors if t.kind == kind] for kind in ("parameter", "gradient", "optimizer_state", "output")}
    parameters = len(kinds["parameter"])
    assert len(kinds["gradient"]) == parameters
    assert len(kinds["optimizer_state"]) == 3 * parameters
    assert len(kinds["output"]) == 1
    updates = [op for op in graph.ops if "adamw" in op.kind]
    assert len(updates) == parameters
    assert all(len(op.mutates) == 3 for op in updates)


def test_random_ops_stay_in_their_order():
    """They draw from one generator: in another order each would draw what another drew."""
    graph = case("gpt2").step.program.graph
    random = [i for i, op in enumerate(graph.ops) if op.kind == "random"]
    assert len(random) > 2
    assert all(before in graph.ops[i].deps for before, i in itertools.pairwise(random))


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_round_trip_and_plain_run(data):
    made = case("gpt2")
    program = made.step.program
    plan = data.draw(legal_plans(program.graph, MACHINE))
    lowered = insert(program, plan)
    again, back = read(lowered.module, program.givens, name="gpt2", gradients=program.gradients)
    assert again.graph == program.graph
    assert back.cache_ops == plan.cache_ops
    assert back.residency("hbm") == plan.residency("hbm")
    with torch.no_grad():
        (loss,) = lowered.module(*made.values("gpt2"))
    assert torch.equal(loss, made.loss)
    assert same(made.live, made.end)
