"""A workload by the name of a model, with parameters of its builder behind it."""

import pytest

import hosim
from hosim.errors import InputError
from hosim.importers.named_workload import load_named


def test_a_name_and_its_parameters_are_those_of_the_builder():
    named = load_named("gpt2:phase=decode:batch=2:context=64:config.n_layer=3:config.dropout=0.5:fused=true:link=3 GB/s:layers=null")
    config = {"n_layer": 3, "dropout": 0.5}
    parameters = {"model": "gpt2", "phase": "decode", "batch": 2, "context": 64, "config": config, "fused": True}
    assert named == hosim.load({**parameters, "link": "3 GB/s", "layers": None})
    assert named.name == "gpt2-decode"
    assert hosim.load("gpt2:layers=1").ops == hosim.load({"model": "gpt2", "layers": 1}).ops


def test_a_file_of_a_models_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").write_text("format: hosim.spec/1\nname: mine\nbuilder: {model: gpt2, layers: 1}\n")
    assert load_named("gpt2").name == "mine"
    assert load_named("gpt2:layers=1").name == "gpt2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lama-3.1-8b", "lama-3.1-8b: no file, no shipped workload and no model of that name; did you mean 'llama-3.1-8b'?"),
        ("bert-large-trains", "bert-large-trains: no file and no shipped workload of that name; did you mean 'bert-large-train'?"),
        ("zzzzz", "zzzzz: no file and no shipped workload of that name (shipped:"),
        ("gpt2:", "workload gpt2: expected parameter=value after the colon, got ''"),
        ("gpt2:batch", "workload gpt2: expected parameter=value after the colon, got 'batch'"),
        ("gpt2:batch=4k", "workload gpt2: batch: expected an integer, got '4k'"),
        ("gpt2:bach=4", "workload gpt2: bach: unknown parameter 'bach'; did you mean 'batch'?"),
        ("gpt2:config=2:config.n_layer=2", "workload gpt2: config.n_layer: expected parameters that are no part of one another"),
        ("gpt2:model=bert-base:tensor=2", "workload gpt2: model: the model is named before the colon"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        load_named(text)
    assert str(caught.value).startswith(message)
