"""``generate`` of transformers on an offloaded model: eager's tokens and scores to the bit, or one
line that says what to do.
"""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from exported_models import MODELS  # noqa: E402
from installed_transformers import CACHE  # noqa: E402
from lowering import MACHINE, same  # noqa: E402
from transformers.cache_utils import StaticLayer  # noqa: E402

import hosim  # noqa: E402
from hosim.errors import InputError  # noqa: E402

PLANNED = {"hardware": MACHINE, "budget": "90%", "parameters": {"effort": 0}}
PROMPT = torch.tensor([[3, 17, 24, 9], [5, 6, 7, 8]])
SCORED = {"return_dict_in_generate": True, "output_logits": True}


def model_of(name, **more):
    class_name, config = MODELS[name]
    cls = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**config, **more)).eval()
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    return model


def offloaded(model, **settings):
    return hosim.offload(
        model, {"input_ids": PROMPT, "use_cache": False}, **{**PLANNED, **settings}
    )


def scored(model, prompt=PROMPT, **kwargs):
    made = model.generate(prompt, **SCORED, **kwargs)
    return made.sequences, made.logits


def refused(model, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        model.generate(*args, **{"max_new_tokens": 2, **kwargs})
    return str(caught.value)


def test_generating_and_what_cannot():
    """GPT-2: greedy and sampled tokens, one program for the prompt and one for all tokens after it;
    then what is refused.
    """
    model = model_of("gpt2", num_hidden_layers=1)
    greedy = {"max_new_tokens": 5, "do_sample": False}
    wanted = scored(model, **greedy, cache_implementation="static")
    torch.manual_seed(1)
    sampled = model.generate(PROMPT, max_new_tokens=5, do_sample=True)
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        whole = model(input_ids=PROMPT, use_cache=False).logits
    with offloaded(model, policy="layerwise", parameters={}) as ours:
        assert same(scored(ours, **greedy), wanted)
        assert [len(result.stall_ns) > 0 for result in ours.programs] == [True, True]
        assert all(
            result.allocator.peak_allocated_bytes <= result.budget_bytes for result in ours.programs
        )
        torch.manual_seed(1)
        assert torch.equal(ours.generate(PROMPT, max_new_tokens=5, do_sample=True), sampled)
        assert len(ours.programs) == 2
        assert torch.equal(ours(input_ids=PROMPT, use_cache=False).logits, whole)
        fixed = (
            "an offloaded model needs a cache of fixed sizes, because one that grows needs a "
            "program for each token: give generate "
            "cache_implementation='static', or the model a StaticCache(config=model.config, "
            "max_cache_len=...) (got {})"
        )
        assert refused(ours, PROMPT, cache_implementation="dynamic") == fixed.format("DynamicCache")
        assert refused(
            ours, PROMPT, **{CACHE: transformers.DynamicCache(config=model.config)}
        ) == fixed.format("DynamicCache")
        assert refused(ours, PROMPT, use_cache=False) == fixed.format("no cache")
        if torch.version.cuda is None or torch.cuda.is_available():  # such a cache has a stream
            assert refused(ours, PROMPT, cache_implementation="offloaded_static") == fixed.format(
                "an offloaded StaticCache"
            )
        ours._captured.model.train()
        assert refused(ours, PROMPT).startswith("the model was captured in another mode")
        model.eval()
        assert same(scored(ours, **greedy), wanted)
        with pytest.raises(InputError, match="is offloaded"):
            model.generate(PROMPT, max_new_tokens=1)
    assert same(list(model.parameters()), before)
    weight, ours = (
        model.transformer.wte.weight,
        offloaded(model, policy="layerwise", parameters={}, budget=None),
    )
    with pytest.raises(InputError):
        ours.generate(PROMPT, use_cache=False, max_new_tokens=1)  # which makes the twin
    assert type(weight) is not torch.nn.Parameter
    found = weakref.ref(ours)
    del ours  # without closing it
    gc.collect()
    assert found() is None
    assert type(weight) is torch.nn.Parameter
    assert same(list(model.parameters()), before)


def decoded(call, config, first=PROMPT, tokens=4, name=CACHE):
    """The logits of a loop over a cache of one's own, and what the cache has then."""
    cache, now, logits = transformers.StaticCache(config=config, max_cache_len=12), first, []
    for _ in range(tokens):
        with torch.no_grad():
            result = call(now, **{name: cache}, use_cache=True)
        assert result[CACHE] is cache
        logits.append(result.logits)
        now = result.logits[:, -1:].argmax(-1)
    return logits, [(layer.keys, layer.values) for layer in cache.layers], cache.get_seq_length()


def test_a_loop_of_ones_own_with_a_cache():
    """The same programs as generate's: one for the prompt, one for all tokens; calls without a
    cache stay as they are.
    """
    model = model_of("gpt2", num_hidden_layers=1)
    wanted = decoded(model, model.config)
    with torch.no_grad():
        whole = model(input_ids=PROMPT, use_cache=False).logits
    with offloaded(model, policy="layerwise", parameters={}) as ours:
        assert same(decoded(ours, model.config), wanted)
        assert same(
            decoded(ours, model.config, name="past_key_values"), wanted
        )  # its name before transformers 5.24
        assert len(ours.programs) == 2
        assert torch.equal(ours(input_ids=PROMPT, use_cache=False).logits, whole)
        own = transformers.StaticCache(config=model.config, max_cache_len=12)
        for given, message in [
            (
                {CACHE: transformers.DynamicCache(config=model.config)},
                "needs a cache of fixed sizes, .*got DynamicCache",
            ),
            ({CACHE: own, "use_cache": False}, "call it with use_cache=True"),
            ({CACHE: own, "return_dict": False}, "not with return_dict=False"),
            ({CACHE: own, "input_ids": PROMPT}, "given twice"),
        ]:
            with pytest.raises(InputError, match=message):
                ours(PROMPT, **given)
        assert same(decoded(ours, model.config), wanted)  # a refusal changes nothing


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3", "gemma"])
def test_loops_of_families(name):
    model = model_of(name)
    wanted = decoded(model, model.config), decoded(model, model.config, PROMPT[:1, :3])
    with offloaded(model) as ours:
        assert same(
            (decoded(ours, model.config), decoded(ours, model.config, PROMPT[:1, :3])), wanted
        )
        assert len(ours.programs) == 4


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "qwen3", "gemma"])
def test_families(name, attention):
    """Two prompts of other lengths, one padded, with beams; and a cache of one's own that goes
    on.
    """
    model = model_of(name)
    model.set_attn_implementation(attention)
    padded = {"attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])}
    calls = [
        {"max_new_tokens": 6, "do_sample": False},
        {"max_new_tokens": 4, "do_sample": False, **padded},
        {"max_new_tokens": 4, "num_beams": 3, "do_sample": False},
        {"prompt": PROMPT[:, :3], "max_new_tokens": 3, "do_sample": False},
        {"max_new_tokens": 6, "do_sample": False},
    ]

    def all_of(model, **more):
        made = [scored(model, **{"prompt": PROMPT, **call}, **more) for call in calls]
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        first = model.generate(PROMPT, **{CACHE: cache}, max_new_tokens=3, do_sample=False)
        return (
            made,
            first,
            model.generate(first, **{CACHE: cache}, max_new_tokens=3, do_sample=False),
        )

    config = model.config
    wanted = all_of(model, cache_implementation="static")
    dynamic = model.generate(PROMPT, max_new_tokens=6, do_sample=False)
    with offloaded(model) as ours:
        assert any(cache_op.op == "prefetch" for cache_op in ours.plan.cache_ops)
        assert same(all_of(ours), wanted)
        assert torch.equal(ours.generate(PROMPT, max_new_tokens=6, do_sample=False), dynamic)


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_windows_that_slide(name, attention):
    """More tokens than a window has: the cache keeps all of them, and the mask has the window."""
    if name == "mistral":
        model = model_of(name)  # whose window has eight tokens
    else:
        kinds = ["sliding_attention", "full_attention"]
        config = transformers.Gemma3TextConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=3,
            layer_types=kinds,
        )
        torch.manual_seed(0)
        model = transformers.Gemma3ForCausalLM(config).eval()
        model.generation_config.update(eos_token_id=None, pad_token_id=0)
    model.set_attn_implementation(attention)
    greedy = {"max_new_tokens": 8, "do_sample": False}
    padded = {"attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])}
    length = PROMPT.shape[1] + greedy["max_new_tokens"] - 1  # the last token is not looked at

    def whole():
        cache = transformers.StaticCache(config=model.config, max_cache_len=length)
        cache.layers = [StaticLayer(max_cache_len=length) for _ in cache.layers]
        return cache

    wanted = [scored(model, **greedy, **{CACHE: whole()}, **more) for more in ({}, padded)]
    dynamic = [scored(model, **greedy, **more) for more in ({}, padded)]
    with offloaded(model) as ours:
        made = [scored(ours, **greedy, **more) for more in ({}, padded)]
        assert len(ours.programs) <= 4  # and not one for each of 16 tokens
    for one, same_cache, default in zip(made, wanted, dynamic, strict=True):
        assert same(one, same_cache)
        assert torch.equal(one[0], default[0])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one[1], default[1], strict=True))


@pytest.mark.long
def test_models_that_cannot():
    window = (
        "StaticSlidingWindowLayer changes at each token in a way that a captured program "
        "cannot repeat; give generate no cache"
    )
    model = model_of("mistral")
    own = transformers.StaticCache(config=model.config, max_cache_len=8)
    with offloaded(model, policy="layerwise", parameters={}, budget=None) as ours:
        assert refused(ours, PROMPT, **{CACHE: own}).startswith(window)
    both = {"input_ids": PROMPT, "decoder_input_ids": PROMPT, "use_cache": False}
    with hosim.offload(model_of("t5"), both, hardware=MACHINE, policy="layerwise") as ours:
        assert (
            refused(ours, PROMPT)
            == "generate calls encoder and decoder apart, and only models without an encoder can "
            "do so offloaded"
        )
