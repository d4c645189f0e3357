"""Every example in a docstring of hosim is executed and gives what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

import hosim

PACKAGE = Path(hosim.__file__).parent
MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
    if ">>> " in file.read_text()
)
"""Those with examples."""

OPTIONAL = {"torch", "transformers", "onnx", "mindspore", "ortools"}
"""Packages of hosim's extras: a module that needs one at import is not there without it."""


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


def test_the_examples_are_found() -> None:
    attempted = sum(
        doctest.testmod(importlib.import_module(name)).attempted
        for name in ("hosim.units", "hosim.graph", "hosim.errors")
    )
    assert attempted >= 15
