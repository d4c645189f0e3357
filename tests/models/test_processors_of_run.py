"""Parts of a model on the processors of tiers below: what these ops read and write, where that
lives, and what is refused.
"""

import pytest

from hosim.analysis.costmodel.kernels.op_families import share_touched
from hosim.engine import replay
from hosim.errors import InputError
from hosim.io import load_hardware, load_named
from hosim.io.models import Tape, build
from hosim.policies import policy_named
from hosim.shipped import find_hardware

H100 = load_hardware(find_hardware("h100"))

TRAIN = {
    "model": "llama-3.1-8b",
    "phase": "train",
    "layers": 1,
    "sequence": 128,
    "optimizer_on": "ddr",
}
ELEMENTS = (
    2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 3 * 4096 + 2 * 128256 * 4096
)  # a layer, the last norm, embedding and head


def elsewhere(graph):
    return [graph.ops[i] for i in graph.elsewhere]


def sizes(graph, kind):
    return sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == kind)


def test_adam_on_the_cpu_reads_gradients_and_states_and_writes_parameters() -> None:
    graph = build("step", TRAIN)
    ops = elsewhere(graph)
    assert sizes(graph, "parameter") == 2 * ELEMENTS
    # 2 bytes of gradient and of parameter, 4 of each of three states, read and written
    assert sum(op.bytes_accessed for op in ops) == 28 * ELEMENTS
    assert {(op.stream, op.processor, op.kind, op.kernel, op.dtype) for op in ops} == {
        ("ddr", "ddr", "optimizer", "", "fp32")
    }
    homes = {graph.tensors[t].home for op in ops for t in op.mutates}
    assert homes == {"ddr"}
    assert all([graph.tensors[t].home for t in op.outputs] == [None] for op in ops)
    last = max(i for i, op in enumerate(graph.ops) if not op.processor)
    assert all(last in op.deps for op in ops)  # checks of overflow and norm are of all gradients


def test_a_speculative_update_waits_for_its_own_gradient_alone() -> None:
    graph = build("step", {**TRAIN, "update": "speculative"})
    assert not any(op.deps for op in elsewhere(graph))
    first, last = elsewhere(graph)[0], elsewhere(graph)[-1]
    assert (first.name, last.name) == (
        "optimizer.lm_head.weight",
        "optimizer.model.embed_tokens.weight",
    )  # as the backward pass makes them


def test_a_delayed_update_runs_beside_the_passes() -> None:
    graph = build("step", {**TRAIN, "update": "delayed"})
    updates = [i for i in graph.elsewhere if graph.ops[i].kind == "optimizer"]
    produced = {t for op in graph.ops for t in op.outputs if not op.processor}
    # gradients of the step before, parameters of the next one
    assert not any(t in produced for i in updates for t in graph.ops[i].inputs)
    assert all([graph.ops[p].processor for p in graph.producers[i]] == [] for i in updates)
    kept = [graph.ops[i] for i in graph.elsewhere if graph.ops[i].kind == "copy"]
    assert {op.duration_ns for op in kept} == {0}
    applied = [op for op in graph.ops if op.name.endswith(".apply")]
    assert sum(op.bytes_accessed for op in applied) == 2 * 2 * ELEMENTS
    assert sizes(graph, "gradient") == 2 * 2 * ELEMENTS


@pytest.mark.parametrize("zero", [1, 2])
def test_of_several_devices_each_updates_its_part_of_the_parameters_on_the_cpu(zero: int) -> None:
    graph = build("step", {**TRAIN, "data": 8, "zero": zero})
    ops = elsewhere(graph)
    part = ELEMENTS // 8  # which is even
    assert sum(op.bytes_accessed for op in ops) == 28 * part
    # what goes down are shards of gradients, what comes up those of parameters, which all devices
    # then gather
    assert (
        sum(graph.tensors[t].size_bytes for t in {t for op in ops for t in op.inputs}) == 2 * part
    )
    shards = [t for op in ops for t in op.outputs]
    assert sum(graph.tensors[t].size_bytes for t in shards) == 2 * part
    gathers = [op for op in graph.ops if op.kind == "all_gather"]
    assert [t for op in gathers for t in op.inputs] == shards
    assert sum(graph.tensors[t].size_bytes for op in gathers for t in op.outputs) == 2 * ELEMENTS
    assert not any(
        graph.ops[d].kind == "all_gather" for op in ops for d in op.deps
    )  # the CPU does not wait for devices to gather


def test_a_share_of_the_parameters_is_updated_on_the_cpu() -> None:
    """The first ones, with half of the elements at most; the states of each part lie with it, and
    what is on the device waits for its gradient alone.
    """
    graph = build("step", {**TRAIN, "optimizer_share": 0.5})
    updates = [op for op in graph.ops if op.kind == "optimizer"]
    on_cpu = [bool(op.processor) for op in updates]
    assert on_cpu == sorted(on_cpu, reverse=True)
    assert len(set(on_cpu)) == 2
    homes = {op.name: {graph.tensors[t].home for t in op.mutates
                       if graph.tensors[t].kind == "optimizer_state"} for op in updates}  # fmt: skip
    assert all(homes[op.name] == ({"ddr"} if op.processor else {None}) for op in updates)
    moved = sum(op.bytes_accessed for op in updates if op.processor)
    assert 0.2 < moved / (28 * ELEMENTS) <= 0.5
    assert all(not op.deps for op in updates if not op.processor)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_of_several_devices_each_updates_the_same_share_on_the_cpu(zero: int, share: float) -> None:
    """The parameters are those of one device, whatever the order in which gradients arrive; of
    each, a device updates its part, and gathers all in one collective of each unit.
    """
    tied = {**TRAIN, "config": {"tie_word_embeddings": True, "vocab_size": 16000}, "layers": 3}
    graphs = [
        build("step", {**tied, "optimizer_share": share, **more})
        for more in ({}, {"data": 4, "zero": zero} if zero else {"data": 4})
    ]
    on_cpu = [{op.name for op in elsewhere(graph)} for graph in graphs]
    assert on_cpu[0] == on_cpu[1]
    assert bool(on_cpu[0]) == (share > 0)
    one, several = graphs
    accessed = [sum(op.bytes_accessed for op in elsewhere(graph)) for graph in graphs]
    # of fp32 shards there is no copy: gradient, parameter and two moments in fp32 are 28 bytes, too
    assert accessed[1] == accessed[0] // (4 if zero else 1)
    homes = {
        graph_tensor.home
        for op in several.ops
        if op.kind == "optimizer" and not op.processor
        for graph_tensor in (several.tensors[t] for t in op.mutates)
        if graph_tensor.kind == "optimizer_state"
    }
    assert homes <= {None}
    if zero in (1, 2):
        written = {
            several.tensors[t].name
            for op in several.ops
            if op.kind == "all_gather"
            for t in op.writes
        }
        assert written == {tensor.name for tensor in one.tensors if tensor.kind == "parameter"}


def test_states_of_what_the_device_updates_stay_under_zero_offload() -> None:
    step = "llama-3.1-8b:phase=train:sequence=64:layers=1:optimizer_on=ddr"
    peaks = {}
    for share in ("0.5", "1"):
        graph = load_named(f"{step}:optimizer_share={share}")
        plan = policy_named("zero_offload").plan(graph, H100)
        peaks[share] = replay(plan, H100).peak_bytes
        kinds = {graph.tensors[c.tensor].kind for c in plan.cache_ops}
        assert kinds == {"gradient", "parameter"}
        below = [t for t in graph.tensors if t.kind == "optimizer_state" and t.home == "ddr"]
        assert peaks[share]["ddr"] >= sum(t.size_bytes for t in below)
    assert peaks["1"]["hbm"] < peaks["0.5"]["hbm"]
    assert peaks["0.5"]["ddr"] < peaks["1"]["ddr"]


def test_ops_wait_for_the_same_ops_where_idle_ones_are_left_out() -> None:
    graph = build("step", {**TRAIN, "checkpoint": True})  # torch recomputes no more than it needs
    last = [op.name for op in graph.ops if not op.processor][-1]
    assert {graph.ops[d].name for op in elsewhere(graph) for d in op.deps} == {last}


def test_an_idle_op_that_others_wait_for_stays() -> None:
    tape = Tape("step")
    b = tape.builder
    _ = [b.tensor(name, 4) for name in "xyz"]
    b.op("recompute.a", "m", outputs=["x"])
    b.op("recompute.b", "m", outputs=["y"])
    b.op("c", "m", outputs=["z"], deps=["recompute.b"])
    assert [(op.name, op.deps) for op in tape.build().ops] == [("recompute.b", ()), ("c", (0,))]


def test_experts_on_the_cpu_read_the_experts_that_tokens_can_be_expected_to_choose() -> None:
    graph = build(
        "step",
        {
            "model": "qwen3-30b-a3b",
            "phase": "decode",
            "batch": 4,
            "layers": 1,
            "merged": True,
            "experts_on": "ddr",
        },
    )
    (op,) = elsewhere(graph)
    experts, top, hidden, width = 128, 8, 2048, 768
    weights = 2 * experts * 3 * hidden * width
    assert op.flops == 6 * 4 * top * hidden * width
    assert op.bytes_accessed == round(weights * share_touched(4, top, experts)) + 2 * 2 * 4 * hidden
    assert sizes(graph, "expert") == weights
    assert {tensor.home for tensor in graph.tensors if tensor.kind == "expert"} == {"ddr"}


def test_attention_on_the_cpu_reads_a_cache_that_lives_there() -> None:
    graph = build(
        "step",
        {
            "model": "llama-3.1-8b",
            "phase": "decode",
            "context": 1000,
            "layers": 1,
            "merged": True,
            "attention_on": "ddr",
        },
    )
    (op,) = elsewhere(graph)
    assert (op.kind, op.flops) == ("attention", 4 * 1000 * 4096)
    cache = [graph.tensors[t] for t in op.uses if graph.tensors[t].kind == "kv_cache"]
    assert {tensor.home for tensor in cache} == {"ddr"}
    assert sum([tensor.size_bytes for tensor in cache]) == 2 * 2 * 1000 * 1024
    assert (
        sum(
            [graph.tensors[t].size_bytes for t in op.outputs if graph.tensors[t].kind == "kv_cache"]
        )
        == 2 * 2 * 1024
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"phase": "prefill", "optimizer_on": "ddr"},
            "optimizer_on: only phase=train has it",
        ),
        (
            {"phase": "train", "update": "delayed"},
            "update: only an optimizer on another processor has it",
        ),
        (
            {"phase": "train", "optimizer_on": "ddr", "update": "never"},
            "update: expected one of synchronous, speculative, delayed",
        ),
        (
            {"phase": "train", "optimizer_on": "ddr", "optimizer_share": 0.1},
            "optimizer_share: the first parameter, model.embed_tokens.weight, has more than that",
        ),
        (
            {"phase": "train", "optimizer_on": "device/ddr", "optimizer_share": 0.5},
            "optimizer_share: works with optimizer_on: TIER",
        ),
        (
            {"phase": "train", "optimizer_on": "ddr", "update": "delayed", "data": 2},
            "update: delayed works for one device",
        ),
        (
            {"phase": "decode", "experts_on": "ddr", "merged": True},
            "experts_on: this model has no experts",
        ),
        (
            {"phase": "decode", "attention_on": "ddr"},
            "attention_on: works with merged: true, over heads of keys",
        ),
        (
            {"phase": "prefill", "attention_on": "ddr", "merged": True},
            "attention_on: works for phase=decode",
        ),
        (
            {"model": "qwen3-30b-a3b", "experts_on": "ddr"},
            "experts_on: works with merged: true and experts that one device has",
        ),
    ],
)
def test_what_is_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        build("step", {"model": "llama-3.1-8b", "layers": 1, **parameters})
    assert message in str(error.value)


STAGES = {
    "model": "llama-3.1-8b",
    "phase": "decode",
    "merged": True,
    "pipeline": 2,
    "layers": 4,
    "context": 64,
}


def test_stages_have_the_layers_that_are_given() -> None:
    for split, own in ((None, (2, 2)), ("3/1", (3, 1)), ("1/3", (1, 3))):
        given = {**STAGES, **({"stage_layers": split} if split else {})}
        graphs = [build("stage", {**given, "stage": n, "tied": True}) for n in range(2)]
        layers = [
            {int(op.name.split(".")[2]) for op in graph.ops if ".layers." in op.name}
            for graph in graphs
        ]
        assert layers == [set(range(own[0])), set(range(own[0], 4))]
    assert "layers" not in graphs[0].meta


@pytest.mark.parametrize(
    "split", ["4", "2/1", "4/0", "1/1/2", "2/x", "3/2", "", "1/\u0663", "9" * 5000 + "/1"]
)
def test_other_layers_of_stages_are_refused(split: str) -> None:
    with pytest.raises(InputError, match=r"each of 2 stages with '/' between them, 4 together"):
        build("stage", {**STAGES, "stage_layers": split})


def test_what_a_stage_receives_and_sends_is_on_the_device() -> None:
    for n in range(2):
        graph = build("stage", {**STAGES, "stage": n, "tied": True, "layers_on": "device/ddr"})
        assert graph.meta["layers"] == 4
        crossing = [op for op in graph.ops if op.kind in ("send", "recv")]
        assert crossing
        assert not any(op.also_on or op.processor for op in crossing)
    with pytest.raises(InputError, match="on one device or stages of a pipeline"):
        build("stage", {**STAGES, "tensor": 2, "layers_on": "device/ddr"})
