"""The room that an engine leaves for its cache, beside what logs of servers say."""

from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.data.runtime import NONE, RUNTIME, Runtime, RuntimeFigure, as_data
from hosim.errors import HardwareError, InfeasibleError, InputError
from hosim.io.runtimes import load_runtime, runtime_named
from hosim.serving import (
    Iteration,
    ModelledIterations,
    cache_blocks,
    cache_room,
    engine_limits,
    weight_room,
)
from hosim.serving.requests import Request
from hosim.shipped import find_hardware


def asked(model: str, hardware: str, runtime: str, share: float = 0.9, limits=(None, None), **more):
    parameters = {
        "model": model,
        "fused": True,
        "merged": True,
        RUNTIME: as_data(runtime_named(runtime)),
        **more,
    }
    modelled = ModelledIterations(parameters, hosim.load_hardware(find_hardware(hardware)))
    return cache_room(modelled, engine_limits(modelled, *limits, 16, False), share)


@pytest.mark.parametrize(
    ("log", "blocks", "question"),
    [
        (
            "casys-kaist/LLMServingSim@5daddb21, vLLM 0.19",
            2588,
            ("llama-3.1-8b", "rtx-4090", "vllm"),
        ),
        (
            "vllm-project/vllm#10511, 0.6.5",
            27284,
            ("llama-3.1-8b", "h100", "vllm-0.6", 0.9, (8192, 256)),
        ),
        (
            "inference-sim/sim-to-real-accuracy-validation@dcec3fd4, 0.15.1",
            19251,
            ("mistral-nemo-12b", "h100", "vllm", 0.9, (2048, 128)),
        ),
        (
            "vllm-project/vllm#2031, 0.2.5, one device",
            7351,
            ("llama-2-7b", "a100", "vllm-0.2", 0.9, (4096, 256)),
        ),
    ],
)
def test_logs(log: str, blocks: int, question) -> None:
    room = asked(*question)
    assert room.blocks == pytest.approx(blocks, rel=0.1), log
    assert 0 < room.low_blocks <= room.blocks <= room.high_blocks


def sized(capacity: int) -> ModelledIterations:
    """GPT-2 on an H100 with so many bytes of memory, without a runtime."""
    machine = hosim.load_hardware(find_hardware("h100"))
    tiers = [
        replace(tier, capacity_bytes=capacity) if tier.name == machine.device_tier else tier
        for tier in machine.tiers
    ]
    return ModelledIterations({"model": "gpt2"}, replace(machine, tiers=tuple(tiers)))


@pytest.mark.parametrize(("blocks", "tokens", "weights"), [(1, 16, 0), (37, 7, 10**9)])
def test_a_cache_and_weights_share_the_memory_to_the_byte(blocks, tokens, weights) -> None:
    """With room for so many blocks there are so many, and with a byte less one fewer."""
    any_size = sized(10**11)
    limits = engine_limits(any_size, None, None, tokens, False)
    block = tokens * 2 * 12 * 768 * 2  # keys and values of 12 layers, 768 wide, of 2 bytes
    working = any_size.working_bytes(limits.token_budget)
    whole = weights + working + blocks * block
    assert cache_blocks(sized(whole), limits, 1.0, weights) == blocks
    assert cache_blocks(sized(2 * whole), limits, 0.5, weights) == blocks
    if blocks > 1:
        assert cache_blocks(sized(whole - 1), limits, 1.0, weights) == blocks - 1
    else:
        with pytest.raises(InfeasibleError, match="leave no room for a cache"):
            cache_blocks(sized(whole - 1), limits, 1.0, weights)
    beside = working + blocks * block
    assert weight_room(sized(beside + 1), limits, 1.0, blocks) == 1
    assert weight_room(sized(beside + weights + 1), limits, 1.0, blocks) == weights + 1
    with pytest.raises(InfeasibleError):
        weight_room(sized(beside), limits, 1.0, blocks)


def test_collectives_whose_streams_are_recorded_take_room() -> None:
    """vllm-project/vllm#2031: 20,865 blocks on four devices. By hand: 161 all-reduces of 4,096 rows
    of 8,192 in 16 bits are 10.06 GiB, of which 0.8 stay; a block of two heads takes 1.25 MiB.
    """
    runtime = runtime_named("vllm-0.2")
    rooms = [
        asked("llama-2-70b", "a100", each, 0.9, (4096, 256), tensor=4)
        for each in (runtime, replace(runtime, recorded=NONE))
    ]
    assert rooms[0].low_blocks <= 20865 <= rooms[0].high_blocks
    assert rooms[0].high_blocks - rooms[0].low_blocks < 0.25 * 20865
    stays = 0.8 * 161 * 4096 * 8192 * 2
    assert rooms[1].blocks - rooms[0].blocks == pytest.approx(stays / (1.25 * 2**20), abs=1)


def test_a_share_of_collectives_is_at_most_one() -> None:
    with pytest.raises(HardwareError, match=r"recorded\.value: expected at most 1"):
        Runtime("mine", recorded=RuntimeFigure(1.1))


def test_a_copy_of_the_cache_is_a_block_of_keys_or_of_values() -> None:
    """16 tokens of keys of 8 heads of 128 in bf16 are 32 KiB, of 40 heads 160 KiB, of MLA's latents
    16 KiB; on two devices half of the heads.
    """
    for model, more, size in (
        ("llama-3.1-8b", {}, 32),
        ("llama-3.1-8b", {"tensor": 2}, 16),
        ("llama-2-13b", {}, 160),
        ("deepseek-v3", {}, 16),
    ):
        parameters = {"model": model, RUNTIME: as_data(runtime_named("vllm")), **more}
        modelled = ModelledIterations(parameters, hosim.load_hardware(find_hardware("h100")))
        assert modelled.machine_of_blocks(16).software.cache_copy.value == size * 1024
    plain = ModelledIterations({"model": "gpt2"}, hosim.load_hardware(find_hardware("h100")))
    assert plain.machine_of_blocks(16) is plain.hardware


def test_blocks_move_in_copies_of_their_layers() -> None:
    """A copy of 32 KiB takes 1.3 us for its bytes and 5 beside: a fifth of the rate is left."""
    rows = [Request(0, 4000, 4)]
    busy = []
    for runtime in ("vllm", replace(runtime_named("vllm"), cache_copy=NONE, copy_time=NONE)):
        model = {"model": "llama-3.1-8b", RUNTIME: as_data(runtime_named(runtime))}
        done = hosim.serve(model, "rtx-4090", rows, kv="write_through:tiers=ddr")
        busy.append(done.kv.channels["d2h"])
    assert busy[0].bytes == busy[1].bytes > 0
    assert busy[0].busy_ns / busy[1].busy_ns == pytest.approx(4.8, rel=0.1)


def test_swapping_is_no_better_than_recomputing_where_blocks_move_in_small_copies() -> None:
    """vllm-project/vllm#12 and #13073: by many small copies swapping takes as long, or longer. At
    once it would take less.
    """
    requests = [Request(i * 20_000_000, 200, 200) for i in range(30)]
    means = {}
    for runtime in (None, "vllm"):
        model = {"model": "llama-3.1-8b", **({"runtime": runtime} if runtime else {})}
        for how in ("recompute", "swap"):
            done = hosim.serve(model, "h100-80gb-sxm", requests, preemption=how, blocks=300)
            assert done.preemptions > 10
            means[runtime, how] = done.frame()["latency_ns"].mean()
    assert means[None, "swap"] < means[None, "recompute"]
    assert 1 < means["vllm", "swap"] / means["vllm", "recompute"] < 1.2


def test_a_connector_costs_each_iteration_where_nothing_is_found_below() -> None:
    """By hand: every gap between two tokens of one sequence grows by 0.2 ms, and by another time in
    each draw; what swaps without a connector does not.
    """
    model = {"model": "gpt2", "layers": 2, "runtime": "vllm"}
    served = {
        kv: hosim.serve(model, "h100-80gb-sxm", [Request(0, 100, 5)], kv=kv)
        for kv in (None, "swap_only", "write_through")
    }
    first = {kv: [b - a for a, b in pairwise(one.token_ns[0])] for kv, one in served.items()}
    assert first[None] == first["swap_only"]
    assert first["write_through"] == [gap + 200_000 for gap in first[None]]
    longer = [
        drawn.token_ns[0][-1] - plain.token_ns[0][-1]
        for drawn, plain in zip(
            served["write_through"].in_draws(), served[None].in_draws(), strict=True
        )
    ]
    assert min(longer) < 4 * 200_000 < max(longer)


def test_an_iteration_takes_as_long_as_the_graph_it_is_padded_to() -> None:
    """Between two captured sizes it takes the time of the larger one; above the last one its own."""
    sizes = (4, 8, 24)
    machine = hosim.load_hardware(find_hardware("h100"))
    plain = {"model": "gpt2", "layers": 1}
    padded = ModelledIterations(
        plain | {RUNTIME: as_data(replace(Runtime("mine"), graph_sizes=sizes))}, machine
    )
    free = ModelledIterations(plain | {RUNTIME: as_data(Runtime("mine"))}, machine)
    for tokens, taken in ((1, 4), (4, 4), (5, 8), (9, 24), (24, 24), (25, 25)):
        asked = Iteration((), tokens, 100 * tokens, ())
        beside = free.attention_ns(asked) + free.head_ns(asked)
        assert padded(asked) == free.dense_ns(taken) + beside


def test_gpt_oss_does_not_start_on_an_h100() -> None:
    """vllm-project/vllm#23278: 65.97 GiB loaded, -2.14 GiB for a cache."""
    with pytest.raises(InfeasibleError, match=r"weights of 65\.9 GiB"):
        asked("gpt-oss-120b", "h100", "vllm", weights="mxfp4")
    assert asked("gpt-oss-120b", "h100", "vllm", 0.95, (2048, 256), weights="mxfp4").blocks > 0


def test_a_layout_that_a_runtime_does_not_say_is_refused() -> None:
    with pytest.raises(InputError, match="mxfp4"):
        asked("gpt-oss-120b", "h100", "vllm-0.6", weights="mxfp4")


def test_what_a_user_says_is_the_limit() -> None:
    """On 70 GiB and more a server of vLLM takes 8,192 tokens and 1,024 sequences unless told."""
    parameters = {"model": "gpt2", RUNTIME: as_data(runtime_named("vllm"))}
    for hardware, tokens, sequences in (
        ("h100", 8192, 1024),
        ("rtx-4090", 2048, 256),
        ("a100", 2048, 256),
    ):
        modelled = ModelledIterations(parameters, hosim.load_hardware(find_hardware(hardware)))
        free = engine_limits(modelled, None, None, 16, False)
        assert (free.token_budget, free.max_sequences) == (tokens, sequences)
        told = engine_limits(modelled, 100, 7, 16, False)
        assert (told.token_budget, told.max_sequences) == (100, 7)


def test_the_blocks_of_a_server_give_its_room(tmp_path) -> None:
    """Under the runtime that its log made, a server has the blocks that the log says."""
    path = tmp_path / "server.log"
    path.write_text(
        "run gpt2 -H rtx-4090 --memory-share 0.5 --max-sequences 64\n# GPU blocks: 20,200\n"
    )
    words = ["runtime", "fit", str(path), "--base", "vllm", "-o", str(tmp_path / "mine.yaml")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    found = load_runtime(tmp_path / "mine.yaml")
    assert found.iteration.one_row
    modelled = ModelledIterations(
        {"model": "gpt2", RUNTIME: as_data(found)}, hosim.load_hardware(find_hardware("rtx-4090"))
    )
    room = cache_room(modelled, engine_limits(modelled, None, 64, 16, False), 0.5)
    assert room.blocks == pytest.approx(20_200, rel=0.01)
    path.write_text("run gpt2 -H rtx-4090 --memory-share 0.5\n# GPU blocks: 1,000,000\n")
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2
    assert "more blocks than fit" in told.output.replace("\n", " ")


def test_a_request_takes_its_time_beside_iterations(tmp_path):
    """Tokens come later by what the runtime says, and its draws say how sure that is."""
    requests = [Request(0, 100, 3), Request(10**9, 50, 2)]
    found = []
    for text in ("", "request: {value: 5 ms, spread: 0.2}"):
        path = tmp_path / "mine.yaml"
        path.write_text(f"format: hosim.runtime/1\nname: mine\n{text}\n")
        model = {"model": "llama-3.1-8b", "layers": 1, "runtime": str(path)}
        found.append(hosim.serve(model, "h100-80gb-sxm", requests))
    without, found_later = found
    assert [one.arrival_ns for one in found_later.requests] == [0, 10**9]
    assert found_later.token_ns == tuple(
        tuple(at + 5_000_000 for at in times) for times in without.token_ns
    )
    first = [one.token_ns[0][0] for one in found_later.in_draws()]
    same = [one.token_ns[0][0] for one in without.in_draws()]
    waits = sorted(a - b for a, b in zip(first, same, strict=True))
    assert waits[0] < 4_000_000
    assert waits[-1] > 6_000_000
