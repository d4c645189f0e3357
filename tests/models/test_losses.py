"""How a decoder's loss is computed, and narrower optimizer states: equal work, other memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hosim
from hosim.errors import InputError
from hosim.io.models import build

SIZES = {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 1000, "intermediate_size": 128}


def step(**more):
    config = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    return build(
        "step",
        {"model": "llama-3.1-8b", "phase": "train", "sequence": 96, "config": config, **more},
    )


def peak(graph) -> int:
    return int(hosim.compare(graph, "h100", "resident").hbm_peak_bytes[0])


@settings(max_examples=10)
@given(
    st.sampled_from(["compiled", "chunked"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([{}, {"data": 2, "zero": 3}]),
)
def test_every_way_has_the_same_flop_and_learns_the_same(
    loss, batch, micro_batches, shared
) -> None:
    run = {"batch": batch, "micro_batches": micro_batches, **shared}
    whole, other = step(**run), step(loss=loss, **run)
    assert sum(op.flops for op in other.ops) == sum(op.flops for op in whole.ops)
    assert [t.name for t in other.tensors if t.kind == "parameter"] == [
        t.name for t in whole.tensors if t.kind == "parameter"
    ]
    updates = [[op.name for op in graph.ops if op.kind == "optimizer"] for graph in (whole, other)]
    assert sorted(updates[0]) == sorted(updates[1])


def test_less_of_the_logits_is_kept() -> None:
    whole, compiled, chunked = [
        peak(step(batch=64, loss=loss)) for loss in ("whole", "compiled", "chunked")
    ]
    assert whole > compiled > chunked
    logits = 64 * 96 * 1000
    assert whole - compiled == pytest.approx(
        3 * 4 * logits + 2 * logits - 4 * logits, rel=0.35
    )  # copies in fp32 give way to two in bf16


def test_the_largest_chunk_has_the_logits_of_its_rows() -> None:
    """1,000 classes of a width of 64 are 16 chunks, of 6 rows each."""
    made = step(loss="chunked")
    heads = [op for op in made.ops if op.name.startswith("lm_head.")]
    assert [op.sizes for op in heads] == [(6, 1000, 64)] * 16


@pytest.mark.parametrize(("dtype", "each"), [("bf16", 2), ("int8", 1)])
def test_narrower_states(dtype, each) -> None:
    made, usual = step(states_dtype=dtype), step()
    parameters = sum(t.size_bytes for t in made.tensors if t.kind == "parameter") // 2
    assert sum(t.size_bytes for t in made.tensors if t.kind == "optimizer_state") == pytest.approx(
        parameters * 2 * each, rel=0.001
    )
    assert (
        sum(t.size_bytes for t in usual.tensors if t.kind == "optimizer_state") == parameters * 12
    )


@pytest.mark.parametrize("more", [{}, {"data": 2, "zero": 3}, {"data": 2, "zero": 1}])
def test_foreach_holds_a_root_of_each_second_moment(more) -> None:
    """All roots live together: fp32, as large as the second moments of a device."""
    made, usual = step(foreach=True, **more), step(**more)
    roots = [t.size_bytes for t in made.tensors if ".moments" in t.name]
    second = [t.size_bytes for t in made.tensors if t.name.endswith(".exp_avg_sq")]
    assert sorted(roots) == sorted(second)
    last = max(made.op_index[op.name] for op in made.ops if op.name.endswith(".moments"))
    updates = [i for i, op in enumerate(made.ops) if op.kind == "optimizer"]
    assert sum(i <= last for i in updates) == sum(i > last for i in updates) == len(roots)
    states = [
        sorted((t.name, t.size_bytes) for t in graph.tensors if t.kind == "optimizer_state")
        for graph in (made, usual)
    ]
    assert states[0] == states[1]
    few = step(sequence=2, foreach=True, **more)
    # gradients are there until the parameters have changed
    moments = [op for op in few.ops if op.name.endswith(".moments")]
    kept = {t for t in few.initial if few.tensors[t].kind != "input"}
    held = kept | {t for op in moments for t in op.uses}
    assert peak(few) >= sum([few.tensors[t].size_bytes for t in held])


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"phase": "prefill", "foreach": True}, "foreach"),
        ({"optimizer_on": "ddr", "foreach": True}, "foreach"),
        ({"phase": "prefill", "loss": "chunked"}, "loss"),
        ({"phase": "decode", "states_dtype": "bf16"}, "states_dtype"),
        ({"dtype": "fp32", "states_dtype": "bf16"}, "states_dtype"),
        ({"loss": "halved"}, "loss"),
        ({"model": "gemma-2-9b", "config": {}, "loss": "chunked"}, "loss"),
    ],
)
def test_what_does_not_go_together_is_refused(more, where) -> None:
    with pytest.raises(InputError) as caught:
        build("step", {"model": "llama-3.1-8b", "phase": "train", "layers": 1, **more})
    assert caught.value.where == where
