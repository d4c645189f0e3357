"""Work that a queue of the CPU device runs, and the end of each."""

from __future__ import annotations

from collections.abc import Callable

from hosim.on_torch.lower.tiers import Label


class CpuEvent:
    """The end of one piece of work. ``is_awaited`` says whether other work waits for it."""

    __slots__ = ("end_ns", "is_awaited", "is_done", "then")

    def __init__(self) -> None:
        self.is_done = False
        self.is_awaited = False
        self.end_ns = 0
        self.then: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Return whether it has ended."""
        return self.is_done


class CpuWork:
    """One piece of work of a queue: what it waits for, and when it could have started."""

    __slots__ = ("after", "event", "found_none", "label", "room", "run")

    def __init__(
        self,
        run: Callable[[], object],
        after: tuple[CpuEvent, ...],
        label: Label | None,
        room: Callable[[], bool] | None,
        event: CpuEvent,
    ) -> None:
        self.run: Callable[[], object] | None = run
        self.after = after
        self.label = label
        self.room = room
        self.event = event
        self.found_none = False

    def ready(self) -> bool:
        """Return whether what it waits for has ended, and there is room."""
        if not all([event.is_done for event in self.after]):
            return False
        if self.room is None or self.room():
            return True
        self.found_none = True
        return False

    def ready_ns(self, now_ns: int) -> int:
        """The earliest time at which it could have started, as far as known."""
        return (
            now_ns
            if self.found_none or not self.after
            else max(event.end_ns for event in self.after)
        )
