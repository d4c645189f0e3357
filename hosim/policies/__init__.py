"""Policies: each a function (graph, hardware, budget) -> plan, one a file; :mod:`hosim.policies.registry` knows them by name."""
