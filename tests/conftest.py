"""What every test shares: the hypothesis profile and the folder of outside data."""

from pathlib import Path

import pytest
from hypothesis import settings
from truth_table import compared, pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_terminal_summary

__all__ = ["compared", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure", "pytest_terminal_summary"]

settings.register_profile("ci", max_examples=80, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None)  # pytest --hypothesis-profile=thorough
settings.load_profile("ci")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ``shared`` beside the repository (golden cases, published inputs, recorded traces); skips where there is none."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: it holds the golden cases and outside data that this test reads")
    return folder
