"""JSON Schemas of the file formats, generated from the models that check the files.

The module is not called ``schema``, because it would hide the function of that name in :mod:`hosim.io`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hosim.errors import InputError
from hosim.io.reading import KINDS, format_of, unknown_name
from hosim.io.validators import Format

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``workload``, ``hardware``, ``plan``, ``result``, ``comparison`` or ``routing``.

    Raises :class:`InputError` for another name.
    """
    if name not in KINDS:
        raise InputError(unknown_name("format", name, KINDS))
    home = import_module(f"hosim.io.{'result' if name == 'comparison' else name}_file")
    form: Format[Any] = home.COMPARISON if name == "comparison" else home.FORMAT
    return {"$schema": DIALECT, **form.schema(), "title": format_of(name)}
