"""What serving does, counted: an iteration among many requests is as much work as one among few.
``make bench`` has the times.
"""

from functools import partial
from itertools import pairwise

import pytest
from counting import calls_run, lines_run

import hosim
from hosim.io import load_hardware
from hosim.serving import EngineLimits, serve_requests
from hosim.serving.blocks import kv_setup
from hosim.serving.requests import Request, asked_requests
from hosim.shipped import find_hardware

H100 = load_hardware(find_hardware("h100-80gb-sxm"))


def test_an_iteration_costs_the_same_among_more_requests():
    """Five conversations whose prompts grow, over and over: the cache and the tier below are full
    from the first hundred requests on.
    """
    limits, tiers = EngineLimits(256, 8, 16), "write_through:tiers=ddr=64MiB"

    def requests(count: int) -> list[Request]:
        ids = [
            tuple(
                range(
                    100 * (i % 5) + 1000 * (i // 40), 100 * (i % 5) + 1000 * (i // 40) + 1 + i % 7
                )
            )
            for i in range(count)
        ]
        return [Request(i * 4_000_000, 40 + 16 * len(own), 4, own) for i, own in enumerate(ids)]

    def served(count: int, tiers: str | None) -> tuple[int, int]:
        kv = None if tiers is None else kv_setup(tiers, H100, 1, 1 << 20)
        call = partial(
            serve_requests,
            requests(count),
            limits,
            64,
            lambda iteration: 1_000_000 + iteration.tokens,
            kv=kv,
        )
        return lines_run(call), len(call().samples)

    for kv in (None, tiers):
        counted = [served(count, kv) for count in (160, 320, 480)]
        each = [
            (lines - least) / (more - fewer) for (least, fewer), (lines, more) in pairwise(counted)
        ]
        assert max(each) < 1.02 * min(each), (kv, each)


@pytest.mark.long
def test_mooncakes_trace_costs_the_same_to_its_end(shared):
    """Calls an iteration of the first 2,000, 4,000 and 8,000 requests, and of all 12,031."""
    path = shared / "data" / "serving" / "mooncake_conversation.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    rows = asked_requests(path).requests
    each = []
    for count in (2000, 4000, 8000, 12_031):
        found = []

        def call(count=count, found=found):
            model = {"model": "llama-3.1-8b", "tensor": 8}
            found.append(
                hosim.serve(
                    model,
                    H100,
                    rows[:count],
                    block_tokens=512,
                    token_budget=8192,
                    kv="write_through",
                )
            )

        calls = calls_run(call)
        each.append(calls / len(found[0].samples))
        print(
            f"{count:,} requests: {len(found[0].samples):,} iterations, {each[-1]:.1f} calls each"
        )
    assert max(each) < 1.15 * min(each), each
