"""Prefill and decode on engines of their own: timelines by hand, laws, and what holds for any
requests.
"""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts
from test_engine import REQUESTS
from test_kv_tiers import POLICIES, chained
from test_shared_tiers import Shared
from toy_tiers import GB, toy_machine, toy_ns
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving import (
    ROUTERS,
    EngineLimits,
    Scheduler,
    ServingEngine,
    serve_disaggregated,
    serve_requests,
)
from hosim.serving.blocks import KvLink, KvSetup, Peers, SteppedClock, kv_link
from hosim.serving.report import serving_trace
from hosim.serving.requests import Request

A = Request(0, 8, 3)
H100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))


class Both(Shared):
    """As :class:`Shared`, on channels that are there already."""

    def __call__(self, clock, blocks, engines, channels):
        self.pools = self.setup(clock, blocks, engines, channels)
        return self.pools


def served(
    requests,
    prefills=1,
    decodes=1,
    tier="",
    kv=None,
    machine=None,
    bytes_=6,
    blocks=100,
    router="round_robin",
    ahead=False,
    most=4,
    layers=1,
    sends=None,
    prefill=None,
):
    """Engines of the toy machine, with blocks of 4 tokens and 6 bytes, which go over links of 1
    byte a nanosecond or through a tier.
    """
    machine = machine or toy_machine()
    link = KvLink(
        "toy", machine, bytes_, None, Peers(prefills, None if tier else GB, tier, sends), layers
    )

    def ns(iteration):
        if kv is not None:
            kv.check()
        return toy_ns(iteration)

    return serve_disaggregated(
        requests,
        EngineLimits(8, most, 4),
        ServingEngine(blocks, ns),
        decodes,
        ROUTERS[router],
        link,
        ahead=ahead,
        kv=kv,
        prefill=prefill,
    )


@pytest.mark.parametrize("tier", ["", "ddr"])
def test_one_after_the_other(tier):
    """A's prompt is computed from 0 to 18. Its two blocks are transferred until 30; its last token
    is computed again, and gives one at 41.

    B comes at 5; its prompt is computed from 18 to 32. The other engine takes it from its queue at
    41, when A's iteration ends; its block is there at 47. A's second token comes at 52. Then both
    compute a token, until 64.
    """
    found = served([A, Request(5, 4, 1)], tier=tier)
    assert found.token_ns == ((41, 52, 64), (64,))
    assert (found.scheduled_ns, found.instances) == ((0, 18), (1, 1))
    assert [(s.instance, s.start_ns, s.end_ns, s.tokens) for s in found.samples] == [
        (0, 0, 18, 8),
        (0, 18, 32, 4),
        (1, 30, 41, 1),
        (1, 41, 52, 1),
        (1, 52, 64, 2),
    ]
    moved = found.handed.figures
    assert (moved.transfers, moved.bytes, moved.busy_ns, moved.stall_ns) == (2, 18, 18, 12)
    assert (moved.wait_ns, moved.queue_ns) == (12 + 15, 9)
    row = found.frame().iloc[1]
    assert (
        row["prefill_instance"],
        row["instance"],
        row["prefilled_ns"],
        row["transferred_ns"],
    ) == (0, 1, 32, 47)
    events = serving_trace(replace(found, about={}))["traceEvents"]
    phases = [(e["name"], round(1000 * e["ts"])) for e in events if e["ph"] == "b" and e["id"] == 1]
    assert phases == [
        ("request 1", 5),
        ("queued", 5),
        ("prefill", 18),
        ("transfer", 32),
        ("decode", 47),
    ]


def test_two_that_send_share_the_way_in():
    """Both prompts are computed until 18. 24 bytes go into the one that decodes until 42, and both
    have their first tokens at 54.
    """
    both = served([replace(A, output_tokens=1)] * 2, 2, 1)
    assert both.token_ns == ((54,), (54,))
    assert both.handed.prefill_instances == (0, 1)
    alone = served([replace(A, output_tokens=1)] * 2, 2, 2)
    assert alone.token_ns == ((41,), (41,))


def test_one_that_sends_shares_its_way_out():
    """Two prompts of 4 tokens are computed until 18 and go to two engines: 12 bytes out until 30,
    and a token until 41.
    """
    found = served([Request(0, 4, 1)] * 2, 1, 2)
    assert (found.instances, found.token_ns) == ((1, 2), ((41,), (41,)))


def test_transfers_through_a_tier_take_their_part_of_its_channels():
    """The policy writes two full blocks to the host's memory from 18 on; the ninth token is
    computed until 29. Then 18 bytes go over.

    Of the 12 bytes of the write one is left at 29: until 31 both have half of the way, and the
    transfer's other 17 bytes take until 48.
    """
    kv = Both(KvSetup("write_through", toy_machine(), (("ddr", 100),), 6))
    found = served([Request(0, 9, 1)], tier="ddr", kv=kv)
    assert (found.handed.prefilled_ns, found.handed.transferred_ns, found.token_ns) == (
        (29,),
        (48,),
        ((59,),),
    )


def test_what_the_other_engine_has_is_not_transferred():
    """The second request begins as the first, whose blocks both engines hold: its last block alone
    is transferred.
    """
    found = served([Request(0, 8, 1, (1, 2), 4), Request(100, 9, 1, (1, 2, 3), 4)])
    assert found.handed.figures.bytes == 12 + 6
    assert found.token_ns[1] == (100 + 11 + 6 + 11,)
    assert found.hit_tokens == 8


def test_the_sender_holds_its_blocks_until_they_are_there():
    """Two blocks on each engine. A's prompt is there at 18 and its blocks at 30: then the second
    can be admitted, from 30 to 48.
    """
    found = served([Request(0, 8, 1), Request(1, 8, 1)], blocks=2)
    assert found.scheduled_ns == (0, 30)
    assert found.token_ns == ((41,), (48 + 12 + 11,))


def test_a_prompt_waits_for_room_where_it_is_decoded():
    """Three blocks on the engine that decodes. A has two from 18, and its third from 52 on. B waits
    for two until A has ended, at 63.

    B's blocks go from 63 to 75, and its only token comes at 86.
    """
    found = served([Request(0, 8, 3), Request(1, 8, 1)], blocks=3)
    assert found.token_ns == ((41, 52, 63), (86,))
    assert found.handed.figures.queue_ns == 63 - found.handed.prefilled_ns[1]


def test_what_is_on_its_way_is_not_given_up():
    """Four blocks where they decode, of 60 bytes. A's two are there at 138, and B's, for which
    there is room at 36, at 258.

    A's first token comes at 149. Then it needs a third block: not B is preempted, whose blocks are
    on their way, but A. It comes back when B has its token, at 269, finds its two blocks, and goes
    on: 280, 291 and 302.
    """
    found = served([Request(0, 8, 4), Request(0, 8, 1)], blocks=4, bytes_=60)
    assert found.token_ns == ((149, 280, 291, 302), (269,))
    assert found.preemptions == 1


def test_through_a_tier_the_slower_channel_counts_and_both_latencies():
    """18 ns of prefill, 12 bytes at half a byte a nanosecond on the way down, 3 ns of latency each
    way, and 11 ns: 18 + 24 + 6 + 11.
    """
    machine = toy_machine(down=GB // 2, latency=3)
    assert served([Request(0, 8, 1)], tier="ddr", machine=machine).token_ns == ((59,),)


@pytest.mark.parametrize("swaps", [False, True])
def test_a_prompt_that_is_preempted_while_its_last_tokens_are_computed(swaps):
    """Its block is given up before it can be handed over: it is computed again, or its last token
    alone if it was swapped out.
    """
    tiers = (
        KvSetup("swap_only", toy_machine(), (("ddr", 9),), 0, swaps)(SteppedClock(), 2)[0]
        if swaps
        else None
    )
    scheduler = Scheduler([Request(0, 4, 5)], EngineLimits(8, 4, 4), 2, tiers, swaps, prefills=True)
    scheduler.add(0)
    assert scheduler.schedule().emits == (0,)
    assert not scheduler._make_room(scheduler.running[0], 8, {})
    scheduler.ended()
    assert scheduler.prefilled(0) is None
    again = scheduler.schedule()
    assert (again.tokens, again.emits) == (1 if swaps else 4, (0,))
    scheduler.ended()
    assert len(scheduler.prefilled(0)) == 1
    assert not scheduler.running


@pytest.mark.parametrize("tier", ["", "ddr"])
def test_layers_are_sent_while_others_are_computed(tier):
    """A's prompt takes from 0 to 18, in two layers: 6 bytes are there at 9 and go until 15, and 6
    from 18 to 24. A's token comes at 35.

    The second one's prompt takes two iterations: 6 bytes at 9, 18, 27 and 36, so that its cache is
    there at 42 instead of 60.
    """
    assert served([A], tier=tier, layers=2).token_ns == ((35, 46, 57),)
    longer = served([Request(0, 16, 1)], tier=tier, layers=2)
    assert longer.token_ns == ((53,),)
    assert longer.samples[0].held_blocks == 4  # all of the prompt's from the first iteration on
    moved = longer.handed.figures
    assert (moved.transfers, moved.bytes, moved.wait_ns, moved.queue_ns, moved.stall_ns) == (
        4,
        24,
        6,
        0,
        6,
    )
    assert served([Request(0, 16, 1)], tier=tier).token_ns == ((36 + 24 + 11,),)


def test_layers_that_nobody_has_room_for_are_sent_later():
    """Two blocks on each engine. A's are free again at 24 on the first, and B is computed there
    from 24 to 42; on the other one at 35.

    So B's first layer, ready at 33, is sent from 35 to 41, and the second from 42 to 48.
    """
    found = served([Request(0, 8, 1), Request(1, 8, 1)], blocks=2, layers=2)
    assert (found.scheduled_ns, found.token_ns) == ((0, 24), ((35,), (59,)))
    assert (found.handed.prefilled_ns, found.handed.transferred_ns) == ((18, 42), (24, 48))


def test_what_either_engine_has_is_known_when_layers_are_sent():
    """The second request begins as the first: one block of three is computed, which the other
    engine does not have, in one token: 11 ns.

    Its layers of 3 bytes are there at 109 and 114, as the first is ready at 105.5, and the second
    at 111.
    """
    found = served([Request(0, 8, 1, (1, 2), 4), Request(100, 9, 1, (1, 2, 3), 4)], layers=2)
    assert (found.handed.transferred_ns[1], found.token_ns[1]) == (114, (125,))
    assert found.handed.figures.bytes == 12 + 6


FIRST = ServingEngine(2, lambda iteration: 5 + iteration.tokens)


def test_engines_that_prefill_are_unlike_the_others():
    """They have two blocks, compute 8 tokens in 13 ns, and half as many devices: they send half a
    byte a nanosecond.

    A's 12 bytes are there at 37, and its first token comes at 48. Its 10 tokens have three blocks
    there, the first engine has two. Two such engines send at the same time what the other one
    receives at once.
    """
    found = served([A], prefill=FIRST, sends=GB // 2)
    assert found.token_ns == ((48, 59, 70),)
    assert served([replace(A, output_tokens=1)] * 2, 2, prefill=FIRST, sends=GB // 2).token_ns == (
        (49,),
        (49,),
    )
    with pytest.raises(
        InputError,
        match=r"^requests\[0\]: 10 tokens of prompt and answer do not fit in a cache of 8 tokens$",
    ):
        served([Request(0, 9, 1)], prefill=FIRST)


def test_engines_that_are_the_same_are_not_unlike():
    """Asking for the machine and the devices of the others changes nothing but what the result says
    of them; more devices are faster.
    """
    options = {
        "prefill_instances": 1,
        "decode_instances": 2,
        "kv_link": "50GB/s",
        "block_tokens": 64,
    }
    asked = (
        {"model": "llama-3.1-8b", "layers": 2, "tensor": 2},
        H100,
        "poisson:rate=50:count=4:prompt=900:output=3",
    )
    plain = hosim.serve(*asked, **options)
    same = hosim.serve(*asked, **options, prefill_hardware="h100-80gb-sxm", prefill_tensor=2)
    assert (same.token_ns, same.samples, same.handed, same.room) == (
        plain.token_ns,
        plain.samples,
        plain.handed,
        plain.room,
    )
    summary, before = same.summary(), plain.summary()
    own = {name: before[name] for name in ("hardware", "devices", "blocks", "block_bytes")}
    assert summary.pop("prefill") == {**own, "instances": 1}
    assert {**summary, "peak_blocks": 0, "mean_blocks": 0} == {
        **before,
        "peak_blocks": 0,
        "mean_blocks": 0,
    }
    more = hosim.serve(*asked, **options, prefill_tensor=8, prefill_hardware="h200-141gb-sxm")
    assert more.handed.prefilled_ns[0] < plain.handed.prefilled_ns[0]
    assert more.handed.figures.bytes == plain.handed.figures.bytes
    assert more.about["prefill"]["blocks"] > more.blocks == plain.blocks
    assert more.room == more.about["prefill"]["blocks"] + 2 * more.blocks


@given(REQUESTS, st.booleans(), st.integers(1, 4), st.integers(1, 3))
def test_what_prefills_is_an_engine_whose_answers_have_one_token(requests, ahead, most, layers):
    """With room for all, the first engine does what an engine does that answers each with one
    token.
    """
    found = served(requests, ahead=ahead, most=most, bytes_=0, layers=layers)
    alone = serve_requests(
        [replace(r, output_tokens=1) for r in requests],
        EngineLimits(8, most, 4),
        100,
        toy_ns,
        ahead=ahead,
    )
    assert found.scheduled_ns == alone.scheduled_ns
    assert found.handed.prefilled_ns == tuple(tokens[0] for tokens in alone.token_ns)
    first = [sample for sample in found.samples if sample.instance == 0]
    assert [(s.start_ns, s.end_ns, s.tokens) for s in first] == [
        (s.start_ns, s.end_ns, s.tokens) for s in alone.samples
    ]
    assert found.hit_tokens == alone.hit_tokens


@given(
    REQUESTS.map(chained),
    st.sampled_from([None, *POLICIES]),
    st.sampled_from(sorted(ROUTERS)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(8, 12),
    st.booleans(),
    st.booleans(),
    st.integers(0, 6),
    st.tuples(st.sampled_from(["", "ddr"]), st.integers(1, 3)),
)
def test_what_holds_for_any_requests(
    requests, policy, router, engines, blocks, ahead, swaps, room, link
):
    """Every request gets its tokens after its blocks; prompts are computed here and answers there;
    nothing is held at the end.
    """
    tier, layers = link
    kv = (
        None if policy is None else Both(KvSetup(policy, toy_machine(), (("ddr", room),), 6, swaps))
    )
    found = served(
        requests, *engines, tier, kv, blocks=blocks, router=router, ahead=ahead, layers=layers
    )
    assert [len(tokens) for tokens in found.token_ns] == [
        request.output_tokens for request in requests
    ]
    assert all(one < other for tokens in found.token_ns for one, other in pairwise(tokens))
    there = found.handed
    rows = zip(
        requests,
        found.scheduled_ns,
        there.prefilled_ns,
        there.transferred_ns,
        found.token_ns,
        strict=True,
    )
    assert all(
        r.arrival_ns <= begun < end <= moved < tokens[0] for r, begun, end, moved, tokens in rows
    )
    assert all(
        i < engines[0] <= j < sum(engines)
        for i, j in zip(there.prefill_instances, found.instances, strict=True)
    )
    assert all(
        sample.held_blocks <= blocks and sample.tokens <= 8 and sample.running <= 4
        for sample in found.samples
    )
    if kv is not None:
        kv.check()
        assert all(pool.free == blocks and not pool._busy for pool in kv.pools)
        assert all(one.reserved == 0 and not one._readers for one in kv.tiers)
    if not found.preemptions:
        computed = [
            sum(s.tokens for s in found.samples if (s.instance < engines[0]) == first)
            for first in (True, False)
        ]
        assert computed == [
            sum(r.prompt_tokens for r in requests) - found.hit_tokens,
            sum(r.output_tokens for r in requests),
        ]
    for engine in range(engines[0]):
        own = [
            found.scheduled_ns[number]
            for number, of in enumerate(there.prefill_instances)
            if of == engine
        ]
        assert own == sorted(own)
    again = served(
        requests, *engines, tier, kv, blocks=blocks, router=router, ahead=ahead, layers=layers
    )
    assert again == found


def test_which_link_it_is():
    """A DGX has links between its eight devices; the supernode a pool; the card of one host its
    memory.
    """

    def chosen(name, devices=1, prefills=1, decodes=1, text=None):
        link = kv_link(
            text, hosim.load_hardware(hosim.find_hardware(name)), devices, prefills, decodes, 100
        )
        return link.name, link.peers.bandwidth, link.peers.tier

    assert chosen("h100-80gb-sxm", 4) == ("links", 450 * GB, "")
    assert chosen("h100-80gb-sxm", text="ddr") == ("ddr", None, "ddr")
    assert chosen("h100-80gb-sxm", 8, text="50 GB/s") == ("50 GB/s", 50 * GB, "")
    assert chosen("ascend-910c-supernode", 8, 3, 5) == ("pool", None, "pool")
    assert chosen("rtx-4090") == ("ddr", None, "ddr")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            (None, 8, 1, 1),
            "kv_link: h100-80gb-sxm has no link between hosts of 8 devices for caches, and no "
            "tier that all engines share: give ",
        ),
        (
            ("links", 8, 1, 1),
            "kv_link: h100-80gb-sxm has no links between hosts of 8 devices: give what a device "
            "sends, as in 50GB/s",
        ),
        (
            ("ddr", 8, 1, 1),
            "kv_link: no tier that all engines share and channels join to hbm: 'ddr'",
        ),
        (
            ("nvm", 1, 1, 1),
            "kv_link: expected one of links, ddr, nvme, or what a device sends, as in 50GB/s, got "
            "'nvm'; did you mean 'nvme'?",
        ),
        (("0 B/s", 1, 1, 1), "kv_link: expected a bandwidth above 0 B/s, got '0 B/s'"),
        (
            (None, 1, 100, 100),
            "prefill_instances: expected at most 4,096 pairs of an engine that prefills and one "
            "that decodes, got 10,000",
        ),
    ],
)
def test_what_is_refused(arguments, error):
    text, devices, prefills, decodes = arguments
    with pytest.raises(InputError) as caught:
        kv_link(text, H100, devices, prefills, decodes, 100)
    assert str(caught.value).startswith(error)


def test_the_command_and_the_function():
    line = [
        "serve",
        "gpt2",
        "-H",
        "h100",
        "--requests",
        "poisson:rate=50:count=4:prompt=90:output=3",
    ]
    apart = [*line, "--prefill-instances", "1", "--decode-instances", "2"]
    outcome = CliRunner().invoke(app, [*apart, "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout)
    assert (
        data["instances"],
        data["kv_transfer"]["decode_instances"],
        data["kv_transfer"]["link"],
    ) == (3, 2, "links")
    assert (
        data["kv_transfer"]["bytes"] == 4 * 6 * 16 * 2 * 12 * 768 * 2
    )  # 6 blocks of 16 tokens: keys and values of 12 layers, 2 bytes each
    by_layers = json.loads(
        CliRunner().invoke(app, [*apart, "--json", "--kv-sending", "layers"]).stdout
    )
    assert by_layers["kv_transfer"]["bytes"] == data["kv_transfer"]["bytes"]
    assert by_layers["kv_transfer"]["transfers"] > 4 * 6  # of twelve layers each
    assert by_layers["ttft_ns"]["mean"] < data["ttft_ns"]["mean"]
    table = CliRunner().invoke(app, [*apart, "--detail"], env={"COLUMNS": "200"}).stdout
    assert "1, prefill, 2, decode, 80, 4" in facts(table, "prefill", "decode")
    assert "4, 13.5 MiB, prefill, decode" in facts(table, "prefill", "decode")
    for more, error in [
        (
            ["--prefill-instances", "1"],
            "serve: --prefill-instances requires --decode-instances",
        ),
        (
            ["--kv-link", "ddr"],
            "serve: --kv-link requires --prefill-instances",
        ),
        (
            [*apart[-4:], "--kv-sending", "layer"],
            "kv_sending: unknown kv sending 'layer'; did you mean 'layers'?",
        ),
        (
            ["--prefill-tensor", "2"],
            "serve: --prefill-tensor requires --prefill-instances",
        ),
        (
            [*apart[-4:], "--prefill-hardware", "h200"],
            "kv_link: between unlike engines expected what a device sends, as in 50GB/s",
        ),
        (
            [*apart[-4:], "--prefill-tensor", "2", "--kv", "lru"],
            "serve: --prefill-tensor and --kv exclude each other: tiers below unlike engines are "
            "not "
            "modelled",
        ),
        (
            ["--kv-sending", "layers"],
            "serve: --kv-sending requires --prefill-instances",
        ),
        (
            [*apart[-4:], "--kv-sending", "layers", "--kv", "lru:loading=layers"],
            "kv_sending: layers that are sent while others come up are not modelled: leave out "
            "loading=layers",
        ),
        (
            [*apart[-4:], "--instances", "2"],
            "serve: --instances and --prefill-instances exclude each other: give one of them",
        ),
    ]:
        outcome = CliRunner().invoke(app, [*line, *more])
        assert (outcome.exit_code, error in outcome.stderr.replace("\n", " ")) == (2, True), (
            outcome.stderr
        )


@pytest.mark.long
def test_mooncake_with_prefill_and_decode_apart(shared):
    """The figures of docs/serving.md."""
    trace = shared / "data" / "serving" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip(f"no file {trace}")
    asked = {
        "block_tokens": 512,
        "token_budget": 8192,
        "prefill_instances": 6,
        "decode_instances": 2,
    }
    data = hosim.serve("llama-3.1-8b", H100, trace, **asked).summary()
    assert [round(data["ttft_ns"][of] / 1e6) for of in ("mean", "p50", "p95", "p99")] == [
        914,
        391,
        4114,
        8481,
    ]
    assert round(data["tpot_ns"]["mean"] / 1e6, 1) == 9.7
    moved = data["kv_transfer"]
    assert (moved["transfers"], moved["bytes"] // 10**9) == (12031, 18480)
    assert (moved["wait_ns"] // 10**9, moved["queue_ns"] // 10**9) == (106, 54)
    by_layers = hosim.serve("llama-3.1-8b", H100, trace, **asked, kv_sending="layers").summary()
    assert round(by_layers["ttft_ns"]["mean"] / 1e6) == 903
    assert by_layers["kv_transfer"]["wait_ns"] // 10**8 == 8


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "prefill", "figures"),
    [
        ("h100", None, (115, 249, 7.32, 2990)),
        ("a100", "h100", (129, 261, 13.52, 2863)),
        ("a100", None, (9834, 18441, 12.74, 1492)),
    ],
)
def test_prompts_on_one_machine_and_answers_on_another(machine, prefill, figures):
    """The figures of docs/serving.md."""
    options = {
        "prefill_instances": 1,
        "decode_instances": 2,
        "kv_link": "25GB/s",
        "prefill_hardware": prefill,
    }
    data = hosim.serve(
        "llama-3.1-8b", machine, "poisson:rate=20:count=400:prompt=1500:output=150", **options
    ).summary()
    first = [round(data["ttft_ns"][of] / 1e6) for of in ("mean", "p95")]
    assert (
        *first,
        round(data["tpot_ns"]["mean"] / 1e6, 2),
        round(data["output_tokens_per_s"]),
    ) == figures
