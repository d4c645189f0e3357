"""The iterations of a server, from its log: vLLM's lines of statistics, SGLang's lines of decoded
batches, and a page of metrics of either (OpenMetrics).

A line of vLLM counts if no prompt was computed and about as many requests ran as in the previous
line; one of SGLang counts if no prompt was computed since the previous one. A page has sums over
the life of a server, which give means. A page of SGLang does not count iterations: the number of
sequences that ran when it was written is used for its whole life.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from hosim.base.groups import grouped

_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_VLLM = tuple(
    re.compile(pattern.replace("NUMBER", _NUMBER))
    for pattern in (
        "prompt throughput: NUMBER tokens/s",
        "generation throughput: NUMBER tokens/s",
        "Running: NUMBER reqs",
        r"KV cache usage: NUMBER\s*%",
    )
)
_SGLANG = tuple(
    re.compile(pattern.replace("NUMBER", _NUMBER))
    for pattern in (
        "#running-req: NUMBER,",
        "#(?:full )?token: NUMBER,",
        r"gen throughput \(token/s\): NUMBER",
    )
)
_SAMPLE = re.compile(
    r"((?:vllm|sglang):\w+)(?:\{[^}]*\})?\s+(\d[\d.]*(?:e[+-]?\d+)?)(?:\s|$)", re.IGNORECASE
)
_STEADY = 0.1
"""The largest relative difference in the number of running requests between two lines of the same
batch.
"""
_MOST = 1e15


@dataclass(frozen=True)
class ServedStep:
    """Iterations in which ``sequences`` sequences decode, each with ``tokens`` in the cache, and
    which took ``seconds`` on average. An iteration also computes ``prompts`` prompts on average,
    each of ``prompt`` tokens.
    """

    sequences: float
    tokens: float
    seconds: float
    prompts: float = 0.0
    prompt: float = 0.0


@dataclass(frozen=True)
class ServerFigures:
    """The iterations of a server, and the seconds of a request outside of them (``None``: not
    known). ``lacks`` is a text on missing data, if its lines cannot be used.
    """

    steps: tuple[ServedStep, ...] = ()
    request_s: float | None = None
    lacks: str = ""


def server_figures(lines: Sequence[str], cache_tokens: float) -> ServerFigures:
    """Return the figures in the lines of a server; its cache has room for ``cache_tokens`` (0: not
    known).

    >>> line = "Decode batch, #running-req: 8, #token: 4000, gen throughput (token/s): 1000.0,"
    >>> server_figures([line], 0).steps
    (ServedStep(sequences=8.0, tokens=500.0, seconds=0.008, prompts=0.0, prompt=0.0),)
    """
    page = _page(lines)
    if page:
        return _of_page(page)
    found = [*_of_sglang(lines), *_of_vllm(lines, cache_tokens)]
    if found or not any([_numbers(line, _VLLM) for line in lines]):
        return ServerFigures(tuple(_together(found)))
    return ServerFigures(
        lacks="no two lines of vLLM in a row have the same number of running requests and no prompt"
        if cache_tokens
        else "lines of vLLM have shares of its cache, whose size is needed, too: a line such as "
        "'GPU KV cache size: 432,944 tokens'"
    )


def _numbers(line: str, patterns: Iterable[re.Pattern[str]]) -> list[float]:
    """Return the numbers of a line that has all patterns in order; else none. Each pattern is
    searched by itself, because one pattern for all would take time polynomial in the line's length.
    """
    found, end = [], 0
    for pattern in patterns:
        match = pattern.search(line, end)
        if match is None:
            return []
        found.append(min(_MOST, float(match[1].replace(",", ""))))
        end = match.end()
    return found


def _of_vllm(lines: Iterable[str], cache_tokens: float) -> Iterable[ServedStep]:
    ran = 0.0
    for numbers in filter(None, [_numbers(line, _VLLM) for line in lines]):
        prompts, rate, running, share = numbers
        steady = abs(running - ran) <= _STEADY * running
        if steady and running and rate and not prompts and cache_tokens:
            yield ServedStep(running, share / 100 * cache_tokens / running, running / rate)
        ran = running


def _of_sglang(lines: Iterable[str]) -> Iterable[ServedStep]:
    computed = False
    for line in lines:
        computed = computed or "Prefill batch" in line
        numbers = _numbers(line, _SGLANG) if "Decode batch" in line else []
        if numbers:
            running, tokens, rate = numbers
            if running and rate and not computed:
                yield ServedStep(running, tokens / running, running / rate)
            computed = False


def _together(steps: Iterable[ServedStep]) -> Iterable[ServedStep]:
    """Yield the means of steps with similar numbers of sequences, grouped by powers of two."""
    for _, group in sorted(
        grouped((int(step.sequences).bit_length(), step) for step in steps).items()
    ):
        yield ServedStep(
            *[
                fmean([getattr(one, name) for one in group])
                for name in ("sequences", "tokens", "seconds")
            ]
        )


_Page = Mapping[str, Sequence[float]]
"""The samples of each name, over all labels."""


def _page(lines: Iterable[str]) -> _Page:
    found: dict[str, list[float]] = {}
    for match in filter(None, map(_SAMPLE.match, lines)):
        value = float(match[2]) if match[2].count(".") < 2 else 0.0
        if isfinite(value):
            found.setdefault(match[1].lower(), []).append(min(_MOST, value))
    return found


def _mean(page: _Page, *names: str) -> float:
    """Return the mean of the first histogram that is not empty; 0 if all are."""
    for name in names:
        count = sum(page.get(f"{name}_count", ()))
        if count >= 1:
            return sum(page.get(f"{name}_sum", ())) / count
    return 0.0


def _of_page(page: _Page) -> ServerFigures:
    if any([name.startswith("vllm:") for name in page]):
        return _of_page_of_vllm(page)
    each_s = _mean(
        page, "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"
    )
    sequences = fmean(page.get("sglang:num_running_reqs", (0.0,)))
    requests, prompts, answers = (
        sum(page.get(f"sglang:{name}_total", ()))
        for name in ("num_requests", "prompt_tokens", "generation_tokens")
    )
    computed = prompts - sum(page.get("sglang:cached_tokens_total", ()))
    if not (each_s and sequences and requests >= 1 and computed > 0 and answers):
        return ServerFigures(
            lacks="a page of SGLang's metrics needs samples of inter_token_latency_seconds, "
            "num_running_reqs, num_requests_total, prompt_tokens_total and "
            "generation_tokens_total, and requests that run while it is written"
        )
    prompt, answer = prompts / requests, answers / requests
    begun = sequences / max(1.0, answer)  # a sequence is in as many iterations as it has tokens
    return ServerFigures(
        (ServedStep(sequences, prompt + answer / 2, each_s, begun, computed / requests),)
    )


def _of_page_of_vllm(page: _Page) -> ServerFigures:
    def mean(*names: str) -> float:
        return _mean(page, *[f"vllm:{name}" for name in names])

    each_s = mean("inter_token_latency_seconds", "time_per_output_token_seconds")
    iterations, decoded = (
        sum(page.get(f"vllm:{name}", ()))
        for name in ("iteration_tokens_total_count", "generation_tokens_total")
    )
    prompt, answer = mean("request_prompt_tokens"), mean("request_generation_tokens")
    if not (each_s and iterations and prompt and decoded):
        return ServerFigures(
            lacks="a page of vLLM's metrics needs samples of inter_token_latency_seconds, "
            "iteration_tokens_total, generation_tokens_total and request_prompt_tokens"
        )
    sequences = max(1.0, decoded / iterations)
    computed = mean("iteration_tokens_total") - decoded / iterations
    step = ServedStep(sequences, prompt + answer / 2, each_s, max(0.0, computed) / prompt, prompt)
    first, computing = mean("time_to_first_token_seconds"), mean("request_prefill_time_seconds")
    beside = first - computing - mean("request_queue_time_seconds")
    return ServerFigures((step,), beside if first and computing and beside > 0 else None)
