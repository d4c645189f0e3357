"""The room that an engine leaves for its cache, beside what logs of servers say."""

import pytest

import hosim
from hosim.data.runtime import RUNTIME, as_data
from hosim.errors import InfeasibleError, InputError
from hosim.io.runtimes import runtime_named
from hosim.serving import ModelledIterations, cache_room, engine_limits
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
    ],
)
def test_logs(log: str, blocks: int, question) -> None:
    room = asked(*question)
    assert room.blocks == pytest.approx(blocks, rel=0.1), log
    assert 0 < room.low_blocks <= room.blocks <= room.high_blocks


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
