"""Blocks that come up layer by layer while the iteration that reads them computes: timelines by
hand, and what holds for any requests.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine import REQUESTS
from test_kv_tiers import POLICIES, Watched, chained
from toy_tiers import GB, toy_machine, toy_ns

import hosim
from hosim.errors import InputError
from hosim.serving import EngineLimits, serve_requests
from hosim.serving.blocks import KvSetup, kv_setup
from hosim.serving.requests import Request

LINE = [
    Request(0, 8, 1, (1, 2), 4),
    Request(20, 8, 1, (7, 8), 4),
    Request(50, 8, 1, (5, 6), 4),
    Request(100, 9, 1, (1, 2, 3), 4),
]


def served(
    requests,
    layers,
    latency=0,
    blocks=4,
    ahead=False,
    kv="write_through",
    tiers=(("ddr", 100),),
    swaps=False,
    most=4,
    up=GB,
):
    setup = Watched(KvSetup(kv, toy_machine(up, latency=latency), tiers, 6, swaps, layers=layers))

    def ns(iteration):
        setup.check()
        return toy_ns(iteration)

    found = serve_requests(requests, EngineLimits(8, most, 4), blocks, ns, ahead=ahead, kv=setup)
    setup.check()
    return found, setup.pool


@pytest.mark.parametrize(
    ("layers", "latency", "last"), [(1, 0, 123), (2, 0, 118), (4, 0, 115), (1, 1, 124), (2, 1, 120)]
)
def test_layers_compute_while_others_come_up(layers, latency, last):
    """All blocks are below when the last request comes, at 100: 12 bytes come up for it, and one
    token takes 11 ns.

    As a whole the blocks are there at 112. In two layers they are there at 106 and 112: the first
    computes from 106 to 111.5, the other from 112 to 117.5, and the iteration ends at 118. In four,
    they are there at 103, 106, 109 and 112: the last computes until 114.75. With a latency of 1 ns,
    which each layer spends, two are there at 107 and 114: the iteration ends at 119.5.
    """
    found, _ = served(LINE, layers, latency)
    assert found.token_ns[-1] == (last,)
    assert found.scheduled_ns[-1] == 100
    if layers > 1:
        assert (found.kv.loads, found.kv.stall_ns["loads"]) == (0, last - 111)
        assert (found.samples[-1].start_ns, found.samples[-1].end_ns) == (100, last)
    assert found.kv.channels["h2d"].bytes == 12


def test_computation_that_takes_longer_hides_all_layers_but_the_first():
    """As above with 100 bytes a nanosecond: two layers of 6 bytes are there at 101 and 102, and the
    first waits for its own: 112.
    """
    found, _ = served(LINE, 2, up=100 * GB)
    assert found.token_ns[-1] == (112,)


def test_whoever_decodes_beside_waits_for_the_layers_too():
    """The fourth request computes 4 tokens from 80 to 94, and its second token until 105. Then the
    last one is there, too.

    Its blocks come up in two layers of 6 bytes, until 111 and 117. Both compute a token, which
    takes 12 ns: 111 + 12 or 117 + 6. As a whole, they are there at 117, so the other one computes
    alone until 116 and 127; then the last one's token takes 11 ns.
    """
    line = [*LINE[:3], Request(80, 4, 4), LINE[3]]
    layers, whole = (served(line, count, blocks=5)[0].token_ns[3:] for count in (2, 1))
    assert layers == ((94, 105, 123, 134), (123,))
    assert whole == ((94, 105, 116, 127), (138,))


@given(
    REQUESTS.map(chained),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
    st.integers(8, 14),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.sampled_from([(GB // 7, 0), (GB, 5), (10 * GB, 0)]),
)
def test_what_holds_for_any_requests(
    requests, policy, layers, blocks, most, ahead, swaps, room, channel
):
    """Every request gets its tokens, in the order of its queue; no tier is too full, and nothing is
    held or read at the end.
    """
    tiers = (("ddr", room[0]), ("nvme", room[1]))
    asked = {
        "blocks": blocks,
        "ahead": ahead,
        "kv": policy,
        "tiers": tiers,
        "swaps": swaps,
        "most": most,
    }
    found, pool = served(requests, layers, channel[1], up=channel[0], **asked)
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    assert list(found.scheduled_ns) == sorted(found.scheduled_ns)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(found.samples))
    assert all(sample.end_ns - sample.start_ns >= 10 + sample.tokens for sample in found.samples)
    assert pool.free == blocks
    assert not pool._busy
    assert all(tier.reserved == 0 and not tier._readers for tier in pool.tiers)
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    computed = sum(sample.tokens for sample in found.samples)
    assert (
        computed == least - found.hit_tokens
        if not found.preemptions
        else computed >= least - found.hit_tokens
    )
    assert served(requests, layers, channel[1], up=channel[0], **asked)[0] == found


def test_asking_for_it():
    h100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
    assert [
        kv_setup(f"lru:loading={how}", h100, 1, 1, layers=32).layers
        for how in ("layers", "requests")
    ] == [32, 1]
    with pytest.raises(
        InputError, match=r"^kv: loading: expected requests or layers, got 'layer'$"
    ):
        kv_setup("lru:loading=layer", h100, 1, 1)
    ids = [tuple(range(100 * i, 100 * i + 31)) for i in range(2)]
    requests = [Request(i * 10**9, 500, 1, ids[i % 2], 16) for i in range(4)]
    whole, layers = (
        hosim.serve(
            {"model": "llama-3.1-8b", "layers": 2},
            h100,
            requests,
            blocks=40,
            kv=f"write_through:loading={how}",
        ).summary()
        for how in ("requests", "layers")
    )
    assert (
        layers["kv"]["channels"]["h2d"]["copies"]
        == 2 * whole["kv"]["channels"]["h2d"]["copies"]
        > 0
    )
    assert layers["kv"]["channels"]["h2d"]["bytes"] == whole["kv"]["channels"]["h2d"]["bytes"]
    assert layers["ttft_ns"]["mean"] < whole["ttft_ns"]["mean"]
