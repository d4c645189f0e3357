"""What transfers of some sizes and kinds take beyond others: small ones, those of pageable memory, those that pin their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from hosim.costmodel.transfers import is_pageable, pin_ns
from hosim.engine.channels import IssuedTransfer
from hosim.graph import Graph
from hosim.hardware import Hardware


class TransferOverheads:
    """The pinned memory of one device's tiers, and the ceilings of transfers on the channels of one machine.

    A tier without a pool pins the bytes of every tensor that comes into it. One with a pool does so only where the bytes pinned rise
    above the most there ever were (``most``); ``held`` are those that tensors occupy now. Both are by tier position.
    """

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._tensors = graph.tensors
        self._hardware = hardware
        self._pins = [tier.pin_ns > 0 for tier in hardware.tiers]
        self._ceilings: dict[tuple[int, int, str], Fraction | None] = {}
        self._held = [0] * len(hardware.tiers)
        self._most = [0] * len(hardware.tiers)

    def place(self, tensors: Iterable[int], tier: int) -> None:
        """Tensors lie in a tier at time 0: their bytes are pinned already."""
        for t in tensors:
            self.pin(t, tier)

    def ceiling(self, transfer: IssuedTransfer) -> Fraction | None:
        """Bytes per second that a transfer can reach at most, if there is such a limit."""
        index, kind = transfer.channel.index, self._tensors[transfer.tensor].kind
        key = (index, transfer.size, kind)
        if key not in self._ceilings:
            channel = self._hardware.channels[index]
            self._ceilings[key] = channel.ceiling(transfer.size, is_pageable(self._hardware, channel, kind))
        return self._ceilings[key]

    def pin(self, t: int, tier: int) -> int:
        """A tensor's bytes come into a tier: nanoseconds to pin them."""
        if not self._pins[tier]:
            return 0
        tensor, where = self._tensors[t], self._hardware.tiers[tier]
        time = pin_ns(self._hardware, where.name, tensor.kind)
        if not time or not tensor.size_bytes:
            return 0
        self._held[tier] += tensor.size_bytes
        if where.pin_pool and self._held[tier] <= self._most[tier]:
            return 0
        self._most[tier] = max(self._most[tier], self._held[tier])
        return time

    def unpin(self, t: int, tier: int) -> None:
        """A tensor's bytes leave a tier."""
        if self._pins[tier] and pin_ns(self._hardware, self._hardware.tiers[tier].name, self._tensors[t].kind):
            self._held[tier] -= self._tensors[t].size_bytes
