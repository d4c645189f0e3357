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
"""What made the plan: a sweep of the selection, an even spread, the search over single decisions
after these, moving all that can move, another policy, or letting as much as can stay and lie near.
"""


@dataclass(frozen=True)
class Judgement:
    """The planner's notes on a plan of its own; :class:`hosim.cache_plan.Plan` carries them, and no
    file does.

    ``choices`` are those of the plan. ``selection`` is the sweep that they come from, or that local
    search began with; ``rival`` names the policy whose plan was taken because it was better, in
    which case there are no choices. ``tried`` names, in words, what was planned for besides the
    budget and the machine as they are. Positions are those of ``graph``, which was planned.
    """

    source: str
    choices: Choices
    selection: Selection | None = None
    rival: str = ""
    tried: tuple[str, ...] = ()
    graph: Graph | None = None

    @cached_property
    def by_gap(self) -> dict[Gap, JudgedGap]:
        """Return the decision of selection on each gap."""
        return (
            {judged.gap: judged for judged in judged_gaps(self.selection)}
            if self.selection is not None
            else {}
        )

    def changed(self, gap: Gap) -> bool:
        """Return whether a later pass decided otherwise than selection."""
        judged = self.by_gap.get(gap)
        count = len(self.selection.problem.graph.ops) if self.selection is not None else 0
        return judged is not None and judged.taken != uses_gap(self.choices, gap, count)
