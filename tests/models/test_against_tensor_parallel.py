"""Collectives of tensor with sequence parallelism, in order and to the byte, and FLOP, as torch has
them for Llama on fake processes.
"""

import pytest

from hosim.io.models import build

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
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
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SIZES |= {"vocab_size": 8004, "head_dim": 64}
_KINDS = {
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_reduce": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
}


class Collectives(TorchDispatchMode):
    """Kind and bytes of each collective, those of all devices together."""

    def __init__(self, devices):
        super().__init__()
        self.devices, self.seen = devices, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kind = _KINDS.get(func._schema.name)
        if kind:
            of_units = func._schema.name.startswith("c10d::")  # has both sides of it
            size = max(x.numel() * x.element_size() for x in args[: 1 + of_units])
            gathers = kind == "all_gather" and not of_units
            self.seen.append((kind, size * (self.devices if gathers else 1)))
        return func(*args, **(kwargs or {}))


def plan(layers):
    """As torchtitan shares Llama: tokens are a device's own between products, and are gathered once
    for the products of one input.
    """
    own, whole = Shard(1), Replicate()
    found = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=own),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=own),
    }
    for n in range(layers):
        at = f"model.layers.{n}."
        found |= {
            f"{at}{norm}": SequenceParallel()
            for norm in ("input_layernorm", "post_attention_layernorm")
        }
        hidden = {"hidden_states": own}, {"hidden_states": whole}
        found[f"{at}self_attn"] = PrepareModuleInput(
            input_kwarg_layouts=hidden[0], desired_input_kwarg_layouts=hidden[1]
        )
        found[f"{at}mlp"] = PrepareModuleInput(input_layouts=(own,), desired_input_layouts=(whole,))
        first = (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        )
        found |= {f"{at}{name}": ColwiseParallel() for name in first}
        found |= {
            f"{at}{name}": RowwiseParallel(output_layouts=own)
            for name in ("self_attn.o_proj", "mlp.down_proj")
        }
    return found


@pytest.mark.parametrize("devices", [2, 4])
def test_collectives_and_flop_are_those_of_torch(devices, compared):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    before = torch.get_default_dtype()
    try:
        mesh = init_device_mesh("cpu", (devices,))
        with FakeTensorMode(allow_non_fake_inputs=True):
            torch.set_default_dtype(torch.bfloat16)
            config = transformers.LlamaConfig(**SIZES, attn_implementation="sdpa", use_cache=False)
            module = transformers.LlamaForCausalLM(config).train()
            torch.set_default_dtype(before)
            parallelize_module(module, mesh, plan(3))
            ids, places = torch.zeros(1, 128, dtype=torch.int64), torch.arange(128)[None]
            turns = module.model.rotary_emb(torch.zeros(1, 128, 512, dtype=torch.bfloat16), places)
            collectives, counter = Collectives(devices), FlopCounterMode(display=False)
            with collectives, counter:
                x = module.model.embed_tokens(ids)
                for layer in (
                    module.model.layers
                ):  # the model itself counts the places of a device's own tokens
                    x = layer(
                        hidden_states=x,
                        attention_mask=None,
                        position_ids=places,
                        position_embeddings=turns,
                    )
                logits = module.lm_head(module.model.norm(x))
                torch.nn.functional.cross_entropy(logits[0].float(), ids[0]).backward()
    finally:
        torch.set_default_dtype(before)
        dist.destroy_process_group()
    parameters = {
        "model": "llama-3.1-8b",
        "config": SIZES,
        "phase": "train",
        "sequence": 128,
        "attention": "masked",
        "optimizer": "none",
    }
    graph = build("x", {**parameters, "tensor": devices, "sequence_parallel": True})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.stream == "comm"]
    assert sent[:-1] == collectives.seen
    assert sent[-1] == (
        "all_reduce",
        7 * 512 * 2,
    )  # torch leaves the gradients of norms to be added up by whoever uses them
    compared(
        "torch",
        f"tensor and sequence parallel over {devices}",
        "collectives",
        len(collectives.seen),
        len(sent) - 1,
    )
    # torch counts products of sharded tensors whole, and not the CPU's fused attention
    flops = sum(op.flops for op in graph.ops if op.kind != "attention") * devices
    compared(
        "torch",
        f"tensor and sequence parallel over {devices}",
        "FLOP",
        counter.get_total_flops(),
        flops,
    )


def test_collectives_of_fsdp2_with_both_are_those_of_torch(compared):
    """On 4 x 2 processes, whose parameters have contents, as a mesh cannot be joined of fakes."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("data", "tensor"))
        config = transformers.LlamaConfig(**SIZES, attn_implementation="sdpa", use_cache=False)
        module = transformers.LlamaForCausalLM(config).train()
        parallelize_module(module, mesh["tensor"], plan(3))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in [*module.model.layers, module]:
            fully_shard(layer, mesh=mesh["data"], mp_policy=policy)
        ids, places = torch.zeros(1, 128, dtype=torch.int64), torch.arange(128)[None]
        turns = module.model.rotary_emb(torch.zeros(1, 128, 512, dtype=torch.bfloat16), places)

        def forward(x):
            x = module.model.embed_tokens(x)
            for layer in module.model.layers:
                x = layer(
                    hidden_states=x,
                    attention_mask=None,
                    position_ids=places,
                    position_embeddings=turns,
                )
            return module.lm_head(module.model.norm(x)).clone()

        module.forward = forward
        with Collectives(2) as collectives:
            torch.nn.functional.cross_entropy(module(ids)[0].float(), ids[0]).backward()
    finally:
        dist.destroy_process_group()
    parameters = {"model": "llama-3.1-8b", "config": SIZES, "phase": "train", "sequence": 128}
    parameters |= {"attention": "masked", "optimizer": "none", "main_gradients": True}
    both = {"tensor": 2, "sequence_parallel": True, "data": 4, "zero": 3}
    graph = build("x", {**parameters, **both})
    sent = [(op.kind, op.sizes[1]) for op in graph.ops if op.kernel in _KINDS.values()]
    # a device of fsdp2 gathers the next layer before or after the first collective of this one
    assert sorted(sent) == sorted(collectives.seen)
    reduced = [
        [each for each in listed if each[0] != "all_gather"] for listed in (sent, collectives.seen)
    ]
    assert reduced[0] == reduced[1]
    compared("torch", "FSDP2, tensor and sequence parallel", "collectives", len(collectives.seen),
             len(sent))  # fmt: skip
