"""Programs of torch that read and write parts of what they hold: what moves is what a real run
reads and changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rendered import facts

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from wholes import wholes  # noqa: E402

import hosim  # noqa: E402
from hosim.graph import Graph  # noqa: E402
from hosim.io.importers.torch_programs import import_exported, import_pt2  # noqa: E402
from hosim.io.models import build  # noqa: E402
from hosim.notes import notes  # noqa: E402

LAYERS, BATCH, HEADS, TOKENS, WIDTH, WORDS = 2, 2, 4, 64, 8, 100


class Decoder(nn.Module):
    """A decoder of one token with caches of a fixed length, which ``write`` updates."""

    def __init__(
        self, write: Callable[[torch.Tensor, torch.Tensor], Any], experts: int = 0
    ) -> None:
        super().__init__()
        self.write = write
        self.embed = nn.Embedding(WORDS, HEADS * WIDTH)
        self.qkv = nn.Parameter(torch.rand(LAYERS, 3 * HEADS * WIDTH, HEADS * WIDTH))
        for name in ("k_cache", "v_cache"):
            for n in range(LAYERS):
                self.register_buffer(f"{name}_{n}", torch.zeros(BATCH, HEADS, TOKENS, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Attention over the caches, layer by layer."""
        x = self.embed(tokens)
        for n in range(LAYERS):
            q, k, v = (
                nn.functional.linear(x, self.qkv[n])
                .view(BATCH, 1, 3, HEADS, WIDTH)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            kept = getattr(self, f"k_cache_{n}"), getattr(self, f"v_cache_{n}")
            for cache, new in zip(kept, (k, v), strict=True):
                self.write(cache, new)
            x = x + nn.functional.scaled_dot_product_attention(q, *kept).transpose(1, 2).reshape(
                x.shape
            )
        return x


def index_copy(cache: torch.Tensor, new: torch.Tensor) -> None:
    """At a constant position."""
    cache.index_copy_(2, torch.tensor([5]), new)


def index_put(cache: torch.Tensor, new: torch.Tensor) -> None:
    """Two constant positions; what is written is repeated."""
    cache[:, :, torch.tensor([5, 9])] = new


def sliced(cache: torch.Tensor, new: torch.Tensor) -> None:
    """A slice."""
    cache[:, :, 5:6] = new


def selected(cache: torch.Tensor, new: torch.Tensor) -> None:
    """A select."""
    cache.select(2, 5).copy_(new[:, :, 0])


def narrowed(cache: torch.Tensor, new: torch.Tensor) -> None:
    """A narrow, added to."""
    cache.narrow(2, 62, 1).add_(new)


def scattered(cache: torch.Tensor, new: torch.Tensor) -> None:
    """One element of each row of 64."""
    cache.scatter_(2, torch.full((BATCH, HEADS, 1, WIDTH), 5), new)


WRITES = {
    write.__name__: write
    for write in (index_copy, index_put, sliced, selected, narrowed, scattered)
}


def program_of(module: nn.Module, *args: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module, args, strict=False)


def graph_of(module: nn.Module, *args: Any) -> Graph:
    return import_exported(program_of(module, *args), name="test")


def below(graph: Graph, *names: str) -> Graph:
    """The graph with tensors whose names begin so in host memory."""
    return replace(
        graph,
        tensors=tuple(
            replace(t, home="ddr" if t.name.startswith(names) else t.home) for t in graph.tensors
        ),
    )


def moved(graph: Graph) -> tuple[int, int]:
    """Bytes that go up and that go back."""
    (row,) = hosim.compare(graph, "h100", "static_split").to_dict("records")
    return row["h2d_moved_bytes"], row["d2h_moved_bytes"]


@pytest.mark.parametrize("name", WRITES)
def test_what_goes_back_is_what_a_real_run_changes(name: str) -> None:
    model = Decoder(WRITES[name]).eval()
    tokens = torch.zeros(BATCH, 1, dtype=torch.int64)
    graph = below(graph_of(model, tokens), "k_cache", "v_cache")
    with torch.no_grad():
        model(tokens)
    caches = {key: value for key, value in model.named_buffers() if "cache" in key}
    changed = sum(int((value != 0).sum()) for value in caches.values()) * 4
    total = sum(value.nbytes for value in caches.values())
    reads = total if name == "narrowed" else total - changed  # what is added to is read
    assert 0 < changed <= total // 32
    assert moved(graph) == (reads, changed)
    assert {key: n for key, n in wholes(graph).items() if "cache" in key} == {
        key: value.nbytes for key, value in caches.items()
    }
    assert "missing" not in graph.meta


def test_positions_from_data_and_slices_that_are_read() -> None:
    """Whether the token that is written is among those that are read is in the data: both count."""

    def write(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return cache.index_copy_(2, at, new)[:, :, :16] * 2

    class Step(nn.Module):
        def forward(self, cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return write(cache, new, at)

    graph = graph_of(Step(), torch.rand(2, 4, 64, 8), torch.rand(2, 4, 1, 8), torch.tensor([3]))
    token = 2 * 4 * 8 * 4
    assert {t.name: t.size_bytes for t in graph.tensors if t.of == "cache"} == {
        "cache[past]": 16 * token,
        "cache[new]": token,
        "cache[rest]": 47 * token,
    }
    assert moved(below(graph, "cache")) == (16 * token, token)


def test_a_file_says_the_same(tmp_path: Any) -> None:
    program = program_of(Decoder(index_copy).eval(), torch.zeros(BATCH, 1, dtype=torch.int64))
    torch.export.save(program, tmp_path / "decoder.pt2")
    assert import_pt2(tmp_path / "decoder.pt2") == import_exported(program, name="decoder")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", ["index_copy", "selected"])
def test_a_functional_program_copies_all_of_a_cache_and_says_so(name: str) -> None:
    program = program_of(
        Decoder(WRITES[name]).eval(), torch.zeros(BATCH, 1, dtype=torch.int64)
    ).run_decompositions()
    graph = import_exported(program, name="test")
    (line,) = graph.meta["missing"]
    assert facts(line, "k_cache_0") == "k_cache_0, 3"
    assert line in [note.line for note in notes(graph)]
    written = {t for op in graph.ops for t in op.writes if graph.tensors[t].persistent}
    assert sum(graph.tensors[t].size_bytes for t in written) == sum(
        n for key, n in wholes(graph).items() if "cache" in key
    )


@pytest.mark.parametrize(("batch", "sequence", "tied"), [(2, 7, True), (4, 40, False)])
def test_a_table_is_read_as_the_builder_says(batch: int, sequence: int, tied: bool) -> None:
    """The last reads more rows than the table has. A head that is tied reads all, for which
    static_split fetches the rows again.
    """
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {"vocab_size": 120, "max_position_embeddings": 128, "tie_word_embeddings": tied}
    config = transformers.LlamaConfig(**sizes, use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval().to(torch.bfloat16)
        program = torch.export.export(
            model, (), {"input_ids": torch.zeros(batch, sequence, dtype=torch.int64)}, strict=False
        )
    imported = import_exported(program, name="llama")
    asked = {
        "model": {"model_type": "llama", **sizes},
        "phase": "prefill",
        "batch": batch,
        "sequence": sequence,
        "dtype": "bf16",
    }
    built = build("llama", {**asked, "logits": "all"})
    table = "model.embed_tokens.weight"
    parts = [
        {t.name: t.size_bytes for t in graph.tensors if t.of == table}
        for graph in (imported, built)
    ]
    assert parts[0] == parts[1]
    rows = min(batch * sequence, 120) + (120 if tied else 0)
    assert moved(below(imported, table)) == moved(below(built, table)) == (rows * 64 * 2, 0)


class Experts(nn.Module):
    """Products with matrices of one parameter [experts, width, width]."""

    def __init__(
        self, compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.compute = compute
        self.experts = nn.Module()
        self.experts.weight = nn.Parameter(torch.rand(8, 16, 16, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What ``compute`` makes of it."""
        return self.compute(x, self.experts.weight, chosen)


EXPERT = 16 * 16 * 2
GROUPED = lambda x, w, offs: torch._grouped_mm(x, w, offs)  # noqa: E731


@pytest.mark.parametrize(
    ("compute", "chosen", "expected"),
    [
        (lambda x, w, _: x @ w[2] + x @ w[7], 1, {"2": EXPERT, "7": EXPERT, "rest": 6 * EXPERT}),
        (lambda x, w, _: x @ w[2], 1, {"read": EXPERT, "rest": 7 * EXPERT}),
        (
            lambda x, w, ids: torch.bmm(x[:2, None], w[ids]),
            2,
            {"read": 2 * EXPERT, "rest": 6 * EXPERT},
        ),
        (
            lambda x, w, ids: torch.bmm(x[:2, None], w.index_select(0, ids)),
            2,
            {"read": 2 * EXPERT, "rest": 6 * EXPERT},
        ),
        (GROUPED, 8, {"read": 3 * EXPERT, "rest": 5 * EXPERT}),
    ],
)
def test_experts_that_are_read(compute: Any, chosen: int, expected: dict[str, int]) -> None:
    """By three rows, each of one expert, or by constants, or by as many indices."""
    dtype = torch.int32 if compute is GROUPED else torch.int64
    graph = graph_of(
        Experts(compute), torch.rand(3, 16, dtype=torch.bfloat16), torch.zeros(chosen, dtype=dtype)
    )
    assert {t.name: t.size_bytes for t in graph.tensors if t.kind == "expert"} == {
        f"experts.weight[{name}]": size for name, size in expected.items()
    }
    assert ("assumed" in graph.meta) == (compute is GROUPED)


def test_a_product_by_groups_reads_no_more_matrices_than_it_has_rows() -> None:
    few, many = (
        graph_of(
            Experts(GROUPED),
            torch.rand(n, 16, dtype=torch.bfloat16),
            torch.zeros(8, dtype=torch.int32),
        )
        for n in (3, 9)
    )
    rows = 2 * 16 * 2  # read and written
    assert few.ops[0].bytes_accessed == 3 * (rows + EXPERT) + 8 * 4
    assert many.ops[0].bytes_accessed == 9 * rows + 8 * EXPERT + 8 * 4
    assert [t.name for t in many.tensors if t.kind == "expert"] == ["experts.weight"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda w, x: w.masked_fill_(x > 0, 0.0), "a mask chooses"),
        (lambda w, x: w.index_put_((x > 0,), torch.tensor(0.0)), "a mask chooses"),
        (lambda w, x: w.view(-1).as_strided((9, 4), (2, 1)) * 2, "elements that overlap"),
        (lambda w, x: w.view(-1)[1:9].sum() + w[:, 1:].sum(), "no blocks of one grid"),
    ],
)
def test_a_part_that_is_not_known_is_said(function: Any, why: str) -> None:
    class Function(nn.Module):
        def forward(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return function(w, x)

    graph = graph_of(Function(), torch.rand(5, 4), torch.rand(5, 4))
    (line,) = graph.meta["missing"]
    assert facts(line.partition(":")[0], "w") == "w"
    assert why in line
    assert not any(t.of for t in graph.tensors)
