"""Occupancy of one tier: bytes held now, by kind, and the largest ever held."""

from __future__ import annotations

from hosim.engine.program import LEDGER_KINDS

_KINDS = len(LEDGER_KINDS)


class Ledger:
    """Bytes held in a tier. ``held`` never exceeds ``capacity``: callers ask :meth:`fits` first.

    The peak is the largest occupancy ever reached, with its composition, at the first instant at which it is reached; what is
    released at an instant makes room for what is allocated at it, as callers do it in that order (design.md section 3, rules 0 and 9).
    """

    __slots__ = ("by_kind", "capacity", "held", "peak", "peak_at", "peak_by_kind")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.by_kind = [0] * _KINDS
        self.peak = 0
        self.peak_at = 0
        self.peak_by_kind = [0] * _KINDS

    def fits(self, wanted: int) -> bool:
        """Whether ``wanted`` more bytes fit."""
        return self.held + wanted <= self.capacity

    def allocate(self, size: int, kind: int, now: int) -> None:
        """Hold ``size`` bytes of ``kind`` from ``now`` on."""
        self.by_kind[kind] += size
        self.held += size
        if self.held > self.peak:
            self.mark_peak(now)

    def release(self, size: int, kind: int) -> None:
        """Hold ``size`` bytes of ``kind`` no longer."""
        self.by_kind[kind] -= size
        self.held -= size

    def mark_peak(self, now: int) -> None:
        """Note the present occupancy as the peak."""
        self.peak = self.held
        self.peak_at = now
        self.peak_by_kind = self.by_kind.copy()

    def breakdown(self) -> dict[str, int]:
        """Composition of the peak: bytes by kind, those with bytes only."""
        return {kind: size for kind, size in zip(LEDGER_KINDS, self.peak_by_kind, strict=True) if size}
