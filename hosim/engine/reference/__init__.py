"""The reference: docs/contract.md in plain SimPy, against which every faster replay is tested."""

from hosim.engine.reference.simulation import Simulation

__all__ = ["Simulation"]
