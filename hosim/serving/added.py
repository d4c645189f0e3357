"""The additions of this room to the core (:mod:`hosim.extensions`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.data.runtime import RUNTIME, Runtime, as_data
from hosim.data.seen_peaks import DRIVER_BYTES
from hosim.hardware import Hardware
from hosim.importers import builder_parameters
from hosim.serving.engine_memory import (
    MEMORY_SHARE,
    beside_weights,
    engine_limits,
    padding_bytes,
)
from hosim.serving.modelled_iterations import ModelledIterations

if TYPE_CHECKING:
    from hosim.gate import CaseKind
    from hosim.serving.kv_policies import KvPolicy


# -- logged room
# --------------------------------------------------------------------------------------------------
# What a server's log says of the memory that its engine takes beside weights and cache.

_BLOCK_TOKENS = 16


def logged_iteration(
    model: str | Mapping[str, Any],
    hardware: Hardware,
    base: Runtime,
    limits: Mapping[str, float],
    blocks: float,
) -> float:
    """What an engine's largest iteration takes over hosim's, of a server that has so many blocks of
    16 tokens; the rest of what it holds is as its runtime says.

    ``limits`` are ``token_budget``, ``max_sequences`` and ``memory_share``, if they are known.
    Below 0 where there are more blocks than fit beside the rest.
    """
    parameters = {**builder_parameters(model), RUNTIME: as_data(base)}
    modelled = ModelledIterations(parameters, hardware)
    counts = [
        int(limits[name]) if name in limits else None for name in ("token_budget", "max_sequences")
    ]
    limit = engine_limits(modelled, counts[0], counts[1], _BLOCK_TOKENS, False)
    device = modelled.hardware.device
    usable = (device.capacity_bytes - DRIVER_BYTES) * limits.get("memory_share", MEMORY_SHARE)
    held = usable - modelled.weight_bytes - padding_bytes(modelled, base)
    held -= blocks * _BLOCK_TOKENS * modelled.cache_bytes_per_token
    others = sum(part.value for part in beside_weights(modelled, limit, base)[1:])
    return (held - others) / max(1, modelled.working_bytes(limit.token_budget))


_EXAMPLES = {
    "serve": (
        "hosim serve llama-3.1-8b -H h100 --requests requests.jsonl",
        "hosim serve llama-3.1-8b -H h100 --requests poisson:rate=10 --limit ttft=2s,tpot=100ms "
        "--plot served.png",
        "hosim serve llama-3.1-8b -H h100 --requests requests.jsonl --measured server.jsonl "
        "--fit-first 100",
    ),
    "serve-sweep": (
        "hosim serve-sweep llama-3.1-8b -H h100 --requests poisson:rate=10:count=300 --vary "
        "requests.rate=5..25:5 --seeds 3",
        "hosim serve-sweep llama-3.1-8b -H h100 --requests requests.jsonl --vary "
        "blocks=2000,4000,8000 --limit ttft=2s -o blocks.csv",
    ),
    "serve-fit": (
        "hosim serve-fit llama-3.1-8b -H h100 --requests poisson:rate=10:count=300 --largest "
        "requests.rate=1..50 --within ttft.p95=2s",
    ),
    "serve-frontier": (
        "hosim serve-frontier llama-3.1-8b -H h100 --requests poisson:rate=20:count=300 --vary "
        "blocks=1000,2000,4000,8000",
        "hosim serve-frontier llama-3.1-8b -H h100 --requests requests.jsonl --vary "
        "model.tensor=1,2,4 --against devices "
        "--of goodput --limit ttft=2s",
    ),
}


def commands() -> Mapping[str, Mapping[str, tuple[Callable[..., None], str, Sequence[str]]]]:
    """Its commands with their sections and examples, below the one of the core before which help
    lists them.
    """
    from hosim.serving.commands.cmd_serve import serve
    from hosim.serving.commands.cmd_serve_fit import serve_fit
    from hosim.serving.commands.cmd_serve_frontier import serve_frontier
    from hosim.serving.commands.cmd_serve_sweep import serve_sweep

    listed: Mapping[str, Callable[..., None]] = {
        "serve": serve,
        "serve-sweep": serve_sweep,
        "serve-fit": serve_fit,
        "serve-frontier": serve_frontier,
    }
    return {
        "sweep": {name: (command, "Serve", _EXAMPLES[name]) for name, command in listed.items()}
    }


def logged_iterations() -> Callable[..., float]:
    """What a server's log says of its largest iteration (``hosim runtime fit``)."""
    from hosim.serving.added import logged_iteration

    return logged_iteration


def case_kinds() -> Mapping[str, CaseKind]:
    """The cases of the gate that it measures."""
    from hosim.gate import CaseKind
    from hosim.serving.gate import check_serve, explain_served, measure_served

    return {"serve": CaseKind(check_serve, measure_served, explain_served)}


def kv_policies() -> Sequence[KvPolicy]:
    """The policies of its cache, which ``hosim policies --kv`` lists."""
    from hosim.serving.kv_policies import KV_POLICIES

    return KV_POLICIES
