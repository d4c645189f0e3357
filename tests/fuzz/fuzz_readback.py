"""What hosim wrote is read by hosim's own reader, and is the same when it is written again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuzz_case import Case


class UnlikeError(Exception):
    """What was read is not what was written."""


def same(found: object, expected: object) -> None:
    """Raises :class:`UnlikeError` unless the two are equal."""
    if found != expected:
        raise UnlikeError(f"{str(found)[:100]} is not {str(expected)[:100]}")


def again(load: Callable[[str], Any], save: Callable[[Any, str], None], made: Any) -> None:
    """An object is written as JSON and as YAML, packed, and read; so a program of :mod:`fuzz_calls`
    may say.
    """
    for name in ("out.json", "out.yaml.gz"):
        save(made, name)
        same(load(name), made)


def again_hardware(made: Any) -> None:
    """The same of a profile: what is not compared of it as well."""
    from hosim.io import hardware_to_dict, load_hardware, save_hardware

    again(load_hardware, save_hardware, made)
    same(hardware_to_dict(load_hardware("out.json")), hardware_to_dict(made))


def again_plan(made: Any) -> None:
    """The same of a plan, which is read for its workload."""
    from hosim.io import load_plan, save_plan

    again(lambda name: load_plan(name, made.workload), save_plan, made)


def read_back(path: Path, case: Case) -> None:
    """Raises unless a file that a command wrote is complete: one of hosim's formats is read by its
    reader.
    """
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending == ".toml":
        _baseline(path)
    elif ending in (".json", ".yaml", ".yml"):
        data = _data(path)
        kind = (
            str(data.get("format", "")).removeprefix("hosim.").partition("/")[0]
            if isinstance(data, Mapping)
            else ""
        )
        if kind in _READERS:
            _READERS[kind](data, path, case)
    elif ending == ".csv":
        _rows(path, case)


def read_printed(stdout: bytes) -> None:
    """Raises unless a result that a command printed as JSON is read."""
    from hosim.io import comparison_from_dict, result_from_dict, result_to_dict

    if b'"hosim.result/1"' not in stdout[:400] or not stdout.startswith(b"{"):
        return
    data = json.loads(stdout)
    if data["format"] == "hosim.result/1":
        same(result_to_dict(result_from_dict(data)), data)
    elif data["format"] == "hosim.comparison/1":
        same([result_to_dict(result) for result in comparison_from_dict(data)], data["results"])


def _data(path: Path) -> Any:
    import gzip

    from hosim.base.files import content

    if ".yaml" in path.name or ".yml" in path.name:
        return content(str(path))
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed)


def _workload(data: Any, path: Path, case: Case) -> None:
    from hosim.io import load_workload, workload_to_dict

    same(workload_to_dict(load_workload(path)), data)


def _hardware(data: Any, path: Path, case: Case) -> None:
    from hosim.io import hardware_from_dict, hardware_to_dict, load_hardware

    said = hardware_to_dict(
        load_hardware(path)
    )  # a fitted profile keeps the texts of its base, which say the same otherwise
    same(hardware_to_dict(hardware_from_dict(said, str(path))), said)


def _plan(data: Any, path: Path, case: Case) -> None:
    """For the workload of that name among the arguments of the command."""
    from hosim.api import load
    from hosim.errors import HosimError
    from hosim.io import load_plan, plan_to_dict

    for argument in case.arguments[1:]:
        try:
            graph = load(argument)
        except (HosimError, OSError):
            continue
        if graph.name == data["workload"]:
            same(plan_to_dict(load_plan(path, graph)), data)
            return


_READERS: Mapping[str, Callable[[Any, Path, Case], None]] = {
    "workload": _workload,
    "hardware": _hardware,
    "plan": _plan,
}


def _baseline(path: Path) -> None:
    from hosim.gate.records import read_matrix, read_record, record_text, save_matrix

    text = path.read_text()
    if '"hosim.baselines/1"' not in text:
        same(record_text(read_record(path)), text)
        return
    known = read_matrix(path, "m")
    versions: Any = next(
        (measured.record.versions for measured in known.values() if measured.record is not None),
        None,
    )
    if versions is not None:
        copy = path.with_name(f"{path.name}.again")
        save_matrix(
            known,
            copy,
            hosim=next(m.record.hosim for m in known.values() if m.record is not None),
            versions=versions,
        )
        written = copy.read_text()
        copy.unlink()
        same(written, text)


def _rows(path: Path, case: Case) -> None:
    """Rows of a study: the command is run again and finds all of them; a table of kernels is
    read.
    """
    content = path.read_bytes()
    if case.arguments[:1] == ("import-kernels",):
        from hosim.io.importers.recordings import read_kernel_tables

        same(bool(read_kernel_tables(path)), True)
    elif (
        case.arguments
        and case.arguments[0] in ("sweep", "serve-sweep", "serve-frontier")
        and case.streams == ("file", "file")
    ):
        from typer.testing import CliRunner

        from hosim.cli.main import app

        outcome = CliRunner().invoke(app, list(case.arguments))
        same((outcome.exit_code, path.read_bytes()), (0, content))
