"""The spreads of op times that ``make spreads`` found: not to be edited. tests/fit_spreads.py says
how each is found.

From the tables of aiconfigurator 0.4.0 (see
:mod:`hosim.analysis.costmodel.kernels.fitted_constants`): shapes held out; for L40S, without its
generation attention and its collectives over PCIe. The small kernels of RTX 4090 and RTX PRO 6000
are from LLMServingSim (MIT). Gaps: gpt-fast's README and Megatron-LM (arXiv 2205.05198).
"""

from collections.abc import Mapping

SPREADS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "a100_sxm": {
        "fitted model of another machine": {
            "gemm": 0.133,
            "context_attention": 0.189,
            "generation_attention": 0.166,
            "context_latent": 0.23,
            "latent_attention": 1.835,
            "moe": 0.216,
            "all_reduce": 0.152,
            "all_gather": 0.142,
            "reduce_scatter": 0.137,
            "all_to_all": 0.172,
            "custom_all_reduce": 0.139,
        },
        "table": {
            "gemm": 0.06,
            "context_attention": 0.028,
            "generation_attention": 0.091,
            "context_latent": 0.048,
            "latent_attention": 0.038,
            "moe": 0.073,
            "all_reduce": 0.089,
            "all_gather": 0.164,
            "reduce_scatter": 0.053,
            "all_to_all": 0.062,
            "custom_all_reduce": 0.11,
        },
        "fitted model": {
            "gemm": 0.098,
            "context_attention": 0.069,
            "generation_attention": 0.118,
            "context_latent": 0.144,
            "latent_attention": 0.127,
            "moe": 0.111,
            "all_reduce": 0.122,
            "all_gather": 0.147,
            "reduce_scatter": 0.084,
            "all_to_all": 0.076,
            "custom_all_reduce": 0.178,
        },
        "guess": {"attention": 0.935, "collectives": 1.342, "products": 0.202},
    },
    "h100_sxm": {
        "fitted model of another machine": {
            "gemm": 0.125,
            "context_attention": 0.2,
            "generation_attention": 0.166,
            "context_latent": 0.21,
            "latent_attention": 1.616,
            "moe": 0.221,
            "all_reduce": 0.161,
            "all_gather": 0.173,
            "reduce_scatter": 0.218,
            "all_to_all": 0.123,
            "custom_all_reduce": 0.21,
        },
        "table": {
            "gemm": 0.05,
            "context_attention": 0.034,
            "generation_attention": 0.076,
            "context_latent": 0.054,
            "latent_attention": 0.035,
            "moe": 0.078,
            "all_reduce": 0.067,
            "all_gather": 0.101,
            "reduce_scatter": 0.086,
            "all_to_all": 0.073,
            "custom_all_reduce": 0.086,
        },
        "fitted model": {
            "gemm": 0.098,
            "context_attention": 0.06,
            "generation_attention": 0.1,
            "context_latent": 0.1,
            "latent_attention": 0.067,
            "moe": 0.12,
            "all_reduce": 0.085,
            "all_gather": 0.11,
            "reduce_scatter": 0.102,
            "all_to_all": 0.056,
            "custom_all_reduce": 0.118,
        },
        "guess": {"attention": 0.907, "collectives": 1.282, "products": 0.144},
    },
    "l40s": {
        "fitted model of another machine": {
            "gemm": 0.221,
            "context_attention": 0.57,
            "context_latent": 0.377,
            "latent_attention": 0.182,
            "moe": 0.389,
        }
    },
    "rtx4090": {"guess": {"others": 0.327}},
    "rtxpro6000": {"guess": {"others": 0.258}},
}
"""Standard deviations of the logarithm of measured over predicted time, by source of data, origin
of the time, and class.
"""

SHARED: Mapping[str, float] = {
    "table": 0.181,
    "fitted model": 0.181,
    "fitted model of another machine": 0.573,
    "guess": 0.494,
}
"""The part of a class's variance that its sizes share, by origin."""

STEP_SHARE = 0.798
"""The share of the summed spreads of a step's kernels that is seen in composed steps."""

GAP_NS = 1220.0
"""The standard deviation of the mean gap between two kernels of a real step that no measured kernel
has.
"""
