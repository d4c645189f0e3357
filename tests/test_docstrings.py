"""Every example in a docstring of hosim is executed and gives what it shows."""

import doctest
import importlib
import pkgutil

import pytest

import hosim

FOUND = pkgutil.walk_packages(hosim.__path__, "hosim.")
MODULES = [
    "hosim",
    *sorted(module.name for module in FOUND if not module.name.endswith("__main__")),
]
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
