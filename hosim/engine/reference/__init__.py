"""The reference: docs/contract.md in plain SimPy, which every faster replay is held against."""

from hosim.engine.reference.simulation import Simulation

__all__ = ["Simulation"]
