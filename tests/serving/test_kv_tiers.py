"""A cache in several tiers: timelines by hand, the laws of tiers that are free or hold nothing, and
what holds for any requests.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import REQUESTS
from toy_tiers import GB, served, toy_machine, toy_ns

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.serving import EngineLimits, serve_requests
from hosim.serving.blocks import (
    KV_POLICIES,
    BlockCopies,
    EngineChannels,
    KvSetup,
    SteppedClock,
    kv_policy,
)
from hosim.serving.requests import Request

POLICIES = [policy.name for policy in KV_POLICIES]
A = Request(0, 8, 1, (1, 2), 4)
B = Request(20, 8, 1, (7, 8), 4)
C = Request(50, 9, 1, (1, 2, 3), 4)


def test_evicted_and_brought_back():
    """Three blocks of the device, 6 bytes each: a copy takes 6 ns.

    A computes 8 tokens from 0 to 18 in blocks 0 and 1, which are free then, 1 before 0. B comes at
    20 and takes block 2 and block 1, whose contents, A's second part, go down from 20 to 26; it
    computes from 26 to 44. C comes at 50: A's first part is in block 0, the second is below. It
    comes up into block 1, whose contents, B's, go down before: 50 to 56 down, 56 to 62 up. Until
    then nothing computes. C's ninth token needs block 2, from which B's other part goes down from
    62 to 68: the token is there at 79.
    """
    found = served([A, B, C])
    assert found.token_ns == ((18,), (44,), (79,))
    assert found.scheduled_ns == (0, 20, 50)
    kv = found.kv
    assert {name: (tier.peak_blocks, tier.hit_tokens) for name, tier in kv.tiers.items()} == {
        "hbm": (3, 4),
        "ddr": (3, 4),
    }
    moved = {
        name: (channel.copies, channel.bytes, channel.busy_ns)
        for name, channel in kv.channels.items()
        if channel.copies
    }
    assert moved == {"d2h": (3, 18, 18), "h2d": (1, 6, 6)}
    assert kv.stall_ns == {"evictions": 6 + 6, "loads": 12}
    assert (kv.load_wait_ns, kv.loads, kv.dropped_blocks, found.hit_tokens) == (12, 1, 0, 8)
    assert kv.channels["d2h"].utilization == 18 / 79


def test_written_through():
    """A's two blocks go down when they are full, at 18, in one copy of 12 ns. B takes one of them
    at 20 and waits until 30.

    It computes from 30 to 48; its blocks go down from 48 to 60. C wants at 50 to load into one of
    these: from 60 to 66. Then the other one can be written at once: 66 to 77.
    """
    found = served([A, B, C], "write_through")
    assert found.token_ns == ((18,), (48,), (77,))
    assert found.kv.stall_ns == {"evictions": 10, "loads": 16}


def test_scheduled_ahead_a_copy_down_hides_behind_the_iteration_before():
    """D computes 8 tokens from 20 to 38 and holds three of five blocks. B comes at 25 and is
    scheduled at 38, when D goes on.

    A's blocks, of which B needs both, go down from 38 to 50, and D's second iteration lasts until
    49: the next one begins at 50, with D's third token and seven tokens of B. B's eighth is
    computed from 68 to 79.
    """
    found = served([A, Request(20, 8, 3), replace(B, arrival_ns=25)], blocks=5, ahead=True)
    assert found.token_ns == ((18,), (38, 49, 68), (79,))
    assert found.scheduled_ns == (0, 20, 38)
    assert found.kv.stall_ns == {"evictions": 1, "loads": 0}


def test_the_tier_below_is_full():
    """Room for one block below: A's second part goes there for B, and gives way at 46, when the
    ninth id's block takes that of A's first.

    So C finds A's first part below, and the second nowhere. Its three blocks held 7, 8 and 9: one
    goes down in place of A's first part, which the device has then, and two leave.
    """
    found = served([A, B, Request(46, 4, 1, (9,), 4), C], tiers=(("ddr", 1),))
    assert {name: (tier.peak_blocks, tier.hit_tokens) for name, tier in found.kv.tiers.items()} == {
        "hbm": (3, 0),
        "ddr": (1, 4),
    }
    assert found.kv.dropped_blocks == 1 + 2


def test_a_third_tier_takes_what_the_second_gives_up_and_is_read_through_it():
    """Room for one block in ddr, where A's second part goes for B. At 50 three blocks go: A's first
    part takes its place, it goes to nvme: 50 to 56, then 56 to 62, and 12 tokens until 84.

    The other two have no room. At 200 both parts of A come up, the second one over two channels,
    until 212. What they take the place of has no room either. Then the ninth token needs a block:
    what it holds goes to ddr in place of A's first part, which the device has: until 218, and the
    token is there at 229.
    """
    line = [A, B, Request(50, 12, 1, (5, 6, 7), 4), Request(200, 9, 1, (1, 2, 3), 4)]
    found = served(line, tiers=(("ddr", 1), ("nvme", 100)), budget=12)
    assert {name: channel.bytes for name, channel in found.kv.channels.items()} == {
        "h2d": 12,
        "d2h": 18,
        "read": 6,
        "write": 6,
    }
    assert {name: tier.hit_tokens for name, tier in found.kv.tiers.items()} == {
        "hbm": 0,
        "ddr": 4,
        "nvme": 4,
    }
    assert found.kv.dropped_blocks == 2 + 2
    assert found.token_ns == ((18,), (44,), (84,), (229,))


def test_swapped_out_and_in():
    """Two prompts of 4 tokens fill two of three blocks until 18. The first takes the third; the
    second is swapped out, from 18 to 24.

    The first one's tokens come at 29, 40, 51 and 62. Then the second comes up from 62 to 68, and
    its tokens follow without its prompt.
    """
    both = [Request(0, 4, 5), Request(0, 4, 3)]
    found = served(both, "swap_only", swaps=True)
    assert found.token_ns == ((18, 29, 40, 51, 62), (18, 79, 90))
    assert (
        found.preemptions,
        found.kv.swaps,
        found.kv.swapped_blocks,
        found.kv.tiers["ddr"].peak_blocks,
    ) == (1, 1, 1, 1)
    full = served(both, "swap_only", swaps=True, tiers=(("ddr", 0),))
    assert (full.kv.swaps, full.kv.recomputed, full.token_ns) == (0, 1, served(both, None).token_ns)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_block_is_written_when_it_has_been_swapped_out(ahead):
    """Two blocks, both full at 18. The first request takes that of the second, which is copied from
    18 to 24: it goes on at 24.

    Scheduled ahead, at 0, the copy waits until the iteration that fills the block has ended, at 18.
    The first one's tokens come at 35, 46 and 57; the second comes up until 63, and its tokens
    follow.
    """
    found = served(
        [Request(0, 4, 4), Request(0, 4, 3)], "swap_only", blocks=2, swaps=True, ahead=ahead
    )
    assert found.token_ns == ((18, 35, 46, 57), (18, 74, 85))
    assert found.kv.stall_ns == {"evictions": 6, "loads": 6}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_preempted_sequence_finds_its_blocks_below(ahead):
    """The same with lru: the second one's block goes down from 18 to 24, for the first; it comes up
    from 57 to 63.

    For its next token it needs the block that the first one's prompt is in, which goes down from 63
    to 69.
    """
    found = served([Request(0, 4, 4), Request(0, 4, 3)], "lru", blocks=2, ahead=ahead)
    assert found.token_ns == ((18, 35, 46, 57), (18, 80, 91))
    assert (found.preemptions, found.hit_tokens, found.kv.swaps) == (1, 0, 0)


def test_a_request_that_ends_while_it_is_swapped_out_leaves_its_room():
    """Scheduled ahead, the first takes the block of the second, whose only token comes at 18."""
    kv = Watched(KvSetup("swap_only", toy_machine(), (("ddr", 1),), 6, True))
    found = serve_requests(
        [Request(0, 4, 4), Request(0, 4, 1)], EngineLimits(8, 4, 4), 2, toy_ns, kv=kv
    )
    assert (found.token_ns, found.kv.swaps) == (((18, 35, 46, 57), (18,)), 1)
    assert kv.pool.tiers[0].held == 0


@pytest.mark.parametrize(("last", "token_ns"), [((7, 8, 5), (543, 614)), ((1, 2, 6), (544, 544))])
def test_blocks_that_are_on_their_way_are_waited_for(last, token_ns):
    """A copy down takes 60 ns a block. Eight blocks: R1 fills 0 and 1, R2 2 to 4, R3 5 to 7; 4 and
    7 have one token and no name.

    For R4 the blocks of R1 go down from 200 to 320. At 400 C wants them back, into block 4 and R2's
    second, which goes down until 460: C's blocks are there at 472. At 410 comes the last request.
    If it begins as R2, its second block is on its way down: it comes up after C's, from 472 to 478,
    although block 7 is free for it at 410. C's last token needs a block that goes down from 472 to
    532, and comes at 543; that of the last one waits until 603 likewise. If it begins as C, it has
    C's blocks at 472, and both compute from 532 to 544.
    """
    before = [
        Request(0, 8, 1, (1, 2), 4),
        Request(20, 9, 1, (7, 8), 4),
        Request(100, 9, 1, (9, 10), 4),
        Request(200, 8, 1, (11, 12), 4),
    ]
    found = served(
        [*before, Request(400, 9, 1, (1, 2, 3), 4), Request(410, 9, 1, last, 4)],
        blocks=8,
        machine=toy_machine(down=GB // 10),
    )
    assert tuple(tokens[-1] for tokens in found.token_ns[-2:]) == token_ns


def test_blocks_of_the_queue_come_up_while_it_waits():
    """One sequence runs at a time: while the third does, the fourth waits, and one of the two
    policies has its blocks there in time.
    """
    line = [A, B, Request(46, 4, 2, (9,), 4), Request(48, 9, 1, (1, 2, 3), 4)]
    late, early = (
        served(line, name, blocks=4, most=1) for name in ("write_through", "prefetch_queued")
    )
    assert early.token_ns[3] < late.token_ns[3]
    assert early.hit_tokens == late.hit_tokens == 8
    assert early.kv.stall_ns["loads"] < late.kv.stall_ns["loads"]


def timeline(found):
    """What becomes of requests and the engine, without what lies in tiers below."""
    samples = [replace(sample, below=()) for sample in found.samples]
    return found.token_ns, found.scheduled_ns, samples, found.preemptions, found.hit_tokens


def chained(requests):
    """The same with ids that name all before them, as those of real prompts do."""
    found = []
    for request in requests:
        ids = [0]
        for one in request.prefix:
            ids.append(ids[-1] * 4 + one + 1)
        found.append(
            replace(request, prefix=tuple(10 * one + request.prefix_tokens for one in ids[1:]))
        )
    return found


@settings(max_examples=20)
@given(
    REQUESTS.map(chained),
    st.sampled_from([name for name in POLICIES if name != "swap_only"]),
    st.integers(1, 3),
    st.integers(1, 16),
    st.booleans(),
)
def test_a_free_tier_without_end_is_more_memory(requests, policy, most, budget, ahead):
    """Blocks of no bytes take no time on channels without latency. What runs at once fits in the
    device: the longest requests together.
    """
    longest = sorted((-(-(r.prompt_tokens + r.output_tokens) // 4) for r in requests), reverse=True)
    fits = sum(longest[:most])
    below = served(
        requests, policy, fits, (("ddr", 10**9),), 0, ahead=ahead, budget=budget, most=most
    )
    larger = served(requests, None, 10**6, ahead=ahead, budget=budget, most=most)
    assert timeline(below) == timeline(larger)


@settings(max_examples=20)
@given(
    REQUESTS,
    st.sampled_from(POLICIES),
    st.integers(8, 14),
    st.integers(1, 16),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_a_tier_that_holds_nothing_is_none(requests, policy, blocks, budget, most, ahead, swaps):
    nothing = served(
        requests, policy, blocks, (("ddr", 0),), ahead=ahead, swaps=swaps, budget=budget, most=most
    )
    none = served(requests, policy, blocks, (), ahead=ahead, budget=budget, most=most)
    assert timeline(nothing) == timeline(none)
    if policy in (
        "lru",
        "write_through",
        "prefetch_queued",
        "swap_only",
    ):  # the others keep other blocks in the device
        without = served(requests, None, blocks, ahead=ahead, budget=budget, most=most)
        assert timeline(nothing) == timeline(without)


def test_a_tier_that_holds_nothing_changes_no_byte():
    requests = [A, B, C, Request(51, 4, 5), Request(51, 4, 3)]
    nothing, without = served(requests, tiers=(("ddr", 0),)), served(requests, None)
    summary = nothing.summary()
    assert summary.pop("kv")["tiers"]["ddr"] == {
        "blocks": 0,
        "peak_blocks": 0,
        "hit_tokens": 0,
        "stores": 1,
        "hit_share": 0.0,
    }
    assert json.dumps(summary) == json.dumps(without.summary())
    assert nothing.frame().to_csv() == without.frame().to_csv()


class Watched:
    """A setup whose pools can be looked at."""

    def __init__(self, setup):
        self.setup, self.policy, self.swaps = setup, setup.policy, setup.swaps

    def __call__(self, clock, blocks, engines=1, channels=None):
        pools = self.setup(clock, blocks)
        (self.pool,) = pools
        return pools

    def check(self):
        """Names and blocks are one to one; no tier is too full; whoever is in the order of eviction
        is held by nobody.
        """
        pool = self.pool
        assert {block: key for key, block in pool._block_of.items()} == pool._key_of
        assert all(
            (count == 0) == (block in pool._order) for block, count in enumerate(pool._holders)
        )
        assert 0 <= pool.free <= pool.count
        for tier in pool.tiers:
            assert 0 <= tier.held <= tier.capacity
            assert tier.reserved >= 0


@given(
    REQUESTS,
    st.sampled_from(POLICIES),
    st.integers(8, 14),
    st.integers(1, 16),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.sampled_from([GB // 7, GB, 10 * GB]),
    st.sampled_from([0, 5]),
)
def test_what_holds_for_any_requests(
    requests, policy, blocks, budget, most, ahead, swaps, room, bandwidth, latency
):
    machine = toy_machine(bandwidth, 2 * bandwidth, latency, shared=2 * bandwidth)
    kv = Watched(KvSetup(policy, machine, (("ddr", room[0]), ("nvme", room[1])), 6, swaps))

    def ns(iteration):
        kv.check()
        return toy_ns(iteration)

    def run():
        return serve_requests(
            requests, EngineLimits(budget, most, 4), blocks, ns, ahead=ahead, kv=kv
        )

    found = run()
    kv.check()
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert list(found.scheduled_ns) == sorted(found.scheduled_ns)  # first come, first served
    assert all(
        sample.held_blocks <= blocks and sample.running <= most and sample.tokens <= budget
        for sample in found.samples
    )
    assert all(
        one.end_ns <= other.start_ns
        for one, other in zip(found.samples, found.samples[1:], strict=False)
    )
    assert kv.pool.free == blocks
    assert not kv.pool._busy
    assert all(tier.reserved == 0 for tier in kv.pool.tiers)
    assert sum(tier.hit_tokens for tier in found.kv.tiers.values()) == found.hit_tokens
    computed = sum(sample.tokens for sample in found.samples)
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    assert computed >= least - found.hit_tokens
    if found.preemptions == 0:
        assert computed == least - found.hit_tokens
    assert all(figures.peak_blocks <= figures.blocks for figures in found.kv.tiers.values())
    assert run() == found


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 50)), min_size=1, max_size=8
    ),
    st.sampled_from([GB // 3, GB]),
    st.sampled_from([GB // 2, GB]),
    st.sampled_from([0, 3]),
    st.integers(1, 2),
    st.sampled_from([None, GB // 2, GB]),
    st.sampled_from([GB // 2, GB, 100 * GB]),
)
def test_copies_take_what_they_take_in_a_replay(moves, up, down, latency, engines, shared, memory):
    """Each is issued so many ns after the one before: up from ddr, or down from hbm. Both ways
    share the bandwidth of ddr.
    """
    machine = toy_machine(up, down, latency, engines, shared, memory=memory)
    b = GraphBuilder("moves")
    for k, (comes_up, pause, size) in enumerate(moves):
        b.tensor(f"t{k}", size, "parameter", home="ddr" if comes_up else None)
        b.op(f"o{k}", "matmul", outputs=[b.tensor(f"x{k}", 1)], duration_ns=pause + 1)
    graph = b.build()
    tensor = {t.name: i for i, t in enumerate(graph.tensors)}
    ways = [
        ("prefetch", "ddr", "hbm") if comes_up else ("store", "hbm", "ddr")
        for comes_up, _, _ in moves
    ]
    ops = [CacheOp(way[0], tensor[f"t{k}"], way[1], way[2], k) for k, way in enumerate(ways)]
    recorded = replay(Plan(graph, cache_ops=tuple(ops)), machine, record=True, compete=True)
    expected = {transfer.cache_op: transfer.end_ns for transfer in recorded.timeline.transfers}

    clock = SteppedClock()
    copies = BlockCopies(EngineChannels(clock, machine), 1)
    ends = {}

    def issue():
        for k, ((_, pause, size), way) in enumerate(zip(moves, ways, strict=True)):
            yield clock.timeout(pause + 1)
            copies.copy(way[1], way[2], size).then(lambda k=k: ends.__setitem__(k, clock.now))

    clock.process(issue())
    clock.run()
    assert ends == expected


@pytest.mark.parametrize(("lives", "hits"), [(None, 8), (58, 8), (57, 4), (25, 4)])
def test_what_nobody_used_for_its_time_is_gone_from_below(lives, hits):
    """By hand: A's blocks are computed at 18 and written through, 12 ns at once: they are below from
    30 on. B takes all of the device, of which A's last block goes first. C comes at 88 and finds
    A's first block in the device; the second is below if it lives for 58 ns.
    """
    found = served([A, B, replace(C, arrival_ns=88)], "write_through", lives=lives)
    assert found.hit_tokens == hits
    assert found.kv.tiers["ddr"].hit_tokens == hits - 4
    assert served([A, B, C], "write_through", lives=10**12) == served([A, B, C], "write_through")


def test_what_is_too_old_makes_room_by_itself():
    """B evicts both of A's blocks to a tier of two; when a third request evicts B's they are too old,
    and nothing is dropped.
    """
    later = [A, B, Request(500, 8, 1, (5, 6), 4)]
    found = [
        served(later, "lru", lives=lives, tiers=(("ddr", 2),), blocks=2).kv for lives in (100, None)
    ]
    assert [(kv.dropped_blocks, kv.tiers["ddr"].peak_blocks) for kv in found] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("policy", ["lookahead", "pinned:blocks=1", "expected_reuse"])
def test_what_stays(policy):
    """P's first part was used twice, and is needed by Q, which waits. The others keep it where lru
    has it evicted by R.
    """
    first = [Request(0, 8, 1, (1, 2), 4), Request(30, 8, 1, (1, 3), 4)]
    fill = [Request(60 + 30 * i, 8, 1, (10 + 2 * i, 11 + 2 * i), 4) for i in range(4)]
    again = Request(170, 9, 1, (1, 2, 3), 4)
    requests = sorted([*first, *fill, again], key=lambda r: r.arrival_ns)
    kept, lru = (served(requests, name, blocks=5, most=1) for name in (policy, "lru"))
    assert kept.kv.tiers["hbm"].hit_tokens >= lru.kv.tiers["hbm"].hit_tokens
    assert kept.token_ns[-1] <= lru.token_ns[-1]


def test_pinned_blocks_go_last():
    """Of each prompt one block is pinned; of each kind the least recently used goes first."""
    policy, parameters = kv_policy("pinned:blocks=1")
    rules = policy.rules(parameters)
    rules.queued(0, ["first", "second"])
    ranks = [rules.rank(*asked, 0) for asked in (("second", 8), ("second", 9), ("first", 1))]
    assert ranks == sorted(ranks)


def test_a_small_copy_takes_what_its_channel_gives_it():
    """By hand: the curve gives 100 bytes half a byte a nanosecond, so that two copies, one after the
    other, end at 200 and 400 ns. It says that 200 bytes take 200 ns; 400 bytes take 400.
    """
    plain = toy_machine()
    h2d = replace(plain.channels[0], curve=((100, GB // 2), (200, GB)))
    machine = replace(plain, channels=(h2d, *plain.channels[1:]))
    ends = []
    for size, count in ((100, 2), (400, 1)):
        clock = SteppedClock()
        copies = BlockCopies(EngineChannels(clock, machine), size)
        for _ in range(count):
            copies.copy("ddr", "hbm", 1).then(lambda now=clock: ends.append(now.now))
        clock.run()
        assert copies.channels[0].contention_ns == 0
    assert ends == [200, 400, 400]
