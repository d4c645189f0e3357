"""Exchanges between the stages of a pipeline: each begins and ends on all of them at once (docs/contract.md, rule 21)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosim.analysis import StageExchange
from hosim.engine.channels import IssuedTransfer
from hosim.engine.device_meetings import Collectives, DeviceCollectives, Started
from hosim.engine.stream import Stream


class _UnderWay:
    """An exchange that has begun: its ops, each with its device, and how many of them still flow."""

    __slots__ = ("flowing", "ops")

    def __init__(self, ops: list[tuple[DeviceExchanges, Started]]) -> None:
        self.ops = ops
        self.flowing = 0


class DeviceExchanges(DeviceCollectives):
    """The exchanges of one stage with others, beside its collectives, which wait for none."""

    def __init__(self, everyones: Collectives, exchanges: Mapping[int, StageExchange], sent: Mapping[int, int], *rest: Any) -> None:
        super().__init__(everyones, {}, sent, *rest)
        self.ops = exchanges.keys() | sent.keys()
        self._exchanges = exchanges
        self._under_way: dict[Started, _UnderWay] = {}

    def begin(self, stream: Stream, i: int, now: int, duration: int) -> int | None:
        """As of a collective; the exchange takes as long as the longest of its ops."""
        exchange = self._exchanges.get(i)
        if exchange is None:
            return super().begin(stream, i, now, duration)
        stream.began = -1  # copies do not slow it down but on fabrics
        last = Started(stream, i, now, duration)
        here = self.everyones.arrived.setdefault(exchange.message, [])
        here.append((self, last))
        if len(here) < len(exchange.members):
            return None
        del self.everyones.arrived[exchange.message]
        longest = max([started.duration for _, started in here])
        under_way = _UnderWay([(device, started) for device, started in here if isinstance(device, DeviceExchanges)])
        for device, started in under_way.ops:
            device._begins(started, now, longest)
            if device._flows(started, now, longest):
                device._under_way[started] = under_way
                under_way.flowing += 1
        if under_way.flowing:
            return None
        for device, started in under_way.ops:
            device._over(started, now + longest)
            if started is not last:
                started.stream.alarm.ring_at(now + longest)
        return now + longest

    def _passed(self, transfer: IssuedTransfer) -> None:
        under_way = self._under_way.pop(self._flowing[transfer], None)
        if under_way is None:
            super()._passed(transfer)
            return
        del self._flowing[transfer]
        under_way.flowing -= 1
        if not under_way.flowing:
            now = self.everyones.clock.time
            for device, started in under_way.ops:
                device._over(started, now)
                started.stream.alarm.ring_at(now)
