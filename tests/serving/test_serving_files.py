"""Files of requests, of recorded kernels and of what a server did."""

import json
from dataclasses import replace

import pytest

import hosim
from hosim.errors import InputError
from hosim.serving import (
    EngineLimits,
    Iteration,
    MeasuredRequests,
    as_served,
    beside_measured,
    fitted_overhead_ns,
    overhead_warning,
    read_measured_requests,
    read_recorded_iterations,
    serve_requests,
)
from hosim.serving.requests import Request, read_request_rows, read_requests


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows)


SHARED = {"input_tokens": 20, "output_tokens": 1, "prefix_blocks_of_16": [3]}
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            lines(
                {"arrival_s": 2.5, "prompt_tokens": 7, "output_tokens": 3},
                {"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 2},
            ),
            (Request(0, 5, 2), Request(1_500_000_000, 7, 3)),
        ),
        (
            lines({"timestamp": 3, "input_length": 600, "output_length": 9, "hash_ids": [4, 8]}),
            (Request(0, 600, 9, (4, 8), 512),),
        ),
        (
            lines({**SHARED, "arrival_ms": 1}, {**SHARED, "arrival_ms": 2.5, "output_tokens": 0}),
            (Request(0, 20, 1, (3,), 16),),
        ),
        (
            lines(
                {
                    "chat_id": 3,
                    "timestamp": 1.5,
                    "input_length": 20,
                    "output_length": 9,
                    "hash_ids": [4, 8],
                }
            ),
            (Request(0, 20, 9, (4, 8), 16),),
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 "
            "18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
            (Request(0, 374, 44), Request(4_314_579_000, 396, 109)),
        ),
        (
            ",TIMESTAMP,ContextTokens,GeneratedTokens\n0,2024-05-10 "
            "00:00:01+00:00,7,3\n1,2024-05-10 00:00:01.009930+00:00,8,1\n",
            (Request(0, 7, 3), Request(9_930_000, 8, 1)),
        ),
        (
            BURST + "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n",
            (Request(0, 472, 18),),
        ),
    ],
    ids=["ours", "mooncake", "sharegpt", "bailian", "azure", "azure-2024", "burstgpt"],
)
def test_requests(text, expected, tmp_path):
    path = tmp_path / "requests"
    path.write_text(text)
    found = read_requests(path)
    assert [(r.prompt_tokens, r.output_tokens, r.prefix, r.prefix_tokens) for r in found] == [
        (r.prompt_tokens, r.output_tokens, r.prefix, r.prefix_tokens) for r in expected
    ]
    assert [r.arrival_ns for r in found] == pytest.approx(
        [r.arrival_ns for r in expected], abs=1000
    )  # dates as floats


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "expected JSON lines with arrival_s, prompt_tokens, output_tokens, or CSV with the "
            "columns TIMESTAMP, ContextTokens, ",
        ),
        ("{]", "line 1: expected a request as JSON in each line: "),
        (
            '{"a": 1}',
            "line 1: expected the keys arrival_ms, input_tokens, output_tokens or timestamp, "
            "input_length, output_length or ",
        ),
        (
            '{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 1}',
            "line 1, arrival_s: expected a number of at least 0, got '-1'",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": "x", "output_tokens": 1}',
            "line 1, prompt_tokens: expected a whole number of at least 0, ",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 1}',
            "line 1, prompt_tokens: expected a whole number of at least 0, got ",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": NaN}',
            "line 1, output_tokens: expected a whole number of at least 0, ",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 2.7, "output_tokens": 1}',
            "line 1, prompt_tokens: expected a whole number of at least 0, ",
        ),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}',
            "line 1, hash_ids: expected a list of whole numbers",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 0, "output_tokens": 1}',
            "no request with an answer in it",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,1",
            "line 2, TIMESTAMP: expected a date and time such as 2023-11-16 ",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,1", "line 2: "),
        (
            '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "priority": "soon"}',
            "line 1, priority: expected a whole number, got 'soon'",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "follows": 0.5}',
            "line 1, follows: expected a whole number, got '0.5'",
        ),
    ],
)
def test_what_is_no_request(text, message, tmp_path):
    (tmp_path / "requests").write_text(text)
    with pytest.raises(InputError) as caught:
        read_requests(tmp_path / "requests")
    assert str(caught.value).startswith(f"{tmp_path}/requests: {message}")


DENSE = {"embedding": (1, 3), "layernorm": (2, 4), "qkv_proj": (10, 30), "final_layernorm": (5, 5)}
ATTENTION = {
    (0, 0, 1, 16): 12.0,
    (0, 0, 1, 32): 14.0,
    (0, 0, 2, 16): 14.0,
    (0, 0, 2, 32): 18.0,
    (8, 0, 0, 0): 20.0,
    (16, 0, 0, 0): 40.0,
    (8, 0, 1, 16): 23.0,
    (8, 16, 0, 0): 30.0,
}


@pytest.fixture
def recorded(tmp_path):
    rows = [
        f"{name},{tokens},{us}"
        for name, both in DENSE.items()
        for tokens, us in zip((1, 11), both, strict=True)
    ]
    (tmp_path / "kernels_dense.csv").write_text(
        "\n".join(["layer,tokens,time_us", *rows, "layer,1,1"])
    )
    (tmp_path / "kernels_per_sequence.csv").write_text(
        "layer,sequences,time_us\nlm_head,1,100\nlm_head,3,120\nsampler,1,7\n"
    )
    rows = [f"{','.join(map(str, shape))},{us}" for shape, us in ATTENTION.items()]
    (tmp_path / "kernels_attention.csv").write_text(
        "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows])
    )
    return tmp_path


def test_an_iteration_of_recorded_kernels(recorded):
    """Two layers, six tokens of one prompt: halfway between 1 and 11 for each op; norms twice a
    layer.

    Dense: 2 + 5 + 2 * (2 * 3 + 20) = 59. Head and sampler of one sequence: 107. Attention of 8
    tokens takes 20 and nothing 12, the least that any takes: 6 tokens between them, 18 a layer. 59
    + 107 + 36 us and 5 us of the host.
    """
    times = read_recorded_iterations(recorded, 2, 5_000)
    assert times(Iteration(((6, 0),), 0, 0, (0,))) == 207_000


def test_beyond_the_last_row_times_grow(recorded):
    """Beyond 11 tokens an op takes as much more for each as from 1 to 11: 21 tokens add to 11 what
    11 add to 1. So do sequences.

    For 10 tokens that is 2 us of the embedding, 4 * 2 of the norms and 2 * 20 of the products; for
    a sequence 10 us of the head.
    """
    times = read_recorded_iterations(recorded, 2)

    def ns(tokens, sequences):
        """Of all but attention."""
        iteration = Iteration(((tokens - sequences + 1, 0),), sequences - 1, 0, ())
        return times(iteration) - 2000 * times.attention_us(iteration)

    assert ns(22, 2) - ns(12, 2) == pytest.approx(50_000, abs=2)
    assert ns(12, 5) - ns(12, 3) == pytest.approx(20_000, abs=2)


def test_attention_between_rows(recorded):
    times = read_recorded_iterations(recorded, 2)
    assert times.attention_us(Iteration((), 1, 24, ())) == 13.0
    assert times.attention_us(Iteration((), 2, 48, ())) == 16.0  # the mean of 24
    assert times.attention_us(Iteration(((8, 0),), 1, 16, ())) == 23.0
    assert (
        times.attention_us(Iteration(((8, 0), (8, 16)), 0, 0, ())) == 30.0 + 20.0 - 12.0
    )  # what the second takes beyond a launch
    assert (
        times.attention_us(Iteration(((8, 0),), 2, 32, ())) == 20.0 + 14.0 - 12.0
    )  # no such row: the sum of both halves
    assert times.attention_us(Iteration(((16, 16),), 0, 0, ())) == pytest.approx(
        12 + 18 * (16 * 24 + 1) / (8 * 20 + 1)
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kernels_dense.csv", None, ": expected kernels_dense.csv or kernels_dense.csv.gz in it"),
        (
            "kernels_dense.csv",
            "a,b\n1,2",
            "/kernels_dense.csv: line 1: expected the columns layer, tokens, time_us and a line "
            "for each time",
        ),
        (
            "kernels_dense.csv",
            "layer,tokens,time_us\nx,1,2\nx,2,3\ny,1,1\ny,3,1",
            ": kernels_dense.csv: expected times of every op at the same numbers of tokens",
        ),
        (
            "kernels_per_sequence.csv",
            "layer,sequences,time_us\nx,1,2\nx,1,3",
            ": kernels_per_sequence.csv: expected one time for each layer and number of sequences",
        ),
        (
            "kernels_attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,5\n0,8,2,32,5",
            ": kernels_attention.csv: expected prefills alone and decodes alone, and at least two "
            "values of each of prefill_chunk, "
            "kv_prefill, n_decode, kv_decode",
        ),
        (
            "kernels_attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n1,2,3,x,5",
            "/kernels_attention.csv: line 2: expected numbers of at least 0",
        ),
    ],
)
def test_damaged_tables(recorded, name, text, message):
    (recorded / name).unlink() if text is None else (recorded / name).write_text(text)
    with pytest.raises(InputError) as caught:
        read_recorded_iterations(recorded, 2)
    assert str(caught.value) == f"{recorded}{message}"


def test_what_a_server_did(tmp_path):
    rows = [
        {
            "id": "bench-1",
            "queued_s": 1,
            "first_token_s": 1.5,
            "last_token_s": 3.5,
            "output_tokens": 5,
        },
        {
            "id": "bench-0",
            "queued_s": 0,
            "first_token_s": 0.25,
            "last_token_s": 0.25,
            "output_tokens": 1,
        },
    ]
    (tmp_path / "server.jsonl").write_text(lines(*rows))
    found = read_measured_requests(tmp_path / "server.jsonl")
    assert (found.ttft_ns, found.latency_ns, found.tpot_ns[1]) == (
        (0.25e9, 0.5e9),
        (0.25e9, 2.5e9),
        0.5e9,
    )
    (tmp_path / "server.jsonl").write_text(
        "\n" + lines({**rows[0], "id": 7}, {**rows[1], "id": "cmpl-9f"}) + "\n\n"
    )
    assert read_measured_requests(tmp_path / "server.jsonl").output_tokens == (
        5,
        1,
    )  # an id without a place: as the lines stand
    (tmp_path / "server.jsonl").write_text(lines(rows[0], rows[0]))
    with pytest.raises(InputError, match="expected each id once"):
        read_measured_requests(tmp_path / "server.jsonl")
    huge = lines(rows[0]).replace("3.5", "1" + "0" * 400)
    for text in (
        "{",
        "[]",
        '{"queued_s": 1}',
        lines({**rows[0], "last_token_s": 1}),
        lines({**rows[0], "output_tokens": 1.5}),
        huge,
    ):
        (tmp_path / "server.jsonl").write_text(text)
        with pytest.raises(InputError, match=r"server\.jsonl: line 1: expected "):
            read_measured_requests(tmp_path / "server.jsonl")


def test_what_was_measured_follows_the_requests_of_a_file(tmp_path):
    """The second of three rows has no answer, and the third arrives first; the server's file has
    all rows, or those with an answer.
    """
    rows = [(2, 5, 7), (1, 6, 0), (0, 8, 9)]
    named = [
        dict(zip(("arrival_s", "prompt_tokens", "output_tokens"), row, strict=True)) for row in rows
    ]
    (tmp_path / "requests.jsonl").write_text(lines(*named))
    asked = read_request_rows(tmp_path / "requests.jsonl")
    assert (asked.places, asked.count, asked.unanswered) == ((2, 0), 3, 1)
    answered = MeasuredRequests((1.0, 3.0), (1.5, 3.5), (10.0, 30.0), (7, 9), (0.0, 2.0))
    every = MeasuredRequests(
        (1.0, 2.0, 3.0), (1.5, 2.5, 3.5), (10.0, 20.0, 30.0), (7, 4, 9), (0.0, 1.0, 2.0)
    )
    expected = MeasuredRequests((3.0, 1.0), (3.5, 1.5), (30.0, 10.0), (9, 7), (2.0, 0.0))
    assert as_served(answered, asked) == as_served(every, asked) == expected
    with pytest.raises(InputError, match="measured: 1 measured requests, but 2 are served"):
        as_served(MeasuredRequests((1.0,), (1.0,), (1.0,), (7,), (0.0,)), asked)


def test_the_overhead_of_a_server_is_found_again():
    """A server whose iterations take 3 ms more than the kernels; the second half of the requests is
    compared.
    """
    requests = [
        Request(i * 5_000_000, 30, 8 + i // 5) for i in range(10)
    ]  # 40 and 45 tokens of answers

    def run(overhead_ns):
        return serve_requests(
            requests,
            EngineLimits(64, 8, 4),
            1000,
            lambda iteration: 1_000_000 + 10_000 * iteration.tokens + overhead_ns,
        )

    frame = run(3_000_000).frame()
    real = MeasuredRequests(
        *(tuple(frame[name]) for name in ("ttft_ns", "tpot_ns", "latency_ns")),
        tuple(frame["output_tokens"]),
        tuple(frame["arrival_ns"]),
    )
    found = fitted_overhead_ns(run, real, 5)
    assert found == pytest.approx(3_000_000, abs=10_000)
    beside = beside_measured(run(found), real, 5)
    # the second half by hand: 45 tokens from its first arrival to its last token
    rate = 45 / (frame["last_token_ns"].max() - frame["arrival_ns"][5]) * 1e9
    assert beside["throughput"]["measured"]["output_tokens_per_s"] == pytest.approx(rate)
    assert beside["throughput"]["error"]["output_tokens_per_s"] == pytest.approx(0, abs=0.005)
    first = 40 / (frame["last_token_ns"][:5].max() - frame["arrival_ns"][0]) * 1e9
    assert beside["throughput"]["rival"]["output_tokens_per_s"] == pytest.approx(first / rate - 1)
    mean = frame["latency_ns"].groupby(frame.index < 5).mean()
    assert beside["latency_ns"]["rival"]["mean"] == pytest.approx(mean[True] / mean[False] - 1)
    assert "rival" not in beside_measured(run(found), real)["latency_ns"]
    errors = beside["latency_ns"]["error"]
    assert all(abs(error) < 0.005 for error in errors.values())
    assert fitted_overhead_ns(lambda ns: run(ns + 5_000_000), real, 5) == 0
    with pytest.raises(
        InputError,
        match=r"--fit-first: the measured requests took longer than with 64\.0 ms of overhead in "
        r"each iteration",
    ):
        fitted_overhead_ns(run, replace(real, latency_ns=(1e12,) * 10), 5)
    with pytest.raises(InputError, match="--fit-first: expected fewer than the 10 requests"):
        beside_measured(run(found), real, 10)
    with pytest.raises(
        InputError,
        match="measured: request 2: expected the lines in the order of the requests, but 9 tokens",
    ):
        beside_measured(run(found), replace(real, output_tokens=(8, 9, *real.output_tokens[2:])))
    requests.pop()
    fewer = run(0)
    with pytest.raises(InputError, match="measured: 10 measured requests, but 9 were served"):
        beside_measured(fewer, real)


@pytest.mark.parametrize(
    "row", ['{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 2}\n', "1,m,5,2,7,c\n"]
)
def test_no_more_requests_than_the_limit(tmp_path, monkeypatch, row):
    monkeypatch.setenv("HOSIM_LIMITS", "records=10")
    head = "" if row.startswith("{") else BURST
    (tmp_path / "r").write_text(head + row * 10)
    assert len(read_requests(tmp_path / "r")) == 10
    (tmp_path / "r").write_text(head + row * 11)
    with pytest.raises(InputError, match="expected at most 10 records, got "):
        read_requests(tmp_path / "r")


def test_requests_that_arrive_after_292_years_are_refused(tmp_path):
    row = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2}
    path = tmp_path / "requests.jsonl"
    path.write_text(lines(row, {**row, "arrival_s": 10**10}))
    with pytest.raises(InputError, match=r"^requests: the last token comes more than 2\^63-1 ns"):
        hosim.serve("gpt2", "h100-80gb-sxm", path)


def test_ids_of_blocks_are_numbers_that_a_table_can_hold(tmp_path):
    for block, fits in (
        (-1, True),
        ((1 << 64) - 1, True),
        (1 << 64, False),
        ((1 << 61) - 1 << 40, False),
    ):
        (tmp_path / "r").write_text(
            lines({"timestamp": 3, "input_length": 600, "output_length": 9, "hash_ids": [block]})
        )
        if fits:
            assert read_requests(tmp_path / "r")[0].prefix == (block,)
        else:
            with pytest.raises(
                InputError,
                match="line 1, hash_ids: expected a list of whole numbers of at most 64 bits",
            ):
                read_requests(tmp_path / "r")


def test_an_overhead_ten_times_the_known_ones_is_a_warning() -> None:
    """31 ms an iteration stood for a slow link once."""
    assert overhead_warning(5_100_000) is None
    assert "31.0 ms" in str(overhead_warning(31_000_000))


def test_sessions_of_burstgpt_are_conversations(tmp_path):
    """By hand: the answer to the first turn of s ends at 12 s, the second comes at 20: after 8 s.
    Its prompt of 100 tokens has the 64 that were said, four parts, in it; the third has only 20
    tokens, and the row without an answer is no turn.
    """
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "10,s,2,GPT-4,48,16,64,Conversation log\n"
        "11,t,1,GPT-4,32,8,40,Conversation log\n"
        "12,,1,GPT-4,40,8,48,API log\n"
        "15,s,1,GPT-4,99,0,99,Conversation log\n"
        "20,s,30,GPT-4,100,12,112,Conversation log\n"
        "40,s,1,GPT-4,20,4,24,Conversation log\n"
    )
    first, other, alone, second, third = read_requests(path)
    assert [one.arrival_ns for one in (first, other, alone)] == [0, 10**9, 2 * 10**9]
    assert [one.follows for one in (first, other, alone, second, third)] == [None] * 3 + [0, 3]
    assert (second.arrival_ns, third.arrival_ns) == (8 * 10**9, 0)
    assert second.prefix[:4] == first.prefix
    assert len(second.prefix) == 7
    assert not alone.prefix
    assert not set(third.prefix) & {*first.prefix, *second.prefix, *other.prefix}
    path.write_text(path.read_text().replace("s,30,", "s,long,"))
    with pytest.raises(InputError) as caught:
        read_requests(path)
    assert caught.value.where == "line 6, Elapsed time"


SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "system", "value": "x" * 256},
        {"from": "human", "value": "x" * 65},
        {"from": "gpt", "value": "x" * 28},
        {"from": "human", "value": "x" * 2},
        {"from": "tool", "value": "x" * 2},
        {"from": "gpt", "value": ""},
        {"from": "gpt", "value": "xy"},
    ]},
    {"id": "b", "conversations": [
        {"from": "gpt", "value": "x" * 40},
        {"from": "user", "value": "", "tokens": 6},
        {"from": "assistant", "value": "xy", "tokens": 9},
    ]},
]  # fmt: skip


def test_texts_of_sharegpt_are_conversations(tmp_path):
    """By hand: 64 and 17 tokens are asked, 7 answered; 88 of the second turn's 90 tokens were said,
    5 whole parts of 16. The empty answer is none. An answer with nothing before it is the context of
    the next, which says its lengths itself.
    """
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHAREGPT))
    rows = read_request_rows(path)
    first, other, second = rows.requests
    assert [(one.prompt_tokens, one.output_tokens) for one in rows.requests] == [
        (81, 7), (16, 9), (90, 1)
    ]  # fmt: skip
    assert [(one.arrival_ns, one.follows) for one in rows.requests] == [
        (0, None), (10**9, None), (0, 0)
    ]  # fmt: skip
    assert second.prefix[:5] == first.prefix[:5]
    assert not set(second.prefix[5:]) & {*first.prefix, *other.prefix}
    assert rows.unanswered == 1
    assert "4 characters" in rows.assumed
    for conversation in SHAREGPT:
        for message in conversation["conversations"]:
            message.setdefault("tokens", 3)
    path.write_text(json.dumps(SHAREGPT))
    assert "characters" not in read_request_rows(path).assumed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[", None),
        ("[1]", "0"),
        ('[{"conversations": 3}]', "0"),
        ('[{"conversations": []}, {"conversations": [{"from": "human"}]}]', "1.conversations.0"),
        (
            '[{"conversations": [{"from": "human", "value": "x", "tokens": true}]}]',
            "0.conversations.0.tokens",
        ),
        (
            '[{"conversations": [{"from": "user", "value": "x", "tokens": 999999999999},'
            '{"from": "gpt", "value": "y"}]}]',
            "0.conversations.1",
        ),
        ("[]", None),
    ],
)
def test_texts_that_are_refused(text, where, tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_requests(path)
    assert caught.value.where == where


def test_sessions_of_burstgpt_with_odd_rows(tmp_path):
    """A row without a prompt is no turn, and a prompt of billions of tokens is refused before it
    takes memory.
    """
    path = tmp_path / "burst.csv"
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n"
    path.write_text(head + "10,s,2,GPT-4,48,16\n15,s,1,GPT-4,0,9\n20,s,30,GPT-4,100,12\n")
    first, second = read_requests(path)
    assert (first.follows, second.follows, second.arrival_ns) == (None, 0, 8 * 10**9)
    path.write_text(head + f"10,s,2,GPT-4,{10**12},16\n")
    with pytest.raises(InputError) as caught:
        read_requests(path)
    assert caught.value.where == "line 2"
