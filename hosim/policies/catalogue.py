"""hosim's own policies, in the order in which they are shown: data only, so that listing them imports no planner."""

from __future__ import annotations

from hosim.policies.computed_elsewhere import ComputedElsewhere
from hosim.policies.policy import Parameter, Policy

_PREFETCH_DISTANCE = Parameter(50, "int", "ops by which a prefetch is issued before the op that needs it")
_RELEASE_DISTANCE = Parameter(0, "int", "ops after the last use before the tensor is released")
_PLACEMENT = Parameter(
    "fastest", "str", "the tier below that takes a tensor: fastest (with room), nearest, balanced, by_kind (or by_kind/KIND=TIER/...)"
)
_PLANNED = Parameter("planned", "str", "the tier below: planned (where most hides), or nearest, fastest, balanced, by_kind")
_WEIGHTS = Parameter(None, "float", "the share of the weights that lives below; none: the smallest that fits")
_CACHE = Parameter(None, "float", "the share of the KV cache that does; none: 0, unless all weights are not enough")
_ACTIVATIONS = Parameter(None, "float", "the share of the activations; none: 0, unless those before are not enough")
_LAYERS_AHEAD = Parameter(1, "int", "layers whose parameters are on their way while one computes")

_OPTIMIZER = ComputedElsewhere("the optimizer", "optimizer_state", "optimizer_on")
_SPECULATIVE = ComputedElsewhere("the optimizer", "optimizer_state", "optimizer_on", {"update": "speculative"})
_SHARDS = ComputedElsewhere("the optimizer", "optimizer_state", "optimizer_on", {"zero": 3, "shards_home": "ddr"})
_EXPERTS = ComputedElsewhere("routed experts", "expert", "experts_on", {"merged": True})
_LAYERS = ComputedElsewhere("layers", "parameter", "layers_on", {"merged": True}, chosen=True)

BUILT_IN = (
    Policy(
        "hyperoffload",
        "global refinement of the execution order: hosim's own planner (arXiv 2602.00748)",
        "hosim.policies.own.hyperoffload:plan",
        {
            "effort": Parameter(1.0, "float", "scales how many candidate plans are replayed"),
            "seed": Parameter(0, "int", "of the search on small graphs"),
            "reorder": Parameter(None, "bool", "whether ops may trade places within their dependencies; none: if the workload says so"),
            "recompute": Parameter(None, "bool", "whether ops may run again instead of tensors being moved; none: if the workload says so"),
            "placement": _PLANNED,
        },
        models="HyperOffload (arXiv 2602.00748), as described",
        leaves_out="its code is not published: the passes are hosim's own",
        chooses="hosim.planner.rewrites.processor_choice:best_choice",
    ),
    Policy(
        "resident",
        "everything in device memory; what lives below comes up once, at time 0",
        "hosim.policies.own.resident:plan",
        models="frameworks without offload",
    ),
    Policy(
        "on_demand",
        "reactive: fetch what an op misses, evict the least recently used, wait",
        "hosim.policies.own.on_demand:plan",
        {"placement": _PLACEMENT},
        runtime=True,
        models="demand paging of tensors",
        leaves_out="parts of tensors; the time of a fault beside its copy",
    ),
    Policy(
        "unified_memory",
        "reactive: what an op touches comes up with its neighbours in memory, what came first goes first (CUDA unified memory)",
        "hosim.policies.own.unified_memory:plan",
        {
            "block": Parameter(2 * 2**20, "size", "bytes of memory whose tensors come up together; 0: none do"),
            "placement": _PLACEMENT,
        },
        runtime=True,
        models="CUDA unified memory",
        leaves_out="pages by themselves; the time of a fault batch; hints; the lower bandwidth of copies by faults",
        slower="copies by page faults are timed at the link's full bandwidth, of which they reach a part (3.8 GB/s of PCIe 4 was reported)",
    ),
    Policy(
        "keep_first",
        "reactive: what is used first stays, the rest is fetched for each use",
        "hosim.policies.own.keep_first:plan",
        {"placement": _PLACEMENT},
        runtime=True,
        models="a runtime that evicts the most recently used",
        leaves_out="parts of tensors",
    ),
    Policy(
        "lookahead",
        "on_demand, and what the next k ops need is prefetched while there is room",
        "hosim.policies.own.lookahead:plan",
        {"k": Parameter(4, "int", "how many ops ahead it looks"), "placement": _PLACEMENT},
        runtime=True,
        foresees=True,
        models="the reactive runtime that the HyperOffload paper compares with, in our reading",
        leaves_out="its code is not published",
    ),
    Policy(
        "layerwise",
        "parameters, and what else lives below, streamed a layer ahead (vLLM, diffusers, ZeRO)",
        "hosim.policies.own.layerwise:plan",
        {
            "layers_ahead": _LAYERS_AHEAD,
            "kinds": Parameter("parameter/expert", "str", "kinds of tensors that are put below; what lives there is streamed in any case"),
            "placement": _PLACEMENT,
        },
        models="vLLM and diffusers with group offload, ZeRO-3 parameter offload, ZeRO-Inference",
        leaves_out="staging buffers; buckets; computation on the host",
    ),
    Policy(
        "static_split",
        "a share of the weights below, evenly spread, fetched into a few buffers (vLLM, Accelerate, llama.cpp)",
        "hosim.policies.own.static_split:plan",
        {
            "weights": _WEIGHTS,
            "cache": _CACHE,
            "states": Parameter(None, "float", "the share of the optimizer states; none: 0, unless those before are not enough"),
            "activations": _ACTIVATIONS,
            "ahead": Parameter(None, "int", "ops by which a fetch is issued at most before the op that needs it; none: any number"),
            "buffers": Parameter(
                None, "int", "each for what the op that fetches most needs; 0: no limit; none: 2, or 3 if some are stored"
            ),
            "spread": Parameter("even", "str", "which tensors live below: even (spread over the step), first or last (used first, last)"),
            "placement": _PLACEMENT,
        },
        models="vLLM --cpu-offload-gb, Accelerate device_map, llama.cpp -ngl, FlexGen's percentages, Twin-Flow",
        leaves_out="zero copy over the link; parts of tensors; computation on the host; fetches across steps",
    ),
    Policy(
        "distance",
        "what lies idle for many ops is moved (MindSpore 2.10)",
        "hosim.policies.own.distance:plan",
        {
            "select_distance": Parameter(100, "int", "ops between two uses from which on a tensor is moved"),
            "select_num": Parameter(100, "int", "how many gaps at most, the widest"),
            "prefetch_distance": _PREFETCH_DISTANCE,
            "release_distance": _RELEASE_DISTANCE,
            "placement": _PLACEMENT,
        },
        models="MindSpore 2.10, strategy distance",
        leaves_out="views; pipeline stages; what its documentation leaves open is our reading",
    ),
    Policy(
        "memory_peak",
        "gaps that cover the peak, best score first, until it fits (MindSpore 2.10)",
        "hosim.policies.own.memory_peak:plan",
        {
            "max_device_memory": Parameter(None, "size", "memory that the modelled peak is held to; none: the budget; 0: move nothing"),
            "peak_modeled_headroom_bytes": Parameter(None, "size", "margin below it; none: a tenth, as the published 4 of 40 GiB"),
            "score_weight_size": Parameter(1.0, "float", "w1: larger tensors first"),
            "score_weight_cover_start": Parameter(1.0, "float", "w2: gaps that begin long before the peak first"),
            "score_weight_cover_end": Parameter(1.0, "float", "w3: gaps that end long after the peak first"),
            "score_weight_neighbor_impact": Parameter(1.0, "float", "w4: gaps that begin or end near others last"),
            "prefetch_distance": _PREFETCH_DISTANCE,
            "release_distance": _RELEASE_DISTANCE,
            "enable_adaptive_prefetch_distance": Parameter(False, "bool", "prefetch as many ops ahead as the copy up takes"),
            "enable_adaptive_release_distance": Parameter(False, "bool", "release as many ops later as the copy down takes"),
            "h2d_bandwidth_gbps": Parameter(55.0, "float", "GB/s up that the adaptive prefetch assumes"),
            "d2h_bandwidth_gbps": Parameter(20.0, "float", "GB/s down that the adaptive release assumes"),
            "default_kernel_time_us": Parameter(400.0, "float", "time of an op of which none is known, in microseconds"),
            "placement": _PLACEMENT,
        },
        models="MindSpore 2.10, strategy memory_peak",
        leaves_out="views; pipeline stages; the formula of its scores is our reading",
    ),
    Policy(
        "longest_gap",
        "activations in the longest gaps first, until the peak fits (hyper-parallel)",
        "hosim.policies.own.longest_gap:plan",
        {"placement": _PLACEMENT},
        models="hyper-parallel's greedy planner",
    ),
    Policy(
        "belady",
        "reactive and clairvoyant: evict what is used farthest in the future",
        "hosim.policies.own.belady:plan",
        {"placement": _PLACEMENT},
        runtime=True,
        foresees=True,
        models="no system: the rule MIN, with the future known",
        leaves_out="sizes; what an eviction costs",
    ),
    Policy(
        "g10",
        "the most relief per transfer time first, in reserved slots of bandwidth (G10, MICRO 2023)",
        "hosim.policies.own.g10:plan",
        {"placement": Parameter("g10", "str", "tier below: g10 (the slowest that nothing delays), fastest, nearest, balanced, by_kind")},
        models="G10 (MICRO 2023)",
        leaves_out="page faults as a last resort; what returns after the step",
    ),
    Policy(
        "hybrid",
        "hyperoffload for the backbone; experts, which routing decides on, in a cache at run time",
        "hosim.policies.own.hybrid:plan",
        {
            "cache_bytes": Parameter(None, "size", "memory for experts; none: what the backbone leaves, at least two decisions' worth"),
            "predictor": Parameter(
                "previous", "str", "what is prefetched before a gate decides: previous, popular, none, perfect, predicted"
            ),
            "hit_rate": Parameter(1.0, "float", "predicted: the share of what a gate chooses that is prefetched, nothing else"),
            "seed": Parameter(0, "int", "predicted: draws which of it"),
            "keeps": Parameter("lru", "str", "what gives way: lru, lfu; hottest: the most often chosen stay, the rest is lru"),
            "top": Parameter(None, "int", "how many experts are predicted for a decision; none: as many as the gate chose last"),
            "placement": _PLANNED,
        },
        runtime=True,
        needs_routing=True,
        models="HyperOffload with data-dependent control flow, as described",
        leaves_out="parts of experts; its code is not published",
    ),
    Policy(
        "zero_inference",
        "layerwise with all weights below",
        "hosim.policies.own.zero_inference:plan",
        {"layers_ahead": _LAYERS_AHEAD, "placement": _PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Inference",
        leaves_out="several devices that each read a part; quantisation",
    ),
    Policy(
        "flexgen",
        "percentages of weights (in FlexGen's own order), cache and activations below",
        "hosim.policies.own.flexgen:plan",
        {
            "weights": _WEIGHTS,
            "cache": _CACHE,
            "activations": _ACTIVATIONS,
            "search": Parameter(
                False, "bool", "whether shares of cache and activations that are not given are searched by replays, in quarters"
            ),
            "placement": _PLACEMENT,
        },
        by_name_only=True,
        models="FlexGen (ICML 2023)",
        leaves_out="its linear program, and percentages of the disk; heads of a cache; fetches by layer; "
        "zig-zag, unless the graph's batch is all batches",
    ),
    Policy(
        "zero_offload",
        "optimizer states below, and the CPU updates (optimizer_on)",
        "hosim.policies.own.zero_offload:plan",
        {"layers_ahead": _LAYERS_AHEAD, "placement": _PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Offload",
        leaves_out="buckets of gradients; tiles of the copy back",
        elsewhere=_OPTIMIZER,
    ),
    Policy(
        "zero_infinity",
        "parameters and optimizer states below, streamed a layer ahead; the CPU updates (optimizer_on)",
        "hosim.policies.own.zero_infinity:plan",
        {"layers_ahead": _LAYERS_AHEAD, "placement": _PLACEMENT},
        by_name_only=True,
        models="DeepSpeed ZeRO-Infinity",
        leaves_out="checkpoints of activations on the host; reads by several devices; tiles",
        other_processors=True,
        elsewhere=_OPTIMIZER,
    ),
    Policy(
        "superoffload",
        "the optimizer on the CPU (optimizer_on); parameters on the device if they fit there, else streamed",
        "hosim.policies.own.superoffload:plan",
        {"layers_ahead": _LAYERS_AHEAD, "placement": _PLACEMENT},
        by_name_only=True,
        models="DeepSpeed SuperOffload (arXiv 2509.21271)",
        leaves_out="buckets; the last buckets' optimizer on the device; casts on the device; updates that are undone",
        other_processors=True,
        elsewhere=_SPECULATIVE,
    ),
    Policy(
        "ktransformers",
        "routed experts on the CPU (experts_on), everything else on the device",
        "hosim.policies.own.ktransformers:plan",
        by_name_only=True,
        models="KTransformers (SOSP 2025)",
        leaves_out="experts in demand on the device; deferred experts; memory of several sockets; the experts of a prompt on the device",
        elsewhere=_EXPERTS,
        chooses="hosim.policies.own.ktransformers:placed",
    ),
    Policy(
        "llama_cpp",
        "layers and experts computed where their weights lie: on the device as much as fits, the rest on the CPU (layers_on)",
        "hosim.policies.own.llama_cpp:plan",
        {
            "n_gpu_layers": Parameter(
                None, "int", "-ngl: layers from the back that are on the device, the output layer first; none: as --fit"
            ),
            "n_cpu_moe": Parameter(None, "int", "--n-cpu-moe: layers from the front whose experts are on the CPU; none: as --fit"),
            "override_tensor": Parameter("", "str", "-ot: PATTERN=CPU or PATTERN=CUDA0 for names of a GGUF, several with '/' between them"),
            "fit_target": Parameter(2**30, "size", "--fit-target: memory that --fit leaves free"),
            "op_offload": Parameter(
                True, "bool", "false: --no-op-offload, so that products of many rows are computed where their weights lie"
            ),
        },
        by_name_only=True,
        models="llama.cpp of 2026 with --fit, -ngl, --n-cpu-moe and -ot",
        leaves_out="a layer whose experts' matrices lie on both sides; weights copied up for many rows; its buffer for batches of a prompt",
        elsewhere=_LAYERS,
        chooses="hosim.policies.own.llama_cpp:placed",
    ),
    Policy(
        "fsdp_offload",
        "FSDP with its shards (shards_home) and its optimizer (optimizer_on) on the CPU",
        "hosim.policies.own.fsdp_offload:plan",
        {"ops_ahead": Parameter(4, "int", "ops of its stream by which a shard comes up before it is gathered")},
        by_name_only=True,
        models="PyTorch FSDP with CPU offload",
        leaves_out="gradients of several micro-batches added up on the CPU; pinned staging buffers",
        other_processors=True,
        elsewhere=_SHARDS,
    ),
    Policy(
        "optimal",
        "the exact optimum on small graphs (OR-tools CP-SAT; extra 'solver')",
        "hosim.policies.own.exact_optimum:plan",
        {
            "limit": Parameter(30.0, "float", "deterministic seconds of the solver's work, after which the best plan so far is taken"),
            "seed": Parameter(0, "int", "of the solver"),
            "largest": Parameter(400, "int", "gaps that tensors could spend below, up to which a graph counts as small"),
        },
        by_name_only=True,
        models="no system: the exact optimum",
        leaves_out="of ops on other processors: moves other than those that they force, so that a better plan may exist",
        chooses="hosim.planner.rewrites.processor_choice:every_choice",
    ),
)
"""Every policy that hosim ships, in display order."""
