"""Conversations: turns that arrive after an answer, whose prompts begin with all that was said, and
twelve laws of conservation over drawn runs.
"""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tiers import served, toy_machine, toy_ns

from hosim.errors import InputError
from hosim.serving import ROUTERS, EngineLimits, serve_on_instances
from hosim.serving.blocks import KV_POLICIES, KvSetup
from hosim.serving.requests import Request, draw_requests, read_requests


def test_a_turn_arrives_after_the_answer_and_finds_all_of_it():
    """Eight tokens are computed from 0 to 18, and the second token of the answer from 18 to 29.

    The user thinks for 5 ns: the second turn arrives at 34. Its prompt begins with the ten tokens
    that were said, of which the cache has two blocks of 4 (the tenth token was never computed):
    8 of 12 tokens are found, and 4 computed from 34 to 48.
    """
    first = Request(0, 8, 2, (1, 2, 3), 4)
    second = Request(5, 12, 1, (1, 2, 3, 4), 4, follows=0)
    found = served([first, second], kv=None, blocks=6)
    assert found.token_ns == ((18, 29), (48,))
    assert [one.arrival_ns for one in found.requests] == [0, 34]
    assert found.hit_tokens == 8


def test_the_ids_of_an_answer_are_those_behind_the_prompts():
    """Without them nobody has the same contents."""
    said = Request(0, 10, 9, (1, 2, 3, 4, 5), 4)
    assert said.block_key(2, 4) == (2, 3, 0)
    assert said.block_key(3, 4) == (3, 4, 0)
    assert replace(said, prompt_tokens=8, prefix=(1, 2, 3)).block_key(2, 4) == (2, 3, 0)
    assert replace(said, prefix=(1, 2, 3)).block_key(2, 4) is None


def endless_hits(requests, size):
    """Tokens that a cache without end has, when each turn comes after the answer before it: what
    the earlier turn of a conversation named, and what all begin with.
    """
    total, seen = 0, set()
    for request in requests:
        keys = [request.block_key(block, size) for block in range(request.prompt_tokens // size)]
        before = (
            requests[request.follows].prompt_tokens + requests[request.follows].output_tokens - 1
            if request.follows is not None
            else 0
        )
        shared = next((i for i, key in enumerate(keys) if key not in seen), len(keys))
        found = max(shared, before // size)
        total += size * min(found, (request.prompt_tokens - 1) // size)
        seen |= set(keys)
    return total


def test_hits_of_a_cache_without_end():
    """One conversation at a time: what is found is what an oracle counts."""
    requests = draw_requests(
        "conversations:rate=0.0001:count=6:turns=1..5:system=20..60:prompt=1..90:output=1..70:tools=0.5"
    )
    found = served(requests, kv=None, blocks=10**6, budget=64, most=9)
    order = sorted(range(len(requests)), key=lambda i: found.requests[i].arrival_ns)
    renamed = {old: new for new, old in enumerate(order)}
    by_arrival = [
        replace(
            requests[i],
            follows=None if requests[i].follows is None else renamed[requests[i].follows],
        )
        for i in order
    ]
    assert found.hit_tokens == endless_hits(by_arrival, 4)


def test_what_is_drawn():
    text = (
        "conversations:rate=1:count=40:turns=2..3:system=32:prompt=16:output=16:think=10s:tools=0.5"
    )
    drawn = draw_requests(text)
    assert drawn == draw_requests(text) != draw_requests(f"{text}:seed=1")
    first = [one for one in drawn if one.follows is None]
    assert drawn[:40] == tuple(first)
    assert {one.prefix[:2] for one in drawn} == {(0, 1)}
    assert all(one.prompt_tokens == 48 for one in first)
    for one in drawn[40:]:
        before = drawn[one.follows]
        assert one.prompt_tokens == before.prompt_tokens + 32
        assert one.prefix[: len(before.prefix)] == before.prefix
    own = [set(one.prefix[2:]) for one in first]
    assert all(not (a & b) for a, b in pairwise(own))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("turns=0", "turns: expected tokens such as 512, or a range"),
        ("think=soon", "think: expected a time"),
        ("turns=1000000000", "turns: expected at most 1000000 records, got more"),
        ("prompt=99999999999", "prefixes: expected at most 1000000 records, got more"),
        ("tools=2", "tools: expected a number from 0 to 1"),
    ],
)
def test_what_cannot_be_drawn_of_conversations(setting, message):
    with pytest.raises(InputError) as caught:
        draw_requests(f"conversations:rate=1:{setting}")
    assert f"requests conversations: {message}" in str(caught.value)


def test_turns_in_a_file(tmp_path):
    """Turns name the line of the turn before; requests that follow none come first."""
    path = tmp_path / "turns.jsonl"
    lines = [(2, 8, 1, None), (1, 20, 3, None), (0.5, 30, 2, 0), (4, 40, 2, 2)]
    keys = ("arrival_s", "prompt_tokens", "output_tokens", "follows")
    path.write_text("\n".join(json.dumps(dict(zip(keys, line, strict=True))) for line in lines))
    second = 10**9
    assert read_requests(path) == (
        Request(0, 20, 3),
        Request(second, 8, 1),
        Request(second // 2, 30, 2, follows=1),
        Request(4 * second, 40, 2, follows=2),
    )
    path.write_text(path.read_text().replace('"follows": 2', '"follows": 3'))
    with pytest.raises(InputError, match=r"request 3, follows: expected the number of an earlier"):
        read_requests(path)


# -- twelve laws -----------------------------------------------------------------------------------

TEXTS = st.builds(
    "conversations:rate={}:count={}:turns=1..{}:system=0..{}:prompt=1..{}:output=1..{}:think={}ns:tools={}:tool=9ns:seed={}".format,
    st.sampled_from([10**6, 10**7, 10**8]), st.integers(1, 6), st.integers(1, 4), st.integers(0, 40),
    st.integers(1, 30), st.integers(1, 9), st.integers(0, 300), st.sampled_from([0, 0.5, 1]), st.integers(0, 99),
)  # fmt: skip
TIERS = st.none() | st.builds(
    lambda policy, rooms, size: KvSetup(
        policy, toy_machine(latency=3), (("ddr", rooms[0]), ("nvme", rooms[1])), size
    ),
    st.sampled_from([policy.name for policy in KV_POLICIES if policy.name != "sparse"]),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.sampled_from([0, 1, 6, 60]),
)
RUNS = given(
    TEXTS, TIERS, st.integers(1, 3), st.sampled_from(sorted(ROUTERS)), st.integers(0, 40),
    st.integers(1, 24), st.integers(1, 5), st.booleans(),
)  # fmt: skip


def check_laws(text, kv, engines, router, spare, budget, most, ahead):
    asked = draw_requests(text)
    longest = max(one.prompt_tokens + one.output_tokens for one in asked)
    blocks, limits = -(-longest // 4) + spare, EngineLimits(budget, most, 4)

    def serve(requests):
        how = requests, limits, blocks, toy_ns, engines, ROUTERS[router]
        return serve_on_instances(*how, ahead=ahead, kv=kv)

    found = serve(asked)
    tokens = sum(sample.tokens for sample in found.samples)
    prompts = sum(one.prompt_tokens for one in asked)
    answers = sum(one.output_tokens for one in asked)
    kept = found.summary()
    # 1: every request gets its tokens, and no more
    assert [len(times) for times in found.token_ns] == [one.output_tokens for one in asked]
    # 2: no token before its arrival, nor before it was scheduled
    for one, begun, times in zip(found.requests, found.scheduled_ns, found.token_ns, strict=True):
        assert one.arrival_ns <= begun < times[0]
        # 3: its tokens come one after the other
        assert all(a < b for a, b in pairwise(times))
    # 4: a turn arrives when its user has thought, after the answer before
    for one, there in zip(asked, found.requests, strict=True):
        before = 0 if one.follows is None else found.token_ns[one.follows][-1]
        assert there.arrival_ns == before + one.arrival_ns
    # 5: what is computed is what was not found, all but the last token of each, and what was lost
    if not found.preemptions:
        assert tokens == prompts + answers - len(asked) - found.hit_tokens
    # 6: no more is found than a cache without end has
    assert 0 <= found.hit_tokens <= prompts
    # 7: an iteration keeps its limits, and an engine computes one at a time
    for engine in range(engines):
        own = [sample for sample in found.samples if sample.instance == engine]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))
    assert all(0 < one.tokens <= budget and one.running <= most for one in found.samples)
    # 8: no cache holds more than it has
    assert all(one.held_blocks <= blocks for one in found.samples)
    # 9: Little: the mean number in the system is the rate of arrivals times the mean latency
    frame, span = found.frame(), found.span_ns
    changes = sorted(
        [(int(at), 1) for at in frame["arrival_ns"]]
        + [(int(at), -1) for at in frame["last_token_ns"]]
    )
    area, inside = 0, 0
    for (at, change), (then, _) in pairwise(changes):
        inside += change
        area += inside * (then - at)
    assert area / span == pytest.approx(kept["requests_per_s"] / 1e9 * kept["latency_ns"]["mean"])
    # 10: bytes by tier: what is found below comes up, and no more comes up than went down
    if kv is not None:
        tiers, moved = found.kv.tiers, found.kv.channels
        assert sum(tier.hit_tokens for tier in tiers.values()) == found.hit_tokens
        assert moved["h2d"].bytes % max(1, kv.block_bytes) == 0
        assert all(tier.peak_blocks <= tier.blocks for tier in tiers.values())
        assert moved["read"].bytes <= moved["h2d"].bytes
        if not tiers["ddr"].blocks and not tiers["nvme"].blocks:
            assert found.hit_tokens == tiers["hbm"].hit_tokens
    # 11: time shifts: all that begins later by a second ends later by a second
    second = 10**9
    later = serve([
        one if one.follows is not None else replace(one, arrival_ns=one.arrival_ns + second)
        for one in asked
    ])  # fmt: skip
    assert later.token_ns == tuple(tuple(t + second for t in times) for times in found.token_ns)
    # 12: ids are names: others in their place give the same run
    other = serve([replace(one, prefix=tuple(7 * i + 3 for i in one.prefix)) for one in asked])
    assert other.token_ns == found.token_ns
    assert other.instances == found.instances


@settings(max_examples=15)
@RUNS
def test_twelve_laws(text, kv, engines, router, spare, budget, most, ahead):
    check_laws(text, kv, engines, router, spare, budget, most, ahead)


@pytest.mark.long
@settings(max_examples=500)
@RUNS
def test_twelve_laws_of_500_runs(text, kv, engines, router, spare, budget, most, ahead):
    check_laws(text, kv, engines, router, spare, budget, most, ahead)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_engines_are_alike(engines):
    """Each engine with the same conversations does the same as one alone: nobody notices others
    behind a router that gives each its own.
    """
    asked = draw_requests("conversations:rate=1e7:count=3:turns=2..4:prompt=9:output=5:think=40ns")
    alone = serve_on_instances(asked, EngineLimits(16, 4, 4), 60, toy_ns, 1, ROUTERS["round_robin"])
    each = [
        replace(one, follows=None if one.follows is None else one.follows * engines + copy)
        for one in asked
        for copy in range(engines)
    ]
    found = serve_on_instances(
        each, EngineLimits(16, 4, 4), 60, toy_ns, engines, ROUTERS["round_robin"]
    )
    for copy in range(engines):
        assert found.token_ns[copy::engines] == alone.token_ns
