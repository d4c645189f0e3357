"""Opens a ``.pt2`` archive without running foreign code, as far as torch lets us. Imports torch.

``torch.export.load`` can be made to execute what a file says: pickles, compiled libraries, size expressions that sympy evaluates, and
targets that name any function below ``torch``. So the archive is read first, and refused if it holds

- a compiled library (``data/aotinductor``) or pickled custom objects,
- a tensor or example input that torch's restricted unpickler (``weights_only``) does not take,
- a node whose target is not a registered op, arithmetic on sizes, or one of torch's ``sym_*`` functions,
- a size expression that is more than names, numbers, calls and operators.

A program saved with its parameters on the meta device is loaded with one storage for all of them: torch 2.13 tells storages apart by an
address that meta tensors do not have. Such parameters become separate ones here, and those that no node uses, such as the second name of a
tied one, share the first other of equal shape.

Only torch's deserializer and registered ops on fake tensors are executed after that. A custom op must be registered already; those of
``transformers`` are, by importing it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch.export import ExportedProgram

from hosim.errors import InputError
from hosim.importers import cache_nodes  # noqa: F401  # a program with cache nodes loads only where their ops are registered

_FOREIGN = ("data/aotinductor/", "data/executorch/", "data/constants/custom_obj_", "data/constants/opaque_obj_")
_TARGET = re.compile(r"torch\.ops\.\w+\.\w+(\.\w+)?|torch\.sym_\w+|_operator\.\w+|math\.\w+|torch\._ops\.\w+(\.\w+)*|#\w+(:\w+)?")
_EXPRESSION = re.compile(r"(?!.*__)[\w\s+\-*/%<>=!&|~(),.]*")


def load(source: str) -> ExportedProgram:
    """The program in the file ``source``. Raises :class:`InputError` if it is damaged or would run foreign code."""
    _refuse_foreign(source)
    with _restricted():
        try:
            return _untangled(torch.export.load(source))
        except Exception as error:  # torch raises all kinds of parser errors
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"torch cannot load this program: {reason[:200]}; write it again with torch.export.save", source=source
            ) from error


def _untangled(program: ExportedProgram) -> ExportedProgram:
    """``program``, with a storage for each of its meta parameters (see the module)."""
    users = {node.name: len(node.users) for node in program.graph.nodes if node.op == "placeholder"}
    used: dict[Any, torch.Tensor] = {}
    meta = [spec for spec in program.graph_signature.input_specs if _is_meta(program.state_dict.get(spec.target or ""))]
    for spec in sorted(meta, key=lambda spec: not users[spec.arg.name]):
        lost = program.state_dict[spec.target]
        alike = (lost.dtype, lost.size(), lost.stride())
        own = used.get(alike) if not users[spec.arg.name] else None
        if own is None:
            own = torch.empty_strided(lost.size(), lost.stride(), dtype=lost.dtype, device="meta")
        program.state_dict[spec.target] = own
        used.setdefault(alike, own)
    return program


def _is_meta(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "meta"


def _refuse_foreign(source: str) -> None:
    try:
        with zipfile.ZipFile(source) as archive:
            names = archive.namelist()
            models = [json.loads(archive.read(name)) for name in names if re.search(r"(^|/)models/[^/]*\.json$", name)]
    except FileNotFoundError:
        raise InputError("no such file", source=source) from None
    except (OSError, zipfile.BadZipFile, ValueError, RecursionError, EOFError, NotImplementedError) as error:
        raise InputError(f"damaged or not a .pt2 archive ({error}); write it again with torch.export.save", source=source) from None
    if not models:
        raise InputError("this archive holds no exported program, or is damaged; write it again with torch.export.save", source=source)
    for name in names:
        inside = name.partition("/")[2]
        if inside.startswith(_FOREIGN):
            raise InputError(f"{inside} would make torch run code from this file; export the program without it", source=source)
    for model in models:
        for key, text in _strings(model):
            if key == "expr_str" and not _EXPRESSION.fullmatch(text):
                raise InputError(f"size expression {text[:60]!r} is not plain arithmetic", source=source)
            if key == "target" and text.startswith(("torch", "_operator", "math", "#", "builtins")) and not _TARGET.fullmatch(text):
                raise InputError(f"target {text[:60]!r} is not a registered op", source=source)
            if key == "target" and text.startswith("torch.ops.transformers."):
                _register_transformers(source)


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in nested JSON, with the key under which it stands."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)


def _register_transformers(source: str) -> None:
    if find_spec("transformers") is None:
        raise InputError("this program has ops of transformers, which is not installed; run: pip install 'hosim[torch]'", source=source)
    import transformers.integrations.moe  # noqa: F401


@contextmanager
def _restricted() -> Iterator[None]:
    """Use only torch's restricted unpickler, and silence log lines for errors that hosim reports itself."""
    name, logger = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", logging.getLogger("torch.export")
    before, level = os.environ.get(name), logger.level
    os.environ[name] = "1"
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec")
            warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\..*")
            yield
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
