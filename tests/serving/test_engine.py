"""Serving on an engine whose iterations take 10 ns and 1 ns for each token: timelines by hand, and
what holds for any requests.
"""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts

from hosim.errors import InputError
from hosim.serving import EngineLimits, Iteration, Scheduler, serve_requests
from hosim.serving.requests import Request


def toy_ns(iteration):
    return 10 + iteration.tokens


def served(requests, blocks=100, budget=8, most=4, block_tokens=4, ahead=False):
    return serve_requests(
        requests, EngineLimits(budget, most, block_tokens), blocks, toy_ns, ahead=ahead
    )


def test_one_request_in_chunks():
    """11 tokens with a budget of 8: 8 until 18, 3 until 31 with the first token, then one each 11
    ns.
    """
    found = served([Request(0, 11, 3)])
    assert found.token_ns == ((31, 42, 53),)
    assert [(s.start_ns, s.end_ns, s.tokens, s.held_blocks) for s in found.samples] == [
        (0, 18, 8, 2),
        (18, 31, 3, 3),
        (31, 42, 1, 3),
        (42, 53, 1, 4),
    ]


def test_decoding_goes_before_prompts():
    """The second arrives at 5, during the first iteration (0 to 14), and gets the 7 tokens that the
    budget leaves beside the first's one.

    14 to 32: one decodes, 7 of 9 tokens. 32 to 45: one decodes, the other 2, with its first token.
    """
    found = served([Request(0, 4, 3), Request(5, 9, 1)])
    assert found.token_ns == ((14, 32, 45), (45,))
    assert found.scheduled_ns == (0, 14)


def test_scheduled_ahead_an_arrival_waits_for_the_iteration_after_the_next():
    """The iteration from 14 is scheduled at 0, without the second request, which is scheduled at 14
    and runs from 25.
    """
    found = served([Request(0, 4, 3), Request(5, 4, 1)], ahead=True)
    assert found.scheduled_ns == (0, 14)
    assert found.token_ns == ((14, 25, 40), (40,))


def test_an_idle_engine_begins_when_a_request_arrives():
    found = served([Request(100, 4, 1), Request(1000, 4, 1)], ahead=True)
    assert found.token_ns == ((114,), (1014,))


def test_the_one_admitted_last_is_preempted_and_computes_again():
    """Two prompts of 4 tokens fill two of three blocks of 4. Both want a second block; the first
    gets it.

    0 to 18: both prompts. At 18 the first takes the third block; the second is preempted. It waits
    until the first, whose 8 cached tokens fill two blocks, has its five tokens: 29, 40, 51, 62.
    Then its first block is still there: the prompt's 4 tokens are a hit, its token is computed, and
    the next one follows.
    """
    found = served([Request(0, 4, 5), Request(0, 4, 3)], blocks=3)
    assert found.preemptions == 1
    assert found.token_ns == ((18, 29, 40, 51, 62), (18, 73, 84))
    assert found.hit_tokens == 0  # its own blocks are no hits of a prompt


def test_figures_by_hand():
    """Both arrive at 0: 8 tokens until 18, with the only token of the first; then one each 11 ns
    for the other.

    First tokens after 18 both, last ones after 18 and 40: 2 requests and 4 tokens in 40 ns. The
    prompts fill two blocks; the cache holds both from 0 to 18, and then the one of the second,
    whose next token begins another: 2 * 18 + 2 * 22 blocks times ns, over 40 ns.
    """
    found = served([Request(0, 4, 1), Request(0, 4, 3)])
    summary = found.summary()
    assert summary["span_ns"] == 40
    assert (summary["requests_per_s"], summary["output_tokens_per_s"]) == (2 / 40e-9, 4 / 40e-9)
    assert summary["latency_ns"] == {"mean": 29, "p50": 18, "p90": 40, "p95": 40, "p99": 40}
    assert (
        summary["inter_token_ns"]
        == summary["tpot_ns"]
        == {"mean": 11, "p50": 11, "p90": 11, "p95": 11, "p99": 11}
    )
    assert (summary["peak_blocks"], summary["mean_blocks"]) == (2, 2)
    assert facts(repr(found)) == "2, 100,000,000, 1.8e-08 s, 1.1e-05 ms"
    assert facts(repr(served([Request(0, 4, 1)]))) == "1, 71,428,571, 1.4e-08 s"


def test_equal_prefixes_share_blocks():
    """The first computes 8 tokens from 0 to 18; the second has them, and computes its last 2 from
    18 to 30.
    """
    first, second = Request(0, 8, 1, (1, 2), 4), Request(3, 10, 1, (1, 2, 3), 4)
    found = served([first, second])
    assert (found.token_ns, found.hit_tokens) == (((18,), (30,)), 8)
    whole = served(
        [first, Request(3, 8, 1, (1, 2), 4)]
    )  # all of it is there, but a token has to be computed: the last block again
    assert (whole.token_ns, whole.hit_tokens) == (((18,), (32,)), 4)
    other = served([first, Request(3, 10, 1, (7, 2, 3), 4)])
    assert other.hit_tokens == 0


@pytest.mark.parametrize(
    ("block", "tokens", "key"),
    [
        (0, 16, (0, 5, 0)),
        (1, 16, (1, 6, 0)),
        (0, 32, (1, 6, 0)),
        (0, 8, (0, 5, 8)),
        (1, 8, (0, 5, 0)),
        (2, 16, None),
        (1, 24, None),
    ],
)
def test_what_names_a_block(block, tokens, key):
    """40 tokens, of which two ids stand for 32. A block that ends where an id ends has 0 behind
    it.
    """
    assert Request(0, 40, 1, (5, 6), 16).block_key(block, tokens) == key


def test_a_part_of_a_prompt_names_no_block():
    """The id of the last part stands for 20 of 32 tokens: a block that ends beyond is the request's
    own.
    """
    assert Request(0, 20, 1, (5,), 32).block_key(1, 16) is None
    assert Request(0, 20, 1, (5,), 32).block_key(0, 16) == (0, 5, 16)


def test_a_request_that_never_fits():
    """13 tokens are in the cache when the last one is computed: four blocks of 4."""
    assert served([Request(0, 10, 4)], blocks=4).preemptions == 0
    with pytest.raises(
        InputError,
        match=r"^requests\[1\]: 14 tokens of prompt and answer do not fit in a cache of 12 tokens$",
    ):
        served([Request(0, 1, 1), Request(0, 10, 4)], blocks=3)


def test_the_most_sequences_run():
    """Two of one token each until 12, and their second until 24; then the next two, and the fifth
    alone from 48.
    """
    found = served([Request(0, 1, 2)] * 5, most=2)
    assert found.token_ns == ((12, 24), (12, 24), (36, 48), (36, 48), (59, 70))


REQUESTS = st.lists(
    st.builds(
        Request,
        st.integers(0, 200),
        st.integers(1, 20),
        st.integers(1, 12),
        st.lists(st.integers(0, 2), max_size=5).map(tuple),
        st.sampled_from([2, 4, 8]),
    ),
    min_size=1,
    max_size=12,
).map(lambda requests: sorted(requests, key=lambda request: request.arrival_ns))


@given(REQUESTS, st.integers(8, 14), st.integers(1, 16), st.integers(1, 5), st.booleans())
def test_what_holds_for_any_requests(requests, blocks, budget, most, ahead):
    """Every request gets all of its tokens, one after the other; no limit is passed; whoever came
    first is first scheduled first.
    """
    found = served(requests, blocks, budget, most, ahead=ahead)
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    assert all(one <= other for one, other in pairwise(found.scheduled_ns))
    rows = zip(found.token_ns, found.scheduled_ns, requests, strict=True)
    assert all(tokens[0] > start >= request.arrival_ns for tokens, start, request in rows)
    assert all(
        s.tokens <= budget and s.running <= most and s.held_blocks <= blocks for s in found.samples
    )
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(found.samples))
    computed = sum(sample.tokens for sample in found.samples)
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    assert computed >= least - found.hit_tokens
    if not found.preemptions:
        assert computed == least - found.hit_tokens
    assert served(requests, blocks, budget, most, ahead=ahead) == found


def test_a_cache_that_is_large_enough_never_preempts():
    requests = [Request(i, 12, 6) for i in range(6)]
    large, larger = served(requests, blocks=24), served(requests, blocks=1000)
    assert large.preemptions == 0
    assert large.token_ns == larger.token_ns


def test_all_blocks_are_free_in_the_end():
    requests = [Request(0, 7, 3), Request(0, 9, 2)]
    scheduler = Scheduler(requests, EngineLimits(8, 4, 4), 5)
    for number in range(2):
        scheduler.add(number)
    got = [0, 0]
    while (iteration := scheduler.schedule()) is not None:
        for number in iteration.emits:
            got[number] += 1
            if got[number] == requests[number].output_tokens:
                scheduler.finish(number)
    assert (got, scheduler.pool.free, scheduler.running, list(scheduler.waiting)) == (
        [3, 2],
        5,
        [],
        [],
    )


def test_the_summary():
    """Of the two of `test_decoding_goes_before_prompts`: first tokens after 14 and 40 ns, two of
    the first's 18 and 13 ns apart.
    """
    found = served([Request(0, 4, 3), Request(5, 9, 1)])
    data = found.summary()
    assert json.loads(json.dumps(data)) == data
    assert data["ttft_ns"] == {"mean": 27.0, "p50": 14.0, "p90": 40.0, "p95": 40.0, "p99": 40.0}
    assert data["tpot_ns"]["mean"] == 15.5
    assert (data["inter_token_ns"]["p50"], data["inter_token_ns"]["p99"]) == (13.0, 18.0)
    assert (data["span_ns"], data["iterations"], data["output_tokens_per_s"]) == (
        45,
        3,
        4 / 45 * 1e9,
    )
    assert (data["peak_blocks"], data["blocks"]) == (5, 100)
    assert data["mean_blocks"] == pytest.approx((14 * 1 + 18 * 4 + 13 * 5) / 45)
    assert facts(repr(found)) == "2, 88,888,889, 2.7e-08 s, 1.55e-05 ms"


def test_an_iteration_counts_its_tokens():
    iteration = Iteration(((7, 0), (3, 16)), 4, 100, ())
    assert (iteration.tokens, iteration.sequences) == (14, 6)
