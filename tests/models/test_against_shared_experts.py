"""Collectives of tensor and of expert parallelism, in order and to the byte, and FLOP, as torch has
them for Mixtral on fake processes.
"""

import importlib

import pytest

from hosim.io.models import build

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
experts_of = pytest.importorskip("transformers.distributed.tensor_parallel")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SIZES |= {"vocab_size": 2004, "head_dim": 32, "num_experts_per_tok": 2}
THEIRS = {**SIZES, "num_local_experts": 8, "intermediate_size": 384}
_KINDS = {
    "c10d::allreduce_": "all_reduce",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
}
OURS = {**SIZES, "num_experts": 8, "moe_intermediate_size": 384}

STEP = {
    "model": "mixtral-8x7b",
    "config": OURS,
    "phase": "train",
    "sequence": 128,
    "attention": "masked",
    "optimizer": "none",
}


def made(dtype=torch.float32):
    """Experts one by one, whose products torch counts; its grouped ones it does not."""
    config = transformers.MixtralConfig(
        **THEIRS, attn_implementation="sdpa", experts_implementation="eager", use_cache=False
    )
    return transformers.MixtralForCausalLM(config).to(dtype).train()


class Collectives(TorchDispatchMode):
    """Kind and bytes of each collective."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if (
            name.startswith(("c10d::", "_c10d_functional::"))
            and "wait" not in name
            and "wrap" not in name
        ):
            x = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            if "_base_" in name:  # of which both the whole and a part are given
                x = max(args[:2], key=torch.Tensor.numel)
            self.seen.append((_KINDS.get(name, name), x.numel() * x.element_size()))
        return func(*args, **(kwargs or {}))


def plan(layers, own=None):
    """Every device has all tokens (``own``: some of them between products), a share of the heads
    and the vocabulary, and the router.
    """
    whole = Replicate()
    between = own or whole
    found = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=between),
        "lm_head": ColwiseParallel(input_layouts=between),
    }
    for n in range(layers):
        at = f"model.layers.{n}.self_attn"
        found[at] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between},
            desired_input_kwarg_layouts={"hidden_states": whole},
        )
        found |= {f"{at}.{name}_proj": ColwiseParallel() for name in "qkv"} | {
            f"{at}.o_proj": RowwiseParallel(output_layouts=between)
        }
        if own:
            norms = ("input_layernorm", "post_attention_layernorm")
            found |= {f"model.layers.{n}.{norm}": SequenceParallel() for norm in norms} | {
                "model.norm": SequenceParallel()
            }
    return found


def share_experts(module, mesh, devices, own=None):
    """As transformers shares Mixtral's experts: each device has some columns of every expert, and
    the rows of them in ``down_proj``.

    With ``own`` tokens of all are gathered before the router, and what the experts give is summed
    for each device's, as in torchtitan.
    """
    for layer in module.model.layers:
        experts = layer.mlp.experts
        gate, up = experts.gate_up_proj.data.chunk(2, dim=1)
        columns = [part.chunk(devices, dim=1)[0] for part in (gate, up)]
        experts.gate_up_proj = torch.nn.Parameter(torch.cat(columns, dim=1))
        experts.down_proj = torch.nn.Parameter(
            experts.down_proj.data.chunk(devices, dim=2)[0].contiguous()
        )
        if own:
            layer.mlp.forward = of_all_tokens(layer.mlp.forward, mesh, own)
        else:
            experts_of.MoeExpertsParallel().install_forward(experts, mesh)


def of_all_tokens(forward, mesh, own):
    def gathered(x):
        x = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [own])
        whole = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return (
            DTensor.from_local(forward(whole), mesh, [Partial()])
            .redistribute(placements=[own])
            .to_local()
        )

    return gathered


@pytest.mark.parametrize("own", [None, Shard(1)], ids=["all tokens", "own tokens"])
@pytest.mark.parametrize("devices", [2, 4])
def test_collectives_and_flop_are_those_of_torch(devices, own, compared):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (devices,))
        torch.manual_seed(0)
        module = made(torch.bfloat16)  # the weights of whose router are in 32 bits all the same
        parallelize_module(module, mesh, plan(3, own))
        share_experts(module, mesh, devices, own)
        ids = torch.arange(128)[None]
        collectives, counter = Collectives(), FlopCounterMode(display=False)
        with collectives, counter:
            x = module.model.embed_tokens(ids)
            turns = module.model.rotary_emb(x, ids)
            for layer in module.model.layers:
                x = layer(
                    hidden_states=x,
                    attention_mask=None,
                    position_ids=ids,
                    position_embeddings=turns,
                )
            logits = module.lm_head(module.model.norm(x))
            torch.nn.functional.cross_entropy(logits[0], ids[0] % logits.shape[-1]).backward()
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "tensor": devices, "sequence_parallel": own is not None})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.stream == "comm"]
    if own:  # torch leaves the gradients of norms and routers to be added up by whoever uses them
        assert sent.pop() == ("all_reduce", (7 * 256 + 3 * 8 * 256) * 2)
    assert sent == [
        (kind, size * (devices if kind == "all_gather" else 1)) for kind, size in collectives.seen
    ]
    compared(
        "torch",
        f"tensor parallel experts over {devices}",
        "collectives",
        len(collectives.seen),
        len(sent),
    )
    # torch counts products of sharded tensors whole, those of a device's own router and experts
    # once, and no fused attention of the CPU
    counted = [op for op in graph.ops if op.kind != "attention"]
    flops = sum(op.flops if ".mlp." in op.name else op.flops * devices for op in counted)
    assert counter.get_total_flops() == flops
    compared(
        "torch", f"tensor parallel experts over {devices}", "FLOP", counter.get_total_flops(), flops
    )


@pytest.mark.parametrize("devices", [2, 4])
def test_exchanges_of_expert_parallelism_are_those_of_torch(devices, compared, monkeypatch):
    """Transformers' all-to-all, each expert chosen by as many tokens."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = importlib.import_module("transformers.distributed.expert_parallel")
    monkeypatch.setattr(
        whole, "all_to_all_single", lambda out, counts, group: out.copy_(counts)
    )  # other devices' counts are the same
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        meshes = init_device_mesh("cpu", (devices, 1), mesh_dim_names=("experts", "tensor"))
        torch.manual_seed(0)
        module = made()
        for layer in module.model.layers:
            experts, gate = layer.mlp.experts, layer.mlp.gate
            for name in ("gate_up_proj", "down_proj"):
                setattr(
                    experts, name, torch.nn.Parameter(getattr(experts, name).data.chunk(devices)[0])
                )
            experts.num_experts //= devices
            experts.forward = whole.AllToAllEP(experts, meshes["experts"], meshes["tensor"])
            gate.forward = evenly(gate.forward)
        collectives, counter = Collectives(), FlopCounterMode(display=False)
        with collectives, counter:
            module(
                input_ids=torch.zeros(1, 128, dtype=torch.int64),
                labels=torch.zeros(1, 128, dtype=torch.int64),
            ).loss.backward()
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "expert": devices, "dtype": "fp32"})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.stream == "comm"]
    assert sent == collectives.seen
    compared(
        "torch", f"expert parallel over {devices}", "collectives", len(collectives.seen), len(sent)
    )
    flops = sum(op.flops for op in graph.ops if op.kind != "attention")
    assert counter.get_total_flops() == flops
    compared("torch", f"expert parallel over {devices}", "FLOP", counter.get_total_flops(), flops)


def test_sharded_experts_that_several_devices_have(compared, monkeypatch):
    """FSDP2 over 4 devices, of which each second one has the same experts: a unit of their own over
    2, as in torchtitan.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = importlib.import_module("transformers.distributed.expert_parallel")
    monkeypatch.setattr(whole, "all_to_all_single", lambda out, counts, group: out.copy_(counts))
    monkeypatch.setitem(_KINDS, "c10d::_allgather_base_", "all_gather")
    monkeypatch.setitem(_KINDS, "c10d::_reduce_scatter_base_", "reduce_scatter")
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        meshes = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("same", "experts", "tensor"))
        everyone = init_device_mesh("cpu", (4,))
        torch.manual_seed(0)
        module = made()
        for layer in module.model.layers:
            experts, gate = layer.mlp.experts, layer.mlp.gate
            for name in ("gate_up_proj", "down_proj"):
                setattr(experts, name, torch.nn.Parameter(getattr(experts, name).data.chunk(2)[0]))
            experts.num_experts //= 2
            experts.forward = whole.AllToAllEP(experts, meshes["experts"], meshes["tensor"])
            gate.forward = evenly(gate.forward)
            fully_shard(experts, mesh=meshes["same"])
            fully_shard(layer, mesh=everyone)
        fully_shard(module, mesh=everyone)
        collectives = Collectives()
        with collectives:
            module(
                input_ids=torch.zeros(1, 128, dtype=torch.int64),
                labels=torch.zeros(1, 128, dtype=torch.int64),
            ).loss.backward()
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "data": 4, "expert": 2, "zero": 3, "dtype": "fp32"})
    found = {}
    for op in graph.ops:
        if op.kernel in ("all_gather", "reduce_scatter", "all_to_all"):
            found.setdefault(op.kernel, []).append(op.sizes[1])
    theirs = {kind: [size for each, size in collectives.seen if each == kind] for kind in found}
    assert found == theirs
    compared(
        "torch",
        "FSDP2 and expert parallel over 4",
        "collectives",
        len(collectives.seen),
        sum(map(len, found.values())),
    )


def evenly(forward):
    """A router with its weights, and experts in turn."""

    def chosen(x):
        logits, weights, experts = forward(x)
        return logits, weights, torch.arange(experts.numel()).view(experts.shape) % 8

    return chosen
