"""Bytes of device storages while a graph really runs, seen from outside: every aten call, and every
change of a storage's size.

A storage counts what it holds at the moment, from the first aten call that takes or makes it (or
from the start, if it is held) until it dies. A storage that is first seen as a flat ``uint8``
tensor is the executor's host memory, and no tensor of these models.
"""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter


class Occupancy(TorchDispatchMode):
    """``peak`` is the most bytes at once since it was entered."""

    def __init__(self, held):
        super().__init__()
        self.known = {}
        self.below = set()
        self.peak = 0
        self.see(held)

    def see(self, values):
        for value in tree_iter(values):
            if isinstance(value, torch.Tensor) and not (
                value.dtype is torch.uint8 and value.dim() == 1
            ):
                storage = value.untyped_storage()
                known = self.known.get(storage._cdata)
                if known is None or known() is None:
                    self.known[storage._cdata] = weakref.ref(storage)

    def look(self):
        now = 0
        for address, reference in list(self.known.items()):
            storage = reference()
            if storage is None:
                del self.known[address]
            else:
                now += storage.nbytes()
        self.peak = max(self.peak, now)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.see((args, kwargs, result))
        self.look()
        return result

    def __enter__(self):
        self.resize = resize = torch.UntypedStorage.resize_

        def resize_and_look(storage, size):
            made = resize(storage, size)
            self.look()
            return made

        torch.UntypedStorage.resize_ = resize_and_look
        self.look()
        return super().__enter__()

    def __exit__(self, *exception):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*exception)


class OnCpu(torch.fx.Interpreter):
    """Runs a graph with torch's copies to the host and back, with the host's memory as flat bytes,
    which Occupancy does not count.
    """

    def run_node(self, node):
        ao, name = torch.ops.ao, str(node.target)
        if node.op != "call_function" or not name.startswith(("ao.", "prims.device_put")):
            return super().run_node(node)
        args, _ = self.fetch_args_kwargs_from_env(node)
        value = args[0]
        if node.target is ao.wait_tensor.default:
            if value.dtype is torch.uint8:
                args[1].untyped_storage().resize_(0)
            return value
        if value.dtype is not torch.uint8:
            with _disable_current_modes():
                return value.contiguous().view(-1).view(torch.uint8).clone()
        like = node.meta["val"]
        made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        with _disable_current_modes():
            return made.copy_(value.view(like.dtype).view(like.shape))
