"""The origin of a plan of hosim's planner, and the reason why each of its gaps is used or not, as
``hosim plan --explain`` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hosim.analysis import Gap
from hosim.graph import Graph
from hosim.planner.hyperoffload.judged_gaps import JudgedGap, judged_gaps
from hosim.planner.hyperoffload.selection import Selection, uses_gap
from hosim.planner.hyperoffload.tensor_choices import Choices

SELECTION, SPREAD, LOCAL_SEARCH, EVERYTHING, RIVAL = (
    "selection",
    "spread",
    "local_search",
    "everything",
    "rival",
)
LEAST_TRAFFIC = "least_traffic"
"""The origins of a plan: a sweep of the selection, an even spread, local search, eviction of
everything in every gap, another policy, or the reduction of traffic.
"""


@dataclass(frozen=True)
class Judgement:
    """The planner's notes on its plan; :class:`hosim.cache_plan.Plan` carries them, files do not.

    ``choices`` are those of the plan. ``selection`` is the sweep that they, or the start of local
    search, come from. ``rival`` names the other policy whose plan was better and was taken; there
    are no choices then. ``tried`` names as text the alternatives to the given budget and machine
    that were planned for. Positions refer to ``graph``, the planned graph.
    """

    source: str
    choices: Choices
    selection: Selection | None = None
    rival: str = ""
    tried: tuple[str, ...] = ()
    graph: Graph | None = None

    @cached_property
    def by_gap(self) -> dict[Gap, JudgedGap]:
        """Return the selection's judgement of each gap; empty without a selection."""
        return (
            {judged.gap: judged for judged in judged_gaps(self.selection)}
            if self.selection is not None
            else {}
        )

    def changed(self, gap: Gap) -> bool:
        """Return True if a later pass changed the selection's decision on a gap."""
        judged = self.by_gap.get(gap)
        count = len(self.selection.problem.graph.ops) if self.selection is not None else 0
        return judged is not None and judged.taken != uses_gap(self.choices, gap, count)
