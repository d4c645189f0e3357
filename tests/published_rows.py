"""Published times of steps beside the project, and the graphs of the models that they were measured
with.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hosim.graph import Graph
from hosim.io.models import build

FILE = Path(__file__).parents[2] / "shared" / "data" / "published" / "published.csv"

_DECODER = "llama-3.1-8b"
_MIXTURE = "qwen3-30b-a3b"
_UNITS = {"ms": 1e-3, "s": 1.0, "tokens/s": 0.0, "GiB": 2.0**30}
MACHINES = ("a100-80gb-sxm", "h100-80gb-sxm")
_RUN = ("batch", "sequence", "context", "tensor", "attention")


@dataclass(frozen=True)
class PublishedRow:
    """A row of the file: ``run`` and ``model`` as it says them; ``figure``: seconds of a step,
    bytes of memory, or tokens a second.
    """

    id: str
    machine: str
    model: Any
    phase: str
    run: dict[str, Any]
    figure: float


def published(phases: tuple[str, ...]) -> list[PublishedRow]:
    """The rows of these phases on machines that hosim ships."""
    rows = []
    for row in csv.DictReader(FILE.read_text().splitlines()):
        if (
            row["phase"] not in phases
            or row["unit"] not in _UNITS
            or row["machine"] not in MACHINES
        ):
            continue
        run, model = (
            json.loads(row["run"]),
            json.loads(row["model"]) if row["model"].startswith("{") else row["model"],
        )
        value = float(row["value"])
        tokens = run["batch"] * (run["sequence"] if row["phase"] == "train" else 1)
        figure = tokens / value if row["unit"] == "tokens/s" else value * _UNITS[row["unit"]]
        rows.append(PublishedRow(row["id"], row["machine"], model, row["phase"], run, figure))
    return rows


def generated() -> dict[str, PublishedRow]:
    """The rows of whole generations, by id."""
    read = csv.DictReader(FILE.read_text().splitlines())
    rows = [row for row in read if row["phase"] == "generate"]
    return {
        r["id"]: PublishedRow(
            r["id"],
            r["machine"],
            json.loads(r["model"]),
            r["phase"],
            json.loads(r["run"]),
            float(r["value"]),
        )
        for r in rows
    }


def generation_graph(
    row: PublishedRow, phase: str, cache_home: str | None, **parameters: Any
) -> Graph:
    """The prompt of a generation, or the decoding step half-way through it; ``parameters`` are more
    of the builder's.
    """
    half = row.run["prompt"] + row.run["generate"] // 2
    tokens = {"sequence": row.run["prompt"]} if phase == "prefill" else {"context": half}
    home = {} if cache_home is None else {"cache_home": cache_home}
    step = replace(row, phase=phase, run={"batch": row.run["batch"], **tokens})
    return graph_of_row(step, parameters={"dtype": "fp16", **home, **parameters})


def graph_of_row(
    row: PublishedRow, parameters: Mapping[str, Any] = MappingProxyType({}), **config: Any
) -> Graph:
    """The step on one device, with fused kernels as an inference engine or a compiler has them;
    ``config`` has more of the model.
    """
    model = row.model if isinstance(row.model, str) else _DECODER
    parameters = {"model": model, "phase": row.phase, "fused": True, **parameters}
    parameters |= {key: row.run[key] for key in _RUN if key in row.run}
    if isinstance(row.model, dict):
        said = {**row.model, **config}
        said.setdefault("intermediate_size", said.pop("ffn_hidden_size", None))
        if "num_experts" in said:
            parameters["model"] = _MIXTURE
            said |= {
                "qk_norm": False,
                "moe_intermediate_size": said.get(
                    "moe_intermediate_size", said["intermediate_size"]
                ),
            }
        parameters["config"] = said
    if row.phase != "train":
        parameters["merged"] = True
    else:
        parameters |= {
            "checkpoint": row.run.get("checkpoint") is True,
            "main_gradients": row.id.startswith("megatron"),
        }
    return build(row.id, parameters)
