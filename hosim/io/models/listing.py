"""A list of the builders' presets, with their sizes and what they omit."""

from collections.abc import Iterator
from dataclasses import dataclass

from hosim.io.models.builder import build
from hosim.io.models.families import FAMILIES
from hosim.io.models.presets import PRESETS, left_out_of
from hosim.io.models.tape import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A preset: its numbers of layers and parameters, the phases of its builder, and the parts of
    the published model that the builder omits.
    """

    name: str
    layers: int
    parameters: int
    phases: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """The bytes of the weights in bf16, as the builder has them; published ones may be
        quantised, which ``left_out`` says.
        """
        return self.parameters * ITEM_BYTES["bf16"]


def listed_models() -> Iterator[ListedModel]:
    """Yield every preset."""
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
