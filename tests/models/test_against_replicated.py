"""Parameters of which each device that shares a layer has a copy: collectives and FLOP of
transformers' own plans, on fake processes.
"""

import pytest

from hosim.io.models import build

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
styles = pytest.importorskip("transformers.distributed.tensor_parallel")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 2004,
}
QWEN = {**SIZES, "num_key_value_heads": 4, "head_dim": 32}
DEEPSEEK = {
    **SIZES,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
STEP = {"phase": "train", "sequence": 128, "optimizer": "none"}


class Sums(TorchDispatchMode):
    """Bytes of each all-reduce."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in ("c10d::allreduce_", "_c10d_functional::all_reduce"):
            x = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            self.seen.append(x.numel() * x.element_size())
        elif name.startswith(("c10d::", "_c10d_functional::")) and not any(
            word in name for word in ("wait", "wrap")
        ):
            raise AssertionError(name)
        return func(*args, **(kwargs or {}))


def traced(module, attention, at_norms, devices):
    """The all-reduces and FLOP of a step whose products torch shares, and what is beside them by
    transformers' ``at_norms``.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = Replicate()
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (devices,))
        plan = {
            "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=whole),
            "lm_head": ColwiseParallel(),
        }
        for n, layer in enumerate(module.model.layers):
            at = f"model.layers.{n}."
            plan |= {f"{at}{name}": style() for name, style in attention.items()}
            plan |= {f"{at}mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
            plan |= {
                f"{at}mlp.down_proj": RowwiseParallel(),
                f"{at}mlp": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
            }
            for name, style in at_norms.items():
                styles.ALL_PARALLEL_STYLES[style].install_forward(layer.get_submodule(name), mesh)
        parallelize_module(module, mesh, plan)
        ids = torch.arange(128)[None]
        sums, counter = Sums(), FlopCounterMode(display=False)
        with sums, counter:
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
    return sums.seen, counter.get_total_flops()


def hidden_whole():
    whole = {"hidden_states": Replicate()}
    return PrepareModuleInput(input_kwarg_layouts=whole, desired_input_kwarg_layouts=whole)


@pytest.mark.parametrize("devices", [2, 4])
def test_norms_of_heads_are_summed_as_in_transformers(devices, compared):
    config = transformers.Qwen3Config(
        **QWEN, attn_implementation="sdpa", use_cache=False, tie_word_embeddings=False
    )
    module = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).train()
    shared = {
        "self_attn": hidden_whole,
        **{f"self_attn.{name}_proj": ColwiseParallel for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel,
    }
    norms = {
        name: type(config).base_model_tp_plan[f"layers.*.{name}"]
        for name in ("self_attn.q_norm", "self_attn.k_norm")
    }
    theirs, flops = traced(module, shared, norms, devices)
    graph = build(
        "x", {**STEP, "model": "qwen3-8b", "config": QWEN, "attention": "masked", "tensor": devices}
    )
    ours = [op.sizes[1] for op in graph.ops if op.stream == "comm"]
    assert ours == theirs
    assert ours.count(32 * 2) == 2 * 2
    compared("torch", f"norms of heads over {devices}", "bytes summed", sum(theirs), sum(ours))
    assert flops == sum(op.flops for op in graph.ops if op.kind != "attention") * devices


@pytest.mark.parametrize("devices", [2, 4])
def test_latent_vectors_get_the_gradients_of_all_heads_as_in_transformers(devices, compared):
    config = transformers.DeepseekV3Config(
        **DEEPSEEK, first_k_dense_replace=2, attn_implementation="sdpa", use_cache=False
    )
    config.num_key_value_heads = 8
    module = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16).train()
    for layer in module.model.layers:
        layer.self_attn.kv_a_proj_with_mqa.config = config  # which transformers' style asks for
    shared = {f"self_attn.{name}_b_proj": ColwiseParallel for name in ("q", "kv")} | {
        "self_attn.o_proj": RowwiseParallel
    }
    theirs, _ = traced(module, shared, {"self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj"}, devices)
    graph = build(
        "x",
        {
            **STEP,
            "model": "deepseek-v3",
            "config": {**DEEPSEEK, "first_k_dense_replace": 2},
            "attention": "math",
            "tensor": devices,
        },
    )
    ours = [op.sizes[1] for op in graph.ops if op.stream == "comm"]
    assert sorted(ours) == sorted(theirs)
    assert ours.count(128 * 64 * 2) == 2
    compared("torch", f"latent attention over {devices}", "bytes summed", sum(theirs), sum(ours))
