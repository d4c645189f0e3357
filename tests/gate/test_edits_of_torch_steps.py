"""Edits of a training step of torch: what keeps its bytes is never worse, and the first line of an
explanation names what was edited.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hosim.gate import Case, graph_of_model, measure_graph
from hosim.gate.judged_metrics import REGRESSION
from hosim.gate.records import Measured, read_record, save_record
from hosim.gate.verdicts import CaseVerdict, judge

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

CASE = Case("step", "h100-80gb-sxm", policy="resident")


TWO_IN_ONE = {"up": "fc1", "down": "fc2"}
"""Another name for each of two roles, which are one without their numbers."""


def block(asked: dict[str, Any], width: int) -> "torch.nn.Module":
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("norm", nn.LayerNorm(32))
            self.add_module(asked["up"], nn.Linear(32, width, bias=asked["bias"]))
            self.add_module(asked["down"], nn.Linear(width, 32, bias=False))
            if asked["gate"]:
                self.add_module("gate", nn.Linear(32, width, bias=False))
            if asked["table"] is not None:
                self.register_buffer("table", torch.zeros(8, 32, dtype=asked["table"]))

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            if asked["table"] is not None:
                x = x + self.table.to(x.dtype).mean(0)
            h = self.norm(x)
            heads = h.unflatten(-1, (4, 8)).transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(
                heads, heads, heads, is_causal=asked["causal"]
            )
            x = x + mixed.transpose(1, 2).flatten(2)
            h = getattr(functional, asked["act"])(getattr(self, asked["up"])(x))
            h = h * torch.sigmoid(self.gate(x)) if asked["gate"] else h
            h = functional.dropout(h, 0.1) if asked["dropout"] else h
            return x + getattr(self, asked["down"])(torch.tanh(h) if asked["tanh"] else h)

    return Block()


def graph(**changed: Any) -> Any:
    """The graph of a step; ``changed`` is what the edit asks for."""
    asked = {
        "widths": [96, 96, 96],
        "batch": 4,
        "tokens": 128,
        "up": "up",
        "down": "down",
        "list": "blocks",
        "act": "relu",
        "dropout": False,
        "gate": False,
        "table": None,
        "tied": None,
        "bias": False,
        "tanh": False,
        "causal": True,
        "checkpoint": False,
        "wrapped": False,
        "frozen": False,
        "dtype": torch.float32,
        "optimizer": torch.optim.SGD,
        **changed,
    }

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(200, 32)
            made = nn.ModuleList(block(asked, width) for width in asked["widths"])
            self.add_module(asked["list"], made)
            self.embed.weight.requires_grad_(not asked["frozen"])
            if asked["tied"] is not None:
                self.head = nn.Linear(32, 200, bias=False)
            if asked["tied"]:
                self.head.weight = self.embed.weight

        def forward(self, ids: "torch.Tensor") -> "torch.Tensor":
            x = self.embed(ids)
            for one in getattr(self, asked["list"]):
                x = (
                    torch.utils.checkpoint.checkpoint(one, x, use_reentrant=False)
                    if asked["checkpoint"]
                    else one(x)
                )
            return x if asked["tied"] is None else self.head(x)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, ids: "torch.Tensor") -> "torch.Tensor":
            return self.inner(ids)

    net = (Wrapped() if asked["wrapped"] else Net()).to(asked["dtype"])
    return graph_of_model(
        net,
        {"ids": torch.zeros(asked["batch"], asked["tokens"], dtype=torch.long)},
        lambda model, given: model(given["ids"]).square().mean(),
        asked["optimizer"](net.parameters(), lr=1e-3),
        name="step",
        source="here",
    )


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CaseVerdict]:
    folder, known = tmp_path_factory.mktemp("baselines"), dict[str, Path]()

    def verdict(before: dict[str, Any], now: dict[str, Any]) -> CaseVerdict:
        path = known.setdefault(repr(before), folder / f"{len(known)}.toml")
        if not path.exists():
            record = measure_graph(CASE, graph(**before)).record
            assert record is not None
            save_record(record, path)
        measured = measure_graph(CASE, graph(**{**before, **now}))
        return judge("step", Measured(read_record(path)), measured, {})

    return verdict


@pytest.mark.parametrize(
    "now",
    [
        {"up": "expand"},
        {"wrapped": True},
        {"widths": [96, 96, 80]},
        {"up": "fc", "wrapped": True},
        {"list": "layers", **TWO_IN_ONE},
        {"batch": 3},
    ],
)
def test_what_needs_no_more_passes(judged: Callable[..., CaseVerdict], now: dict[str, Any]) -> None:
    assert not judged({}, now).fails()


@pytest.mark.parametrize(
    ("before", "now", "first"),
    [
        (
            {},
            {"widths": [192] * 3},
            r"^6 x `blocks\.\{0-2\}\.\{down,up\}\.weight` .* had 12\.0 KiB",
        ),
        ({}, {"widths": [96, 112, 96]}, r"`blocks\.1\.down\.weight` \(parameter\) has 14\.0 KiB"),
        ({}, {"widths": [96] * 4}, r"^3 x `blocks\.3\.\*\.weight`|`blocks\.3\.\{down,norm,up\}"),
        ({}, {"widths": [112] * 3, "wrapped": True}, r"`inner\..*had 12\.0 KiB"),
        ({}, {"batch": 8}, r"^`ids` \(input\) has"),
        ({}, {"bias": True}, r"^3 x `blocks\.\{0-2\}\.up\.bias` \(parameter\) is new"),
        ({}, {"tanh": True}, r"^3 x `forward\.tanh_.*is new"),
        (
            {"tokens": 1024},
            {"causal": False},
            r"attention.* runs as `full_attention`, was `context_attention`",
        ),
        ({}, {"dtype": torch.float64}, r"^10 x `\*\.weight` \(parameter\) doubled, together"),
        ({}, {"optimizer": torch.optim.Adam}, r"^13 x `\*\.exp_avg` \(optimizer state\) is new"),
        (
            {"checkpoint": True},
            {"checkpoint": False},
            r"^less recomputation .* 3 x `mm` and 6 more ops",
        ),
        ({}, {"dropout": True}, r"^3 x `forward\.empty_like_.* is new, filled by `bernoulli_`"),
        ({}, {"act": "gelu"}, r"gelu"),
        ({}, {"gate": True}, r"^3 x `blocks\.\{0-2\}\.gate\.weight` \(parameter\) is new"),
        ({}, {"table": torch.float32}, r"^3 x `blocks\.\{0-2\}\.table` \(buffer\) is new"),
        (
            {"table": torch.int32},
            {"table": torch.int64},
            r"^3 x `blocks\.\{0-2\}\.table` \(buffer\) has 2\.00 KiB, had 1\.00 KiB",
        ),
        ({"tied": True}, {"tied": False}, r"^`head\.weight` \(parameter\) is new"),
        # nothing of what is renamed comes before what is new
        ({}, {"list": "h", **TWO_IN_ONE, "dropout": True}, r"filled by `bernoulli_`"),
        ({}, {"list": "h", **TWO_IN_ONE, "batch": 8}, r"^`ids` \(input\) has"),
        ({}, {"list": "h", **TWO_IN_ONE, "gate": True}, r"`h\.\{0-2\}\..*gate.* is new"),
        ({}, {"list": "h", **TWO_IN_ONE, "widths": [96] * 4}, r"^4 x `h\..*fc1.* is new"),
        ({"frozen": True}, {"frozen": False}, r"^`embed\.weight\.grad` \(gradient\) is new"),
    ],
)
def test_the_first_line_names_the_edit(
    judged: Callable[..., CaseVerdict],
    before: dict[str, Any],
    now: dict[str, Any],
    first: str,
) -> None:
    found = judged(before, now)
    assert found.verdict == REGRESSION
    assert re.search(first, found.explanation[0]), found.explanation


def test_ops_that_are_gone_are_counted(judged: Callable[..., CaseVerdict]) -> None:
    (said,) = [line for line in judged({}, {"act": "gelu"}).explanation if " is gone" in line]
    assert said == "3 x op `backward.threshold_backward_#` (threshold_backward) is gone"


@pytest.mark.parametrize("back", [False, True])
def test_ops_that_read_what_was_renamed_are_the_same(
    judged: Callable[..., CaseVerdict], back: bool
) -> None:
    names = [{"list": "blocks", "up": "up", "down": "down"}, {"list": "h", **TWO_IN_ONE}]
    old, new = names[::-1] if back else names
    found = judged({"optimizer": torch.optim.Adam, **old}, {"optimizer": torch.optim.AdamW, **new})
    assert re.search(r"^13 x op `optimizer\.mul__.* is new", found.explanation[0])
    assert not any(" reads " in line for line in found.explanation)


def test_parts_of_a_table_are_it() -> None:
    """Of an embedding an inference reads a part, which is larger with the batch: that follows."""

    def inference(batch: int) -> Measured:
        net = nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 32)).eval()
        ids = torch.zeros(batch, 8, dtype=torch.long)
        return measure_graph(CASE, graph_of_model(net, (ids,), name="net", source="here"))

    found = judge("step", inference(4), inference(8), {})
    assert found.verdict == REGRESSION
    assert "(input) has 512 B, had 256 B" in found.explanation[0]
    assert not any("`0.weight" in line for line in found.explanation[:2])


def test_an_op_behind_an_output_is_told_before_what_became_of_it() -> None:
    class Net(nn.Module):
        def __init__(self, wide: bool) -> None:
            super().__init__()
            self.up, self.wide = nn.Linear(32, 64), wide

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return self.up(x).double() if self.wide else self.up(x)

    def measured(wide: bool) -> Measured:
        x = (torch.zeros(64, 32),)
        return measure_graph(CASE, graph_of_model(Net(wide), x, name="net", source="here"))

    found = judge("step", measured(False), measured(True), {})
    assert found.explanation[0].endswith("(output) is new: 32.0 KiB")
    assert found.explanation[1] == "`linear` (activation) was output"
