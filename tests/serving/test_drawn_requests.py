"""Requests that are drawn: their rates and spread, their lengths, and what is refused."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving.requests import Request, draw_requests, setting_of


@pytest.mark.parametrize(
    ("process", "spread"),
    [("poisson", 1), ("gamma:cv=3", 3), ("gamma:cv=0.5", 0.5), ("bursts:size=4", 7**0.5)],
)
def test_rates_and_spread(process, spread):
    """Of 100 ms between two on average. Of bursts of n, a gap is n times an exponential one with
    1/n, else 0: its variance is 2n - 1.
    """
    gaps = [
        b.arrival_ns - a.arrival_ns
        for a, b in pairwise(draw_requests(f"{process}:rate=10:count=10000"))
    ]
    assert fmean(gaps) == pytest.approx(1e8, rel=0.06)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(spread, rel=0.06)


@given(
    st.sampled_from(["poisson", "gamma", "gamma:cv=1", "bursts:size=3"]),
    st.sampled_from(["0.5", "10", "1e3"]),
    st.integers(0, 9),
    st.sampled_from(["count=9", "duration=2s"]),
)
def test_what_holds_for_any_process(process, rate, seed, length):
    text = f"{process}:rate={rate}:{length}:prompt=3..5:output=2:seed={seed}"
    found = draw_requests(text)
    assert found == draw_requests(text)
    assert found[0].arrival_ns == 0
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(found))
    assert len(found) == 9 if length == "count=9" else found[-1].arrival_ns < 2e9
    assert all(3 <= request.prompt_tokens <= 5 and request.output_tokens == 2 for request in found)


def test_lengths_of_a_file_are_drawn_in_pairs(tmp_path):
    path = tmp_path / "a:prompt file.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n0,5,50\n1,7,70\n2,9,0\n")
    found = draw_requests(f"poisson:rate=1:count=40:lengths={path}:seed=3")
    assert {(request.prompt_tokens, request.output_tokens) for request in found} == {
        (5, 50),
        (7, 70),
    }


def test_seeds_and_other_lengths_leave_arrivals_as_they_are():
    one, other = (
        draw_requests(f"poisson:rate=2:count=5:prompt={prompt}") for prompt in ("7", "1..900")
    )
    assert [request.arrival_ns for request in one] == [request.arrival_ns for request in other]
    assert one != draw_requests("poisson:rate=2:count=5:prompt=7:seed=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poisson", "requests poisson: rate: expected requests a second, as in rate=10, got ''"),
        (
            "poisson:rate=0",
            "requests poisson: rate: expected requests a second, as in rate=10, got '0'",
        ),
        (
            "poisson:rate=nan",
            "requests poisson: rate: expected requests a second, as in rate=10, got 'nan'",
        ),
        ("poisson:rat=1", "requests poisson: unknown parameter 'rat'; did you mean 'rate'?"),
        ("poisson:rate=1:rate=2", "requests poisson: rate: is given twice; keep one"),
        (
            "poisson:rate=1:cv=2",
            "requests poisson: unknown parameter 'cv' (known: rate, count, duration, prompt, "
            "output, lengths, priority, seed)",
        ),
        ("gamma:rate=1:cv=0", "requests gamma: cv: expected a number from 0.01 to 100, got '0'"),
        (
            "bursts:rate=1:size=1.5",
            "requests bursts: size: expected a whole number of at least 1, got '1.5'",
        ),
        (
            "poisson:rate=1:count=0",
            "requests poisson: count: expected a whole number of at least 1, got '0'",
        ),
        (
            "poisson:rate=1:seed=-1",
            "requests poisson: seed: expected a whole number of at least 0, got '-1'",
        ),
        (
            "poisson:rate=1:prompt=9..3",
            "requests poisson: prompt: expected tokens such as 512, or a range such as 100..2000, "
            "got '9..3'",
        ),
        ("poisson:rate=1:duration=1s:count=2", "requests poisson: give one of count and duration"),
        (
            "poisson:rate=1:duration=soon",
            "requests poisson: duration: expected a time such as '10 us', got 'soon'",
        ),
        ("poisson:rate=1:duration=0s", "requests poisson: no request arrives within 0s"),
        (
            "poisson:rate=1:lengths=a:prompt=2",
            "requests poisson: give lengths, or prompt and output",
        ),
        (
            "poisson:rate=1e9:duration=60s",
            "requests poisson: expected at most 1000000 records, got 60000000000",
        ),
        (
            "bursts:rate=10:duration=1s:size=999999999999",
            "requests bursts: expected at most 1000000 records, got 1000001",
        ),
        (
            "uniform:rate=1",
            "requests: expected NAME:PARAMETER=VALUE with poisson, gamma, bursts, conversations, as in "
            "poisson:rate=10, got 'uniform:rate=1'",
        ),
    ],
)
def test_what_cannot_be_drawn(text, message):
    with pytest.raises(InputError) as caught:
        draw_requests(text)
    assert str(caught.value).startswith(message)


def test_a_burst_of_any_size_takes_no_more_than_is_asked_for():
    assert [
        request.arrival_ns for request in draw_requests("bursts:rate=10:size=999999999999:count=3")
    ] == [0, 0, 0]


def test_what_a_text_says_of_a_setting():
    text = "poisson:rate=10:lengths=C:/a=b.jsonl:count=3"
    found = [setting_of(text, name) for name in ("rate", "lengths", "count", "poisson", "cou")]
    assert found == ["10", "C:/a=b.jsonl", "3", None, None]


def test_a_process_that_there_is_not():
    with pytest.raises(
        InputError,
        match=r"^poison:rate=3: expected a file, or one of poisson, gamma, bursts, conversations "
        r"with parameters, as in poisson:",
    ):
        hosim.serve("llama-3.1-8b", "h100-80gb-sxm", "poison:rate=3")


def test_a_text_is_served_as_its_requests_are(tmp_path):
    text = "poisson:rate=10:count=4:prompt=20:output=2"
    drawn = hosim.serve("llama-3.1-8b", "h100-80gb-sxm", text)
    assert drawn == hosim.serve("llama-3.1-8b", "h100-80gb-sxm", draw_requests(text))
    (tmp_path / "requests.csv").write_text(
        "Timestamp,Request tokens,Response tokens\n0,5,2\n1,7,0\n"
    )
    served = hosim.serve("llama-3.1-8b", "h100-80gb-sxm", tmp_path / "requests.csv")
    assert (served.requests, served.summary()["unanswered"]) == ((Request(0, 5, 2),), 1)
    line = ["serve", "llama-3.1-8b", "-H", "h100", "--requests"]
    assert (
        "1 request of the file"
        in CliRunner().invoke(app, [*line, str(tmp_path / "requests.csv")]).stdout
    )
    wrong = CliRunner().invoke(app, [*line, "poisson"])
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "error: requests poisson: rate: expected requests a second, as in rate=10, got ''\n",
    )
