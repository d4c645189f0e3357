"""Collectives of FSDP2 and copies of shards on the CPU, in order and to the byte, as torch issues
them on fake processes.
"""

import pytest

from hosim.engine import replay
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.policies import policy_named
from hosim.shipped import find_hardware

pytestmark = pytest.mark.long

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

DENSE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
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
    ("name", "model", "sizes"),
    [("LlamaForCausalLM", "llama-3.1-8b", DENSE), ("MixtralForCausalLM", "mixtral-8x7b", MIXTURE)],
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
    names = (
        {"num_local_experts": "num_experts", "intermediate_size": "moe_intermediate_size"}
        if "num_local_experts" in sizes
        else {}
    )
    config = {names.get(key, key): value for key, value in sizes.items()}
    parameters = {
        "model": model,
        "config": config,
        "phase": "train",
        "sequence": 128,
        "attention": "masked",
    }
    parameters |= {
        "data": 8,
        "zero": 3,
        "reshard": reshard,
        "main_gradients": True,
        "optimizer": "none",
    }
    graph = build(model, parameters)
    assert [
        (op.kind, op.sizes[1]) for op in graph.ops if op.kernel in _KINDS.values()
    ] == collectives.seen
    compared(
        "FSDP2",
        f"step of {model}, reshard {reshard}",
        "collectives",
        len(collectives.seen),
        len(collectives.seen),
    )
    if (
        model == "llama-3.1-8b"
    ):  # torch counts neither grouped products nor the CPU's fused attention
        flops = sum(op.flops for op in graph.ops if op.kind != "attention")
        compared(
            "FSDP2", f"step of {model}, reshard {reshard}", "FLOP", counter.get_total_flops(), flops
        )


class Copies(Collectives):
    """Bytes of each copy of a shard: those up before a gathering, and those down after a
    reduction.
    """

    def __init__(self):
        super().__init__()
        self.up, self.down = [[]], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        where = (kwargs or {}).get("device")
        if (
            func._schema.name == "aten::_to_copy"
            and where is not None
            and args[0].device.type != where.type
        ):
            (self.up if where.type == "meta" else self.down)[-1].append(
                args[0].numel() * args[0].element_size()
            )
            if where.type == "cpu":
                return torch.empty(args[0].shape, dtype=args[0].dtype)
        before, result = len(self.seen), super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.seen) > before:
            (self.up if self.seen[-1][0] == "all_gather" else self.down).append([])
        return result


def on_meta(module, monkeypatch):
    """Let FSDP gather on the device "meta", which no process has to have: what it copies there and
    back is seen.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    handle = _fsdp_collectives._get_device_handle("cpu")
    monkeypatch.setattr(_fsdp_collectives, "_get_device_handle", lambda *_: handle)
    for part in module.modules():
        state = _get_module_fsdp_state(part)
        if state is not None and state._fsdp_param_group:
            for holder in (state._fsdp_param_group, *state._fsdp_param_group.fsdp_params):
                holder.device = torch.device("meta")
    for name, buffer in list(module.named_buffers()):
        path, _, own = name.rpartition(".")
        setattr(module.get_submodule(path), own, buffer.to("meta"))


@pytest.mark.parametrize("reshard", [True, False])
def test_copies_of_shards_on_the_cpu_are_those_of_torch(mesh, reshard, compared, monkeypatch):
    """``CPUOffloadPolicy``: shards come up in fp32 for each gathering, and those of gradients go
    down once they are reduced.
    """
    sizes = {**DENSE, "vocab_size": 8000}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, attn_implementation="sdpa", use_cache=False)
    ).train()
    how = {"mesh": mesh, "mp_policy": policy, "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    for layer in module.model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **how)
    fully_shard(module, **how)
    on_meta(module, monkeypatch)

    def forward(ids):  # the model itself looks at numbers
        x, places = (
            module.model.embed_tokens(ids),
            torch.empty(1, 128, dtype=torch.int64, device="meta"),
        )
        turns = module.model.rotary_emb(x, places)
        for layer in module.model.layers:
            x = layer(
                hidden_states=x, attention_mask=None, position_ids=places, position_embeddings=turns
            )
        return torch.nn.functional.cross_entropy(
            module.lm_head(module.model.norm(x))[0].float(), ids[0]
        )

    module.forward = forward
    copies = Copies()
    with copies:
        module(torch.empty(1, 128, dtype=torch.int64, device="meta")).backward()
    parameters = {
        "model": "llama-3.1-8b",
        "config": sizes,
        "phase": "train",
        "sequence": 128,
        "attention": "masked",
        "reshard": reshard,
    }
    parameters |= {
        "data": 8,
        "zero": 3,
        "main_gradients": True,
        "shards_home": "ddr",
        "optimizer_on": "ddr",
    }
    graph, machine = build("x", parameters), load_hardware(find_hardware("h100-80gb-sxm"))
    timeline = replay(
        policy_named("fsdp_offload").plan(graph, machine), machine, record=True
    ).timeline
    moves = sorted(timeline.transfers, key=lambda x: x.start_ns)
    up, down = [
        [graph.tensors[x.tensor].size_bytes for x in moves if x.channel == channel]
        for channel in ("h2d", "d2h")
    ]
    theirs = [group for group in copies.up if group]
    assert len(up) == sum(map(len, theirs))
    for group in theirs:
        assert sorted(up[: len(group)]) == sorted(group)
        del up[: len(group)]
    assert down == [sum(group) for group in copies.down]
    compared(
        "FSDP2",
        f"CPUOffloadPolicy, reshard {reshard}",
        "bytes copied down",
        sum(map(sum, copies.down)),
        sum(down),
    )
