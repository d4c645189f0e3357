"""What real servers did in public, and what hosim and others say of the same runs: the rows of
``make race``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hosim.io import load_hardware
from hosim.io.importers import builder_parameters
from hosim.serving import ModelledIterations, Served, as_served, read_measured_requests
from hosim.serving.requests import Request, read_request_rows
from hosim.shipped import find_hardware

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "serving"

RIVALS = (
    "blis_roofline", "blis_evolved", "llm_optimizer", "aiconfigurator", "vidur", "llmservingsim",
)  # fmt: skip
"""Simulators whose figures stand beside hosim's."""

METRICS = (
    "ttft_mean", "ttft_p90", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99",
)  # fmt: skip

_LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
_YI = _LLAMA | {
    "hidden_size": 7168, "intermediate_size": 20480, "num_hidden_layers": 60, "vocab_size": 64000,
    "num_attention_heads": 56, "num_key_value_heads": 8, "max_position_embeddings": 4096,
}  # fmt: skip
_CODELLAMA = _LLAMA | {
    "hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 48, "vocab_size": 32000,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 16384,
}  # fmt: skip
_SCOUT = _LLAMA | {
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "vocab_size": 202048,
    "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "use_qk_norm": True,
    "max_position_embeddings": 10485760,
    "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(48)],
}  # fmt: skip
MODELS: Mapping[str, Mapping[str, Any]] = {
    "01-ai/Yi-34B": {"model": _YI},
    "codellama/CodeLlama-34b-Instruct-hf": {"model": _CODELLAMA},
    "meta-llama/Llama-2-70b-hf": {"model": "llama-2-70b"},
    "meta-llama/Llama-2-7b-hf": {"model": "llama-2-7b"},
    "meta-llama/Llama-3.1-70B-Instruct": {"model": "llama-3.1-70b"},
    "meta-llama/Llama-3.1-8B-Instruct": {"model": "llama-3.1-8b"},
    "mistralai/Mistral-Nemo-Instruct-2407": {"model": "mistral-nemo-12b"},
    "mistralai/Mixtral-8x22B-Instruct-v0.1": {"model": "mixtral-8x22b"},
    "mistralai/Mixtral-8x7B-v0.1": {"model": "mixtral-8x7b"},
    "Qwen/Qwen3-14B": {"model": "qwen3-14b"},
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": {"model": _SCOUT, "weights": "fp8_e4m3"},
}
"""The models of the runs; sizes of those that hosim has no preset of are those of their published
``config.json``."""


@dataclass(frozen=True)
class Asked:
    """One run of a server: what hosim is asked, and of each stage its requests (from, to), what was
    measured and what others say, in milliseconds.
    """

    source: str
    run: str
    named: str
    model: Mapping[str, Any]
    machine: str
    load: str
    requests: Sequence[Request]
    options: Mapping[str, Any]
    stages: Mapping[str, tuple[int, int]]
    measured: Mapping[str, Mapping[str, float]]
    others: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Of each stage and metric what each other simulator says."""


def metrics(served: Served, first: int, end: int) -> dict[str, float]:
    """The metrics of some of the requests, in milliseconds."""
    frame = served.frame().iloc[first:end]
    found = {}
    for name, column in (("ttft", "ttft_ns"), ("e2e", "latency_ns")):
        values = frame[column].to_numpy(float) / 1e6
        found[f"{name}_mean"] = float(values.mean())
        for share in (90, 99):
            found[f"{name}_p{share}"] = float(np.percentile(values, share))
    return found | {"itl_mean": float(frame["tpot_ns"].mean()) / 1e6}


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split("+")]


def asked_at(part: int) -> list[Asked]:
    """All runs; of listed loads the given part of each stage's duration alone."""
    return [*public(part), *servers()]


def public(part: int = 1) -> Iterator[Asked]:
    """The runs of ``public_race.csv``."""
    runs: dict[str, list[dict[str, str]]] = {}
    with (FOLDER / "public_race.csv").open() as file:
        for row in csv.DictReader(file):
            runs.setdefault(row["run"], []).append(row)
    for run, rows in runs.items():
        yield _public(run, rows, part)


def _public(run: str, rows: Sequence[Mapping[str, str]], part: int) -> Asked:
    first = rows[0]
    rates = _numbers(first["rate_per_s"])
    if first["duration_s"]:
        counts = [
            round(rate * time / part)
            for rate, time in zip(rates, _numbers(first["duration_s"]), strict=True)
        ]
    else:
        counts = [int(first["requests"])]
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    stages = {str(k): (ends[k] - count, ends[k]) for k, count in enumerate(counts)}
    whole = (0, ends[-1])
    options = {
        "max_batched_tokens": "token_budget", "max_sequences": "max_sequences",
        "kv_blocks_of_16": "blocks",
    }  # fmt: skip
    asked: dict[str, Any] = {name: int(first[key]) for key, name in options.items() if first[key]}
    if "blocks" not in asked:
        asked["memory_share"] = float(first["memory_share"])
    model = {**MODELS[first["model"]], "tensor": int(first["tensor"]), "runtime": "vllm"}
    below = int(first["cpu_kv_blocks_of_16"] or 0)
    if below:
        asked["kv"] = f"write_through:tiers=ddr={below * _block_bytes(model)}B"
    elif first["kv_offload_to_cpu"] == "yes":  # it does not say how much
        asked["kv"] = "write_through:tiers=ddr"
    return Asked(
        "inference-sim",
        run,
        first["model"].partition("/")[2][:22],
        model,
        "h100-80gb-sxm",
        first["load_source"].partition(" ")[0],
        _evenly(first, rates, counts),
        asked,
        {row["stage"]: stages.get(row["stage"], whole) for row in rows},
        {row["stage"]: _of(row, "actual") for row in rows},
        {row["stage"]: {name: _of(row, name) for name in RIVALS} for row in rows},
    )


def _block_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of 16 tokens in the cache of all devices."""
    plain = {name: value for name, value in model.items() if name != "runtime"}
    found = ModelledIterations(builder_parameters(plain), load_hardware(find_hardware("h100")))
    return 16 * found.cache_bytes_per_token * found.devices


def _of(row: Mapping[str, str], whose: str) -> dict[str, float]:
    return {metric: float(row[key]) for metric in METRICS if row.get(key := f"{whose}_{metric}_ms")}


def _evenly(row: Mapping[str, str], rates: Sequence[float], counts: Sequence[int]) -> list[Request]:
    """Requests that are evenly spaced in each stage, of one prompt after the other: each user has a
    question behind the system prompt of its group, and asks it again and again.

    The source says neither. But first tokens lie within an iteration of each other, which Poisson's
    arrivals do not; only the first stage has late ones, and as many as there are users, which is
    when their prompts are not in the cache; and what a rate adds to the time of a token is what more
    sequences add, without a prefill.
    """
    system, groups = int(row["system_prompt_tokens"]), int(row["system_prompts"])
    users = groups * int(row["users_per_prompt"])
    prompt, answer = system + int(row["question_tokens"]), int(row["output_tokens"])
    alike = system // 16
    prompts = [
        (*[user % groups] * alike, *[groups + user] * (prompt // 16 - alike))
        for user in range(users)
    ]
    found: list[Request] = []
    begins = 0.0
    for rate, count in zip(rates, counts, strict=True):
        found += [
            Request(
                round(1e9 * (begins + k / rate)), prompt, answer, prompts[(len(found) + k) % users]
            )
            for k in range(count)
        ]
        begins += count / rate
    return found


_SERVERS = {
    "rtx4090_llama-3.1-8b": ("rtx-4090", {"blocks": 2588}),
    "rtxpro6000_llama-3.1-8b": ("rtx-pro-6000", {"max_sequences": 128}),
}
"""LLMServingSim's servers: the machine, and what their logs say."""


def servers() -> Iterator[Asked]:
    """LLMServingSim's two servers, by the cost model alone and without a fitted overhead."""
    rows = read_request_rows(FOLDER / "sharegpt_300.jsonl.gz")
    for name, (machine, options) in _SERVERS.items():
        real = as_served(read_measured_requests(FOLDER / name / "measured_requests.jsonl.gz"), rows)
        times = {"ttft": real.ttft_ns, "e2e": real.latency_ns}
        found = {}
        for metric, values in times.items():
            listed = np.array(values, float) / 1e6
            found[f"{metric}_mean"] = float(listed.mean())
            found |= {f"{metric}_p{p}": float(np.percentile(listed, p)) for p in (90, 99)}
        found["itl_mean"] = float(np.nanmean(real.tpot_ns)) / 1e6
        yield Asked(
            "LLMServingSim",
            name.partition("_")[0],
            "Llama-3.1-8B",
            {"model": "llama-3.1-8b", "runtime": "vllm"},
            machine,
            "measured",
            rows.requests,
            options,
            {"all": (0, len(rows.requests))},
            {"all": found},
        )


# -- caches in tiers -------------------------------------------------------------------------------

STAGE_S, IDLE_S = 50.0, 200.0
"""Seconds of a stage of llm-d's load, which its tables do not say: that of its guide."""

_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss-120b-h100": {
        "model": {"model": "gpt-oss-120b", "weights": "mxfp4", "runtime": "vllm"},
        "tokens": (16_400, 355, 375),
        "options": {
            "instances": 16,
            "block_tokens": 128,
            "memory_share": 0.95,
            "max_sequences": 512,
        },
        "kv": "write_through:tiers=ddr=859GB",
    },
    "qwen3-32b-h100": {
        "model": {"model": "qwen3-32b", "tensor": 2, "runtime": "vllm"},
        "tokens": (16_000, 256, 256),
        "options": {"instances": 8, "block_tokens": 128, "blocks": 298_000 // 128},
        "kv": "write_through:tiers=ddr=859GB",
    },
}
"""Of two of llm-d's tables the engines; tokens of gpt-oss are what its rates over its requests are
(system prompt, question, answer), and the 128 tokens of a block of Qwen's cache are an assumption."""


def tiers() -> Iterator[Asked]:
    """llm-d's engines with a rate of arrivals, in device memory and with host memory below."""
    tables: dict[tuple[str, bool], list[dict[str, str]]] = {}
    with (FOLDER / "tiered_prefix_llmd.csv").open() as file:
        for row in csv.DictReader(file):
            if row["table"] in _ENGINES and row["rate_per_s"].isdigit():
                below = bool(row["cpu_cache_gb_per_engine"])
                tables.setdefault((row["table"], below), []).append(row)
    for (table, below), rows in tables.items():
        how = _ENGINES[table]
        options = {**how["options"], "router": "prefix"} | ({"kv": how["kv"]} if below else {})
        requests, stages = _stages(rows, *how["tokens"])
        yield Asked(
            "llm-d",
            f"{table.split('-')[0]}{' ddr' if below else ''}",
            table.removesuffix("-h100"),
            how["model"],
            "h100-80gb-sxm",
            "llm-d",
            requests,
            options,
            stages,
            {row["rate_per_s"]: _of_tiers(row) for row in rows},
        )


def _of_tiers(row: Mapping[str, str]) -> dict[str, float]:
    """What was measured: milliseconds, and tokens a second."""
    times = {"ttft_mean": "mean_ttft_s", "ttft_p90": "p90_ttft_s", "e2e_mean": "mean_latency_s"}
    found = {name: 1e3 * float(row[key]) for name, key in times.items()}
    rates = {"output": "output_tokens_per_s", "total": "total_tokens_per_s"}
    return found | {f"{name}_rate": float(row[key]) for name, key in rates.items() if row[key]}


def _stages(
    rows: Sequence[Mapping[str, str]], system: int, question: int, answer: int
) -> tuple[list[Request], dict[str, tuple[int, int]]]:
    """Poisson's arrivals at each rate, one stage after the other, of the load's prompts in a random
    order.
    """
    draw, size = Random(0), 128
    groups, each = (int(rows[0][key]) for key in ("prefix_groups", "prompts_per_group"))
    users = [
        (group, groups + group * each + user) for group in range(groups) for user in range(each)
    ]
    draw.shuffle(users)
    found: list[Request] = []
    stages = {}
    for stage, row in enumerate(rows):
        at, first = stage * (STAGE_S + IDLE_S), len(found)
        ends = at + STAGE_S
        while (at := at + draw.expovariate(float(row["rate_per_s"]))) < ends:
            group, user = users[len(found) % len(users)]
            alike, parts = system // size, (system + question) // size
            prefix = (group,) * alike + (user,) * (parts - alike)
            found.append(Request(round(at * 1e9), system + question, answer, prefix, size))
        stages[row["rate_per_s"]] = (first, len(found))
    return found, stages


def rates(served: Served, first: int, end: int) -> dict[str, float]:
    """Tokens a second of some of the requests, from the first arrival to the last token."""
    frame = served.frame().iloc[first:end]
    span_s = (frame["last_token_ns"].max() - frame["arrival_ns"].min()) / 1e9
    output = int(frame["output_tokens"].sum())
    return {
        "output_rate": output / span_s,
        "total_rate": (output + int(frame["prompt_tokens"].sum())) / span_s,
    }


def mooncake() -> tuple[Sequence[Request], float]:
    """Mooncake's conversations, and the share of their tokens that a cache without end has."""
    requests = read_request_rows(FOLDER / "mooncake_conversation.jsonl.gz").requests
    seen: set[int] = set()
    found = 0
    for request in requests:
        whole = request.prefix[: (request.prompt_tokens - 1) // 512]
        here = next((i for i, name in enumerate(whole) if name not in seen), len(whole))
        found += 512 * here
        seen |= set(request.prefix)
    return requests, found / sum(request.prompt_tokens for request in requests)
