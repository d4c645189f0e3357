"""The pytest plugin: tests about simulated memory.

::

    @pytest.mark.hosim(hardware="h100-80gb-sxm", policy="hyperoffload", budget="40 GiB")
    def test_memory_of_a_step(hosim_gate):
        hosim_gate.model(Transformer(), (torch.zeros(1, 512, dtype=torch.long),))
        hosim_gate.assert_peak_below("38 GiB")
        hosim_gate.assert_matches_baseline()

It does nothing, and imports nothing, until a test asks for the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hosim.gate.testing import SimulatedStep

MARKER = "hosim(hardware, policy='hyperoffload', budget=None, ...): what the fixture hosim_gate plans and replays, and on which machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--hosim-update``."""
    group = parser.getgroup("hosim", "simulated memory")
    group.addoption("--hosim-update", action="store_true", help="rewrite the baselines of hosim_gate.assert_matches_baseline()")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def hosim_gate(request: pytest.FixtureRequest) -> SimulatedStep:
    """What one step of a model needs on the simulated machine that the marker ``hosim`` names; see :class:`hosim.gate.testing.Gate`."""
    from hosim.gate.testing import gate_of

    return gate_of(request.node, update=bool(request.config.getoption("--hosim-update")))
