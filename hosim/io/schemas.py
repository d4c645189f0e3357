"""JSON Schemas of the file formats, generated from the models that check the files.

The module is not called ``schema``, because that would hide the function of this name in
:mod:`hosim.io`.
"""

from typing import Any

from hosim.base.files import KINDS, format_of, unknown_name
from hosim.errors import InputError
from hosim.io.validators import Format

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``workload``, ``hardware``, ``plan``, ``result``,
    ``comparison``, ``routing`` or ``runtime``.

    Raises :class:`InputError` for another name.
    """
    if name not in KINDS:
        raise InputError(unknown_name("format", name, KINDS))
    return {"$schema": DIALECT, **_formats()[name].schema(), "title": format_of(name)}


def _formats() -> dict[str, Format[Any]]:
    from hosim.io import hardware_file, plan_file, result_file, routing_file, workload_file
    from hosim.io.runtimes import FORMAT as RUNTIME

    return {
        "comparison": result_file.COMPARISON,
        "hardware": hardware_file.FORMAT,
        "plan": plan_file.FORMAT,
        "result": result_file.FORMAT,
        "routing": routing_file.FORMAT,
        "runtime": RUNTIME,
        "workload": workload_file.FORMAT,
    }
