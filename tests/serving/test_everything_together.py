"""Priorities, tiers that engines share, swapping, loading by layers, and prefill and decode apart,
in any combination.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_disaggregated import Both
from test_engine import REQUESTS
from test_kv_tiers import POLICIES, chained
from test_shared_tiers import Shared
from toy_tiers import GB, toy_machine, toy_ns

from hosim.serving import (
    ROUTERS,
    EngineLimits,
    ServingEngine,
    serve_disaggregated,
    serve_on_instances,
)
from hosim.serving.blocks import KvLink, KvSetup, Peers

LIMITS = st.builds(EngineLimits, st.integers(1, 12), st.integers(1, 5), st.just(4), st.booleans())
SETUPS = st.builds(
    lambda policy, rooms, *rest: KvSetup(
        policy, toy_machine(latency=3), (("ddr", rooms[0]), ("nvme", rooms[1])), *rest
    ),
    st.sampled_from(POLICIES),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from([0, 1, 6, 60]),  # bytes of a block
    st.booleans(),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 3),
)


@pytest.mark.long
@settings(max_examples=1000)
@given(
    REQUESTS.map(chained),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    LIMITS,
    SETUPS,
    st.sampled_from(sorted(ROUTERS)),
    st.tuples(st.integers(0, 3), st.integers(1, 3)),
    st.integers(8, 11),
    st.booleans(),
    st.sampled_from(["", "ddr"]),
)
def test_what_holds_for_any_requests(
    requests, priorities, limits, setup, router, engines, blocks, ahead, tier
):
    """Every request gets its tokens; what is computed is what was not found; no limit is passed,
    and nothing is held at the end.
    """
    prefills, others = engines
    if limits.by_priority:
        requests = [
            replace(request, priority=priority)
            for request, priority in zip(requests, priorities, strict=False)
        ]
    kv = Both(setup) if prefills else Shared(setup)

    def ns(iteration):
        kv.check()
        return toy_ns(iteration)

    if prefills:
        peers = Peers(prefills, None if tier else GB, tier)
        link = KvLink("toy", setup.machine, setup.block_bytes, setup.per_host, peers)
        decoder = ServingEngine(blocks, ns)
        found = serve_disaggregated(
            requests, limits, decoder, others, ROUTERS[router], link, ahead=ahead, kv=kv
        )
    else:
        found = serve_on_instances(
            requests, limits, blocks, ns, others, ROUTERS[router], ahead=ahead, kv=kv
        )
    kv.check()
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    assert all(pool.free == blocks and not pool._busy for pool in kv.pools)
    assert all(one.reserved == 0 and not one._readers for one in kv.tiers)
    assert sum(one.hit_tokens for one in found.kv.tiers.values()) == found.hit_tokens
    for engine in range(prefills + others):
        samples = [sample for sample in found.samples if sample.instance == engine]
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(samples))
        assert all(
            s.held_blocks <= blocks
            and s.tokens <= limits.token_budget
            and s.running <= limits.max_sequences
            for s in samples
        )
    again = len(requests) if prefills else 0  # the last token of each prompt
    least = (
        sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
        + again
        - found.hit_tokens
    )
    computed = sum(sample.tokens for sample in found.samples)
    assert computed == least if found.preemptions == 0 else computed >= least
