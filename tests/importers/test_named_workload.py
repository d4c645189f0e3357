"""A workload by the name of a model, with parameters of its builder behind it."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import load_named


def test_a_name_and_its_parameters_are_those_of_the_builder():
    named = load_named(
        "gpt2:phase=decode:batch=2:context=64:config.n_layer=3:config.dropout=0.5:fused=true:link=3 "
        "GB/s:layers=null"
    )
    config = {"n_layer": 3, "dropout": 0.5}
    parameters = {
        "model": "gpt2",
        "phase": "decode",
        "batch": 2,
        "context": 64,
        "config": config,
        "fused": True,
    }
    built = hosim.load({**parameters, "link": "3 GB/s", "layers": None})
    assert named.name.startswith("gpt2-decode:batch=2:config.")
    assert "phase=" not in named.name
    assert named == built
    assert built.name.endswith(":fused=true:layers=null:link=3 GB/s")
    assert hosim.load("gpt2:layers=1").ops == hosim.load({"model": "gpt2", "layers": 1}).ops


def test_a_file_of_a_models_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").write_text(
        "format: hosim.spec/1\nname: mine\nbuilder: {model: gpt2, layers: 1}\n"
    )
    assert load_named("gpt2").name == "mine"
    assert load_named("gpt2:layers=1").name == "gpt2:layers=1"


def test_a_plan_for_other_parameters_is_refused(tmp_path):
    """The tensors of both have the same names."""
    one, other = load_named("gpt2:layers=1:sequence=8"), load_named("gpt2:layers=1:sequence=9")
    hosim.save_plan(hosim.plan(one, "h100", "resident"), tmp_path / "plan.json")
    assert (
        hosim.load_plan(tmp_path / "plan.json", load_named("gpt2:sequence=8:layers=1")).graph == one
    )
    with pytest.raises(
        InputError,
        match="this plan is for the workload 'gpt2:layers=1:sequence=8', not for "
        "'gpt2:layers=1:sequence=9'",
    ):
        hosim.load_plan(tmp_path / "plan.json", other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lama-3.1-8b",
            "lama-3.1-8b: no file, no shipped workload and no model of that name; did you mean "
            "'llama-3.1-8b'?",
        ),
        (
            "bert-large-trains",
            "bert-large-trains: no file and no shipped workload of that name; did you mean "
            "'bert-large-train'?",
        ),
        ("zzzzz", "zzzzz: no file and no shipped workload of that name (shipped:"),
        ("gpt2:", "workload gpt2: expected parameter=value after the colon, got ''"),
        ("gpt2:batch", "workload gpt2: expected parameter=value after the colon, got 'batch'"),
        ("gpt2:batch=4k", "workload gpt2: batch: expected an integer, got '4k'"),
        (
            "gpt2:phase=decode:sequence=64",
            "workload gpt2: sequence: phase=decode is of one token a sequence; how many are in "
            "the cache is its context",
        ),
        (
            "gpt2:phase=train:context=64",
            "workload gpt2: context: only phase=decode has a context; how long others are is "
            "their sequence",
        ),
        ("gpt2:bach=4", "workload gpt2: bach: unknown parameter 'bach'; did you mean 'batch'?"),
        (
            "gpt2:config=2:config.n_layer=2",
            "workload gpt2: config.n_layer: expected parameters that are no part of one another",
        ),
        ("gpt2:batch=2:batch=3", "workload gpt2: batch: is given twice; keep one"),
        (
            "gpt2:model=bert-base:tensor=2",
            "workload gpt2: model: the model is named before the colon",
        ),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        load_named(text)
    assert str(caught.value).startswith(message)


def test_a_checkpoint_is_a_workload_with_and_without_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(config))
    prompt, step = (
        hosim.load({"model": config}),
        hosim.load({"model": config, "phase": "decode", "batch": 3}),
    )
    for path in ("checkpoint", "./checkpoint", "checkpoint/config.json"):
        assert load_named(path).ops == prompt.ops
        assert replace(load_named(f"{path}:phase=decode:batch=3"), name=step.name) == step
    assert hosim.load({"model": "./checkpoint/", "phase": "decode", "batch": 3}) == step
    (tmp_path / "checkpoint/config.json").write_text(json.dumps({**config, "n_inner": 3}))
    with pytest.raises(
        InputError,
        match=r"^workload ./checkpoint: model.n_inner: the builder knows 256 only, got 3$",
    ):
        load_named("./checkpoint:phase=decode")
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError):
        load_named("./other:phase=decode")


@pytest.mark.parametrize("name", ["gpt2", "bert-large-train"])
def test_a_folder_hides_neither_a_model_nor_a_shipped_workload(name, tmp_path, monkeypatch):
    before = load_named(name).name
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_named(name).name == before


def test_a_config_is_a_model_wherever_a_model_is_named(tmp_path, monkeypatch):
    """In a workload, a spec (relative to it), parameters, requests that are served and their
    studies, with ``:tensor=2`` behind it.
    """
    (tmp_path / "inner").mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    (tmp_path / "inner/config.json").write_text(
        json.dumps({**config, "vocab_size": 128, "max_position_embeddings": 4096})
    )
    (tmp_path / "inner/spec.yaml").write_text(
        "format: hosim.spec/1\nname: mine\nbuilder: {model: config.json, phase: decode}\n"
    )
    monkeypatch.chdir(tmp_path)
    made = hosim.load({"model": "inner/config.json", "phase": "decode"})
    assert hosim.load("inner/spec.yaml") == replace(made, name="mine")
    assert hosim.load(
        {"name": "mine", "builder": {"model": "inner", "phase": "decode"}}
    ) == replace(made, name="mine")
    drawn = "poisson:rate=2:count=3:prompt=64:output=4"
    served = hosim.serve(
        {"model": json.loads((tmp_path / "inner/config.json").read_text())}, "h100", drawn
    )
    for model in (
        "inner/config.json",
        tmp_path / "inner/config.json",
        "inner",
        {"model": "inner/config.json"},
    ):
        assert hosim.serve(model, "h100", drawn).summary() == served.summary()
    assert served.summary()["model"] == made.name.replace("-decode", "")
    two = hosim.serve("inner/config.json:tensor=2", "h100", drawn).summary()
    assert two == hosim.serve({"model": "inner", "tensor": 2}, "h100", drawn).summary()
    assert two["devices"] == 2
    table = hosim.serve_sweep(
        "inner/config.json", "h100", drawn, vary={"token_budget": [64, 2048]}, jobs=1
    )
    assert table["ttft_mean_ns"][1] == round(served.summary()["ttft_ns"]["mean"])
    command = ["serve", "inner/config.json", "-H", "h100", "--requests", drawn, "--json"]
    assert (
        json.loads(CliRunner().invoke(app, command).stdout)["ttft_ns"]
        == served.summary()["ttft_ns"]
    )
    for wrong, message in (
        ("none.json", "error: none.json: no such file\n"),
        ("gtp2", "or the path of a config.json, got 'gtp2'; did you mean 'gpt2'?\n"),
        ("inner:tensor=2", "error: --tensor: tensor is given twice; keep one\n"),
    ):
        refused = CliRunner().invoke(app, ["serve", wrong, *command[2:], "--tensor", "2"])
        assert refused.exit_code == 2
        assert refused.stderr.endswith(message)
