"""A stand-in for ``torch.cuda`` that computes on the CPU, and is as strict as torch and CUDA are by
their documentation.

Work is done when it is launched; what a real GPU might do later is followed in two ways. A clock of
its own says when work would end: each stream does one thing after the other, launching takes the
host time, and an event is done when the host's clock has passed it. And vector clocks say what is
ordered: each stream counts what is launched on it, a stream that waits for an event knows as much
as that event, and what is launched after the host has waited knows what the host knows. Two
accesses to the same bytes of which one writes must be ordered so, or there is a race.

Device memory is hosim's model of torch's caching allocator (:class:`Launched` follows every
storage): a block that ``record_stream`` named is reused only when the work that was on that stream
at its freeing has ended, and a request that finds no room raises ``torch.OutOfMemoryError`` after
torch's own second try. ``scale`` is how many bytes one byte of the small models stands for.
"""

import contextlib
import weakref

import torch
from fake_graphs import CUDAGraph, MemPool, not_permitted
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from hosim.engine.allocators import CachingAllocator

TOUCHES_NOTHING = (
    torch.ops.aten.set_.source_Storage,
    torch.ops.aten.set_.source_Storage_storage_offset,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.inductor._reinterpret_tensor.default,
)
EVERYTHING = (0, 1 << 62)


def install(monkeypatch, **options):
    """Put a stand-in in the place of what the machine uses of torch."""
    cuda, of_torch = FakeCuda(**options), "hosim.on_torch.lower.devices.torch_gpu"
    empty = torch.empty
    monkeypatch.setattr(f"{of_torch}.cuda", cuda)
    monkeypatch.setattr(f"{of_torch}.used_on", cuda.record_stream)
    monkeypatch.setattr(f"{of_torch}.gpu", cuda.gpu)
    monkeypatch.setattr(f"{of_torch}.address", cuda.address)
    monkeypatch.setattr(
        f"{of_torch}.is_on",
        lambda tensor, gpu: (
            not tensor.is_meta and tensor.untyped_storage()._cdata not in cuda.pageable
        ),
    )
    monkeypatch.setattr(f"{of_torch}.to_host", lambda tensor: cuda.to_host(tensor, empty))
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *a, pin_memory=False, **k: (
            cuda.pin(empty, *a, **k) if pin_memory else empty(*a, **k)
        ),
    )
    resize = torch.UntypedStorage.resize_
    monkeypatch.setattr(
        torch.UntypedStorage, "resize_", lambda storage, size: cuda.resized(storage, size, resize)
    )
    return cuda


class Stream:
    def __init__(self, cuda, device):
        self.cuda, self.device = cuda, device
        self.number = len(cuda.streams)
        cuda.streams.append(self)
        self.clock = {self.number: 0}
        self.free_ns = 0

    def wait_event(self, event):
        self.cuda.require_no_capture()
        _learn(self.clock, event.clock)
        self.free_ns = max(self.free_ns, event.at_ns)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self):
        event = Event(self.cuda)
        event.record(self)
        return event

    def launch(self, duration_ns):
        """Work that begins when the stream, and the host, get there; returns its place in the
        order.
        """
        self.cuda.now_ns += self.cuda.launch_ns
        self.free_ns = max(self.free_ns, self.cuda.now_ns) + duration_ns
        _learn(self.clock, self.cuda.known)
        self.clock[self.number] += 1
        return self.number, self.clock[self.number]


class Event:
    def __init__(self, cuda, timed=False):
        self.cuda = cuda
        self.timed = timed
        self.is_recorded = False
        self.clock = {}
        self.at_ns = 0

    def record(self, stream):
        stream.free_ns += self.cuda.record_ns
        self.clock = dict(stream.clock)
        self.at_ns = max(stream.free_ns, self.cuda.now_ns)
        self.is_recorded = True

    def query(self):
        self.cuda.require_no_capture()
        self.cuda.now_ns += self.cuda.query_ns
        if self.at_ns <= self.cuda.now_ns:
            _learn(self.cuda.known, self.clock)
            return True
        return False

    def synchronize(self):
        self.cuda.require_no_capture()
        self.cuda.now_ns = max(self.cuda.now_ns, self.at_ns)
        _learn(self.cuda.known, self.clock)

    def elapsed_time(self, other):
        """As ``CUDAEvent::elapsed_time`` checks."""
        if not (self.timed and other.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.is_recorded and other.is_recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (other.at_ns - self.at_ns) / 1e6


class FakeCuda:
    """What the machine uses of ``torch.cuda``: of ``devices`` GPUs, of which tensors lie on the one
    that a machine has asked for. Work on them goes to that device's current stream, whichever
    device is current; a call that names no device speaks of the current one. As soon as a machine
    has asked for its device, the user makes another one current.
    """

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(
        self,
        *,
        capacity=1 << 40,
        scale=1,
        op_ns=20_000,
        ns_per_byte=10.0,
        launch_ns=5_000,
        query_ns=100,
        record_ns=0,
        expandable=False,
        devices=2,
    ):
        self.streams = []
        self.index = self.used = 0
        self.fractions = [1.0] * devices
        self.scale = scale
        self.untagged = {"waits_without_a_tag"}  # namespaces of ops that no capture may have
        self.op_ns, self.ns_per_byte, self.launch_ns, self.query_ns, self.record_ns = (
            op_ns,
            ns_per_byte,
            launch_ns,
            query_ns,
            record_ns,
        )
        self.now_ns = 0
        self.known = {}  # what the host knows to have ended
        self.current_of = [Stream(self, number) for number in range(devices)]
        self.capacity = capacity
        self.allocator = CachingAllocator(capacity * scale, expandable=expandable)
        self.blocks = {}  # storage -> (weak reference, address, the stream whose block it is)
        self.used_on = {}  # storage -> streams that the allocator waits for
        self.pending = {}  # address -> when what was on those streams at its freeing has ended
        self.accesses = {}  # storage -> (first byte, last byte, stream, its count then, written)
        # storages of pinned memory -> (weak reference, bytes that torch takes for them)
        self.host = {}
        self.pageable = {}  # storages of the host's memory that nobody has pinned -> weak reference
        self.pinned_bytes = 0
        self.registered = {}  # first address -> bytes that the driver has pinned
        self.unpinnable = False
        self.pools = []  # weak references to pools beside the shared one
        self.pool = None  # the one that requests outside of captures go to
        self.pool_of = {}  # storage -> its pool, of those in one
        self.capturing = None  # the graph under capture
        self.launched = None  # the mode that follows ops
        self.refused = 0  # how many of the next allocations fail, whatever room there is

    # -- streams
    # ----------------------------------------------------------------------------------------------

    def is_available(self):
        return True

    @property
    def current(self):
        """The stream on which work on tensors is launched."""
        return self.current_of[self.used]

    def gpu(self, index):
        self.used = index
        self.index = (index + 1) % len(self.current_of)
        return torch.device("cpu")

    @property
    def main(self):
        """The first stream of the device that is used."""
        return self.streams[self.used]

    def of(self, device):
        return self.index if device is None else device

    def set_device(self, index):
        self.index = range(len(self.current_of))[index]

    def current_device(self):
        return self.index

    def current_stream(self, device=None):
        return self.current_of[self.of(device)]

    def Stream(self, device=None):  # noqa: N802
        return Stream(self, self.of(device))

    def Event(self, enable_timing=False):  # noqa: N802
        return Event(self, enable_timing)

    @contextlib.contextmanager
    def device(self, index):
        before, self.index = self.index, index
        try:
            yield
        finally:
            self.index = before

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_of[stream.device]
        self.current_of[stream.device] = stream
        try:
            with self.device(stream.device):
                yield
        finally:
            self.current_of[stream.device] = before

    # -- graphs
    # ----------------------------------------------------------------------------------------------

    def MemPool(self):  # noqa: N802
        return MemPool(self)

    def CUDAGraph(self):  # noqa: N802
        return CUDAGraph(self)

    @contextlib.contextmanager
    def use_mem_pool(self, pool, device=None):
        self.pool = pool
        try:
            yield
        finally:
            self.pool = None

    def live_pools(self):
        return [pool for one in self.pools if (pool := one()) is not None]

    def pool_at(self, pointer):
        return next((pool for pool in self.live_pools() if pool.has(pointer)), None)

    def address(self, storage):
        """Where a storage's bytes are: those of a pool in its arena."""
        pool = self.pool_of.get(storage._cdata)
        return storage.data_ptr() if pool is None else pool.real(self.blocks[storage._cdata][1])

    def require_no_capture(self):
        if self.capturing is not None:
            raise not_permitted()

    def is_hosts(self, value):
        key = value.untyped_storage()._cdata
        return key in self.pageable or key in self.host or self.pinned_at(value) is not None

    def synchronize(self, device=None):
        """What the host launches after it has waited comes after all that is there, on one
        device.
        """
        self.require_no_capture()
        streams = [stream for stream in self.streams if stream.device == self.of(device)]
        self.now_ns = max(self.now_ns, *(stream.free_ns for stream in streams))
        for stream in streams:
            _learn(self.known, stream.clock)

    # -- device memory
    # ----------------------------------------------------------------------------------------------

    def malloc(self, storage, size, stream):
        """Give a storage a block. Raises ``torch.OutOfMemoryError`` as torch does, after a second
        try with nothing pending or cached.
        """
        for address, (due_ns, _) in list(self.pending.items()):
            if due_ns <= self.now_ns:
                del self.pending[address]
                self.allocator.complete(address)
        retries = self.allocator.stats.retries
        address = None
        pool = self.pool if self.capturing is None else self.capturing.pool
        if self.refused:
            self.refused -= 1
        elif pool is not None:
            self.pool_of[storage._cdata] = pool
            address = pool.malloc(size, stream.number)
            if self.memory_reserved(self.used) > self.allocator._capacity // self.scale:
                address = None
        else:
            address = self.allocator.try_malloc(size * self.scale, stream.number)
        if self.pending and self.allocator.stats.retries > retries:  # it waited for all of them
            for due_ns, clock in self.pending.values():
                self.now_ns = max(self.now_ns, due_ns)
                _learn(self.known, clock)
            self.pending.clear()
        if address is None:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} B")
        key = storage._cdata
        self.blocks[key] = weakref.ref(storage, lambda _: self.freed(key)), address, stream

    def freed(self, key):
        """A storage's bytes go back to the allocator: the streams that used them must be known to
        the block's own, or recorded.
        """
        accesses = self.accesses.pop(key, [])
        recorded = self.used_on.pop(key, set())
        block = self.blocks.pop(key, None)
        if block is None:
            return
        _, address, stream = block
        pool = self.pool_of.pop(key, None)
        if pool is not None:
            pool.allocator.free(address)
            return
        clock = {**stream.clock}
        _learn(clock, self.known)
        for _, _, number, count, _ in accesses:
            if clock.get(number, 0) < count and number not in recorded:
                RULES_BROKEN.append(
                    "freed under a copy"
                )  # the last reference may go where nothing can be raised
        others = [self.streams[number] for number in recorded if number != stream.number]
        for other in others:
            self.allocator.record_stream(address, other.number)
        self.allocator.free(address)
        if others:
            clock = {}
            for other in others:
                _learn(clock, other.clock)
            self.pending[address] = max(other.free_ns for other in others), clock

    def resized(self, storage, size, resize):
        """``UntypedStorage.resize_``: a block of the new size, and the old one goes back."""
        if size != storage.nbytes() and storage._cdata not in self.pageable:
            self.freed(storage._cdata)
            if size:
                self.malloc(storage, size, self.current)
        return resize(storage, size)

    def record_stream(self, tensor, stream):
        """``Tensor.record_stream``."""
        self.used_on.setdefault(tensor.untyped_storage()._cdata, set()).add(stream.number)

    def empty_cache(self):
        """Cached segments of all devices go back to the driver, which waits for them."""
        for number in range(len(self.current_of)):
            self.synchronize(number)
        self.pending.clear()
        self.allocator.empty_cache()

    def mem_get_info(self, device=None):
        return self.capacity - self.memory_reserved(device), self.capacity

    def get_per_process_memory_fraction(self, device=None):
        return self.fractions[self.of(device)]

    def set_per_process_memory_fraction(self, fraction, device=None):
        self.fractions[self.of(device)] = fraction
        if self.of(device) == self.used:
            self.allocator._capacity = int(self.capacity * fraction) * self.scale

    def memory_allocated(self, device=None):
        is_used = self.of(device) == self.used
        return self.allocator.stats.allocated_bytes // self.scale if is_used else 0

    def memory_reserved(self, device=None):
        is_used = self.of(device) == self.used
        every = [self.allocator, *(pool.allocator for pool in self.live_pools())]
        return sum(one.stats.reserved_bytes for one in every) // self.scale if is_used else 0

    def max_memory_reserved(self):
        return self.allocator.stats.peak_reserved_bytes // self.scale

    def reset_peak_memory_stats(self):
        self.allocator._peak_allocated = self.allocator._allocated
        self.allocator._peak_active = self.allocator._active
        self.allocator._peak_reserved = self.allocator._reserved

    # -- host memory
    # ----------------------------------------------------------------------------------------------

    def pin(self, empty, *given, **named):
        """Pinned memory from torch, which takes a power of two of bytes and keeps it."""
        with _disable_current_modes():  # it is not the device's
            tensor = empty(*given, **named)
        storage = tensor.untyped_storage()
        taken = 1 << (max(storage.nbytes(), 1) - 1).bit_length()
        key = storage._cdata
        self.pinned_bytes += taken
        self.host[key] = weakref.ref(
            storage, lambda _: (self.host.pop(key, None), self.accesses.pop(key, None))
        )
        return tensor

    def on_host(self, tensors):
        """These tensors are in the host's memory; returns them."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            assert key not in self.blocks
            self.pageable[key] = weakref.ref(
                tensor.untyped_storage(), lambda _, key=key: self.pageable.pop(key, None)
            )
        return tensors

    def to_host(self, tensor, empty):
        """A copy of a device's tensor in the host's memory, which waits for the device."""
        with _disable_current_modes():
            (made,) = self.on_host(
                [
                    empty(0, dtype=tensor.dtype).set_(
                        torch.UntypedStorage(tensor.untyped_storage().nbytes())
                    )
                ]
            )
            made = made.as_strided(tensor.size(), tensor.stride())
        return made.copy_(tensor)

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        """0, or the error of memory that is pinned already (712) or cannot be (2)."""
        if self.unpinnable:
            return 2
        if any(
            address < first + there and first < address + size
            for first, there in self.registered.items()
        ):
            return 712
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        """0, or the error of memory that is not pinned (713); copies of it must have ended, as far
        as the host knows.
        """
        if address not in self.registered:
            return 713
        del self.registered[address]
        for _, _, number, count, _ in self.accesses.pop(address, ()):
            if self.known.get(number, 0) < count:
                RULES_BROKEN.append("host memory goes while a copy uses it")
        return 0

    def pinned_at(self, value):
        """Where a tensor lies in memory that the driver has pinned: its first address there;
        ``None`` elsewhere.
        """
        if isinstance(value, FakeTensor) or not self.registered:
            return None
        address = value.data_ptr()
        return next(
            (first for first, size in self.registered.items() if first <= address < first + size),
            None,
        )


RULES_BROKEN = []
"""Rules that were broken where nothing can be raised."""


class Launched(TorchDispatchMode):
    """Follows every aten op: its place in the order, its time, its memory. Raises at the first
    race, and at its end for a broken rule.
    """

    def __init__(self, cuda):
        super().__init__()
        self.cuda = cuda
        cuda.launched = self
        RULES_BROKEN.clear()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        if exception[0] is None:
            assert not RULES_BROKEN, RULES_BROKEN

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        cuda, kwargs = self.cuda, kwargs or {}
        named = {
            a.name: value for a, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        read, written = [], []
        for argument in func._schema.arguments:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            (written if writes else read).extend(
                v for v in tree_leaves(named.get(argument.name)) if isinstance(v, torch.Tensor)
            )
        if any(map(_has_no_bytes, (*read, *written))):
            return func(*args, **kwargs)
        capturing, cuda.capturing = cuda.capturing, None  # what is given was there before
        for value in (*read, *written):
            self.see(value)
        cuda.capturing = capturing
        if capturing is not None and capturing.stream is cuda.current:
            return capturing.note(func, args, kwargs, read, written)
        if any(value.untyped_storage()._cdata in cuda.pageable for value in (*read, *written)):
            return self.by_the_host(func, args, kwargs, named, read, written)
        random = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        result = func(*args, **kwargs)
        made = [v for v in tree_leaves(result) if isinstance(v, torch.Tensor)]
        if any(map(_has_no_bytes, made)):
            return result
        try:
            for value in made:
                self.see(value)
        except torch.OutOfMemoryError:
            if random is not None:
                torch.set_rng_state(random)  # torch asks for memory before it draws
            raise
        if not func.is_view and func not in TOUCHES_NOTHING:
            self.check_copy(func, read, written, named)
            place = cuda.current.launch(self.duration_ns(func, read, written))
            for value in read:
                self.touch(value, place, False)
            given = {value.untyped_storage()._cdata for value in read}
            for value in (
                *written,
                *(one for one in made if one.untyped_storage()._cdata not in given),
            ):  # an op may return what it is given
                self.touch(value, place, True)
            if func is torch.ops.aten.copy_.default and not named.get("non_blocking"):
                self.wait_for_copy(*read, *written)
        return result

    def wait_for_copy(self, *ends):
        """Between the device and the host's memory, the host waits for a copy that is not beside
        ops.
        """
        if len({self.on_host(value) for value in ends}) == 2:
            self.cuda.now_ns = max(self.cuda.now_ns, self.cuda.current.free_ns)
            _learn(self.cuda.known, self.cuda.current.clock)

    def by_the_host(self, func, args, kwargs, named, read, written):
        """What is done with memory that is not pinned: copies to and from the device, for which the
        host waits, and the host's own work.
        """
        cuda = self.cuda
        others = [
            v for v in (*read, *written) if v.untyped_storage().nbytes() and not self.on_host(v)
        ]
        if others:
            assert func is torch.ops.aten.copy_.default, (
                f"{func} of the host's memory and the device's"
            )
            assert not named.get("non_blocking"), "a copy of pageable memory beside ops"
            place = cuda.current.launch(self.duration_ns(func, read, written))
            for value in others:
                self.touch(value, place, any(value is one for one in written))
            cuda.now_ns = max(cuda.now_ns, cuda.current.free_ns)
            _learn(cuda.known, cuda.current.clock)
        for value in (*read, *written):
            self.touch_by_host(value, any(value is one for one in written))
        result = func(*args, **kwargs)
        made = [
            v
            for v in tree_leaves(result)
            if isinstance(v, torch.Tensor) and v.untyped_storage().nbytes()
        ]
        cuda.on_host(
            [
                v
                for v in made
                if v.untyped_storage()._cdata not in cuda.blocks and not self.on_host(v)
            ]
        )
        return result

    def touch_by_host(self, value, written):
        """The host reads or writes pinned memory: whatever streams did with it has ended, as far as
        the host knows.
        """
        first, size = value.data_ptr(), value.nbytes
        for start, stop, number, count, wrote in self.cuda.accesses.get(
            self.cuda.pinned_at(value), ()
        ):
            if first < stop and start < first + size and (written or wrote):
                assert self.cuda.known.get(number, 0) >= count, (
                    "the host touches memory that a copy uses"
                )

    def see(self, value):
        storage = value.untyped_storage()
        is_known = storage._cdata in self.cuda.blocks or self.cuda.pool_at(storage.data_ptr())
        if storage.nbytes() and not is_known and not self.on_host(value):
            self.cuda.malloc(storage, storage.nbytes(), self.cuda.current)

    def duration_ns(self, func, read, written):
        if func is torch.ops.aten.copy_.default and self.on_host(read[0]) != self.on_host(
            written[0]
        ):
            return round(written[0].nbytes * self.cuda.scale * self.cuda.ns_per_byte)
        return self.cuda.op_ns

    def on_host(self, value):
        if value.untyped_storage()._cdata in self.cuda.pageable:
            return True
        return (
            value.untyped_storage()._cdata in self.cuda.host
            or self.cuda.pinned_at(value) is not None
        )

    def check_copy(self, func, read, written, named):
        """A copy beside ops is one between the device's memory and pinned memory."""
        if func is torch.ops.aten.copy_.default and named.get("non_blocking"):
            assert self.on_host(read[0]) != self.on_host(written[0]), (
                "a copy of pageable memory, or within the device"
            )

    def touch(self, value, place, written):
        """An access to a storage of the device, or to some bytes of host memory."""
        storage, clock = value.untyped_storage(), self.cuda.current.clock
        key = storage._cdata
        if not storage.nbytes():
            return
        first, last = EVERYTHING
        pool = self.cuda.pool_at(value.data_ptr())
        if pool is not None:
            key = pool.id
            first = value.data_ptr()
            ends = zip(value.shape, value.stride(), strict=True)
            last = first + (1 + sum((n - 1) * step for n, step in ends)) * value.element_size()
        elif self.on_host(value):
            assert value.is_contiguous()
            key = key if key in self.cuda.host else self.cuda.pinned_at(value)
            first = value.data_ptr()
            last = first + value.nbytes
        left = []
        for access in self.cuda.accesses.get(key, ()):
            start, stop, number, count, wrote = access
            if stop <= first or last <= start:
                left.append(access)
                continue
            if written or wrote:
                assert clock.get(number, 0) >= count, (
                    f"a race on a storage of {storage.nbytes()} B: {self.cuda.current.number} "
                    f"{'writes' if written else 'reads'}"
                    f" what {number} {'writes' if wrote else 'reads'}"
                )
            if not (written and first <= start and stop <= last):
                left.append(access)
        self.cuda.accesses[key] = [*left, (first, last, *place, written)]


def _has_no_bytes(value):
    """Whether a tensor is one of a capture."""
    return isinstance(value, FakeTensor) or value.is_meta


def _learn(clock, other):
    for number, count in other.items():
        if clock.get(number, 0) < count:
            clock[number] = count
