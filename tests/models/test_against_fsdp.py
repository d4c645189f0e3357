"""Collectives of FSDP2, in order and to the byte, as torch issues them for models of transformers on fake processes."""

import pytest

from hosim.models.build import build

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

DENSE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2}
DENSE |= {"vocab_size": 8003, "head_dim": 64}
MIXTURE = {**DENSE, "num_local_experts": 8, "num_experts_per_tok": 2}
_KINDS = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter"}


class Collectives(TorchDispatchMode):
    """Kind and bytes of each collective, those of all devices together."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kind = _KINDS.get(func._schema.name)
        if kind:
            self.seen.append((kind, max(x.numel() * x.element_size() for x in args[:2])))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def mesh():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield init_device_mesh("cpu", (8,))
    dist.destroy_process_group()


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize(
    ("name", "model", "sizes"), [("LlamaForCausalLM", "llama-3.1-8b", DENSE), ("MixtralForCausalLM", "mixtral-8x7b", MIXTURE)]
)
def test_collectives_are_those_of_torch(mesh, name, model, sizes, reshard, compared):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        cls = getattr(transformers, name)
        module = cls(cls.config_class(**sizes, attn_implementation="sdpa", use_cache=False)).train()
        for layer in module.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        ids = torch.zeros(1, 128, dtype=torch.int64)
        collectives, counter = Collectives(), FlopCounterMode(display=False)
        with collectives, counter:
            module(input_ids=ids, labels=ids).loss.backward()
    names = {"num_local_experts": "num_experts", "intermediate_size": "moe_intermediate_size"} if "num_local_experts" in sizes else {}
    config = {names.get(key, key): value for key, value in sizes.items()}
    parameters = {"model": model, "config": config, "phase": "train", "sequence": 128, "attention": "masked"}
    parameters |= {"data": 8, "zero": 3, "reshard": reshard, "main_gradients": True, "optimizer": "none"}
    graph = build(model, parameters)
    assert [(op.kind, op.sizes[1]) for op in graph.ops if op.kernel in _KINDS.values()] == collectives.seen
    compared("FSDP2", f"step of {model}, reshard {reshard}", "collectives", len(collectives.seen), len(collectives.seen))
    if model == "llama-3.1-8b":  # torch counts neither grouped products nor the CPU's fused attention
        flops = sum(op.flops for op in graph.ops if op.kind != "attention")
        compared("FSDP2", f"step of {model}, reshard {reshard}", "FLOP", counter.get_total_flops(), flops)
