"""The presets of builders, each with what tells it from the others."""

from collections.abc import Iterator
from dataclasses import dataclass

from hosim.io.models.builder import build
from hosim.io.models.families import FAMILIES
from hosim.io.models.presets import PRESETS, left_out_of
from hosim.io.models.tape import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A preset: how many layers and parameters it has, how its builder runs it, and what of the
    published model the builder leaves out.
    """

    name: str
    layers: int
    parameters: int
    phases: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """The weights in bf16, as the builder has them; published ones may be quantised, which
        ``left_out`` says.
        """
        return self.parameters * ITEM_BYTES["bf16"]


def listed_models() -> Iterator[ListedModel]:
    """Every preset."""
    for name, sizes in PRESETS.items():
        graph = build(name, {"model": name, "fused": True})
        held = sum(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert"))
        yield ListedModel(
            name,
            sizes.num_hidden_layers,
            held // ITEM_BYTES["bf16"],
            FAMILIES[type(sizes)].phases,
            left_out_of(name),
        )
