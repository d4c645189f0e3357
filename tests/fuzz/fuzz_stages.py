"""Several files that belong together: recordings of the ranks of one program, and the stages of a
pipeline with their messages.
"""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

import fuzz_seeds as seeds
from fuzz_values import other_text

RANKS: tuple[tuple[list[int], list[int], float], ...] = (
    ([100, 300], [200, 100], 0),
    ([200, 100], [100, 300], 777),
)
"""Of each rank the microseconds of its work in each step and those of the other's, and when its
clock begins.
"""


def ranks() -> dict[str, bytes]:
    """The traces of two ranks whose collectives wait for each other."""
    from test_rank_replay import document

    return {
        f"r{n}.json": seeds.text(document(mine, others, clock))
        for n, (mine, others, clock) in enumerate(RANKS)
    }


def _stage(number: int, last: int) -> dict[str, Any]:
    """A stage of a pipeline: it receives activations, computes, sends them on, and meets all others
    in a collective.
    """
    before, after = number > 0, number < last
    exchange = {"stream": "comm", "duration_ns": 20}
    ops: list[dict[str, Any]] = (
        [{"name": "in", "kind": "recv", "outputs": ["x"], "message": f"acts {number}", **exchange}]
        if before
        else []
    )
    ops.append(
        {
            "name": "f",
            "kind": "matmul",
            "inputs": ["w", *(["x"] if before else [])],
            "outputs": ["y"],
            "duration_ns": 100,
        }
    )
    if after:
        ops.append(
            {
                "name": "out",
                "kind": "send",
                "inputs": ["y"],
                "message": f"acts {number + 1}",
                **exchange,
            }
        )
    ops.append(
        {
            "name": "g",
            "kind": "all_reduce",
            "inputs": ["y"],
            "mutates": ["w"],
            "message": "grads",
            "sizes": [3, 400],
            **exchange,
        }
    )
    tensors = [
        {"name": "w", "bytes": 400, "kind": "parameter", "home": "ddr"},
        {"name": "y", "bytes": 30},
    ]
    tensors += [{"name": "x", "bytes": 30}] if before else []
    return {"format": "hosim.workload/1", "name": f"stage {number}", "tensors": tensors, "ops": ops}


def stages() -> dict[str, bytes]:
    """The workloads of three stages that are tied by messages."""
    return {f"s{n}.json": seeds.text(_stage(n, 2)) for n in range(3)}


def changed_messages(draw: Random, content: bytes) -> bytes:
    """A stage whose exchanges do not fit those of the others: gone, twice, renamed, of another
    size, or in another order.
    """
    stage: Any = json.loads(content)
    ops, tensors = stage["ops"], stage["tensors"]
    for _ in range(draw.choice((1, 1, 2, 3))):
        tied = [op for op in ops if op.get("message")] or ops
        op, other = draw.choice(tied), draw.choice(ops)
        way = draw.randrange(10)
        if way == 0 and len(ops) > 1:
            ops.remove(op)
        elif way == 1:
            op["message"] = draw.choice(
                (
                    draw.choice(tied).get("message", ""),
                    other_text(draw, op.get("message", "")),
                    "",
                    "acts 1",
                    "grads",
                )
            )
        elif way == 2:
            op.pop("message", None)
        elif way == 3:
            ops.insert(
                draw.randrange(len(ops) + 1),
                deepcopy(op) | {"name": draw.choice((op["name"], f"{op['name']} again"))},
            )
        elif way == 4:
            tensor = draw.choice(tensors)
            tensor["bytes"] = draw.choice(
                (0, 1, 29, 31, tensor["bytes"] * 2, 2**63 - 1, 2**62, 5000)
            )
        elif way == 5:
            draw.shuffle(ops) if draw.random() < 0.5 else ops.reverse()
        elif way == 6:
            op["kind"] = draw.choice(
                (
                    "send",
                    "recv",
                    "all_reduce",
                    "all_gather",
                    "wait_tensor",
                    "matmul",
                    "barrier",
                    "broadcast",
                )
            )
        elif way == 7:
            other["stream"] = draw.choice(("compute", "comm", "third"))
        elif way == 8:
            other["deps"] = [draw.choice(ops)["name"]]
        else:
            op["duration_ns"] = draw.choice((0, 1, 10**6, 2**62, 2**63 - 1, None))
            op["sizes"] = draw.choice(([], [3], [2, 400], [3, 2**62], [0, 0]))
            op["kernel"] = draw.choice(("", "all_reduce", "gemm"))
    return seeds.text(stage)
