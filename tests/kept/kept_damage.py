"""What importers say of damaged files: every value of small files replaced, and bytes or lines of
others, a row for each place.

After a change that is meant to alter what is refused, or what a refusal says::

    python tests/kept/write.py kept_damage

writes the table anew. ``refused`` counts refusals; the checksum is of all messages and graphs,
which :func:`outcomes` gives.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import kineto_toys
from kept_table import KeptTable, Row

from hosim.errors import HosimError
from hosim.formats import (
    import_chakra,
    import_g10,
    import_hyper_parallel,
    import_inductor,
    import_mindir,
)
from hosim.graph import Graph
from hosim.io import workload_to_dict
from hosim.io.importers.recordings import import_kineto
from hosim.io.importers.torch_programs import import_torch_trace

COLUMNS = ("place", "refused", "checksum")
DATA = Path(__file__).parents[1] / "importers/data"
ABSENT = "absent"
VALUES: Sequence[Any] = (ABSENT, None, True, -1, 0, 3.5, "x", [3], {}, 1 << 60)
Place = tuple[str | int, ...]


def _accesses(op: int, reads: Sequence[int], writes: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"op_id": op, "storage_id": s, "kind": kind}
        for kind, sids in (("READ", reads), ("WRITE", writes))
        for s in sids
    ]


def _hyper_parallel() -> dict[str, Any]:
    return {
        "ops": [
            {"name": "mm.default", "duration_ms": 1.25, "accesses": _accesses(0, [9], [3])},
            {"name": "aten.relu_.default", "duration_ms": 2, "accesses": _accesses(1, [3], [4, 3])},
        ],
        "storage_sizes": {"3": 40, "4": 8, "9": 100, "77": 1000},
        "retained_sids": [4],
        "memory_limit_bytes": 50,
        "d2h_bandwidth_gbps": 8.0,
        "h2d_bandwidth_gbps": 16,
    }


def _tensor(storage: int, elements: int, device: str = "cuda:0") -> list[Any]:
    return [100 + storage, storage, 2, elements, 4, device]


def _old_node(
    number: int, parent: int, name: str, schema: str, inputs: list[Any], outputs: list[Any]
) -> dict[str, Any]:
    types = {
        "input_types": ["Tensor(float)"] * len(inputs),
        "output_types": ["Tensor(c10::Half)"] * len(outputs),
    }
    return {
        "id": number,
        "parent": parent,
        "name": name,
        "op_schema": schema,
        "inputs": inputs,
        "outputs": outputs,
        **types,
    }


def _new_node(
    number: int, parent: int, name: str, schema: str, inputs: list[Any], outputs: list[Any]
) -> dict[str, Any]:
    def side(values: list[Any]) -> dict[str, Any]:
        return {
            "values": values,
            "shapes": [[4, 2]] * len(values),
            "strides": [[1, 0]] * len(values),
            "types": ["Tensor(double)"],
        }

    attributes = [{"name": "op_schema", "type": "string", "value": schema}]
    return {
        "id": number,
        "ctrl_deps": parent,
        "name": name,
        "attrs": attributes,
        "inputs": side(inputs),
        "outputs": side(outputs),
    }


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
ADD = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"


def _torch_trace() -> dict[str, Any]:
    x, weight, y, gradient, moment, host = (
        _tensor(1, 8),
        _tensor(2, 6),
        _tensor(3, 12),
        _tensor(4, 6),
        _tensor(5, 6),
        _tensor(6, 5, "cpu"),
    )
    nodes = [
        _old_node(1, 1, "[pytorch|profiler|execution_trace|process]", "", [], []),
        _old_node(2, 1, "aten::linear", LINEAR, [x, weight, []], [y]),
        _old_node(
            3, 2, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor", [x, weight], [y]
        ),
        _new_node(4, 1, "autograd::engine::evaluate_function: MmBackward", "", [], []),
        _new_node(
            5, 4, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor", [x, y], [gradient]
        ),
        _new_node(6, 1, "Optimizer.step#SGD.step", "", [], []),
        _new_node(7, 6, "aten::add_", ADD, [moment, gradient], [moment]),
        _old_node(8, 6, "aten::add_", ADD, [weight, moment], [weight]),
        _old_node(9, 1, "aten::item", "aten::item(Tensor self) -> Scalar", [host], []),
    ]
    return {"schema": "1.0.1", "nodes": nodes}


def _g10_tensor(number: int, is_global: int, pages: int) -> str:
    return (
        f"tensor{number} Is weight (global)?: {is_global}, Size in byte: {pages * 4096 - 5}, "
        f"Range:{number}--{number + pages * 4096}"
    )


def _g10() -> dict[str, list[str]]:
    """The lines of both files of a step of two kernels."""
    tensors = [_g10_tensor(0, 0, 4), _g10_tensor(1, 1, 2), _g10_tensor(2, 0, 3)]
    first = [
        "Kernel ID: 0, Name: Conv2d_Forward",
        "Parent Layer ID:0; Name:Conv2d",
        "Execution Time: 12",
        "(8,3,4,-4)",
        "Input Tensors:",
    ]
    second = [
        "Kernel ID: 1, Name: Apply_Grad",
        "Parent OP ID:1; Name: Dot",
        "Execution Time: 7",
        "Input Tensors:",
        tensors[2],
    ]
    kernels = [
        *first,
        *tensors[:2],
        "Output Tensors:",
        tensors[2],
        "_" * 68,
        *second,
        "Output Tensors:",
        tensors[1],
        "_" * 8,
    ]
    return {"tensors": tensors, "kernels": kernels}


DOCUMENTS: dict[str, tuple[Callable[[], Any], Callable[..., Graph]]] = {
    "hyper_parallel": (_hyper_parallel, import_hyper_parallel),
    "torch_trace": (_torch_trace, import_torch_trace),
    "inductor": (lambda: json.loads((DATA / "inductor_mlp.json").read_text()), import_inductor),
    "kineto": (kineto_toys.step, import_kineto),
    "kineto_2021": (lambda: kineto_toys.in_the_schema_of_2021(kineto_toys.step()), import_kineto),
}
BINARIES: dict[str, tuple[str, Callable[..., Graph]]] = {
    "chakra": ("chakra_small.et", import_chakra),
    "mindir_mlp": ("mindir_mlp.mindir", import_mindir),
    "mindir_branches": ("mindir_branches.mindir", import_mindir),
}
CHANGES = range(24)
NAMES = [*DOCUMENTS, *BINARIES, "g10"]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where every value of a document lies."""
    yield place
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        yield from places(part, (*place, key))


def replaced(document: Any, place: Place, value: Any) -> Any:
    """The document with another value in a place."""
    if not place:
        return value
    made = copy.copy(document)
    if len(place) > 1 or value is not ABSENT:
        made[place[0]] = replaced(document[place[0]], place[1:], value)
    else:
        del made[place[0]]
    return made


def outcome(load: Callable[..., Graph], path: Path) -> str:
    """What a loader says of a file: the graph's checksum, or its refusal without the file's
    name.
    """
    try:
        graph = load(path)
    except HosimError as error:
        return str(error).replace(str(path), "FILE")
    return str(crc32(json.dumps(workload_to_dict(graph)).encode()))


def outcomes(name: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Of each place of a file, what is said when it holds something else."""
    if name in DOCUMENTS:
        make, load = DOCUMENTS[name]
        document = make()
        for place in places(document):
            said = []
            for value in VALUES:
                (folder / "file").write_text(json.dumps(replaced(document, place, value)))
                said.append(outcome(load, folder / "file"))
            yield f"{name}/{'.'.join(map(str, place))}", said
    elif name in BINARIES:
        file, load = BINARIES[name]
        content = (DATA / file).read_bytes()
        lots = random.Random(name)
        for part in CHANGES:
            said = []
            for _ in VALUES:
                changed = bytearray(content)
                at = lots.randrange(len(changed))
                length = lots.choice((0, 1, 1, 1, 2))
                changed[at : at + length] = lots.randbytes(length) if lots.random() < 0.8 else b""
                (folder / "file").write_bytes(bytes(changed[: len(changed) if part else at]))
                said.append(outcome(load, folder / "file"))
            yield f"{name}/{part}", said
    else:
        lines = _g10()
        for file, number in (
            (kind, n) for kind, listed in lines.items() for n in range(len(listed))
        ):
            said = []
            for other in (
                *lines[file],
                "",
                " ",
                "x" * 60,
                "x" * 61,
                lines[file][number].replace("0", "1"),
                lines[file][number] + "9",
            ):
                changed = [*lines[file][:number], other, *lines[file][number + 1 :]]
                for kind, content in (lines | {file: changed}).items():
                    (folder / f"{kind}.config").write_text("\n".join(content))
                said.append(outcome(import_g10, folder))
            (folder / f"{file}.config").write_text("\n".join(lines[file][:number]))
            said.append(outcome(import_g10, folder))
            yield f"{name}/{file}.{number}", said


def rows(name: str) -> Iterator[Row]:
    """The rows of one file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "g10").mkdir()
        for place, said in outcomes(name, Path(folder) / "g10"):
            yield (
                place,
                str(sum(not text.isdigit() for text in said)),
                str(crc32("\n".join(said).encode())),
            )


TABLE = KeptTable("kept_damage", COLUMNS, lambda: (row for name in NAMES for row in rows(name)))
"""The table."""
