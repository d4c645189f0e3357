"""A ``config.json`` gives the model that transformers makes of it, or says which key no builder
knows.
"""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rendered import facts
from small_configs import CLASSES, MODELS, SMALL, config_of, model_of, run_of
from typer.testing import CliRunner
from wholes import wholes

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io.models import PRESETS, sizes_of
from hosim.notes import notes


def left_out(graph):
    return tuple(line for about, line in notes(graph) if about == "not modelled")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_work_are_those_of_transformers(name):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    kind, config, model, inputs = model_of(name)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    run = {**run_of(kind), **({} if kind in CLASSES else {"logits": "all"})}
    graph = hosim.load({"model": config.to_dict(), **run})
    # parameters of no op, such as a pooling layer that is not used, are not in a graph; tied ones
    # are counted once by both
    ours = {
        name: size // 2
        for name, size in wholes(
            graph, lambda tensor: tensor.kind in ("parameter", "expert")
        ).items()
    }
    theirs = {name: p.numel() for name, p in model.named_parameters()}
    assert sorted(ours.values()) == sorted(theirs.values())
    if kind != "mixtral" and kind != "gpt_oss":
        assert set(ours) == set(theirs)
    assert sum(op.flops for op in graph.ops) == counter.get_total_flops()
    if kind not in CLASSES and not kind.startswith("deepseek"):
        merged = hosim.load({"model": config.to_dict(), **run, "merged": True})
        assert sum(
            t.size_bytes for t in merged.tensors if t.kind in ("parameter", "expert")
        ) == 2 * sum(theirs.values())
        assert sum(op.flops for op in merged.ops) == counter.get_total_flops()


LARGE = {"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = {
    "llama-3.1-8b": (
        "llama",
        {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8},
    ),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        {"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128},
    ),
    "deepseek-v3": ("deepseek_v3", {"num_key_value_heads": 128}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-large": ("bert", {"hidden_size": 1024, **LARGE}),
    "vit-l-16": (
        "vit",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "num_labels": 1000,
        },
    ),
    "t5-large": ("t5", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_are_what_configs_say(name):
    kind, sizes = SIZES[name]
    assert sizes_of(config_of(kind, sizes).to_dict())[0] == PRESETS[name]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (
            {"model_type": "rwkv"},
            "model.model_type: no builder knows the time mixing of RWKV, which 'rwkv' has",
        ),
        (
            {"model_type": "llame"},
            r"model.model_type: expected a model_type that a builder knows, .* \(near: llama.*\); "
            r".*; got 'llame'",
        ),
        ({"model_type": ["llama"]}, r"model.model_type: expected .*; got \['llama'\]"),
        (
            {"model_type": "llama", "hidden_size": 8},
            "model.num_attention_heads: expected a number, the config has none",
        ),
        (
            {"model_type": "llama", **SMALL, "vocab_size": "many"},
            "model.vocab_size: expected a number from 1 to 2.40, got 'many'",
        ),
        (
            {"model_type": "phi", **SMALL, "qk_layernorm": True},
            "model.qk_layernorm: the builder knows False only, got True",
        ),
        (
            {"model_type": "llama", **SMALL, "hidden_act": "relu6"},
            "model.hidden_act: the builder knows silu, .*, relu, relu2, xielu only, got 'relu6'",
        ),
        (
            {"model_type": "mpt", "attn_config": {"alibi": False}},
            "model.attn_config.alibi: the builder knows True only, got False",
        ),
        ({"model_type": "mpt", "attn_config": 3}, "model.attn_config: expected a mapping, got 3"),
        (
            {
                "model_type": "gemma2",
                **SMALL,
                "layer_types": ["full_attention", "linear_attention"],
            },
            "model.layer_types: the builder knows 'sliding_attention' or 'full_attention' only, "
            "got 'linear_attention'",
        ),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            "model.text_config.hidden_size: expected a number, the",
        ),
        (
            {"model_type": "llama", **SMALL, "tie_word_embeddings": 3},
            "model.tie_word_embeddings: expected true or false, got 3",
        ),
        (
            {"model_type": "bert", **SMALL, "hidden_dropout_prob": 2},
            "model.hidden_dropout_prob: expected a number from 0 to 1, got 2",
        ),
        (
            {"model_type": "llama", **SMALL, "num_attention_heads": 0},
            "model.num_attention_heads: expected a number from 1 to 2.40, got 0",
        ),
        (
            {"model_type": "gpt_neox", **SMALL, "num_attention_heads": 10**6},
            "model.hidden_size: expected a multiple of the 1000000 heads, got",
        ),
    ],
)
def test_what_no_builder_knows_is_refused(config, error):
    with pytest.raises(InputError, match=error):
        hosim.load(config)


def test_a_sliding_window_bounds_what_is_read_and_kept():
    config = {
        "model_type": "mistral",
        **SMALL,
        "max_position_embeddings": 4096,
        "sliding_window": 1024,
    }

    def attended(**run):
        graph = hosim.load({"model": config, "layers": 1, **run})
        (op,) = [op for op in graph.ops if op.kind == "attention"]
        return op.flops, sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache"), op.sizes

    # 4 heads of width 16 in two products; two tensors of 2 heads of 16 in 2 bytes
    for merged in (False, True):
        prompt = attended(sequence=3000, merged=merged)
        assert prompt == (
            4 * 4 * 16 * 3000 * 1024,
            2 * 2 * 16 * 2 * 1024,
            (1, 3000, 0, 4, 2, 16, 1024),
        )
        token = attended(phase="decode", context=3000, merged=merged)
        assert token == (4 * 4 * 16 * 1024, 2 * 2 * 16 * 2 * 1024, (1, 1024, 4, 2, 16))
    config["max_position_embeddings"] = 1024  # no position is beyond the window
    assert attended(sequence=800)[2][-1] == 2**40


def test_each_nth_layer_sees_all_keys():
    sizes = {**SMALL, "num_hidden_layers": 6, "sliding_window": 100, "sliding_window_pattern": 3}

    def caches(config, **run):
        graph = hosim.load({"model": config, "phase": "decode", "context": 3000, **run})
        kept = wholes(graph, lambda tensor: tensor.kind == "kv_cache")
        return [size // (2 * 16 * 2) for size in kept.values()][::2]  # 2 heads of 16 in 2 bytes

    for merged in (False, True):
        assert caches({"model_type": "gemma3_text", **sizes}, merged=merged) == [
            100,
            100,
            3000,
            100,
            100,
            3000,
        ]
    assert caches({"model_type": "gemma2", **sizes}) == [100, 3000] * 3
    assert (
        caches({"model_type": "gemma2", **sizes, "layer_types": ["sliding_attention"] * 6})
        == [100] * 6
    )
    assert (
        caches({"model_type": "gemma2", **sizes, "layer_types": ["full_attention"] * 6})
        == [3000] * 6
    )
    mixed = ["full_attention", "sliding_attention", "sliding_attention"] * 2
    assert caches({"model_type": "gemma2", **sizes, "layer_types": mixed}) == [3000, 100, 100] * 2


def test_each_dropout_of_a_config_is_its_own() -> None:
    """Of the embedding, of what a layer's two parts add, and of the scores of attention that is not
    one kernel.
    """

    def dropped(kind: str, **shares: float) -> tuple[int, int]:
        sizes = (
            {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16}
            if kind == "gpt2"
            else {**SMALL, "ffn_dim": 16}
        )
        graph = hosim.load(
            {
                "model": {"model_type": kind, **sizes, **shares},
                "phase": "train",
                "sequence": 8,
                "attention": "math",
            }
        )
        random = sum(op.kind == "random" for op in graph.ops)
        return random, sum(len(op.outputs) == 3 for op in graph.ops if op.name.endswith(".sdpa"))

    assert dropped("gpt2") == (3, 1)
    assert dropped("gpt2", embd_pdrop=0.0) == (2, 1)
    assert dropped("gpt2", resid_pdrop=0.0) == (1, 1)
    assert dropped("gpt2", attn_pdrop=0.0) == (3, 0)
    assert (dropped("opt", attention_dropout=0.1)[1], dropped("opt")[1]) == (2, 0)  # two layers


def test_what_a_builder_leaves_out_is_said(tmp_path):
    def said(config):
        return hosim.load({"model": config, "sequence": 8}).meta.get("left_out", [])

    def named(config):
        keys = "num_nextn_predict_layers", "quip", "attn_logit_softcapping", "gemma3"
        return [facts(line, *keys) for line in said(config)]

    assert named({"model_type": "llama", **SMALL, "num_nextn_predict_layers": 0}) == []
    assert named({"model_type": "llama", **SMALL, "num_nextn_predict_layers": 1}) == [
        "num_nextn_predict_layers, 1"
    ]
    quantised = {"model_type": "gpt_oss", **SMALL, "quantization_config": {"quant_method": "quip"}}
    assert named(quantised) == ["quip"]
    assert named({"model_type": "gemma2", **SMALL, "attn_logit_softcapping": 50.0}) == [
        "attn_logit_softcapping"
    ]
    whole = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", **SMALL},
        "vision_config": {},
    }
    (told,) = said(whole)
    assert named(whole) == ["gemma3"]
    assert named({**whole, "quantization_config": {"quant_method": "quip"}})[0] == "quip"
    for preset, lines in (
        (
            "gpt-oss-20b",
            ["mxfp4, mxfp4"],
        ),
        ("gemma-2-2b", ["attn_logit_softcapping"]),
    ):
        found = hosim.load({"model": preset, "layers": 1, "sequence": 8}).meta["left_out"]
        assert [facts(line, "mxfp4", "attn_logit_softcapping") for line in found] == lines
    (tmp_path / "config.json").write_text(json.dumps(whole))
    for command in (
        "workload show {}",
        "plan {} -H h100 -p resident -o {}.plan.json",
        "import {} -o {}.out.json",
        "compare-policies {}:layers=1 -H h100 -p resident",
    ):
        shown = CliRunner().invoke(
            app, command.replace("{}", str(tmp_path / "config.json")).split()
        )
        assert told in " ".join(shown.output.split()), command
    assert left_out(replace(hosim.load(whole), meta={"left_out": [3, "a"]})) == ("a",)
    assert left_out(replace(hosim.load(whole), meta={"left_out": "a"})) == ()


def test_a_file_is_a_workload(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SMALL})
    )
    graph = hosim.load(path)
    assert re.fullmatch("llama:sizes=[0-9a-f]{6}", graph.name)
    assert graph.ops == hosim.load({"model": str(path)}).ops
    assert graph.meta["builder"] == {
        "model": {"model_type": "llama", **SMALL}
    }  # and nothing that is not read
    assert hosim.load({"model": str(path), "phase": "train"}).name == graph.name.replace(
        "llama", "llama-train"
    )
    assert (
        hosim.load({"model_type": "llama", **SMALL, "architectures": []}).name == graph.name
    )  # nothing that is not read
    assert hosim.load({"model_type": "llama", **SMALL, "vocab_size": 7}).name != graph.name
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    path.write_text(json.dumps({"model_type": "llama", **SMALL, "vocab_size": None}))
    shown = CliRunner().invoke(app, ["workload", "show", str(path)])
    assert shown.exit_code == 2
    assert "config.json: vocab_size: expected a number, the config has none" in " ".join(
        shown.output.split()
    )
    path.write_text(json.dumps({"model_type": "xlstm"}))
    with pytest.raises(
        InputError, match=r"config\.json: model_type: no builder knows the memories of xLSTM"
    ):
        hosim.load(path)


def bytes_of(graph):
    return sum(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert"))


def other_values(key, value):
    """Values of a key that its config class may take, each unlike ``value``."""
    if key == "dtype":
        return ["float32", "float16", "float64"]
    if isinstance(value, bool) or value is None:
        return [not value, 32, 2]
    if isinstance(value, int):
        return [2 * value or 1, value + 1]
    if isinstance(value, str):
        return ["relu", "gelu_new", "float32"]
    return [value[::-1], value[:1]] if isinstance(value, list) else []


@given(st.data())
@settings(deadline=None, max_examples=15)
def test_a_key_that_changes_the_bytes_of_a_model_changes_them_here_or_is_refused(data):
    """Against the parameters that transformers makes on the meta device, in the dtype of the
    config.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name = data.draw(st.sampled_from(sorted(MODELS)))
    kind = name.partition(" ")[0]
    usual = {**config_of(kind, MODELS[name]).to_dict(), "dtype": "bfloat16"}
    for never in ("transformers_version", "model_type"):
        usual.pop(never, None)
    key = data.draw(st.sampled_from(sorted(usual)))
    values = other_values(key, usual[key])
    config = {**usual, key: data.draw(st.sampled_from(values))} if values else usual
    try:
        made = transformers.AutoConfig.for_model(kind, **config)
        cls = (
            getattr(transformers, CLASSES[kind])._from_config
            if kind in CLASSES
            else transformers.AutoModelForCausalLM.from_config
        )
        with torch.device("meta"):
            elements = sum(p.numel() for p in cls(made, attn_implementation="eager").parameters())
    except Exception:  # its classes raise all kinds of errors for what does not go together
        assume(False)
    try:
        ours = bytes_of(hosim.load({"model": {"model_type": kind, **config}}))
    except InputError as error:
        assert error.where.partition(".")[2]
        return
    if (
        kind not in ("t5", "mt5") or key != "tie_word_embeddings"
    ):  # transformers ties them whatever it says, checkpoints do not
        assert ours == elements * made.dtype.itemsize, f"{key}: {config[key]!r}"


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_weights_have_the_dtype_of_the_config(key, tmp_path):
    def loaded(named, **run):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "llama", **SMALL, key: named})
        )
        return hosim.load({"model": str(tmp_path), "sequence": 8, **run})

    half = bytes_of(loaded("bfloat16"))
    assert bytes_of(loaded("float32")) == 2 * half
    assert "fp16" in {op.dtype for op in loaded("float16").ops}
    assert bytes_of(loaded("float32", dtype="bf16")) == half  # what the command says comes first
    assert bytes_of(loaded("auto")) == half
    assert loaded("bfloat16").name == loaded("auto").name != loaded("float32").name
    again = hosim.load(loaded("float32").meta["builder"])
    assert bytes_of(again) == 2 * half
    for wrong in ("float64", "float8_e4m3fn", 3):
        with pytest.raises(
            InputError,
            match=rf"model.{key}: the builder knows bfloat16, float16, float32 only, got {wrong!r}",
        ):
            loaded(wrong)
    inside = {
        "model_type": "gemma3",
        key: "float32",
        "text_config": {"model_type": "gemma3_text", **SMALL},
    }
    assert bytes_of(hosim.load(inside)) == 2 * bytes_of(hosim.load({**inside, key: "bfloat16"}))


def test_a_key_that_nobody_reads_may_be_infinite(tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps({"model_type": "llama", **SMALL})[:-1]
    path.write_text(text + ', "time_step_limit": [0.0, Infinity], "other": NaN}')
    assert hosim.load(path) == hosim.load({"model_type": "llama", **SMALL})
    for key, value in (
        ("hidden_size", "Infinity"),
        ("attention_dropout", "NaN"),
        ("residual_multiplier", "-Infinity"),
    ):
        path.write_text(
            text.replace(
                '"hidden_size": 64, ', "" if key == "hidden_size" else '"hidden_size": 64, '
            )
            + f', "{key}": {value}}}'
        )
        refused = CliRunner().invoke(app, ["workload", "show", str(path)])
        assert refused.exit_code == 2
        assert f"config.json: {key}: expected a finite number, got" in " ".join(
            refused.stderr.split()
        )
