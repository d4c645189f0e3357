"""Times of kernels by hand: constants that leave one term, so that a time is a product of a few
numbers.
"""

from dataclasses import replace

import numpy as np
import pytest

from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.kernels import CLASSES, DTYPES, FITTED, kernel_us
from hosim.analysis.costmodel.kernels.op_families import (
    CollectiveConstants,
    ContextConstants,
    CustomConstants,
    GemmConstants,
    GenerationConstants,
    LatentConstants,
    MoeConstants,
    Processor,
    collective_us,
    context_us,
    custom_us,
    gemm_us,
    generation_us,
    latent_us,
    moe_us,
)
from hosim.io import load_hardware, load_named
from hosim.shipped import find_hardware

NOTHING = 1e-9

# one cycle is a microsecond; ten multiprocessors of 1e6 FLOP a microsecond; 1e6 bytes a microsecond
# from memory and links
TEN = Processor(
    peak_flops=1e13, bandwidth=1e12, multiprocessors=10, clock_hz=1e6, link_bandwidth=1e12
)


def us(kernel, constants, processor=TEN, dtype="fp16", **sizes):
    """The time of one kernel."""
    listed = {name: np.array([float(value)]) for name, value in sizes.items()}
    return float(CLASSES[kernel].us(constants, processor, CLASSES[kernel].shapes(listed, dtype))[0])


GEMM = GemmConstants(NOTHING, 1e9, 1.0, NOTHING, NOTHING, 1e15, 1e9)


def test_a_last_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    # tiles as fast as one another: 2,560 rows are ten tiles of 256 x 128, one wave; with one row
    # more the least is lost by tiles of 16 x 64, of which 161 x 2 are 33 waves, a 32nd of that each
    depth = 1024  # a multiple of the step of k
    wave = 2 * 256 * 128 * depth / 1e6
    assert us("gemm", GEMM, m=2560, n=128, k=depth) == pytest.approx(wave)
    assert us("gemm", GEMM, m=2561, n=128, k=depth) == pytest.approx(wave * 33 / 32)


def test_a_product_of_few_rows_takes_what_its_weights_take_from_memory() -> None:
    slow = replace(GEMM, bandwidth_share=0.5)
    moved = 4096 * 4096 * 2 + 2 * 4096 * 2  # weights, one row in, one row out
    compute = replace(TEN, peak_flops=1e20)
    assert us("gemm", slow, compute, m=1, n=4096, k=4096) == pytest.approx(moved / (0.5 * 1e6))
    assert us("gemm", slow, compute, "int8_weights", m=1, n=4096, k=4096) == pytest.approx(
        (moved - 4096 * 4096) / (0.5 * 1e6)
    )


def test_a_product_with_few_tiles_is_split_along_k_if_adding_up_is_quicker() -> None:
    alone = us("gemm", GEMM, m=16, n=64, k=16000)
    assert alone == pytest.approx(2 * 16 * 64 * 16000 / 1e6)  # one tile
    # 8 parts of 2,000, which take what 2,016 do
    assert us("gemm", replace(GEMM, sum_cycles=1.0), m=16, n=64, k=16000) == pytest.approx(
        alone * 2016 / 16000 + 1
    )


def test_multiprocessors_of_fewer_flop_are_fed_as_well() -> None:
    """One that does half of the FLOP in a cycle of those of the constants waits half as long for
    what a tile reads: one of 16 x 64 reaches a third, not a sixth. The largest, 256 x 128 (product
    over sum: 85.3), reaches 4/7 on both.
    """
    half = replace(GEMM, half_tile=64.0)
    fed = replace(TEN, fed=2.0)
    assert [each.tile_share(half, (16, 64), (256, 128)) for each in (TEN, fed)] == pytest.approx(
        [1 / 6, 1 / 3]
    )
    assert [each.tile_share(half, (256, 128), (256, 128)) for each in (TEN, fed)] == pytest.approx(
        [4 / 7, 4 / 7]
    )
    assert us("gemm", half, fed, m=16, n=64, k=32) == pytest.approx(2 * 16 * 64 * 32 / 1e6 * 3)


def test_a_large_tile_comes_nearer_to_the_peak() -> None:
    # at half_tile 64 a tile of 128 x 128 (product over sum: 64) reaches half of the peak; one of 16
    # x 64 (12.8) a sixth
    half = replace(GEMM, half_tile=64.0)
    assert us("gemm", half, m=16, n=64, k=32) == pytest.approx(
        2 * 16 * 64 * 32 / 1e6 * (1 + 64 / 12.8)
    )


CONTEXT = ContextConstants(NOTHING, NOTHING, 1.0, 1e9, NOTHING)


def test_causal_attention_counts_the_keys_that_it_reads() -> None:
    # 4 blocks of 128 queries have 128, 256, 384 and 512 keys: 1,280 of the 2,048 that all would
    # have; each head's on ten multiprocessors
    work = 4 * 128 * 128 * 1280 / 1e6
    assert us(
        "context_attention",
        CONTEXT,
        batch=10,
        queries=512,
        before=0,
        heads=1,
        kv_heads=1,
        width=128,
        window=2**40,
    ) == pytest.approx(work)


def test_a_window_limits_the_keys_and_a_chunk_has_those_before_it() -> None:
    sizes = {"batch": 10, "queries": 512, "heads": 1, "kv_heads": 1, "width": 128}
    unit = 4 * 128 * 128 / 1e6
    # a window of 128 keys: blocks read 128, then 256 each (their own and those before)
    assert us("context_attention", CONTEXT, **sizes, before=0, window=128) == pytest.approx(
        unit * (128 + 3 * 256)
    )
    # 1,000 tokens in the cache: each block reads them too
    assert us("context_attention", CONTEXT, **sizes, before=1000, window=2**40) == pytest.approx(
        unit * (1280 + 4 * 1000)
    )


def test_the_gradient_of_attention_has_five_products_for_the_two_going_forward() -> None:
    sizes = {
        "batch": 10,
        "queries": 512,
        "before": 0,
        "heads": 1,
        "kv_heads": 1,
        "width": 128,
        "window": 2**40,
    }
    assert us("context_gradient", CONTEXT, **sizes) == pytest.approx(
        2.5 * us("context_attention", CONTEXT, **sizes)
    )


def test_without_a_mask_every_block_reads_all_keys() -> None:
    sizes = {"batch": 10, "queries": 512, "heads": 1, "kv_heads": 1, "width": 128}
    unit = 4 * 128 * 128 / 1e6
    # 4 blocks of 1,000 keys, in steps of 64; the causal ones above read 128, 256, 384 and 512
    assert us("full_attention", CONTEXT, **sizes, keys=1000) == pytest.approx(unit * 4 * 1024)
    assert us("full_gradient", CONTEXT, **sizes, keys=1000) == pytest.approx(2.5 * unit * 4 * 1024)


@pytest.mark.parametrize(
    ("kernel", "before", "since"),
    [
        # two products at 40 % and 25 % of the peak, five at 30 % and 19 %
        ("flash1_attention", 1 / 0.4, 1 / (0.4 * 0.629)),
        ("flash1_gradient", 2.5 / 0.3, 2.5 / (0.3 * 0.629)),
        ("flash2_attention", 1 / 0.73, 1 / 0.35),
        ("flash2_gradient", 2.5 / 0.63, 2.5 / 0.335),
    ],
)
def test_libraries_of_attention_reach_the_share_that_they_publish(kernel, before, since) -> None:
    """Whatever the machine's own kernels reach, and by the width that heads have."""
    sizes = {
        "batch": 10,
        "queries": 512,
        "before": 0,
        "heads": 1,
        "kv_heads": 1,
        "width": 64,
        "window": 2**40,
    }
    work = 4 * 128 * 64 * 1280
    for each, times in ((2048, before), (4096, since)):
        machine = replace(TEN, peak_flops=each * TEN.multiprocessors * TEN.clock_hz)
        peak_us = work / (machine.flops_per_us)
        assert us(kernel, replace(CONTEXT, peak_share=0.5), machine, **sizes) == pytest.approx(
            times * peak_us
        )


def test_one_head_cannot_fill_the_machine() -> None:
    # four blocks on ten multiprocessors: as long as one of the mean, or the longest
    longest = replace(CONTEXT, longest_share=1.0)
    sizes = {
        "batch": 1,
        "queries": 512,
        "before": 0,
        "heads": 1,
        "kv_heads": 1,
        "width": 128,
        "window": 2**40,
    }
    assert us("context_attention", longest, **sizes) == pytest.approx(4 * 128 * 128 * 512 / 1e6)
    assert us("context_attention", CONTEXT, **sizes) == pytest.approx(4 * 128 * 128 * 320 / 1e6)


GENERATION = GenerationConstants(
    *[NOTHING] * 4, 1e-12, NOTHING, *[NOTHING] * 4, 1e9, 0.001, NOTHING, NOTHING
)


def test_a_cache_is_split_among_blocks_of_at_least_128_keys() -> None:
    keys = replace(GENERATION, group_key_cycles=1.0)
    sizes = {"heads": 8, "kv_heads": 2, "width": 128}
    # 10 requests of 2 groups: 80 / 20 = 4 parts at most, of 512 keys; 80 blocks are 8 waves of 384
    # cycles
    assert us("generation_attention", keys, batch=10, keys=2048, **sizes) == pytest.approx(
        8 * (512 - 128)
    )
    # 100 requests: one part each; 200 blocks are 20 waves
    assert us("generation_attention", keys, batch=100, keys=2048, **sizes) == pytest.approx(
        20 * (2048 - 128)
    )


@pytest.mark.parametrize(
    ("batch", "keys", "groups"), [(1, 256, True), (1, 128, False), (2, 128, True)]
)
def test_groups_need_enough_blocks(batch: int, keys: int, groups: bool) -> None:
    # four times the blocks have to fill ten multiprocessors: three blocks do
    constants = replace(GENERATION, group_fixed_cycles=100.0, single_first_cycles=7.0)
    time = us(
        "generation_attention", constants, batch=batch, keys=keys, heads=8, kv_heads=2, width=128
    )
    assert (time > 90) is groups


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (66, 2)])
def test_single_heads_and_groups_of_more_than_32_go_over_the_cache_by_themselves(
    heads: int, kv_heads: int
) -> None:
    constants = replace(GENERATION, group_fixed_cycles=100.0, single_bandwidth_share=1.0)
    bytes_read = 100 * 1000 * kv_heads * 2 * 128 * 2
    assert us(
        "generation_attention",
        constants,
        batch=100,
        keys=1000,
        heads=heads,
        kv_heads=kv_heads,
        width=128,
    ) == pytest.approx(bytes_read / 1e6, rel=1e-3)


def test_latent_attention_reads_one_compressed_key_for_all_heads() -> None:
    constants = LatentConstants(
        NOTHING, NOTHING, NOTHING, 1.0, NOTHING, 128.0, 0.0, NOTHING, NOTHING
    )
    assert us("latent_attention", constants, batch=4, keys=1000, heads=64) == pytest.approx(
        4 * 1000 * 576 * 2 / 1e6
    )
    # one part of 1,000 keys, whichever machine is free; or ten of 128 and fewer
    alone = replace(constants, bandwidth_share=1e9, key_cycles=1.0)
    assert us("latent_attention", alone, batch=1, keys=1000, heads=64) == pytest.approx(1000)
    assert us(
        "latent_attention", replace(alone, waves=1.0), batch=1, keys=1000, heads=64
    ) == pytest.approx(128)


MOE = MoeConstants(NOTHING, 1.0, 1.0, NOTHING, NOTHING, NOTHING, NOTHING)


def test_a_mixture_reads_the_experts_that_have_tokens() -> None:
    # 8 experts, two of a token's choice: one token touches 2 of them, each 3 x 64 x 32 weights of 2
    # bytes; many touch all
    fast = replace(TEN, peak_flops=1e20)
    sizes = {"hidden": 64, "intermediate": 32, "top": 2, "experts": 8, "tensor": 1, "ranks": 1}
    expert = 3 * 64 * 32 * 2 / 1e6
    assert us("moe", MOE, fast, tokens=1, **sizes) == pytest.approx(2 * expert)
    assert us("moe", MOE, fast, tokens=1000, **sizes) == pytest.approx(8 * expert)
    assert us("moe", MOE, fast, tokens=4, **sizes) == pytest.approx(
        8 * (1 - 0.75**4) * expert
    )  # 5.47 of them


def test_one_product_of_a_mixture_reads_its_part_of_the_experts() -> None:
    fast = replace(TEN, peak_flops=1e20)
    sizes = {"top": 2, "experts": 8, "ranks": 1, "columns": 64, "depth": 32}
    assert us("expert_product", MOE, fast, tokens=1, **sizes) == pytest.approx(
        2 * 64 * 32 * 2 / 1e6
    )


def test_an_all_reduce_sends_its_bytes_almost_twice() -> None:
    constants = CollectiveConstants(NOTHING, NOTHING, NOTHING, NOTHING, 1.0, NOTHING, 1.0)
    assert us("all_reduce", constants, ranks=4, bytes=1e6) == pytest.approx(2 * 3 / 4)
    assert us("all_gather", constants, ranks=4, bytes=1e6) == pytest.approx(3 / 4)


def test_the_protocol_for_small_messages_wins_until_bandwidth_counts() -> None:
    constants = CollectiveConstants(5.0, 1.0, 20.0, 0.5, 1.0, NOTHING, 1.0)
    assert us("all_gather", constants, ranks=2, bytes=2e6) == pytest.approx(5 + 1 + 2)
    assert us("all_gather", constants, ranks=2, bytes=2e8) == pytest.approx(5 + 1 + 20 + 100)


def test_the_custom_all_reduce_reads_what_all_others_have() -> None:
    assert us(
        "custom_all_reduce", CustomConstants(3.0, 1.0, 0.5), ranks=4, bytes=1e6
    ) == pytest.approx(3 + 3 + 6)


@pytest.mark.parametrize(("mib", "measured_us"), [(0.5, 10), (1, 14), (1.5, 19), (2 - 2**-20, 23)])
def test_a_custom_all_reduce_as_vllm_measured_it(mib, measured_us) -> None:
    """Between four H100, to a microsecond (vllm-project/vllm#24532, the kernel of one stage)."""
    h100, sizes = load_hardware(find_hardware("h100")), [(4, round(mib * 2**20))]
    ((found, _),) = kernel_us(h100, "custom_all_reduce", "fp16", "uniform", sizes) or []
    assert found == pytest.approx(measured_us, rel=0.12)


@pytest.mark.parametrize("kernel", CLASSES.values(), ids=lambda kernel: kernel.name)
def test_constants_of_a_class_are_named_and_start_within_their_limits(kernel) -> None:
    assert all(
        low <= start <= high for start, (low, high) in zip(kernel.start, kernel.limits, strict=True)
    )
    constants = kernel.constants_from(dict(zip(kernel.constant_names, kernel.start, strict=True)))
    shapes = kernel.shapes({name: np.array([8.0, 64.0]) for name in kernel.sizes}, "fp16")
    assert np.all(kernel.us(constants, TEN, shapes) > 0)


def test_fitted_constants_are_within_the_limits_of_their_class() -> None:
    for machine, of_machine in FITTED.items():
        for kernel, of_dtypes in of_machine.items():
            limits = dict(zip(CLASSES[kernel].constant_names, CLASSES[kernel].limits, strict=True))
            for dtype, constants in of_dtypes.items():
                assert constants.keys() == limits.keys()
                for name, value in constants.items():
                    low, high = limits[name]
                    assert low <= value <= high, (machine, kernel, dtype, name)


def test_functions_of_the_classes_are_those_of_the_modules() -> None:
    functions = {
        CLASSES[name].us
        for name in (
            "gemm",
            "context_attention",
            "generation_attention",
            "latent_attention",
            "moe",
            "all_reduce",
        )
    }
    assert functions == {gemm_us, context_us, generation_us, latent_us, moe_us, collective_us}
    assert CLASSES["custom_all_reduce"].us is custom_us
    assert {dtype.compute for dtype in DTYPES.values()} == {"fp16", "fp8"}


def test_weights_that_are_unpacked_are_multiplied_without_matrix_units() -> None:
    # 128 FLOP a cycle on each of ten multiprocessors; a tile of 16 rows on matrix units of a
    # millionth of that would take longer
    slow = replace(TEN, peak_flops=1e6)
    sizes = {"m": 1, "n": 4096, "k": 4096}
    assert us("gemm", GEMM, slow, "int4_weights", **sizes) == pytest.approx(2 * 4096 * 4096 / 1280)
    assert us("gemm", GEMM, slow, "int4_weights", **sizes | {"m": 3}) == pytest.approx(
        3 * 2 * 4096 * 4096 / 1280
    )
    assert us("gemm", GEMM, slow, "fp16", **sizes) > 1e6


def test_the_fewer_bytes_a_multiprocessor_has_the_more_of_the_memory_products_reach() -> None:
    """A byte takes 1 / 0.86 of its time on the bus, and a part of what it waits on the processor
    of the constants.
    """
    for fitted in (0.5, 0.75):
        assert TEN.memory_share(fitted) == fitted
        shares = [replace(TEN, asked=asked).memory_share(fitted) for asked in (0.5, 0.2, 0.0)]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(0.86)
        assert 1 / shares[0] == pytest.approx((1 / 0.86 + 1 / fitted) / 2)
    assert replace(TEN, asked=0.2).memory_share(0.9) == 0.9
    sizes = {"m": 1, "n": 4096, "k": 4096}
    constants = replace(GEMM, bandwidth_share=0.5)
    slow, fast = [us("gemm", constants, replace(TEN, asked=a), **sizes) for a in (1.0, 0.0)]
    assert fast < slow


def test_cards_of_less_bandwidth_reach_more_of_it() -> None:
    """The bytes of a step of 8B parameters over the time of its products, by the bandwidth: on the
    cards that have the constants of an A100.
    """
    shares = {}
    for machine in ("a100", "a6000", "rtx-4090", "l40s", "h100"):
        hardware = load_hardware(find_hardware(machine))
        graph = load_named("llama-3.1-8b:phase=decode:context=64:merged=true")
        products = [i for i, op in enumerate(graph.ops) if op.kernel == "gemm"]
        ns = sum([op_durations(graph, hardware)[i] for i in products])
        read = sum([graph.ops[i].bytes_accessed for i in products])
        shares[machine] = read / ns * 1e9 / hardware.device.bandwidth_bytes_per_s
    assert shares["a100"] < shares["a6000"] < shares["rtx-4090"] < shares["l40s"] < 0.86
