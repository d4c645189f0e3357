"""The gate: it records what a simulated step needs, and judges what a change does to that.

A case (:mod:`~hosim.gate.cases`) is measured (:mod:`~hosim.gate.measure`) into a record (:mod:`~hosim.gate.record`), which a baseline file
keeps (:mod:`~hosim.gate.baselines`). A later measurement gets one verdict per metric (:mod:`~hosim.gate.verdict`) and, for a regression, an
explanation (:mod:`~hosim.gate.causes`). This module imports nothing, because pytest loads the plugin wherever hosim is installed.
"""
