"""hosim's own policies that follow a rule of thumb, which hyperoffload tries, too: data only, as in
:mod:`hosim.policies.catalogue`.
"""

from hosim.policies.policy import Parameter, Policy

_PREFETCH_DISTANCE = Parameter(
    50, "int", "ops by which a prefetch is issued before the op that needs it"
)
_RELEASE_DISTANCE = Parameter(0, "int", "ops after the last use before the tensor is released")
PLACEMENT = Parameter(
    "fastest",
    "str",
    "the tier below that takes a tensor: fastest (with room), nearest, balanced, by_kind (or "
    "by_kind/KIND=TIER/...)",
)
WEIGHTS = Parameter(
    None, "float", "the share of the weights that is offloaded; none: the smallest that fits"
)
CACHE = Parameter(
    None,
    "float",
    "the share of the KV cache that is offloaded; none: 0, unless all weights are not enough",
)
ACTIVATIONS = Parameter(
    None,
    "float",
    "the share of the activations that is offloaded; none: 0, unless weights and cache are not "
    "enough",
)
LAYERS_AHEAD = Parameter(1, "int", "layers whose parameters are on their way while one computes")

RULES_OF_THUMB = (
    Policy(
        "resident",
        "everything in device memory; tensors in lower tiers are fetched once, at time 0",
        "hosim.policies.own.resident:plan",
        models="frameworks without offload",
    ),
    Policy(
        "on_demand",
        "reactive: fetch what an op misses, evict the least recently used, wait",
        "hosim.policies.own.on_demand:plan",
        {"placement": PLACEMENT},
        runtime=True,
        models="demand paging of tensors",
        leaves_out="parts of tensors; the time of a fault beside its copy",
    ),
    Policy(
        "unified_memory",
        "reactive: fetch what an op touches with its neighbours in memory, evict what came first "
        "(CUDA unified memory)",
        "hosim.policies.own.on_demand:unified_memory",
        {
            "block": Parameter(
                2 * 2**20, "size", "bytes of memory that are fetched together; 0: none"
            ),
            "placement": PLACEMENT,
        },
        runtime=True,
        models="CUDA unified memory",
        leaves_out="pages by themselves; the time of a fault batch; hints; the lower bandwidth of "
        "copies by faults",
        slower="copies by page faults are timed at the link's full bandwidth, of which they reach "
        "a part (3.8 GB/s of PCIe 4 was reported: pageable of a runtime says it)",
    ),
    Policy(
        "keep_first",
        "reactive: keep what is used first, fetch the rest for each use",
        "hosim.policies.own.on_demand:keep_first",
        {"placement": PLACEMENT},
        runtime=True,
        models="a runtime that evicts the most recently used",
        leaves_out="parts of tensors",
    ),
    Policy(
        "lookahead",
        "on_demand, plus prefetching for the next k ops while there is room",
        "hosim.policies.own.on_demand:plan",
        {"k": Parameter(4, "int", "how many ops ahead it looks"), "placement": PLACEMENT},
        runtime=True,
        foresees=True,
        models="the reactive runtime that the HyperOffload paper compares with, in our reading",
        leaves_out="its code is not published",
    ),
    Policy(
        "layerwise",
        "parameters, and other tensors in lower tiers, streamed a layer ahead (vLLM, diffusers, "
        "ZeRO)",
        "hosim.policies.own.layerwise:plan",
        {
            "layers_ahead": LAYERS_AHEAD,
            "kinds": Parameter(
                "parameter/expert",
                "str",
                "kinds of tensors that are offloaded; tensors in lower tiers are always streamed",
            ),
            "placement": PLACEMENT,
        },
        models="vLLM and diffusers with group offload, ZeRO-3 parameter offload, ZeRO-Inference",
        leaves_out="staging buffers; buckets; computation on the host",
    ),
    Policy(
        "static_split",
        "offloads a share of the weights, evenly spread, and fetches them into a few buffers "
        "(vLLM, Accelerate, llama.cpp)",
        "hosim.policies.own.static_split:plan",
        {
            "weights": WEIGHTS,
            "cache": CACHE,
            "states": Parameter(
                None,
                "float",
                "the share of the optimizer states that is offloaded; none: 0, unless weights and "
                "cache are not enough",
            ),
            "activations": ACTIVATIONS,
            "ahead": Parameter(
                None,
                "int",
                "ops by which a fetch is issued at most before the op that needs it; none: any "
                "number",
            ),
            "buffers": Parameter(
                None,
                "int",
                "each for what the op that fetches most needs; 0: no limit; none: 2, or 3 if some "
                "are stored",
            ),
            "spread": Parameter(
                "even",
                "str",
                "which tensors are offloaded: even (spread over the step), first or last (used "
                "first, last)",
            ),
            "placement": PLACEMENT,
        },
        models="vLLM --cpu-offload-gb, Accelerate device_map, llama.cpp -ngl, FlexGen's "
        "percentages, Twin-Flow",
        leaves_out="zero copy over the link; parts of tensors; computation on the host; fetches "
        "across steps",
    ),
    Policy(
        "distance",
        "moves tensors that are idle for many ops (MindSpore 2.10)",
        "hosim.policies.own.mindspore:distance",
        {
            "select_distance": Parameter(
                100, "int", "ops between two uses from which on a tensor is moved"
            ),
            "select_num": Parameter(100, "int", "how many gaps at most, the widest"),
            "prefetch_distance": _PREFETCH_DISTANCE,
            "release_distance": _RELEASE_DISTANCE,
            "placement": PLACEMENT,
        },
        models="MindSpore 2.10, strategy distance",
        leaves_out="views; pipeline stages; what its documentation leaves open is our reading",
    ),
    Policy(
        "memory_peak",
        "gaps that cover the peak, best score first, until it fits (MindSpore 2.10)",
        "hosim.policies.own.mindspore:memory_peak",
        {
            "max_device_memory": Parameter(
                None,
                "size",
                "memory that the modelled peak is held to; none: the budget; 0: move nothing",
            ),
            "peak_modeled_headroom_bytes": Parameter(
                None, "size", "margin below it; none: a tenth, as the published 4 of 40 GiB"
            ),
            "score_weight_size": Parameter(1.0, "float", "w1: larger tensors first"),
            "score_weight_cover_start": Parameter(
                1.0, "float", "w2: gaps that begin long before the peak first"
            ),
            "score_weight_cover_end": Parameter(
                1.0, "float", "w3: gaps that end long after the peak first"
            ),
            "score_weight_neighbor_impact": Parameter(
                1.0, "float", "w4: gaps that begin or end near others last"
            ),
            "prefetch_distance": _PREFETCH_DISTANCE,
            "release_distance": _RELEASE_DISTANCE,
            "enable_adaptive_prefetch_distance": Parameter(
                False, "bool", "prefetch as many ops ahead as the copy up takes"
            ),
            "enable_adaptive_release_distance": Parameter(
                False, "bool", "release as many ops later as the copy down takes"
            ),
            "h2d_bandwidth_gbps": Parameter(
                55.0, "float", "GB/s up that the adaptive prefetch assumes"
            ),
            "d2h_bandwidth_gbps": Parameter(
                20.0, "float", "GB/s down that the adaptive release assumes"
            ),
            "default_kernel_time_us": Parameter(
                400.0, "float", "time of an op of which none is known, in microseconds"
            ),
            "placement": PLACEMENT,
        },
        models="MindSpore 2.10, strategy memory_peak",
        leaves_out="views; pipeline stages; the formula of its scores is our reading",
    ),
    Policy(
        "longest_gap",
        "activations in the longest gaps first, until the peak fits (hyper-parallel)",
        "hosim.policies.own.mindspore:longest_gap",
        {"placement": PLACEMENT},
        models="hyper-parallel's greedy planner",
    ),
    Policy(
        "belady",
        "reactive and clairvoyant: evict what is used farthest in the future",
        "hosim.policies.own.on_demand:belady",
        {"placement": PLACEMENT},
        runtime=True,
        foresees=True,
        models="no system: the rule MIN, with the future known",
        leaves_out="sizes; what an eviction costs",
    ),
    Policy(
        "g10",
        "the most relief per transfer time first, in reserved slots of bandwidth (G10, MICRO 2023)",
        "hosim.policies.own.g10:plan",
        {
            "placement": Parameter(
                "g10",
                "str",
                "tier below: g10 (the slowest that nothing delays), fastest, nearest, balanced, "
                "by_kind",
            )
        },
        models="G10 (MICRO 2023)",
        leaves_out="page faults as a last resort; what returns after the step",
    ),
)
"""In the order in which they are shown."""
