"""Graphs of the stand-in for ``torch.cuda`` (:mod:`fake_cuda`), as strict as those of CUDA; more so
for the host's memory, which may take no part in one.

Under a capture nothing runs: ops are noted, with the addresses of what they are given and make.
A replay is one launch, which runs the noted ops on these addresses. A pool of memory is an arena of
real bytes, so that two tensors that had one address in turn have the same bytes.
"""

import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from hosim.engine.allocators import CachingAllocator
from hosim.on_torch.lower import TrueLayouts

ARENA_BYTES = 1 << 24
LOOKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class MemPool:
    """A pool of device memory beside the shared one, as long as it is referred to."""

    count = 0

    def __init__(self, cuda):
        MemPool.count += 1
        self.id = (0, MemPool.count)
        self.allocator = CachingAllocator(ARENA_BYTES * cuda.scale)
        self.scale = cuda.scale
        with _disable_current_modes():
            self.arena = torch.zeros(ARENA_BYTES, dtype=torch.uint8)
        self.base = None
        cuda.pools.append(weakref.ref(self))

    def malloc(self, size, stream):
        address = self.allocator.try_malloc(size * self.scale, stream)
        self.base = address if self.base is None else self.base
        return address

    def real(self, address):
        return self.arena.data_ptr() + (address - self.base) // self.scale

    def has(self, pointer):
        return self.arena.data_ptr() <= pointer < self.arena.data_ptr() + ARENA_BYTES


class CUDAGraph:
    def __init__(self, cuda):
        self.cuda, self.noted, self.pool, self.generators = cuda, [], None, []

    def register_generator_state(self, generator):
        self.generators.append(generator._cdata)

    def capture_begin(self, pool=None, capture_error_mode="global"):
        cuda = self.cuda
        if cuda.current in cuda.streams[: len(cuda.current_of)]:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        cuda.require_no_capture()
        (self.pool,) = (one for one in cuda.live_pools() if one.id == pool)
        self.stream, cuda.capturing = cuda.current, self

    def capture_end(self):
        self.cuda.capturing = None

    def note(self, func, args, kwargs, read, written):
        """An op under the capture: what it would give, without contents."""
        generator = kwargs.get("generator")
        hosts = any(map(self.cuda.is_hosts, (*read, *written)))
        if LOOKS.intersection(func.tags) or hosts or func.namespace in self.cuda.untagged:
            raise not_permitted()
        if generator is not None and generator._cdata not in self.generators:
            raise RuntimeError("Attempt to use a generator that no graph has registered")
        if func.is_view or func._schema.name == "aten::set_":
            return func(*args, **kwargs)
        with _disable_current_modes(), TrueLayouts() as mode:
            fakes = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            given = dict(zip(map(id, tree_leaves(fakes)), tree_leaves((args, kwargs)), strict=True))
            found = func(*fakes[0], **fakes[1])

        def real(fake):
            if id(fake) in given:
                return given[id(fake)]
            with _disable_current_modes():
                return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype)

        result = tree_map_only(torch.Tensor, real, found)
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.cuda.launched.see(one)
        placed = tree_map_only(torch.Tensor, self.placed, (args, kwargs, result))
        self.noted.append((func, *placed))
        return result

    def placed(self, tensor):
        return AtAddress(self.cuda, tensor)

    def replay(self):
        cuda = self.cuda
        cuda.require_no_capture()
        place = cuda.current.launch(cuda.op_ns * len(self.noted))
        with _disable_current_modes():
            for func, args, kwargs, result in self.noted:
                args, kwargs = tree_map_only(AtAddress, AtAddress.tensor, (args, kwargs))
                found = func(*args, **kwargs)
                given = {one.data_ptr() for one in tree_leaves((args, kwargs)) if _is(one)}
                for one, there in zip(tree_leaves(found), tree_leaves(result), strict=True):
                    if _is(one) and there.pointer not in given:
                        there.tensor().copy_(one)
                        cuda.launched.touch(there.tensor(), place, True)
                _touch(cuda, func, args, kwargs, place)


class AtAddress:
    """Where a tensor lies."""

    def __init__(self, cuda, tensor):
        storage = tensor.untyped_storage()
        self.size, self.stride, self.dtype = tensor.size(), tensor.stride(), tensor.dtype
        self.offset, self.bytes = tensor.storage_offset(), storage.nbytes()
        start = cuda.address(storage)
        self.pointer = start + self.offset * tensor.element_size()
        self.start, self.storage = start, None
        if self.bytes and cuda.pool_at(start) is None:
            self.storage = weakref.ref(storage)

    def tensor(self):
        if self.storage is None:
            storage = torch._C._construct_storage_from_data_pointer(
                self.start, torch.device("cpu"), self.bytes
            )
        else:
            storage = self.storage()
            there = None if storage is None else (storage.data_ptr(), storage.nbytes())
            assert there == (self.start, self.bytes), "a graph uses memory that is gone"
        made = torch.empty(0, dtype=self.dtype)
        return made.set_(storage, self.offset, self.size, self.stride)


def not_permitted():
    return RuntimeError("CUDA error: operation not permitted when stream is capturing")


def _is(value):
    return isinstance(value, torch.Tensor)


def _touch(cuda, func, args, kwargs, place):
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    for argument in func._schema.arguments:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for value in tree_leaves(named.get(argument.name)):
            if _is(value):
                cuda.launched.touch(value, place, writes)
