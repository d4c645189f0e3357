"""The gain from predicting the routing and the cost of mispredictions, measured by replaying one
plan with different predictors.

The plan of ``hybrid`` is replayed unchanged, without its wrong prefetches, with perfect
predictions, and without predictions. All four replays share the static plan of the backbone and the
size of the cache, so they differ only in their predictions.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from hosim.analysis import canonical
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.planner.schedule import plan_for
from hosim.planner.schedule.experts import Fetch, Rule
from hosim.policies.own import Deciding
from hosim.result import Result, Transfer


@dataclass(frozen=True, slots=True)
class Mispredictions:
    """The quality of the predictions for a replay's gates. Counts are numbers of experts' tensors;
    times are in nanoseconds.

    Of the ``chosen`` tensors, ``resident`` were in the cache already, ``prefetched`` came through a
    right prediction, and ``missed`` (``missed_bytes``) were fetched after the gate had decided.
    ``wrong`` tensors were prefetched for a decision that did not choose them: ``wrong_bytes``,
    which occupied the channels for ``wrong_ns``. ``right_ns``, ``perfect_ns`` and ``none_ns`` are
    the makespans with only the right predictions, with perfect prediction, and without any
    (``None``: that does not fit).
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
        """The makespan that wrong prefetches cost; negative if they helped, for example because a
        later decision found one in the cache.
        """
        return None if self.right_ns is None else self.makespan_ns - self.right_ns

    @property
    def lost_ns(self) -> int | None:
        """The makespan that perfect prediction would save, on wrong prefetches and on misses.

        It is negative if predictions that were wrong for their gate kept better experts in the
        cache.
        """
        return None if self.perfect_ns is None else self.makespan_ns - self.perfect_ns

    @property
    def gained_ns(self) -> int | None:
        """The makespan that predictions saved; negative if they cost time."""
        return None if self.none_ns is None else self.none_ns - self.makespan_ns


def predicts(plan: Plan) -> bool:
    """Return whether a plan predicts a routing, as those of ``hybrid`` do for a graph that was made
    from a routing's steps.
    """
    return isinstance(_ordered(plan).runtime, Deciding)


def _ordered(plan: Plan) -> Plan:
    """Return the plan as its policy made it."""
    return plan_for(plan, plan.workload.derived(canonical))


def mispredictions(
    plan: Plan, hardware: Hardware, budget_bytes: int | None = None, policy: str | None = None
) -> Mispredictions | None:
    """Return the value of the predictions of a ``hybrid`` plan; ``None`` if the plan does not fit.

    ``policy`` is the label of the row (default: the plan's policy). Takes four replays. Raises
    :class:`InputError` for a plan that does not predict.
    """
    plan = _ordered(plan)
    deciding = plan.runtime
    if not isinstance(deciding, Deciding):
        raise InputError(
            f"the plan of {plan.policy} predicts no routing: expected one of hybrid, for a graph "
            "of a routing's steps"
        )
    fetches: list[Fetch] = []
    result = replay(
        replace(plan, runtime=replace(deciding, fetches=fetches)),
        hardware,
        budget_bytes,
        record=True,
    )
    if result.makespan_ns is None:
        return None
    sizes = [tensor.size_bytes for tensor in plan.graph.tensors]
    visits = deciding.table.routed.visits
    wrong = [f for f in fetches if f.predicted and f.tensor not in visits[f.visit].uses]
    right = {
        (f.visit, f.tensor) for f in fetches if f.predicted and f.tensor in visits[f.visit].uses
    }
    missed = [f for f in fetches if not f.predicted]
    late = {(f.visit, f.tensor) for f in missed}
    chosen = sum(len(visit.uses) for visit in visits)

    def makespan(rule: Rule) -> int | None:
        return replay(
            replace(plan, runtime=replace(deciding, rule=rule)), hardware, budget_bytes
        ).makespan_ns

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
        perfect_ns=makespan(replace(deciding.rule, predictor="perfect")),
        none_ns=makespan(replace(deciding.rule, predictor="none")),
    )


def _channel_ns(result: Result, fetches: list[Fetch], wanted: list[Fetch]) -> int:
    """The time for which the transfers in ``wanted`` held an engine, among all those that the
    runtime issued for ``fetches``.
    """
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
