"""The cost by which the HyperOffload description places cache ops, as a ranking of gaps: a sweep
may judge by it.

``max(0, C_trans - C_overlap) + alpha * residency``: what a transfer takes beyond the computation
that it overlaps with, and how long the tensor lies in the device tier all the same, until its store
has ended and after its prefetch has begun. The description also wants what is large, idle for long
and seldom used to move first; so the cost counts for each byte and nanosecond away, once for each
use. Both directions are summed up. Source: arXiv 2602.00748 as summarised publicly; how the terms
combine is hosim's reading.
"""

from __future__ import annotations

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.gap_scoring import Departure, GapScore, GapScoring, RoundTrip
from hosim.schedule.tiers_below import LowerTier


class DescribedCost(GapScoring):
    """Scores gaps from 0 (costs nothing) down to the negative of the step's time, with the channels
    as they are occupied so far.
    """

    def _most(self, gap: Gap, i: int, trip: RoundTrip) -> float:
        return 0.0

    def _with_return(
        self, gap: Gap, i: int, below: LowerTier, trip: RoundTrip, leaves: Departure
    ) -> GapScore:
        scored = super()._with_return(gap, i, below, trip, leaves)
        begins = 0 if gap.after == AT_START else self.end_ns[gap.after]
        left = begins if leaves.store_at is None else max(begins, leaves.store_at + trip.down)
        ends = self.begins[gap.before]
        back, there = ends, ends
        if scored.fetch_at is not None:
            back, there = scored.fetch_at, max(ends, scored.fetch_at + trip.up)
        alpha = self.weights.alpha or 0.0
        cost = scored.stall + alpha * (left - begins + there - back)
        uses = max(1, len(self.problem.graph.users[gap.tensor]))
        relative = (
            cost * uses * self.usual_bytes / max(1, self.sizes[gap.tensor]) / max(1, back - left)
        )
        return scored._replace(score=-self.horizon * relative / (1 + relative))
