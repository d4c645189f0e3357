"""The truth about a program's memory: run it on the CPU and look which storages are alive.

Independent of hosim: it knows nothing of ops, schemas or graphs. After every aten call it asks
torch, for each storage that it has ever seen, whether it is still there, and adds up the bytes of
those that are.

What it counts: every storage that an aten call takes or returns, from the return of the call that
made it until its last reference goes; what the caller holds (parameters, buffers, inputs) from the
start to the end. ``torch.fx.Interpreter`` drops a value right after its last use, but keeps to the
end what has no use at all; :class:`Frugal` drops that at once, as the Python code of a
``GraphModule`` does. What it does not see: memory that a kernel takes and frees within one aten
call.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveStorages(TorchDispatchMode):
    """``peak`` is the largest sum of bytes of storages that were alive at once."""

    def __init__(self, held: Sequence[Any]) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self.look(held)

    def look(self, values: Any) -> None:
        for value in tree_iter(values):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                reference = StorageWeakRef(
                    storage
                )  # keeps the address from being given to another storage
                self.seen.setdefault(reference.cdata, (reference, storage.nbytes()))
        self.seen = {
            address: entry for address, entry in self.seen.items() if not entry[0].expired()
        }
        self.peak = max(self.peak, sum(size for _, size in self.seen.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.look((args, kwargs, result))
        return result


class Frugal(torch.fx.Interpreter):
    """Keeps no value that no node uses, and notes the largest sum that ``tracker`` sees while each
    node runs.
    """

    def __init__(self, module: torch.fx.GraphModule, tracker: LiveStorages) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.tracker = tracker
        self.held: dict[str, int] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.tracker.peak = 0
        self.tracker.look(())
        result = super().run_node(n)
        self.held[n.name] = self.tracker.peak
        return result if n.users or n.op == "output" else None


def held_by_node(
    program: torch.export.ExportedProgram, example: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Bytes of the storages that are alive at the worst moment of each node, by its name, in a real
    run on the CPU.
    """
    user = iter(example.values())
    own = {**program.state_dict, **program.constants}
    inputs = [
        next(user) if spec.target is None else own[spec.target]
        for spec in program.graph_signature.input_specs
    ]
    tracker = LiveStorages(inputs)
    with torch.no_grad(), tracker:
        interpreter = Frugal(program.graph_module, tracker)
        results = interpreter.run(*inputs)
    assert any(isinstance(value, torch.Tensor) for value in tree_iter(results))
    return interpreter.held
