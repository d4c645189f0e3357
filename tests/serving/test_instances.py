"""Several engines behind a router, on the engine whose iterations take 10 ns and 1 ns for each
token.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine import REQUESTS, toy_ns
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving import ROUTERS, EngineLimits, serve_on_instances, serve_requests
from hosim.serving.report import curves, serving_trace
from hosim.serving.requests import Request

LIMITS = EngineLimits(8, 4, 4)


def routed(requests, router, instances=2, blocks=100, ahead=False):
    return serve_on_instances(
        requests, LIMITS, blocks, toy_ns, instances, ROUTERS[router], ahead=ahead
    )


def test_one_engine_after_the_other():
    """Prompts of 4 tokens that arrive at 0, 1 and 2: the first and third meet on engine 0, where
    the third waits for the iteration's end.

    Engine 0: 0 to 14 the first; 14 to 28 the third. Engine 1: 1 to 15.
    """
    found = routed([Request(0, 4, 1), Request(1, 4, 1), Request(2, 4, 1)], "round_robin")
    assert (found.instances, found.token_ns) == ((0, 1, 0), ((14,), (15,), (28,)))
    assert [(s.instance, s.start_ns, s.end_ns) for s in found.samples] == [
        (0, 0, 14),
        (1, 1, 15),
        (0, 14, 28),
    ]


def test_turns_take_the_next_engine_when_they_arrive():
    """The first has its answer at 14, and its next turn arrives at 15 as the second request of all,
    though it is the third of the file; what arrives at 100 is the third.
    """
    asked = [Request(0, 4, 1), Request(100, 4, 1), Request(1, 5, 1, follows=0)]
    assert routed(asked, "round_robin").instances == (0, 0, 1)


def test_the_fewest_requests():
    """The first has 3 tokens: at 20, when the second has gone (1 to 15), engine 1 is empty and gets
    the third.

    The fourth meets one request on each: the first of the two is taken.
    """
    found = routed(
        [Request(0, 4, 3), Request(1, 4, 1), Request(20, 4, 1), Request(21, 4, 1)], "least_load"
    )
    assert found.instances == (0, 1, 1, 0)


def test_equal_prefixes_meet_unless_it_takes_longer_there():
    """Prompts of 9 tokens, the first two blocks of which are equal in all but the second request.

    At 0 both engines are empty: engine 0, which computes 8 tokens, and from 18 the last one. At 1
    it has 1 token ahead, engine 1 none: 1 + 9 against 9. At 60 both are empty again, and engine 0
    holds 8 tokens of the third: 1 against 9. At 61 it has all of its prompt computed and its next
    token ahead: 1 + 1 against 9. At 62 the fourth waits there, with 9 tokens ahead: 1 + 9 + 1
    against 9.
    """
    alike = {"prefix": (1, 2), "prefix_tokens": 4}
    arrivals = [
        Request(0, 9, 1, **alike),
        Request(1, 9, 1),
        *(Request(at, 9, 1, **alike) for at in (60, 61, 62)),
    ]
    assert routed(arrivals, "prefix").instances == (0, 1, 0, 0, 1)


@given(REQUESTS, st.sampled_from(sorted(ROUTERS)), st.booleans())
def test_one_engine_behind_a_router_is_the_engine(requests, router, ahead):
    behind = routed(requests, router, 1, 12, ahead)
    alone = serve_requests(requests, LIMITS, 12, toy_ns, ahead=ahead)
    assert (behind.scheduled_ns, behind.token_ns, behind.samples) == (
        alone.scheduled_ns,
        alone.token_ns,
        alone.samples,
    )
    assert (behind.preemptions, behind.hit_tokens, behind.summary()) == (
        alone.preemptions,
        alone.hit_tokens,
        alone.summary(),
    )


@given(
    REQUESTS, st.sampled_from(sorted(ROUTERS)), st.integers(2, 4), st.integers(8, 12), st.booleans()
)
def test_what_holds_behind_any_router(requests, router, instances, blocks, ahead):
    """Every request gets its tokens on one engine, in the order of its queue; what an engine does
    is what it does alone.
    """
    found = routed(requests, router, instances, blocks, ahead)
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(a < b for tokens in found.token_ns for a, b in pairwise(tokens))
    for engine in range(instances):
        own = [number for number, of in enumerate(found.instances) if of == engine]
        samples = [sample for sample in found.samples if sample.instance == engine]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(samples))
        assert all(s.tokens <= 8 and s.running <= 4 and s.held_blocks <= blocks for s in samples)
        if own:
            alone = serve_requests(
                [requests[number] for number in own], LIMITS, blocks, toy_ns, ahead=ahead
            )
            assert alone.token_ns == tuple(found.token_ns[number] for number in own)
    assert routed(requests, router, instances, blocks, ahead) == found


def test_pictures_and_traces_have_every_engine():
    """As derived in `test_one_engine_after_the_other`: a prompt's block on each engine, from 0, 1
    and 14 on.
    """
    from dataclasses import replace

    found = routed([Request(0, 4, 1), Request(1, 4, 1), Request(2, 4, 1)], "round_robin")
    at, (running, _, held) = curves(found.samples)
    assert at.tolist() == [0, 1, 14, 15, 28]
    assert running.tolist() == held.tolist() == [1, 2, 2, 1, 0]
    assert np.array_equal(found.frame()["instance"], [0, 1, 0])
    events = serving_trace(replace(found, about={}))["traceEvents"]
    assert [(e["pid"], e["ts"]) for e in events if e["ph"] == "X"] == [
        (2, 0),
        (3, 0.001),
        (2, 0.014),
    ]


def test_instances_of_a_model():
    model, drawn = (
        {"model": "llama-3.1-8b", "layers": 2},
        "poisson:rate=5000:count=12:prompt=200:output=4",
    )
    one, two = (
        hosim.serve(model, "h100-80gb-sxm", drawn, instances=n, router="least_load") for n in (1, 2)
    )
    assert one.instances == ()
    assert set(two.instances) == {0, 1}
    assert two.span_ns < one.span_ns
    assert (two.summary()["instances"], two.summary()["router"]) == (2, "least_load")
    with pytest.raises(
        InputError, match=r"^router: unknown router 'least'; did you mean 'least_load'\?$"
    ):
        hosim.serve(model, "h100-80gb-sxm", drawn, instances=2, router="least")
    with pytest.raises(
        InputError, match=r"^instances: expected a whole number of at least 1, got 0$"
    ):
        hosim.serve(model, "h100-80gb-sxm", drawn, instances=0)


@pytest.mark.parametrize(
    ("option", "word", "found"),
    [
        ("--router", "", "least_load prefix round_robin"),
        ("--kv", "l", "lookahead lru"),
        ("--preemption", "s", "swap"),
        ("--scheduling-policy", "p", "priority"),
        ("--kv-link", "", "ddr links pool"),
    ],
)
def test_values_of_options_are_completed(option, word, found):
    line = {
        "_HOSIM_COMPLETE": "complete_bash",
        "COMP_WORDS": f"hosim serve gpt2 {option} {word}",
        "COMP_CWORD": "4",
    }
    assert (
        " ".join(sorted(CliRunner().invoke(app, [], prog_name="hosim", env=line).output.split()))
        == found
    )
