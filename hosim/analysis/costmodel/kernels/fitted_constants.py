"""Constants of kernels by machine, class, dtype and name, as ``make kernels`` fitted them: not to be
edited.

From the tables of aiconfigurator 0.4.0 (Apache-2.0; TensorRT-LLM 1.0.0 on A100, 1.0.0rc3 on H100;
NCCL 2.27.3), without the third of the shapes that is held out. Before each: the rows fitted, and
the median error on them.
"""

from collections.abc import Mapping

FITTED: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    "a100_sxm": {
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
    },
    "h100_sxm": {
        "gemm": {
            # 6,136 rows, 4.8%
            "fp16": {
                "fixed_cycles": 4516.0,
                "bandwidth_share": 0.8723,
                "largest_share": 1.964,
                "half_tile": 103.9,
                "tile_cycles": 572.8,
                "sum_cycles": 5169.0,
                "cache_ratio": 10.0,
            },
            # 1,532 rows, 3.5%
            "fp8": {
                "fixed_cycles": 27400.0,
                "bandwidth_share": 0.8394,
                "largest_share": 1.003,
                "half_tile": 61.68,
                "tile_cycles": 345.0,
                "sum_cycles": 9575.0,
                "cache_ratio": 10.0,
            },
            # 1,264 rows, 9.9%
            "fp8_block": {
                "fixed_cycles": 1848.0,
                "bandwidth_share": 0.7698,
                "largest_share": 2.414,
                "half_tile": 277.5,
                "tile_cycles": 7033.0,
                "sum_cycles": 169600.0,
                "cache_ratio": 4.809,
            },
            # 987 rows, 10.4%
            "int4_weights": {
                "fixed_cycles": 16100.0,
                "bandwidth_share": 0.873,
                "largest_share": 2.5,
                "half_tile": 185.7,
                "tile_cycles": 2089.0,
                "sum_cycles": 23790.0,
                "cache_ratio": 10.0,
            },
            # 978 rows, 8.1%
            "int8_weights": {
                "fixed_cycles": 15750.0,
                "bandwidth_share": 0.8808,
                "largest_share": 2.5,
                "half_tile": 153.2,
                "tile_cycles": 2713.0,
                "sum_cycles": 23420.0,
                "cache_ratio": 10.0,
            },
        },
        "context_attention": {
            # 3,192 rows, 3.5%
            "fp16": {
                "fixed_cycles": 25600.0,
                "block_cycles": 4771.0,
                "peak_share": 0.5555,
                "move_share": 0.4927,
                "longest_share": 0.9002,
            },
            # 3,190 rows, 3.3%
            "fp16_fp8_cache": {
                "fixed_cycles": 26310.0,
                "block_cycles": 4845.0,
                "peak_share": 0.5606,
                "move_share": 0.5159,
                "longest_share": 0.8885,
            },
            # 813 rows, 4.5%
            "fp8": {
                "fixed_cycles": 26070.0,
                "block_cycles": 7512.0,
                "peak_share": 0.4194,
                "move_share": 0.5719,
                "longest_share": 0.75,
            },
        },
        "generation_attention": {
            # 3,379 rows, 4.9%
            "fp16": {
                "group_fixed_cycles": 11040.0,
                "group_block_cycles": 8130.0,
                "group_head_cycles": 135.3,
                "group_key_cycles": 20.32,
                "group_bytes": 0.1303,
                "group_merge_cycles": 5848.0,
                "single_first_cycles": 15320.0,
                "single_block_cycles": 3562.0,
                "single_few_keys_cycles": 2941.0,
                "single_key_cycles": 20.96,
                "single_bandwidth_share": 0.9016,
                "single_parts": 1.212,
                "single_merge_cycles": 12860.0,
                "single_shared_read": 0.5348,
            },
            # 3,303 rows, 7.7%
            "fp16_fp8_cache": {
                "group_fixed_cycles": 7467.0,
                "group_block_cycles": 2376.0,
                "group_head_cycles": 250.3,
                "group_key_cycles": 12.12,
                "group_bytes": 0.1887,
                "group_merge_cycles": 5303.0,
                "single_first_cycles": 16320.0,
                "single_block_cycles": 2817.0,
                "single_few_keys_cycles": 5280.0,
                "single_key_cycles": 14.97,
                "single_bandwidth_share": 0.7785,
                "single_parts": 1.0,
                "single_merge_cycles": 10170.0,
                "single_shared_read": 0.8074,
            },
        },
        "context_latent": {
            # 1,666 rows, 5.5%
            "fp16": {
                "fixed_cycles": 19750.0,
                "block_cycles": 4402.0,
                "peak_share": 0.739,
                "move_share": 1.025,
                "longest_share": 0.9605,
            },
        },
        "latent_attention": {
            # 3,388 rows, 3.5%
            "fp16": {
                "fixed_cycles": 43240.0,
                "block_cycles": 6618.0,
                "key_cycles": 6.033,
                "bandwidth_share": 0.9618,
                "query_traffic": 2.716,
                "least_keys": 184.6,
                "waves": 2.0,
                "merge_cycles": 3610.0,
                "crowding": 4.0,
            },
        },
        "moe": {
            # 6,356 rows, 6.6%
            "fp16": {
                "fixed_cycles": 66120.0,
                "bandwidth_share": 0.928,
                "largest_share": 2.5,
                "half_tile": 216.6,
                "tile_cycles": 4053.0,
                "row_traffic": 1.475,
                "token_traffic": 3.986,
            },
            # 942 rows, 5.3%
            "fp8": {
                "fixed_cycles": 64030.0,
                "bandwidth_share": 0.9226,
                "largest_share": 1.935,
                "half_tile": 122.2,
                "tile_cycles": 6781.0,
                "row_traffic": 1.397,
                "token_traffic": 4.912,
            },
            # 1,030 rows, 8.8%
            "fp8_block": {
                "fixed_cycles": 18270.0,
                "bandwidth_share": 0.8873,
                "largest_share": 2.5,
                "half_tile": 268.0,
                "tile_cycles": 15350.0,
                "row_traffic": 2.861,
                "token_traffic": 2.958,
            },
            # 723 rows, 6.8%
            "int4_weights_fp8": {
                "fixed_cycles": 109200.0,
                "bandwidth_share": 0.8462,
                "largest_share": 0.413,
                "half_tile": 24.25,
                "tile_cycles": 8348.0,
                "row_traffic": 0.6591,
                "token_traffic": 4.475,
            },
        },
        "all_reduce": {
            # 90 rows, 5.2%
            "fp16": {
                "fixed_cycles": 10630.0,
                "rank_cycles": 3391.0,
                "large_cycles": 29070.0,
                "small_share": 0.3929,
                "large_share": 0.8707,
                "few_ranks": 0.5093,
                "switched": 1.012,
            },
        },
        "all_gather": {
            # 84 rows, 4.2%
            "fp16": {
                "fixed_cycles": 10630.0,
                "rank_cycles": 1773.0,
                "large_cycles": 33700.0,
                "small_share": 0.2826,
                "large_share": 0.7799,
                "few_ranks": 0.5743,
                "switched": 1.032,
            },
        },
        "reduce_scatter": {
            # 94 rows, 6.2%
            "fp16": {
                "fixed_cycles": 10540.0,
                "rank_cycles": 1816.0,
                "large_cycles": 22590.0,
                "small_share": 0.407,
                "large_share": 0.8096,
                "few_ranks": 0.7918,
                "switched": 0.9938,
            },
        },
        "all_to_all": {
            # 90 rows, 6.5%
            "fp16": {
                "fixed_cycles": 12610.0,
                "rank_cycles": 1524.0,
                "large_cycles": 19730.0,
                "small_share": 0.3409,
                "large_share": 0.7633,
                "few_ranks": 0.4744,
                "switched": 0.9484,
            },
        },
        "custom_all_reduce": {
            # 24 rows, 2.5%
            "fp16": {
                "fixed_cycles": 5976.0,
                "rank_cycles": 179.7,
                "link_share": 0.6592,
            },
        },
    },
}
"""By machine, as in the tables that they were fitted to."""
