"""The pytest plugin: tests about simulated memory.

::

    @pytest.mark.hosim(hardware="h100-80gb-sxm", policy="hyperoffload", budget="40 GiB")
    def test_memory_of_a_step(hosim_gate):
        hosim_gate.model(Transformer(), (torch.zeros(1, 512, dtype=torch.long),))
        hosim_gate.assert_peak_below("38 GiB")
        hosim_gate.assert_matches_baseline()

Another fixture tests that a recording is explained::

    def test_the_recording(hosim_validate):
        hosim_validate("trace.json.gz", max_error="1%")

It does nothing, and imports nothing, until a test asks for a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosim.gate.testing import SimulatedStep
    from hosim.validate import Validation

MARKER = (
    "hosim(hardware, policy='hyperoffload', budget=None, ...): what the fixture hosim_gate "
    "plans and replays, and on which machine"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--hosim-update``."""
    parser.getgroup("hosim", "simulated memory").addoption(
        "--hosim-update",
        action="store_true",
        help="rewrite the baselines of hosim_gate.assert_matches_baseline()",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def hosim_gate(request: pytest.FixtureRequest) -> SimulatedStep:
    """Return what one step of a model needs on the simulated machine that the marker ``hosim``
    names; see :class:`hosim.gate.testing.Gate`.
    """
    from hosim.gate.testing import gate_of

    return gate_of(request.node, update=bool(request.config.getoption("--hosim-update")))


@pytest.fixture
def hosim_validate() -> Callable[..., Validation]:
    """``hosim_validate(trace, max_error="1%")`` fails unless the replay explains a recording; see
    :mod:`hosim.gate.testing`.
    """
    from hosim.gate.testing import assert_explained

    return assert_explained
