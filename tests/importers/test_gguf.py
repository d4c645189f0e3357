"""The header of a GGUF is a workload: sizes from its metadata, and the bytes of each weight as its
type says.
"""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_gguf import MODELS, gguf, size_of, text, told
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io.importers import read_gguf

STORED = ("parameter", "expert")


def written(folder: Path, name: str, **changes: Any) -> str:
    metadata, weights = MODELS[name]
    path = folder / f"{name}.gguf"
    path.write_bytes(
        gguf({**metadata, **changes.get("metadata", {})}, changes.get("weights", weights))
    )
    return str(path)


def bytes_of(graph: hosim.Graph) -> int:
    return sum([tensor.size_bytes for tensor in graph.tensors if tensor.kind in STORED])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "run", ["", ":phase=decode:context=64:merged=true", ":phase=decode:context=64"]
)
def test_the_weights_as_built_are_those_of_the_file_to_the_byte(
    name: str, run: str, tmp_path: Path
) -> None:
    weights = MODELS[name][1]
    graph = hosim.load(written(tmp_path, name) + run)
    # what routing corrects, and a table of llama.cpp's, are no weights that a step learns
    beside = {
        key: weight
        for key, weight in weights.items()
        if "exp_probs_b" in key or "rope_freqs" in key
    }
    assert bytes_of(graph) == size_of(weights) - size_of(beside)
    assert "left_out" not in graph.meta


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_model_that_a_config_describes(name: str, tmp_path: Path) -> None:
    """The same ops, for a builder that is told the same sizes by a config.json of transformers."""
    config = hosim.load(written(tmp_path, name)).meta["builder"]["model"]
    plain = {key: value for key, value in config.items() if key != "gguf"}
    one, other = (
        hosim.load({"model": each, "phase": "decode", "context": 64, "merged": True})
        for each in (config, plain)
    )
    assert [(op.name, op.kind, op.flops, op.inputs, op.outputs) for op in one.ops] == [
        (op.name, op.kind, op.flops, op.inputs, op.outputs) for op in other.ops
    ]
    assert bytes_of(one) < bytes_of(other)


def test_a_product_reads_what_its_weight_takes(tmp_path: Path) -> None:
    graph = hosim.load(written(tmp_path, "llama") + ":phase=decode:context=64:merged=true")
    op = graph.ops[graph.op_index["model.layers.0.self_attn.qkv_proj"]]
    weight = 256 * (256 + 128) * 4.5 / 8 + 256 * 128 * 6.5625 / 8  # Q4_K, Q4_K and Q6_K
    assert op.bytes_accessed == weight + 2 * 256 + 2 * 512
    assert op.dtype == "int4_weights"
    head = graph.ops[graph.op_index["lm_head"]]
    assert (head.dtype, head.bytes_accessed) == (
        "int8_weights",
        256 * 512 * 6.5625 / 8 + 2 * 256 + 2 * 512,
    )


def test_an_expert_takes_its_share(tmp_path: Path) -> None:
    graph = hosim.load(written(tmp_path, "qwen3moe") + ":phase=decode:context=64:merged=true")
    apart = [
        tensor
        for tensor in graph.tensors
        if tensor.kind == "expert" and not tensor.name.endswith("[rest]")
    ]
    sizes = {tensor.of.rpartition(".")[2]: tensor.size_bytes for tensor in apart}
    assert sizes == {"gate_up_proj": 2 * 256 * 256 * 4.5 / 8, "down_proj": 256 * 256 * 6.5625 / 8}
    assert len(apart) == 2 * 2 * 2  # layers, chosen experts, factors


def test_it_is_a_workload_of_every_command(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3moe")
    asked = [
        "compare-policies",
        f"{path}:phase=decode:context=64:merged=true:layers_on=device/ddr",
        "-H",
        "rtx-4090",
        "-b",
        "1500KiB",
        "--json",
    ]
    outcome = CliRunner().invoke(app, [*asked, "-p", "llama_cpp:fit_target=0B"])
    assert outcome.exit_code == 0, outcome.output
    (result,) = json.loads(outcome.stdout)["results"]
    assert result["feasible"]
    plan = hosim.plan(
        f"{path}:phase=decode:context=64:merged=true",
        "rtx-4090",
        "llama_cpp:override_tensor=blk.1.ffn_.*_exps=CPU",
    )
    assert [op.name for op in plan.graph.ops if op.processor] == [
        "model.embedding",
        "model.layers.1.mlp.experts",
    ]


def test_weights_that_the_model_has_not_are_said(tmp_path: Path) -> None:
    metadata, weights = MODELS["llama"]
    more = {
        **weights,
        "blk.0.attn_gate.weight": ("Q8_0", (256, 32)),
        "blk.1.attn_gate.weight": ("Q8_0", (256, 32)),
    }
    path = written(tmp_path, "llama", weights=more)
    (line,) = [
        line for line in hosim.load(path).meta["left_out"] if line.startswith("weights of the file")
    ]
    assert "blk.0.attn_gate.weight and 1 other (17.0 KiB)" in line
    lacking = {key: weight for key, weight in weights.items() if "ffn_down" not in key}
    lines = hosim.load(written(tmp_path, "llama", weights=lacking)).meta["left_out"]
    assert any(["model.layers.0.mlp.down_proj.weight and 1 other" in line for line in lines])
    assert any([line.startswith("weights ") for line in lines])
    assert metadata["llama.block_count"] == 2
    assert "left_out" not in hosim.load(written(tmp_path, "llama") + ":layers=1").meta


def test_layers_that_predict_further_tokens_are_left_out_by_name(tmp_path: Path) -> None:
    changes = {"deepseek2.block_count": 3, "deepseek2.nextn_predict_layers": 1}
    weights = {**MODELS["deepseek2"][1], "blk.2.nextn.eh_proj.weight": ("Q8_0", (512, 256))}
    graph = hosim.load(written(tmp_path, "deepseek2", metadata=changes, weights=weights))
    assert any(["num_nextn_predict_layers: 1" in line for line in graph.meta["left_out"]])
    assert any(["blk.2.nextn.eh_proj.weight" in line for line in graph.meta["left_out"]])


def test_a_weight_of_another_size_than_the_metadata_says_is_refused(tmp_path: Path) -> None:
    weights = {**MODELS["llama"][1], "blk.1.ffn_down.weight": ("Q6_K", (512, 128))}
    with pytest.raises(
        InputError,
        match=r"blk\.1\.ffn_down\.weight has 65,536 elements, and "
        r"model\.layers\.1\.mlp\.down_proj\.weight",
    ):
        hosim.load(written(tmp_path, "llama", weights=weights))


def test_a_model_in_several_files(tmp_path: Path) -> None:
    metadata, weights = MODELS["qwen3moe"]
    names = list(weights)
    for n, part in enumerate((names[:9], names[9:])):
        said = {
            **(metadata if n == 0 else {"general.architecture": "qwen3moe"}),
            "split.count": 2,
            "split.no": n,
        }
        (tmp_path / f"m-0000{n + 1}-of-00002.gguf").write_bytes(
            gguf(said, {name: weights[name] for name in part})
        )
    whole = hosim.load(written(tmp_path, "qwen3moe"))
    for n in (1, 2):
        assert hosim.load(str(tmp_path / f"m-0000{n}-of-00002.gguf")).tensors == whole.tensors
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(InputError, match="number 2 is not beside it"):
        hosim.load(str(tmp_path / "m-00001-of-00002.gguf"))


def test_versions_2_and_3_are_alike(tmp_path: Path) -> None:
    for version in (2, 3):
        (tmp_path / "m.gguf").write_bytes(gguf(*MODELS["llama"], version=version))
        assert read_gguf(tmp_path / "m.gguf").weights["token_embd.weight"].shape == (256, 512)


HEAD = b"GGUF" + struct.pack("<I", 3)
ONE = struct.pack("<QQ", 1, 0)
HOSTILE = {
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "expected version 2 or 3, got 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "too short": (b"GGUF\3\0", "ends here"),
    "tensors past the end": (HEAD + struct.pack("<QQ", 2**60, 0), "tensor_count: says"),
    "keys past the end": (HEAD + struct.pack("<QQ", 0, 2**63), "metadata_kv_count: says"),
    "a name past the end": (HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62) + 40 * b"a", "past the end"),
    "a long name": (HEAD + struct.pack("<QQ", 0, 1) + text("a" * 20_000) + struct.pack("<IB", 0, 1), "characters in a "
        "name"),
    "a name that is no text": (HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20), "UTF-8"),
    "an unknown kind of metadata": (HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IQ", 77, 1), "0 to 12, got 77"),
    "an array past the end": (HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 10, 2**61), "past the end"),
    "an array of arrays": (HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(16), "numbers or texts"),
    "a text past the end in an array": (
        HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 2**40), "past the end"
    ),
    "a key twice": (HEAD + struct.pack("<QQ", 0, 2) + 2 * (text("k") + struct.pack("<II", 4, 1)), "k: is given twice"),
    "an unknown type": (HEAD + ONE + text("w") + struct.pack("<IQIQ", 1, 32, 999, 0), "that hosim knows"),
    "five dimensions": (HEAD + ONE + text("w") + struct.pack("<I5QIQ", 5, 1, 1, 1, 1, 1, 0, 0), "1 to 4 dimensions"),
    "no elements": (HEAD + ONE + text("w") + struct.pack("<IQIQ", 1, 0, 0, 0), "expected "
        "dimensions of at least 1"),
    "too many elements": (HEAD + ONE + text("w") + struct.pack("<I2QIQ", 2, 2**40, 2**40, 0, 0), "expected "
        "dimensions"),
    "half a block": (HEAD + ONE + text("w") + struct.pack("<IQIQ", 1, 100, 12, 0), "blocks of 256"),
    "a weight twice": (HEAD + struct.pack("<QQ", 2, 0) + 2 * (text("w") + struct.pack("<IQIQ", 1, 32, 0, 0)), "w: is listed twice"),
    "no architecture": (HEAD + struct.pack("<QQ", 0, 0), "general.architecture: expected an "
        "architecture"),
    "an unknown one": (gguf({"general.architecture": "qwen3mo"}, {}), "did you mean 'qwen3moe'"),
    "no table": (gguf(told("llama"), {"output.weight": ("F32", (256, 512))}), "token_embd.weight"),
    "a missing size": (gguf(told("llama", block_count=None), MODELS["llama"][1]), "llama.block_count: "
        "expected a number"),
    "layers of several sizes": (gguf(told("llama", feed_forward_length=[512, 256]), MODELS["llama"][1]), "layers of one size"),
    "values of another width": (gguf(told("llama", attention__value_length=32), MODELS["llama"][1]), "as wide as keys"),
    "a size that is a text": (gguf(told("llama", block_count="two"), MODELS["llama"][1]), "llama.block_count: "
        "expected a number"),
    "more predictions than layers": (gguf(told("llama", nextn_predict_layers=9), MODELS["llama"][1]), "num_hidden_layers"),
    "a part without its number": (gguf({**told("llama"), "split.count": 3}, MODELS["llama"][1]), "is one of 3 files"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_gets_one_line(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    (tmp_path / "m.gguf").write_bytes(content)
    outcome = CliRunner().invoke(
        app, ["compare-policies", str(tmp_path / "m.gguf"), "-H", "toy", "-p", "resident"]
    )
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1), outcome.output
    assert message in outcome.stderr
    assert "m.gguf" in outcome.stderr


@given(cut=st.integers(0, 10_000), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_whatever_is_changed_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int
) -> None:
    content = bytearray(gguf(*MODELS["qwen3moe"]))
    content[at % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(bytes(content[: len(content) - cut % len(content)]))
    with contextlib.suppress(InputError):
        hosim.load(str(path))


def test_no_weight_is_read(tmp_path: Path) -> None:
    """A header that is all there is of the file is enough; and what follows is not looked at."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*MODELS["llama"]))
    alone = hosim.load(str(path))
    with path.open("ab") as file:
        file.truncate(3 * 2**40)  # sparse
    assert hosim.load(str(path)).tensors == alone.tensors
