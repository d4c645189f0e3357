"""Steps that others timed, beside what hosim says of them with its shipped profiles."""

from dataclasses import replace
from statistics import geometric_mean

import pytest
from published_rows import FILE, PublishedRow, graph_of_row, published

from hosim.analysis.liveness import static_peak
from hosim.cache_plan import Plan
from hosim.costmodel.op_time import op_durations
from hosim.engine import replay
from hosim.io import find_hardware, load_hardware
from hosim.models.build import build

ROWS = published(("prefill", "decode")) if FILE.is_file() else []
COMPOSED = [row for row in ROWS if row.id.startswith("aic")]
END_TO_END = [row for row in ROWS if not row.id.startswith("aic")]
TRAINED = {row.id: row for row in published(("train",))} if FILE.is_file() else {}
SHARDED = [row for row in TRAINED.values() if not row.id.startswith("megatron")]

pytestmark = pytest.mark.skipif(not ROWS, reason=f"no {FILE}")


def step_ns(row: PublishedRow) -> int:
    """The ops of these graphs follow one another."""
    return sum(op_durations(graph_of_row(row), load_hardware(find_hardware(row.machine))))


@pytest.mark.parametrize("row", COMPOSED, ids=lambda row: row.id)
def test_steps_composed_of_measured_kernels(compared, row) -> None:
    compared("aiconfigurator", row.id, "step, ns", row.figure * 1e9, step_ns(row), within=0.1)


@pytest.mark.parametrize("row", END_TO_END, ids=lambda row: row.id)
def test_steps_measured_end_to_end(compared, row) -> None:
    """These have what the host and waits between devices take: eight devices that share a small model are the worst."""
    compared("gpt-fast", row.id, "step, ns", row.figure * 1e9, step_ns(row), within=0.25)


@pytest.mark.parametrize(
    ("model", "weights", "tokens"),
    [
        ("llama-2-7b", {"weights": "int8"}, 155.58),
        ("llama-2-7b", {"weights": "uint4", "group": 32}, 196.80),
        ("llama-2-70b", {"weights": "int8"}, 19.13),
        ("llama-2-70b", {"weights": "uint4", "group": 32}, 25.25),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_packed_weights(compared, model, weights, tokens) -> None:
    """The table of gpt-fast's README, one A100 limited to 330 W; it packs the output layer, too."""
    graph = build(model, {"model": model, "phase": "decode", "context": 105, "fused": True, "merged": True, **weights})
    seconds = sum(op_durations(graph, load_hardware(find_hardware("a100-80gb-sxm")))) / 1e9
    compared("gpt-fast", f"{model}, {weights['weights']}", "tokens a second", tokens, 1 / seconds, within=0.15)


def test_the_mean_error_of_the_rows_composed_of_kernels(compared) -> None:
    errors = [abs(step_ns(row) / row.figure / 1e9 - 1) for row in COMPOSED]
    compared("aiconfigurator", "prefill and decode", f"mean error of {len(errors)} steps", 0.0, sum(errors) / len(errors), slack=0.05)


def test_a_step_of_training_without_sharding(compared) -> None:
    row = TRAINED["megatron-22b-full-recompute"]
    compared("Megatron-LM", row.id, "step, ns", row.figure * 1e9, step_ns(row), within=0.1)


def test_the_memory_of_training(compared) -> None:
    """With the masks of dropout and tied embeddings, which the account of the row has."""
    row = TRAINED["megatron-22b-memory"]
    graph = graph_of_row(row, dropout=0.1, attention_dropout=0.1, tie_word_embeddings=True)
    compared("Calculon", row.id, "peak, B", row.figure, static_peak(graph).bytes, within=0.02)


def sharded_ns(row: PublishedRow) -> int:
    """The step of one of 8 devices with FSDP. torch.compile's selective recomputation keeps half of the products, hosim's all."""
    hardware = load_hardware(find_hardware(row.machine))
    checkpoint = row.run["checkpoint"]
    parameters = {"data": 8, "zero": 3, "checkpoint": bool(checkpoint), "selective": checkpoint == "selective"}
    graph = graph_of_row(replace(row, run={**row.run, "checkpoint": bool(checkpoint)}), parameters=parameters)
    room = static_peak(graph).bytes * 2  # the memory of the row's machine is not what is asked
    tiers = [replace(t, capacity_bytes=max(room, t.capacity_bytes)) if t.name == hardware.device_tier else t for t in hardware.tiers]
    makespan = replay(Plan(graph, "resident", ()), replace(hardware, tiers=tuple(tiers)), room).makespan_ns
    assert makespan is not None
    return makespan


@pytest.mark.long
def test_sharded_training_by_one_sustained_factor_a_machine(compared) -> None:
    """hosim's kernels are those of an engine at full clock, which these steps do not reach: by how much they differ beside one factor."""
    for machine in sorted({row.machine for row in SHARDED}):
        rows = [row for row in SHARDED if row.machine == machine]
        plain = [sharded_ns(row) / 1e9 / row.figure for row in rows]
        factor = geometric_mean(plain)
        compared("others", machine, "share of hosim's speed that steps with FSDP sustain", 1.0, factor, slack=0.45)
        for row, share in zip(rows, plain, strict=True):
            compared("others", row.id, "step with FSDP by that factor, ns", row.figure * 1e9, row.figure * 1e9 * share / factor, within=0.3)
