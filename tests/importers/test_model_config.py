"""A ``config.json`` gives the model that transformers makes of it, or says which key no builder knows."""

import json

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.models.config_json import sizes_of
from hosim.models.presets import PRESETS

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 320,
    "vocab_size": 512,
}
EXPERTS = {"moe_intermediate_size": 96, "num_experts_per_tok": 2}
DEEPSEEK = {**SMALL, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "kv_lora_rank": 32, "qk_nope_head_dim": 32}
DEEPSEEK |= {"qk_rope_head_dim": 16, "v_head_dim": 32, "first_k_dense_replace": 1}
MODELS = {
    "llama": SMALL,
    "mistral": SMALL,
    "mixtral": {**SMALL, "num_local_experts": 4},
    "qwen2": {key: value for key, value in SMALL.items() if key != "head_dim"},
    "qwen3": SMALL,
    "qwen3_moe": {**SMALL, **EXPERTS, "num_experts": 8},
    "deepseek_v2": {**DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v3": {**DEEPSEEK, "q_lora_rank": 48, "n_group": 2, "topk_group": 1},
    "gpt2": {"n_embd": 128, "n_layer": 3, "n_head": 4},
    "bert": {key: value for key, value in SMALL.items() if key not in ("head_dim", "num_key_value_heads")},
    "t5": {"d_model": 128, "num_layers": 3, "num_heads": 4, "d_ff": 320},
}
CLASSES = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration"}


def config_of(kind, sizes):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(kind, **sizes)


@pytest.mark.parametrize("kind", MODELS)
def test_the_parameters_are_those_of_transformers(kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = config_of(kind, MODELS[kind])
    with torch.device("meta"):
        cls = getattr(transformers, CLASSES[kind]) if kind in CLASSES else transformers.AutoModelForCausalLM
        model = cls.from_config(config) if kind not in CLASSES else cls(config)
    graph = hosim.load(config.to_dict())
    # parameters of no op, such as a pooling layer that is not used, are not in a graph; tied ones are counted once by both
    ours = sorted(t.size_bytes // 2 for t in graph.tensors if t.kind in ("parameter", "expert"))
    assert ours == sorted(p.numel() for p in model.parameters())


SIZES = {
    "llama-3.1-8b": ("llama", {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}),
    "qwen3-30b-a3b": ("qwen3_moe", {"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128}),
    "deepseek-v3": ("deepseek_v3", {"num_key_value_heads": 128}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-large": ("bert", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    "vit-l-16": ("vit", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    "t5-large": ("t5", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_are_what_configs_say(name):
    kind, sizes = SIZES[name]
    assert sizes_of(config_of(kind, sizes).to_dict())[0] == PRESETS[name]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"model_type": "falcon"}, "model.model_type: expected a model_type that a builder knows, one of llama, mistral, .*; got 'falcon'"),
        ({"model_type": ["llama"]}, r"model.model_type: expected .*; got \['llama'\]"),
        ({"model_type": "llama", "hidden_size": 8}, "model.num_attention_heads: expected a number, the config has none"),
        ({"model_type": "llama", **SMALL, "vocab_size": "many"}, "model.vocab_size: expected a number from 1 to 2.40, got 'many'"),
        ({"model_type": "llama", **SMALL, "mlp_bias": True}, "model.mlp_bias: the builder knows False only, got True"),
        ({"model_type": "llama", **SMALL, "hidden_act": "relu"}, "model.hidden_act: the builder knows 'silu' only, got 'relu'"),
        ({"model_type": "llama", **SMALL, "tie_word_embeddings": 3}, "model.tie_word_embeddings: expected true or false, got 3"),
        ({"model_type": "bert", **SMALL, "hidden_dropout_prob": 2}, "model.hidden_dropout_prob: expected a number from 0 to 1, got 2"),
        ({"model_type": "llama", **SMALL, "num_attention_heads": 0}, "model.num_attention_heads: expected a number from 1 to 2.40, got 0"),
    ],
)
def test_what_no_builder_knows_is_refused(config, error):
    with pytest.raises(InputError, match=error):
        hosim.load(config)


def test_a_sliding_window_bounds_what_is_read_and_kept():
    config = {"model_type": "mistral", **SMALL, "max_position_embeddings": 4096, "sliding_window": 1024}

    def attended(**run):
        graph = hosim.load({"model": config, "layers": 1, **run})
        (op,) = [op for op in graph.ops if op.kind == "attention"]
        return op.flops, sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache"), op.sizes

    # 4 heads of width 32 in two products; two tensors of 2 heads of 32 in 2 bytes
    for merged in (False, True):
        prompt = attended(sequence=3000, merged=merged)
        assert prompt == (4 * 4 * 32 * 3000 * 1024, 2 * 2 * 32 * 2 * 1024, (1, 3000, 0, 4, 2, 32, 1024))
        token = attended(phase="decode", context=3000, merged=merged)
        assert token == (4 * 4 * 32 * 1024, 2 * 2 * 32 * 2 * 1024, (1, 1024, 4, 2, 32))
    config["max_position_embeddings"] = 1024  # no position is beyond the window
    assert attended(sequence=800)[2][-1] == 2**40


def test_a_file_is_a_workload(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SMALL}))
    graph = hosim.load(path)
    assert graph.name == "llama"
    assert graph.ops == hosim.load({"model": str(path)}).ops
    assert graph.meta["builder"] == {"model": {"model_type": "llama", **SMALL}}  # and nothing that is not read
    assert hosim.load({"model": str(path), "phase": "train"}).name == "llama-train"
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    path.write_text(json.dumps({"model_type": "llama", **SMALL, "vocab_size": None}))
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 2
    assert "config.json: vocab_size: expected a number, the config has none" in " ".join(shown.output.split())
