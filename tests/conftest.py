"""What every test shares: the hypothesis profile and the folder of outside data."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from truth_table import (
    compared,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_terminal_summary,
)

__all__ = [
    "compared",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_terminal_summary",
]

untimed = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # slow is a machine that does something else, too
settings.register_profile("ci", untimed, max_examples=30, derandomize=True)
settings.register_profile("quick", untimed, max_examples=10, derandomize=True)  # make quick
settings.register_profile("long", untimed, max_examples=100, derandomize=True)  # make test-long
settings.register_profile(
    "thorough", untimed, max_examples=1000
)  # pytest --hypothesis-profile=thorough
settings.load_profile("ci")

# hypothesis also draws constants that it finds in whatever modules of this project are imported by
# then: what a test draws would depend on the tests that ran before it in the same process. So it
# depends on the test alone.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants  # none yet

gc.disable()  # imports and collection leave nothing to free; the fixture below enables it again

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # there are as many workers as cores: more threads would wait for one another

os.environ.setdefault(
    "HOSIM_CACHE_KEY", "tests"
)  # kept graphs are signed, and no key is made in the home of who runs the tests

os.environ["HOSIM_PROGRESS"] = (
    "off"  # what tests compare must not depend on how long a command took
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """The collector no longer looks at what is there already: thousands of tests, torch. It would
    take over a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ``shared`` beside the repository (golden cases, published inputs, recorded
    traces); skips where there is none.
    """
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            f"no folder {folder}: it holds the golden cases and outside data that this test reads"
        )
    return folder
