"""Programs and training steps of torch as graphs, a row each: every field of every op and tensor,
in a checksum.

After a change that is meant to alter a graph, or with another torch::

    python tests/kept/write.py kept_programs

writes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import torch
from kept_builds import figures
from kept_table import KeptTable, Row
from torch import nn

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import workload_to_dict
from hosim.io.importers.torch_programs import import_exported, import_training

COLUMNS = (
    "program",
    "torch",
    "ops",
    "tensors",
    "bytes",
    "flops",
    "accessed_bytes",
    "workspace_bytes",
    "checksum",
    "meta",
)
VERSION = torch.__version__.partition("+")[0]
functional = nn.functional


class Called(nn.Module):
    """A module that is a function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """What the function returns."""
        return self.function(*args)


class Tied(nn.Module):
    """An embedding and a head that share a weight, buffers that share a storage, one of them
    written, experts, a constant.
    """

    def __init__(self, checkpoint: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.experts = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16, bias=False)])
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)
        flat = torch.ones(2, 16)
        self.register_buffer("one", flat[0])
        self.register_buffer("two", flat[1])
        self.register_buffer("seen", torch.zeros(16))
        self.checkpoint = checkpoint

    def block(self, x: torch.Tensor) -> torch.Tensor:
        """Two experts, and dropout that draws if the module trains."""
        return functional.dropout(
            torch.relu(self.experts[0](x)), 0.5, self.training
        ) + self.experts[1](torch.relu(x) * self.one)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens) * self.frozen + torch.arange(16, dtype=self.frozen.dtype)
        self.seen.add_(x.detach().sum((0, 1)).to(self.seen.dtype))
        x = (
            torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            if self.checkpoint
            else self.block(x)
        )
        return self.head(x * self.two)


def _in_place(x: torch.Tensor, n: torch.Tensor) -> Any:
    y = x * 2
    y[3:5].add_(1)
    y.view(-1).masked_fill_(y.view(-1) > 1, 0.0)
    y.index_put_((n,), torch.ones(3, 16))
    y.index_put_((n,), torch.ones(3, 16), accumulate=True)
    y.index_copy_(0, n, x[:3])
    y.index_add_(0, n, x[:3, :1].expand(3, 16))
    y.scatter_(0, n.view(3, 1), 2.0)
    y.scatter_add_(1, n.view(3, 1), x)
    y[1].fill_(3)
    y[:, 2].zero_()
    x.copy_(y)
    x.exponential_()
    return y, x.t(), n


def _gathers(x: torch.Tensor, n: torch.Tensor) -> Any:
    small = x[:1]
    return (
        x[n], x.index_select(1, n), x.gather(1, n.view(3, 1)), x.take(n), functional.embedding(n, x), small.expand(64, 16)[:, n],
        torch.topk(x, 4)[0], x.sort(), x.cumsum(0), x.new_empty(3).fill_(1), torch.empty_like(x).copy_(n.sum()), x.to(torch.float64) * 2,
        x.to(torch.complex64).abs(), x > 1, x.to(torch.int8), torch.zeros(0) * 2, torch.var_mean(x), torch.empty(3, 2).t(), x.clone(),
    )  # fmt: skip


def _views(x: torch.Tensor) -> Any:
    y = x * 2
    a, b = y.view(4, 64).t().split(2, dim=1)
    c = y.unsqueeze(0).expand(3, 16, 16).select(0, 1).permute(1, 0)[2:5].squeeze()
    d, *_ = y.chunk(4)
    return (
        a + 1,
        b.reshape(-1) + 1,
        c.contiguous() + 1,
        d.reshape(2, 32),
        torch.stack([y[0], y[1]]),
        y.unbind(0)[3].sum(),
        (2, None),
    )


def _attention(q: torch.Tensor, k: torch.Tensor) -> Any:
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    fused = functional.scaled_dot_product_attention(q, k, k, is_causal=True)
    return (
        fused,
        functional.scaled_dot_product_attention(
            q, k[:, :1], k[:, :1], attn_mask=mask, enable_gqa=True
        ),
        torch.matmul(q[:, :, None], k.view(4, 1, 2, 8, 16)[:2]),
    )


def _modes(x: torch.Tensor, bias: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.no_grad():
            z = functional.linear(y, x, bias)
    first = torch.rand_like(x) + torch.randn(16, 16)
    return (
        y,
        z * 2,
        functional.dropout(first, 0.3),
        functional.dropout(x, 0.3, training=False),
        torch.bernoulli(x),
    )


def _sizes(x: torch.Tensor, factor: int, flag: bool) -> Any:
    rows = x.shape[0]
    made = torch.zeros(rows * 2 - 1, rows // 2 + 1, rows**2)
    whole = torch.sym_int(rows / 2 + 0.5)
    return (
        made * factor + (rows - 1) / 2,
        x if flag else x * 2,
        x * (rows + 0.5),
        x.new_zeros(torch.sym_max(whole, 3), rows + 1),
    )


def _numbers(x: torch.Tensor, rows: int, factor: float, text: str, nothing: None) -> Any:
    del text, nothing
    return x * factor, x.new_zeros(rows + 2, rows), rows * 2


def _into(x: torch.Tensor, y: torch.Tensor) -> Any:
    space = torch.empty_like(x)
    torch.add(x, y, out=space)
    torch.addmm(x, x, y, out=space)
    return (
        torch.mul(x, space, out=y),
        torch.bmm(x.view(4, 4, 16), y.view(4, 16, 4)),
        torch.baddbmm(x.view(4, 8, 8), x.view(4, 8, 8), y.view(4, 8, 8)),
    )


def _image(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = functional.conv2d(x, w, stride=2, padding=1)
    z = functional.conv_transpose2d(y, w)
    return (
        functional.max_pool2d(z, 2),
        functional.layer_norm(y, y.shape[2:]),
        functional.gelu(y),
        functional.softmax(z, 1),
        functional.pad(y, (1, 1)),
    )


def _exports() -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    square, n = torch.ones(16, 16), torch.tensor([0, 2, 5])
    dynamic = torch.export.Dim.DYNAMIC
    return {
        "in_place": (Called(_in_place), (square, n), {}),
        "gathers": (Called(_gathers), (square, n), {}),
        "views": (Called(_views), (square,), {}),
        "attention": (Called(_attention), (torch.ones(2, 4, 16, 8), torch.ones(2, 4, 16, 8)), {}),
        "attention_bf16": (Called(_attention), (torch.ones(2, 4, 16, 8).bfloat16(), torch.ones(2, 4, 16, 8).bfloat16()), {}),
        "modes": (Called(_modes), (square, torch.ones(16)), {}),
        "sizes": (Called(_sizes), (torch.ones(6, 4), 3, True), {"dynamic_shapes": (({0: dynamic}, None, None),)}),
        "numbers": (Called(_numbers), (square, 3, 0.5, "text", None), {"dynamic_shapes": ((None, dynamic, None, None, None),)}),
        "into": (Called(_into), (square, square.clone()), {}),
        "image": (Called(_image), (torch.ones(2, 3, 16, 16), torch.ones(3, 3, 3, 3)), {}),
        "strides": (
            Called(lambda x, y: (x + y, y.sum(), x.t().clone())),
            (torch.ones(64, 16)[::2, ::2].t(), torch.ones(1, 8).expand(8, 8)[:, :1]),
            {},
        ),
        "tied": (Tied().eval(), (torch.ones(2, 5, dtype=torch.int64),), {}),
        "tied_training": (Tied(), (torch.ones(2, 5, dtype=torch.int64),), {}),
    }  # fmt: skip


def exported(name: str) -> Graph:
    """The graph of an exported program; of a functional one, if its name says so."""
    module, args, options = _exports()[name.removesuffix("_functional")]
    program = torch.export.export(module, args, strict=False, **options)
    program = program.run_decompositions() if name.endswith("_functional") else program
    return import_exported(program, name=name, meta={"file": name})


STEPS: dict[str, dict[str, Any]] = {
    **{
        f"step_{optimizer}": {"optimizer": optimizer}
        for optimizer in ("adamw", "adamw-master", "sgd", "sgd-momentum", "none")
    },
    "step_bf16": {"optimizer": "adamw", "dtype": "bf16"},
    "step_float16": {"optimizer": "adamw-master", "dtype": "float16"},
    "step_autocast": {"autocast": "bf16", "micro_batches": 2},
    "step_own": {
        "optimizer": lambda parameters: torch.optim.Adagrad(parameters, foreach=False),
        "micro_batches": 3,
    },
    "step_checkpoint": {"checkpoint": True, "optimizer": "sgd"},
    "step_meta": {
        "meta": {"model": "tied", "source": "kept"},
        "optimizer": "none",
        "device": "meta",
    },
}
NAMES = [*_exports(), "in_place_functional", "tied_functional", "attention_functional", *STEPS]


def trained(checkpoint: bool = False, device: str = "cpu", **options: Any) -> Graph:
    """The graph of a training step of the tied model."""

    def make() -> nn.Module:
        with torch.device(device):
            return Tied(checkpoint)

    def loss(model: Any, given: Any) -> Any:
        return (
            functional.cross_entropy(
                model(given["tokens"]).flatten(0, 1), given["labels"].flatten()
            )
            * given["scale"]
        )

    tokens = torch.empty(2, 5, dtype=torch.int64, device="meta")
    given = {"tokens": tokens, "labels": tokens, "scale": torch.empty(())}
    return import_training(make, given, name="step", loss=loss, **options)


def row(name: str) -> Row:
    """The row of one program."""
    try:
        graph = trained(**STEPS[name]) if name in STEPS else exported(name)
    except InputError as error:
        return (name, VERSION, str(error))
    assert graph.meta["torch"] == VERSION
    meta = {key: value for key, value in graph.meta.items() if key != "torch"}
    checksum = crc32(json.dumps({**workload_to_dict(graph), "meta": None}).encode())
    return (
        name,
        VERSION,
        *figures(graph)[:-1],
        str(checksum),
        str(crc32(json.dumps(meta, sort_keys=True).encode())),
    )


def rows() -> Iterator[Row]:
    """The rows of all programs."""
    return map(row, NAMES)


TABLE = KeptTable("kept_programs", COLUMNS, rows)
"""The table."""
