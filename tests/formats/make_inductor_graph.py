"""Writes ``data/inductor_mlp.json``: the graph that inductor exports for a simulator, of a small
network compiled for the CPU.

Run as ``python tests/formats/make_inductor_graph.py``; made with torch 2.13.0. Inductor hands the
JSON to torch's structured log, from where it is taken here.
"""

from pathlib import Path

import torch
import torch._inductor.config
import torch._inductor.memory

DATA = Path(__file__).parents[1] / "importers/data"


def main() -> None:
    kept = {}

    def keep(kind, metadata_fn=dict, payload_fn=str, **_):
        metadata = metadata_fn()
        if kind == "artifact" and str(metadata.get("name", "")).endswith("_fused"):
            kept[metadata["name"]] = payload_fn()

    torch._logging.trace_structured = keep
    torch._inductor.config.reorder_for_peak_memory = True
    torch._inductor.config.reorder_for_peak_memory_debug = True
    torch._inductor.config.force_disable_caches = True
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)
    ).eval()
    x = torch.randn(32, 64)
    with torch.no_grad():
        torch.compile(lambda a: model(a + 1).softmax(-1))(x)
    assert len(kept) == 1, sorted(kept)
    (DATA / "inductor_mlp.json").write_text(next(iter(kept.values())) + "\n")


if __name__ == "__main__":
    main()
