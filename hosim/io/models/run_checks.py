"""Checks on a run of a model: settings that exclude each other are refused by name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from hosim.errors import InputError, Rule, refuse
from hosim.io.models.config import Decoder, Layered, Run, key_heads, layers_of
from hosim.io.models.packed import ACTIVATIONS, CACHES, FOR_TRANSFER, SEPARATE
from hosim.limits import within
from hosim.plain_text import shown


def check_given(given: Mapping[str, Any], config: Layered, run: Run) -> None:
    """Raise :class:`InputError`, which names the parameter, unless the fields of ``run`` go
    together; ``given`` are those that the user gave.
    """
    refuse(_lengths(given, run, isinstance(config, Decoder)))
    refuse(_without_blocks(given, run))
    _check_schedule(given, config, run)
    refuse(_of_training(given, config, run))
    refuse(_of_data(given, run))
    refuse(_of_adapters(run))
    refuse(_of_sequence_parallel(config, run) if run.sequence_parallel else ())
    refuse(_of_context_parallel(config, run) if run.context_parallel > 1 else ())
    refuse(_of_packed(config, run))


_LEAST_OF_A_LAYER = 40
"""The fewest ops and tensors of a layer of a micro-batch, forward and backward. If these alone
exceed the limit of records, the graph is refused before it is built.
"""


def check_sizes(config: Layered, run: Run) -> None:
    """Raise :class:`InputError`, which names the parameter, unless the model has the parts that
    ``run`` divides, chooses and repeats.
    """
    _check_shards(config, run)
    refuse(_of_choices(config, run))
    refuse(_of_one_phase(config, run))
    refuse(_of_positions(config))
    refuse(_of_mixers(config, run) if isinstance(config, Decoder) else ())
    _check_size(config, run)


def _lengths(given: Mapping[str, Any], run: Run, is_decoder: bool) -> Sequence[Rule]:
    """Rules for lengths: a phase has one; another one is refused if the phase's own is
    not given.
    """
    context = "context" in given and "sequence" not in given
    sequence = "sequence" in given and "context" not in given
    decodes = run.phase == "decode"
    return (
        (
            "context",
            not decodes and context,
            "only phase=decode has a context; how long others are is their sequence",
        ),
        (
            "sequence",
            decodes and is_decoder and sequence,
            "phase=decode is of one token a sequence; how many are in the cache is its context",
        ),
    )


def _without_blocks(given: Mapping[str, Any], run: Run) -> Sequence[Rule]:
    """Without blocks all keys are read: a number of blocks would change nothing."""
    return [
        (key, key in given and run.kv_block is None, f"{key} works with kv_block only")
        for key in ("sink_blocks", "window_blocks", "chosen_blocks")
    ]


def _check_schedule(given: Mapping[str, Any], config: Layered, run: Run) -> None:
    """Raise :class:`InputError` unless the schedule fits the numbers of stages and
    micro-batches.
    """
    if not run.training:
        refuse(
            [
                (key, key in given, "only phase=train has micro-batches")
                for key in ("micro_batches", "schedule", "chunks")
            ]
        )
        return
    within("records", run.micro_batches_of_step * run.chunks, where="micro_batches")
    one, chunked = run.pipeline == 1, run.chunks > 1
    refuse(
        (
            (
                "schedule",
                one and "schedule" in given,
                "one stage has no schedule; give pipeline, too",
            ),
            (
                "tied",
                one and "tied" in given,
                "one stage has no other to be tied to; give pipeline, too",
            ),
            (
                "chunks",
                chunked != (run.schedule == "interleaved"),
                "schedule=interleaved takes chunks of at least 2, and no other schedule takes any",
            ),
            (
                "micro_batches",
                chunked and run.micro_batches_of_step % run.pipeline,
                f"schedule=interleaved takes a multiple of its {run.pipeline} stages, got "
                f"{run.micro_batches}",
            ),
        )
    )
    layers = getattr(config, "num_hidden_layers", 0) if run.layers is None else run.layers
    if run.micro_batches_of_step > 1:
        within(
            "records",
            run.micro_batches_of_step * (layers // run.pipeline) * _LEAST_OF_A_LAYER,
            where="micro_batches",
        )
    few = f"{run.pipeline} stages of {run.chunks} chunks need at least one layer each"
    refuse([("chunks", chunked and layers < run.pipeline * run.chunks, few)])


_OF_TRAINING = (
    *("loss", "foreach", "main_gradients", "checkpoint", "checkpoint_layers", "lora_rank"),
    *("optimizer", "optimizer_on", "optimizer_share", "update", "states_dtype", "states_home"),
)
"""The fields that an inference would silently ignore."""

_UNSET = {field.name: field.default for field in fields(Run)}


def _of_training(given: Mapping[str, Any], config: Layered, run: Run) -> Sequence[Rule]:
    """Rules for training: only a step with a loss and states has these, and the head is computed in
    chunks only if it can be.
    """
    unlike = getattr(config, "final_softcap", False) or getattr(config, "head_bias", False)
    return (
        *[
            (key, given[key] != _UNSET[key] and not run.training, "only phase=train has it")
            for key in _OF_TRAINING
            if key in given
        ],
        (
            "states_dtype",
            run.states_dtype is not None and (run.dtype == "fp32" or run.optimizer == "none"),
            "works for adamw of parameters in 16 bits",
        ),
        (
            "foreach",
            run.foreach and (run.optimizer == "none" or run.optimizer_on is not None),
            "works for adamw on the device",
        ),
        (
            "loss",
            run.loss == "chunked" and unlike,
            "a head with a bias or a bound for its logits is not computed in chunks",
        ),
    )


def _of_data(given: Mapping[str, Any], run: Run) -> Sequence[Rule]:
    """Rules for data parallelism: the devices can share what they are asked to share."""
    return (
        ("zero", run.zero > 3, f"expected a stage of ZeRO from 0 to 3, got {run.zero}"),
        (
            "data",
            run.data > 1 and not run.training,
            "only phase=train has collectives between devices of different batches",
        ),
        (
            "expert",
            run.replicas > 1 and run.replicas % run.expert,
            f"{run.replicas} devices of different tokens cannot have {run.expert} parts of the "
            "experts evenly",
        ),
        ("zero", run.zero and run.replicas == 1, "one device shares nothing; give data, too"),
        *[
            (key, key in given and run.zero < 3, "only zero=3 gathers parameters")
            for key in ("reshard", "prefetch", "shards_home")
        ],
        (
            "sync_each_batch",
            "sync_each_batch" in given and run.zero < 2,
            "only zero=2 and zero=3 reduce the gradients of each micro-batch",
        ),
        (
            "zero",
            run.zero >= 2 and run.pipeline > 1,
            "stages of a pipeline work with zero=0 and zero=1",
        ),
        (
            "main_gradients",
            run.zero == 2 and run.main_gradients,
            "zero=2 keeps gradients in the dtype of the step",
        ),
    )


def _of_adapters(run: Run) -> Sequence[Rule]:
    """Rules for adapters: each device has whole ones, and ``lora_modules`` has names of
    projections.
    """
    named, adapts = run.lora_modules, run.lora_rank is not None
    divided = run.tensor > 1 or run.context_parallel > 1 or run.expert > 1 or run.zero == 3
    return (
        (
            "lora_modules",
            not adapts and named is not None,
            "only adapters have it; give lora_rank, too",
        ),
        (
            "lora_modules",
            named is not None and not all(named.split("/")),
            "expected names of projections with '/' between them, such as q_proj/v_proj, got "
            f"{shown(named)}",
        ),
        (
            "lora_rank",
            adapts and divided,
            "works for devices that have all weights: data with zero from 0 to 2, and pipeline",
        ),
    )


def _of_sequence_parallel(config: Layered, run: Run) -> Sequence[Rule]:
    """Rules for devices that share layers and have tokens of their own between products."""
    where = "sequence_parallel"
    return (
        (where, run.tensor == 1, "one device has all tokens; give tensor, too"),
        (where, not run.training, "works for phase=train only"),
        (
            where,
            getattr(config, "positions", "") == "learned",
            "works for models without learned positions",
        ),
        (
            where,
            run.tokens % run.tensor,
            f"{run.tensor} devices cannot share {run.tokens} tokens evenly",
        ),
    )


def _is_latent(config: Layered) -> bool:
    return int(getattr(config, "kv_lora_rank", 0)) > 0


def _of_context_parallel(config: Layered, run: Run) -> Sequence[Rule]:
    """Rules for devices that share the tokens of a sequence."""
    where, devices = "context_parallel", run.context_parallel
    alibi = getattr(config, "positions", "") == "alibi"
    scored = key_heads(config, run) if isinstance(config, Decoder) and config.attention_sinks else 0
    return (
        (where, not run.training, "works for phase=train only"),
        (
            where,
            run.attention != "causal" or _is_latent(config) or alibi,
            "works with attention: causal over heads of keys, whose positions are not those of "
            "alibi",
        ),
        (
            where,
            scored % devices,
            f"{devices} devices cannot share {scored} heads of keys evenly, which they exchange "
            "where attention has learned scores",
        ),
        (
            where,
            run.sequence % (2 * devices),
            f"{devices} devices cannot share {run.sequence} tokens evenly in two chunks each",
        ),
    )


def _of_packed(config: Layered, run: Run) -> Sequence[Rule]:
    """Rules for packed weights and caches: there are kernels for them."""
    experts = int(getattr(config, "num_experts", 0))
    fixed = {"mxfp4": 32, "nvfp4": 16}.get(run.weights or "")
    taken = ACTIVATIONS.get(run.activations or "", ())
    cache = run.cache_dtype
    return (
        (
            "products",
            run.products and (not run.training or run.dtype == "fp32"),
            "works for phase=train in 16 bits",
        ),
        ("cache_dtype", run.training and cache, "a packed cache works for inference only"),
        (
            "weights",
            run.training and run.weights and run.lora_rank is None,
            "packed weights do not learn: training has them only beside adapters; give lora_rank, "
            "too",
        ),
        *[
            (
                key,
                getattr(run, key) is not None and run.weights is None,
                "only packed weights have it; give weights, too",
            )
            for key in ("group", "packed", "activations")
        ],
        ("packed", run.packed == "experts" and not experts, "this model has no experts"),
        (
            "activations",
            run.activations is not None and run.weights not in taken,
            f"products in {run.activations} take weights {' or '.join(taken)}",
        ),
        (
            "group",
            fixed is not None and run.group not in (None, fixed),
            f"groups of {run.weights} have {fixed} elements, got {run.group}",
        ),
        (
            "weights",
            run.weights in SEPARATE and not run.training and experts,
            f"{run.weights} works for models without experts",
        ),
        (
            "cache_dtype",
            run.merged and cache is not None and CACHES[cache] in FOR_TRANSFER,
            f"kernels of inference engines read no cache in {cache}; leave merged out",
        ),
        (
            "cache_dtype",
            cache is not None
            and (_is_latent(config) or run.kv_block is not None or run.attention != "causal"),
            "a packed cache works for heads of keys, with attention: causal and without kv_block",
        ),
    )


def _check_shards(config: Any, run: Run) -> None:
    """Raise :class:`InputError` unless the model has the requested positions and layers, and the
    devices can share its parts evenly.
    """
    names = {f.name for f in fields(config)}
    key, tokens = ("context", run.context) if run.phase == "decode" else ("sequence", run.sequence)
    positions = positions_of(config)
    # if there are more devices than heads of keys, they have copies; a vocabulary is padded
    heads = (
        ("num_key_value_heads",) if run.tensor < getattr(config, "num_key_value_heads", 1) else ()
    )
    shared = [
        ("tensor", run.tensor, ("num_attention_heads", *heads, "intermediate_size")),
        ("expert", run.expert, ("num_experts",)),
    ]
    most = getattr(config, "num_hidden_layers", run.pipeline)
    layers = most if run.layers is None else run.layers
    refuse(
        (
            (key, 0 < positions < tokens, f"the model has {positions} positions, got {tokens}"),
            *[
                (
                    where,
                    devices > 1
                    and (not getattr(config, name, 0) or getattr(config, name) % devices),
                    f"{devices} devices cannot share "
                    f"{f'{name} {getattr(config, name)}' if name in names else 'this model'} evenly",
                )
                for where, devices, divided in shared
                for name in divided
            ],
            (
                "stage",
                run.stage >= run.pipeline,
                f"expected a stage from 0 to {run.pipeline - 1}, got {run.stage}",
            ),
            (
                "pipeline",
                layers < run.pipeline or (run.pipeline > 1 and "num_hidden_layers" not in names),
                f"{run.pipeline} stages need at least one layer each",
            ),
            ("layers", layers > most, f"the model has {most} layers, got {run.layers}"),
        )
    )
    _check_stage_layers(layers, run)


_STAGE = re.compile(r"[1-9][0-9]{0,8}")


def _check_stage_layers(layers: int, run: Run) -> None:
    """Raise :class:`InputError` unless each stage has layers, and all stages together have the
    layers that are built.
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
    """Return the number of positions that a model has; 0 if it has no limit."""
    return int(
        getattr(config, "max_position_embeddings", getattr(config, "max_target_positions", 0))
    )


def _of_choices(config: Any, run: Run) -> Sequence[Rule]:
    """Rules for choices: the run has experts and blocks to choose from."""
    experts = int(getattr(config, "num_experts", 0))
    top = int(getattr(config, "num_experts_per_tok", 0))
    mine, chosen, blocks = experts // run.expert, run.chosen_experts, run.kv_block is not None
    return (
        (
            "config.num_experts_per_tok",
            top > experts,
            f"expected at most {experts}, the number of experts; got {top}",
        ),
        (
            "chosen_experts",
            chosen is not None and (run.training or run.tensor > 1),
            "chosen_experts works for inference only, with each expert on one device",
        ),
        (
            "chosen_experts",
            chosen is not None and chosen > mine,
            f"the device has {mine} experts of each layer, got {chosen}",
        ),
        (
            "kv_block",
            blocks and (run.training or run.attention != "causal"),
            "kv_block works for inference only, with attention: causal",
        ),
        (
            "kv_block",
            blocks and getattr(config, "sliding_window", 0) > 0,
            "kv_block works for models without a sliding window only",
        ),
    )


def _of_one_phase(config: Any, run: Run) -> Sequence[Rule]:
    """Rules for options of one phase: recomputation in training, merged kernels in inference."""
    return (
        (
            "checkpoint_layers",
            run.checkpoint_layers is not None and not run.checkpoint,
            "checkpoint_layers works with checkpoint: true only",
        ),
        (
            "kept_dtype",
            run.kept_dtype is not None and not (run.checkpoint and run.training),
            "works for phase=train with checkpoint: true only",
        ),
        (
            "selective",
            run.selective and not run.checkpoint,
            "selective works with checkpoint: true only",
        ),
        (
            "every_other_product",
            run.every_other_product and not run.selective,
            "every_other_product works with selective: true only",
        ),
        (
            "recompute_attention",
            run.recompute_attention
            and (not run.training or run.checkpoint or run.context_parallel > 1),
            "works for phase=train, without checkpoint and context_parallel",
        ),
        (
            "regather",
            run.regather and not run.sequence_parallel,
            "works with sequence_parallel: true only",
        ),
        (
            "attention_kernel",
            run.attention_kernel is not None
            and (not run.training or run.attention != "causal" or _is_latent(config)),
            "works for phase=train, with attention: causal over heads of keys",
        ),
        (
            "merged",
            run.merged
            and (run.training or run.kv_block is not None or run.chosen_experts is not None),
            "merged works for inference only, without kv_block and chosen_experts",
        ),
    )


def _of_mixers(config: Decoder, run: Run) -> Sequence[Rule]:
    """Rules for a model's mixers: they are built for this run."""
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
    return (
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
    )


def _of_positions(config: Layered) -> Sequence[Rule]:
    """Rules for heads and positions: heads share those of keys evenly, heads and tables have a
    size, and heads support the kind of positions.
    """
    kind, width = getattr(config, "positions", ""), int(getattr(config, "head_dim", 1))
    heads, of_keys = (
        getattr(config, "num_attention_heads", 0),
        getattr(config, "num_key_value_heads", 1),
    )
    return (
        (
            "config.num_key_value_heads",
            heads % of_keys > 0 and not _is_latent(config),
            f"expected a divisor of the {heads} heads of queries, got {of_keys}",
        ),
        (
            "config.head_dim",
            not width,
            "expected a width of at least 1; there are more heads than they are wide together",
        ),
        (
            "config.max_position_embeddings",
            kind == "learned" and not positions_of(config),
            "learned positions need a number of them",
        ),
        (
            "config.positions",
            kind not in ("", "rotary", "none") and _is_latent(config),
            "latent attention works with rotary positions only",
        ),
        (
            "config.rotary_width",
            int(getattr(config, "rotary_width", 0)) > width,
            f"expected at most {width}, the width of a head",
        ),
    )


def _check_size(config: Layered, run: Run) -> None:
    """Raise :class:`InputError` if the device's part of the model has too many layers, or a layer
    has too many parts.
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
