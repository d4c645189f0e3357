"""Files as torch, ONNX exporters and MindSpore write them, read by hosim: what each family has, and
FLOP beside those of torch's counter.

``python tests/importers/real_files.py [FOLDER] [NAME ...]`` writes them (all, or those whose names
begin so) into a folder, a temporary one by default, imports each in turn and prints a table. Models
are tiny ones of transformers with random weights, so nothing is downloaded. With onnxruntime and
onnxruntime-genai in the environment, models that its optimiser, its quantiser and its generator
wrote are there, too. The MindIR files are those beside this file, which MindSpore wrote.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ExecutionTraceObserver
from torch.utils.flop_counter import FlopCounterMode
from transformers.integrations.executorch import register_dynamic_cache_export_support

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from exported_models import DEEPSEEK, GQA, MODELS, TEXT, TINY, inputs_of, model_of  # noqa: E402
from small_models import SMALL  # noqa: E402

from hosim.data.unknown_ops import unknown_ops  # noqa: E402
from hosim.errors import HosimError  # noqa: E402
from hosim.io import load_any  # noqa: E402

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "opt": ("OPTForCausalLM", {**TEXT, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "bloom": ("BloomForCausalLM", {**TEXT, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconForCausalLM", TEXT),
    "mpt": ("MptForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "vocab_size": 120, "expansion_ratio": 2}),
    "phi": ("PhiForCausalLM", TEXT),
    "phi3": ("Phi3ForCausalLM", {**GQA, "pad_token_id": 0}),
    "gemma2": ("Gemma2ForCausalLM", {**GQA, "head_dim": 16, "sliding_window": 8}),
    "gemma3": ("Gemma3ForCausalLM", {**GQA, "head_dim": 16, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", GQA),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**GQA, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "gpt_neox": ("GPTNeoXForCausalLM", TEXT),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**GQA, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "pad_token_id": 0},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 120, "max_source_positions": 50, "num_mel_bins": 16,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        },
    ),
    "distilbert": (
        "DistilBertModel",
        {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 120, "max_position_embeddings": 128},
    ),
    "clip": ("CLIPVisionModel", {**TINY, "image_size": 48, "patch_size": 8}),
    "resnet": ("ResNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}),
    "mamba": ("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 120, "state_size": 4}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**DEEPSEEK, "topk_method": "greedy"}),
}  # fmt: skip
STATIC = (
    "llama",
    "qwen3",
    "mistral",
    "gpt2",
    "bert",
    "vit",
    "t5",
    "mixtral",
    "deepseek_v3",
    "gpt_oss",
    "whisper",
    "resnet",
    "phi",
    "deepseek_v2",
    "mamba",
)
DYNAMIC = (
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "phi3",
    "gemma2",
    "gemma3",
    "qwen2",
    "qwen3_moe",
    "gpt_neox",
    "clip",
    "distilbert",
)
"""Families whose ``.pt2`` has a free batch, and a free length where it has tokens."""

CACHING = ("gpt_oss", "opt", "phi3", "qwen2")
"""Families that return their key-value cache, as they do unless told otherwise; torch needs to know
its class.
"""


@dataclass(frozen=True)
class Written:
    """A file, the sizes to import it with, and what torch's counter says (``None``: nobody
    counted).
    """

    name: str
    path: Path
    flops: int | None
    sizes: Mapping[str, int]


def model(name: str) -> torch.nn.Module:
    """A small model of a family."""
    if name in MODELS:
        return model_of(name)
    class_name, config = MORE[name]
    cls = getattr(transformers, class_name)
    made = cls.config_class(**config)
    if name not in CACHING and hasattr(made, "use_cache"):
        made.use_cache = False
    torch.manual_seed(0)
    return cls(made).eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    """What it is called with."""
    if name in ("vit", "clip", "resnet"):
        return inputs_of("vit")
    if name == "whisper":
        return {
            "input_features": torch.rand(2, 16, 100),
            "decoder_input_ids": inputs_of("t5")["decoder_input_ids"][:2, :20],
        }
    return inputs_of(name)


def counted(call: Callable[[], Any], module: torch.nn.Module | None = None) -> int:
    """What torch's counter says of a call, with attention as products and experts one by one: it
    does not know the fused ones.
    """
    if module is not None:
        with suppress(ValueError, AttributeError):  # a model without experts
            module.set_experts_implementation("eager")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return counter.get_total_flops()


def pt2(name: str, folder: Path, free: bool) -> Written:
    """The program as the documentation says to write it, with the model's own configuration."""
    module, given = model(name), inputs(name)
    shapes: Any = None
    if free:
        shapes = {
            key: {
                0: torch.export.Dim.DYNAMIC,
                **({1: torch.export.Dim.DYNAMIC} if value.ndim == 2 else {}),
            }
            for key, value in given.items()
        }
    if name in CACHING:
        register_dynamic_cache_export_support()
    path = folder / f"{name}{'_free' if free else ''}.pt2"
    torch.export.save(torch.export.export(module, (), given, dynamic_shapes=shapes), path)
    return Written(path.name, path, counted(lambda: module(**given), module), {})


def traced(name: str, folder: Path) -> Written:
    """The execution trace of a training step, recorded by torch."""
    if name in SMALL:
        make, given = SMALL[name]
        module = make().train()
    else:
        module, given = model(name).train(), inputs(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        result = module(**given) if isinstance(given, dict) else module(*given)
        (
            result if isinstance(result, torch.Tensor) else result[0]
        ).float().square().mean().backward()
        optimizer.step()

    path = folder / f"{name}.et.json"
    with sdpa_kernel(SDPBackend.MATH):
        step()
        observer = ExecutionTraceObserver().register_callback(str(path))
        observer.start()
        step()
        observer.stop()
        observer.unregister_callback()
        with FlopCounterMode(display=False) as counter:
            step()
    return Written(path.name, path, counter.get_total_flops(), {})


class Positional(torch.nn.Module):
    """A model that takes its inputs by position and returns its first result, as exporters of old
    want it.
    """

    def __init__(self, module: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.module(**dict(zip(self.names, given, strict=True)))[0]


def onnx_of(name: str, folder: Path, dynamo: bool, free: bool = False) -> Written:
    """The model as ``torch.onnx.export`` writes it."""
    module, given = model(name), inputs(name)
    path = folder / f"{name}{'' if dynamo else '_legacy'}{'_free' if free else ''}.onnx"
    sizes = {}
    if dynamo:
        shapes = {key: {0: "batch", 1: "tokens"} for key in given} if free else None
        torch.onnx.export(
            module, (), path, kwargs=given, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        sizes = (
            dict(zip(("batch", "tokens"), next(iter(given.values())).shape, strict=False))
            if free
            else {}
        )
    else:
        wrapped = Positional(module, list(given))
        torch.onnx.export(
            wrapped,
            tuple(given.values()),
            str(path),
            dynamo=False,
            input_names=list(given),
            opset_version=18,
        )
    return Written(path.name, path, counted(lambda: module(**given), module), sizes)


def optimised(name: str, folder: Path) -> Written:
    """The legacy model after onnxruntime's own optimiser."""
    import onnxruntime

    plain = onnx_of(name, folder, dynamo=False)
    path = folder / f"{name}_ort.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(plain.path), options, providers=["CPUExecutionProvider"])
    return Written(path.name, path, plain.flops, {})


def quantised(name: str, folder: Path) -> Written:
    """The legacy model after onnxruntime's quantiser to 4 bits."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    plain = onnx_of(name, folder, dynamo=False)
    path = folder / f"{name}_4bit.onnx"
    quantiser = MatMulNBitsQuantizer(onnx.load(plain.path), block_size=32, is_symmetric=True)
    quantiser.process()
    quantiser.model.save_model_to_file(str(path))
    return Written(path.name, path, plain.flops, {})


def generated(name: str, folder: Path, precision: str) -> Written:
    """The model as the generator of onnxruntime-genai writes it, for a prompt."""
    from tokenizers import Tokenizer, models

    module, given = model(name), inputs(name)
    source, made = folder / f"{name}_hf", folder / f"{name}_{precision}_genai"
    module.config.architectures = [type(module).__name__]
    module.save_pretrained(source)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(120)}, unk_token="t0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(source)
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        source,
        "-o",
        made,
        "-p",
        precision,
        "-e",
        "cpu",
        "-c",
        folder,
    ]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    batch, tokens = given["input_ids"].shape
    width = (
        getattr(module.config, "head_dim", None)
        or module.config.hidden_size // module.config.num_attention_heads
    )
    sizes = {
        "batch_size": batch,
        "sequence_length": tokens,
        "total_sequence_length": tokens,
        "past_sequence_length": 0,
        "kv_cache_dim": width,
    }
    return Written(made.name, made / "model.onnx", counted(lambda: module(**given), module), sizes)


def mindir(name: str) -> Written:
    """A file that MindSpore wrote, and the FLOP of its products as its maker worked them out."""
    truth = json.loads((HERE / "data" / "mindir_truth.json").read_text())["networks"][name]
    flops = sum(2 * b * m * k * n for b, m, k, n in truth["products"])
    path = HERE / "data" / f"mindir_{name}.mindir"
    return Written(path.name, path, flops, {})


def all_files(folder: Path) -> Iterator[tuple[str, Callable[[], Written]]]:
    """The name of every file, and what writes it."""
    for name in STATIC:
        yield f"{name}.pt2", lambda name=name: pt2(name, folder, free=False)
    for name in DYNAMIC:
        yield f"{name}_free.pt2", lambda name=name: pt2(name, folder, free=True)
    for name in ("llama", "bert", "vit", "mistral"):
        yield f"{name}.onnx", lambda name=name: onnx_of(name, folder, dynamo=True)
    for name in ("gpt_neox", "gpt2"):
        yield f"{name}_free.onnx", lambda name=name: onnx_of(name, folder, dynamo=True, free=True)
    for name in ("distilbert", "vit", "resnet"):
        yield f"{name}_legacy.onnx", lambda name=name: onnx_of(name, folder, dynamo=False)
    if find_spec("onnxruntime"):
        for name in ("distilbert", "resnet"):
            yield f"{name}_ort.onnx", lambda name=name: optimised(name, folder)
        yield "vit_4bit.onnx", lambda: quantised("vit", folder)
    if find_spec("onnxruntime_genai"):
        for name, precision in (("llama", "int4"), ("qwen3", "fp32"), ("gemma", "int4")):
            yield (
                f"{name}_{precision}_genai",
                lambda name=name, precision=precision: generated(name, folder, precision),
            )
    for name in ("mlp", "conv", "llama", "vit", "t5", "bert"):
        yield f"{name}.et.json", lambda name=name: traced(name, folder)
    for name in ("mlp", "conv", "block", "branches", "step", "embedded"):
        yield f"mindir_{name}.mindir", lambda name=name: mindir(name)


def line(name: str, write: Callable[[], Written]) -> tuple[str, bool]:
    """A line of the table, and whether all is well."""
    noise = io.StringIO()
    try:
        with redirect_stdout(noise), redirect_stderr(noise), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = write()
    except Exception as error:  # whatever an exporter raises: there is no file to read
        return f"{name:28} not written: {' '.join(str(error).split())[:120]}", False
    try:
        graph = load_any(written.path, written.sizes)
    except HosimError as error:
        return f"{name:28} refused: {error}"[:300], False
    flops, unknown = sum(op.flops for op in graph.ops), unknown_ops(graph)
    said = str(unknown) if unknown else "-"
    return (
        f"{name:28} {len(graph.ops):6,} {flops:15,} {written.flops or 0:15,}  {said}",
        flops == written.flops,
    )


def main() -> None:
    """Write, import and print."""
    logging.disable(logging.ERROR)
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[0]) if arguments else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wanted = arguments[1:]
        print(f"{'file':28} {'ops':>6} {'FLOP of hosim':>15} {'the counter':>15}  unknown")
        results = []
        for name, write in all_files(folder):
            if not wanted or any(name.startswith(start) for start in wanted):
                text, well = line(name, write)
                results.append(well)
                print(text if well else f"{text}  <--", flush=True)
        print(f"{sum(results)} of {len(results)} files imported with the counter's FLOP")


if __name__ == "__main__":
    main()
