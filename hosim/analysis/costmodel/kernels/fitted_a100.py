"""Constants of kernels on the A100 by class, dtype and name, as ``make kernels`` fitted them: not
to be edited.

From the tables of aiconfigurator 0.4.0 (Apache-2.0; TensorRT-LLM 1.0.0 on A100, 1.0.0rc3 on H100;
NCCL 2.27.3), without the third of the shapes that is held out. Before each: the rows fitted, and
the median error on them.
"""

from collections.abc import Mapping

A100: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "gemm": {
        # 6,136 rows, 6.9%
        "fp16": {
            "fixed_cycles": 4632.0,
            "bandwidth_share": 0.7481,
            "largest_share": 1.602,
            "half_tile": 74.15,
            "tile_cycles": 646.8,
            "sum_cycles": 2621.0,
            "cache_ratio": 5.305,
        },
        # 1,008 rows, 9.4%
        "int4_weights": {
            "fixed_cycles": 16920.0,
            "bandwidth_share": 0.7237,
            "largest_share": 1.266,
            "half_tile": 44.19,
            "tile_cycles": 1.0,
            "sum_cycles": 17870.0,
            "cache_ratio": 10.0,
        },
        # 1,003 rows, 9.2%
        "int8_weights": {
            "fixed_cycles": 15610.0,
            "bandwidth_share": 0.8149,
            "largest_share": 1.901,
            "half_tile": 100.6,
            "tile_cycles": 1.0,
            "sum_cycles": 14240.0,
            "cache_ratio": 10.0,
        },
    },
    "context_attention": {
        # 3,190 rows, 3.2%
        "fp16": {
            "fixed_cycles": 16140.0,
            "block_cycles": 2484.0,
            "peak_share": 0.4851,
            "move_share": 0.4414,
            "longest_share": 0.8375,
        },
    },
    "generation_attention": {
        # 3,379 rows, 5.7%
        "fp16": {
            "group_fixed_cycles": 9395.0,
            "group_block_cycles": 8478.0,
            "group_head_cycles": 158.4,
            "group_key_cycles": 23.41,
            "group_bytes": 0.02,
            "group_merge_cycles": 5714.0,
            "single_first_cycles": 15020.0,
            "single_block_cycles": 2651.0,
            "single_few_keys_cycles": 4846.0,
            "single_key_cycles": 35.55,
            "single_bandwidth_share": 0.8988,
            "single_parts": 1.912,
            "single_merge_cycles": 8537.0,
            "single_shared_read": 0.4738,
        },
    },
    "context_latent": {
        # 1,666 rows, 7.9%
        "fp16": {
            "fixed_cycles": 15600.0,
            "block_cycles": 5170.0,
            "peak_share": 0.5045,
            "move_share": 1.414,
            "longest_share": 0.8118,
        },
    },
    "latent_attention": {
        # 3,388 rows, 6.8%
        "fp16": {
            "fixed_cycles": 7529.0,
            "block_cycles": 11520.0,
            "key_cycles": 159.3,
            "bandwidth_share": 1.2,
            "query_traffic": 1.783,
            "least_keys": 1297.0,
            "waves": 0.0,
            "merge_cycles": 5000.0,
            "crowding": 1.471,
        },
    },
    "moe": {
        # 5,954 rows, 6.6%
        "fp16": {
            "fixed_cycles": 46790.0,
            "bandwidth_share": 0.8373,
            "largest_share": 0.6511,
            "half_tile": 16.69,
            "tile_cycles": 3455.0,
            "row_traffic": 0.7828,
            "token_traffic": 2.533,
        },
    },
    "all_reduce": {
        # 90 rows, 6.5%
        "fp16": {
            "fixed_cycles": 13270.0,
            "rank_cycles": 2647.0,
            "large_cycles": 32350.0,
            "small_share": 0.2469,
            "large_share": 0.7985,
            "few_ranks": 0.5106,
            "switched": 0.9128,
        },
    },
    "all_gather": {
        # 84 rows, 5.7%
        "fp16": {
            "fixed_cycles": 13110.0,
            "rank_cycles": 1274.0,
            "large_cycles": 41690.0,
            "small_share": 0.2204,
            "large_share": 0.7418,
            "few_ranks": 0.6541,
            "switched": 0.9529,
        },
    },
    "reduce_scatter": {
        # 94 rows, 6.4%
        "fp16": {
            "fixed_cycles": 12710.0,
            "rank_cycles": 1264.0,
            "large_cycles": 37620.0,
            "small_share": 0.2436,
            "large_share": 0.7349,
            "few_ranks": 0.5094,
            "switched": 0.9793,
        },
    },
    "all_to_all": {
        # 90 rows, 4.6%
        "fp16": {
            "fixed_cycles": 16280.0,
            "rank_cycles": 630.0,
            "large_cycles": 23770.0,
            "small_share": 0.2637,
            "large_share": 0.7309,
            "few_ranks": 0.5547,
            "switched": 0.9192,
        },
    },
    "custom_all_reduce": {
        # 24 rows, 10.0%
        "fp16": {
            "fixed_cycles": 5411.0,
            "rank_cycles": 250.1,
            "link_share": 0.3897,
        },
    },
}
