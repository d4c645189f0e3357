"""The parts of a graph: tensors and ops, as frozen, integer-indexed data."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypedDict

from hosim.base.whole_numbers import keep_whole
from hosim.data.field_kinds import keep_kinds
from hosim.errors import GraphError
from hosim.plain_text import named

KINDS = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "kv_cache",
    "expert",
    "input",
    "output",
    "buffer",
)
"""Every kind of tensor, in the order in which tables and plots list them."""

PERSISTENT_KINDS = frozenset(
    {"parameter", "optimizer_state", "expert", "kv_cache", "input", "buffer"}
)
"""Kinds that hold their contents at time 0 and survive the step, unless a tensor says otherwise."""


MAIN_STREAM = "compute"
"""The stream that ops are in unless they say otherwise."""

_TEXT, _FLAG, _WHOLE = (str, type(None)), (bool, type(None)), (int, type(None))

DEVICE = "device"
"""The name of the device's processor in files and messages."""


REST = "rest"
"""The part of a tensor that no op of the step uses."""

READ = "read"
"""The part of a tensor that an op reads of it, such as the rows of a table that are looked up."""

PAST, NEW = "past", "new"
"""The parts of a cache: the tokens of earlier steps, and the one that this step adds."""


def part_name(whole: str, part: str) -> str:
    """The name that a builder gives the part of a tensor; that it is one says :attr:`Tensor.of`.

    >>> part_name("k_cache", "past")
    'k_cache[past]'
    """
    return f"{whole}[{part}]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One storage; views of it are the same tensor.

    Parameters
    ----------
    name
        Its name, unique in the graph.
    size_bytes
        The bytes it occupies.
    kind
        One of :data:`KINDS`.
    home
        The tier of its valid copy at time 0; ``None``: the device tier, or no tier for a tensor
        that the step itself produces.
    persistent
        Whether it is valid at time 0 and survives the step. ``None`` takes the default of the kind;
        after construction it is a bool.
    of
        The name of the whole that it is a part of (docs/contract.md, rule 1); empty: it is whole
        itself.

    References
    ----------
    ``docs/formats.md`` describes workloads.

    Examples
    --------
    >>> Tensor("w", 40, "parameter").persistent, Tensor("a", 30).persistent
    (True, False)
    """

    name: str
    size_bytes: int
    kind: str = "activation"
    home: str | None = None
    persistent: bool | None = None
    of: str = ""

    def __post_init__(self) -> None:
        if (
            not self.name.__class__ is self.kind.__class__ is self.of.__class__ is str
            or self.home.__class__ not in _TEXT
            or self.persistent.__class__ not in _FLAG
        ):
            keep_kinds(self, GraphError, f"tensor {named(self.name)}")
        if self.size_bytes.__class__ is not int:
            keep_whole(self, GraphError, f"tensor {named(self.name)}")
        if self.persistent is None:
            object.__setattr__(self, "persistent", self.kind in PERSISTENT_KINDS)

    @property
    def whole(self) -> str:
        """The name of the tensor that it is a part of; its own, if it is whole.

        >>> Tensor("k_cache[past]", 40, of="k_cache").whole, Tensor("w", 40).whole
        ('k_cache', 'w')
        """
        return self.of or self.name

    @property
    def survives(self) -> bool:
        """Return whether it outlives the step: it is persistent, or of kind ``output``."""
        return bool(self.persistent) or self.kind == "output"


@dataclass(frozen=True, slots=True)
class Op:
    """One computation.

    Parameters
    ----------
    name
        Its name, unique in the graph.
    kind
        What it computes, such as ``matmul``.
    inputs
        The positions of the tensors it reads.
    outputs
        The positions of the tensors it produces.
    mutates
        The positions of the tensors it changes in place.
    deps
        The positions of ops that must end before it starts, beyond those that tensors imply.
    stream
        The stream it runs on.
    duration_ns
        Its measured duration in nanoseconds, which wins over the cost model.
    flops
        Floating-point operations.
    bytes_accessed
        Bytes read and written in the tier of its processor.
    dtype
        The data type, which chooses the peak of the processor.
    workspace_bytes
        Bytes held in the tier of its processor while it runs.
    kernel
        The class of kernels that it is one of, such as ``gemm``; empty: none that hosim knows.
    sizes
        The sizes of that class, in its order.
    processor
        The tier whose processor runs it; empty: the device.
    also_on
        Other processors that a plan may let it run on instead, each with its measured duration
        there, or ``None``: what the cost model says.
    message
        What it sends, receives or exchanges with other stages of a pipeline, by a name that their
        ops have, too; empty: nothing.

    References
    ----------
    :mod:`hosim.analysis.costmodel.op_time` estimates its time if ``duration_ns`` is ``None``.

    Examples
    --------
    >>> Op("f", "matmul", inputs=(0,), mutates=(1,), outputs=(2,)).uses
    (0, 2, 1)
    """

    name: str
    kind: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    deps: tuple[int, ...] = ()
    stream: str = MAIN_STREAM
    duration_ns: int | None = None
    flops: int = 0
    bytes_accessed: int = 0
    dtype: str = "bf16"
    workspace_bytes: int = 0
    kernel: str = ""
    sizes: tuple[int, ...] = ()
    processor: str = ""
    also_on: tuple[tuple[str, int | None], ...] = ()
    message: str = ""

    def __post_init__(self) -> None:
        texts = self.name, self.kind, self.stream, self.dtype, self.kernel, self.processor
        lists = self.inputs, self.outputs, self.mutates, self.deps, self.sizes
        figures = self.flops, self.bytes_accessed, self.workspace_bytes
        if (
            {*map(type, texts), self.message.__class__} != {str}
            or {*map(type, lists)} != {tuple}
            or not {*map(type, chain(figures, *lists))} <= {int}
            or self.duration_ns.__class__ not in _WHOLE
            or self.also_on != ()
        ):
            about = f"op {named(self.name)}"
            keep_kinds(self, GraphError, about)
            keep_whole(self, GraphError, about)

    def without(self, tensors: Container[int]) -> Op:
        """The op as if it did not use these tensors.

        Parameters
        ----------
        tensors
            Positions of tensors.

        Returns
        -------
        Op
            A copy.

        Examples
        --------
        >>> Op("f", "matmul", inputs=(0, 1), outputs=(2,)).without({1}).uses
        (0, 2)
        """
        lists = self.inputs, self.outputs, self.mutates
        inputs, outputs, mutates = [tuple([t for t in x if t not in tensors]) for x in lists]
        return replace(self, inputs=inputs, outputs=outputs, mutates=mutates)

    @property
    def reads(self) -> tuple[int, ...]:
        """Tensors that must be resident when the op starts: its inputs and what it mutates, each
        once.
        """
        return self.inputs if not self.mutates else tuple(dict.fromkeys(self.inputs + self.mutates))

    @property
    def writes(self) -> tuple[int, ...]:
        """Tensors whose contents the op sets: its outputs and what it mutates, each once."""
        return (
            self.outputs if not self.mutates else tuple(dict.fromkeys(self.outputs + self.mutates))
        )

    @property
    def uses(self) -> tuple[int, ...]:
        """Every tensor the op touches (input, output or mutated), each once."""
        listed = self.inputs + self.outputs + self.mutates
        return listed if len(set(listed)) == len(listed) else tuple(dict.fromkeys(listed))


class OpFields(TypedDict, total=False):
    """The fields of an :class:`Op` that :meth:`hosim.graph.GraphBuilder.op` hands on; ``also_on`` is
    a mapping from processors to durations in nanoseconds.
    """

    bytes_accessed: int
    dtype: str
    workspace_bytes: int
    kernel: str
    sizes: tuple[int, ...]
    processor: str
    also_on: Mapping[str, int | None] | None
    message: str
