"""``hosim.offload``: a model under a plan is the model."""

import copy
import warnings

import pytest
from quick_cases import one_in

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.analysis.costmodel import op_durations  # noqa: E402
from hosim.analysis.costmodel.transfers import transfer_ns  # noqa: E402
from hosim.analysis.verifying import verify  # noqa: E402
from hosim.errors import ExecutionError, InfeasibleError, InputError  # noqa: E402

HARDWARE = "h100-80gb-sxm"
QUICK = {"effort": 0.0}
"""Parameters of the planner: what these tests assert does not depend on how good its plan is."""


class Blocks(torch.nn.Module):
    """Parameters, a buffer that each call updates, views, and two results in a mapping."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x, scale=None):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x.t().reshape(x.shape)
        x = self.norm(x)
        return {"x": x if scale is None else x * scale, "head": x[:, :3]}


def loss_of(model, inputs):
    return model(**inputs)["x"].square().mean()


@pytest.fixture
def inputs():
    return {"x": torch.linspace(-1, 1, 32 * 64).reshape(32, 64), "scale": torch.tensor(0.5)}


def test_inference_within_a_budget(inputs):
    model = Blocks().eval()
    with torch.no_grad():
        wanted = model(**inputs)
    before = copy.deepcopy(model.state_dict())
    with hosim.offload(
        model, inputs, hardware=HARDWARE, budget="60%", parameters=QUICK
    ) as offloaded:
        assert offloaded.predicted_peak_bytes <= offloaded.result.budget_bytes
        assert offloaded.plan.count("prefetch") > 0
        assert offloaded.predicted_stall_ns >= 0
        assert offloaded.predicted_makespan_ns > 0
        assert sum(p.untyped_storage().nbytes() for p in model.parameters()) < sum(
            p.nbytes for p in model.parameters()
        )
        with pytest.raises(InputError, match="this Blocks is offloaded"):
            model(**inputs)
        for _ in range(2):
            result = offloaded(**inputs)
            assert set(result) == {"x", "head"}
            assert all(torch.equal(result[key], wanted[key]) for key in wanted)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_positional_inputs(inputs):
    model = Blocks().eval()
    with (
        hosim.offload(model, inputs["x"], hardware=HARDWARE, parameters=QUICK) as offloaded,
        torch.no_grad(),
    ):
        result = offloaded(inputs["x"] + 1)
    with torch.no_grad():
        assert torch.equal(result["x"], model(inputs["x"] + 1)["x"])


@pytest.mark.parametrize("budget", one_in(2, ["40%", "50%"]))
def test_one_weight_at_a_time(budget):
    """There is room for one of three equal weights: each is allocated where the one before is
    dropped, and comes when that op has ended.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(3)))
    x = torch.linspace(-1, 1, 4 * 1024).reshape(4, 1024)
    wanted = model(x)
    machine = hosim.load_hardware(hosim.find_hardware(HARDWARE))
    with hosim.offload(model, x, hardware=machine, budget=budget, parameters=QUICK) as offloaded:
        (h2d,) = (channel for channel in machine.channels if channel.name == "h2d")
        alone = transfer_ns(4 << 20, h2d.bandwidth_bytes_per_s, h2d.latency_ns)
        assert offloaded.predicted_makespan_ns == 3 * alone + sum(
            op_durations(offloaded.plan.graph, machine)
        )
        assert offloaded.predicted_peak_bytes <= offloaded.result.budget_bytes < 2 * (4 << 20)
        assert verify(offloaded.plan, machine, offloaded.result.budget_bytes) == ()
        assert torch.equal(offloaded(x), wanted)


@pytest.mark.parametrize(
    "make", one_in(2, [torch.optim.AdamW, torch.optim.SGD]), ids=["adamw", "sgd"]
)
def test_training_steps_within_a_budget(inputs, make):
    """Three steps, in which batch norm's statistics, momentum and parameters go on from each
    other.
    """
    settings = {"lr": 0.1, "fused": True} | ({"momentum": 0.9} if make is torch.optim.SGD else {})
    eager, model = Blocks(), Blocks()
    theirs, ours = make(eager.parameters(), **settings), make(model.parameters(), **settings)
    with hosim.offload(
        model,
        inputs,
        hardware=HARDWARE,
        budget="70%",
        optimizer=ours,
        loss=loss_of,
        parameters=QUICK,
    ) as step:
        assert step.plan.count("prefetch") > 0
        for k in range(3):
            now = {**inputs, "x": inputs["x"] + k}
            loss = loss_of(eager, now)
            loss.backward()
            theirs.step()
            theirs.zero_grad()
            assert torch.equal(step(**now), loss.detach())
    assert all(
        torch.equal(value, eager.state_dict()[key]) for key, value in model.state_dict().items()
    )
    for mine, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert all(
            torch.equal(value, theirs.state[other][key]) for key, value in ours.state[mine].items()
        )


def test_inputs_that_share_a_storage_or_are_part_of_one(inputs):
    model = Blocks().eval()
    large = torch.arange(64 * 64).reshape(64, 64) / 4096
    part, turned = large[:32], large.t()[:32]
    with torch.no_grad():
        wanted = [model(part)["x"], model(turned)["x"]]
    with hosim.offload(
        model, inputs["x"], hardware=HARDWARE, budget="70%", parameters=QUICK
    ) as offloaded:
        assert [
            torch.equal(offloaded(x)["x"], other)
            for x, other in zip((part, turned), wanted, strict=True)
        ] == [True, True]

    class Two(torch.nn.Module):
        def forward(self, a, b):
            return (a @ b).relu() + a, a.sin() @ b

    one = torch.rand(64, 64)
    with hosim.offload(
        Two(), (one, one.clone()), hardware=HARDWARE, policy="layerwise"
    ) as offloaded:
        assert all(
            torch.equal(x, y) for x, y in zip(offloaded(one, one), Two()(one, one), strict=True)
        )


def test_an_input_that_the_model_writes(inputs):
    class Writes(torch.nn.Module):
        def forward(self, a):
            return a.add_(1) * 2

    example = torch.zeros(8, 8)
    with hosim.offload(Writes(), example.clone(), hardware=HARDWARE) as offloaded:
        a = example.clone()
        assert torch.equal(offloaded(a), torch.full((8, 8), 2.0))
        assert torch.equal(a, torch.ones(8, 8))
        with pytest.raises(InputError, match="written by the model"):
            offloaded(torch.zeros(16, 8)[:8])


def test_a_functional_program_updates_its_buffers():
    from hosim.on_torch.lower import capture

    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen += x.sum(0)
            return self.seen * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        functional = torch.export.export(
            Counts(), (torch.ones(3, 4),), strict=False
        ).run_decompositions()
    program = capture(functional, name="counts")
    assert any(op.kind == "copy" and op.mutates for op in program.graph.ops)
    seen = torch.ones(4)
    with torch.no_grad():
        (result,) = program.module(seen, torch.ones(3, 4))
    assert torch.equal(result, torch.full((4,), 8.0))
    assert torch.equal(seen, torch.full((4,), 4.0))


def test_after_a_failure_the_model_is_free_again(inputs, monkeypatch):
    model = Blocks().eval()
    with torch.no_grad():
        wanted = model(**inputs)["x"]
    with hosim.offload(
        model, inputs, hardware=HARDWARE, budget="60%", parameters=QUICK
    ) as offloaded:

        def fails(*_):
            raise RuntimeError("the copy engine is gone")

        monkeypatch.setattr(offloaded.executor.device, "move", fails)
        with pytest.raises(ExecutionError, match="the copy engine is gone"):
            offloaded(**inputs)
    monkeypatch.undo()
    with torch.no_grad():
        assert torch.equal(model(**inputs)["x"], wanted)


def test_a_plan_of_ones_own_and_other_policies(inputs):
    model = Blocks().eval()
    with torch.no_grad():
        wanted = model(**inputs)["x"]
    with hosim.offload(model, inputs, hardware=HARDWARE, policy="layerwise") as offloaded:
        assert torch.equal(offloaded(**inputs)["x"], wanted)
        plan = offloaded.plan
    with hosim.offload(model, inputs, hardware=HARDWARE, plan=plan) as offloaded:
        assert offloaded.plan is plan
        assert torch.equal(offloaded(**inputs)["x"], wanted)


def test_what_cannot_be_is_said(inputs):
    model = Blocks().eval()
    with pytest.raises(InfeasibleError, match="out of memory"):
        hosim.offload(model, inputs, hardware=HARDWARE, budget="1 KiB", parameters=QUICK)
    with pytest.raises(InputError, match="decides during the run"):
        hosim.offload(model, inputs, hardware=HARDWARE, policy="belady")
    with hosim.offload(
        model, inputs, hardware=HARDWARE, budget="80%", parameters=QUICK
    ) as offloaded:
        with pytest.raises(
            InputError,
            match=r"input 'x' is \(32, 64\) of torch.float64; it was captured with \(32, 64\)",
        ):
            offloaded(x=inputs["x"].double(), scale=inputs["scale"])
        with pytest.raises(InputError, match="expected the arguments x, scale, got x"):
            offloaded(x=inputs["x"])
    with pytest.raises(hosim.HosimError, match="closed"):
        offloaded(**inputs)

    class Asks(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(InputError, match="cannot export Asks"):
        hosim.offload(Asks(), torch.ones(3), hardware=HARDWARE)
    slow = torch.optim.AdamW(model.parameters())
    with pytest.raises(InputError, match="fused=True"):
        hosim.offload(
            model, inputs, hardware=HARDWARE, optimizer=slow, loss=loss_of, parameters=QUICK
        )


def test_an_encoder_is_refused_where_torch_fuses_it():
    """Eager torch takes one fused kernel without gradients, and torch.export the ops."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, 32)
    by_ops = model(x).detach()
    with pytest.raises(InputError, match="set_fastpath_enabled"):
        hosim.offload(model, x, hardware=HARDWARE, policy="layerwise")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with hosim.offload(model, x, hardware=HARDWARE, policy="layerwise") as offloaded:
            assert torch.equal(offloaded(x), by_ops)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
