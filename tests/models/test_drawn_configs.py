"""Every family's builder has the parameters that transformers' model on the meta device has, for
configs that are drawn.
"""

import random
from collections import Counter

import pytest
from drawn_configs import (
    FAMILIES,
    NO_CAUSAL,
    NOT_CAUSAL,
    TOKENS,
    drawn,
    sizes_of_builder,
    sizes_of_transformers,
)
from wholes import wholes

import hosim
from hosim.errors import InputError
from hosim.io.models import READERS

DECODERS = [kind for kind in FAMILIES if kind not in NOT_CAUSAL]
KEEP_STATES = (
    "qwen3_next",
    "qwen3_5_moe_text",
    "bamba",
    "falcon_h1",
    "nemotron_h",
    "mamba2",
    "mamba",
    "jamba",
    "lfm3",
    "olmo_hybrid",
)
OTHER_NAMES = ("afmoe", "gpt_oss", *NO_CAUSAL)
"""Families some of whose parts have other names here."""


def check(kind, draws, first=0):
    """Parameters of draws, each in turn of the config that was drawn and of what transformers saves
    of it.
    """
    for n in range(first, first + draws):
        config = drawn(kind, random.Random(f"{kind} {n}"))
        saved, theirs = sizes_of_transformers(kind, config)
        for given in (config, saved) if draws > 2 else ((config, saved)[n % 2],):
            given = {
                key: value for key, value in given.items() if key not in ("model_type", "dtype")
            }
            ours = sizes_of_builder(kind, given)
            assert Counter(ours.values()) == Counter(theirs.values()), (kind, config)
            if kind not in OTHER_NAMES:
                assert ours == theirs, (kind, config)


@pytest.mark.parametrize("kind", DECODERS)
def test_parameters_are_those_of_transformers(kind):
    """Half of the families from the config that was drawn, half from what transformers saves of
    it.
    """
    check(kind, 1, first=DECODERS.index(kind) % 2)


@pytest.mark.long
@pytest.mark.parametrize("kind", DECODERS)
def test_parameters_of_many_configs_are_those_of_transformers(kind):
    check(kind, 22)


@pytest.mark.parametrize("kind", DECODERS)
def test_parameters_are_the_same_for_every_number_of_tokens(kind):
    config = drawn(kind, random.Random(f"{kind} 0"))
    config = {key: config[key] for key in config if key not in ("model_type", "dtype")}
    few, many = (sizes_of_builder(kind, config, sequence=tokens) for tokens in (16, 80))
    assert few == many


def test_a_product_of_groups_of_heads_has_as_many_rows_for_each():
    config = drawn("deepseek_v4", random.Random("deepseek_v4 0")) | {"o_groups": 2}
    sizes_of_builder("deepseek_v4", config)  # it compares FLOP and sizes
    graph = hosim.load({"model": {**config, "model_type": "deepseek_v4"}, "sequence": 64})
    rows = {op.sizes[0] for op in graph.ops if op.name.endswith("o_a_proj")}
    assert rows == {2 * 64}


NO_DEFAULT = (
    "deepseek_v2",
    "dots1",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "lfm2_moe",
    "ministral",
    "nemotron",
    "gpt2",
)
"""Families of whose defaults transformers makes no model that runs, and one whose draws are the
same.
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted({*DECODERS} - {*NO_DEFAULT}))
def test_parameters_of_the_default_config_are_those_of_transformers(kind):
    """Sizes that nobody drew, in a file as transformers saves it."""
    saved, theirs = sizes_of_transformers(kind, {})
    given = {key: value for key, value in saved.items() if key not in ("model_type", "dtype")}
    assert Counter(sizes_of_builder(kind, given).values()) == Counter(theirs.values())


def test_layers_with_sizes_of_their_own_are_found_by_number():
    """transformers saves their numbers in as many digits as the last one has: 05 of 12 layers."""
    config = {
        **drawn("gemma4_text", random.Random("wide")),
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 0,
    }
    config["layer_types"] = [
        "full_attention" if n in (3, 11) else "sliding_attention" for n in range(12)
    ]
    saved, theirs = sizes_of_transformers("gemma4_text", config)
    assert sorted(saved["per_layer_config"]) == ["03", "11"]
    del saved["model_type"], saved["dtype"]
    assert sizes_of_builder("gemma4_text", saved) == theirs


@pytest.mark.parametrize(
    ("kind", "key", "known", "other"),
    [
        ("bert", "hidden_act", "gelu", "silu"),
        ("bert", "position_embedding_type", "absolute", "relative_key"),
        ("deepseek_v3", "attention_bias", False, True),
        ("deepseek_v3", "moe_layer_freq", 1, 2),
        ("deepseek_v4", "attention_bias", False, True),
        ("deepseek_v4", "scoring_func", "sqrtsoftplus", "sigmoid"),
        ("falcon_h1", "mamba_proj_bias", False, True),
        ("falcon_h1", "projectors_bias", False, True),
        ("gemma3_text", "use_bidirectional_attention", False, True),
        ("gemma4_text", "use_bidirectional_attention", "vision", True),
        ("kimi_linear", "attention_bias", False, True),
        ("laguna", "gating", "per-head", "per-layer"),
        ("lfm3", "hidden_act", "silu", "gelu"),
        ("minicpm3", "attention_bias", False, True),
        ("phi", "qk_layernorm", False, True),
        ("stablelm", "qk_layernorm", False, True),
        ("vit", "hidden_act", "gelu", "silu"),
        ("vit", "qkv_bias", True, False),
    ],
)
def test_a_key_with_one_known_value(kind, key, known, other):
    config = {**drawn(kind, random.Random(kind)), "model_type": kind}
    hosim.load({**config, key: known})
    with pytest.raises(InputError, match=rf"model\.{key}: the builder knows .*{known}"):
        hosim.load({**config, key: other})


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("llama", {"1": {"head_dim": 32}}),
        ("gemma4_text", {"00": {"head_dim": 32}}),
        ("gemma4_text", {"11": {"intermediate_size": 32}}),
    ],
)
def test_layers_with_sizes_that_no_builder_knows_are_refused(kind, own):
    with pytest.raises(InputError, match="per_layer_config"):
        sizes_of_builder(
            kind,
            {
                **drawn(kind, random.Random("own")),
                "num_hidden_layers": 12,
                "layer_types": None,
                "per_layer_config": own,
            },
        )


@pytest.mark.parametrize("kind", KEEP_STATES)
def test_states_are_those_that_transformers_keeps(kind):
    """Of convolutions, of recurrences, and keys and values, of two prompts of 12 tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        kind, **TOKENS, **drawn(kind, random.Random(f"{kind} 1"))
    )
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        result = model(input_ids=torch.zeros(2, 12, dtype=torch.int64), use_cache=True)
    theirs = Counter()
    for layer in (result.get("past_key_values") or result["cache_params"]).layers:
        states = [
            *getattr(layer, "conv_states", {}).values(),
            *getattr(layer, "recurrent_states", {}).values(),
        ]
        states += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        theirs.update([state.numel() for state in states if state is not None])
    graph = hosim.load(
        {"model": {**config.to_dict(), "dtype": "bfloat16"}, "batch": 2, "sequence": 12}
    )
    kept = wholes(graph, lambda tensor: tensor.kind == "kv_cache")
    assert (
        Counter(
            [size // (4 if name.endswith("recurrent_state") else 2) for name, size in kept.items()]
        )
        == theirs
    )


def test_most_types_that_transformers_knows_are_accepted(capsys):
    """Of its language models those that are published as such: no encoders, halves of translators,
    or parts of larger models.
    """
    auto = pytest.importorskip("transformers").models.auto.modeling_auto
    known = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    accepted = known & READERS.keys()
    with capsys.disabled():
        print(
            f"\n{len(accepted)} of {len(known)} model types with a causal language model in "
            "transformers are accepted"
        )
    assert len(accepted) >= 95


def test_the_text_of_a_model_that_says_no_type_for_it_is_named_by_the_model():
    with pytest.raises(InputError, match="no builder knows blocks of keys"):
        hosim.load({"model_type": "minimax_m3_vl", "text_config": {"hidden_size": 64}})


def test_mimo_is_a_qwen2_whose_further_layers_are_left_out():
    """transformers has no class for it."""
    qwen = {**drawn("qwen2", random.Random("mimo")), "num_nextn_predict_layers": 1}
    graph = hosim.load({"model_type": "mimo", **qwen})
    assert any("num_nextn_predict_layers" in line for line in graph.meta["left_out"])
    assert sizes_of_builder("mimo", qwen) == sizes_of_transformers("qwen2", qwen)[1]


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("bart", "an encoder and a decoder that reads it, other than T5's and Whisper's"),
        ("roberta", "an encoder with another embedding, position or head than BERT's"),
        ("musicgen", "several streams of codes at once (num_codebooks)"),
        ("ctrl", "positions or an order of norms that no builder has"),
        ("rwkv", "the time mixing of RWKV"),
        ("minimax_m3_vl_text", "blocks of keys that an index chooses (index_topk_blocks)"),
        (
            "longcat_flash",
            "two attentions a layer and experts that compute nothing (zero_expert_num)",
        ),
    ],
)
def test_a_part_that_is_unknown_is_named(kind, part):
    with pytest.raises(InputError) as error:
        hosim.load({"model_type": kind, "hidden_size": 64})
    assert part in error.value.message
    assert error.value.where == "model.model_type"
    assert kind not in READERS
