"""What the builders give, beside what importing the traced model of transformers gives."""

import pytest
import yaml

from hosim.analysis.liveness import static_peak
from hosim.importers import load_any
from hosim.io import load_workload
from hosim.models.build import build

TRACED = {"phase": "prefill", "logits": "all", "cache": False}
"""A traced prefill: no cache, the logits of every position."""

REDUCED = {
    "qwen3-30b-a3b": (
        "Qwen3MoeForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "vocab_size": 151936,
            "use_cache": False,
        },
        {"layers": 2, "attention": "masked"},
    ),
    # the defaults of transformers' config class are DeepSeek-V3's sizes; heads of unequal width have no fused kernel on the traced path
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        {"num_hidden_layers": 2, "first_k_dense_replace": 1, "use_cache": False},
        {"layers": 2, "attention": "math", "config": {"first_k_dense_replace": 1}},
    ),
}


def figures(graph):
    parameters = sorted(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert"))
    return sum(op.flops for op in graph.ops), static_peak(graph), parameters


def compare(built, traced):
    (flops, peak, parameters), (true_flops, true_peak, true_parameters) = figures(built), figures(traced)
    print(f"{built.name}: flops {flops / true_flops:.6f}, resident peak {peak.bytes / true_peak.bytes:.6f} of the traced graph's")
    assert parameters == true_parameters
    assert flops == pytest.approx(true_flops, rel=0.01)
    assert peak.bytes == pytest.approx(true_peak.bytes, rel=0.03)
    assert set(peak.breakdown) == set(true_peak.breakdown)
    # names of parameters are the model's
    assert {t.name for t in built.tensors if t.kind in ("parameter", "expert")} == {
        t.name for t in traced.tensors if t.kind in ("parameter", "expert")
    }


def test_llama(root):
    built = build("built", {"model": "llama-3.1-8b", "sequence": 4096, "attention": "masked", **TRACED})
    compare(built, load_workload(root / "workloads/llama-3.1-8b-prefill-4k.json.gz"))


@pytest.mark.parametrize("model", sorted(REDUCED))
@pytest.mark.parametrize("sequence", [256, 2048])
def test_mixtures_of_experts(model, sequence, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name, config, parameters = REDUCED[model]
    spec = {
        "format": "hosim.spec/1",
        "name": "traced",
        "importer": "torch_export",
        "model": {"class": name, "config": config, "dtype": "bf16"},
        "inputs": {"input_ids": {"shape": [1, sequence], "dtype": "int64"}},
    }
    (tmp_path / "traced.yaml").write_text(yaml.safe_dump(spec))
    built = build("built", {"model": model, "sequence": sequence, **TRACED, **parameters})
    compare(built, load_any(tmp_path / "traced.yaml"))
