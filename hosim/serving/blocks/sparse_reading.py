"""The blocks of a long cache that attention reads in a step, and the number of these that have to
come up from the tier below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from hosim.errors import InputError
from hosim.plain_text import counted
from hosim.units import human_percent


@dataclass(frozen=True, slots=True)
class AttendedTokens:
    """The tokens of a sequence that a step of decoding reads: its first ``sinks`` and last
    ``window`` tokens, and ``chosen`` of those between.
    """

    sinks: int
    window: int
    chosen: int

    @property
    def total(self) -> int:
        """Tokens that it reads at most."""
        return self.sinks + self.window + self.chosen


@dataclass(frozen=True, slots=True)
class SparseReads:
    """The same in blocks of the cache, and an assumption about which blocks are chosen, as no
    simulation knows them without the model.

    A sequence whose cache is below the device holds a buffer of ``resident`` blocks there, which
    has room for its ``sinks`` and what one step chooses, the blocks of its ``window``, and
    ``summaries`` of each block below, as a share of a block. Either ``hit`` says which share of the
    chosen blocks is in the buffer, or ``change`` which share was not chosen in the step before:
    these are drawn evenly from all that were not, so that they are in the rest of the buffer as
    often as it has its part of them. ``predicted`` says that a layer's blocks are known before the
    iteration begins, so that they come up while earlier layers compute.
    """

    sinks: int
    window: int
    chosen: Fraction
    resident: int
    summaries: Fraction
    hit: Fraction | None
    change: Fraction | None
    predicted: bool = False

    def held(self, below: int) -> int:
        """Blocks of the device that stand for ``below`` blocks of a sequence: its buffer, and their
        summaries.
        """
        return self.resident + ceil(self.summaries * below)

    def missed(self, below: int, blocks: int) -> Fraction:
        """The expected number of blocks that come up for a step of a sequence of ``blocks`` blocks,
        the first ``below`` of them below.
        """
        older = max(below, blocks - self.window) - self.sinks
        chosen = min(self.chosen, Fraction(older))
        if self.hit is not None:
            return (1 - self.hit) * chosen
        assert self.change is not None
        away = below - self.resident
        return (
            self.change * chosen * away / (older - chosen)
            if away > 0 and older > chosen
            else Fraction(0)
        )

    @property
    def assumption(self) -> str:
        """Return the assumption, in a sentence."""
        if self.hit is not None:
            said = f"{human_percent(float(self.hit))} of the chosen blocks are in the buffer"
        else:
            assert self.change is not None
            said = (
                f"{human_percent(float(self.change))} of the chosen blocks change from step to "
                "step, evenly among the others"
            )
        known = (
            "known before the iteration begins"
            if self.predicted
            else "known when their layer begins"
        )
        return (
            f"{said}; they are {known}; the buffer of a sequence has "
            f"{counted(self.resident, 'block')}"
        )


def sparse_reads(
    parameters: Mapping[str, Any],
    read: AttendedTokens | None,
    block_tokens: int,
    summaries: Fraction = Fraction(0),
) -> SparseReads:
    """Return the settings in the parameters of the policy ``sparse``, for a model that reads such
    tokens. Raises :class:`InputError`.

    ``summaries`` are those of a block by which the model chooses, as a share of its bytes.
    """
    if read is None:
        raise InputError(
            "this model's attention reads its whole cache in each step: say which blocks it "
            "reads, as in kv_block=64 of the model",
            source="kv sparse",
        )
    hit, change = (_share(parameters[name], name) for name in ("hit", "change"))
    if (hit is None) == (change is None):
        raise InputError(
            "which blocks attention chooses is not known without the model: give one of hit=0.9 "
            "(the share that is in the device) "
            "and change=0.1 (the share that was not chosen in the step before)",
            source="kv sparse",
        )
    chosen, sinks = Fraction(read.chosen, block_tokens), -(-read.sinks // block_tokens)
    least = sinks + ceil(chosen)
    tokens = parameters["resident"]
    resident = least if tokens is None else tokens // block_tokens
    if resident < least:
        least_tokens = least * block_tokens
        raise InputError(
            f"expected what a step reads, at least {least_tokens:,} tokens, got {tokens:,}",
            source="kv sparse",
            where="resident",
        )
    window = -(-read.window // block_tokens) + 1
    return SparseReads(
        sinks, window, chosen, resident, summaries, hit, change, parameters["predicted"]
    )


def _share(value: float | None, name: str) -> Fraction | None:
    if value is None:
        return None
    if not 0 <= value <= 1:
        raise InputError(
            f"expected a share from 0 to 1, got {value!r}", source="kv sparse", where=name
        )
    return Fraction(str(value))
