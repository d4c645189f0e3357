"""Programs of ``torch.export`` as workload graphs.

The mapping:

- A tensor is a *storage*: tied parameters are one tensor, and so are a tensor and its views. Its
  bytes are the storage's. A view is no op, because it launches nothing: ``view``, ``transpose``,
  ``expand``, ``split``, a ``to`` or ``contiguous`` that returns its argument. Views are recognised
  not by a node's name but by running the program on fake tensors, which share storages as real
  ones do.
- An op is a node of the exported graph that computes; its name is the node's. Memory that a
  composite op (``matmul``, ``linear``, attention) allocates and frees is its ``workspace_bytes``;
  ``bytes_accessed`` and ``flops`` are summed over the aten ops inside. ``flops`` are those of
  ``torch.utils.flop_counter``'s registry (with attention on the CPU and grouped matmul, which it
  lacks).
- A tensor that exists from the start is in parts if ops use parts of it: those that views show
  (``experts[3]``, ``cache[:, :, 5:6]``), and those that indices choose. The values of indices are
  unknown: all count as different, so that as many rows of a table are read as are looked up, and
  as many of a cache are written (:mod:`hosim.io.importers.stored.storage_parts`).
  ``meta["missing"]`` names the tensors that are used whole because the part is not known. A program
  with cache nodes has whole storages, which these move.
- In-place ops and ``out`` variants mutate the storage that they write by their schema. A functional
  program that returns new values of buffers or inputs ends with one ``copy_`` for each, because its
  caller makes these copies.
- Kinds: ``parameter`` (``expert`` if its qualified name has a part ``experts``), ``buffer``
  (constants, too), ``input``; ``output`` for a storage that the program returns and produced
  itself; ``activation`` for the rest.
- ``meta["shapes"]`` has the shape of each tensor (of the first view seen on a storage); for a
  tensor in parts, that of the whole.

Memory is that of inference on the CPU's path: gradients are off, and attention is fused. See
:mod:`hosim.io.importers.torch_programs.torch_kernels`. torch is imported when a function of this
module is called.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hosim.cache_plan import CacheOp, Plan
from hosim.errors import InputError, errors_of
from hosim.graph import Graph
from hosim.io.importers.stored import cut_all
from hosim.io.importers.torch_programs.pt2_archive import read_archive
from hosim.io.importers.torch_programs.pt2_graph import Pt2Tensor
from hosim.io.importers.torch_programs.pt2_program import Pt2Program, read_program
from hosim.io.importers.torch_programs.storage_graph import StorageGraph

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from hosim.io.importers.torch_programs.torch_run import ProgramRun, RunnableProgram


# -- pt2 dims
# --------------------------------------------------------------------------------------------------
# Other input sizes for a program that was exported with dynamic sizes.

LARGEST = 2**40


def with_dims(program: Pt2Program, dims: Mapping[str, int]) -> Pt2Program:
    """Return the program with inputs of these sizes. All other sizes follow, because the program is
    run for a graph.

    Parameters
    ----------
    program
        The program.
    dims
        Sizes by the symbol that stands for them in the program, such as ``s77``, or by an input
        that has it, such as ``input_ids[1]``.

    Returns
    -------
    Pt2Program
        The program; sizes that are not named stay those of the example.

    Raises
    ------
    InputError
        For a name of no such size (the error lists the known ones), a size outside its range, two
        sizes for one symbol, an input that is not contiguous, and an input with a size that is
        computed from others.

    References
    ----------
    The documentation of ``torch.export``: dynamic shapes.

    Examples
    --------
    ``hosim import model.pt2 --dim 'input_ids[1]=4096' -o workload.json.gz``
    """
    if not dims:
        return program
    inputs = {
        spec.name: program.graph.tensors[spec.name]
        for spec in program.inputs
        if spec.kind == "input" and spec.name in program.graph.tensors
    }
    labels = {
        label: symbol for name, tensor in inputs.items() for label, symbol in _labels(name, tensor)
    }
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        symbol = labels.get(name, name)
        if symbol not in labels.values():
            free = ", ".join(f"{symbol} ({label})" for label, symbol in labels.items())
            there = (
                f"those that may vary are {free}"[:300]
                if free
                else "all its sizes are fixed; export it with dynamic shapes"
            )
            raise InputError(f"the program has no dimension {name[:100]!r}; {there}")
        if sizes.get(symbol, size) != size:
            raise InputError(f"dimension {symbol} is given two sizes, {sizes[symbol]} and {size}")
        low, high = program.ranges.get(symbol, (None, None))
        low, high = max(low or 1, 1), min(LARGEST if high is None else high, LARGEST)
        if not low <= size <= high:
            raise InputError(
                f"dimension {name[:100]} was exported for sizes from {low} to {high}, got {size}"
            )
        sizes[symbol] = size
    changed = {name: _resized(name, tensor, sizes) for name, tensor in inputs.items()}
    return replace(
        program, graph=replace(program.graph, tensors={**program.graph.tensors, **changed})
    )


def _labels(name: str, tensor: Pt2Tensor) -> Iterator[tuple[str, str]]:
    for axis, symbol in enumerate(tensor.symbols):
        if symbol:
            yield f"{name}[{axis}]", symbol


def _resized(name: str, tensor: Pt2Tensor, sizes: Mapping[str, int]) -> Pt2Tensor:
    if all([symbol is None for symbol in tensor.symbols]):
        return tensor
    if "" in tensor.symbols:
        raise InputError(
            f"input {name[:100]!r} has a size that is computed from others; export the program "
            "again with the sizes that you want"
        )
    known = [size or 0 for size in tensor.sizes]
    if any(
        size != 1 and stride != expected
        for size, stride, expected in zip(known, tensor.strides, _strides(known), strict=True)
    ):
        raise InputError(
            f"input {name[:100]!r} does not lie in one piece; export the program again with the "
            "sizes that you want"
        )
    wanted = [
        sizes.get(symbol or "", size) for symbol, size in zip(tensor.symbols, known, strict=True)
    ]
    return replace(tensor, sizes=tuple(wanted), strides=_strides(wanted))


def _strides(sizes: list[int]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def import_exported(
    program: ExportedProgram | RunnableProgram, *, name: str, meta: Mapping[str, Any] | None = None
) -> Graph:
    """Return the graph of an exported program, or of one that ``torch_pt2.load`` read. ``meta`` is
    added to the graph's.

    Raises :class:`InputError` for a program that cannot be run without the contents of its tensors
    (a shape that depends on data), and for higher-order ops other than those that only set a mode
    around a subgraph.
    """
    require_torch()
    import torch

    from hosim.io.importers.torch_programs import torch_run

    origin = {
        "source": "torch.export",
        "torch": torch.__version__.partition("+")[0],
        **(meta or {}),
    }
    run = torch_run.run(program)
    return workload_of(run, name, origin, in_parts=not run.moves)[
        0
    ]  # cache nodes move whole storages


def import_plan(
    program: ExportedProgram | RunnableProgram, *, name: str, policy: str = "imported"
) -> Plan:
    """Read the plan that an exported program contains as cache nodes.

    Parameters
    ----------
    program
        The program, with nodes ``hosim::prefetch``, ``hosim::store`` and ``hosim::detach``.
    name
        The name of the workload: the program without these nodes.
    policy
        The name of the plan's policy.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    InputError
        If the program cannot be imported (:func:`import_exported`), or its cache nodes do not make
        up a plan.

    References
    ----------
    docs/executor.md describes the graph with cache ops.
    """
    require_torch()
    from hosim.io.importers.torch_programs import torch_run

    run = torch_run.run(program)
    graph, positions = workload_of(run, name, {"source": "torch.export"})
    return plan_of(run, graph, positions, policy)


def import_pt2(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Graph:
    """Return the graph of the program in a ``.pt2`` file, as ``torch.export.save`` writes it; its
    name is the file's.

    A dynamic size is that of the example with which the program was exported, or the one in
    ``dims`` (:func:`hosim.io.importers.torch_programs.torch_export.with_dims`). Raises
    :class:`InputError` for a damaged file and for one that would make other readers run foreign
    code. The file is checked before torch is imported (see
    :mod:`hosim.io.importers.torch_programs.torch_pt2`).
    """
    source = os.fspath(path)
    found = read_program(read_archive(source))
    with errors_of(source):
        found = with_dims(found, dims or {})
    require_torch()
    from hosim.io.importers.torch_programs import torch_pt2

    name = os.path.basename(source)
    try:
        return import_exported(
            torch_pt2.program_of(found, source),
            name=name.removesuffix(".pt2"),
            meta={"file": name, **({"dims": dict(sorted(dims.items()))} if dims else {})},
        )
    except InputError as error:
        raise (
            error if error.source else InputError(error.message, source=source, where=error.where)
        ) from error


def require_torch() -> None:
    """Raise :class:`InputError` unless torch is installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InputError(
            "programs of torch.export need torch, which is not installed; run: pip install "
            "'hosim[torch]'"
        )


def workload_of(
    run: ProgramRun,
    name: str,
    meta: Mapping[str, Any],
    kinds: Mapping[int, str] = MappingProxyType({}),
    *,
    in_parts: bool = False,
) -> tuple[Graph, Mapping[int, int]]:
    """Return the graph of a run, and the position of each storage among its tensors (not valid
    ``in_parts``).

    ``kinds`` are those of some activations, by storage. ``in_parts``: tensors that exist from the
    start are cut into the parts that ops use. Random ops depend on each other in their order,
    because they draw from one generator.
    """
    sizes = {
        one.storage: (one.name, run.sizes[one.storage], run.shapes[one.storage])
        for one in run.held
        if in_parts
    }
    cuts, said = cut_all(sizes, ((step.name, use) for step in run.steps for use in step.uses))
    graph = StorageGraph(name, run.sizes, run.shapes, cuts)
    random = ""
    for held in run.held:
        graph.tensor(held.storage, held.name, held.kind)
    for step in run.steps:
        graph.outputs(
            step,
            ["output" if s in run.results else kinds.get(s, "activation") for s in step.outputs],
        )
        graph.op(step, [random] if step.random and random else [])
        random = step.name if step.random else random
    return graph.build({**meta, **said}), {storage: t for t, storage in enumerate(graph.names)}


def plan_of(run: ProgramRun, graph: Graph, positions: Mapping[int, int], policy: str) -> Plan:
    """Return the plan of a run's cache nodes over its graph. Raises :class:`InputError` unless they
    are numbered 0, 1, ...
    """
    moves = sorted(run.moves, key=lambda move: move.number)
    if [move.number for move in moves] != list(range(len(moves))):
        raise InputError(
            f"the program has {len(moves)} cache nodes, not numbered 0 to {len(moves) - 1}: lower "
            "the plan again"
        )
    cache_ops = tuple(
        CacheOp(m.op, positions[m.storage], m.source, m.destination, m.after) for m in moves
    )
    return Plan(
        graph,
        policy,
        cache_ops,
        {positions[storage]: tiers for storage, tiers in run.initial.items()},
    )
