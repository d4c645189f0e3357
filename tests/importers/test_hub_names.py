"""Models by their names on the hub: a preset's sizes, or the config that the hub's cache has."""

import json

import pytest

import hosim
from hosim.errors import InputError

SMALL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
}


@pytest.mark.parametrize(
    ("hub", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("openai-community/gpt2", "gpt2"),
        ("bigscience/bloom", "bloom-176b"),
        ("google/vit-base-patch16-224", "vit-b-16"),
    ],
)
def test_names_of_the_hub_are_presets(hub, preset):
    assert hosim.load(f"{hub}:layers=1") == hosim.load(f"{preset}:layers=1")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path / "models--mine--Small-1B"


def test_others_are_what_the_cache_of_the_hub_has(cache):
    """The revision that the cache calls main, whatever else it has."""
    for revision, layers in (("a" * 40, 2), ("b" * 40, 3)):
        (cache / "snapshots" / revision).mkdir(parents=True)
        config = {**SMALL, "num_hidden_layers": layers}
        (cache / "snapshots" / revision / "config.json").write_text(json.dumps(config))
    expected = {n: hosim.load({**SMALL, "num_hidden_layers": n}) for n in (2, 3)}
    assert hosim.load("mine/Small-1B") == expected[3]
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    assert hosim.load("mine/Small-1B") == expected[2]
    assert hosim.load("mine/Small-1B:phase=decode").ops != expected[2].ops


@pytest.mark.parametrize("name", ["mine/Small-1B", "mistralai/Mistral-7B-v0.1", "a/llama-3.1-9b"])
def test_what_nobody_has_is_refused_in_one_line(cache, name):
    """Mistral 7B has other vocabularies in other versions: none is taken for another."""
    with pytest.raises(
        InputError, match=r"no preset .* give the path of its config\.json"
    ) as raised:
        hosim.load(name)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
