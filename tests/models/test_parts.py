"""Parts of tensors: what moves is what is read, what goes back is what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts
from wholes import wholes

import hosim
from hosim.analysis import static_peak
from hosim.engine import resident_step
from hosim.errors import GraphError, InputError
from hosim.graph import Graph
from hosim.io.models import build

MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v3")
DENSE = ("gpt2", "llama-3.2-1b", "gemma-2-2b", "t5-large", "bloom-560m")
KEPT = ("parameter", "expert", "kv_cache", "buffer")


def held(graph: Graph) -> dict[str, int]:
    """Of each whole tensor of the model its bytes, by name."""
    return wholes(graph, lambda tensor: tensor.kind in KEPT)


def used(graph: Graph, whole: str) -> set[str]:
    """The parts of a tensor that ops use."""
    return {
        tensor.name
        for tensor, users in zip(graph.tensors, graph.users, strict=True)
        if tensor.whole == whole and users
    }


@given(
    model=st.sampled_from(MIXTURES + DENSE),
    phase=st.sampled_from(["decode", "prefill"]),
    batch=st.integers(1, 40),
    tokens=st.integers(1, 90),
    merged=st.booleans(),
    steps=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_parts_add_up_to_the_wholes(
    model: str, phase: str, batch: int, tokens: int, merged: bool, steps: int, seed: int
) -> None:
    if model == "t5-large":
        phase, merged = "decode", False
    asked = {
        "model": model,
        "phase": phase,
        "batch": batch,
        "layers": 2,
        **({"merged": True} if merged else {}),
    }
    asked |= {"context" if phase == "decode" else "sequence": tokens}
    whole = build("x", {**asked, "routing": None})
    drawn = build("x", asked)
    several = (
        build("x", {**asked, "routing": {"steps": steps, "seed": seed}})
        if "routing" in drawn.meta
        else drawn
    )
    assert held(whole) == held(drawn) == held(several)
    assert [(op.name, op.flops, op.bytes_accessed, op.kernel, op.sizes) for op in drawn.ops] == [
        (op.name, op.flops, op.bytes_accessed, op.kernel, op.sizes) for op in whole.ops
    ]
    assert static_peak(drawn).bytes == pytest.approx(static_peak(whole).bytes, rel=0.02)


def test_a_step_reads_what_was_in_its_cache_and_writes_one_token() -> None:
    """Of 2 heads of 64 elements for each of 3 sequences."""
    graph = hosim.load("llama-3.2-1b:phase=decode:batch=3:context=100:layers=1:tensor=4")
    token = 3 * 2 * 64 * 2
    cache = {t.name.rpartition(".")[2]: t.size_bytes for t in graph.tensors if t.kind == "kv_cache"}
    assert cache == {
        "k_cache[past]": 99 * token,
        "k_cache[new]": token,
        "v_cache[past]": 99 * token,
        "v_cache[new]": token,
    }
    written = {
        graph.tensors[t].name.rpartition(".")[2]
        for op in graph.ops
        for t in op.writes
        if graph.tensors[t].kind == "kv_cache"
    }
    assert written == {"k_cache[new]", "v_cache[new]"}
    first = hosim.load("llama-3.2-1b:phase=decode:context=1:layers=1")
    assert [t.name.rpartition(".")[2] for t in first.tensors if t.kind == "kv_cache"] == [
        "k_cache",
        "v_cache",
    ]  # nothing was there


@pytest.mark.parametrize("merged", [False, True])
def test_tokens_go_back_and_the_cache_does_not(merged: bool) -> None:
    step = {
        "model": "llama-3.1-8b",
        "phase": "decode",
        "context": 65536,
        "batch": 4,
        "layers": 3,
        "cache_home": "ddr",
        "merged": merged,
    }
    (row,) = hosim.compare(step, "h100", "static_split").to_dict("records")
    token = 3 * 2 * 4 * 8 * 128 * 2
    assert row["d2h_moved_bytes"] == token
    assert row["h2d_moved_bytes"] == 65535 * token


def test_a_prompt_writes_its_cache_unread() -> None:
    graph = hosim.load("llama-3.2-1b:phase=prefill:sequence=64:layers=1:cache_home=ddr")
    assert not any(
        [graph.tensors[t].kind == "kv_cache" for op in graph.ops for t in (*op.inputs, *op.mutates)]
    )
    (row,) = hosim.compare(graph, "h100", "static_split").to_dict("records")
    assert (row["h2d_moved_bytes"], row["d2h_moved_bytes"]) == (0, 2 * 64 * 8 * 64 * 2)


@pytest.mark.parametrize(
    ("asked", "rows"), [("phase=decode:batch=2", 2), ("phase=prefill:batch=1:sequence=7", 7)]
)
def test_rows_of_a_table_are_read(asked: str, rows: int) -> None:
    graph = hosim.load(f"llama-3.1-8b:layers=1:{asked}")
    name = "model.embed_tokens.weight"
    assert used(graph, name) == {f"{name}[read]"}
    assert graph.tensors[graph.tensor_index[f"{name}[read]"]].size_bytes == rows * 4096 * 2
    tied = hosim.load(f"gemma-2-2b:layers=1:{asked}")
    assert used(tied, name) == {f"{name}[read]", f"{name}[rest]"}  # the head reads all


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("batch", "count"), [(1, 8), (4, 29), (512, 128)])
def test_as_many_experts_are_read_as_tokens_choose(merged: bool, batch: int, count: int) -> None:
    """Of 128 experts of which each token chooses 8, four tokens choose 128 * (1 - (15/16)^4) =
    29.
    """
    graph = build(
        "x",
        {
            "model": "qwen3-30b-a3b",
            "phase": "decode",
            "batch": batch,
            "layers": 1,
            "merged": merged,
        },
    )
    names = [name for name in held(graph) if name.endswith("_proj") and "mlp" in name]
    assert len(names) == 2
    for name in names:
        parts = used(graph, name)
        assert len(parts) == (count if count < 128 else 1)
        own = {graph.tensors[graph.tensor_index[part]].size_bytes for part in parts}
        assert own == {held(graph)[name] // (128 if count < 128 else 1)}
    assert (count < 128) == any(["is drawn" in line for line in graph.meta.get("assumed", ())])


def test_training_has_whole_tensors() -> None:
    for model in ("qwen3-30b-a3b", "gpt2"):
        graph = build("x", {"model": model, "phase": "train", "sequence": 4, "layers": 1})
        assert all([not tensor.of for tensor in graph.tensors])


def test_experts_that_no_step_chooses_are_one_part() -> None:
    asked: dict[str, Any] = {"model": "qwen3-30b-a3b", "phase": "decode", "layers": 1}
    graph = build("x", {**asked, "routing": {"steps": 3, "persistence": 0.0}})
    name = "model.layers.0.mlp.experts.down_proj"
    apart = {tensor.name for tensor in graph.tensors if tensor.of == name}
    assert apart == used(graph, name) | {f"{name}[rest]"}
    assert 8 < len(apart) - 1 <= 24


def test_every_answer_says_who_sees_what_gates_choose() -> None:
    frame = hosim.compare(
        {"model": "qwen3-30b-a3b", "phase": "decode", "layers": 1}, "h100", "static_split,hybrid"
    )
    assert [line.partition(":")[0] for line in frame.attrs["notes"]].count("routing") == 1
    assert not any(
        [
            line.startswith("routing")
            for line in hosim.compare("gpt2:phase=decode", "h100", "resident").attrs["notes"]
        ]
    )


def test_the_interval_has_the_spread_of_draws() -> None:
    """Four tokens choose fewer experts of 128 than are expected of even choices; one token chooses
    eight in every draw.
    """
    asked: dict[str, Any] = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "layers": 2,
        "experts_home": "ddr",
    }
    one, four = (
        hosim.compare({**asked, "batch": batch}, "h100", "static_split", budget="2GiB")
        for batch in (1, 4)
    )
    assert not [line for line in one.attrs["notes"] if line.startswith("draws: ")]
    (line,) = [line for line in four.attrs["notes"] if line.startswith("draws: ")]
    assert "experts" in line
    graph = build("x", {**asked, "batch": 4})
    without = Graph(
        graph.name,
        graph.tensors,
        graph.ops,
        {**graph.meta, "routing": {**graph.meta["routing"], "spread": 0}},
    )
    (wide,), (narrow,) = (
        four.to_dict("records"),
        hosim.compare(without, "h100", "static_split", budget="2GiB").to_dict("records"),
    )
    assert wide["makespan_ns"] == narrow["makespan_ns"]
    assert (
        wide["makespan_low_ns"]
        < narrow["makespan_low_ns"]
        < narrow["makespan_high_ns"]
        < wide["makespan_high_ns"]
    )
    odd = Graph(
        graph.name,
        graph.tensors,
        graph.ops,
        {**graph.meta, "routing": {**graph.meta["routing"], "spread": "much"}},
    )
    with pytest.raises(
        GraphError, match=r"meta.routing.spread: expected a share of at least 0, got 'much'"
    ):
        hosim.compare(odd, "h100", "static_split")


@pytest.mark.parametrize(
    "given", [{"routing": {"steps": 4}, "layers": 4}, {"batch": 4, "layers": 2}]
)
def test_other_draws_are_in_the_interval(given: dict[str, Any]) -> None:
    asked: dict[str, Any] = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "experts_home": "ddr",
        **given,
    }
    rows = []
    for seed in range(4):
        drawn = {**asked, "routing": {**given.get("routing", {}), "seed": seed}}
        rows += hosim.compare(drawn, "h100", "hybrid", budget="1GiB").to_dict("records")
    assert all(
        [
            rows[0]["makespan_low_ns"] <= row["makespan_ns"] <= rows[0]["makespan_high_ns"]
            for row in rows
        ]
    )


def test_experts_and_blocks_are_chosen_in_one_step() -> None:
    asked = {
        "model": "qwen3-30b-a3b",
        "phase": "decode",
        "layers": 2,
        "kv_block": 64,
        "context": 1024,
        "chosen_blocks": 3,
    }
    graph = build("x", asked)
    (line,) = graph.meta["assumed"]
    assert "3, 13, 8, 128" in facts(line)
    attended = [op for op in graph.ops if op.kind == "attention" and "older" in op.name]
    assert len(attended) == 2 * 3
    assert len(used(graph, "model.layers.1.mlp.experts.down_proj")) == 8
    single = build("x", {**asked, "chosen_experts": 4})
    assert len(used(single, "model.layers.1.mlp.experts.down_proj")) == 4
    with pytest.raises(InputError, match="no gate chooses"):
        build("x", {"model": "gpt2", "phase": "decode", "routing": {"steps": 2}})


def test_what_a_step_leaves_below_counts_with_everything_resident() -> None:
    """The next token chooses other experts: all 42 GiB of them are what a machine has to hold."""
    mixture = hosim.load("deepseek-v3:phase=decode:layers=5:context=4096:experts_home=ddr")
    assert (
        resident_step(mixture, hosim.load_hardware(hosim.find_hardware("h100"))).breakdown["expert"]
        == 2 * 256 * 3 * 2048 * 7168 * 2
    )
    assert static_peak(mixture).breakdown["expert"] == 2 * 8 * 3 * 2048 * 7168 * 2


WORKED = {
    "8 of 256 experts of two layers come up for a token": (
        "deepseek-v3:phase=decode:layers=5:context=4096:batch=1:experts_home=ddr",
        ("h100", "20GiB"),
        26.3e6,
    ),
    "the chosen blocks of 27 come up": (
        "llama-3.1-8b:phase=decode:context=131072:kv_block=4096:sink_blocks=1:window_blocks=4:chosen_blocks=2:cache_home=ddr",
        ("h100", "24GiB"),
        20.2e6,
    ),
    "a token goes back": (
        "llama-3.1-8b:phase=decode:context=65536:batch=4:layers=3:cache_home=ddr",
        ("ascend-910c", "50%"),
        62e6,
    ),
}


@pytest.mark.parametrize("case", WORKED)
def test_a_worked_example(case: str) -> None:
    workload, (machine, budget), makespan_ns = WORKED[case]
    (row,) = hosim.compare(workload, machine, "static_split", budget=budget).to_dict("records")
    assert row["makespan_ns"] == pytest.approx(makespan_ns, rel=0.05)


@pytest.mark.parametrize(
    "policy", ["keep_first", "static_split", "on_demand", "layerwise", "hyperoffload:effort=0"]
)
def test_unused_parts_take_no_room_that_the_step_needs(policy: str) -> None:
    """Experts of 22.5 GiB, of which a step reads a quarter, beside 3.5 GiB, in 15 GiB: at most what
    it reads of them moves.
    """
    asked = {"model": "mixtral-8x7b", "phase": "decode", "merged": True, "layers": 8}
    (row,) = hosim.compare(asked, "rtx-4090", policy, budget="15GiB").to_dict("records")
    assert row["feasible"]
    assert policy == "layerwise" or row["h2d_moved_bytes"] <= 8 * 2 * 3 * 4096 * 14336 * 2 + (
        1 << 20
    )
    (ample,) = hosim.compare(asked, "h100", policy).to_dict("records")
    assert ample["ddr_peak_bytes"] == 0 or policy in ("on_demand", "layerwise")
