"""See :mod:`hosim.formats.bridges.hyper_parallel_planner`."""

from hosim.formats.bridges import HosimPlanner

__all__ = ["HosimPlanner"]
