"""The time of a collective by its algorithm, ranks and bytes.

NCCL has a protocol for small messages, with little latency and part of the bandwidth, and one for
large ones; the faster one counts. The custom all-reduce of inference engines lets each rank read
what all others have, at once. Bytes are those of the whole message: what each rank has in an
all-reduce and an all-to-all, and what all have together in an all-gather and a reduce-scatter.
"""

from dataclasses import dataclass

import numpy as np

from hosim.analysis.costmodel.kernels.op_families.processor import Array, Processor, Shapes

_SWITCHED = 8
"""From so many ranks on, a machine with switches has all of them in its fabric, and may let these
add up.
"""


@dataclass(frozen=True, slots=True)
class CollectiveConstants:
    """The constants fitted for one kind of collective on one kind of link."""

    fixed_cycles: float
    """Launch and end between two ranks."""
    rank_cycles: float
    """The cycles that each further rank adds."""
    large_cycles: float
    """The cycles that the protocol for large messages adds."""
    small_share: float
    """The share of the link that the protocol for small messages reaches."""
    large_share: float
    """The share of the link that the protocol for large messages reaches between endlessly many
    ranks.
    """
    few_ranks: float
    """The part of that which n ranks lack, times n: fewer ranks use fewer of the links' channels."""
    switched: float
    """The factor by which that grows from :data:`_SWITCHED` ranks on."""


def collective_us(constants: CollectiveConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of collectives of ``bytes`` among ``ranks``; each rank sends ``passes`` times
    its share of all others' bytes.
    """
    ranks, link = shapes["ranks"], processor.link_bytes_per_us(shapes["ranks"])
    sent = (
        shapes["bytes"] * shapes["passes"] * (ranks - 1) / ranks / (1 - constants.few_ranks / ranks)
    )
    fixed = (constants.fixed_cycles + constants.rank_cycles * (ranks - 1)) * processor.cycle_us
    large = constants.large_share * np.where(ranks >= _SWITCHED, constants.switched, 1)
    return fixed + np.minimum(
        sent / (constants.small_share * link),
        constants.large_cycles * processor.cycle_us + sent / (large * link),
    )


@dataclass(frozen=True, slots=True)
class CustomConstants:
    """The constants fitted for the all-reduce in which each rank reads what all others have."""

    fixed_cycles: float
    """Launch and end between two ranks."""
    rank_cycles: float
    """The cycles that each further rank adds."""
    link_share: float
    """The share of the link that it reaches."""


def custom_us(constants: CustomConstants, processor: Processor, shapes: Shapes) -> Array:
    """Microseconds of custom all-reduces of ``bytes``, below
    :data:`hosim.analysis.costmodel.kernels.sizes_of_ops.CUSTOM_BYTES`, among ``ranks``.
    """
    others, link = shapes["ranks"] - 1, processor.link_bytes_per_us(shapes["ranks"])
    read = others * shapes["bytes"] / (constants.link_share * link)
    return (constants.fixed_cycles + constants.rank_cycles * others) * processor.cycle_us + read
