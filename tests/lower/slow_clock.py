"""Time that passes only while a transfer waits: what throttled transfers take is then exact."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hosim.on_torch.lower.devices import CpuDevice


class Clock:
    """Stands in for the time of the machine. ``late_s`` are seconds that each of the next waits
    takes too long.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.late_s: list[float] = []

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        late = self.late_s.pop(0) if self.late_s else 0
        self.now_ns += round((seconds + late) * 1e9)


def use(monkeypatch: pytest.MonkeyPatch, clock: Clock, sleep: Callable[[float], object]) -> None:
    """Let the CPU machine read this clock, and transfers wait with ``sleep``."""
    monkeypatch.setattr(time, "perf_counter_ns", clock.perf_counter_ns)
    monkeypatch.setattr(CpuDevice, "_sleep", lambda _, seconds: sleep(seconds))


class Gate:
    """Holds every throttled transfer until it is opened; ten minutes at most, so that what is
    broken fails instead of hanging.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set
        use(monkeypatch, Clock(), lambda _: self._opened.wait(600))
