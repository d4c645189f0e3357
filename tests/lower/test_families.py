"""Ten families, inference and a training step: captured, planned at random, lowered and executed.

The results are the eager model's to the bit, and the most bytes of device memory at once, tracked
from outside, are the replay's in program order to the byte where transfers are synchronous. With
copy threads it is that and what a store still reads of tensors that are gone, which depends on how
busy the machine is. What stands in the graph says the plan again.
"""

from itertools import pairwise

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from exported_models import MODELS  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import MACHINE, captured, model_of, same, values_of  # noqa: E402
from occupancy import Occupancy  # noqa: E402
from random_plans import legal_plans  # noqa: E402
from steps import case, inputs_of  # noqa: E402
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache  # noqa: E402

from hosim.analysis.verifying import verify  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.on_torch.lower import Executor, insert, read  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

pytestmark = pytest.mark.slow

ONCE = settings(max_examples=1, suppress_health_check=list(HealthCheck))
OFTEN = settings(max_examples=3, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def one_thread():
    """Other processes that keep the cores busy would make each parallel region wait for its slowest
    thread.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def executed(program, plan, values, synchronous, folder):
    """What the executor gives, the tracked peak, and the replay's."""
    assert not verify(plan, MACHINE)
    lowered = insert(program, plan)
    by_name = dict(zip([given.placeholder for given in program.givens], values, strict=True))
    user = {given.placeholder for given in program.givens if not given.own}
    account = replay(plan, MACHINE, account="program")
    with Executor(
        lowered, MACHINE, CpuDevice(MACHINE, synchronous=synchronous, directories={"nvme": folder})
    ) as executor:
        executor.place({name: value for name, value in by_name.items() if name not in user})
        with Occupancy(by_name) as occupancy:
            torch.manual_seed(1)
            results = executor.run({name: value for name, value in by_name.items() if name in user})
    assert not list(folder.iterdir())
    return results, occupancy.peak, account.allocator.peak_allocated_bytes


def infer(name, plan, synchronous, folder):
    with torch.no_grad():
        wanted = model_of(name)(**inputs_of(name))
    results, peak, predicted = executed(captured(name), plan, values_of(name), synchronous, folder)
    assert same(results, wanted)
    assert peak == predicted if synchronous else peak >= predicted


def train(name, plan, synchronous, folder):
    made = case(name)
    (loss,), peak, predicted = executed(
        made.step.program, plan, made.values(name), synchronous, folder
    )
    assert torch.equal(loss, made.loss)
    assert same(made.live, made.end)
    assert not same(made.start, made.end)
    assert peak == predicted if synchronous else peak >= predicted


@pytest.mark.parametrize("name", one_in(4, MODELS))
def test_inference(name, tmp_path_factory):
    @ONCE
    @given(legal_plans(captured(name).graph, MACHINE, (1.0,)))
    def check(plan):
        infer(name, plan, True, tmp_path_factory.mktemp("nvme"))

    check()


@pytest.mark.parametrize("name", one_in(5, MODELS))
def test_training_step(name, tmp_path_factory):
    @ONCE
    @given(legal_plans(case(name).step.program.graph, MACHINE, (1.0,)))
    def check(plan):
        train(name, plan, True, tmp_path_factory.mktemp("nvme"))

    check()


@OFTEN
@given(st.data())
def test_many_plans(tmp_path_factory, data):
    act, graph = data.draw(
        st.sampled_from([(infer, captured("bert").graph), (train, case("gpt2").step.program.graph)])
    )
    plan = data.draw(legal_plans(graph, MACHINE))
    act(
        "bert" if act is infer else "gpt2",
        plan,
        data.draw(st.booleans()),
        tmp_path_factory.mktemp("nvme"),
    )


@OFTEN
@given(st.data())
def test_round_trip_and_plain_run(data):
    training = data.draw(st.booleans())
    made = case("gpt2")
    program = made.step.program if training else captured("gpt2")
    plan = data.draw(legal_plans(program.graph, MACHINE))
    lowered = insert(program, plan)
    again, back = read(lowered.module, program.givens, name="gpt2", gradients=program.gradients)
    assert again.graph == program.graph
    assert back.cache_ops == plan.cache_ops
    assert back.residency("hbm") == plan.residency("hbm")
    with torch.no_grad():
        if training:
            (loss,) = lowered.module(*made.values("gpt2"))
            assert torch.equal(loss, made.loss)
            assert same(made.live, made.end)
        else:
            assert same(lowered.module(*values_of("gpt2")), model_of("gpt2")(**inputs_of("gpt2")))


def test_kinds_and_updates_by_tensor():
    graph = case("gpt2").step.program.graph
    kinds = {
        kind: [t.name for t in graph.tensors if t.kind == kind]
        for kind in ("parameter", "gradient", "optimizer_state", "output")
    }
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
    assert all(before in graph.ops[i].deps for before, i in pairwise(random))


def test_generation_with_a_static_cache():
    """One token a call, the cache in buffers of transformers' wrapper: tokens are those of
    ``generate``, scores have eager's bits.
    """
    import hosim

    class_name, config = MODELS["llama"]
    cls = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**config)).eval()
    model.set_attn_implementation(
        "eager"
    )  # another one makes a mask where it is traced alone, which changes the last bits
    settings = {
        "cache_implementation": "static",
        "cache_config": {"batch_size": 1, "max_cache_len": 16},
        "eos_token_id": None,
    }
    model.generation_config.update(use_cache=True, **settings)
    prompt = torch.tensor([[3, 17, 24]])
    with torch.no_grad():
        wanted = model.generate(prompt, max_new_tokens=4, do_sample=False)

    def decoded(step):
        tokens, scores = prompt, []
        for i in range(prompt.shape[1] + 3):
            scores.append(
                step(input_ids=tokens[:, i : i + 1].clone(), cache_position=torch.tensor([i]))
            )
            if i >= prompt.shape[1] - 1:
                tokens = torch.cat([tokens, scores[-1][:, -1].argmax(-1, keepdim=True)], 1)
        return tokens, scores

    with torch.no_grad():
        eager = decoded(TorchExportableModuleWithStaticCache(model))
    example = {"input_ids": prompt[:, :1].clone(), "cache_position": torch.tensor([0])}
    wrapped = TorchExportableModuleWithStaticCache(model)
    with hosim.offload(wrapped, example, hardware=MACHINE, policy="layerwise") as offloaded:
        assert offloaded.plan.count("prefetch")
        for _ in range(2):
            got = decoded(offloaded)
            assert same(got, eager)
            assert torch.equal(got[0], wanted)
