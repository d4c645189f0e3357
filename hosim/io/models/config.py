"""The parameters of a builder: the sizes of a model (one dataclass per family) and the settings of
its run.
"""

from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class NormSizes:
    """The norms of a decoder.

    ``norm`` is ``rms``, ``layer``, ``layer_without_bias``, ``layer_without_weight`` or
    ``rms_without_weight``. ``pre_norms``: attention and MLP read a norm of their input.
    ``post_norms``: their results are normed before they are added (Gemma; OLMo-2 has only these).
    ``parallel_block``: attention and MLP read the same input, with ``shared_norm`` through one norm
    (Phi-2, Falcon). ``qk_norm``: queries and keys are normed; ``qk_norm_over`` says over what: over
    a ``head``, with the same weights for all heads, with weights for ``each`` head, or without
    weights (``plain``); or over ``all`` heads together. ``embedding_norm``: the embedding is normed
    (BLOOM). ``sub_norms``: the inputs of the last products of attention and of the MLP are normed
    (BitNet). ``value_norm``: values are normed, without weights.
    """

    norm: str = "rms"
    pre_norms: bool = True
    post_norms: bool = False
    sub_norms: bool = False
    parallel_block: bool = False
    shared_norm: bool = False
    qk_norm: bool = False
    qk_norm_over: str = "head"
    value_norm: bool = False
    embedding_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class ProductSizes:
    """The products of a decoder's layers.

    ``gated_mlp``: an MLP is ``down(act(gate) * up)``, else ``down(act(up))``.
    ``fused_projections``: queries, keys and values are one product, and gate and up another.
    ``fused_gate_up``: only gate and up are one product. ``qkv_bias``, ``out_bias``, ``mlp_bias``,
    ``head_bias`` and ``expert_bias`` (router and experts): these products have biases.
    """

    gated_mlp: bool = True
    hidden_act: str = "silu"
    fused_projections: bool = False
    fused_gate_up: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    expert_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """The attention of a decoder, and the positions of its tokens.

    ``positions`` is ``rotary`` (on the first ``rotary_width`` elements of a head; 0: all),
    ``learned`` (a table of ``max_position_embeddings`` plus ``extra_positions`` rows), ``alibi`` (a
    slope for each head, inside the attention kernel) or ``none``. ``max_position_embeddings`` 0: no
    limit.

    ``sliding_window``: the keys that a query sees, including its own, and that the cache holds; 0:
    all. Every ``full_attention_every``-th layer sees all keys (0: none does). ``attention_sinks``:
    each head has a learned score beside those of its keys. ``kv_lora_rank``: the width of the
    latents of latent attention; 0: keys and values have heads. Its queries have latents of their
    own unless ``q_lora_rank`` is 0. ``attention_gate``: the result is multiplied by a sigmoid: of a
    part of the product of ``queries`` (Qwen3-Next), of a product of its ``own``, or of a product
    with one number for each of the ``heads``. ``v_head_dim``: the width of values in heads, if it
    differs from that of keys (0: it does not). ``keys_are_values``: one product makes both.
    ``index_topk``: the latents that a query sees (0: all), chosen by ``index_n_heads`` heads of
    width ``index_head_dim`` (DeepSeek-V3.2). ``shares_keys``: keys and values are those of the last
    earlier layer that makes some for the same kind of window (Gemma 4). ``output_rank``: attention
    is that over compressed entries (:mod:`hosim.io.models.latent_attention`), with an entry for
    every ``compress_rate`` tokens (0: only a window). Its last product is two products; the first
    has one part for each of the ``output_groups`` groups of heads.
    """

    positions: str = "rotary"
    rotary_width: int = 0
    max_position_embeddings: int = 0
    extra_positions: int = 0
    sliding_window: int = 0
    full_attention_every: int = 0
    attention_sinks: bool = False
    attention_gate: str = ""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    keys_are_values: bool = False
    shares_keys: bool = False
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    compress_rate: int = 0
    output_groups: int = 0
    output_rank: int = 0


@dataclass(frozen=True, kw_only=True)
class StateSizes:
    """The linear mixers of a decoder.

    They have ``state_heads`` heads of width ``state_head_dim``, with a state of ``state_size`` for
    each element. The heads of each of ``state_groups`` groups share keys. A convolution covers the
    last ``conv_kernel`` tokens (:mod:`hosim.io.models.mixers`).
    """

    state_heads: int = 0
    state_head_dim: int = 0
    state_size: int = 0
    state_groups: int = 0
    state_norm: bool = True
    state_bias: bool = False
    conv_kernel: int = 0
    conv_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertSizes:
    """The experts of a decoder.

    ``num_experts`` 0: the model is dense. Layers before ``first_k_dense_replace`` are always dense.
    ``router``: scores come from a ``softmax``, or from a ``sigmoid`` each; empty: a softmax if
    ``n_group`` is 0 (Qwen3), else sigmoids and groups of experts (DeepSeek-V3).
    ``router_correction``: a ``buffer``, a ``parameter`` or nothing (``none``) is added to scores
    before the choice; empty: a buffer with sigmoids, as in DeepSeek-V3, else nothing.
    ``router_fp32``: the experts' weights from a softmax stay in fp32 (Mixtral).
    ``shared_intermediate_size``: the width of the expert that all tokens pass (0:
    ``n_shared_experts`` times the width of an expert); ``shared_expert_gate``: its result is
    multiplied by a sigmoid. ``moe_latent_size``: the width of the vectors that experts read and
    return, with a product before and after all experts (0: the width of the hidden state).

    ``mixture_beside``: a layer has an MLP and a mixture side by side (Gemma 4).
    """

    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    n_group: int = 0
    router: str = ""
    router_correction: str = ""
    router_fp32: bool = False
    shared_intermediate_size: int = 0
    shared_expert_gate: bool = False
    moe_latent_size: int = 0
    mixture_beside: bool = False

    @property
    def shared_width(self) -> int:
        """The width of the expert that all tokens pass; 0 if there is none."""
        return self.shared_intermediate_size or self.n_shared_experts * self.moe_intermediate_size


@dataclass(frozen=True)
class Decoder(NormSizes, ProductSizes, AttentionSizes, StateSizes, ExpertSizes):
    """A decoder language model. Fields are named as in public ``config.json`` files, where those
    have them.

    Layers: ``kinds`` has, for each kind of layer, the fields in which it differs from this model;
    ``pattern`` has the kind of each layer, and repeats. Without them all layers are alike, except
    where other fields differ by layer. ``mixer`` mixes tokens: ``attention``, one of
    :data:`hosim.io.models.mixers.MIXERS`, attention beside Mamba-2 (``attention+mamba2``), or
    ``none``. ``has_mlp``: an MLP or a mixture follows.

    ``streams`` and ``laurel_rank``: see :mod:`hosim.io.models.decoder`.

    ``layer_input_size``: the width of each layer's own input, from a table of ``layer_input_vocab``
    entries; 0: none. ``embedding_scale``: the embedding is multiplied by a number (Gemma).
    ``final_softcap``: logits are bounded by a tanh (Gemma 2). ``dropout``: the share of the results
    of attention and MLP that training drops; ``attention_dropout``: of the scores, in attention
    that is not one kernel; ``embedding_dropout``: of the embedding. ``names``: the family whose
    names the parts have (:data:`hosim.io.models.names.NAMES`).
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    head_dim: int
    tie_word_embeddings: bool = False
    dropout: float = 0.0
    embedding_scale: bool = False
    final_softcap: bool = False
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    names: str = "llama"
    mixer: str = "attention"
    has_mlp: bool = True
    streams: int = 0
    laurel_rank: int = 0
    layer_input_size: int = 0
    layer_input_vocab: int = 0
    kinds: tuple[tuple[tuple[str, int | bool | str], ...], ...] = ()
    pattern: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ParallelRun:
    """The devices that run a program together. The graph is that of one of them.

    ``tensor``, ``expert``, ``pipeline``: the numbers of devices that share each layer, the experts,
    and the layers. The graph is that of one device of the pipeline stage ``stage``.
    ``stage_layers``: the number of layers of each stage, separated by '/' (none: equal numbers).
    Devices that share experts have tokens of their own; they are among the ``data`` devices, if
    there are any. Collectives are ops of the stream ``comm``. ``link_bytes_per_s`` is the rate at
    which a device sends, and receives at the same time. Without it, on a machine without links,
    collectives take the time of their bytes in the device tier, and every table says so.

    ``sequence_parallel``: in training, each device has only its own tokens between the products of
    a layer that devices share (Korthikanti et al., MLSys 2023). The tokens of all devices are kept
    where a product reads them; with ``regather`` they are gathered again for the gradient of its
    weight, as in Megatron-LM.

    ``context_parallel``: the number of devices that share the tokens of each sequence in training:
    in a ring, with a window by gathering keys, with learned scores by exchanging heads
    (:mod:`hosim.io.models.grouped_attention`). They share gradients, states and parameters as
    ``data`` devices do; the two numbers are multiplied.

    ``micro_batches``: the number of micro-batches of a training step, each of ``batch`` sequences;
    their gradients add up (none: one for each pipeline stage). ``schedule``: the order of their
    passes in a stage (:mod:`hosim.io.models.pipeline_schedule`). ``chunks``: the number of parts
    into which an interleaved schedule cuts the layers of a device. ``tied``: the graph is one of
    stages that run together (docs/contract.md, rule 21). Sends and receives then have messages and
    their own streams, ``send`` and ``recv``; a receive comes after what the device has computed
    before it.

    ``sync_each_batch``: devices reduce the gradients of each micro-batch (``zero`` 2 and 3).
    Otherwise, as accelerate does by default, each device adds up whole gradients, which are reduced
    in the last backward pass.

    ``data``: the number of devices that each have their own batch of a training step. ``zero`` says
    what else they share (0: nothing; 1 to 3: :mod:`hosim.io.models.data_parallel`). In stage 3
    layers are gathered ``prefetch`` ahead, and again in the backward pass if they are resharded
    (``reshard``). Shards of parameters live in ``shards_home``, and ``main_gradients`` are reduced
    in fp32.
    """

    tensor: int = 1
    expert: int = 1
    pipeline: int = 1
    stage: int = 0
    stage_layers: str | None = None
    link_bytes_per_s: int | None = None
    sequence_parallel: bool = False
    regather: bool = False
    context_parallel: int = 1
    micro_batches: int | None = None
    sync_each_batch: bool = True
    schedule: str = "1f1b"
    chunks: int = 1
    tied: bool = False
    data: int = 1
    zero: int = 0
    reshard: bool = True
    prefetch: int = 1
    shards_home: str | None = None

    @property
    def micro_batches_of_step(self) -> int:
        """The number of micro-batches of a training step."""
        return self.pipeline if self.micro_batches is None else self.micro_batches

    @property
    def replicas(self) -> int:
        """The number of devices that have the same parameters and other tokens."""
        return self.data * self.context_parallel

    @property
    def devices(self) -> int:
        """The number of devices that run the program together."""
        return self.tensor * self.pipeline * max(self.replicas, self.expert)


@dataclass(frozen=True, kw_only=True)
class NumericsOfRun:
    """The dtypes in which numbers are kept and computed: ``dtype``, if no other is given.

    ``weights``: the packing of the weights of layers' products (none: they are in ``dtype``;
    :mod:`hosim.io.models.packed`), in groups of ``group``. ``packed``: ``all`` weights, or those of
    ``experts`` (none: those of experts in ``mxfp4``, as in gpt-oss; else all). ``activations``: the
    dtype that the other operand is rounded to. ``cache_dtype``: the packing of a cache of heads.

    ``products``: the dtype in which the products of layers and of experts are computed in training
    (none: ``dtype``; ``fp8``: both operands, and the gradients of results, are rounded to it, as in
    Transformer Engine).
    """

    dtype: str = "bf16"
    weights: str | None = None
    group: int | None = None
    packed: str | None = None
    activations: str | None = None
    cache_dtype: str | None = None
    products: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecomputedRun:
    """The activations that the backward pass reads, and those that are recomputed for it.

    ``checkpoint``: only each layer's input is kept; ``checkpoint_layers``: for this many first
    layers only. ``selective``: the results of products, attention and collectives are kept, too,
    and only the other ops are recomputed. ``every_other_product``: of a layer's products only the
    results of the first, the third and so on are kept, as in torchtitan. ``kept_dtype``: the
    packing of a layer's input while it is kept, one of those of a cache (none: it is not packed).
    It is packed once the layer has read it, and unpacked before the layer runs again.
    ``recompute_attention``: only attention is recomputed, from queries, keys and values
    (Megatron-LM's selective recomputation).
    """

    checkpoint: bool = False
    checkpoint_layers: int | None = None
    selective: bool = False
    every_other_product: bool = False
    recompute_attention: bool = False
    kept_dtype: str | None = None

    def checkpoints(self, layer: int) -> bool:
        """Return whether only the input of a layer is kept for the backward pass."""
        return self.checkpoint and (
            self.checkpoint_layers is None or layer < self.checkpoint_layers
        )


@dataclass(frozen=True, kw_only=True)
class UpdateOfRun:
    """The loss and the update of a training step.

    ``loss``: ``whole`` is that of eager torch, which keeps fp32 copies of all logits; ``compiled``
    is one kernel each way, which keeps logits and a sum for each row; ``chunked`` computes head,
    loss and their gradients together, for one chunk of the rows at a time
    (:func:`hosim.io.models.functions.chunked_loss`). ``optimizer``: ``adamw`` (fp32 moments, and
    fp32 copies of parameters in a narrower dtype) or ``none``. ``states_dtype``: moments are in
    ``bf16`` or ``int8`` (8-bit Adam), without fp32 copies of parameters. ``foreach``: each part of
    the update is done for all parameters before the next part (:mod:`hosim.io.models.optimizer`).
    ``main_gradients``: gradients of parameters are added to fp32 ones, which outlive the step.

    ``lora_rank``: training learns only adapters, two narrow products beside each projection that
    ``lora_modules`` names, separated by '/' (none: all projections but those of routed experts).
    All other parameters are frozen, without gradients and states, and may be packed (``weights``).
    """

    loss: str = "whole"
    optimizer: str = "adamw"
    states_dtype: str | None = None
    foreach: bool = False
    main_gradients: bool = False
    lora_rank: int | None = None
    lora_modules: str | None = None


@dataclass(frozen=True, kw_only=True)
class HomesOfRun:
    """The tiers in which parts of a model live, and the processors that run them.

    ``optimizer_on``, ``experts_on``, ``attention_on``: the tiers whose processor runs the
    optimizer, the routed experts, or the attention of a decoding step (docs/contract.md, rule 20).
    Tensors that only these ops read live there unless another home is given. ``device/TIER`` lets
    the plan choose between the device and the processor of the tier; so does ``layers_on``, for
    every layer of an inference, the embedding and the head. ``optimizer_share``: the share of the
    parameters, the first ones, that the optimizer updates there; it updates the others on the
    device, where their states live. ``update``: when such an optimizer runs
    (:mod:`hosim.io.models.optimizer`).

    ``states_home``, ``experts_home``, ``cache_home``: the tiers in which optimizer states, experts
    and the cache live; none: the device tier.
    """

    optimizer_on: str | None = None
    optimizer_share: float = 1.0
    update: str = "synchronous"
    experts_on: str | None = None
    attention_on: str | None = None
    layers_on: str | None = None
    states_home: str | None = None
    experts_home: str | None = None
    cache_home: str | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionOfRun:
    """The kernels of attention, the cache that they read, and chosen experts.

    ``attention``: one of :data:`hosim.io.models.attention.MODES`. ``attention_kernel``: the library
    of attention in a training step: FlashAttention or its version in Triton (``flash1``), or
    FlashAttention-2, as in torch (``flash2``); none: that of inference engines, which uses Hopper's
    own instructions. ``cache``: a prefill writes the keys and values.

    ``chosen_experts``: each expert has tensors and ops of its own, and a step is assumed to choose
    this many experts of each layer. ``kv_block``: attention works on blocks of this many tokens. A
    decoding step finds its cache in them: the first ``sink_blocks`` and the last ``window_blocks``,
    including the one being written, are in the device tier and always read. Of the older blocks,
    which live in ``cache_home``, it reads ``chosen_blocks``. A prompt writes its whole cache, and
    each of its queries reads as many blocks.
    """

    attention: str = "causal"
    attention_kernel: str | None = None
    cache: bool = True
    chosen_experts: int | None = None
    kv_block: int | None = None
    sink_blocks: int = 1
    window_blocks: int = 2
    chosen_blocks: int = 4


@dataclass(frozen=True)
class Run(ParallelRun, NumericsOfRun, RecomputedRun, UpdateOfRun, HomesOfRun, AttentionOfRun):
    """The settings of a run of a model, on one device.

    ``phase``: ``train`` (forward, backward, optimizer), ``forward``, or for a decoder ``prefill``
    (a prompt of ``sequence`` tokens) and ``decode`` (the next token, with ``context`` tokens in the
    cache, including this one). ``layers``: the number of layers to build (none: all); the other
    parts are whole. ``fused``: norms, rotary positions and gates are one kernel each. ``merged``:
    kernels are those of inference engines (:mod:`hosim.io.models.engine_layer`). ``logits`` of a
    prefill: of the ``last`` position or of ``all``.
    """

    phase: str = "prefill"
    batch: int = 1
    sequence: int = 4096
    context: int = 4096
    layers: int | None = None
    fused: bool = False
    merged: bool = False
    logits: str = "last"

    @property
    def training(self) -> bool:
        """Return whether there is a backward pass."""
        return self.phase == "train"

    @property
    def own_tokens(self) -> int:
        """The tokens of one sequence that the device has between layers."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    @property
    def tokens(self) -> int:
        """The tokens of one sequence that pass through the device's layers."""
        return 1 if self.phase == "decode" else self.sequence // self.context_parallel


@dataclass(frozen=True, slots=True)
class RoutingDraw:
    """The parameters of a generated trace of what a model's gates choose
    (:func:`hosim.io.models.routing_draw.generate`), over ``steps`` consecutive steps.
    """

    steps: int = 1
    seed: int = 0
    zipf: float = 1.0
    persistence: float = 0.5


class Layered(Protocol):
    """The sizes of a model with equal layers."""

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""


def layer_sizes(config: Decoder, n: int) -> Decoder:
    """The sizes of layer ``n``: those of its kind, without a window if it sees all keys."""
    if config.pattern:
        config = replace(
            config,
            **dict(config.kinds[config.pattern[n % len(config.pattern)]]),  # type: ignore[arg-type]
            kinds=(),
            pattern=(),
        )
    every = config.full_attention_every
    return (
        replace(config, sliding_window=0)
        if config.sliding_window and every and (n + 1) % every == 0
        else config
    )


def key_heads(config: Decoder, run: Run) -> int:
    """The heads of keys on a device. If there are more devices than heads, they have copies."""
    return max(1, config.num_key_value_heads // run.tensor)


def vocabulary(config: Decoder, run: Run) -> int:
    """The entries of the vocabulary on a device. It is padded if the devices cannot share it
    evenly.
    """
    return -(-config.vocab_size // run.tensor)


def first_layers(count: int, run: Run) -> range:
    """The layers that are built of one half of a model with ``count`` layers in it."""
    return range(count if run.layers is None else min(count, run.layers))


def layers_of_all(config: Layered, run: Run) -> int:
    """The number of layers of all pipeline stages together."""
    return config.num_hidden_layers if run.layers is None else run.layers


def layers_of(config: Layered, run: Run) -> range:
    """The layers of the device's pipeline stage."""
    taken = layers_of_all(config, run)
    if run.stage_layers is not None:
        counts = [int(count) for count in run.stage_layers.split("/")]
        return range(sum(counts[: run.stage]), sum(counts[: run.stage + 1]))
    return range(taken * run.stage // run.pipeline, taken * (run.stage + 1) // run.pipeline)


def first_and_other(processor: str) -> tuple[str, str]:
    """Return the processor on which ops run by default (empty: the device), and the one on which a
    plan may run them instead (empty: none).

    >>> first_and_other("ddr"), first_and_other("device/ddr")
    (('ddr', ''), ('', 'ddr'))
    """
    first, _, other = processor.partition("/")
    return ("", other) if other else (first, "")


# -- GPT-2 -----------------------------------------------------------------------------------------
# GPT-2 has learned positions, layer norms before each part, biases everywhere, and an output layer
# tied to the embedding.


@dataclass(frozen=True, slots=True)
class Gpt2:
    """The sizes of GPT-2. Fields are named as in the public ``config.json`` files.

    ``dropout`` applies to the results of attention and MLP, and to the embedding and the scores of
    attention unless these have a dropout of their own.
    """

    n_embd: int
    n_layer: int
    n_head: int
    vocab_size: int = 50257
    n_positions: int = 1024
    dropout: float = 0.1
    embedding_dropout: float | None = None
    attention_dropout: float | None = None

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return self.n_layer

    def decoder(self) -> Decoder:
        """Return the same model as a :class:`Decoder`."""
        return Decoder(
            self.n_embd,
            self.n_layer,
            self.n_head,
            self.n_head,
            4 * self.n_embd,
            self.vocab_size,
            self.n_embd // self.n_head,
            tie_word_embeddings=True,
            gated_mlp=False,
            dropout=self.dropout,
            qkv_bias=True,
            norm="layer",
            positions="learned",
            max_position_embeddings=self.n_positions,
            hidden_act="gelu_new",
            fused_projections=True,
            out_bias=True,
            mlp_bias=True,
            embedding_dropout=self.dropout
            if self.embedding_dropout is None
            else self.embedding_dropout,
            attention_dropout=self.dropout
            if self.attention_dropout is None
            else self.attention_dropout,
            names="gpt2",
        )
