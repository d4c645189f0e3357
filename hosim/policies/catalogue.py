"""hosim's own policies, in the order in which they are shown: data only, so that listing them imports no planner."""

from __future__ import annotations

from hosim.policies.policy import Policy

BUILT_IN = (
    Policy(
        "resident",
        "everything in device memory; what lives below comes up once, at time 0",
        "hosim.policies.resident:plan",
    ),
)
"""Every policy that hosim ships, in display order."""
