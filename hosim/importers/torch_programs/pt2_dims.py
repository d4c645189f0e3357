"""Other sizes for the inputs of a program that was exported with sizes that may vary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from hosim.errors import InputError
from hosim.importers.torch_programs.pt2_graph import Pt2Tensor
from hosim.importers.torch_programs.pt2_program import Pt2Program

LARGEST = 2**40


def with_dims(program: Pt2Program, dims: Mapping[str, int]) -> Pt2Program:
    """The program with inputs of these sizes. The program runs again for a graph, so that all other
    sizes follow.

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
        For a name of no such size (the error lists those there are), a size out of its range, one
        that is given twice, and an input whose elements do not lie one after the other, or that has
        a size computed from others.

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
