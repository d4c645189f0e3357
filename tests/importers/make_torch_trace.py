"""Records ``data/torch_trace_mlp.json.gz``: the execution trace of one training step of a small
network on the CPU.

Run as ``python tests/importers/make_torch_trace.py``; made with torch 2.13.0.
"""

import gzip
import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ExecutionTraceObserver

HERE = Path(__file__).parent
OF_THE_MACHINE = {"pid", "time", "start_ts", "finish_ts"}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    batch = torch.randn(32, 64)
    step(model, optimizer, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(path))
        observer.start()
        step(model, optimizer, batch)
        observer.stop()
        observer.unregister_callback()
        trace = json.loads(path.read_text())
    kept = {key: value for key, value in trace.items() if key not in OF_THE_MACHINE}
    (HERE / "data" / "torch_trace_mlp.json.gz").write_bytes(
        gzip.compress(json.dumps(kept).encode(), mtime=0)
    )


if __name__ == "__main__":
    main()
