"""120 edits of a step, drawn at random: the gate fails when something is worse, and the first line
of its explanation names the edit.

Neutral edits, such as another name or order of tensors, are never named as worse. What is listed at
a peak adds up to its change.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from gate_toys import machine

from hosim.gate import Case, Suite, check, write
from hosim.gate.verdicts import CaseVerdict
from hosim.graph import Graph, GraphBuilder
from hosim.io import save_hardware, save_workload

LAYERS = 4


@dataclass
class Spec:
    """A small training step, before it is built: what an edit changes. ``extra`` maps a layer to
    ops behind its ``relu``.
    """

    width: dict[str, int] = field(
        default_factory=lambda: {
            f"layers.{i}.{part}": 50 + i for i in range(LAYERS) for part in ("up", "down")
        }
    )
    rows: dict[str, int] = field(
        default_factory=lambda: {f"layers.{i}": 30 + 3 * i for i in range(LAYERS)}
    )
    workspace: dict[str, int] = field(default_factory=dict)
    slower: dict[str, int] = field(default_factory=dict)
    extra: dict[int, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    home: str = "hbm"
    shuffled: int | None = None
    policy: str = "resident"
    budget: str = "1500 B"

    def build(self) -> Graph:
        """Ops are named as a tracer names them: by kind, and counted on."""
        b = GraphBuilder("step")
        count: dict[str, int] = {}
        tensors: list[tuple[Any, ...]] = [("x", 20, "input", None)]
        ops: list[tuple[str, str, dict[str, Any]]] = []

        def op(kind: str, reads: list[str], size: int, tensor_kind: str = "activation") -> str:
            number = count[kind] = count.get(kind, -1) + 1
            name = f"{kind}_{number}" if number else kind
            tensors.append((name, size, tensor_kind, None))
            ops.append(
                (
                    name,
                    kind,
                    {
                        "inputs": [*reads, *[t for t, at in self.kept.items() if at == name]],
                        "outputs": [name],
                    },
                )
            )
            return name

        def parameter(name: str, size: int) -> str:
            first, _, last = name.rpartition(".")
            own = f"{first}.{self.names.get(last, last)}"
            tensors.append((own, size, "parameter", self.home))
            return own

        before, saved = "x", []
        for i in range(LAYERS):
            layer, rows = f"layers.{i}", self.rows[f"layers.{i}"]
            up = op("linear", [before, parameter(f"{layer}.up", self.width[f"{layer}.up"])], rows)
            act = op("relu", [up], rows + 1)
            for _ in range(self.extra.get(i, 0)):
                act = op("gelu", [act], rows + 2)
            saved.append((up, act))
            before = op(
                "linear", [act, parameter(f"{layer}.down", self.width[f"{layer}.down"])], rows + 3
            )
        for i in reversed(range(LAYERS)):
            before = op("backward", [before, *saved[i]], self.rows[f"layers.{i}"] + 4, "gradient")
        op("loss", [before], 4, "output")
        if self.shuffled is not None:
            random.Random(self.shuffled).shuffle(tensors)
        for name, size, kind, home in tensors:
            b.tensor(name, size, kind, home=home)
        for name, kind, uses in ops:
            b.op(
                name,
                kind,
                **uses,
                duration_ns=40 + self.slower.get(name, 0),
                workspace_bytes=self.workspace.get(name, 0),
            )
        return b.build()


Edit = Callable[[random.Random, Spec], tuple[Spec, str]]
"""The spec after the edit, and what the first line has to name; empty: nothing is worse."""


def one_parameter(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    name = draw.choice(sorted(spec.width))
    return replace(
        spec, width={**spec.width, name: spec.width[name] + draw.choice([1, 9, 70])}
    ), f"`{name}`"


def all_of_a_role(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    part, by = draw.choice(["up", "down"]), draw.choice([1, 20])
    return replace(
        spec, width={n: w + by * n.endswith(part) for n, w in spec.width.items()}
    ), f"`layers.{{0-3}}.{part}`"


def one_layer_of_activations(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    i = draw.randrange(1, LAYERS)
    rows = {**spec.rows, f"layers.{i}": spec.rows[f"layers.{i}"] + draw.choice([5, 50])}
    return replace(spec, rows=rows), f"2 x `linear_{{{2 * i}-{2 * i + 1}}}` (activation) has"


def workspace(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    name = draw.choice([op.name for op in spec.build().ops])
    return replace(spec, workspace={name: draw.choice([200, 900])}), f"op `{name}`"


def slower(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    name = draw.choice([op.name for op in spec.build().ops])
    return replace(spec, slower={name: draw.choice([20, 500])}), f"op `{name}`"


def another_op(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, extra={draw.randrange(LAYERS): draw.choice([1, 2])}), "gelu"


def lives_longer(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    name = draw.choice(["x", "linear_1", "relu", "linear_3"])
    return replace(
        spec, kept={name: draw.choice(["backward_2", "backward_3", "loss"])}
    ), f"`{name}`"


def renamed_and_wider(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    wider = {n: w + 7 * n.endswith("up") for n, w in spec.width.items()}
    return replace(
        spec, width=wider, names={"up": "expand"}
    ), "`layers.{0-3}.expand` (parameter in hbm) (was `up`)"


def smaller_budget(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, budget=f"{draw.choice([700, 800])} B"), "case: budget is"


def another_policy(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    return replace(
        spec, policy="layerwise" if spec.policy != "layerwise" else "on_demand"
    ), "case: policy is"


def renamed(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, names={"up": "w1", "down": "w2"}), ""


def reordered(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, shuffled=draw.randrange(100)), ""


def renamed_and_another_op(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    renamed_too = replace(spec, names={"up": "fc1", "down": "fc2"})  # two roles become one
    return another_op(draw, renamed_too)


def smaller(draw: random.Random, spec: Spec) -> tuple[Spec, str]:
    name = draw.choice(sorted(spec.width))
    return replace(spec, width={**spec.width, name: spec.width[name] - 1}), ""


EDITS: tuple[Edit, ...] = (
    one_parameter,
    all_of_a_role,
    one_layer_of_activations,
    workspace,
    slower,
    another_op,
    lives_longer,
    renamed_and_wider,
    renamed_and_another_op,
    smaller_budget,
    another_policy,
    renamed,
    reordered,
    smaller,
)


def judged(folder: Path, before: Spec, after: Spec) -> CaseVerdict:
    """The verdict on the second spec, with a baseline of the first."""
    for spec, measure in ((before, write), (after, check)):
        save_workload(spec.build(), folder / "step.json")
        case = Case(
            "step",
            "small.yaml",
            str(folder),
            workload="step.json",
            policy=spec.policy,
            budget=spec.budget,
        )
        found = measure(Suite("hosim.toml", folder / "hosim-baselines", (case,)))
    assert isinstance(found[0], CaseVerdict)
    return found[0]


def adds_up(lines: tuple[str, ...]) -> None:
    """What stands below the head of a peak is its change; all sizes here are in bytes."""
    heads = [i for i, line in enumerate(lines) if line.startswith("peak.")]
    for at in heads:
        change = re.search(r"\(([+-][0-9]+) B", lines[at])
        below = []
        for line in lines[at + 1 :]:
            if re.match(r"(peak|makespan|stall|moved)\b", line):
                break
            several = re.search(r"together (-?[0-9]+) B$", line)
            one = re.search(r": ([+-][0-9]+) B( at the peak)?$", line)
            below.append(int(several[1]) if several else int(one[1]) if one else 0)
        if change and below:
            assert sum(below) == int(change[1]), lines


OUTCOMES: dict[str, list[bool]] = {}


@pytest.mark.parametrize("seed", range(120))
def test_the_first_line_names_the_edit(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    save_hardware(machine(), tmp_path / "small.yaml")
    before = Spec(
        policy=draw.choice(["resident", "layerwise", "memory_peak", "keep_first"]),
        budget=draw.choice(["1500 B", "900 B", "100%"]),
    )
    before = replace(before, budget="2 kB") if before.policy == "resident" else before
    edit = EDITS[seed % len(EDITS)]
    after, named = edit(draw, before)
    verdict = judged(tmp_path, before, after)
    if not named:
        assert not verdict.fails(), verdict.explanation
    elif verdict.verdict in ("regression", "infeasible"):
        adds_up(verdict.explanation)
        assert named in verdict.explanation[0], verdict.explanation
