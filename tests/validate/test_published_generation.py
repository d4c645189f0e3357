"""Generation that others timed, with weights on a GPU, in host memory or on drives, beside what
policies take on shipped profiles.
"""

from dataclasses import replace

import pytest
from published_rows import FILE, generated, generation_graph

from hosim.hardware import Hardware
from hosim.io import load_hardware
from hosim.shipped import find_hardware
from hosim.study.asked import parse_choice
from hosim.study.runs import make_plan, replay

ROWS = generated() if FILE.is_file() else {}

pytestmark = pytest.mark.skipif(not ROWS, reason=f"no {FILE}")


def step_ns(row: str, hardware: Hardware, policy: str, phase: str, cache_home: str | None) -> int:
    budget = hardware.device.capacity_bytes
    plan = make_plan(
        generation_graph(ROWS[row], phase, cache_home), hardware, parse_choice(policy), budget
    )
    makespan = replay(plan, hardware, budget, bounds=False).makespan_ns
    assert makespan is not None
    return makespan


@pytest.mark.parametrize(
    ("row", "machine", "policy", "cache_home"),
    [
        ("flexgen-opt-6.7b-t4", "t4", "resident", None),
        ("zero-inference-opt-30b-t4", "t4", "layerwise", None),
        (
            "zero-inference-llama3-70b-nvme",
            "h100-96gb",
            "layerwise:placement=by_kind/parameter=nvme",
            None,
        ),
        (
            "zero-inference-llama2-70b-a6000",
            "a6000",
            "layerwise",
            "ddr",
        ),  # what DeepSpeed keeps in host memory is pageable by default
    ],
)
def test_generation(compared, row, machine, policy, cache_home) -> None:
    """A prompt, and as many decoding steps as tokens after the first, all with the cache as it is
    half-way.
    """
    hardware = load_hardware(find_hardware(machine))
    if cache_home is not None:
        pageable = ("parameter", "kv_cache")
        hardware = replace(
            hardware,
            tiers=tuple(
                [
                    replace(t, pageable=pageable) if t.name == cache_home else t
                    for t in hardware.tiers
                ]
            ),
        )
    run = ROWS[row].run
    prompt, decode = (
        step_ns(row, hardware, policy, phase, cache_home) for phase in ("prefill", "decode")
    )
    tokens = run["batch"] * run["generate"] * 1e9 / (prompt + (run["generate"] - 1) * decode)
    compared(
        "FlexGen" if row.startswith("flexgen") else "DeepSpeed",
        row,
        "tokens a second",
        ROWS[row].figure,
        tokens,
        within=0.15,
    )
