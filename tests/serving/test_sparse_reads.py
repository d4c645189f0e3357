"""Attention that reads few blocks and leaves others below: timelines by hand, laws, and what holds
for any requests.
"""

import json
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered import facts, rendered
from test_engine import REQUESTS
from test_kv_tiers import Watched, chained, timeline
from toy_tiers import GB, toy_machine, toy_ns
from toy_tiers import served as toy_served
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving import EngineLimits, Iteration, ModelledIterations, serve_requests
from hosim.serving.blocks import AttendedTokens, KvSetup, SparseReads, sparse_reads
from hosim.serving.report import serving
from hosim.serving.requests import Request

H100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))

HALF = SparseReads(0, 1, Fraction(1), 1, Fraction(0), Fraction(1, 2), None)
A, B = Request(0, 16, 4), Request(30, 12, 1)


def served(
    requests,
    reads=HALF,
    blocks=6,
    layers=1,
    machine=None,
    tiers=(("ddr", 100),),
    budget=16,
    most=4,
    ahead=False,
    bytes_=6,
):
    kv = Watched(
        KvSetup(
            "sparse", machine or toy_machine(), tiers, bytes_, reads=reads, attention_layers=layers
        )
    )

    def ns(iteration):
        kv.check()
        return toy_ns(iteration)

    found = serve_requests(requests, EngineLimits(budget, most, 4), blocks, ns, ahead=ahead, kv=kv)
    kv.check()
    assert kv.pool.free == blocks
    assert not kv.pool._busy
    assert not any(tier._readers for tier in kv.pool.tiers)
    return found


def test_one_is_thinned_for_another():
    """Six blocks of 6 bytes. A's prompt is computed until 26, and its four blocks go down until 50;
    its second token comes at 37.

    Then B, which came at 30, needs three blocks, and one is free. A has five: the first three are
    below, or on their way, and one that stands for them is taken, so B has its blocks; they are
    copied until 50. From then on each step of A reads one block beside its last ones, of which half
    is missed: 3 bytes. The iteration of A's third token and B's prompt, 13 tokens, takes 3 + 23,
    the next one 3 + 11.
    """
    found = served([A, B])
    assert found.token_ns == ((26, 37, 76, 90), (76,))
    assert found.kv.stall_ns == {"evictions": 13, "loads": 0, "fetches": 6}
    assert [(one.start_ns, one.end_ns, one.held_blocks) for one in found.samples] == [
        (0, 26, 4),
        (26, 37, 5),
        (50, 76, 6),
        (76, 90, 3),
    ]
    assert (found.kv.sparse.thinned, found.kv.sparse.fetched_bytes, found.preemptions) == (1, 6, 0)
    assert facts(found.kv.sparse.assumption).startswith("50.0 %")


@pytest.mark.parametrize(
    ("layers", "latency", "predicted", "tokens"),
    [
        (2, 0, False, (26, 37, 76, 90)),
        (2, 5, False, (26, 37, 91, 115)),
        (2, 0, True, (26, 37, 74, 86)),
        (2, 5, True, (26, 37, 84, 103)),
    ],
)
def test_layer_by_layer(layers, latency, predicted, tokens):
    """As above in two layers of 1 and 2 bytes. Without latency they take 3 ns together.

    With a latency of 5 ns the blocks are below at 55, as the copy down has it too, and the layers
    come after 6 and 13 ns: 55 + 13 + 23, then 13 + 11. If it is known before what they read, each
    computes when it is there: at 51 the first, which takes 11.5 of the 23 ns, so that the second,
    there at 53, ends at 74; and 74 + 1 + 11. With latency the second one is there at 68 and
    computes until 79.5, but the first begins at 61: 84. Then 84 + 13 + 5.5, which is more than 84 +
    6 + 11.
    """
    found = served(
        [A, B],
        replace(HALF, predicted=predicted),
        layers=layers,
        machine=toy_machine(latency=latency),
    )
    assert found.token_ns[0] == tokens


@pytest.mark.parametrize("changed", [{"summaries": Fraction(1, 2)}, {"resident": 3}, {"window": 3}])
def test_whoever_gives_nothing_is_not_thinned(changed):
    """Summaries of half a block for each below, a buffer as large as what goes, and a window that
    keeps all but one: B waits for A.

    Without B beside them, A's tokens come each 11 ns, and B's prompt of 12 tokens begins when A has
    ended, at 59.
    """
    found = served([A, B], replace(HALF, **changed))
    assert (found.kv.sparse.thinned, found.token_ns[0]) == (0, (26, 37, 48, 59))
    assert found.scheduled_ns[1] == 59


def test_parts_of_bytes_add_up():
    """A quarter of a block is 1.5 bytes: one step has 1, the next one 2."""
    assert served([A, B], replace(HALF, hit=Fraction(3, 4))).kv.sparse.fetched_bytes == 3


def test_a_prompt_is_not_thinned_while_it_is_computed():
    """Five blocks. A's 12 tokens take two iterations, until 18 and 32; B's three blocks are not
    free before it has ended.
    """
    found = served([Request(0, 12, 1), Request(10, 12, 1)], blocks=5, budget=8)
    assert (found.kv.sparse.thinned, found.scheduled_ns) == (0, (0, 32))


def test_blocks_that_two_hold_are_not_free_if_one_gives_them_up():
    """Two sequences share four of six blocks, and B, which needs three, finds two of eight free: it
    waits until the first one ends.
    """
    both = [Request(0, 16, 8, (1, 2, 3, 4), 4), Request(30, 17, 6, (1, 2, 3, 4), 4)]
    found = served([*both, Request(40, 12, 1)], blocks=8)
    assert (found.kv.sparse.thinned, found.hit_tokens) == (0, 16)
    assert found.scheduled_ns[2] >= min(tokens[-1] for tokens in found.token_ns[:2])


def test_a_thinned_sequence_grows():
    """Eight blocks. Two prompts of 16 and 4 tokens take five of them until 30, and both a further
    one for the next token; a step takes 12.

    At 78 both need another one, and one is left, which the first takes. Four of its six go then,
    one stands for them, and each step takes 3 ns more. At 138 eight blocks are held, eight tokens
    later, and both need one more: the first gives two of those that it has filled.
    """
    found = served([Request(0, 16, 14), Request(0, 4, 20)], blocks=8, budget=20)
    assert found.token_ns[0] == (30, 42, 54, 66, 78, 93, 108, 123, 138, 153, 168, 183, 198, 213)
    assert [one.held_blocks for one in found.samples][:14] == [5] + [7] * 4 + [6] * 4 + [8] * 5
    assert (found.preemptions, found.kv.sparse.thinned) == (0, 1)


def test_missed_blocks_are_those_of_a_drawn_replay():
    """40 of 50 blocks are below, the first always read; two are in the window. Of 4 chosen ones of
    47 one changes with each step.

    It is drawn from the 43 others, of which 31 are neither in the buffer of 9, which has the first,
    nor among the 8 still in the device.
    """
    reads = SparseReads(1, 2, Fraction(4), 9, Fraction(0), None, Fraction(1, 4))
    assert reads.missed(40, 50) == Fraction(31, 43)
    assert reads.missed(9, 50) == 0
    assert replace(reads, hit=Fraction(9, 10), change=None).missed(40, 50) == Fraction(4, 10)
    assert replace(reads, chosen=Fraction(47)).missed(40, 50) == 0  # all are read in each step
    draw = random.Random(5)
    chosen, buffer = (
        [1, 2, 3, 4],
        list(range(1, 9)),
    )  # of those below, which end with 39; the others have places of their own
    misses = 0
    for _ in range(20_000):
        new = draw.choice([block for block in range(1, 48) if block not in chosen])
        chosen = [*chosen[1:], new]
        if new < 40 and new not in buffer:
            misses += 1
            buffer.remove(next(block for block in buffer if block not in chosen))
            buffer.append(new)
    assert misses / 20_000 == pytest.approx(31 / 43, abs=0.01)


SHARE = st.fractions(0, 1, max_denominator=4)


@settings(max_examples=12)
@given(
    REQUESTS.map(chained),
    st.tuples(st.integers(8, 14), st.integers(1, 16), st.integers(1, 5)),
    st.booleans(),
    SHARE,
)
def test_whatever_stays_resident_is_as_written_through(requests, limits, ahead, hit):
    """A buffer as large as any sequence changes nothing, whatever is assumed; nor does a tier that
    has no room.
    """
    blocks, budget, most = limits
    asked = {"blocks": blocks, "budget": budget, "most": most, "ahead": ahead}
    dense = toy_served(requests, "write_through", **asked)
    assert timeline(served(requests, replace(HALF, resident=100, hit=hit), **asked)) == timeline(
        dense
    )
    empty = (("ddr", 0),)
    nothing = toy_served(requests, "write_through", tiers=empty, **asked)
    assert timeline(served(requests, replace(HALF, hit=hit), tiers=empty, **asked)) == timeline(
        nothing
    )


APART = st.lists(
    st.tuples(st.integers(1, 60), st.integers(8, 16), st.integers(20, 40)), min_size=5, max_size=8
)


@settings(max_examples=12)
@given(APART, st.integers(3, 4), SHARE, st.booleans())
def test_blocks_that_take_no_time_are_as_good_as_memory(asked, most, share, change):
    """Blocks of no bytes over channels without latency: the same times as on a device with room for
    all.

    There are three blocks of the device for each sequence that was thinned, and room for the
    prompts of two iterations, and for the longest request.
    """
    arrival, requests = 0, []
    for gap, prompt, output in asked:
        arrival += gap
        requests.append(Request(arrival, prompt, output))
    longest = max(-(-(r.prompt_tokens + r.output_tokens) // 4) for r in requests)
    reads = replace(HALF, hit=None, change=share) if change else replace(HALF, hit=share)
    small = served(requests, reads, blocks=max(longest, 4 * most + 8), most=most, bytes_=0)
    large = served(requests, reads, blocks=1000, most=most, bytes_=0)
    assert large.kv.sparse.thinned == small.preemptions == 0
    assert (small.token_ns, small.scheduled_ns) == (large.token_ns, large.scheduled_ns)


@given(
    REQUESTS.map(chained),
    st.tuples(st.integers(8, 10), st.integers(4, 16), st.integers(2, 5)),
    st.booleans(),
    st.tuples(st.integers(4, 8), st.integers(0, 20), st.integers(0, 6)),
    st.sampled_from([(GB // 7, 0), (GB, 5), (10 * GB, 0)]),
    st.builds(
        SparseReads,
        st.just(0),
        st.integers(1, 2),
        st.fractions(0, 1, max_denominator=3),
        st.integers(1, 2),
        st.fractions(0, 1, max_denominator=5),
        st.none(),
        SHARE,
        st.booleans(),
    ),
)
def test_what_holds_for_any_requests(requests, limits, ahead, room, channel, reads):
    """Every request gets its tokens in the order of the queue, no tier is too full, and nothing is
    held or pinned at the end.
    """
    blocks, budget, most = limits
    tiers = (("ddr", room[0] + room[1]), ("nvme", room[2]))
    machine = toy_machine(channel[0], 2 * channel[0], channel[1], shared=2 * channel[0])
    asked = {
        "blocks": blocks,
        "budget": budget,
        "most": most,
        "ahead": ahead,
        "machine": machine,
        "tiers": tiers,
        "layers": 2,
    }
    found = served(requests, reads, **asked)
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    assert list(found.scheduled_ns) == sorted(found.scheduled_ns)
    assert all(
        one.held_blocks <= blocks and one.running <= most and one.tokens <= budget
        for one in found.samples
    )
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(found.samples))
    assert all(figures.peak_blocks <= figures.blocks for figures in found.kv.tiers.values())
    least = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    computed = sum(sample.tokens for sample in found.samples)
    assert (
        computed == least - found.hit_tokens
        if not found.preemptions
        else computed >= least - found.hit_tokens
    )
    assert served(requests, reads, **asked) == found


def test_what_a_model_reads():
    """Blocks of 64 tokens, of which the first, the last two and four others are read; a gate
    chooses them by one key a block.

    Attention of a step takes the same time at any length beyond that, and the gate more; latents
    are read like heads.
    """
    few = {"kv_block": 64, "chosen_blocks": 4, "layers": 2}
    heads, latents = (
        ModelledIterations({"model": name, **few}, H100)
        for name in ("llama-3.1-8b", "deepseek-v2-lite")
    )
    assert heads.attended == latents.attended == AttendedTokens(64, 128, 256)
    assert heads.summary_bytes_per_token == 2 * 8 * 128 * 2 / 64
    assert latents.summary_bytes_per_token == 2 * 576 * 2 / 64
    for model in (heads, latents):
        whole = ModelledIterations({"model": model.model["model"], "layers": 2}, H100)
        near, far, all_of_it = (
            one(Iteration((), 8, 8 * keys, ()))
            for one, keys in ((model, 448), (model, 100_000), (whole, 100_000))
        )
        assert near < far < near + (all_of_it - near) / 4
        assert model(Iteration(((512, 100_000),), 0, 0, ())) < whole(
            Iteration(((512, 100_000),), 0, 0, ())
        )
    gate = heads.gate
    assert (gate.flops, gate.block_bytes, gate.layers) == (2 * 32 * 128, 8 * 128 * 2, 2)


def test_asking_for_it():
    asked = SparseReads(1, 3, Fraction(4), 5, Fraction(1, 9), Fraction(9, 10), None)
    parameters = {"hit": 0.9, "change": None, "resident": None, "predicted": False}
    read = AttendedTokens(64, 128, 256)
    assert sparse_reads(parameters, read, 64, Fraction(1, 9)) == asked
    assert sparse_reads({**parameters, "resident": 1000}, read, 64).resident == 15
    for changes, error in [
        (
            {"change": 0.1},
            "kv sparse: which blocks attention chooses is not known without the model: give one "
            "of hit=0.9 (the share ",
        ),
        ({"hit": None}, "kv sparse: which blocks attention chooses is not known without the model"),
        ({"hit": 1.5}, "kv sparse: hit: expected a share from 0 to 1, got 1.5"),
        (
            {"resident": 319},
            "kv sparse: resident: expected what a step reads, at least 320 tokens, got 319",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            sparse_reads({**parameters, **changes}, read, 64)
        assert str(caught.value).startswith(error)


LINE = [
    "serve",
    "llama-3.1-8b",
    "-H",
    "h100",
    "--requests",
    "poisson:rate=200:count=5:prompt=2000:output=40",
    "--block-tokens",
    "64",
]
FEW = ["--blocks", "70", "--set", "kv_block=64", "--set", "layers=2"]


def test_the_command():
    asked = [*LINE, *FEW, "--kv", "sparse:change=0.25"]
    outcome = CliRunner().invoke(app, [*asked, "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout)
    few = data["kv"]
    assert few["sparse"]["thinned"] >= 1
    assert few["sparse"]["fetched_bytes"] == few["channels"]["h2d"]["bytes"] > 0
    assert few["stall_ns"]["fetches"] > 0
    table = " ".join(rendered(serving(data)).split())
    assert "25.0 %" in facts(table)
    for line, error in [
        (
            [*LINE, "--kv", "sparse:hit=1"],
            "kv sparse: this model's attention reads its whole cache in each step",
        ),
        (
            [*asked, "--preemption", "swap"],
            "preemption: sequences whose blocks are below are computed again: leave it out",
        ),
        (
            [*LINE, *FEW, "--set", "kv_block=32"],
            "--set: expected OPTION=VALUE, each option once, got 'kv_block=32'",
        ),
        ([*LINE, "--set", "model=gpt2"], "--set: model is given twice; keep one"),
        ([*LINE, "--set", "sequence=3"], "model: sequence: the requests say this: leave it out"),
    ]:
        outcome = CliRunner().invoke(app, line)
        assert (outcome.exit_code, error in outcome.stderr.replace("\n", " ")) == (2, True), (
            outcome.stderr
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("kv", "figures"),
    [
        (None, (26.2, 52.6, 11.8, 508)),
        ("sparse:change=0.1", (10.6, 19.8, 22.6, 653)),
        ("sparse:change=0.1:predicted=true", (10.5, 19.5, 16.2, 827)),
        ("sparse:change=0.3", (10.8, 20.5, 35.5, 458)),
    ],
)
def test_long_conversations(kv, figures):
    """The table of docs/serving.md."""
    asked = {"token_budget": 8192, "block_tokens": 64, "kv": kv}
    model = {"model": "llama-3.1-8b", "kv_block": 64, "chosen_blocks": 32}
    data = hosim.serve(
        model, H100, "poisson:rate=2:count=20:prompt=60000:output=2000", **asked
    ).summary()
    first = [data["ttft_ns"][of] / 1e9 for of in ("mean", "p95")]
    assert (
        *(round(one, 1) for one in (*first, data["tpot_ns"]["mean"] / 1e6)),
        round(data["output_tokens_per_s"]),
    ) == figures
    if kv == "sparse:change=0.1":
        assert data["kv"]["stall_ns"]["fetches"] // 10**9 == 13
