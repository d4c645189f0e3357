"""Collectives of tensor and of expert parallelism, in order and to the byte, and FLOP, as torch has them for Mixtral on fake processes."""

import importlib

import pytest

from hosim.models.build import build

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
experts_of = pytest.importorskip("transformers.distributed.tensor_parallel")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZES |= {"vocab_size": 2004, "head_dim": 32, "num_experts_per_tok": 2}
THEIRS = {**SIZES, "num_local_experts": 8, "intermediate_size": 384}
_KINDS = {
    "c10d::allreduce_": "all_reduce",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
}
OURS = {**SIZES, "num_experts": 8, "moe_intermediate_size": 384}

STEP = {"model": "mixtral-8x7b", "config": OURS, "phase": "train", "sequence": 128, "attention": "masked", "optimizer": "none"}
STEP["dtype"] = "fp32"  # in 16 bits the weights of transformers' router for Mixtral are in 32 all the same


def made():
    """Experts one by one, whose products torch counts; its grouped ones it does not."""
    config = transformers.MixtralConfig(**THEIRS, attn_implementation="sdpa", experts_implementation="eager", use_cache=False)
    return transformers.MixtralForCausalLM(config).train()


class Collectives(TorchDispatchMode):
    """Kind and bytes of each collective."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")) and "wait" not in name and "wrap" not in name:
            x = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            self.seen.append((_KINDS.get(name, name), x.numel() * x.element_size()))
        return func(*args, **(kwargs or {}))


def plan(layers):
    """Every device has all tokens, a share of the heads and of the vocabulary, and the whole router."""
    whole = Replicate()
    found = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "lm_head": ColwiseParallel(input_layouts=whole),
    }
    for n in range(layers):
        at = f"model.layers.{n}.self_attn"
        hidden = {"hidden_states": whole}
        found[at] = PrepareModuleInput(input_kwarg_layouts=hidden, desired_input_kwarg_layouts=hidden)
        found |= {f"{at}.{name}_proj": ColwiseParallel() for name in "qkv"} | {f"{at}.o_proj": RowwiseParallel()}
    return found


def share_experts(module, mesh, devices):
    """As transformers shares Mixtral's experts: each device has some columns of every expert, and the rows of them in ``down_proj``."""
    for layer in module.model.layers:
        experts = layer.mlp.experts
        gate, up = experts.gate_up_proj.data.chunk(2, dim=1)
        own = torch.cat([part.chunk(devices, dim=1)[0] for part in (gate, up)], dim=1)
        experts.gate_up_proj = torch.nn.Parameter(own)
        experts.down_proj = torch.nn.Parameter(experts.down_proj.data.chunk(devices, dim=2)[0].contiguous())
        experts_of.MoeExpertsParallel().install_forward(experts, mesh)


@pytest.mark.parametrize("devices", [2, 4])
def test_collectives_and_flop_are_those_of_torch(devices, compared):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (devices,))
        torch.manual_seed(0)
        module = made()
        parallelize_module(module, mesh, plan(3))
        share_experts(module, mesh, devices)
        ids = torch.arange(128)[None]
        collectives, counter = Collectives(), FlopCounterMode(display=False)
        with collectives, counter:
            x = module.model.embed_tokens(ids)
            turns = module.model.rotary_emb(x, ids)
            for layer in module.model.layers:
                x = layer(hidden_states=x, attention_mask=None, position_ids=ids, position_embeddings=turns)
            logits = module.lm_head(module.model.norm(x))
            torch.nn.functional.cross_entropy(logits[0], ids[0] % logits.shape[-1]).backward()
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "tensor": devices})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.stream == "comm"]
    assert sent == collectives.seen
    compared("torch", f"tensor parallel experts over {devices}", "collectives", len(collectives.seen), len(sent))
    # torch counts products of sharded tensors whole, those of a device's own router and experts once, and no fused attention of the CPU
    counted = [op for op in graph.ops if op.kind != "attention"]
    flops = sum(op.flops if ".mlp." in op.name else op.flops * devices for op in counted)
    assert counter.get_total_flops() == flops
    compared("torch", f"tensor parallel experts over {devices}", "FLOP", counter.get_total_flops(), flops)


@pytest.mark.parametrize("devices", [2, 4])
def test_exchanges_of_expert_parallelism_are_those_of_torch(devices, compared, monkeypatch):
    """Transformers' all-to-all, each expert chosen by as many tokens."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = importlib.import_module("transformers.distributed.expert_parallel")
    monkeypatch.setattr(whole, "all_to_all_single", lambda out, counts, group: out.copy_(counts))  # other devices' counts are the same
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        meshes = init_device_mesh("cpu", (devices, 1), mesh_dim_names=("experts", "tensor"))
        torch.manual_seed(0)
        module = made()
        for layer in module.model.layers:
            experts, gate = layer.mlp.experts, layer.mlp.gate
            for name in ("gate_up_proj", "down_proj"):
                setattr(experts, name, torch.nn.Parameter(getattr(experts, name).data.chunk(devices)[0]))
            experts.num_experts //= devices
            experts.forward = whole.AllToAllEP(experts, meshes["experts"], meshes["tensor"])
            gate.forward = evenly(gate.forward)
        collectives, counter = Collectives(), FlopCounterMode(display=False)
        with collectives, counter:
            module(input_ids=torch.zeros(1, 128, dtype=torch.int64), labels=torch.zeros(1, 128, dtype=torch.int64)).loss.backward()
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "expert": devices})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.stream == "comm"]
    assert sent == collectives.seen
    compared("torch", f"expert parallel over {devices}", "collectives", len(collectives.seen), len(sent))
    flops = sum(op.flops for op in graph.ops if op.kind != "attention")
    assert counter.get_total_flops() == flops
    compared("torch", f"expert parallel over {devices}", "FLOP", counter.get_total_flops(), flops)


def evenly(forward):
    """A router with its weights, and experts in turn."""

    def chosen(x):
        logits, weights, experts = forward(x)
        return logits, weights, torch.arange(experts.numel()).view(experts.shape) % 8

    return chosen
