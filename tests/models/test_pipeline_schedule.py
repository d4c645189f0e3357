"""Pipeline stages: the order of passes by hand, the closed forms of memory and bubble, and the
graph of a stage.
"""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts

from hosim.analysis import static_peak
from hosim.errors import InputError
from hosim.io.models import bubble, build, in_flight, passes

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
SMALL = {
    "model": "llama-3.1-8b",
    "config": {**TINY, "intermediate_size": 80},
    "sequence": 32,
    "phase": "train",
    "link": "1 GB/s",
}


def written(order):
    return " ".join(
        f"{'B' if p.backward else 'F'}{p.micro_batch}{'abc'[p.chunk] if p.chunk else ''}"
        for p in order
    )


def test_orders_by_hand():
    """1F1B: stage s of 4 runs 3 - s forward passes before the first pair. Interleaved, 2 stages of
    2 chunks, 2 micro-batches: Megatron's warm-up of stage 0 is 2 (2 - 0 - 1) + (2 - 1) 2 = 4, all
    but the last; of stage 1 it is 2.
    """
    assert written(passes("gpipe", 4, 1, 3)) == "F0 F1 F2 B0 B1 B2"
    assert written(passes("1f1b", 4, 0, 5)) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert written(passes("1f1b", 4, 3, 3)) == "F0 B0 F1 B1 F2 B2"
    assert written(passes("1f1b", 4, 0, 2)) == "F0 F1 B0 B1"
    assert written(passes("interleaved", 2, 0, 2, 2)) == "F0 F1 F0b F1b B0b B1b B0 B1"
    assert written(passes("interleaved", 2, 1, 2, 2)) == "F0 F1 F0b B0b F1b B1b B0 B1"


def finish(schedule, stages, micro_batches, chunks, forward, backward):
    """When all stages have run their passes, each as soon as its input is there; sends take no
    time.
    """
    orders = [list(passes(schedule, stages, s, micro_batches, chunks)) for s in range(stages)]
    done, clock = {}, [0] * stages
    while any(orders):
        moved = False
        for s, order in enumerate(orders):
            while order:
                p, last = order[0], chunks * stages - 1
                at = p.chunk * stages + s
                if p.backward:
                    needs = [
                        (False, at, p.micro_batch),
                        *([(True, at + 1, p.micro_batch)] if at < last else []),
                    ]
                else:
                    needs = [(False, at - 1, p.micro_batch)] if at else []
                if any(need not in done for need in needs):
                    break
                begin = max([clock[s], *(done[need] for need in needs)])
                clock[s] = done[p.backward, at, p.micro_batch] = begin + (
                    backward if p.backward else forward
                )
                order.pop(0)
                moved = True
        assert moved, "stages wait for one another"
    return max(clock)


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(2, 3),
)
def test_memory_and_bubble_are_the_closed_forms(schedule, stages, rounds, chunks):
    v = chunks if schedule == "interleaved" else 1
    m = rounds * stages if v > 1 else rounds + 1
    for s in range(stages):
        order = passes(schedule, stages, s, m, v)
        assert Counter((p.micro_batch, p.chunk) for p in order) == {
            (k, c): 2 for k in range(m) for c in range(v)
        }
        kept = {
            "gpipe": m,
            "1f1b": min(stages - s, m),
            "interleaved": min(2 * (stages - s - 1) + (v - 1) * stages + 1, m * v),
        }
        assert in_flight(order) == kept[schedule]
    alone = m * v * (2 + 4)
    assert finish(schedule, stages, m, v, 2, 4) == pytest.approx(alone * (1 + bubble(stages, m, v)))


def kept_at_most(graph):
    """The most bytes of activations that wait for a backward pass, and those of one micro-batch and
    chunk, from who uses each tensor.
    """
    starts = re.compile(r"backward\.|optimizer\.|.*(recv_grad|loss\.grad)")
    forward = [not starts.match(op.name) for op in graph.ops]
    waiting = [0] * (len(graph.ops) + 1)
    of = Counter()
    for tensor, users, makers in zip(graph.tensors, graph.users, graph.writers, strict=True):
        if makers and tensor.kind == "activation" and forward[makers[0]] and not forward[users[-1]]:
            last_forward = max(i for i in users if forward[i])
            first_backward = min(i for i in users if not forward[i])
            of[tensor.name.partition(".")[0]] += tensor.size_bytes
            for i in range(last_forward, first_backward):
                waiting[i] += tensor.size_bytes
    return max(waiting), of


@pytest.mark.parametrize("stage", range(4))
def test_the_memory_of_each_stage_is_that_of_its_micro_batches_in_flight(stage):
    stage_of = {**SMALL, "pipeline": 4, "stage": stage, "micro_batches": 6}
    most, each = kept_at_most(build("x", stage_of))
    assert len(each) == 6
    assert len(set(each.values())) == 1  # all micro-batches keep as much
    one = each["micro0"]
    assert most == min(4 - stage, 6) * one
    assert kept_at_most(build("x", {**stage_of, "schedule": "gpipe"}))[0] == 6 * one


def test_the_first_stage_has_the_most_memory_and_chunks_add_to_it():
    """Stages 1 and 2 have the same layers: between them lies what one micro-batch keeps."""
    stages = [
        static_peak(build("x", {**SMALL, "pipeline": 4, "stage": s, "micro_batches": 8})).bytes
        for s in range(4)
    ]
    one = kept_at_most(build("x", {**SMALL, "pipeline": 4, "stage": 1, "micro_batches": 1}))[0]
    assert stages[1] - stages[2] == one
    assert stages[0] > stages[1] > stages[2]
    chunked = build(
        "x",
        {
            **SMALL,
            "pipeline": 4,
            "stage": 1,
            "micro_batches": 8,
            "schedule": "interleaved",
            "chunks": 2,
        },
    )
    # two layers in two chunks of one: 2 (4 - 1 - 1) + 4 + 1 = 9 of them are kept, which is 4.5
    # micro-batches for the 3 of 1F1B; an input of a chunk, which its first norm keeps, comes with
    # each
    most, of = kept_at_most(chunked)
    assert most == 9 * of["micro0"] // 2
    assert (
        sum(op.kind == "recv" for op in chunked.ops)
        == sum(op.kind == "send" for op in chunked.ops)
        == 8 * 2 * 2
    )


def test_micro_batches_without_stages_add_their_gradients():
    one, three = [build("x", {**SMALL, "micro_batches": m}) for m in (1, 3)]
    assert sum(op.flops for op in three.ops) == 3 * sum(op.flops for op in one.ops)
    gradients = [sum(t.size_bytes for t in g.tensors if t.kind == "gradient") for g in (one, three)]
    assert gradients[0] == gradients[1]
    parameters = sum(t.kind == "parameter" for t in one.tensors)
    assert (
        sum("accumulate" in op.name for op in three.ops)
        - 3 * sum("accumulate" in op.name for op in one.ops)
        == 2 * parameters
    )
    assert sum(op.kind == "optimizer" for op in three.ops) == parameters


def test_both_copies_of_a_tied_table_get_the_sum_of_their_gradients():
    tied = {**SMALL, "config": {**SMALL["config"], "tie_word_embeddings": True}, "pipeline": 4}
    summed = [
        [op.sizes for op in build("x", {**tied, "stage": s}).ops if op.kind == "all_reduce"]
        for s in range(4)
    ]
    assert summed == [[(2, 96 * 64 * 2)], [], [], [(2, 96 * 64 * 2)]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"phase": "prefill", "micro_batches": 2},
            "^micro_batches: only phase=train has micro-batches$",
        ),
        ({"schedule": "gpipe"}, "^schedule: one stage has no schedule; give pipeline, too$"),
        (
            {"pipeline": 2, "schedule": "zero-bubble"},
            "^schedule: expected one of 1f1b, gpipe, interleaved; got 'zero-bubble'$",
        ),
        (
            {"pipeline": 2, "schedule": "interleaved"},
            "^chunks: schedule=interleaved takes chunks of at least 2",
        ),
        ({"pipeline": 2, "chunks": 2}, "^chunks: schedule=interleaved takes chunks"),
        (
            {"pipeline": 2, "schedule": "interleaved", "chunks": 2, "micro_batches": 3},
            "^micro_batches: schedule=interleaved takes a multiple of its 2 stages, got 3$",
        ),
        (
            {"pipeline": 4, "schedule": "interleaved", "chunks": 3},
            "^chunks: 4 stages of 3 chunks need at least one layer each$",
        ),
        ({"micro_batches": 2**40}, "^micro_batches: "),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        build("x", {**SMALL, **changes})


def test_a_stage_says_that_its_waits_are_left_out():
    graph = build("x", {**SMALL, "pipeline": 4, "micro_batches": 8})
    (line,) = graph.meta["left_out"]
    assert facts(line) == "37.5 %"
