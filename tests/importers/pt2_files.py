"""Copies of a ``.pt2`` archive with changes, hostile ones among them, and code that leaves a mark
where it is executed.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Records = dict[str, bytes]

MODEL, WEIGHTS, CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)


def records_in(path: Path) -> Records:
    """The records of an archive by their names after its folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write_archive(
    path: Path,
    records: Mapping[str, bytes],
    folder: str = "tied/",
    method: int = zipfile.ZIP_STORED,
) -> Path:
    """An archive of these records in one folder."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(f"{folder}{name}", content)
    return path


def edited(change: Callable[[Any], None], record: str = MODEL) -> Callable[[Records, Path], None]:
    """An edit of the JSON in a record."""

    def edit(records: Records, mark: Path) -> None:
        del mark
        data = json.loads(records[record])
        change(data)
        records[record] = json.dumps(data).encode()

    return edit


class Trap:
    """Makes the folder ``mark`` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.mark,)


def pickled(mark: Path) -> bytes:
    return pickle.dumps(Trap(mark), protocol=2)


def saved_by_torch(content: bytes) -> bytes:
    """A pickle as ``torch.save`` wraps it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def calling(mark: Path) -> str:
    """An expression of letters, digits and brackets that makes the folder ``mark`` when sympy
    evaluates it.
    """
    code = f"__import__('os').mkdir({str(mark)!r})"
    return "exec(" + "+".join(f"chr({ord(letter)})" for letter in code) + ")"


def size_that_calls(records: Records, mark: Path) -> None:
    def change(model: Any) -> None:
        sizes = model["graph_module"]["graph"]["tensor_values"]["tokens"]["sizes"]
        sizes[0] = {"as_expr": {"expr_str": calling(mark), "hint": {"as_int": 8}}}

    edited(change)(records, mark)


def constant(path: str, folder: str = "data/constants/") -> Callable[[Records, Path], None]:
    """A pickled constant in the record ``folder + path``."""

    def edit(records: Records, mark: Path) -> None:
        def change(config: Any) -> None:
            config["config"]["object"] = {
                "path_name": "opaque_obj_0",
                "is_param": False,
                "use_pickle": True,
                "tensor_meta": None,
            }

        edited(change, CONSTANTS)(records, mark)
        records[folder + path] = pickled(mark)

    return edit


def pickled_weight(records: Records, mark: Path) -> None:
    def change(config: Any) -> None:
        config["config"]["mix.bias"]["use_pickle"] = True

    edited(change, WEIGHTS)(records, mark)
    name = json.loads(records[WEIGHTS])["config"]["mix.bias"]["path_name"]
    records[f"data/weights/{name}"] = saved_by_torch(pickled(mark))


def pickled_examples(records: Records, mark: Path) -> None:
    records["data/sample_inputs/model.pt"] = saved_by_torch(pickled(mark))


def model_of_another_ending(records: Records, mark: Path) -> None:
    hostile = dict(records)
    size_that_calls(hostile, mark)
    records["models/model.text"] = hostile[MODEL]


def legacy_layout(records: Records, mark: Path) -> None:
    hostile = dict(records)
    size_that_calls(hostile, mark)
    model, examples = hostile[MODEL], records["data/sample_inputs/model.pt"]
    records.clear()
    records.update(
        {"models/none.json": b"{}", "version": b"8.20", "serialized_exported_program.json": model}
    )
    for name in ("state_dict", "constants", "example_inputs"):
        records[f"serialized_{name}.pt"] = examples


def containers(node: Any) -> Callable[[Records, Path], None]:
    """The program's results are described as ``node``."""

    def change(model: Any) -> None:
        spec = json.dumps([1, node])
        model["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = spec

    return edited(change)


LEAF = {"type": None, "context": None, "children_spec": []}
FACTORY = {
    "default_factory_module": "marking",
    "default_factory_name": "make",
    "dict_context": ["a"],
}
IMPORTING = {"type": "collections.defaultdict", "context": FACTORY, "children_spec": [LEAF]}
"""A description of containers that imports the module ``marking``."""
ENUM = {
    "type": "builtins.dict",
    "context": json.dumps([{"__enum__": True, "fqn": "marking:Kind", "name": "a"}]),
    "children_spec": [LEAF],
}


def nodes_of(model: Any) -> list[Any]:
    return model["graph_module"]["graph"]["nodes"]


def named(old: str, new: str) -> Callable[[Records, Path], None]:
    """The value ``old`` is called ``new``, where ``MARK`` stands for the path of the mark."""

    def edit(records: Records, mark: Path) -> None:
        name = json.dumps(new.replace("MARK", str(mark)))
        records[MODEL] = records[MODEL].replace(f'"{old}"'.encode(), name.encode())

    return edit


CODE = "a = 0\n__import__('os').makedirs('MARK', exist_ok=True)\ndef z():\n    a"
"""The name of a value after which the code that fx writes for a graph has three statements more."""


def extra_node(target: str, outputs: list[Any], **inputs: Any) -> Callable[[Records, Path], None]:
    """A node more at the end, with arguments by keyword."""

    def edit(records: Records, mark: Path) -> None:
        def change(model: Any) -> None:
            arguments = [
                {
                    "name": name,
                    "arg": json.loads(json.dumps(value).replace("MARK", str(mark))),
                    "kind": 2,
                }
                for name, value in inputs.items()
            ]
            nodes_of(model).append(
                {
                    "target": target,
                    "inputs": arguments,
                    "outputs": outputs,
                    "metadata": {},
                    "name": "more",
                }
            )
            known = model["graph_module"]["graph"]
            known["tensor_values"]["more"] = known["tensor_values"]["embedding"]
            known["sym_int_values"]["number"] = {"as_int": 3}

        edited(change)(records, mark)

    return edit
