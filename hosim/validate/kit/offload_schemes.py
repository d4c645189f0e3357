"""The simple offload schemes that the kit for GPU machines (:mod:`hosim.gpu`) records, and that are
predicted from a resident run.
"""

from dataclasses import dataclass

SMALLEST_OFFLOAD = 1 << 20
"""The least bytes of a storage that is offloaded: smaller ones are not worth two copies."""


@dataclass(frozen=True, slots=True)
class OffloadScheme:
    """The tensors of the layers that are offloaded to host memory. Embedding and head stay on the
    device.
    """

    name: str
    parameters: bool = False
    activations: bool = False
    optimizer: bool = False


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        OffloadScheme("resident"),
        OffloadScheme("stream-params", parameters=True),
        OffloadScheme("offload-activations", activations=True),
        OffloadScheme("offload-optimizer", optimizer=True),
        OffloadScheme("both", parameters=True, activations=True, optimizer=True),
    )
}
