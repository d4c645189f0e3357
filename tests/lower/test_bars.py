"""Ten families, inference and a training step, executed under random legal plans: the eager model's results to the bit, and the
replay's peak of device memory (in program order) to the byte, with synchronous transfers and with copy threads.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from exported_models import MODELS, model_of  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import MACHINE, captured, inputs_of, same, values_of  # noqa: E402
from occupancy import Occupancy  # noqa: E402
from random_plans import legal_plan  # noqa: E402
from steps import case  # noqa: E402

from hosim.analysis.verifier import verify  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.lower.insert import insert  # noqa: E402
from hosim.lower.on_cpu import CpuDevice  # noqa: E402
from hosim.lower.run import Executor  # noqa: E402


def executed(program, plan, values, synchronous, folder):
    """What the executor gives, the tracked peak, and the replay's."""
    lowered = insert(program, plan)
    by_name = dict(zip([given.placeholder for given in program.givens], values, strict=True))
    user = {given.placeholder for given in program.givens if not given.own}
    account = replay(plan, MACHINE, account="program")
    with Executor(lowered, MACHINE, CpuDevice(MACHINE, synchronous=synchronous, directories={"nvme": folder})) as executor:
        executor.place({name: value for name, value in by_name.items() if name not in user})
        with Occupancy(by_name) as occupancy:
            torch.manual_seed(1)
            results = executor.run({name: value for name, value in by_name.items() if name in user})
    return results, occupancy.peak, account.allocator.peak_allocated_bytes


def drawn_plan(data, graph):
    plan = legal_plan(graph, MACHINE, data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from((0.1, 0.4, 1.0))))
    assert not verify(plan, MACHINE)
    return plan


FEW = settings(max_examples=2, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", MODELS)
def test_inference(name, tmp_path_factory):
    with torch.no_grad():
        wanted = model_of(name)(**inputs_of(name))

    @FEW
    @given(st.data())
    def check(data):
        plan = drawn_plan(data, captured(name).graph)
        folder = tmp_path_factory.mktemp("nvme")
        results, peak, predicted = executed(captured(name), plan, values_of(name), data.draw(st.booleans()), folder)
        assert same(results, wanted)
        assert peak == predicted
        assert not list(folder.iterdir())

    check()


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name, tmp_path_factory):
    made = case(name)

    @FEW
    @given(st.data())
    def check(data):
        plan = drawn_plan(data, made.step.program.graph)
        folder = tmp_path_factory.mktemp("nvme")
        (loss,), peak, predicted = executed(made.step.program, plan, made.values(name), data.draw(st.booleans()), folder)
        assert torch.equal(loss, made.loss)
        assert same(made.live, made.end)
        assert peak == predicted

    check()
