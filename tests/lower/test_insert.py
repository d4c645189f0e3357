"""The pass: what it inserts says the plan again, changes no result, and stays where other passes come after it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from exported_models import MODELS, model_of  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import MACHINE, captured, inputs_of, same, values_of  # noqa: E402
from random_plans import legal_plans  # noqa: E402

from hosim.lower.insert import insert  # noqa: E402
from hosim.lower.program import read  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_program_computes_what_the_model_does(name):
    with torch.no_grad():
        assert same(captured(name).module(*values_of(name)), model_of(name)(**inputs_of(name)))


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_round_trip_and_plain_run(data):
    name = data.draw(st.sampled_from(["gpt2", "bert", "mixtral"]))
    program, plan = captured(name), data.draw(legal_plans(captured(name).graph, MACHINE))
    lowered = insert(program, plan)
    again, back = read(lowered.module, program.givens, name=name)
    assert again.graph == program.graph
    assert back.cache_ops == plan.cache_ops
    assert back.residency("hbm") == plan.residency("hbm")
    with torch.no_grad():
        assert same(lowered.module(*values_of(name)), program.module(*values_of(name)))
