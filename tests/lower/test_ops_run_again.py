"""Plans that run ops again: their nodes stand in the graph again, and the results are the model's
to the bit.
"""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import hosim  # noqa: E402
from hosim.cache_plan import CacheOp, Plan  # noqa: E402
from hosim.edits import Edits, Recompute, why_once  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import GraphError, PlanError  # noqa: E402
from hosim.on_torch.lower import barriers, capture, insert  # noqa: E402

HARDWARE = "h100-80gb-sxm"
X = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


class Views(torch.nn.Module):
    """Views, several results of one op, a part that is written in place, and a random op."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.drop = torch.nn.Dropout(0.25)

    def forward(self, x):
        a = torch.relu(self.first(x))
        turned = a.t()
        values, places = torch.sort(a, dim=1)
        b = self.drop(torch.tanh(self.second(values)))
        left, right = (b + turned.t()).split(8, dim=1)
        c = torch.sin(left) * 2
        c.add_(right)
        return torch.cat([c, torch.gather(a, 1, places)[:, :8]], dim=1) + turned.t().sin()


def loss_of(model, inputs):
    return model(**inputs).square().mean()


def repeated(graph, chosen):
    """Edits that run some ops again before the last op that uses a result."""
    found = []
    for n, op in enumerate(chosen):
        last = max((graph.users[t][-1] for t in op.outputs), default=0)
        if not why_once(graph, op) and op.outputs and last > graph.op_index[op.name] + 1:
            found.append(Recompute(op.name, graph.ops[last].name, f"{op.name}~{n}"))
            try:
                Edits(graph, (), tuple(found)).graph()
            except GraphError:  # its inputs were written since
                found.pop()
    return Edits(graph, (), tuple(found))


def made():
    model = Views()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize("seed", range(6))
def test_training_steps(seed):
    models, optimizers = zip(made(), made(), strict=True)
    with hosim.offload(
        models[1],
        {"x": X},
        hardware=HARDWARE,
        optimizer=optimizers[1],
        loss=loss_of,
        policy="layerwise",
    ) as step:
        graph = step.program.graph
    generator = random.Random(seed)
    chosen = list(graph.ops) if seed == 0 else generator.sample(graph.ops, len(graph.ops) // 2)
    edits = repeated(graph, chosen)
    plan = Plan(edits.graph(), "again", edits=edits)
    assert plan.recomputes > 3
    with hosim.offload(
        models[1], {"x": X}, hardware=HARDWARE, optimizer=optimizers[1], loss=loss_of, plan=plan
    ) as step:
        assert len(step.lowered.op_of) == len(plan.graph.ops)
        for k in range(2):
            torch.manual_seed(seed + k)
            loss = loss_of(models[0], {"x": X + k})
            loss.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            torch.manual_seed(seed + k)
            assert torch.equal(step(x=X + k), loss)
    assert all(
        torch.equal(p, q)
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )


class Chain(torch.nn.Module):
    def forward(self, x):
        a = x.sin()
        turned = a.t()
        b = turned.cos()
        return b + turned, x.exp()


def chain():
    return capture(torch.export.export(Chain(), (X,), strict=False), name="chain")


def test_a_graph_with_an_op_that_runs_again_node_by_node():
    """Sin runs again for the sum: the view that it takes is made again, and a cache op finds the
    new tensor.
    """
    program = chain()
    edits = Edits(program.graph, (), (Recompute("sin", "add", "sin~2"),))
    graph = edits.graph()
    t = graph.tensor_index["sin@sin~2"]
    after = graph.op_index["sin~2"]
    moves = (
        CacheOp("store", t, "hbm", "ddr", after),
        CacheOp("detach", t, "hbm", None, after),
        CacheOp("prefetch", t, "ddr", "hbm", after),
    )
    lowered = insert(
        program,
        Plan(graph, "again", (*moves, CacheOp("detach", t, "ddr", None, after)), edits=edits),
    )
    assert [(node.name, *map(str, node.args)) for node in lowered.module.graph.nodes] == [
        ("x",),
        ("sin", "x"),
        ("t", "sin"),
        ("cos", "t"),
        ("sin_1", "x"),
        ("store_op_0", "sin_1", "hbm", "ddr", "0"),
        ("detach_op_1", "sin_1", "hbm", "1"),
        ("prefetch_op_2", "sin_1", "ddr", "hbm", "2"),
        ("detach_op_3", "prefetch_op_2", "ddr", "3"),
        ("t_1", "prefetch_op_2"),
        ("add", "cos", "t_1"),
        ("exp", "x"),
        ("output", "(add, exp)"),
    ]
    assert lowered.op_of == {"sin": 0, "cos": 1, "sin_1": 2, "add": 3, "exp": 4}
    assert lowered.tensor_of["t"] == graph.tensor_index["sin"]
    assert lowered.tensor_of["t_1"] == lowered.tensor_of["sin_1"] == t
    assert {barrier.tensor for barrier in barriers(lowered)} == {"sin@sin~2"}
    assert all(torch.equal(a, b) for a, b in zip(lowered.module(X), Chain()(X), strict=True))


def test_peaks_are_those_of_the_replay():
    """Dropping a tensor and making it again needs less at once, and no cache op."""
    program = chain()
    edits = Edits(program.graph, (), (Recompute("sin", "add", "sin~2"),))
    hardware = hosim.load_hardware(hosim.find_hardware(HARDWARE))
    plans = Plan(program.graph), Plan(edits.graph(), edits=edits)
    peaks = [
        replay(plan, hardware, account="program").allocator.peak_allocated_bytes for plan in plans
    ]
    assert peaks[1] <= peaks[0]
    with hosim.offload(Chain(), X, hardware=hardware, plan=plans[1], name="chain") as offloaded:
        assert offloaded.predicted_peak_bytes == peaks[1]
        assert all(torch.equal(a, b) for a, b in zip(offloaded(X), Chain()(X), strict=True))


class Written(torch.nn.Module):
    def forward(self, x):
        a = x.sin()
        b = a.cos()
        a.add_(1)
        values, places = torch.sort(x)
        values.add_(1)
        return a + b, values, places * 2


def written(op, before):
    program = capture(torch.export.export(Written(), (X,), strict=False), name="written")
    edits = Edits(program.graph, (), (Recompute(op, before, f"{op}~2"),))
    return program, Plan(edits.graph(), edits=edits)


def test_a_result_that_was_written_in_place_is_not_replaced():
    program, plan = written("sin", "add")
    assert all(
        torch.equal(a, b)
        for a, b in zip(insert(program, plan).module(X), Written()(X), strict=True)
    )


def test_an_op_of_which_only_some_results_could_be_replaced_is_refused():
    with pytest.raises(PlanError, match="op 'sort' runs again for some of its results alone"):
        insert(*written("sort", "mul"))
