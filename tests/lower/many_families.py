"""Families of tiny models, as their packages build them: under a plan for a share of eager's peak,
bits, peaks, and eager's own peak beside torch's tracker.

``python tests/lower/many_families.py [NAME ...]`` prints a row for each; one of a package that is
not installed (timm, torchvision, diffusers) is left out. A family is bits that are eager's, or a
refusal in one line when it is captured.
"""

import copy
import gc
import importlib
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (2, 1, 0)]

import torch
import transformers
from exported_models import DEEPSEEK, GQA, TEXT, TINY
from occupancy import Occupancy
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._pytree import tree_leaves

import hosim
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.on_torch.lower.devices import CpuDevice

MACHINE = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
SHARES = ("75%", "50%")
STEPS = 3
TOKENS = {"input_ids": torch.arange(48).reshape(2, 24) * 7 % 117 + 3}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64 * 64).reshape(2, 3, 64, 64)}
SOUND = {"input_values": torch.linspace(-1, 1, 2 * 3200).reshape(2, 3200).sin()}
MOE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
MAMBA = {
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
GEMMA = {**GQA, "head_dim": 16, "sliding_window": 8}
MODULE = {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]}
CLIP_TEXT = {**TEXT, "projection_dim": 32}
CLIP_VISION = {**TINY, "image_size": 64, "patch_size": 16, "projection_dim": 32}

TRANSFORMERS = {
    "jamba": ("JambaForCausalLM", {
        **GQA, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
        "mamba_d_state": 8, "use_mamba_kernels": False,
    }, TOKENS),
    "nemotron": ("NemotronForCausalLM", GQA, TOKENS),
    "nemotron_h": ("NemotronHForCausalLM", {
        **GQA, "head_dim": 16, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "n_groups": 2, "chunk_size": 8, "layers_block_type": ["mamba", "attention", "mlp"],
        "num_hidden_layers": 3,
    }, TOKENS),
    "kimi_linear": ("KimiLinearForCausalLM", {
        **DEEPSEEK, "head_dim": 16, "num_experts": 4, "num_experts_per_token": 2,
        "linear_num_heads": 4, "linear_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"], "pad_token_id": 0,
    }, TOKENS),
    "qwen3_next": ("Qwen3NextForCausalLM", {
        **GQA, **MOE, **LINEAR, "head_dim": 16, "num_experts": 4,
        "shared_expert_intermediate_size": 32,
    }, TOKENS),
    "qwen3_5": ("Qwen3_5ForCausalLM", {**GQA, **LINEAR, "head_dim": 16}, TOKENS),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**GQA, **MOE, "num_experts": 4, "head_dim": 16}, TOKENS),
    "gemma2": ("Gemma2ForCausalLM", GEMMA, TOKENS),
    "gemma3": ("Gemma3ForCausalLM", MODULE, TOKENS),
    "gemma3n": ("Gemma3nForCausalLM", {
        **MODULE, "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 16,
        "laurel_rank": 8, "altup_num_inputs": 2, "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [96, 96],
    }, TOKENS),
    "t5gemma": ("T5GemmaForConditionalGeneration", {
        "encoder": MODULE, "decoder": {**MODULE, "cross_attention_hidden_size": 64},
        "vocab_size": 120,
    }, {**TOKENS, "decoder_input_ids": TOKENS["input_ids"][:, :16].clone()}),
    "falcon": ("FalconForCausalLM", TEXT, TOKENS),
    "falcon_h1": ("FalconH1ForCausalLM", {
        **GQA, **MAMBA, "head_dim": 16, "mamba_d_ssm": 128,
    }, TOKENS),
    "mamba": ("MambaForCausalLM", {**TEXT, "state_size": 8}, TOKENS),
    "mamba2": ("Mamba2ForCausalLM", {
        **TEXT, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8,
    }, TOKENS),
    "rwkv": ("RwkvForCausalLM", {**TEXT, "context_length": 64}, TOKENS),
    "lfm2": ("Lfm2ForCausalLM", {**GQA, "layer_types": ["conv", "full_attention"]}, TOKENS),
    "granite": ("GraniteForCausalLM", GQA, TOKENS),
    "granite_hybrid": ("GraniteMoeHybridForCausalLM", {
        **GQA, **MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 32, "layer_types": ["mamba", "attention"],
    }, TOKENS),
    "bamba": ("BambaForCausalLM", {**GQA, **MAMBA, "attn_layer_indices": [1]}, TOKENS),
    "zamba2": ("Zamba2ForCausalLM", {
        **GQA, "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 8, "chunk_size": 8,
        "layers_block_type": ["mamba", "hybrid"], "attention_head_dim": 32, "num_mem_blocks": 1,
        "hybrid_layer_ids": [1],
    }, TOKENS),
    "olmo3": ("Olmo3ForCausalLM", MODULE, TOKENS),
    "olmoe": ("OlmoeForCausalLM", {**GQA, "num_experts": 4, "num_experts_per_tok": 2}, TOKENS),
    "phi3": ("Phi3ForCausalLM", {**GQA, "pad_token_id": 0}, TOKENS),
    "phimoe": ("PhimoeForCausalLM", {
        **GQA, "num_local_experts": 4, "num_experts_per_tok": 2,
    }, TOKENS),
    "glm4_moe": ("Glm4MoeForCausalLM", {
        **DEEPSEEK, "head_dim": 16, "num_key_value_heads": 2,
    }, TOKENS),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {
        **DEEPSEEK, "topk_method": "greedy", "pad_token_id": 0, "head_dim": 8,
    }, TOKENS),
    "gpt_oss": ("GptOssForCausalLM", {
        **MODULE, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0,
    }, TOKENS),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", {
        **GQA, "lru_width": 64, "attention_window_size": 16, "head_dim": 16,
    }, TOKENS),
    "opt": ("OPTForCausalLM", {
        **TEXT, "ffn_dim": 96, "word_embed_proj_dim": 64,
    }, TOKENS),
    "bloom": ("BloomForCausalLM", {**TEXT, "n_layer": 2, "n_head": 4}, TOKENS),
    "gpt_neox": ("GPTNeoXForCausalLM", TEXT, TOKENS),
    "xlnet": ("XLNetModel", {
        "vocab_size": 120, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96,
    }, TOKENS),
    "deberta_v2": ("DebertaV2Model", {
        **TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
    }, TOKENS),
    "modernbert": ("ModernBertModel", {
        **TEXT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2,
    }, TOKENS),
    "bart": ("BartForConditionalGeneration", {
        "vocab_size": 120, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    }, {**TOKENS, "decoder_input_ids": TOKENS["input_ids"][:, :16].clone()}),
    "whisper": ("WhisperForConditionalGeneration", {
        "vocab_size": 120, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96, "num_mel_bins": 16, "max_source_positions": 40,
        "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }, {
        "input_features": torch.linspace(-1, 1, 2 * 16 * 80).reshape(2, 16, 80).sin(),
        "decoder_input_ids": TOKENS["input_ids"][:, :16].clone(),
    }),
    "clip": ("CLIPModel", {
        "text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 32,
    }, {**TOKENS, **PIXELS}),
    "siglip": ("SiglipModel", {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION}, {
        **TOKENS, **PIXELS,
    }),
    "dinov2": ("Dinov2Model", {**TINY, "image_size": 64, "patch_size": 16}, PIXELS),
    "swin": ("SwinModel", {
        "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4,
    }, PIXELS),
    "convnextv2": ("ConvNextV2Model", {"depths": [1, 1], "hidden_sizes": [16, 32],
        "num_stages": 2,
    }, PIXELS),
    "segformer": ("SegformerForSemanticSegmentation", {
        "hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2,
        "num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3],
        "strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 32,
    }, PIXELS),
    "wav2vec2": ("Wav2Vec2Model", {
        **TINY, "conv_dim": [32, 32], "conv_kernel": [10, 3], "conv_stride": [5, 2],
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0,
    }, SOUND),
    "patchtst": ("PatchTSTModel", {
        "num_input_channels": 3, "context_length": 64, "patch_length": 8, "patch_stride": 8,
        "d_model": 32, "ffn_dim": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    }, {"past_values": torch.linspace(-1, 1, 2 * 64 * 3).reshape(2, 64, 3).sin()}),
}  # fmt: skip
"""Class, configuration and inputs of each."""

IMAGE = {"x": PIXELS["pixel_values"]}
LATENT = torch.linspace(-1, 1, 2 * 4 * 16 * 16).reshape(2, 4, 16, 16)
TIMESTEP = torch.tensor([3, 7])
OTHERS = {
    "resnet18": ("torchvision.models", "resnet18", {"num_classes": 10}, IMAGE),
    "mobilenet_v3": ("torchvision.models", "mobilenet_v3_small", {"num_classes": 10}, IMAGE),
    "densenet": ("torchvision.models", "densenet.DenseNet", {
        "growth_rate": 8, "block_config": (2, 2), "num_init_features": 16, "num_classes": 10,
    }, IMAGE),
    "swin_t": ("torchvision.models", "swin_transformer.SwinTransformer", {
        "patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": [4, 4], "num_classes": 10,
    }, IMAGE),
    "efficientnet": ("timm.models", "create_model", {
        "model_name": "efficientnet_lite0", "num_classes": 10,
    }, IMAGE),
    "mixer": ("timm.models.mlp_mixer", "MlpMixer", {
        "num_classes": 10, "img_size": 64, "patch_size": 16, "num_blocks": 2, "embed_dim": 32,
    }, IMAGE),
    "convnext": ("timm.models.convnext", "ConvNeXt", {
        "num_classes": 10, "depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32),
    }, IMAGE),
    "eva": ("timm.models.eva", "Eva", {
        "num_classes": 10, "img_size": 64, "patch_size": 16, "embed_dim": 32, "depth": 2,
        "num_heads": 4, "use_rot_pos_emb": True,
    }, IMAGE),
    "unet2d": ("diffusers", "UNet2DConditionModel", {
        "sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 16,
        "attention_head_dim": 4, "norm_num_groups": 4,
    }, {
        "sample": LATENT, "timestep": TIMESTEP,
        "encoder_hidden_states": torch.linspace(-1, 1, 2 * 8 * 16).reshape(2, 8, 16),
        "return_dict": False,
    }),
    "dit": ("diffusers", "DiTTransformer2DModel", {
        "sample_size": 16, "num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2,
        "in_channels": 4, "out_channels": 4, "norm_num_groups": 4, "num_embeds_ada_norm": 10,
    }, {
        "hidden_states": LATENT, "timestep": TIMESTEP, "class_labels": torch.tensor([1, 2]),
        "return_dict": False,
    }),
    "vae": ("diffusers", "AutoencoderKL", {
        "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1,
        "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    }, {"sample": PIXELS["pixel_values"], "return_dict": False}),
    "flux": ("diffusers", "FluxTransformer2DModel", {
        "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
        "axes_dims_rope": (4, 4, 8), "patch_size": 1,
    }, {
        "hidden_states": torch.linspace(-1, 1, 2 * 16 * 4).reshape(2, 16, 4),
        "encoder_hidden_states": torch.linspace(-1, 1, 2 * 8 * 32).reshape(2, 8, 32),
        "pooled_projections": torch.linspace(-1, 1, 2 * 32).reshape(2, 32),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": torch.arange(48.0).reshape(16, 3), "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }),
}  # fmt: skip
"""Module, maker, its arguments and inputs of each."""

NAMES = (*TRANSFORMERS, *OTHERS)


def built(name: str, training: bool) -> tuple[torch.nn.Module, dict]:
    """The model and its inputs. Raises :class:`ImportError` where its package is not installed."""
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        class_name, settings, inputs = TRANSFORMERS[name]
        cls = getattr(transformers, class_name)
        config = cls.config_class(**copy.deepcopy(settings))
        for part in (config, getattr(config, "decoder", None)):
            if hasattr(part, "use_cache"):
                part.use_cache = False
        model = cls(config)
    else:
        module, maker, settings, inputs = OTHERS[name]
        made = importlib.import_module(module)
        for part in maker.split("."):
            made = getattr(made, part)
        model = made(**settings)
    return model.train(training), {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }


def loss_of(model, inputs):
    """Something that depends on what a model gives."""
    return sum(
        part.float().square().mean()
        for part in tree_leaves(dict(enumerate(_values(model(**inputs)))))
        if isinstance(part, torch.Tensor) and part.is_floating_point() and part.requires_grad
    )


def _values(result):
    return result.values() if isinstance(result, dict) else (result,)


def _optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def _eager_step(model, inputs, optimizer):
    loss = loss_of(model, inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def same(ours, theirs):
    """Whether two nested values are equal to the bit."""
    ours, theirs = (
        [part for part in tree_leaves(value) if isinstance(part, torch.Tensor)]
        for value in (ours, theirs)
    )
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(ours, theirs, strict=True)
    )


def tracked(name: str, training: bool) -> int:
    """Eager's peak by torch's own tracker on a real run; of a second step, when states are there."""
    model, inputs = built(name, training)
    held = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    tracker = MemTracker()
    torch.manual_seed(1)
    if training:
        optimizer = _optimizer(model)
        _eager_step(model, inputs, optimizer)
        tracker.track_external(model, optimizer, *held)
        with tracker:
            _eager_step(model, inputs, optimizer)
    else:
        tracker.track_external(model, *held)
        with torch.no_grad(), tracker:
            model(**inputs)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


def offloaded(name: str, training: bool, budget: str) -> dict:
    """What a family does under a plan for a share of eager's peak: ``same`` (bits of all results,
    and of all state after the steps), ``peak`` and ``predicted`` bytes, ``eager`` bytes.
    """
    (theirs, inputs), (model, _) = built(name, training), built(name, training)
    optimizers = [_optimizer(theirs), _optimizer(model)] if training else [None, None]
    wanted, got, peak = [], [], 0
    rounds = STEPS if training else 2
    torch.manual_seed(1)
    for _ in range(rounds):
        if training:
            wanted.append(_eager_step(theirs, inputs, optimizers[0]))
        else:
            with torch.no_grad():
                wanted.append(theirs(**inputs))
    device = CpuDevice(MACHINE, synchronous=True)
    options = {"optimizer": optimizers[1], "loss": loss_of} if training else {}
    with hosim.offload(
        model, inputs, hardware=MACHINE, budget=budget, device=device,
        parameters={"effort": 0.0}, **options,
    ) as run:  # fmt: skip
        torch.manual_seed(1)
        for _ in range(rounds):
            with Occupancy([*run._captured.held.values(), inputs]) as occupancy:
                got.append(run(**inputs))
            peak = max(peak, occupancy.peak)
        answer = {
            "peak": peak, "predicted": run.predicted_peak_bytes, "eager": run.eager_peak_bytes,
            "budget": run.result.budget_bytes, "cache_ops": len(run.plan.cache_ops),
        }  # fmt: skip
    ends = [
        [list(m.state_dict().values()), [list(o.state[p].values()) for p in m.parameters()]]
        if o is not None else list(m.state_dict().values())
        for m, o in zip((theirs, model), optimizers, strict=True)
    ]  # fmt: skip
    return {"same": same([got, ends[1]], [wanted, ends[0]]), **answer}


def judged(name: str, training: bool, budget: str, tracker: Callable[..., int] = tracked) -> str:
    """One line: ``same`` with its peaks, ``refused`` with the reason, or what is wrong. Raises
    :class:`ImportError` where its package is not installed.
    """
    try:
        found = offloaded(name, training, budget)
    except (InputError, InfeasibleError) as error:
        lines = str(error).splitlines()
        return f"{'refused' if len(lines) == 1 else 'SEVERAL LINES'}: {lines[0]}"
    except ImportError:
        raise
    except HosimError as error:
        return f"FAILED: {type(error).__name__}: {error}"
    except Exception as error:
        return f"CRASHED: {type(error).__name__}: {str(error)[:300]}"
    eager = found["eager"]
    try:
        theirs = tracker(name, training)
    except (AssertionError, RuntimeError):  # torch's tracker does not follow frozen parameters
        theirs = None
    off = None if eager is None or theirs is None else eager / theirs - 1
    wrong = [
        text
        for text, is_wrong in (
            ("DIFFERENT", not found["same"]),
            (f"PEAK {found['peak']:,}", found["peak"] != found["predicted"]),
            (f"EAGER {theirs}", off is not None and abs(off) > 0.02),
        )
        if is_wrong
    ]
    eagers = "not known" if eager is None else f"{eager:,}"
    beside = "not tracked" if off is None else f"{off:+.2%}"
    return (
        f"{', '.join(wrong) or 'same'}: peak {found['predicted']:,}, eager {eagers} ({beside}), "
        f"{found['cache_ops']} cache ops"
    )


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or NAMES:
        for training, budget in (*((False, share) for share in SHARES), (True, SHARES[0])):
            what = "training" if training else "inference"
            print(f"{name:16} {what:9} {budget:4} {judged(name, training, budget)}", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
