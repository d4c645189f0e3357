"""Models of ``torch.compile`` under offload: results are those of the compiled model to the bit,
and inductor's calls keep their order.
"""

import gc
import shutil

import pytest

torch = pytest.importorskip("torch")

import lowering  # noqa: E402
import steps  # noqa: E402
from exported_models import inputs_of, model_of  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lowering import captured, same, values_of  # noqa: E402
from occupancy import Occupancy  # noqa: E402
from random_plans import legal_plans  # noqa: E402
from test_families import executed  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower.compiled import compiled_program  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402

MACHINE = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
SMALL = {"hardware": MACHINE, "policy": "layerwise"}  # which plans in no time
X = torch.linspace(-1, 1, 32 * 64).reshape(32, 64)

compiles = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


@pytest.fixture
def seen(monkeypatch):
    """Inductor's buffers are made by an op of torch, so that :class:`Occupancy` sees them."""
    monkeypatch.setattr(
        torch._C._dynamo.guards,
        "_empty_strided_cpu",
        lambda *a: torch.empty_strided(a[0], a[1], dtype=a[2]),
    )


def marked(*marks):
    def mark(test):
        for one in marks:
            test = one(test)
        return test

    return mark


@marked(*compiles)
@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "bert", "vit", "t5", "mixtral", "deepseek_v3", "gemma"]
)
def test_families_have_the_bits_of_the_compiled_model(name, seen):
    compiled, inputs = torch.compile(model_of(name)), inputs_of(name)
    with torch.no_grad():
        wanted = compiled(**inputs)
        device = CpuDevice(MACHINE, synchronous=True)
        with hosim.offload(
            compiled, inputs, hardware=MACHINE, budget="95%", device=device
        ) as offloaded:
            assert offloaded.plan.count("prefetch") > 0
            calls = len(offloaded.plan.graph.ops)
            with Occupancy([offloaded._captured.held, inputs]) as occupancy:
                results = offloaded(**inputs)
            account = hosim.replay(offloaded.plan, MACHINE, account="program")
            assert (
                occupancy.peak == account.allocator.peak_allocated_bytes
            )  # inductor's temporaries too
            assert same(results, wanted)
            assert same(offloaded(**inputs), wanted)
        for ours, eager in zip(
            tree_leaves(results), tree_leaves(model_of(name)(**inputs)), strict=True
        ):
            assert (
                ours - eager
            ).abs().max() < 1e-5  # as fusion rounds: at most 2e-6 when this was written
        with hosim.offload(model_of(name), inputs, **SMALL) as plain:
            assert calls < 0.75 * len(plain.plan.graph.ops)  # fused


@marked(*compiles)
def test_any_plan_gives_the_same_bits_and_the_predicted_peak(seen, tmp_path_factory):
    program = compiled_program(captured("gpt2"), {})
    with torch.no_grad():
        wanted = torch.compile(lowering.model_of("gpt2"))(**steps.inputs_of("gpt2"))

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(legal_plans(program.graph, lowering.MACHINE), st.booleans())
    def check(plan, synchronous):
        results, peak, predicted = executed(
            program, plan, values_of("gpt2"), synchronous, tmp_path_factory.mktemp("nvme")
        )
        assert same(results, wanted)
        assert peak == predicted if synchronous else peak >= predicted

    check()


class Inputs(torch.nn.Module):
    """Convolution, running statistics, a counter, random numbers, and results that are views,
    inputs, constants and the same twice.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.linear.weight
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("memory", torch.zeros(4, 8))

    def forward(self, x, scale=2):
        self.calls.add_(1)
        y = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        z = self.dropout(self.tied(self.linear(y)))
        self.memory.index_put_((torch.arange(2),), z)
        top = z.topk(2)
        made = torch.tensor([1.0, 2.0]) * z[0, :2] + self.calls
        return {
            "z": z,
            "flat": z.view(-1),
            "x": x,
            "top": top,
            "again": z,
            "made": made,
            "view": x[:, :1],
            "scale": scale,
            "none": None,
        }


@marked(*compiles)
@pytest.mark.parametrize("training", [False, True])
def test_buffers_random_numbers_views_and_inputs(training):
    models = Inputs().train(training), Inputs().train(training)
    x = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
    compiled = [torch.compile(model) for model in models]
    with (
        torch.no_grad(),
        hosim.offload(compiled[1], x, hardware=MACHINE, budget="90%") as offloaded,
    ):
        for step in range(3):
            torch.manual_seed(step)
            wanted = compiled[0](x + step)
            torch.manual_seed(step)
            result = offloaded(x + step)
            assert [(one.pop("scale"), one.pop("none")) for one in (result, wanted)] == [
                (2, None)
            ] * 2
            assert same(result, wanted)
    assert same(models[1].state_dict(), models[0].state_dict())
    assert models[1].calls == 3
    assert training == bool(models[1].norm.num_batches_tracked)


class Blocks(torch.nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x)) * 2
        return x


@marked(*compiles)
def test_inductor_keeps_the_order_and_nothing_is_moved_across_a_cache_op():
    from torch._inductor.utils import run_and_get_code

    compiled = torch.compile(Blocks())
    with torch.no_grad():
        wanted, (text,) = run_and_get_code(compiled, X)
    lines = [line.strip() for line in text[text.index("def call(") :].splitlines()]
    own = [
        line for line in lines if line.startswith(("cpp_fused", "extern_kernels."))
    ]  # what the model calls without hosim
    with hosim.offload(compiled, X, hardware=MACHINE, budget="50%") as offloaded:
        plan, lowered = offloaded.plan, offloaded.lowered
        kinds = {"extern_kernels": "matmul", "cpp_fused": "fused"}
        assert [op.kind for op in plan.graph.ops] == [
            kinds["cpp_fused" if "cpp_fused" in line else "extern_kernels"] for line in own
        ]
        names = [op.name for op in plan.graph.ops]
        nodes = [node.name for node in lowered.module.graph.nodes]
        at = {name: nodes.index(name) for name in names}
        assert sorted(at, key=at.__getitem__) == names
        assert plan.count("prefetch") > 0
        for name, k in lowered.cache_op_of.items():
            after = plan.cache_ops[k].after
            before = [other for other in names if at[other] < nodes.index(name)]
            assert before == names[: after + 1]  # where the plan has it
        called = []
        for node in lowered.module.graph.nodes:
            if node.name in lowered.op_of:
                node.target._function = noted(node.target._function, called, node.name)
        with torch.no_grad():
            assert torch.equal(offloaded(X), wanted)
        assert called == names
        offloaded.executor.run(dict(zip(offloaded._captured.inputs, [X], strict=True)), record=True)
        timeline, waits = offloaded.executor.timeline, 0
        for transfer in timeline.transfers:
            cache_op = plan.cache_ops[transfer.cache_op]
            if cache_op.op == "prefetch" and cache_op.destination == "hbm":
                readers = [i for i in plan.graph.users[cache_op.tensor] if i > cache_op.after]
                waits += bool(readers)
                assert all(
                    timeline.op_start_ns[i] >= transfer.end_ns for i in readers
                )  # a call waits for what it reads
        assert waits


def noted(function, called, name):
    def call(*args):
        called.append(name)
        return function(*args)

    return call


@marked(*compiles)
def test_settings_of_inductor_are_kept():
    with torch.no_grad():
        plain = torch.compile(Blocks(2))
        with hosim.offload(plain, X, **SMALL) as offloaded:
            fused = len(offloaded.plan.graph.ops)
        apart = torch.compile(Blocks(2), options={"max_fusion_size": 1})
        wanted = apart(X)
        with hosim.offload(apart, X, **SMALL) as offloaded:
            assert len(offloaded.plan.graph.ops) >= fused
            assert torch.equal(offloaded(X), wanted)


@marked(*compiles)
def test_the_compiled_model_is_guarded_while_it_is_offloaded():
    compiled = torch.compile(Blocks())
    with torch.no_grad():
        wanted = compiled(X)
        with hosim.offload(compiled, X, hardware=MACHINE, budget="50%") as offloaded:
            with pytest.raises(Exception, match="offloaded"):
                compiled(X)
            assert torch.equal(offloaded(X), wanted)
            with pytest.raises(InputError, match="belongs to an offloaded model"):
                hosim.offload(compiled, X, **SMALL)
        assert torch.equal(compiled(X), wanted)
        offloaded = hosim.offload(compiled, X, hardware=MACHINE, budget="50%")
        del offloaded
        gc.collect()
        assert torch.equal(compiled(X), wanted)


@marked(*compiles)
def test_generate_is_that_of_the_model_which_torch_does_not_compile_either():
    model, prompt = model_of("llama"), torch.arange(8)[None] + 3
    model.config.use_cache = model.generation_config.use_cache = True
    compiled = torch.compile(model)
    inputs = {"input_ids": prompt, "use_cache": False}
    with torch.no_grad():
        wanted = model.generate(
            prompt,
            max_new_tokens=5,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
        )
        logits = compiled(**inputs).logits
        with hosim.offload(compiled, inputs, **SMALL) as offloaded:
            assert torch.equal(
                offloaded.generate(prompt, max_new_tokens=5, do_sample=False), wanted
            )
            assert torch.equal(offloaded(**inputs).logits, logits)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"mode": "reduce-overhead"}, "CUDA graphs, which keep their addresses"),
        ({"mode": "max-autotune"}, "CUDA graphs, which keep their addresses"),
        ({"options": {"freezing": True}}, "freezing, which makes other parameters"),
        ({"options": {"cpp_wrapper": True}}, "cpp_wrapper, whose program is not Python"),
        ({"options": {"memory_planning": True}}, "memory_planning, which places tensors itself"),
        ({"dynamic": True}, "dynamic=True, and a plan is for fixed sizes"),
        ({"backend": "eager"}, r"another backend than inductor \(eager\)"),
        ({"backend": lambda module, inputs: module}, "another backend than inductor"),
    ],
)
def test_what_is_compiled_otherwise_is_refused(choices, said):
    with pytest.raises(InputError, match=f"the model is compiled .*{said}"):
        hosim.offload(torch.compile(Blocks(1), **choices), X, **SMALL)


class SharedBuffers(Blocks):
    """Two buffers in one memory, of which each call writes one."""

    def __init__(self):
        super().__init__(1)
        self.register_buffer("whole", torch.zeros(64))
        self.register_buffer("view", self.whole[:32])

    def forward(self, x):
        self.whole.add_(1)
        return super().forward(x) + self.view.sum()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_settings_of_the_process_shared_memory_and_a_missing_compiler_are_refused():
    from torch._inductor import config

    compiled = torch.compile(Blocks(1))
    with (
        config.patch(freezing=True),
        pytest.raises(InputError, match="the model is compiled with freezing"),
    ):
        hosim.offload(compiled, X, **SMALL)
    with pytest.raises(
        InputError,
        match=r"the program writes '(whole|view)', which shares its memory with another tensor",
    ):
        hosim.offload(torch.compile(SharedBuffers()), X, **SMALL)
    no_compiler = config.patch({"cpp.cxx": ("/no/compiler",), "force_disable_caches": True})
    with no_compiler, pytest.raises(InputError, match=r"torch\.compile cannot compile Blocks: "):
        hosim.offload(torch.compile(Blocks(3)), X * 2, **SMALL)
    assert torch.isfinite(compiled._orig_mod(X)).all()  # nothing was moved


@marked(*compiles)
def test_a_model_on_meta_with_a_loader():
    model = Blocks()
    with torch.device("meta"):
        empty = Blocks()
    state = dict(model.state_dict())
    with torch.no_grad():
        wanted = torch.compile(model)(X)
        with hosim.offload(
            torch.compile(empty), X, hardware=MACHINE, budget="50%", loader=state.__getitem__
        ) as offloaded:
            assert torch.equal(offloaded(X), wanted)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_compiled_parts_are_refused_and_leave_the_model():
    model = Blocks(2)
    model.layers[1] = torch.compile(model.layers[1])
    for whole in (model, torch.compile(model)):
        with pytest.raises(
            InputError, match=r"module 'layers.1' is compiled in place by torch.compile"
        ):
            hosim.offload(whole, X, **SMALL)
    model = Blocks(1)
    model.compile()
    with pytest.raises(InputError, match=r"the model is compiled in place by torch\.compile"):
        hosim.offload(model, X, **SMALL)
