"""Occupancy of one tier: bytes held now, by kind, and the largest ever held.

Bytes by kind are one integer, a *composition*, with :data:`COMPOSITION_BITS` bits a kind: two
compositions add up in one operation, and keeping one costs no copy.
"""

from hosim.graph import KINDS
from hosim.result import WORKSPACE

LEDGER_KINDS = (*KINDS, WORKSPACE)
"""Kinds by which occupancy is composed; the last one is the workspace of running ops."""

COMPOSITION_BITS = 80
"""Bits of a kind in a composition: no sum of sizes comes near 2^80."""

_SHIFTS = {kind: COMPOSITION_BITS * k for k, kind in enumerate(LEDGER_KINDS)}


def composition_of(kind: str, size: int) -> int:
    """``size`` bytes of ``kind`` as a composition."""
    return size << _SHIFTS[kind]


class Ledger:
    """Bytes held in a tier. ``held`` never exceeds ``capacity``: callers see to it.

    The peak is the largest occupancy ever reached, with its composition, at the first instant at
    which it is reached; what is released at an instant makes room for what is allocated at it, as
    callers do it in that order (docs/contract.md, rules 0 and 9).
    """

    __slots__ = ("capacity", "composition", "held", "peak", "peak_at", "peak_composition")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.composition = 0
        self.peak = 0
        self.peak_at = 0
        self.peak_composition = 0

    def allocate(self, size: int, composition: int, now: int) -> None:
        """Hold ``size`` bytes more from ``now`` on."""
        self.composition += composition
        self.held += size
        if self.held > self.peak:
            self.mark_peak(now)

    def release(self, size: int, composition: int) -> None:
        """Hold ``size`` bytes no longer."""
        self.composition -= composition
        self.held -= size

    def mark_peak(self, now: int) -> None:
        """Note the present occupancy as the peak."""
        self.peak = self.held
        self.peak_at = now
        self.peak_composition = self.composition

    def breakdown(self) -> dict[str, int]:
        """Composition of the peak: bytes by kind, those with bytes only."""
        sizes = {
            kind: self.peak_composition >> shift & (1 << COMPOSITION_BITS) - 1
            for kind, shift in _SHIFTS.items()
        }
        return {kind: size for kind, size in sizes.items() if size}
