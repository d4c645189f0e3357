"""The folder of a checkpoint is its bytes: files beside the config say how weights are packed and
how many bytes they are.
"""

import json
import struct

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
CONFIG |= {"vocab_size": 96, "torch_dtype": "bfloat16"}
PACKINGS = {
    "hf_quant_config.json": (
        {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        },
        {"weights": "fp8_e4m3", "activations": "fp8"},
    ),
    "quantize_config.json": (
        {"bits": 4, "group_size": 64, "desc_act": False, "sym": True},
        {"weights": "gptq4", "group": 64},
    ),
    "quant_config.json": (
        {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"},
        {"weights": "awq4", "group": 64},
    ),
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def bytes_of(graph):
    return sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")


@pytest.mark.parametrize("name", PACKINGS)
def test_other_files_say_how_weights_are_packed(name, folder):
    said, run = PACKINGS[name]
    write(folder, name, said)
    graph = hosim.load(folder / "config.json")
    assert graph.tensors == hosim.load({"model": CONFIG, **run}).tensors
    assert hosim.load(str(folder)) == graph
    assert "left_out" not in graph.meta
    write(
        folder, "config.json", {**CONFIG, "quantization_config": {"quant_method": "quip"}}
    )  # the config comes first
    (line,) = hosim.load(str(folder)).meta["left_out"]
    assert facts(line, "quip") == "quip"


@pytest.mark.parametrize("off", [1.0, 1.019, 1.03, 0.97, 0.05])
@pytest.mark.parametrize(
    "run", [{}, {"phase": "decode"}, {"phase": "train"}, {"tensor": 2}, {"layers": 1}]
)
def test_other_bytes_than_those_of_the_files_are_said(off, run, folder):
    built = bytes_of(hosim.load({"model": CONFIG}))
    write(folder, INDEX, {"metadata": {"total_size": round(built * off)}, "weight_map": {}})
    said = hosim.load({"model": str(folder), **run}).meta.get("left_out", [])
    lines = [
        line for line in said if line.startswith("weights as the checkpoint's files have them: ")
    ]
    assert bool(lines) == (abs(off - 1) > 0.02)
    again = hosim.load(hosim.load({"model": str(folder), **run}).meta["builder"])
    assert again.meta.get("left_out", []) == said
    wide = hosim.load({"model": str(folder), "dtype": "fp32", "phase": "decode"}).meta["left_out"]
    assert "as built" in wide[0]  # what the user asks for is not what the files have, either


def test_a_single_file_has_its_bytes_in_its_header(folder):
    built = bytes_of(hosim.load({"model": CONFIG}))
    for size, said in ((built, False), (2 * built, True)):
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", 16) + b"{}" + 14 * b" ")
            file.truncate(24 + size)
        assert ("left_out" in hosim.load(str(folder)).meta) == said
    (folder / "model.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\n"
    )  # a pointer to the file
    assert "left_out" not in hosim.load(str(folder)).meta


def test_the_line_stands_in_results(folder):
    write(folder, INDEX, {"metadata": {"total_size": 12345678}, "weight_map": {}})
    shown = CliRunner().invoke(app, ["import", str(folder), "-o", str(folder / "out.json")])
    assert shown.exit_code == 0
    assert "weights as the checkpoint's files have them: 11.8 MiB" in shown.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("hf_quant_config.json", [], "hf_quant_config.json: expected a mapping"),
        ("hf_quant_config.json", {}, "hf_quant_config.json: quantization: expected a mapping"),
        (
            INDEX,
            {"metadata": {"total_size": "12"}},
            f"config.json: {INDEX}.metadata.total_size: expected a number of bytes, got '12'",
        ),
        (
            INDEX,
            {"metadata": {"total_size": -1}},
            f"config.json: {INDEX}.metadata.total_size: expected a number of bytes, got -1",
        ),
    ],
)
def test_what_is_wrong_with_these_files_is_named(name, content, message, folder):
    write(folder, name, content)
    with pytest.raises(InputError) as caught:
        hosim.load(str(folder))
    assert str(caught.value).endswith(message)


def test_an_index_without_a_size_says_nothing(folder):
    for content in ({}, {"metadata": {}}, {"metadata": None}, {"weight_map": {}}):
        write(folder, INDEX, content)
        assert "left_out" not in hosim.load(str(folder)).meta


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"hidden_size": 256}', '{"model_type": ["llama"]}']
)
def test_a_config_of_a_folder_that_is_none_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json: ") as refused:
        hosim.load(tmp_path)
    assert "folder holds no graph" not in str(refused.value)


def test_a_config_whose_model_type_comes_late_is_one(tmp_path):
    names = {str(n): f"LABEL_{n}" for n in range(20_000)}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": names, **CONFIG}))
    assert hosim.load(tmp_path).tensors


def test_a_config_with_the_mark_of_an_editor_is_read(tmp_path):
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert hosim.load(path).tensors


def test_heads_of_keys_divide_those_of_queries(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "num_key_value_heads": 3}))
    with pytest.raises(InputError, match="num_key_value_heads: expected a divisor of the 4 heads"):
        hosim.load(path)
