"""FSDP2: parameters are gathered and gradients reduced by ops of a captured step, with the bits of
torch's own.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import distributed  # noqa: E402

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch is built without distributed"
)

from layers import AbsentGpu  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.on_torch.lower import STREAM, Shards, training  # noqa: E402

SMALL = {"hardware": "h100-80gb-sxm", "parameters": {"effort": 0}}
X = torch.linspace(-1, 1, 32).reshape(4, 8)


@pytest.fixture
def alone():
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def loss_of(model, inputs):
    return model(**inputs).square().mean()


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())


def made(**settings):
    model = Two()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model.first, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def test_modules_are_gathered_where_torch_gathers_them(alone):
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        exchanged = [
            op.name.rstrip("_0123456789") for op in step.plan.graph.ops if op.stream == STREAM
        ]
        # forward: the root's weight stays until backward; the first layer's two are resharded, and
        # only its input's gradient would need its weight again, which nobody asks for. Backward: a
        # gradient of each
        assert exchanged == ["all_gather"] * 3 + ["reduce_scatter"] * 3
        wanted = loss_of(Two(), {"x": X})
        assert torch.equal(step(x=X), wanted)
        with pytest.raises(InputError, match="offloaded"):
            model(X)
        with pytest.raises(InputError, match="offloaded"):
            model.first(X)
        with pytest.raises(InputError, match="offloaded"):
            next(model.parameters()).full_tensor()
    assert torch.isfinite(loss_of(model, {"x": X}))


def test_a_resharded_module_is_gathered_again_for_backward(alone):
    model = Two()
    mesh = init_device_mesh("cpu", (1,))
    for module in (model.second, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        exchanged = [
            op.name.rstrip("_0123456789") for op in step.plan.graph.ops if op.stream == STREAM
        ]
        # the first layer's weight and bias, the second's; then that again for the gradient of its
        # input; and the three gradients
        assert exchanged == ["all_gather"] * 4 + ["reduce_scatter"] * 3


def test_what_is_exchanged_in_another_way_is_refused_before_anything_moves(alone):
    def refused(model, words):
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
        before = [p.detach().clone() for p in parameters]
        with pytest.raises(InputError, match=words):
            hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL)
        assert all(torch.equal(p, kept) for p, kept in zip(parameters, before, strict=True))

    refused(
        made(offload_policy=CPUOffloadPolicy(pin_memory=False)),
        "the model is sharded by FSDP with an offload policy",
    )
    model = made()
    model.set_requires_gradient_sync(False)
    refused(model, r"sharded by FSDP with set_requires_gradient_sync\(False\)")
    model = made()
    model.first.set_gradient_divide_factor(3.0)
    refused(
        model,
        "the model is sharded by FSDP with a factor for gradients|first is sharded by FSDP with a "
        "factor for gradients",
    )
    model = made()
    model.first.weight.register_hook(lambda gradient: gradient)
    refused(model, "first is sharded by FSDP with hooks of parameters")
    model = made()
    model(X)
    refused(
        model, r"the model is sharded by FSDP with its parameters gathered: call reshard\(\) first"
    )
    model.reshard()
    assert Shards(model)
    refused(
        fully_shard(Twice(), mesh=init_device_mesh("cpu", (1,))),
        "a module sharded by FSDP is called twice in a step",
    )
    with pytest.raises(InputError, match=r"FSDPTwo is sharded by FSDP, .*; offload it unsharded"):
        hosim.offload(made(), {"x": X}, **SMALL)


def one_dimension(**settings):
    """A layer sharded over one dimension of processes."""
    return fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (1,)), **settings)


def together():
    model = Two()
    fully_shard([model.first, model.second], mesh=init_device_mesh("cpu", (1,)))
    return model


def two_dimensions():
    return fully_shard(
        torch.nn.Linear(8, 8),
        mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "shards")),
    )


def changed(name, *arguments):
    model = one_dimension()
    getattr(model, name)(*arguments)
    return model


class Collective:
    """Stands for collectives of the user's own."""


def with_an_all_reduce_hook():
    model = one_dimension()
    model._get_fsdp_state()._fsdp_param_groups[0]._all_reduce_hook = lambda gradient: gradient
    return model


def sharded_already():
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shards", "parts"))
    layer = torch.nn.Linear(8, 8)
    parallelize_module(layer, mesh["parts"], ColwiseParallel())
    return fully_shard(layer, mesh=mesh["shards"])


def with_its_own_gathering():
    model = one_dimension()
    model.weight._local_tensor.fsdp_pre_all_gather = lambda mesh: None
    return model


def loaded():
    model = one_dimension()
    model.load_state_dict(
        {name: value.clone() for name, value in model.state_dict().items()}, assign=True
    )
    Shards(model)  # torch takes these over by itself
    model.weight._local_tensor = model.weight._local_tensor.clone()
    return model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (together, "several modules in one group"),
        (two_dimensions, "a mesh of more than one dimension"),
        (
            partial(one_dimension, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16)),
            "gradients of a dtype that torch scales",
        ),
        (
            partial(changed, "set_force_sum_reduction_for_comms", True),
            "sums forced for its collectives",
        ),
        (
            partial(changed, "set_reduce_scatter_unused_params", True),
            "gradients of unused parameters",
        ),
        (with_an_all_reduce_hook, "an all-reduce hook"),
        (partial(changed, "set_custom_all_gather", Collective()), "collectives of its own"),
        (partial(changed, "set_custom_reduce_scatter", Collective()), "collectives of its own"),
        (
            partial(one_dimension, shard_placement_fn=lambda p: Shard(p.ndim - 1)),
            "parameters sharded along another dimension",
        ),
        (sharded_already, "parameters that were sharded already"),
        (with_its_own_gathering, "parameters that gather in a way of their own"),
        (loaded, "shards loaded since it ran: run its forward once"),
    ],
)
def test_each_other_way_of_exchanging_is_refused(alone, model, what):
    Shards(one_dimension())
    with pytest.raises(
        InputError, match=f"is sharded by FSDP with {what}.*, which a captured step does not follow"
    ):
        Shards(model())


def test_resharding_to_fewer_processes_is_refused():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        Shards(fully_shard(torch.nn.Linear(8, 8), mesh=mesh, reshard_after_forward=True))
        model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh, reshard_after_forward=2)
        with pytest.raises(
            InputError, match="is sharded by FSDP with reshard_after_forward to fewer processes"
        ):
            Shards(model)
    finally:
        distributed.destroy_process_group()


def test_a_setting_that_changes_later_is_refused_at_the_call(alone):
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with hosim.offload(model, {"x": X}, optimizer=optimizer, loss=loss_of, **SMALL) as step:
        model.set_requires_gradient_sync(False)
        for call in (step, step.backward):
            with pytest.raises(InputError, match=r"with set_requires_gradient_sync\(False\)"):
                call(x=X)
        model.set_requires_gradient_sync(True)
        step(x=X)


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (1,)))

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_processes(tmp_path, world):
    # with three processes sums may be added in another order: they train by plain SGD, and are
    # compared within rounding
    command = [sys.executable, str(Path(__file__).with_name("shards.py"))]
    cases = [] if world == 2 else ["kept"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "store"), *cases],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    texts = [process.communicate(timeout=900)[0] for process in processes]
    wanted = [
        f"{case} equal" for case in cases or ("plain", "kept", "mixed", "half", "checkpointed")
    ]
    assert [[line for line in text.splitlines() if line.endswith("equal")] for text in texts] == [
        wanted
    ] * world, texts[0][-2000:]


@pytest.mark.filterwarnings("ignore:FSDP")
@pytest.mark.parametrize("is_training", [True, False])
def test_what_shards_as_the_first_fsdp_did_is_refused(alone, is_training):
    model = FullyShardedDataParallel(Two(), device_id=torch.device("cpu"))
    before = [p.detach().clone() for p in model.parameters()]
    how = (
        {"optimizer": torch.optim.AdamW(model.parameters(), fused=True), "loss": loss_of}
        if is_training
        else {}
    )
    with pytest.raises(
        InputError, match=r"^FullyShardedDataParallel is sharded by FSDP, .*; offload it unsharded$"
    ):
        hosim.offload(model, {"x": X}, **how, **SMALL)
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))


def test_a_model_that_is_sharded_where_it_will_not_run_is_refused(alone):
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with pytest.raises(
        InputError, match=r"sharded by FSDP on the CPU, and the plan is for cuda:0; shard it there$"
    ):
        training(model, {"x": X}, optimizer, loss_of, "two", AbsentGpu())
