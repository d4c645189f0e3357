"""An example of each command, for its help."""

from __future__ import annotations

from collections.abc import Sequence

EXAMPLES = {
    "compare-policies": (
        "hosim compare-policies llama-3.1-8b-prefill-4k -H h100 -b 12GiB -p hyperoffload,layerwise",
        "hosim compare-policies llama-3.1-8b-prefill-4k -H h100,a100,rtx-4090",
    ),
    "plan": (
        "hosim plan llama-3.1-8b-prefill-4k -H h100 -b 12GiB -o plan.json",
        "hosim plan llama-3.1-8b-prefill-4k -H h100 -b 12GiB --explain",
    ),
    "replay": ("hosim replay plan.json llama-3.1-8b-prefill-4k -H h100 -b 12GiB --plot step.png",),
    "blame": ("hosim blame llama-3.1-8b-prefill-4k -H h100 -b 8GiB --policy layerwise --top 5",),
    "diff": (
        "hosim diff before.json after.json --workload llama-3.1-8b-prefill-4k",
        "hosim diff layerwise hyperoffload -w llama-3.1-8b-prefill-4k -H h100 -b 12GiB",
    ),
    "robustness": (
        "hosim robustness llama-3.1-8b-prefill-4k -H h100 -b 12GiB -p hyperoffload,layerwise "
        "--runs 20",
    ),
    "pipeline": (
        "hosim pipeline llama-3.1-8b:phase=train:pipeline=4:micro_batches=8 -H h100",
        "hosim pipeline first.json last.json -H h100 --trace step.json",
    ),
    "sweep": (
        "hosim sweep llama-3.1-8b-prefill-4k -H h100 -b 12GiB --vary "
        "channels.h2d.bandwidth=10..50GB/s:5 -o bandwidth.csv",
        "hosim sweep llama-3.1-8b-prefill-32k -H gh200 --vary workload.sequence=4096,8192 --vary "
        "budget=50..100%:6",
    ),
    "frontier": ("hosim frontier llama-3.1-8b-prefill-4k -H h100",),
    "fit": (
        "hosim fit llama-3.1-8b-prefill-32k -H h100 -b 12GiB --largest "
        "workload.sequence=1024..65536:64 --slowdown 1.05",
        "hosim fit llama-3.1-8b-prefill-4k -H h100 -b 12GiB --smallest "
        "channels.h2d.bandwidth=5..55GB/s:51 --slowdown 1.01",
    ),
    "fits": (
        "hosim fits meta-llama/Llama-3.1-8B --batch 8 --sequence 4096 --optimizer adamw "
        "--runtime hf-trainer -H rtx-4090",
        "hosim fits qwen3-32b:phase=decode --batch 32 --sequence 32768 --runtime vllm -H h100",
        "hosim fits shop/model.py:step -H h100",
    ),
    "atlas": (
        "hosim atlas llama-3.1-8b,llama-3.1-8b:weights=int4 -H rtx-4090,h100 --contexts 8192 "
        "--html atlas.html",
    ),
    "check": ("hosim check", "hosim check --junit report.xml --summary report.md"),
    "baseline": ("hosim baseline write", "hosim baseline show llama"),
    "ci": ("hosim ci init shop.model:example -H h100",),
    "import": (
        "hosim import model.onnx -o model.json",
        "hosim import model.pt2 -o model.json --dim batch=4",
    ),
    "import-kernels": ("hosim import-kernels measured.csv -o kernels.csv",),
    "validate": ("hosim validate trace.json.gz --html report.html",),
    "calibrate": ("hosim calibrate trace.json.gz --base h100 -o mine.yaml",),
    "policies": ("hosim policies", "hosim policies --json"),
    "schema": ("hosim schema plan",),
    "notebooks": ("hosim notebooks my-folder",),
    "doctor": ("hosim doctor",),
    "workload": (
        "hosim workload list",
        "hosim workload models",
        "hosim workload show llama-3.1-8b-prefill-4k -H h100",
    ),
    "hardware": ("hosim hardware list", "hosim hardware show h100"),
    "runtime": (
        "hosim runtime list",
        "hosim runtime show torchtitan-compiled",
        "hosim runtime fit my.log --base torchtune -o mine.yaml",
    ),
}
"""Lines for a shell, by command."""


def epilog(lines: Sequence[str]) -> str:
    """The last paragraph of a command's help: its examples, whose lines are not broken anew."""
    return "\n".join(
        ["\b", f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)]
    )
