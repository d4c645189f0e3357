"""Checks on a run of a model: settings that do not go together are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hosim.errors import InputError
from hosim.io.models.config import Decoder, Layered, Run, key_heads, layers_of
from hosim.io.models.packed import ACTIVATIONS, CACHES, FOR_TRANSFER, SEPARATE
from hosim.limits import within
from hosim.plain_text import shown


def check_given(given: Mapping[str, Any], config: Layered, run: Run) -> None:
    """Raise :class:`InputError`, naming the parameter, unless the fields of ``run`` go together;
    ``given`` are those that the user gave.
    """
    _check_length(given, run, isinstance(config, Decoder))
    _check_schedule(given, config, run)
    _check_loss(given, config, run)
    _check_data(given, run)
    _check_adapters(run)
    _check_sequence_parallel(config, run)
    _check_context_parallel(config, run)
    _check_packed(config, run)


_LEAST_OF_A_LAYER = 40
"""A layer of a micro-batch has no fewer ops and tensors, going forward and backward: with more of
them a graph is not begun.
"""


def check_sizes(config: Layered, run: Run) -> None:
    """Raise :class:`InputError`, naming the parameter, unless the model has what ``run`` divides,
    chooses and repeats.
    """
    _check_shards(config, run)
    _check_choices(config, run)
    _check_positions(config)
    _check_mixers(config, run)
    _check_size(config, run)


def _check_length(given: Mapping[str, Any], run: Run, is_decoder: bool) -> None:
    """Raise :class:`InputError` for a length that the phase does not have, where the one that it
    has is not given.
    """
    if run.phase != "decode" and "context" in given and "sequence" not in given:
        raise InputError(
            "only phase=decode has a context; how long others are is their sequence",
            where="context",
        )
    if run.phase == "decode" and is_decoder and "sequence" in given and "context" not in given:
        raise InputError(
            "phase=decode is of one token a sequence; how many are in the cache is its context",
            where="sequence",
        )


def _check_schedule(given: Mapping[str, Any], config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless the schedule is one that a step of so many stages and
    micro-batches has.
    """
    if not run.training:
        for key in ("micro_batches", "schedule", "chunks"):
            if key in given:
                raise InputError("only phase=train has micro-batches", where=key)
        return
    within("records", run.micro_batches_of_step * run.chunks, where="micro_batches")
    for key, what in (("schedule", "no schedule"), ("tied", "no other to be tied to")):
        if key in given and run.pipeline == 1:
            raise InputError(f"one stage has {what}; give pipeline, too", where=key)
    if (run.chunks > 1) != (run.schedule == "interleaved"):
        raise InputError(
            "schedule=interleaved takes chunks of at least 2, and no other schedule takes any",
            where="chunks",
        )
    if run.chunks > 1 and run.micro_batches_of_step % run.pipeline:
        raise InputError(
            f"schedule=interleaved takes a multiple of its {run.pipeline} stages, got "
            f"{run.micro_batches}",
            where="micro_batches",
        )
    layers = getattr(config, "num_hidden_layers", 0) if run.layers is None else run.layers
    if run.micro_batches_of_step > 1:
        within(
            "records",
            run.micro_batches_of_step * (layers // run.pipeline) * _LEAST_OF_A_LAYER,
            where="micro_batches",
        )
    if run.chunks > 1 and layers < run.pipeline * run.chunks:
        raise InputError(
            f"{run.pipeline} stages of {run.chunks} chunks need at least one layer each",
            where="chunks",
        )


_OF_TRAINING = (
    *("loss", "foreach", "main_gradients", "checkpoint", "checkpoint_layers", "lora_rank"),
    *("optimizer", "optimizer_on", "optimizer_share", "update", "states_dtype", "states_home"),
)
"""The fields that an inference would leave out without a word."""

_UNSET = {field.name: field.default for field in fields(Run)}


def _check_loss(given: Mapping[str, Any], config: Layered, run: Run) -> None:
    """Raise :class:`InputError` for a loss or states where there are none, and for a head that is
    not computed in chunks.
    """
    for key in _OF_TRAINING:
        if key in given and given[key] != _UNSET[key] and not run.training:
            raise InputError("only phase=train has it", where=key)
    if run.states_dtype is not None and (run.dtype == "fp32" or run.optimizer == "none"):
        raise InputError("works for adamw of parameters in 16 bits", where="states_dtype")
    if run.foreach and (run.optimizer == "none" or run.optimizer_on is not None):
        raise InputError("works for adamw on the device", where="foreach")
    if run.loss == "chunked" and (
        getattr(config, "final_softcap", False) or getattr(config, "head_bias", False)
    ):
        raise InputError(
            "a head with a bias or a bound for its logits is not computed in chunks", where="loss"
        )


def _check_data(given: Mapping[str, Any], run: Run) -> None:
    """Raise :class:`InputError` unless the devices of data parallelism can share what they are
    to.
    """
    if run.zero > 3:
        raise InputError(f"expected a stage of ZeRO from 0 to 3, got {run.zero}", where="zero")
    if run.data > 1 and not run.training:
        raise InputError(
            "only phase=train has collectives between devices of different batches", where="data"
        )
    if run.replicas > 1 and run.replicas % run.expert:
        raise InputError(
            f"{run.replicas} devices of different tokens cannot have {run.expert} parts of the "
            "experts evenly",
            where="expert",
        )
    if run.zero and run.replicas == 1:
        raise InputError("one device shares nothing; give data, too", where="zero")
    for key in ("reshard", "prefetch", "shards_home"):
        if key in given and run.zero < 3:
            raise InputError("only zero=3 gathers parameters", where=key)
    if "sync_each_batch" in given and run.zero < 2:
        raise InputError(
            "only zero=2 and zero=3 reduce the gradients of each micro-batch",
            where="sync_each_batch",
        )
    if run.zero >= 2 and run.pipeline > 1:
        raise InputError("stages of a pipeline work with zero=0 and zero=1", where="zero")
    if run.zero == 2 and run.main_gradients:
        raise InputError("zero=2 keeps gradients in the dtype of the step", where="main_gradients")


def _check_adapters(run: Run) -> None:
    """Raise :class:`InputError` unless each device has whole adapters, and names of projections are
    in ``lora_modules``.
    """
    if run.lora_rank is None:
        if run.lora_modules is not None:
            raise InputError("only adapters have it; give lora_rank, too", where="lora_modules")
        return
    if run.lora_modules is not None and not all(run.lora_modules.split("/")):
        raise InputError(
            "expected names of projections with '/' between them, such as q_proj/v_proj, got "
            f"{shown(run.lora_modules)}",
            where="lora_modules",
        )
    if run.tensor > 1 or run.context_parallel > 1 or run.expert > 1 or run.zero == 3:
        raise InputError(
            "works for devices that have all weights: data with zero from 0 to 2, and pipeline",
            where="lora_rank",
        )


def _check_sequence_parallel(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless the devices that share layers can have tokens of their own
    between products.
    """
    if not run.sequence_parallel:
        return
    where = "sequence_parallel"
    if run.tensor == 1:
        raise InputError("one device has all tokens; give tensor, too", where=where)
    if not run.training:
        raise InputError("works for phase=train only", where=where)
    if getattr(config, "positions", "") == "learned":
        raise InputError("works for models without learned positions", where=where)
    if run.tokens % run.tensor:
        raise InputError(
            f"{run.tensor} devices cannot share {run.tokens} tokens evenly", where=where
        )


def _check_context_parallel(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless devices can share the tokens of a sequence."""
    if run.context_parallel == 1:
        return
    where = "context_parallel"
    if not run.training:
        raise InputError("works for phase=train only", where=where)
    is_latent = int(getattr(config, "kv_lora_rank", 0)) > 0
    if run.attention != "causal" or is_latent or getattr(config, "positions", "") == "alibi":
        raise InputError(
            "works with attention: causal over heads of keys, whose positions are not those of "
            "alibi",
            where=where,
        )
    if isinstance(config, Decoder) and config.attention_sinks:
        heads = key_heads(config, run)
        if heads % run.context_parallel:
            shared = f"{run.context_parallel} devices cannot share {heads} heads of keys evenly"
            raise InputError(
                f"{shared}, which they exchange where attention has learned scores", where=where
            )
    if run.sequence % (2 * run.context_parallel):
        raise InputError(
            f"{run.context_parallel} devices cannot share {run.sequence} tokens evenly in two "
            "chunks each",
            where=where,
        )


def _check_packed(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless there are kernels for weights and a cache that are packed
    so.
    """
    if run.products and (not run.training or run.dtype == "fp32"):
        raise InputError("works for phase=train in 16 bits", where="products")
    if run.training and run.cache_dtype:
        raise InputError("a packed cache works for inference only", where="cache_dtype")
    if run.training and run.weights and run.lora_rank is None:
        raise InputError(
            "packed weights do not learn: training has them only beside adapters; give lora_rank, "
            "too",
            where="weights",
        )
    for key in ("group", "packed", "activations"):
        if getattr(run, key) is not None and run.weights is None:
            raise InputError("only packed weights have it; give weights, too", where=key)
    if run.packed == "experts" and not getattr(config, "num_experts", 0):
        raise InputError("this model has no experts", where="packed")
    if run.activations is not None and run.weights not in ACTIVATIONS[run.activations]:
        raise InputError(
            f"products in {run.activations} take weights "
            f"{' or '.join(ACTIVATIONS[run.activations])}",
            where="activations",
        )
    fixed = {"mxfp4": 32, "nvfp4": 16}.get(run.weights or "")
    if fixed is not None and run.group not in (None, fixed):
        raise InputError(
            f"groups of {run.weights} have {fixed} elements, got {run.group}", where="group"
        )
    if run.weights in SEPARATE and not run.training and int(getattr(config, "num_experts", 0)):
        raise InputError(f"{run.weights} works for models without experts", where="weights")
    if run.merged and run.cache_dtype is not None and CACHES[run.cache_dtype] in FOR_TRANSFER:
        raise InputError(
            f"kernels of inference engines read no cache in {run.cache_dtype}; leave merged out",
            where="cache_dtype",
        )
    latent = int(getattr(config, "kv_lora_rank", 0)) > 0
    if run.cache_dtype is not None and (
        latent or run.kv_block is not None or run.attention != "causal"
    ):
        raise InputError(
            "a packed cache works for heads of keys, with attention: causal and without kv_block",
            where="cache_dtype",
        )


def _check_shards(config: Any, run: Run) -> None:
    """Raise :class:`InputError` unless the model has the wanted positions and layers, and the
    devices divide evenly what they share.
    """
    names = {f.name for f in fields(config)}
    key, tokens = ("context", run.context) if run.phase == "decode" else ("sequence", run.sequence)
    positions = positions_of(config)
    if tokens > (positions or tokens):
        raise InputError(f"the model has {positions} positions, got {tokens}", where=key)
    # more devices than heads of keys have copies of them, and a vocabulary is padded
    heads = (
        ("num_key_value_heads",) if run.tensor < getattr(config, "num_key_value_heads", 1) else ()
    )
    shared = [
        ("tensor", run.tensor, ("num_attention_heads", *heads, "intermediate_size")),
        ("expert", run.expert, ("num_experts",)),
    ]
    for key, devices, divided in shared:
        for name in divided:
            if devices > 1 and (not getattr(config, name, 0) or getattr(config, name) % devices):
                size = f"{name} {getattr(config, name)}" if name in names else "this model"
                raise InputError(f"{devices} devices cannot share {size} evenly", where=key)
    if run.stage >= run.pipeline:
        raise InputError(
            f"expected a stage from 0 to {run.pipeline - 1}, got {run.stage}", where="stage"
        )
    layers = getattr(config, "num_hidden_layers", run.pipeline)
    if (layers if run.layers is None else run.layers) < run.pipeline or (
        run.pipeline > 1 and "num_hidden_layers" not in names
    ):
        raise InputError(f"{run.pipeline} stages need at least one layer each", where="pipeline")
    if run.layers is not None and run.layers > layers:
        raise InputError(f"the model has {layers} layers, got {run.layers}", where="layers")
    _check_stage_layers(layers if run.layers is None else run.layers, run)


_STAGE = re.compile(r"[1-9][0-9]{0,8}")


def _check_stage_layers(layers: int, run: Run) -> None:
    """Raise :class:`InputError` unless each stage has layers, and all stages together as many as are
    taken of the model.
    """
    if run.stage_layers is None:
        return
    counts = run.stage_layers.split("/")
    fits = all([_STAGE.fullmatch(count) for count in counts])
    if not fits or len(counts) != run.pipeline or sum(map(int, counts)) != layers:
        raise InputError(
            f"expected the layers of each of {run.pipeline} stages with '/' between them, "
            f"{layers} together; got {shown(run.stage_layers)}",
            where="stage_layers",
        )
    if run.chunks > 1:
        raise InputError("chunks of an interleaved schedule are equal", where="stage_layers")


def positions_of(config: Layered) -> int:
    """Return the number of positions that a model has; 0: no limit."""
    return int(
        getattr(config, "max_position_embeddings", getattr(config, "max_target_positions", 0))
    )


def _check_choices(config: Any, run: Run) -> None:
    """Raise :class:`InputError` if experts or blocks are to be chosen and the run has none."""
    experts = int(getattr(config, "num_experts", 0))
    top = int(getattr(config, "num_experts_per_tok", 0))
    if top > experts:
        raise InputError(
            f"expected at most {experts}, the number of experts; got {top}",
            where="config.num_experts_per_tok",
        )
    if run.chosen_experts is not None:
        if run.training or run.tensor > 1:
            raise InputError(
                "chosen_experts works for inference only, with each expert on one device",
                where="chosen_experts",
            )
        if run.chosen_experts > experts // run.expert:
            raise InputError(
                f"the device has {experts // run.expert} experts of each layer, got "
                f"{run.chosen_experts}",
                where="chosen_experts",
            )
    if run.kv_block is not None and (run.training or run.attention != "causal"):
        raise InputError(
            "kv_block works for inference only, with attention: causal", where="kv_block"
        )
    if run.kv_block is not None and getattr(config, "sliding_window", 0) > 0:
        raise InputError(
            "kv_block works for models without a sliding window only", where="kv_block"
        )
    if run.checkpoint_layers is not None and not run.checkpoint:
        raise InputError(
            "checkpoint_layers works with checkpoint: true only", where="checkpoint_layers"
        )
    if run.kept_dtype is not None and not (run.checkpoint and run.training):
        raise InputError("works for phase=train with checkpoint: true only", where="kept_dtype")
    if run.selective and not run.checkpoint:
        raise InputError("selective works with checkpoint: true only", where="selective")
    if run.every_other_product and not run.selective:
        raise InputError(
            "every_other_product works with selective: true only", where="every_other_product"
        )
    if run.recompute_attention and (not run.training or run.checkpoint or run.context_parallel > 1):
        raise InputError(
            "works for phase=train, without checkpoint and context_parallel",
            where="recompute_attention",
        )
    if run.regather and not run.sequence_parallel:
        raise InputError("works with sequence_parallel: true only", where="regather")
    if run.attention_kernel is not None and (
        not run.training or run.attention != "causal" or getattr(config, "kv_lora_rank", 0) > 0
    ):
        raise InputError(
            "works for phase=train, with attention: causal over heads of keys",
            where="attention_kernel",
        )
    if run.merged and (run.training or run.kv_block is not None or run.chosen_experts is not None):
        raise InputError(
            "merged works for inference only, without kv_block and chosen_experts", where="merged"
        )


def _check_mixers(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless the mixers of a model are built for such a run."""
    if not isinstance(config, Decoder):
        return
    kinds = [dict(kind) for kind in config.kinds] or [{}]
    mixers = {
        name for kind in kinds for name in str(kind.get("mixer", config.mixer)).split("+")
    } - {"attention", "none"}
    of_attention = f"models whose layers are of attention; this one has {', '.join(sorted(mixers))}"
    shares = any([kind.get("shares_keys") for kind in kinds])
    beside = config.mixture_beside and (config.num_experts or shares)
    wider = config.index_topk or (config.v_head_dim and not config.kv_lora_rank)
    blocks, dtype = run.kv_block is not None, run.cache_dtype is not None
    training, tensor, pipeline = run.training, run.tensor > 1, run.pipeline > 1
    one_device = (
        "models with several sums through their layers are built for inference on one device"
    )
    for where, refused, why in (
        ("phase", training and mixers, f"training is built for {of_attention}"),
        (
            "phase",
            training and config.index_topk and not config.streams,
            "training is built for models without an indexer of latents, which has a loss of its "
            "own",
        ),
        (
            "phase",
            training and beside,
            "training is built for models whose layers make their own keys, and without mixtures "
            "beside an MLP",
        ),
        (
            "pipeline",
            pipeline and (config.layer_input_size or shares),
            "works for models whose layers share no keys and have no inputs of their own",
        ),
        ("phase", training and config.streams, one_device),
        ("tensor", tensor and config.streams, one_device),
        ("pipeline", pipeline and config.streams, one_device),
        ("kv_block", blocks and config.streams, one_device),
        ("tensor", tensor and mixers, f"works for {of_attention}"),
        ("kv_block", blocks and mixers, f"works for {of_attention}"),
        ("cache_dtype", dtype and mixers, f"works for {of_attention}"),
        (
            "kv_block",
            blocks and wider,
            "works for heads whose keys and values are equally wide, and without an indexer",
        ),
    ):
        if refused:
            raise InputError(why, where=where)


def _check_positions(config: Layered) -> None:
    """Raise :class:`InputError` if a head or a table of positions has no size, or the positions are
    none that the heads have.
    """
    kind, width = getattr(config, "positions", ""), int(getattr(config, "head_dim", 1))
    if not width:
        raise InputError(
            "expected a width of at least 1; there are more heads than they are wide together",
            where="config.head_dim",
        )
    if kind == "learned" and not positions_of(config):
        raise InputError(
            "learned positions need a number of them", where="config.max_position_embeddings"
        )
    if kind not in ("", "rotary", "none") and int(getattr(config, "kv_lora_rank", 0)) > 0:
        raise InputError(
            "latent attention works with rotary positions only", where="config.positions"
        )
    if int(getattr(config, "rotary_width", 0)) > width:
        raise InputError(
            f"expected at most {width}, the width of a head", where="config.rotary_width"
        )


def _check_size(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` if the device's part of the model has too many layers, or too much
    of its own in each of them.
    """
    layers = within(
        "layers", len(layers_of(config, run)), where="config" if run.layers is None else "layers"
    )
    if run.chosen_experts is not None:
        within(
            "model_parts",
            layers * (int(getattr(config, "num_experts", 0)) // run.expert),
            where="config.num_experts",
        )
    if run.context_parallel > 1:
        within(
            "model_parts",
            layers * run.context_parallel * run.micro_batches_of_step,
            where="context_parallel",
        )
    if run.kv_block is not None and run.phase == "decode":
        within("model_parts", layers * -(-run.context // run.kv_block), where="kv_block")
