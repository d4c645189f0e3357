"""What a traced training step says, on a model whose figures follow by hand: two linear layers, the
second used twice.
"""

import pytest

from hosim.analysis import static_peak
from hosim.errors import InputError
from hosim.io import workload_to_dict
from hosim.io.importers.torch_programs import import_training

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    def __init__(self, checkpoint=False):
        super().__init__()
        self.first = torch.nn.Linear(8, 16, bias=False)
        self.experts = torch.nn.Linear(16, 16, bias=False)
        self.tied = torch.nn.Linear(16, 16, bias=False)
        self.tied.weight = self.experts.weight
        self.register_buffer("scale", torch.ones(16))
        self.checkpoint = checkpoint

    def block(self, x):
        return self.tied(torch.relu(self.experts(torch.relu(x)))) * self.scale

    def forward(self, x):
        h = self.first(x)
        return (
            torch.utils.checkpoint.checkpoint(self.block, h, use_reentrant=False)
            if self.checkpoint
            else self.block(h)
        )


def trace(make=Net, *, rows=32, loss=lambda model, given: model(**given).sum(), **options):
    return import_training(
        make, {"x": torch.empty(rows, 8, device="meta")}, name="net", loss=loss, **options
    )


def by_kind(graph):
    return {
        kind: {t.name: t.size_bytes for t in graph.tensors if t.kind == kind}
        for kind in dict.fromkeys(t.kind for t in graph.tensors)
    }


WEIGHTS = {"first.weight": 8 * 16 * 4, "experts.weight": 16 * 16 * 4}


def test_what_is_held():
    kinds = by_kind(trace(optimizer="none"))
    assert kinds["parameter"] == {"first.weight": 512}
    assert kinds["expert"] == {"experts.weight": 1024}  # tied weights are one tensor
    assert kinds["buffer"] == {"scale": 64}
    assert kinds["input"] == {"x": 32 * 8 * 4}
    assert list(kinds["output"].values()) == [4]
    assert "optimizer_state" not in kinds


@pytest.mark.parametrize(
    ("optimizer", "dtype", "state"),
    [
        ("sgd", "fp32", 0),
        ("sgd-momentum", "fp32", 4),
        ("adamw", "fp32", 8),
        ("adamw", "bf16", 4),
        ("adamw-master", "bf16", 12),
    ],
)
def test_optimizer_states(optimizer, dtype, state):
    """Bytes per parameter; AdamW has a counter of 4 bytes for each of the two tensors beside."""
    graph = trace(
        optimizer=optimizer,
        dtype=dtype,
        loss=lambda model, given: model(given["x"].to(model.scale.dtype)).sum(),
    )
    held = by_kind(graph).get("optimizer_state", {})
    assert sum(held.values()) == (128 + 256) * state + (8 if "adamw" in optimizer else 0)
    assert all(name.rsplit(".", 1)[0] in WEIGHTS for name in held)
    # every parameter is updated, by ops of the optimizer alone
    written = {
        graph.tensors[t].name
        for op in graph.ops
        if op.name.startswith("optimizer.")
        for t in op.mutates
    }
    assert written == {*WEIGHTS, *held}
    assert not [op.name for op in graph.ops if op.name.startswith("forward.") and op.mutates]


def test_an_optimizer_of_ones_own():
    graph = trace(optimizer=lambda parameters: torch.optim.AdamW(parameters, foreach=False))
    assert sum(by_kind(graph)["optimizer_state"].values()) == (128 + 256) * 8 + 8
    assert sum(op.name.startswith("optimizer.") for op in graph.ops) > 10


def test_gradients_accumulate_in_place():
    once, thrice = trace(optimizer="sgd"), trace(optimizer="sgd", micro_batches=3)
    last = {size: name for name, size in by_kind(thrice)["gradient"].items()}
    assert set(last) == set(WEIGHTS.values())
    for graph, times in ((once, 0), (thrice, 2)):
        first = [t for t in graph.tensors if t.kind == "gradient" and t.size_bytes == 512]
        assert len(first) == 1  # its weight is used once a pass
        users = [op for op in graph.ops if graph.tensor_index[first[0].name] in op.mutates]
        assert len(users) == times
    assert sum(op.flops for op in thrice.ops) == 3 * sum(op.flops for op in once.ops)


def test_what_is_saved_for_backward():
    graph = trace()
    saved = {
        name: next(t.size_bytes for t in graph.tensors if t.name == name)
        for name in graph.meta["saved"]
    }
    # the results of the two relus; linear layers save their inputs, relu its result, the product
    # with a buffer nothing
    assert sorted(saved.values()) == [32 * 16 * 4] * 2
    assert all("relu" in name and name.startswith("forward.") for name in saved)


def test_checkpointing_keeps_the_input_and_computes_again():
    """At the end of the forward pass the block's input is there instead of its two saved
    results.
    """
    plain, checkpointed = trace(rows=4096), trace(lambda: Net(checkpoint=True), rows=4096)
    assert len(plain.meta["saved"]) == 2
    assert len(checkpointed.meta["saved"]) == 1
    assert sum(op.flops for op in checkpointed.ops) > sum(op.flops for op in plain.ops)
    assert [
        op.name for op in checkpointed.ops if "relu" in op.name and op.name.startswith("backward.")
    ]


def test_autocast_computes_in_bf16():
    graph = trace(autocast="bf16")
    assert {op.dtype for op in graph.ops if op.kind == "matmul"} == {"bf16"}
    assert sum(by_kind(graph)["parameter"].values()) == 512
    assert sum(by_kind(graph)["gradient"].values()) == 512 + 1024


def test_flops_of_forward_and_backward():
    """2 m n k for each product; the backward pass has two for each weight but one where the input
    needs no gradient.
    """
    first, second = 2 * 32 * 8 * 16, 2 * 32 * 16 * 16
    assert sum(op.flops for op in trace().ops) == 2 * first + 2 * 3 * second


def test_equal_steps_give_equal_bytes():
    one, two = (
        trace(optimizer="adamw-master", dtype="fp32"),
        trace(optimizer="adamw-master", dtype="fp32"),
    )
    assert workload_to_dict(one) == workload_to_dict(two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'; expected one of: adamw"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"dtype": "bf17"}, "unknown dtype 'bf17'"),
        ({"autocast": "bf17"}, "unknown dtype 'bf17'"),
        (
            {"loss": lambda model, given: model(given["x"][given["x"][:, 0] > 0]).sum()},
            "depends on the contents",
        ),
        (
            {"loss": lambda model, given: model(given["x"]).sum() * model(given["x"]).sum().item()},
            "depends on the contents",
        ),
        (
            {"loss": lambda model, given: model(given["x"].T).sum()},
            r"^loss\(model, inputs\) raised RuntimeError: ",
        ),
        ({"loss": lambda model, given: None}, "gives no loss to differentiate"),
        ({"loss": lambda model, given: model(given["x"])}, "gives no loss to differentiate"),
        ({"loss": lambda model, given: given["x"].sum()}, "gives no loss to differentiate"),
    ],
    ids=[
        "optimizer",
        "micro-batches",
        "dtype",
        "autocast",
        "shape",
        "number",
        "mismatch",
        "none",
        "many",
        "constant",
    ],
)
def test_errors(options, message):
    with pytest.raises(InputError, match=message):
        trace(**options)


def test_llama_with_the_sizes_of_8b():
    """Two of its 32 layers at sequence 4096: parameters exact, and the state of AdamW with master
    weights six times theirs.
    """
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }

    def make():
        config = transformers.LlamaConfig(
            **sizes, num_hidden_layers=2, use_cache=False, tie_word_embeddings=False
        )
        with torch.device("meta"):
            return transformers.LlamaForCausalLM(config)

    ids = torch.empty(1, 4096, dtype=torch.int64, device="meta")
    graph = import_training(
        make,
        {"input_ids": ids, "labels": ids},
        name="llama",
        dtype="bf16",
        optimizer="adamw-master",
    )
    learned = (
        2 * 128256 * 4096 + 4096 + 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    )
    kinds = by_kind(graph)
    assert sum(kinds["parameter"].values()) == 2 * learned
    assert sum(kinds["optimizer_state"].values()) == 12 * learned + 4 * len(kinds["parameter"])
    assert static_peak(graph).bytes > 16 * learned


class Attending(torch.nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.first = torch.nn.Linear(8, 8, bias=False)
        self.causal = causal

    def forward(self, x):
        q = self.first(x).view(1, 2, 32, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=self.causal)


@pytest.mark.parametrize(
    ("causal", "name", "heads"),
    [(True, "context", (1, 32, 0, 2, 2, 4, 2**40)), (False, "full", (1, 32, 32, 2, 2, 4))],
)
def test_products_attention_and_their_gradients_say_which_kernel_they_are(causal, name, heads):
    graph = trace(lambda: Attending(causal), optimizer="none")
    assert [(op.kernel, op.sizes) for op in graph.ops if op.kernel] == [
        ("gemm", (32, 8, 8)), (f"{name}_attention", heads), (f"{name}_gradient", heads), ("gemm", (8, 8, 32)),
    ]  # fmt: skip
