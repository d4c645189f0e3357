"""The gate: what a simulated step needs, written down, and what a change makes of it.

A case (:mod:`~hosim.gate.cases`) is measured (:mod:`~hosim.gate.measure`) into a record (:mod:`~hosim.gate.record`), which a baseline file
keeps (:mod:`~hosim.gate.baselines`). Later measurements get a verdict a metric (:mod:`~hosim.gate.verdict`) and, where one is a regression,
an explanation (:mod:`~hosim.gate.causes`). Nothing is imported here: the pytest plugin is loaded wherever hosim is installed.
"""
