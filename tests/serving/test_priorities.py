"""Requests with priorities: timelines by hand, who goes before whom, and that equal priorities
change nothing.
"""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine import REQUESTS, toy_ns
from test_kv_tiers import POLICIES, Watched
from toy_tiers import toy_machine
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving import EngineLimits, WaitingByPriority, serve_requests
from hosim.serving.blocks import KvSetup
from hosim.serving.requests import Request, draw_requests, read_requests


def served(requests, blocks=100, most=4, ahead=False, by_priority=True, kv=None, budget=8):
    def ns(iteration):
        if kv is not None:
            kv.check()
        return toy_ns(iteration)

    return serve_requests(
        requests, EngineLimits(budget, most, 4, by_priority), blocks, ns, ahead=ahead, kv=kv
    )


def test_the_least_value_is_admitted_first():
    """One at a time: the first from 0 to 14. Of those that came meanwhile the third has the least
    value, and then the second goes.
    """
    line = [
        Request(0, 4, 1, priority=9),
        Request(1, 4, 1, priority=5),
        Request(2, 4, 1),
        Request(3, 4, 1, priority=5),
    ]
    assert served(line, most=1).token_ns == ((14,), (42,), (28,), (56,))


def test_the_one_with_the_most_is_preempted_even_if_it_has_its_place_already():
    """Three blocks of 4. The first has its first token at 14, when the second comes in, with a less
    priority: 1 + 4 tokens until 29.

    Then the first has its place in the iteration (its sixth token, in its second block), and the
    second needs a block: it takes that of the first, which is not computed: 29 to 40. The second's
    last token comes at 51. Then the first finds the block of its prompt, and computes two tokens
    from 51 to 63; two more follow. First come, first served, it is the second that is preempted at
    29.
    """
    line = [Request(0, 4, 5, priority=1), Request(5, 4, 3)]
    found = served(line, blocks=3)
    assert found.token_ns == ((14, 29, 63, 74, 85), (29, 40, 51))
    assert found.preemptions == 1
    assert [sample.tokens for sample in found.samples] == [4, 5, 1, 1, 2, 1, 1]
    assert served(line, blocks=3, by_priority=False).token_ns == (
        (14, 29, 40, 51, 62),
        (29, 73, 84),
    )


def test_what_was_not_computed_does_not_go_below():
    """As above, with host memory. The first has 6 tokens until 16, and a seventh beside the
    second's prompt until 31.

    Its eighth would fill a block, which the second takes at once, as nothing is in it: 31 to 42. At
    42 the first finds the block of its prompt, takes the one that it had, and computes four tokens
    until 56. For the ninth it needs the block of the second's prompt, which goes down from 56 to
    62.
    """
    kv = Watched(KvSetup("lru", toy_machine(), (("ddr", 100),), 6))
    found = served([Request(0, 6, 5, priority=1), Request(5, 4, 2)], blocks=3, kv=kv)
    assert found.token_ns == ((16, 31, 56, 73, 84), (31, 42))
    assert found.kv.channels["d2h"].bytes == 6


def test_the_urgent_starve_the_others():
    """An urgent request each 14 ns, one at a time: the other one, which came first of all that
    wait, goes when they have ended.
    """
    urgent = [Request(14 * i, 4, 1) for i in range(20)]
    line = sorted([*urgent, Request(1, 4, 1, priority=1)], key=lambda request: request.arrival_ns)
    assert served(line, most=1).token_ns[1] == (21 * 14,)


@given(
    REQUESTS,
    st.integers(8, 14),
    st.integers(1, 16),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([None, *POLICIES]),
    st.booleans(),
)
def test_equal_priorities_are_first_come_first_served(
    requests, blocks, budget, most, ahead, policy, swaps
):
    kv = None if policy is None else KvSetup(policy, toy_machine(), (("ddr", 5),), 6, swaps)
    one, other = (
        serve_requests(
            requests, EngineLimits(budget, most, 4, by_priority), blocks, toy_ns, ahead=ahead, kv=kv
        )
        for by_priority in (False, True)
    )
    assert one == other


@given(
    REQUESTS,
    st.lists(st.integers(-1, 2), min_size=12, max_size=12),
    st.integers(8, 11),
    st.integers(1, 16),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(POLICIES),
    st.booleans(),
)
def test_what_holds_for_any_priorities(
    requests, priorities, blocks, budget, most, ahead, policy, swaps
):
    """Nobody is admitted before someone who waits and is more urgent, or as urgent and came before;
    tokens and blocks are conserved.
    """
    line = [
        replace(request, priority=priority)
        for request, priority in zip(requests, priorities, strict=False)
    ]
    kv = Watched(KvSetup(policy, toy_machine(), (("ddr", 4),), 6, swaps))
    found = served(line, blocks, most, ahead, kv=kv, budget=budget)
    assert [len(tokens) for tokens in found.token_ns] == [request.output_tokens for request in line]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    assert all(sample.tokens <= budget and sample.running <= most for sample in found.samples)
    ranks = [(request.priority, number) for number, request in enumerate(line)]
    for number, at in enumerate(found.scheduled_ns):
        before = [
            i
            for i, request in enumerate(line)
            if request.arrival_ns <= at and ranks[i] < ranks[number]
        ]
        assert all(found.scheduled_ns[i] <= at for i in before)
    assert kv.pool.free == blocks
    computed = sum(sample.tokens for sample in found.samples)
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in line)
    assert (
        computed == least - found.hit_tokens
        if not found.preemptions
        else computed >= least - found.hit_tokens
    )
    assert served(line, blocks, most, ahead, kv=kv, budget=budget) == found


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 99)), unique=True), st.data())
def test_the_queue_is_a_sorted_list(items, data):
    queue = WaitingByPriority(lambda item: item)
    for item in items:
        (queue.append if item[1] % 2 else queue.appendleft)(item)
    kept = sorted(items)
    for item in data.draw(st.lists(st.sampled_from(items), unique=True)) if items else ():
        queue.remove(item)
        kept.remove(item)
    assert (list(queue), len(queue)) == (kept, len(kept))
    assert [queue.popleft() for _ in kept if queue[0] is not None] == kept


def test_files_and_drawn_requests_have_priorities(tmp_path):
    path = tmp_path / "r.jsonl"
    rows = [
        {"arrival_s": i, "prompt_tokens": 5, "output_tokens": 2, **more}
        for i, more in enumerate([{"priority": 3}, {}, {"priority": -1}])
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [request.priority for request in read_requests(path)] == [3, 0, -1]
    for wrong in ('"a"', "1.5", "true", str(2**50), "[]"):
        path.write_text(
            f'{{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2, "priority": {wrong}}}'
        )
        with pytest.raises(InputError, match="line 1, priority: expected a whole number, got "):
            read_requests(path)
    path = tmp_path / "r.csv"
    path.write_text("Timestamp,Request tokens,Response tokens,priority\n1,2,3,4\n")
    assert read_requests(path)[0].priority == 4
    drawn, plain = (
        draw_requests(f"poisson:rate=5:count=50:prompt=1..9{more}")
        for more in (":priority=0..2", "")
    )
    assert {request.priority for request in drawn} == {0, 1, 2}
    assert tuple(replace(request, priority=0) for request in drawn) == plain
    with pytest.raises(
        InputError,
        match=r"priority: expected a whole number such as 1, or a range such as 0\.\.2, got "
        r"'2\.\.1'$",
    ):
        draw_requests("poisson:rate=5:priority=2..1")


def test_the_command_and_the_function():
    """Six requests at once, one at a time: the urgent ones go first."""
    model, drawn = (
        {"model": "llama-3.1-8b", "layers": 2},
        "bursts:rate=5:size=6:count=6:output=2:priority=0..1",
    )
    found = hosim.serve(
        model, "h100-80gb-sxm", drawn, scheduling_policy="priority", max_sequences=1
    )
    order = found.frame().sort_values("scheduled_ns")["priority"].tolist()
    assert order == sorted(order)
    assert found.summary()["scheduling_policy"] == "priority"
    with pytest.raises(
        InputError,
        match=r"^requests\[\d\]: has priority 1, which first come, first served does not know: "
        r"ask for ",
    ):
        hosim.serve(model, "h100-80gb-sxm", drawn)
    with pytest.raises(InputError, match=r"^scheduling_policy: unknown scheduling policy 'prio'"):
        hosim.serve(model, "h100-80gb-sxm", drawn, scheduling_policy="prio")
    line = [
        "serve",
        "gpt2",
        "-H",
        "h100",
        "--requests",
        "poisson:rate=5:count=2:priority=1",
        "--json",
    ]
    outcome = CliRunner().invoke(app, [*line, "--scheduling-policy", "priority"])
    assert json.loads(outcome.stdout)["requests"] == 2
    assert CliRunner().invoke(app, line).exit_code == 2
