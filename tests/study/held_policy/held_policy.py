"""A policy that waits: ``belady``, but beyond 3 GB/s not before the file that ``HELD_BY`` names is
gone.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from hosim.policies import Policy, policy_named


def plan(graph, hardware, budget_bytes):
    while (
        hardware.channels[0].bandwidth_bytes_per_s > 3 * 10**9
        and Path(os.environ["HELD_BY"]).exists()
    ):
        time.sleep(0.01)
    return replace(policy_named("belady").plan(graph, hardware, budget_bytes), policy="held")


POLICY = Policy("held", "belady, as soon as a file is gone", plan, runtime=True)
