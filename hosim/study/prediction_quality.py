"""What predicting the routing brings and what mispredictions take, by replaying the same plan with other predictors.

The plan of ``hybrid`` is replayed as it is, without its wrong prefetches, with every prediction right, and with none. All share the static
plan of the backbone and the size of the cache, so that what differs is the predictions' doing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.policies.hybrid import Deciding
from hosim.result import Result, Transfer
from hosim.schedule.expert_cache import Fetch, Rule


@dataclass(frozen=True, slots=True)
class Mispredictions:
    """How well a replay's gates were predicted. Counts are of experts' tensors, times in nanoseconds.

    Of the ``chosen`` tensors, ``resident`` were in the cache since an earlier decision, ``prefetched`` came by a right prediction and
    ``missed`` were fetched after the gate had decided (``missed_bytes``). ``wrong`` were prefetched for a decision that did not choose
    them: ``wrong_bytes``, which took ``wrong_ns`` of the channels. ``right_ns``, ``perfect_ns`` and ``none_ns`` are the makespans with the
    right ones of these predictions alone, with perfect prediction, and without any (``None``: that does not fit).
    """

    policy: str
    predictor: str
    decisions: int
    chosen: int
    resident: int
    prefetched: int
    missed: int
    missed_bytes: int
    wrong: int
    wrong_bytes: int
    wrong_ns: int
    makespan_ns: int
    right_ns: int | None
    perfect_ns: int | None
    none_ns: int | None

    @property
    def harm_ns(self) -> int | None:
        """Makespan that wrong prefetches cost; below 0 if they did good, as when a later decision found one in the cache."""
        return None if self.right_ns is None else self.makespan_ns - self.right_ns

    @property
    def lost_ns(self) -> int | None:
        """What perfect prediction would save: the harm, and what was not predicted.

        Below 0 where predictions that were wrong for their gate kept the better experts in the cache.
        """
        return None if self.perfect_ns is None else self.makespan_ns - self.perfect_ns

    @property
    def gained_ns(self) -> int | None:
        """Makespan that predicting saved; below 0 if it would have been better not to."""
        return None if self.none_ns is None else self.none_ns - self.makespan_ns


def predicts(plan: Plan) -> bool:
    """Whether a plan predicts a routing, as those of ``hybrid`` for a graph of a routing's steps do."""
    return isinstance(plan.runtime, Deciding)


def mispredictions(plan: Plan, hardware: Hardware, budget_bytes: int | None = None, policy: str | None = None) -> Mispredictions | None:
    """What the predictions of a plan of ``hybrid`` are worth; ``None`` if the plan does not fit.

    ``policy`` is what the row is called (default: the plan's policy). Costs four replays. Raises :class:`InputError` for a plan that does
    not predict.
    """
    deciding = plan.runtime
    if not isinstance(deciding, Deciding):
        raise InputError(f"the plan of {plan.policy} predicts no routing: expected one of hybrid, for a graph of a routing's steps")
    fetches: list[Fetch] = []
    result = replay(replace(plan, runtime=replace(deciding, fetches=fetches)), hardware, budget_bytes, record=True)
    if result.makespan_ns is None:
        return None
    sizes = [tensor.size_bytes for tensor in plan.graph.tensors]
    visits = deciding.table.routed.visits
    wrong = [f for f in fetches if f.predicted and f.tensor not in visits[f.visit].uses]
    right = {(f.visit, f.tensor) for f in fetches if f.predicted and f.tensor in visits[f.visit].uses}
    missed = [f for f in fetches if not f.predicted]
    late = {(f.visit, f.tensor) for f in missed}
    chosen = sum(len(visit.uses) for visit in visits)

    def makespan(rule: Rule) -> int | None:
        return replay(replace(plan, runtime=replace(deciding, rule=rule)), hardware, budget_bytes).makespan_ns

    return Mispredictions(
        policy=policy or plan.policy,
        predictor=deciding.rule.predictor,
        decisions=len(visits),
        chosen=chosen,
        resident=chosen - len(right | late),
        prefetched=len(right - late),
        missed=len(missed),
        missed_bytes=sum(sizes[f.tensor] for f in missed),
        wrong=len(wrong),
        wrong_bytes=sum(sizes[f.tensor] for f in wrong),
        wrong_ns=_channel_ns(result, fetches, wrong),
        makespan_ns=result.makespan_ns,
        right_ns=makespan(replace(deciding.rule, only_right=True)),
        perfect_ns=makespan(Rule("perfect")),
        none_ns=makespan(Rule("none")),
    )


def _channel_ns(result: Result, fetches: list[Fetch], wanted: list[Fetch]) -> int:
    """Time for which the transfers of ``wanted`` held an engine of a channel, of all that the runtime issued for ``fetches``."""
    assert result.timeline is not None
    issued: dict[int, dict[int, list[Transfer]]] = defaultdict(lambda: defaultdict(list))
    for x in result.timeline.transfers:
        if x.cache_op < 0:
            issued[x.tensor][x.issue_ns].append(x)
    in_order = {t: [batch[at] for at in sorted(batch)] for t, batch in issued.items()}
    spent = 0
    taken: dict[int, int] = defaultdict(int)
    for fetch in fetches:
        batch_of = in_order[fetch.tensor][taken[fetch.tensor]]
        taken[fetch.tensor] += 1
        if fetch in wanted:
            spent += sum(x.end_ns - x.start_ns for x in batch_of)
    return spent
