"""hosim's own policies, in the order in which they are shown: data only, so that listing them
imports no planner.
"""

from hosim.policies.computed_elsewhere import ComputedElsewhere
from hosim.policies.policy import Parameter, Policy
from hosim.policies.rules_of_thumb import (
    ACTIVATIONS,
    CACHE,
    LAYERS_AHEAD,
    PLACEMENT,
    RULES_OF_THUMB,
    WEIGHTS,
)

_PLANNED = Parameter(
    "planned",
    "str",
    "the tier below: planned (where most hides), or nearest, fastest, balanced, by_kind",
)

_OPTIMIZER = ComputedElsewhere("the optimizer", "optimizer_state", "optimizer_on")
_SPECULATIVE = ComputedElsewhere(
    "the optimizer", "optimizer_state", "optimizer_on", {"update": "speculative"}
)
_SHARDS = ComputedElsewhere(
    "the optimizer", "optimizer_state", "optimizer_on", {"zero": 3, "shards_home": "ddr"}
)
_EXPERTS = ComputedElsewhere("routed experts", "expert", "experts_on", {"merged": True})
_LAYERS = ComputedElsewhere("layers", "parameter", "layers_on", {"merged": True}, chosen=True)

BUILT_IN = (
    Policy(
        "hyperoffload",
        "global refinement of the execution order: hosim's own planner (arXiv 2602.00748)",
        "hosim.policies.own.hyperoffload:plan",
        {
            "effort": Parameter(1.0, "float", "scales the work of the search; more continues it"),
            "work": Parameter(
                None,
                "int",
                "ends the search after this amount of counted work; none: when its effort is spent",
            ),
            "within": Parameter(
                0.0,
                "share",
                "ends the search at the first plan within this gap to the lower bound, such as 1%",
            ),
            "alpha": Parameter(
                None,
                "float",
                "weight in max(0, transfer - overlap) + alpha * residency, by which two sweeps "
                "rank gaps; none: no sweep does",
            ),
            "seed": Parameter(0, "int", "of the search"),
            "reorder": Parameter(
                None,
                "bool",
                "whether ops may be reordered within their dependencies; none: if the workload "
                "allows it",
            ),
            "recompute": Parameter(
                None,
                "bool",
                "whether tensors may be recomputed instead of moved; none: if the workload allows "
                "it",
            ),
            "placement": _PLANNED,
        },
        models="HyperOffload (arXiv 2602.00748), as described",
        leaves_out="its code is not published: the passes are hosim's own",
        chooses="hosim.planner.rewrites.processor_choice:best_choice",
    ),
    *RULES_OF_THUMB,
    Policy(
        "hybrid",
        "hyperoffload for the backbone; a cache at run time for routed experts",
        "hosim.policies.own.hybrid:plan",
        {
            "cache_bytes": Parameter(
                None,
                "size",
                "memory for experts; none: what the backbone leaves, at least enough for two "
                "decisions",
            ),
            "predictor": Parameter(
                "previous",
                "str",
                "what is prefetched before a gate decides: previous, popular, none, perfect, "
                "predicted",
            ),
            "hit_rate": Parameter(
                1.0,
                "float",
                "predicted: the share of what a gate chooses that is prefetched, nothing else",
            ),
            "seed": Parameter(0, "int", "predicted: the seed of that draw"),
            "keeps": Parameter(
                "lru",
                "str",
                "which experts are evicted: lru, lfu; hottest: the most frequently chosen stay, "
                "the rest is lru",
            ),
            "top": Parameter(
                None,
                "int",
                "how many experts are predicted for a decision; none: as many as the gate chose "
                "last",
            ),
            "placement": _PLANNED,
        },
        runtime=True,
        needs_routing=True,
        models="HyperOffload with data-dependent control flow, as described",
        leaves_out="parts of experts; its code is not published",
    ),
    Policy(
        "zero_inference",
        "layerwise with all weights offloaded",
        "hosim.policies.own.layerwise:plan",
        {"layers_ahead": LAYERS_AHEAD, "placement": PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Inference",
        leaves_out="several devices that each read a part; quantisation",
    ),
    Policy(
        "flexgen",
        "offloads percentages of weights (in FlexGen's own order), cache and activations",
        "hosim.policies.own.static_split:flexgen",
        {
            "weights": WEIGHTS,
            "cache": CACHE,
            "activations": ACTIVATIONS,
            "search": Parameter(
                False,
                "bool",
                "whether shares of cache and activations that are not given are searched by "
                "replays, in quarters",
            ),
            "placement": PLACEMENT,
        },
        by_name_only=True,
        models="FlexGen (ICML 2023)",
        leaves_out="its linear program, and percentages of the disk; heads of a cache; fetches by "
        "layer; "
        "zig-zag, unless the graph's batch is all batches",
    ),
    Policy(
        "saved_activations",
        "what the forward pass saves for the backward pass is offloaded, and prefetched a layer "
        "ahead of its use (torchtune, TRL, Megatron)",
        "hosim.policies.own.saved_activations:plan",
        {
            "activations": Parameter(
                1.0, "share", "how much of it is offloaded, what is saved first before the rest"
            ),
            "layers_ahead": LAYERS_AHEAD,
            "placement": PLACEMENT,
        },
        by_name_only=True,
        models="activation offload of torchtune, TRL, DeepSpeed (cpu_checkpointing) and Megatron-LM",
        leaves_out="a prefetch as early as the host is ahead of the device",
    ),
    Policy(
        "deepcompile",
        "what the forward pass saves is offloaded, but for the largest of it that the peak leaves "
        "room for (DeepSpeed)",
        "hosim.policies.own.saved_activations:deepcompile",
        {
            "margin": Parameter(0.1, "share", "how much of the budget is left free"),
            "smallest": Parameter(5 * 2**20, "size", "what is smaller stays"),
            "placement": PLACEMENT,
        },
        by_name_only=True,
        models="activation offload of DeepSpeed 0.19.8's DeepCompile",
        leaves_out="the wait for each copy down; the allocator's unused memory as the margin",
    ),
    Policy(
        "pipeline_swap",
        "what a micro-batch saves in a pipeline stage is offloaded while enough passes of others "
        "lie between (MindSpore)",
        "hosim.policies.own.saved_activations:pipeline_swap",
        {
            "least_gap": Parameter(
                4, "int", "passes from the forward to the backward pass of what moves"
            ),
            "placement": PLACEMENT,
        },
        by_name_only=True,
        models="the activation swap of MindSpore and hyper-parallel under a pipeline schedule",
        leaves_out="outputs of the last stage, which stay; modules that users choose",
    ),
    Policy(
        "zero_offload",
        "optimizer states offloaded, and the CPU updates (optimizer_on)",
        "hosim.policies.own.layerwise:states_below",
        {"layers_ahead": LAYERS_AHEAD, "placement": PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Offload",
        leaves_out="buckets of gradients; tiles of the copy back",
        elsewhere=_OPTIMIZER,
    ),
    Policy(
        "swap_optimizer",
        "optimizer states offloaded, and updated on the device batch by batch while others are "
        "copied (MindSpore 2.11)",
        "hosim.policies.own.layerwise:swapped_states",
        {
            "swap_times": Parameter(16, "int", "batches of about equal bytes"),
            "smallest": Parameter(4096, "size", "a state that is smaller stays"),
            "placement": PLACEMENT,
        },
        by_name_only=True,
        models="the optimizer swap of MindSpore 2.11 and hyper-parallel",
        leaves_out="staging buffers (packed_swap)",
    ),
    Policy(
        "zero_infinity",
        "parameters and optimizer states offloaded, streamed a layer ahead; the CPU updates "
        "(optimizer_on)",
        "hosim.policies.own.deepspeed:zero_infinity",
        {"layers_ahead": LAYERS_AHEAD, "placement": PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Infinity",
        leaves_out="checkpoints of activations on the host; reads by several devices; tiles",
        other_processors=True,
        elsewhere=_OPTIMIZER,
    ),
    Policy(
        "superoffload",
        "the optimizer on the CPU (optimizer_on); parameters on the device if they fit there, "
        "else streamed",
        "hosim.policies.own.deepspeed:superoffload",
        {"layers_ahead": LAYERS_AHEAD, "placement": PLACEMENT},
        by_name_only=True,
        models="DeepSpeed SuperOffload (arXiv 2509.21271)",
        leaves_out="buckets; the last buckets' optimizer on the device; casts on the device; "
        "updates that are undone",
        other_processors=True,
        elsewhere=_SPECULATIVE,
    ),
    Policy(
        "ktransformers",
        "routed experts on the CPU (experts_on), everything else on the device",
        "hosim.policies.own.resident:plan",
        by_name_only=True,
        models="KTransformers (SOSP 2025)",
        leaves_out="experts in demand on the device; deferred experts; memory of several sockets; "
        "the experts of a prompt on the device",
        elsewhere=_EXPERTS,
        chooses="hosim.policies.own.llama_cpp:experts_placed",
    ),
    Policy(
        "llama_cpp",
        "layers and experts run where their weights are: as many as fit on the device, the rest "
        "on the CPU (layers_on)",
        "hosim.policies.own.llama_cpp:plan",
        {
            "n_gpu_layers": Parameter(
                None,
                "int",
                "-ngl: layers from the back that are on the device, the output layer first; none: "
                "as --fit",
            ),
            "n_cpu_moe": Parameter(
                None,
                "int",
                "--n-cpu-moe: layers from the front whose experts are on the CPU; none: as --fit",
            ),
            "override_tensor": Parameter(
                "",
                "str",
                "-ot: PATTERN=CPU or PATTERN=CUDA0 for names of a GGUF, several with '/' between "
                "them",
            ),
            "fit_target": Parameter(2**30, "size", "--fit-target: memory that --fit leaves free"),
            "op_offload": Parameter(
                True,
                "bool",
                "false: --no-op-offload, so that products of many rows are computed where their "
                "weights lie",
            ),
        },
        by_name_only=True,
        models="llama.cpp of 2026 with --fit, -ngl, --n-cpu-moe and -ot",
        leaves_out="a layer whose experts' matrices lie on both sides; weights copied up for many "
        "rows; its buffer for batches of a prompt",
        elsewhere=_LAYERS,
        chooses="hosim.policies.own.llama_cpp:placed",
    ),
    Policy(
        "fsdp_offload",
        "FSDP with its shards (shards_home) and its optimizer (optimizer_on) on the CPU",
        "hosim.policies.own.deepspeed:fsdp_offload",
        {
            "ops_ahead": Parameter(
                4, "int", "ops of its stream by which a shard comes up before it is gathered"
            )
        },
        by_name_only=True,
        models="PyTorch FSDP with CPU offload",
        leaves_out="gradients of several micro-batches added up on the CPU; pinned staging buffers",
        other_processors=True,
        elsewhere=_SHARDS,
    ),
    Policy(
        "optimal",
        "the exact optimum on small graphs (OR-tools CP-SAT; extra 'solver')",
        "hosim.planner.exact.solver:plan",
        {
            "limit": Parameter(
                30.0,
                "float",
                "deterministic seconds of the solver's work, after which the best plan so far is "
                "taken",
            ),
            "seed": Parameter(0, "int", "of the solver"),
            "largest": Parameter(
                400,
                "int",
                "gaps that tensors could spend below, up to which a graph counts as small",
            ),
        },
        by_name_only=True,
        models="no system: the exact optimum",
        leaves_out="of ops on other processors: moves other than those that they force, so that a "
        "better plan may exist",
        chooses="hosim.planner.rewrites.processor_choice:every_choice",
    ),
)
"""Every policy that hosim ships, in display order."""
