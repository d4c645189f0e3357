"""The discrete-event engine: replays any plan on a machine, and is the only user of simpy."""

from hosim.engine.replay import replay

__all__ = ["replay"]
