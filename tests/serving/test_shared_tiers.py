"""Several engines whose caches go on in tiers that they share: timelines by hand, and what holds
for any requests.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import REQUESTS
from test_kv_tiers import POLICIES, chained
from toy_tiers import GB, toy_machine, toy_ns

import hosim
from hosim.hardware import Fabric
from hosim.serving import ROUTERS, EngineLimits, serve_on_instances, serve_requests
from hosim.serving.blocks import (
    Awaited,
    BlockCopies,
    EngineChannels,
    KvSetup,
    SteppedClock,
    kv_setup,
)
from hosim.serving.requests import Request

ALIKE = Request(0, 8, 1, (1, 2), 4)
OTHER = Request(1, 4, 1, (9,), 4)
LONGER = Request(100, 9, 1, (1, 2, 3), 4)


@pytest.mark.parametrize(("engines", "took"), [(1, 100), (2, 100), (4, 200)])
def test_engines_share_the_bandwidth_of_a_tier_and_not_their_channels_alone(engines, took):
    """By hand: each engine's channel carries 1 byte a nanosecond, storage behind all of them 2. One
    and two engines read 100 bytes in 100 ns, four in 200; their writes share it, too.
    """
    clock = SteppedClock()
    channels = EngineChannels(clock, toy_machine(memory=2 * GB), engines, engines)
    ends = []
    for engine in range(engines):
        way = ("ddr", "hbm") if engine % 2 else ("hbm", "ddr")
        copy = BlockCopies(channels, 100, engine).copy(*way, 1)
        copy.then(lambda: ends.append(clock.now))
    clock.run()
    assert ends == [took] * engines


def test_channels_of_one_queue_take_turns():
    """By hand: 100 bytes each, down, up and down, a byte a nanosecond. Each channel has its own
    engine otherwise: 100 ns down and up, and 200 for the second copy down.
    """
    usual = toy_machine()
    both = [
        replace(c, queue="copies") if {c.source, c.destination} == {"hbm", "ddr"} else c
        for c in usual.channels
    ]
    for machine, ends in (
        (replace(usual, channels=tuple(both)), [100, 200, 300]),
        (usual, [100, 100, 200]),
    ):
        clock, found = SteppedClock(), []
        copies = BlockCopies(EngineChannels(clock, machine), 100, 0)
        for way in (("hbm", "ddr"), ("ddr", "hbm"), ("hbm", "ddr")):
            copies.copy(*way, 1).then(lambda clock=clock, found=found: found.append(clock.now))
        clock.run()
        assert found == ends


class Shared:
    """A setup whose pools can be looked at."""

    def __init__(self, setup):
        self.setup, self.policy, self.swaps = setup, setup.policy, setup.swaps

    def __call__(self, clock, blocks, engines=1, channels=None):
        self.pools = self.setup(clock, blocks, engines)
        return self.pools

    @property
    def tiers(self):
        return {id(tier): tier for pool in self.pools for tier in pool.tiers}.values()

    def check(self):
        """Names and blocks of each engine are one to one, whoever can be evicted is held by nobody,
        and no tier is too full.
        """
        for pool in self.pools:
            assert {block: key for key, block in pool._block_of.items()} == pool._key_of
            assert all(
                (count == 0) == (block in pool._order) for block, count in enumerate(pool._holders)
            )
            assert 0 <= pool.free <= pool.count
        for tier in self.tiers:
            assert 0 <= tier.held <= tier.capacity
            assert tier.reserved >= 0


def served(
    requests,
    engines=2,
    kv="write_through",
    router="round_robin",
    tiers=(("ddr", 100),),
    machine=None,
    per_host=None,
    blocks=100,
    **more,
):
    """Engines of the toy machine, all on one host by default, with blocks of 4 tokens and 6
    bytes.
    """
    setup = (
        None
        if kv is None
        else Shared(
            KvSetup(
                kv, machine or toy_machine(), tuple(tiers), 6, more.pop("swaps", False), per_host
            )
        )
    )
    limits = EngineLimits(more.pop("budget", 8), more.pop("most", 4), 4)

    def ns(iteration):
        if setup is not None:
            setup.check()
        return toy_ns(iteration)

    found = serve_on_instances(
        requests, limits, blocks, ns, engines, ROUTERS[router], kv=setup, **{"ahead": False, **more}
    )
    if setup is not None:
        setup.check()
    return found, setup


def test_what_one_engine_wrote_is_found_by_another():
    """Engine 0 computes the first prompt from 0 to 18, and its two blocks go down from 18 to 30;
    engine 1 the second, from 1 to 15.

    The third goes to engine 0. The fourth goes to engine 1 at 101: both blocks of its prompt are in
    the host's memory and come up from 101 to 113; its ninth token is computed from 113 to 124. On
    hosts of their own engine 1 finds nothing: 8 tokens from 101 to 119, one to 130.
    """
    requests = [ALIKE, OTHER, replace(OTHER, arrival_ns=100), replace(LONGER, arrival_ns=101)]
    found, _ = served(requests)
    assert found.instances == (0, 1, 0, 1)
    assert found.token_ns == ((18,), (15,), (114,), (124,))
    tiers = found.kv.tiers
    assert {
        name: (tier.hit_tokens, tier.stores, tier.peak_blocks) for name, tier in tiers.items()
    } == {
        "hbm": (4 * 0, 2, 3),
        "ddr": (8, 1, 3),
    }
    apart, _ = served(requests, per_host=1)
    assert apart.token_ns == ((18,), (15,), (114,), (130,))
    assert (apart.kv.tiers["ddr"].stores, apart.kv.tiers["ddr"].hit_tokens) == (2, 0)


@pytest.mark.parametrize(("scope", "last"), [("device", 124), ("host", 136)])
def test_engines_share_the_links_of_their_host(scope, last):
    """Engine 0 has the first prompt; engines 1 and 2 both bring up its two blocks from 101 on: 12
    bytes at 1 byte a nanosecond.

    That is until 113, or over a link of the host until 125. Then each computes a token for 11 ns.
    """
    machine = replace(toy_machine(), fabrics=(Fabric("bus", GB, ("h2d",), scope),))
    again = replace(LONGER, arrival_ns=101)
    found, _ = served(
        [ALIKE, OTHER, OTHER, replace(OTHER, arrival_ns=100), again, again], 3, machine=machine
    )
    assert found.instances == (0, 1, 2, 0, 1, 2)
    assert [tokens[-1] for tokens in found.token_ns[-2:]] == [last, last]
    moved = found.kv.channels["h2d"]
    assert (moved.copies, moved.bytes, moved.contention_ns) == (2, 24, 2 * (last - 124))
    assert moved.utilization == 2 * (last - 101 - 11) / (3 * last)


def test_a_block_that_another_engine_is_writing_is_waited_for():
    """Engine 0's blocks go down from 18 to 30. Engine 1 wants them at 20: they come up from 30 to
    42, and its token is there at 53.
    """
    found, _ = served([ALIKE, replace(LONGER, arrival_ns=20)])
    assert found.token_ns[1] == (53,)
    assert found.kv.load_wait_ns == 22


def test_engines_fill_one_tier():
    """Room for two blocks in the host's memory. Engine 0's go there from 18 to 30. Engine 1's,
    computed from 40 to 58, replace them.

    So at 101 engine 1 finds nothing of engine 0's: it computes 8 tokens until 119, and the last one
    until 130.
    """
    line = [
        ALIKE,
        Request(40, 8, 1, (5, 6), 4),
        replace(OTHER, arrival_ns=100),
        replace(LONGER, arrival_ns=101),
    ]
    found, shared = served(line, tiers=(("ddr", 2),))
    assert found.kv.tiers["ddr"].hit_tokens == 0
    assert found.token_ns[-1] == (130,)
    (tier,) = shared.tiers
    assert (tier.held, tier.peak, tier.capacity) == (2, 2, 2)


def test_what_was_used_least_recently_by_any_engine_goes_first():
    """Room for two blocks. Engine 0 writes the first after much else, engine 1 the second and the
    third, which replaces the first.
    """
    line = [
        *[Request(0, 3, 1)] * 6,
        *[Request(200 + 100 * i, 4, 1, (i,), 4) for i in range(3)],
        Request(500, 5, 1, (1, 8), 4),
    ]
    ends = [0] * 7 + [1, 1, 0]
    setup = KvSetup("write_through", toy_machine(), (("ddr", 2),), 6)
    found = serve_on_instances(
        line,
        EngineLimits(8, 4, 4),
        100,
        toy_ns,
        2,
        lambda number, *_: ends[number],
        ahead=False,
        kv=setup,
    )
    assert found.kv.tiers["ddr"].hit_tokens == 4


def test_the_router_counts_what_lies_below():
    """Both engines reach the prompt's blocks in the host's memory at 101, and engine 0 has a token
    of the third ahead: 1 + 1 against 1.
    """
    line = [ALIKE, OTHER, Request(100, 4, 2), replace(LONGER, arrival_ns=101)]
    found, _ = served(line, router="prefix")
    assert found.instances == (0, 1, 0, 1)


@settings(max_examples=20)
@given(
    REQUESTS,
    st.sampled_from(POLICIES),
    st.integers(8, 14),
    st.booleans(),
    st.booleans(),
    st.integers(0, 6),
)
def test_one_engine_behind_a_router_is_the_engine(requests, policy, blocks, ahead, swaps, room):
    setup = KvSetup(policy, toy_machine(), (("ddr", room),), 6, swaps)
    limits = EngineLimits(8, 4, 4)
    behind = serve_on_instances(
        requests, limits, blocks, toy_ns, 1, ROUTERS["prefix"], ahead=ahead, kv=setup
    )
    assert replace(behind, instances=()) == serve_requests(
        requests, limits, blocks, toy_ns, ahead=ahead, kv=setup
    )


@settings(max_examples=15)
@given(
    REQUESTS,
    st.sampled_from(POLICIES),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(2, 3),
    st.booleans(),
    st.integers(0, 6),
)
def test_on_hosts_of_their_own_engines_share_nothing(
    requests, policy, router, engines, ahead, room
):
    machine = replace(toy_machine(), fabrics=(Fabric("bus", GB, ("h2d", "d2h"), "host"),))
    found, _ = served(
        requests, engines, policy, router, (("ddr", room),), machine, 1, 12, ahead=ahead
    )
    for engine in range(engines):
        own = [number for number, of in enumerate(found.instances) if of == engine]
        if own:
            setup = KvSetup(policy, machine, (("ddr", room),), 6)
            alone = serve_requests(
                [requests[number] for number in own],
                EngineLimits(8, 4, 4),
                12,
                toy_ns,
                ahead=ahead,
                kv=setup,
            )
            assert alone.token_ns == tuple(found.token_ns[number] for number in own)


@given(
    REQUESTS.map(chained),
    st.sampled_from(POLICIES),
    st.sampled_from(sorted(ROUTERS)),
    st.integers(2, 4),
    st.sampled_from([None, 1, 2]),
    st.integers(8, 12),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.sampled_from([(GB // 7, 0), (GB, 5)]),
)
def test_what_holds_for_any_requests(
    requests, policy, router, engines, per_host, blocks, ahead, swaps, room, channel
):
    """Every request gets its tokens; no tier is too full at any iteration, nothing is held at the
    end, and the same comes out again.
    """
    machine = toy_machine(channel[0], channel[0], channel[1])
    machine = replace(
        machine, fabrics=(Fabric("bus", 2 * channel[0], ("h2d", "d2h", "read"), "host"),)
    )
    tiers = (("ddr", room[0]), ("nvme", room[1]))
    found, shared = served(
        requests,
        engines,
        policy,
        router,
        tiers,
        machine,
        per_host,
        blocks,
        ahead=ahead,
        swaps=swaps,
    )
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    for engine in range(engines):
        own = [
            found.scheduled_ns[number] for number, of in enumerate(found.instances) if of == engine
        ]
        assert own == sorted(own)  # first come, first served
        samples = [sample for sample in found.samples if sample.instance == engine]
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(samples))
        assert all(sample.held_blocks <= blocks for sample in samples)
    for pool in shared.pools:
        assert pool.free == blocks
        assert not pool._busy
    assert all(tier.reserved == 0 and not tier._readers for tier in shared.tiers)
    assert sum(tier.hit_tokens for tier in found.kv.tiers.values()) == found.hit_tokens
    computed = sum(sample.tokens for sample in found.samples)
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    assert (
        computed == least - found.hit_tokens
        if found.preemptions == 0
        else computed >= least - found.hit_tokens
    )
    assert (
        served(
            requests,
            engines,
            policy,
            router,
            tiers,
            machine,
            per_host,
            blocks,
            ahead=ahead,
            swaps=swaps,
        )[0]
        == found
    )


def test_engines_of_eight_cards_and_their_hosts():
    """DDR of a DGX is that of its eight devices: two engines of four, one of eight or of sixteen on
    two hosts, two of three.
    """
    h100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))
    assert [kv_setup("lru", h100, devices, 2**23).per_host for devices in (1, 3, 4, 8, 16)] == [
        8,
        2,
        2,
        1,
        1,
    ]
    caches = kv_setup("lru", h100, 4, 2**23)(SteppedClock(), 10, 3)
    assert [pool.tiers[0] is caches[0].tiers[0] for pool in caches] == [True, True, False]
    assert caches[0].tiers[0].capacity == 2 * 10**12 // 4 // 2**23


def test_a_pool_is_one_store_for_all_hosts():
    supernode = hosim.load_hardware(hosim.find_hardware("ascend-910c-supernode"))
    caches = kv_setup(
        "lru:tiers=ddr/pool", replace(supernode, channels=(*supernode.channels, *_JOINED)), 8, 2**23
    )(SteppedClock(), 10, 2)
    assert [one is other for one, other in zip(caches[0].tiers, caches[1].tiers, strict=True)] == [
        False,
        True,
    ]
    caches[0].tiers[1].add((1, 0), Awaited(), (0,))
    assert caches[1].reach([(1, 0)]).below == [(1, (1, 0))]


_JOINED = (
    hosim.hardware.Channel("to_pool", "ddr", "pool", 10**9),
    hosim.hardware.Channel("from_pool", "pool", "ddr", 10**9),
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("router", "kv", "found", "first_ms"),
    [
        ("round_robin", None, (0.06, 0.0), (711, 250, 3115, 7443)),
        ("round_robin", "write_through", (0.332, 0.272), (532, 169, 2192, 7071)),
        ("prefix", None, (0.142, 0.0), (482, 206, 1644, 5331)),
        ("prefix", "write_through", (0.334, 0.274), (392, 173, 1321, 4658)),
    ],
)
def test_mooncake_on_eight_engines(shared, router, kv, found, first_ms):
    """The figures of docs/serving.md: what engines of one card each find in the DDR that they
    share.
    """
    trace = shared / "data" / "serving" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip(f"no file {trace}")
    asked = {"block_tokens": 512, "token_budget": 8192, "instances": 8, "router": router, "kv": kv}
    data = hosim.serve("llama-3.1-8b", "h100-80gb-sxm", trace, **asked).summary()
    below = data["kv"]["tiers"]["ddr"]["hit_share"] if kv else 0.0
    assert (round(data["prefix_hit_share"], 3), round(below, 3)) == found
    assert (
        tuple(round(data["ttft_ns"][of] / 1e6) for of in ("mean", "p50", "p95", "p99")) == first_ms
    )
    if (router, kv) == ("round_robin", None):
        assert round(data["tpot_ns"]["mean"] / 1e6, 1) == 10.5
