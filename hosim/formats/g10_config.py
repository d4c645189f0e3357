"""Importer of the training graphs that the published G10 simulator writes (MICRO'23, github
platformxlab/G10).

A folder has ``tensors.config`` (one line for each tensor) and ``kernels.config`` (one block for
each kernel, in execution order), each plain or gzipped. The simulator's source
(``src/analysis.cc``, ``src/main.cc``) defines their fields:

- *Bytes* are rounded up to pages of 4 KiB, tensor by tensor (``Tensor::Tensor``). Elements are
  fp32.
- *Global* tensors are the simulator's weights: they stay allocated across iterations. All others
  live from their first to their last use (``tensor_first_pass_liveness_analysis``), and nothing
  else counts as device memory.
- *Execution time* is in cycles of a 1.2 GHz clock of an A100 of 40 GB, with everything resident;
  their sum is the "ideal" time of its results.
- *In place*: a tensor is mutated if it is among both the inputs and the outputs of a kernel, or if
  it is an output that exists already.
- *Workspace* is not marked. The simulator makes it an output of its kernel that nothing reads. So
  every tensor that one kernel writes and no other uses is workspace here. A dead result looks the
  same, and needs the same memory.

Kinds are not in the format. A global tensor is a ``parameter`` if a kernel that applies gradients
updates it, an ``optimizer_state`` if only such kernels use it, else a ``buffer``. Others are
``input`` if they are read before anything writes them (held from the start of the step to their
last use, not persistent: each step brings its own), else ``gradient`` if the first to write them is
the loss, a backward kernel or a sum of gradients, else ``activation``. The simulator lists token
ids and masks among the weights, with a gradient; they cannot be distinguished and become
parameters. So do biases that it expands to the whole batch, which gives BERT-base "weights" of
16.6 GiB at batch 256.

The replay differs from the simulator of the published iteration times:

- Its GPU memory of 40 GB is 40 GiB in pages of 4 KiB, its host memory 128 GiB; its planner aims at
  99 % of the former. In the two variants over GPUDirect storage the planner aims at 42 GiB or more
  and the simulator holds four times the GPU (``scheduling_prefetch``, ``FlashNeuron_simulator``).
- Each direction of the PCIe link has the full rate (15.754e9 B/s); host and SSD share it, the SSD
  with 3.2e9 B/s a direction. The variants over GPUDirect storage, and its planner, take GB/s as
  2^30 B/s, and no latency.
- Weights start on the SSD, two iterations run one after the other, and the figure is that of the
  shorter one. In the variants over GPUDirect storage weights start on the GPU and one iteration
  runs. They need not return to where they started.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosim.base.files import read_bytes
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.limits import within
from hosim.measured_on import MEASURED_ON

CLOCK_HZ = 1_200_000_000
"""The clock of the published configurations (``GPU_frequency_GHz 1.2``)."""

_MACHINE = "g10-a100-40gb"
"""The profile of the machine on which the kernel times of the published configurations were
measured.
"""

_PAGE = 4096
# Eighteen digits are enough for any machine, and keep a damaged file from having a number with
# millions of digits.
_TENSOR = re.compile(
    r"tensor(\d{1,9}) Is weight \(global\)\?: ([01]), Size in byte: (\d{1,18}), "
    r"Range:(\d{1,18})--(\d{1,18})",
    re.ASCII,
)
_KERNEL = re.compile(r"Kernel ID: (\d{1,9}), Name: (\w{1,99})", re.ASCII)
_PARENT = re.compile(r"Parent (?:OP|Layer) ID:\d+; Name:.*", re.ASCII)
_CYCLES = re.compile(r"Execution Time: (\d{1,18})", re.ASCII)
_SHAPE = re.compile(r"\(-?\d+,-?\d+,-?\d+,-?\d+\)", re.ASCII)
_RULE = re.compile(r"_{8,}")
_GRADIENT = re.compile(r"Backward|makeLoss|Add_MultiGredient")  # the simulator's spelling


@dataclass(frozen=True, slots=True)
class _Tensor:
    size_bytes: int
    is_global: bool


@dataclass(slots=True)
class _Kernel:
    position: int
    name: str
    cycles: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def import_g10(directory: str | Path, *, clock_hz: int = CLOCK_HZ) -> Graph:
    """Return the graph of a folder with ``kernels.config`` and ``tensors.config``, named after the
    folder.

    Ops are the kernels in their order on the stream ``compute``, named ``<kernel>.<id>``, with the
    kernel's name as their kind. Durations are rounded by their running sum: every op ends at the
    nanosecond nearest to its exact end, so each is off by less than 1 ns and their sum by at most
    half. Raises :class:`InputError` with file and line if a file is missing, damaged or
    inconsistent with the other.
    """
    folder = Path(directory)
    tensors = _read_tensors(_required(folder, "tensors"))
    kernels = _read_kernels(_required(folder, "kernels"), tensors)
    return _build(folder.resolve().name, tensors, kernels, clock_hz)


def _required(folder: Path, name: str) -> Path:
    path = next(
        (path for suffix in ("", ".gz") if (path := folder / f"{name}.config{suffix}").is_file()),
        None,
    )
    if path is None:
        raise InputError(
            f"expected a folder of the G10 simulator with {name}.config or {name}.config.gz",
            source=str(folder),
        )
    return path


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the file's lines that are not blank, with their numbers from 1. Raises
    :class:`InputError` if it cannot be read.
    """
    try:
        text = read_bytes(str(path)).decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read as ASCII text ({error})", source=str(path)) from None
    within("records", text.count("\n"), source=str(path))
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip()


def _bad(path: Path, number: int, expected: str, line: str) -> InputError:
    shown = line if len(line) <= 60 else f"{line[:57]}..."
    return InputError(
        f"expected {expected}, got {shown!r}", source=str(path), where=f"line {number}"
    )


def _tensor(path: Path, number: int, line: str) -> tuple[int, _Tensor]:
    """Return the number and the data of the tensor in a line; both files use the same text."""
    match = _TENSOR.fullmatch(line)
    if match is None:
        raise _bad(
            path,
            number,
            "a tensor ('tensor7 Is weight (global)?: 0, Size in byte: 8192, Range:0--8192')",
            line,
        )
    size, begin, end = int(match[3]), int(match[4]), int(match[5])
    if end - begin != -(-size // _PAGE) * _PAGE:
        raise _bad(path, number, f"a range of {size} B rounded up to pages of 4 KiB", line)
    return int(match[1]), _Tensor(size, match[2] == "1")


def _read_tensors(path: Path) -> dict[int, _Tensor]:
    tensors: dict[int, _Tensor] = {}
    for number, line in _lines(path):
        name, tensor = _tensor(path, number, line)
        if name in tensors:
            raise _bad(path, number, "each tensor once", line)
        tensors[name] = tensor
    if not tensors:
        raise InputError("expected one tensor per line; the file is empty", source=str(path))
    return tensors


def _read_kernels(path: Path, tensors: Mapping[int, _Tensor]) -> list[_Kernel]:
    """Return the kernels in order. A block has a head, parent, time, (shape,) inputs, outputs and a
    rule.
    """
    kernels: list[_Kernel] = []
    lines = _lines(path)
    last = 0

    def following(expected: str) -> tuple[int, str]:
        found = next(lines, None)
        if found is None:
            raise InputError(
                f"expected {expected}, got the end of the file: it is cut off",
                source=str(path),
                where=f"line {last + 1}",
            )
        return found

    def operand(number: int, line: str, listed: list[int]) -> None:
        t, tensor = _tensor(path, number, line)
        if tensors.get(t) != tensor:
            raise _bad(path, number, f"tensor{t} as tensors.config has it", line)
        if t in listed:
            raise _bad(path, number, "each tensor of a list once", line)
        listed.append(t)

    while (head := next(lines, None)) is not None:
        last, line = head
        match = _KERNEL.fullmatch(line)
        if match is None or int(match[1]) != len(kernels):
            raise _bad(path, last, f"'Kernel ID: {len(kernels)}, Name: ...'", line)
        kernel = _Kernel(len(kernels), match[2])
        last, line = following("'Parent OP ID:...' or 'Parent Layer ID:...'")
        if _PARENT.fullmatch(line) is None:
            raise _bad(path, last, "'Parent OP ID:...' or 'Parent Layer ID:...'", line)
        last, line = following("'Execution Time: <cycles>'")
        match = _CYCLES.fullmatch(line)
        if match is None or int(match[1]) == 0:
            raise _bad(path, last, "'Execution Time: <cycles>', above 0", line)
        kernel.cycles = int(match[1])
        last, line = following("'Input Tensors:'")
        if _SHAPE.fullmatch(line):  # kernels of a convolutional layer have its shape
            last, line = following("'Input Tensors:'")
        if line != "Input Tensors:":
            raise _bad(path, last, "'Input Tensors:'", line)
        last, line = following("a tensor or 'Output Tensors:'")
        while line != "Output Tensors:":
            operand(last, line, kernel.inputs)
            last, line = following("a tensor or 'Output Tensors:'")
        last, line = following("a tensor or the rule that ends a kernel")
        while _RULE.fullmatch(line) is None:
            operand(last, line, kernel.outputs)
            last, line = following("a tensor or the rule that ends a kernel")
        kernels.append(kernel)
    if not kernels:
        raise InputError("expected kernels; the file is empty", source=str(path))
    return kernels


def _build(
    name: str, tensors: Mapping[int, _Tensor], kernels: list[_Kernel], clock_hz: int
) -> Graph:
    kinds = _kinds(tensors, kernels)
    meta: dict[str, str | int] = {
        "source": "G10 simulator, kernels.config and tensors.config",
        "clock_hz": clock_hz,
    }
    if clock_hz == CLOCK_HZ:
        meta[MEASURED_ON] = _MACHINE
    builder = GraphBuilder(name, meta)
    there = {t for t, kind in kinds.items() if tensors[t].is_global or kind == "input"}
    for t, kind in kinds.items():
        if kind is not None:
            is_global = tensors[t].is_global
            home = (
                "hbm" if kind == "input" else None
            )  # it exists at time 0 without being persistent, so it needs a home
            builder.tensor(_name(t), tensors[t].size_bytes, kind, home, is_global)
    cycles = end_ns = 0
    for kernel in kernels:
        cycles += kernel.cycles
        start_ns, end_ns = end_ns, (2 * cycles * 10**9 + clock_hz) // (2 * clock_hz)
        results = [t for t in kernel.outputs if kinds[t] is not None]
        mutated = [t for t in results if t in there or t in kernel.inputs]
        builder.op(
            f"{kernel.name}.{kernel.position}",
            kernel.name,
            inputs=[_name(t) for t in kernel.inputs if t not in mutated],
            outputs=[_name(t) for t in results if t not in mutated],
            mutates=[_name(t) for t in mutated],
            duration_ns=end_ns - start_ns,
            dtype="fp32",
            workspace_bytes=sum(tensors[t].size_bytes for t in kernel.outputs if kinds[t] is None),
        )
        there.update(results)
    return builder.build()


def _name(tensor: int) -> str:
    return f"tensor{tensor}"


def _kinds(tensors: Mapping[int, _Tensor], kernels: list[_Kernel]) -> dict[int, str | None]:
    """Return the kind of every tensor by the rules of the module's docstring; None for workspace
    and unused tensors.
    """
    users: dict[int, list[_Kernel]] = {t: [] for t in tensors}
    for kernel in kernels:
        for t in dict.fromkeys(kernel.inputs + kernel.outputs):
            users[t].append(kernel)

    def kind(t: int) -> str | None:
        if tensors[t].is_global:
            if not any("Apply_Grad" in kernel.name and t in kernel.outputs for kernel in users[t]):
                return "buffer"
            return (
                "optimizer_state"
                if all("Apply_Grad" in kernel.name for kernel in users[t])
                else "parameter"
            )
        if not users[t]:
            return None
        first = users[t][0]
        if t in first.inputs:
            return "input"
        if len(users[t]) == 1:
            return None
        return "gradient" if _GRADIENT.search(first.name) else "activation"

    return {t: kind(t) for t in tensors}
