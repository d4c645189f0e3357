"""An example of each command, for its help."""

from __future__ import annotations

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
    "robustness": ("hosim robustness llama-3.1-8b-prefill-4k -H h100 -b 12GiB -p hyperoffload,layerwise --runs 20",),
    "pipeline": (
        "hosim pipeline llama-3.1-8b:phase=train:pipeline=4:micro_batches=8 -H h100",
        "hosim pipeline first.json last.json -H h100 --trace step.json",
    ),
    "sweep": (
        "hosim sweep llama-3.1-8b-prefill-4k -H h100 -b 12GiB --vary channels.h2d.bandwidth=10..50GB/s:5 -o bandwidth.csv",
        "hosim sweep llama-3.1-8b-prefill-32k -H gh200 --vary workload.sequence=4096,8192 --vary budget=50..100%:6",
    ),
    "frontier": ("hosim frontier llama-3.1-8b-prefill-4k -H h100",),
    "fit": (
        "hosim fit llama-3.1-8b-prefill-32k -H h100 -b 12GiB --largest workload.sequence=1024..65536:64 --slowdown 1.05",
        "hosim fit llama-3.1-8b-prefill-4k -H h100 -b 12GiB --smallest channels.h2d.bandwidth=5..55GB/s:51 --slowdown 1.01",
    ),
    "serve": (
        "hosim serve llama-3.1-8b -H h100 --requests requests.jsonl",
        "hosim serve llama-3.1-8b -H h100 --requests poisson:rate=10 --limit ttft=2s,tpot=100ms --plot served.png",
        "hosim serve llama-3.1-8b -H h100 --requests requests.jsonl --measured server.jsonl --fit-first 100",
    ),
    "serve-sweep": (
        "hosim serve-sweep llama-3.1-8b -H h100 --requests poisson:rate=10:count=300 --vary requests.rate=5..25:5 --seeds 3",
        "hosim serve-sweep llama-3.1-8b -H h100 --requests requests.jsonl --vary blocks=2000,4000,8000 --limit ttft=2s -o blocks.csv",
    ),
    "serve-fit": (
        "hosim serve-fit llama-3.1-8b -H h100 --requests poisson:rate=10:count=300 --largest requests.rate=1..50 --within ttft.p95=2s",
    ),
    "serve-frontier": (
        "hosim serve-frontier llama-3.1-8b -H h100 --requests poisson:rate=20:count=300 --vary blocks=1000,2000,4000,8000",
        "hosim serve-frontier llama-3.1-8b -H h100 --requests requests.jsonl --vary model.tensor=1,2,4 --against devices "
        "--of goodput --limit ttft=2s",
    ),
    "check": ("hosim check", "hosim check --junit report.xml --summary report.md"),
    "baseline": ("hosim baseline write", "hosim baseline show llama"),
    "import": ("hosim import model.onnx -o model.json", "hosim import model.pt2 -o model.json --dim batch=4"),
    "import-kernels": ("hosim import-kernels measured.csv -o kernels.csv",),
    "export": (
        "hosim export bert-large-train -H h100 -b 75% --mindspore -o offload.sh",
        'eval "$(hosim export bert-large-train -H ascend-910c-supernode -b 20GiB --mindspore)"',
    ),
    "validate": ("hosim validate trace.json.gz --html report.html",),
    "calibrate": ("hosim calibrate trace.json.gz --base h100 -o mine.yaml",),
    "policies": ("hosim policies", "hosim policies --json"),
    "schema": ("hosim schema plan",),
    "notebooks": ("hosim notebooks my-folder",),
    "doctor": ("hosim doctor",),
    "workload": ("hosim workload list", "hosim workload models", "hosim workload show llama-3.1-8b-prefill-4k -H h100"),
    "hardware": ("hosim hardware list", "hosim hardware show h100"),
    "runtime": ("hosim runtime list", "hosim runtime show torchtitan-compiled"),
}
"""Lines for a shell, by command."""


def epilog(command: str) -> str:
    """The last paragraph of a command's help, whose lines are not broken anew."""
    lines = EXAMPLES[command]
    return "\n".join(["\b", f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])
