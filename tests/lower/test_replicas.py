"""DistributedDataParallel: the exchanges of a captured step run, and give eager's bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower import STREAM, Replicas  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "parameters": {"effort": 0}}
X = torch.linspace(-1, 1, 32).reshape(4, 8)

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch is built without distributed"
)


@pytest.fixture
def alone():
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def loss_of(model, inputs):
    return model(**inputs).square().mean()


class One(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 8)
        self.other = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.layer(x))


def made():
    model = DistributedDataParallel(One())
    parameters = [p for name, p in model.named_parameters() if not name.startswith("module.other")]
    return model, torch.optim.SGD(parameters, lr=0.1, fused=True)


def test_exchanges_are_ops_on_a_stream_of_their_own(alone):
    model, optimizer = made()
    with hosim.offload(model, X, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        assert step.plan.graph.name == "One"
        ops = [op for op in step.plan.graph.ops if op.stream == STREAM]
        nodes = {
            node.name
            for node in step.program.module.graph.nodes
            if getattr(node.target, "__module__", "") == "hosim_step"
        }
        assert {op.name for op in ops} == nodes
        assert [op.name.rstrip("_0123456789") for op in ops] == ["broadcast"] * 3 + [
            "all_reduce"
        ] * 4
        assert all(op.mutates for op in ops)
        wanted = loss_of(One(), {"x": X})
        assert torch.equal(step(x=X), wanted)


def test_what_exchanges_in_another_way_is_refused(alone):
    model, optimizer = made()
    more = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    with pytest.raises(
        InputError, match="a parameter under DistributedDataParallel gets no gradient"
    ):
        hosim.offload(model, {"x": X}, optimizer=more, loss=loss_of, **SMALL)
    with pytest.raises(
        InputError, match="DistributedDataParallel exchanges tensors with other processes"
    ):
        hosim.offload(
            torch.nn.Sequential(model), {"input": X}, optimizer=optimizer, loss=loss_of, **SMALL
        )
    with pytest.raises(InputError, match="DistributedDataParallel exchanges tensors"):
        hosim.offload(model.eval(), X, **SMALL)
    model._comm_hooks = [(lambda *_: None, None)]  # as register_comm_hook leaves it
    with pytest.raises(InputError, match="DistributedDataParallel has a communication hook"):
        Replicas(model)


class Late:
    """An exchange whose result is there once it is waited for, and nothing before: what used it too
    early would compute with it.
    """

    def __init__(self):
        self.log = []

    def __call__(self, gradient, group=None, async_op=False):
        assert async_op
        self.log.append("begin")
        result = gradient.clone()
        gradient.fill_(torch.nan)
        return LateWork(self.log, gradient, result)


class LateWork:
    def __init__(self, log, gradient, result):
        self.log, self.gradient, self.result = log, gradient, result

    def wait(self):
        self.log.append("wait")
        self.gradient.copy_(self.result)


def test_exchanges_run_beside_the_rest_of_backward(alone, monkeypatch):
    """All four gradients are under way before the first is waited for, where the update, a copy or
    the caller uses it.
    """
    late = Late()
    monkeypatch.setattr(distributed, "all_reduce", late)
    model, optimizer = made()
    model.module.other.requires_grad_(False)
    twin = One()
    twin_optimizer = torch.optim.SGD(
        [p for name, p in twin.named_parameters() if not name.startswith("other")],
        lr=0.1,
        fused=True,
    )
    with hosim.offload(model, X, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        for i in range(3):
            wanted = loss_of(twin, {"x": X})
            wanted.backward()
            twin_optimizer.step()
            twin_optimizer.zero_grad()
            if i < 2:
                assert torch.equal(step(x=X), wanted)
            else:
                assert torch.equal(step.backward(x=X), wanted)
                assert late.log[-4:] == ["wait"] * 4
                step.optimizer_step()
            assert late.log == (["begin"] * 4 + ["wait"] * 4) * (i + 1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.state_dict().values(), twin.state_dict().values(), strict=True)
    )


@pytest.mark.long
def test_two_processes(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("replicas.py"))]
    processes = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=300)[0] for process in processes]
    assert [text.strip() for text in texts] == ["equal", "equal"]
