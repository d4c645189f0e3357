"""A stand-in for ``torch.cuda`` that computes on the CPU and finds races.

Work is done when it is launched; what a real GPU might do later, or earlier, is followed with vector clocks. Each stream counts what is
launched on it. An event is what has ended when the GPU passes it; a stream that waits for it knows that much. Two accesses to a storage of
which one writes must be ordered so, or there is a race: :class:`Races` looks at every aten op.
"""

import contextlib
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOUCHES_NOTHING = (torch.ops.aten.set_.source_Storage, torch.ops.aten.empty.memory_format)


class Stream:
    made = []  # noqa: RUF012

    def __init__(self):
        self.number = len(Stream.made)
        Stream.made.append(self)
        self.clock = {self.number: 0}

    def wait_event(self, event):
        for number, count in event.clock.items():
            self.clock[number] = max(self.clock.get(number, 0), count)

    def wait_stream(self, other):
        self.wait_event(other)


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream):
        self.clock = dict(stream.clock)
        self.at = time.perf_counter()

    def query(self):
        return False  # the host never finds anything done that it has not waited for

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


class FakeCuda:
    """What the machine uses of ``torch.cuda``."""

    Stream, Event = Stream, Event

    def __init__(self):
        self.main = self.current = Stream()
        self.used_on = {}  # storage -> streams that the allocator waits for

    def is_available(self):
        return True

    def set_device(self, index):
        assert index == 0

    def current_device(self):
        return 0

    def current_stream(self):
        return self.current

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def synchronize(self):
        """What the host launches after it has waited comes after all that is there."""
        for stream in Stream.made:
            self.main.wait_stream(stream)


class Races(TorchDispatchMode):
    """Raises at the first race. ``reads`` and ``writes`` have the accesses to each storage as (stream, its count then)."""

    def __init__(self, cuda):
        super().__init__()
        self.cuda = cuda
        self.reads = {}
        self.writes = {}
        self.kept = []  # storages, so that no address is used twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func not in TOUCHES_NOTHING:
            named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
            for argument in func._schema.arguments:
                written = argument.alias_info is not None and argument.alias_info.is_write
                for value in tree_leaves(named.get(argument.name)):
                    self.touch(value, written)
            for value in tree_leaves(result):
                self.touch(value, True)
        return result

    def touch(self, value, written):
        if not isinstance(value, torch.Tensor):
            return
        storage, stream = value.untyped_storage(), self.cuda.current
        key = storage._cdata
        self.kept.append(storage)
        stream.clock[stream.number] += 1
        now = (stream.number, stream.clock[stream.number])
        before = self.writes.get(key, []) + (self.reads.get(key, []) if written else [])
        for number, count in before:
            assert stream.clock.get(number, 0) >= count, f"a race on a storage of {storage.nbytes()} B"
        if written:
            self.writes[key], self.reads[key] = [now], []
        else:
            self.reads.setdefault(key, []).append(now)

    def freed(self, storage):
        """Its bytes go back to the allocator, on the stream that computes: others that read them must be known to it."""
        key, clock = storage._cdata, self.cuda.main.clock
        known = self.cuda.used_on.pop(key, set())
        for number, count in self.writes.get(key, []) + self.reads.get(key, []):
            assert clock.get(number, 0) >= count or number in known, "freed under a copy"
        self.writes.pop(key, None)
        self.reads.pop(key, None)
