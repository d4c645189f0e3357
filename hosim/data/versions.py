"""The versions of what in hosim can change a simulated figure: each change that may do so raises
one, and CHANGELOG.md says by how much.
"""

from collections.abc import Mapping

from hosim.result import SEMANTICS

REPLAY = "replay"

VERSIONS: Mapping[str, int] = {REPLAY: SEMANTICS, "op times": 5, "planner": 27, "graphs": 9}
"""The rules of a replay, the times of ops without a measured duration, the planners, and the graphs
that builders and importers make.

Baselines name them, so that a check can tell whether hosim or a model changed. A baseline without
one of them was written at version 1.
"""

SERVING_VERSIONS: Mapping[str, int] = {
    **{name: VERSIONS[name] for name in (REPLAY, "op times", "graphs")},
    "serving": 3,
}
"""As :data:`VERSIONS`, for requests that are served: which of them run in an iteration, and what
becomes of the cache.
"""
