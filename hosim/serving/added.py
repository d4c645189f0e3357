"""The additions of this room to the core (:mod:`hosim.extensions`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosim.gate import CaseKind
    from hosim.serving.blocks import KvPolicy

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
    from hosim.serving.cmd_serve import serve, serve_fit, serve_frontier, serve_sweep

    listed: Mapping[str, Callable[..., None]] = {
        "serve": serve,
        "serve-sweep": serve_sweep,
        "serve-fit": serve_fit,
        "serve-frontier": serve_frontier,
    }
    return {
        "sweep": {name: (command, "Serve", _EXAMPLES[name]) for name, command in listed.items()}
    }


def logged_iterations() -> Callable[..., tuple[float | None, list[float]]]:
    """The function that models the iterations of a server's log (``hosim runtime fit``)."""
    from hosim.serving.engine_memory import logged_iterations

    return logged_iterations


def case_kinds() -> Mapping[str, CaseKind]:
    """The cases of the gate that it measures."""
    from hosim.gate import CaseKind
    from hosim.serving.gate import check_serve, explain_served, measure_served

    return {"serve": CaseKind(check_serve, measure_served, explain_served)}


def kv_policies() -> Sequence[KvPolicy]:
    """The policies of its cache, which ``hosim policies --kv`` lists."""
    from hosim.serving.blocks import KV_POLICIES

    return KV_POLICIES
