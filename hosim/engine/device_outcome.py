"""What a device of the engine has done, in the words of :mod:`hosim.engine.result_figures`."""

from __future__ import annotations

from collections import Counter

from hosim.engine.device import DeviceReplay
from hosim.engine.other_processors import ProcessorsReplay
from hosim.engine.result_figures import Outcome


def outcome_of(device: DeviceReplay, error: str | None) -> Outcome:
    """What a device has done; ``error`` is its out-of-memory report, if it has one."""
    memory, slowed, waited = device.memory, Counter[str](), Counter[str]()
    if device.contention is not None:
        slowed.update(device.contention.slowed_ns)
        if device.contention.collectives is not None:
            slowed.update(device.contention.collectives.slowed_ns)
            waited.update(device.contention.collectives.waited_ns)
    if isinstance(device, ProcessorsReplay):
        for contention in device.contentions.values():
            slowed.update(contention.slowed_ns)
    makespan = max([memory.last_end, *(s.free_since for s in device.streams)])
    busy = [sum(map(device.durations.__getitem__, s.queue)) + slowed[s.name] + waited[s.name] for s in device.streams]
    exposed = device.main.exposed_ns if device.main is not None else [0] * len(memory.channels)
    return Outcome(
        error=error,
        makespan_ns=makespan,
        streams={s.name: s.figures(b, makespan) for s, b in zip(device.streams, busy, strict=True)},
        slowed_ns=sum(slowed.values()),
        waited_ns=sum(waited.values()),
        ledgers=memory.ledgers,
        channels=list(zip(memory.channels, exposed, strict=True)),
        decided=device.executed,
        timeline=device.recorder.timeline(device.clock.time) if device.recorder is not None else None,
        arena=memory.arena,
    )
