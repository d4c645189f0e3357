"""One small valid input of each format. What hosim writes itself is made by its commands."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = HERE.parent
sys.path[:0] = [
    str(path)
    for path in (
        TESTS,
        TESTS / "importers",
        TESTS / "formats",
        TESTS / "costmodel",
        TESTS / "validate",
    )
    if str(path) not in sys.path
]

from kernel_machine import GATHER  # noqa: E402
from kineto_toys import execution_trace, step  # noqa: E402
from make_chakra import trace as chakra_stream  # noqa: E402
from make_gguf import MODELS as GGUF_MODELS  # noqa: E402
from make_gguf import gguf as gguf_of  # noqa: E402
from make_nsys import Export  # noqa: E402
from recorded_toy import sweep, write  # noqa: E402
from test_g10 import write as write_g10  # noqa: E402
from test_hyper_parallel_trace import GOOD  # noqa: E402

DATA = TESTS / "importers" / "data"

WORKLOAD: dict[str, Any] = {
    "format": "hosim.workload/1",
    "name": "toy",
    "meta": {"made": "by hand", "count": 3},
    "tensors": [
        {"name": "x", "bytes": 8, "kind": "input"},
        {"name": "w", "bytes": 400, "kind": "parameter", "home": "ddr"},
        {"name": "v", "bytes": 300, "kind": "parameter", "home": "hbm", "persistent": True},
        {"name": "a", "bytes": 300, "kind": "activation"},
        {"name": "b", "bytes": 200},
        {"name": "c", "bytes": 100, "kind": "output"},
    ],
    "ops": [
        {
            "name": "f",
            "kind": "matmul",
            "stream": "compute",
            "inputs": ["x", "v"],
            "outputs": ["a"],
            "duration_ns": 500,
            "workspace_bytes": 16,
        },
        {
            "name": "side",
            "kind": "add",
            "stream": "other",
            "mutates": ["x"],
            "deps": ["f"],
            "duration_ns": 70,
        },
        {
            "name": "g",
            "kind": "matmul",
            "inputs": ["w"],
            "outputs": ["b"],
            "flops": 9000,
            "bytes_accessed": 600,
            "dtype": "bf16",
        },
        {
            "name": "h",
            "kind": "add",
            "inputs": ["a", "b", "v"],
            "outputs": ["c"],
            "duration_ns": 300,
            "also_on": {"ddr": 900},
        },
    ],
}
RUNTIME = """\
format: hosim.runtime/1
name: mine
software: by hand
source: by hand
options: {fused: true, loss: chunked}
speed: {value: 0.8, spread: 0.1, source: two runs}
reserved: {value: 1.1, spread: 0.05, one_row: true}
context: {value: 500 MiB, spread: 0.3}
collectives: {value: 1 GiB, spread: 0.5}
"""
TRAINED = "gpt2:phase=train:layers=1:sequence=8"
HARDWARE: dict[str, Any] = {
    "format": "hosim.hardware/1",
    "name": "small",
    "source": "by hand",
    "devices": 2,
    "devices_per_host": 2,
    "device_tier": "hbm",
    "chunk": "1 kB",
    "compute": {
        "peak": {"bf16": "1 TFLOP/s"},
        "efficiency": 0.5,
        "efficiency_of": {"matmul": {"bf16": 0.6}},
        "launch": "10 ns",
    },
    "runtime": {"inspect": "5 ns"},
    "tiers": {
        "hbm": {"capacity": "2 kB", "bandwidth": "1 TB/s", "scope": "device"},
        "ddr": {
            "capacity": "20 kB",
            "bandwidth": "100 GB/s",
            "scope": "host",
            "pageable": ["input"],
            "compute": {"peak": {"fp32": "1 TFLOP/s"}, "efficiency": 0.5, "launch": "20 ns"},
        },
        "nvme": {"capacity": "90 kB", "bandwidth": "1 GB/s", "scope": "global"},
    },
    "channels": {
        "h2d": {
            "from": "ddr",
            "to": "hbm",
            "bandwidth": "1 GB/s",
            "latency": "7 ns",
            "engines": 1,
            "pageable": "0.5 GB/s",
        },
        "d2h": {
            "from": "hbm",
            "to": "ddr",
            "bandwidth": "1 GB/s",
            "beside": {"h2d": "0.7 GB/s"},
            "curve": [{"size": "100 B", "bandwidth": "0.2 GB/s"}],
        },
        "up": {"from": "nvme", "to": "ddr", "bandwidth": "0.5 GB/s"},
        "down": {"from": "ddr", "to": "nvme", "bandwidth": "0.5 GB/s"},
    },
    "fabrics": {"pcie": {"bandwidth": "1.5 GB/s", "channels": ["h2d", "d2h"], "scope": "host"}},
}
PLAN: dict[str, Any] = {
    "format": "hosim.plan/1",
    "workload": "toy",
    "policy": "manual",
    "initial": {"w": ["ddr"], "v": ["hbm"]},
    "cache_ops": [
        {"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": "f"},
        {"op": "store", "tensor": "a", "from": "hbm", "to": "ddr", "after": "f"},
        {"op": "detach", "tensor": "a", "from": "hbm", "after": "f"},
        {"op": "prefetch", "tensor": "a", "from": "ddr", "to": "hbm", "after": "g"},
        {"op": "detach", "tensor": "w", "from": "hbm", "after": "g"},
    ],
    "order": ["f", "side", "g", "h"],
    "recompute": [],
}
EDITED: dict[str, Any] = (
    PLAN
    | {
        "initial": {},
        "cache_ops": [{"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": None}],
    }
    | {
        "order": ["f", "side", "g", "h"],
        "recompute": [{"op": "g", "before": "h", "name": "g~2"}],
    }
)
KERNEL_HARDWARE: dict[str, Any] = HARDWARE | {
    "compute": HARDWARE["compute"]
    | {
        "processor": {
            "multiprocessors": 100,
            "clock": "1.5 GHz",
            "cache": "40 MB",
            "links": "300 GB/s",
        },
        "tables": ["k.csv"],
        "kernels": {"all_gather": {"fp16": GATHER}},
    }
}
MOE: dict[str, Any] = {
    "format": "hosim.workload/1",
    "name": "moe",
    "tensors": [
        {"name": "x", "bytes": 1, "kind": "input"},
        *({"name": f"w{e}", "bytes": 40, "kind": "expert", "home": "ddr"} for e in range(2)),
        *({"name": name, "bytes": 1} for name in ("g", "h0", "h1")),
        {"name": "y", "bytes": 1, "kind": "output"},
    ],
    "ops": [
        {"name": "gate", "kind": "matmul", "inputs": ["x"], "outputs": ["g"], "duration_ns": 10},
        *(
            {
                "name": f"ffn{e}",
                "kind": "matmul",
                "inputs": ["x", f"w{e}"],
                "outputs": [f"h{e}"],
                "duration_ns": 50,
            }
            for e in range(2)
        ),
        {
            "name": "combine",
            "kind": "add",
            "inputs": ["g", "h0", "h1"],
            "outputs": ["y"],
            "duration_ns": 20,
        },
    ],
}
ROUTING: dict[str, Any] = {
    "format": "hosim.routing/1",
    "workload": "moe",
    "gates": [
        {"op": "gate", "experts": [{"tensors": [f"w{e}"], "ops": [f"ffn{e}"]} for e in range(2)]}
    ],
    "steps": [[[0]], [[1]], [[0, 1]]],
}
GENERATED: dict[str, Any] = {k: v for k, v in ROUTING.items() if k != "steps"} | {
    "generate": {"steps": 3, "top": 1, "seed": 1, "zipf": 1.1, "persistence": 0.5}
}
SPEC = """format: hosim.spec/1
name: my-step
builder:
  model: gpt2
  config: {n_layer: 2}
  phase: train
  layers: 1
  batch: 1
  sequence: 64
  checkpoint: true
  dtype: bf16
  optimizer: adamw
"""
CASES = """baselines = "hosim-baselines"
tolerance = {peak = "0 B", makespan = "1%"}

[cases.step]
workload = "w.json"
hardware = "m.yaml"
policy = "layerwise"
budget = "1200 B"
tolerance = {makespan = "2%"}

[cases.planned]
workload = "w.json"
hardware = "m.yaml"
plan = "plan.json"

[matrix.wide]
workloads = ["w.json"]
hardware = ["m.yaml"]
policies = ["layerwise", "lookahead:k=2"]
budgets = ["75%"]
cover = "pairs"
"""
POINTS = b"budget,channels.h2d.bandwidth\n80%,1 GB/s\n1 kB,2 GB/s\n90%,\n"
KERNELS = """machine,kernel,dtype,distribution,m,n,k,ranks,bytes,tokens,hidden,intermediate,top,experts,tensor,latency_us
A,gemm,fp16,uniform,16,128,64,,,,,,,,,5
A,gemm,fp16,uniform,32,128,64,,,,,,,,,6
A,gemm,fp8,uniform,32,128,64,,,,,,,,,4
A,all_gather,fp16,uniform,,,,2,4096,,,,,,,11
A,moe,fp16,uniform,,,,1,,8,64,32,2,4,1,20
A,moe,fp16,power_law_1.2,,,,2,,8,64,32,2,4,1,25
"""
PRODUCTS = """framework,device,op_name,gemm_dtype,m,n,k,latency
X,A,gemm,float16,16,128,64,0.005
X,B,gemm,fp8,16,128,64,0.004
X,A,gemm,float16,64,128,64,0.009
"""
KERNEL_WORKLOAD: dict[str, Any] = {
    "format": "hosim.workload/1",
    "name": "kernels",
    "meta": {"routing_distribution": "power_law_1.2"},
    "tensors": [{"name": "w", "bytes": 400, "kind": "parameter", "home": "ddr"}],
    "ops": [
        {
            "name": kernel,
            "kind": kernel,
            "inputs": ["w"],
            "dtype": "bf16",
            "kernel": kernel,
            "sizes": sizes,
            "bytes_accessed": 600,
        }
        for kernel, sizes in (
            ("gemm", [24, 128, 64]),
            ("context_attention", [1, 64, 0, 8, 2, 64, 1 << 40]),
            ("generation_attention", [2, 64, 8, 2, 64]),
            ("context_latent", [1, 64, 0, 16]),
            ("latent_attention", [2, 64, 16]),
            ("moe", [8, 64, 32, 2, 4, 1, 2]),
            ("expert_product", [8, 2, 4, 2, 64, 32]),
            ("all_reduce", [2, 4096]),
            ("all_gather", [2, 5000]),
        )
    ],
}
MIB = 1 << 20
SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": 0x1000000,
            "total_size": 2 * MIB,
            "allocated_size": 512,
            "active_size": 512,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": [0, 0],
            "is_expandable": False,
            "blocks": [
                {
                    "address": 0x1000000,
                    "size": 512,
                    "requested_size": 500,
                    "state": "active_allocated",
                    "frames": [],
                },
                {
                    "address": 0x1000200,
                    "size": 2 * MIB - 512,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                },
            ],
        }
    ],
    "device_traces": [
        [
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": time,
                "frames": [],
            }
            for time, (action, address, size) in enumerate(
                [
                    ("segment_alloc", 0x1000000, 2 * MIB),
                    ("alloc", 0x1000000, 500),
                    ("alloc", 0x1000200, 4000),
                    ("free_requested", 0x1000200, 4000),
                    ("free_completed", 0x1000200, 4000),
                    ("snapshot", 0, 0),
                ]
            )
        ]
    ],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "expandable_segments": False,
    },
    "external_annotations": [],
}
CHAKRA_JSON: dict[str, Any] = {
    "workload_graph": [
        {
            "Id": i,
            "Name": name,
            "NodeType": kind,
            "data_deps": deps,
            "runtime": took,
            "is_cpu_op": host,
        }
        for i, name, kind, deps, took, host in (
            (1, "aten::mm(0)", 4, [], 5, True),
            (2, "gemm", 4, [1], 40, False),
            (3, "sum", 7, [2], 30, False),
        )
    ]
}


def text(value: Any) -> bytes:
    """Data as JSON."""
    return json.dumps(value, indent=1).encode()


def nsys() -> bytes:
    """An export of Nsight Systems with two kernels, a copy, calls and a synchronisation."""
    from hosim.io.importers.recordings import read_kineto

    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "toy.json"
        recorded.write_bytes(text(step()))
        export = Export(os.path.join(folder, "x.sqlite"))
        export.trace(read_kineto(recorded))
        for time, size in ((5, 512), (9, -512)):
            export.memory(time, 0x1000, size)
        return Path(export.close()).read_bytes()


def folder_files(make: Any) -> dict[str, bytes]:
    """The files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def recording() -> dict[str, bytes]:
    """A folder of the recording kit, with one step; its trace is not compressed again by
    changes.
    """
    copies = sweep(1000)
    copies["copies"] = [row | {"ns": row["ns"] * 3} for row in copies["copies"]]
    runs = {"resident": ([2_000_000], 200_000_000), "offload-optimizer": ([3_000_000], 100_000_000)}
    return folder_files(lambda folder: write(folder, True, 1 << 20, 5_000_000, copies, runs))


def kineto() -> bytes:
    """A trace of PyTorch's profiler."""
    return text(step())


def beside_kineto() -> bytes:
    """The execution trace of the same run."""
    return text(execution_trace())


def gguf() -> bytes:
    """The header of a small mixture, without its long vocabulary."""
    metadata, weights = GGUF_MODELS["qwen3moe"]
    return gguf_of(
        {key: value for key, value in metadata.items() if not key.startswith("tokenizer.")}, weights
    )


def chakra() -> bytes:
    """A Chakra trace in protobuf."""
    return chakra_stream()


_SERVED = {"output_tokens": 3, "queued_s": 0, "first_token_s": 1, "last_token_s": 2}
REQUESTS = b"\n".join(
    json.dumps(_SERVED | request).encode()
    for request in (
        {"arrival_s": 0, "prompt_tokens": 40, "prefix_blocks_of_16": [1, 2], "priority": 1},
        {
            "timestamp": 5,
            "input_length": 20,
            "output_length": 2,
            "output_tokens": 2,
            "hash_ids": [1],
        },
    )
)
"""Two requests, with what a server did with them."""
CONVERSATIONS = json.dumps(
    [
        {
            "conversations": [
                {"from": "human", "value": "What is a cache?"},
                {"from": "gpt", "value": "A copy that is nearer."},
                {"from": "human", "value": "Than what?", "tokens": 3},
                {"from": "gpt", "value": "Than its home.", "tokens": 4},
            ]
        }
    ]
).encode()
"""A conversation as ShareGPT has it."""


def hyper_parallel() -> bytes:
    """An activation trace."""
    return text(GOOD)


def g10() -> dict[str, bytes]:
    """The two files of the G10 simulator."""
    return folder_files(write_g10)


def unpacked(name: str) -> bytes:
    """A file of the importers' tests, unpacked if it is gzip."""
    content = (DATA / name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content


def pt2() -> bytes:
    """A program of one linear layer and a buffer, with a batch that may vary, as torch 2.13 saved
    it.
    """
    return (HERE / "seeds" / "toy.pt2").read_bytes()


def small_torch_trace() -> bytes:
    """The first nodes of the recorded execution trace."""
    whole = json.loads(unpacked("torch_trace_mlp.json.gz"))
    return text(whole | {"nodes": whole["nodes"][:40]})


def pickled(value: Any) -> bytes:
    """A value as a pickle of the protocol that torch writes."""
    return pickle.dumps(value, 4)


_WIDTHS = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "mixtral": {
        **_WIDTHS,
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 512,
        "max_position_embeddings": 4096,
    },
    "deepseek": {
        **_WIDTHS,
        "model_type": "deepseek_v3",
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 2,
    },
    "gemma": {
        "model_type": "gemma3",
        "text_config": {
            **_WIDTHS,
            "model_type": "gemma3_text",
            "num_key_value_heads": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 512,
            "final_logit_softcapping": 30.0,
        },
        "vision_config": {},
    },
    "falcon": {
        "model_type": "falcon",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2,
        "bias": True,
        "alibi": True,
        "vocab_size": 100,
    },
    "mpt": {
        "model_type": "mpt",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 100,
        "attn_config": {"alibi": True, "qk_ln": False},
    },
    "phi": {
        **_WIDTHS,
        "model_type": "phi3",
        "rope_parameters": {"partial_rotary_factor": 0.75},
        "resid_pdrop": 0.1,
    },
    "gpt-oss": {
        **_WIDTHS,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "t5": {
        "model_type": "t5",
        "d_model": 64,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": 16,
        "d_ff": 96,
        "vocab_size": 100,
        "dropout_rate": 0.1,
        "feed_forward_proj": "gated-gelu",
        "num_decoder_layers": 1,
    },
    "whisper": {
        "model_type": "whisper",
        **{
            f"{half}_{part}": n
            for half in ("encoder", "decoder")
            for part, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
        },
        "d_model": 64,
        "vocab_size": 100,
        "num_mel_bins": 8,
        "max_source_positions": 30,
    },
    "vit": {
        **_WIDTHS,
        "model_type": "vit",
        "image_size": 32,
        "patch_size": 8,
        "id2label": {"0": "cat", "1": "dog"},
    },
}
"""Configs of models as transformers writes them."""


def of_commands(run: Any) -> Mapping[str, bytes]:
    """Files that hosim writes itself, by name; ``run`` gives the outcome of commands on files."""
    base = {
        "w.json": text(WORKLOAD),
        "m.yaml": text(HARDWARE),
        "plan.json": text(PLAN),
        "hosim.toml": CASES.encode(),
    }
    made = dict(base)
    made["result.json"] = run(
        ["replay", "plan.json", "w.json", "-H", "m.yaml", "--json"], base
    ).stdout
    made["comparison.json"] = run(
        ["compare-policies", "w.json", "-H", "m.yaml", "-p", "layerwise,resident", "--json"], base
    ).stdout
    written = run(["baseline", "write", "-j", "1", "--no-cache"], base).files
    made |= {
        name: content for name, content in written.items() if name.startswith("hosim-baselines/")
    }
    rows = [
        "sweep",
        "w.json",
        "-H",
        "m.yaml",
        "-p",
        "layerwise",
        "--vary",
        "budget=60%,80%,100%",
        "-o",
        "rows.csv",
        "-j",
        "1",
    ]
    made["rows.csv"] = run(rows, base).files["rows.csv"]
    return made
