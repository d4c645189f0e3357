"""Specs: strict, and the same workload every time."""

import copy
import sys

import pytest
import yaml

from hosim.errors import InputError
from hosim.io import load_any, save_workload

SPEC = {
    "format": "hosim.spec/1",
    "name": "tiny",
    "importer": "torch_export",
    "model": {
        "class": "LlamaForCausalLM",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "vocab_size": 64,
            "use_cache": False,
        },
        "dtype": "bf16",
    },
    "inputs": {"input_ids": {"shape": [1, 16], "dtype": "int64"}},
}


def changed(path, value):
    spec = copy.deepcopy(SPEC)
    *parents, last = path.split("/")
    at = spec
    for key in parents:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return spec


def load(tmp_path, spec):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(spec))
    return load_any(tmp_path / "tiny.yaml")


def test_a_spec_makes_the_same_file_again(tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    graph = load(tmp_path, SPEC)
    for name in ("a.json.gz", "b.json.gz"):
        save_workload(load(tmp_path, SPEC), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert load_any(tmp_path / "a.json.gz") == graph
    assert graph.name == "tiny"
    assert {op.dtype for op in graph.ops if op.kind in ("matmul", "attention")} == {"bf16"}
    assert graph.meta["transformers"] == transformers.__version__
    assert graph.meta["model"] == SPEC["model"]
    assert graph.meta["shapes"]["lm_head.weight"] == [64, 32]
    # a buffer that the model makes in fp32 stays so
    assert next(t.size_bytes for t in graph.tensors if t.name.endswith("inv_freq")) == 4 * 4


TRAINING = {
    **SPEC,
    "importer": "torch_train",
    "inputs": {key: {"shape": [2, 16], "dtype": "int64"} for key in ("input_ids", "labels")},
    "training": {"optimizer": "adamw-master", "micro_batches": 2, "checkpoint": True},
}


def test_a_spec_of_a_training_step(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    graph = load(tmp_path, TRAINING)
    for name in ("a.json.gz", "b.json.gz"):
        save_workload(load(tmp_path, TRAINING), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert load_any(tmp_path / "a.json.gz") == graph
    assert graph.meta["training"] == TRAINING["training"]
    sizes = {
        kind: sum(t.size_bytes for t in graph.tensors if t.kind == kind)
        for kind in ("parameter", "optimizer_state")
    }
    assert sizes["optimizer_state"] == 6 * sizes["parameter"] + 4 * sum(
        t.kind == "parameter" for t in graph.tensors
    )
    plain = load(tmp_path, {**TRAINING, "training": {"micro_batches": 2}})
    assert sum(op.flops for op in graph.ops) > sum(
        op.flops for op in plain.ops
    )  # checkpointing computes again


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("training", {}, "training: only the importer torch_train takes it"),
        ("training", {"optimiser": "sgd"}, "did you mean 'optimizer'"),
        ("training", {"micro_batches": 0}, "training.micro_batches"),
        ("extra", 1, "unknown key 'extra'"),
        ("importer", "tensorflow", "importer: expected 'torch_export'"),
        ("model", None, "model: missing"),
        ("model/class", "os.system", "model.class"),
        ("model/dtype", "int4", "model.dtype"),
        ("model/atention", "sdpa", "did you mean 'attention'"),
        ("inputs/input_ids/shape", [], "inputs.input_ids.shape"),
        ("inputs/input_ids/shape", [0], r"inputs.input_ids.shape\[0\]"),
        ("inputs/input_ids/dtype", "long", "inputs.input_ids.dtype"),
        ("inputs", {}, "inputs"),
        ("format", "hosim.spec/2", "newer hosim"),
    ],
)
def test_a_bad_spec(tmp_path, path, value, message):
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, changed(path, value))
    assert str(caught.value).startswith(str(tmp_path / "tiny.yaml"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "model/class",
            "LlamaForCausalLn",
            "no model 'LlamaForCausalLn'; did you mean 'LlamaForCausalLM'",
        ),
        ("model/class", "LlamaConfig", "'LlamaConfig' is not a model class"),
        (
            "model/config/hiden_size",
            3,
            "unknown key 'hiden_size' of LlamaConfig; did you mean 'hidden_size'",
        ),
        ("model/config/hidden_size", "big", "cannot be built from this config"),
        ("model/config/attn_implementation", "someone/kernel", "is not allowed in a spec"),
        (
            "model/config/rope_parameters",
            {"inner": [{"attn_implementation": "someone/kernel"}]},
            "is not allowed in a spec",
        ),
        ("inputs", {"pixels": {"shape": [1], "dtype": "fp32"}}, "cannot export LlamaForCausalLM"),
    ],
)
def test_a_spec_that_the_model_does_not_take(tmp_path, path, value, message):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, changed(path, value))
    assert str(caught.value).startswith(str(tmp_path / "tiny.yaml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("model/config/num_hidden_layers", 10**9, "num_hidden_layers"),
        ("model/config/n_layer", 1001, "n_layer"),
        ("model/config/vision_config", {"depths": [2, 10**9]}, "vision_config.depths"),
    ],
)
def test_a_config_of_too_many_layers_is_refused_before_torch_is_loaded(
    tmp_path, path, value, where, monkeypatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InputError,
        match=rf"model.config.{where}: expected at most 1000 layers, got "
        rf"{10**9 if value != 1001 else 1001};",
    ):
        load(tmp_path, changed(path, value))


def test_a_config_that_makes_many_modules_is_refused_while_they_are_made(tmp_path, monkeypatch):
    """Llama has 13 modules a layer, and 8 around them."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("HOSIM_LIMITS", "model_parts=20")
    with pytest.raises(
        InputError,
        match=r"tiny.yaml: model.config: expected at most 20 parts of a model, got more; "
        r"HOSIM_LIMITS=",
    ):
        load(tmp_path, changed("model/config/num_hidden_layers", 2))
