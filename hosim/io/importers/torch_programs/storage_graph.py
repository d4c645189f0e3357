"""A workload graph from steps that read and write numbered storages, as
:mod:`hosim.io.importers.torch_programs.torch_run` records them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hosim.data.unknown_ops import UNKNOWN_OPS, is_unknown
from hosim.edits import RANDOM, REPEATABLE
from hosim.graph import Graph, GraphBuilder
from hosim.io.importers.op_kinds import op_kind
from hosim.io.importers.stored import Cut, add_parts, used_by

if TYPE_CHECKING:
    from hosim.io.importers.torch_programs.torch_run import ProgramStep


class StorageGraph:
    """A graph that is being built. ``names`` has the tensor of each storage, in the order of the
    tensors; ``cuts`` has the storages that are in parts.
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        shapes: Sequence[Sequence[int]],
        cuts: Mapping[int, Cut] = MappingProxyType({}),
    ) -> None:
        self.names: dict[int, str] = {}
        self._builder = GraphBuilder(name)
        self._cuts = cuts
        self._sizes = sizes
        self._storage_shapes = shapes
        self._shapes: dict[str, list[int]] = {}
        self._random: list[str] = []
        self._unknown: list[str] = []

    def tensor(self, storage: int, wanted: str, kind: str) -> None:
        """Add the tensor of a storage, under the name ``wanted``, with underscores added if another
        tensor has it.
        """
        while wanted in self._shapes:
            wanted += "_"
        self.names[storage] = wanted
        if storage in self._cuts:
            add_parts(self._builder, wanted, self._cuts[storage], kind)
        else:
            self._builder.tensor(wanted, self._sizes[storage], kind)
        self._shapes[wanted] = list(self._storage_shapes[storage])

    def outputs(
        self,
        step: ProgramStep,
        kinds: Sequence[str],
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Add the tensors that a step makes, of these kinds. Their names are in ``names``, or are
        the step's, numbered if there are several.
        """
        for i, (storage, kind) in enumerate(zip(step.outputs, kinds, strict=True)):
            own = step.name if len(step.outputs) == 1 else f"{step.name}.{i}"
            self.tensor(storage, names.get(storage, own), kind)

    def op(self, step: ProgramStep, deps: Sequence[str] = ()) -> None:
        """Add the op of a step whose storages all have their tensors."""
        inputs, outputs, mutates = used_by(
            step.name, step.inputs, step.outputs, step.mutates, self.names, self._cuts
        )
        self._builder.op(
            step.name,
            op_kind(step.target),
            inputs=inputs,
            outputs=outputs,
            mutates=mutates,
            bytes_accessed=step.bytes_accessed,
            flops=step.flops,
            dtype=step.dtype,
            workspace_bytes=step.workspace_bytes,
            deps=deps,
            kernel=step.kernel[0],
            sizes=step.kernel[1],
        )
        if step.random:
            self._random.append(step.name)
        if is_unknown(step.target, op_kind(step.target), step.flops or None):
            self._unknown.append(step.name)

    def build(self, meta: Mapping[str, Any]) -> Graph:
        """Return the graph. Its ``meta`` also has the shapes of the tensors, and says that ops may
        run again, except random ones.

        torch declares the arguments that an op writes, so an op that is not random is a function of
        its inputs.
        """
        listed = {
            key: names
            for key, names in ((RANDOM, self._random), (UNKNOWN_OPS, self._unknown))
            if names
        }
        self._builder.meta = {**meta, REPEATABLE: True, **listed, "shapes": self._shapes}
        return self._builder.build()
