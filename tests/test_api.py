"""The package's front door: what it names is there, and entering it costs nothing heavy."""

import subprocess
import sys

import pytest

import hosim


def test_every_public_name_is_there_and_listed() -> None:
    assert sorted(hosim.__all__, key=str.lower) == sorted(set(hosim.__all__), key=str.lower)
    assert all(getattr(hosim, name) is not None for name in hosim.__all__)
    assert set(hosim.__all__) <= set(dir(hosim))
    with pytest.raises(AttributeError, match="module 'hosim' has no attribute 'nonesuch'"):
        hosim.nonesuch  # noqa: B018


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    listing = (
        "import sys; before = set(sys.modules); import hosim; print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) - {"hosim"} <= sys.stdlib_module_names
