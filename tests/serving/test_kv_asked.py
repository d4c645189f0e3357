"""Asking for a cache below the device: by command and function; what a machine does not have is
refused in one line.
"""

import json

import pytest
from toy_tiers import toy_machine
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.serving.blocks import KV_POLICIES, kv_setup
from hosim.serving.report import tiers_and_channels
from hosim.serving.requests import Request

H100 = hosim.load_hardware(hosim.find_hardware("h100-80gb-sxm"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("lur", "kv: unknown policy 'lur'; did you mean lru? (policies: lru, pinned, "),
        ("lru:tiers", "kv lru: expected parameter=value after the colon, got 'tiers'"),
        ("lru:ttl=0", "kv: ttl: expected seconds above 0 and below a billion, got 0"),
        ("lru:blocks=3", "kv lru: no parameter 'blocks' (parameters: tiers, loading, ttl)"),
        ("lru:tiers=ddr:tiers=ddr", "kv lru: tiers: is given twice; keep one"),
        ("pinned:blocks=x", "kv pinned: blocks: expected a whole number of at least 0, got 'x'"),
        ("lru:tiers=pool", "kv: tiers: h100-80gb-sxm has no tier 'pool' below (tiers: ddr, nvme)"),
        ("lru:tiers=hbm", "kv: tiers: h100-80gb-sxm has no tier 'hbm' below (tiers: ddr, nvme)"),
        (
            "lru:tiers=ddr/nvme",
            "kv: tiers: h100-80gb-sxm has no channel from ddr to nvme: take other tiers, or add "
            "the channel to the profile",
        ),
        ("lru:tiers=ddr/ddr", "kv: tiers: ddr is given twice; keep one"),
        ("lru:tiers=ddr=5", "kv: tiers, ddr: "),
        (
            "lru:tiers=ddr=3TB",
            "kv: tiers: expected at most the 2,000,000,000,000 B that h100-80gb-sxm has of ddr, "
            "got 3,000,000,000,000 B",
        ),
    ],
)
def test_what_is_refused(text, error):
    with pytest.raises(InputError) as caught:
        kv_setup(text, H100, 8, 2**23)
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)


def test_a_machine_without_tiers_below():
    alone = hosim.Hardware(
        "alone",
        (hosim.hardware.Tier("hbm", 100, 10**12, "device"),),
        (),
        hosim.hardware.Compute({"bf16": 10**12}),
    )
    with pytest.raises(
        InputError, match=r"^kv: alone has no tier below hbm that channels lead to and from$"
    ):
        kv_setup("lru", alone, 1, 1)


def test_the_devices_of_an_engine_share_the_tiers_of_their_host():
    """2 TB of DDR for eight devices, and blocks of 8 MiB on each: 250 GB / 8 MiB. A size is that of
    all of them together.
    """
    assert kv_setup("lru", H100, 8, 2**23).tiers == (("ddr", 250 * 10**9 // 2**23),)
    assert kv_setup("lru", H100, 1, 2**23).tiers == (("ddr", 2 * 10**12 // 2**23),)
    assert kv_setup("lru:tiers=ddr=800GB", H100, 8, 2**23).tiers == (("ddr", 100 * 10**9 // 2**23),)
    assert [name for name, _ in kv_setup("lru", toy_machine(), 1, 1).tiers] == ["ddr", "nvme"]


def test_the_command_and_the_function(tmp_path):
    """On a cache of 16 blocks two prompts of 200 tokens alternate with one of 240, so that each has
    been evicted when it comes again.
    """
    path = tmp_path / "requests.jsonl"
    ids = [[100 + k for k in range(12)], [200 + k for k in range(15)]]
    rows = [
        {
            "arrival_s": i,
            "prompt_tokens": [200, 250][i % 2],
            "output_tokens": 2,
            "prefix_blocks_of_16": ids[i % 2],
        }
        for i in range(6)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    line = ["serve", "llama-3.1-8b", "-H", "h100", "--requests", str(path), "--blocks", "17"]
    outcome = CliRunner().invoke(app, [*line, "--kv", "write_through:tiers=ddr", "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    kv = json.loads(outcome.stdout)["kv"]
    assert kv["tiers"]["ddr"]["hit_tokens"] > 0
    assert kv["channels"]["h2d"]["bytes"] > 0
    assert kv["channels"]["nvme_read"]["bytes"] == 0
    table = (
        CliRunner()
        .invoke(app, [*line, "--kv", "write_through", "--detail"], env={"COLUMNS": "200"})
        .stdout
    )
    assert "h2d" in table
    assert "nvme_read" not in table
    requests = [Request(0, 100, 2), Request(0, 100, 2)]
    with pytest.raises(
        InputError, match=r"^preemption: unknown preemption 'drop' \(known: recompute, swap\)$"
    ):
        hosim.serve("llama-3.1-8b", H100, requests, preemption="drop")
    idle = hosim.serve("llama-3.1-8b", H100, requests, preemption="swap")
    assert idle.kv.policy == "swap_only"
    assert (
        len(tiers_and_channels(idle.summary()["kv"])) == 2
    )  # no table of channels over which nothing went


def test_the_policies_are_listed():
    listed = CliRunner().invoke(app, ["policies", "--kv", "--json"])
    assert [policy["name"] for policy in json.loads(listed.stdout)["kv_policies"]] == [
        policy.name for policy in KV_POLICIES
    ]
    assert (
        "write_through"
        in CliRunner().invoke(app, ["policies", "--kv"], env={"COLUMNS": "200"}).stdout
    )


@pytest.mark.long
def test_mooncake_with_host_memory(shared):
    """The figures of docs/serving.md: what DDR below the device finds of the prompts, and how soon
    first tokens are there.
    """
    trace = shared / "data" / "serving" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip(f"no file {trace}")
    found = {}
    for kv in (
        None,
        "write_through",
        "lookahead",
        "write_through:tiers=ddr=500GB",
        "lru",
        "write_through:loading=layers",
    ):
        served = hosim.serve(
            {"model": "llama-3.1-8b", "tensor": 8},
            H100,
            trace,
            block_tokens=512,
            token_budget=8192,
            kv=kv,
        )
        found[kv] = served.summary()
    assert round(found[None]["prefix_hit_share"], 3) == 0.193
    assert round(found["write_through"]["prefix_hit_share"], 3) == 0.333
    first = [found[kv]["ttft_ns"]["mean"] / 1e6 for kv in found]
    assert [round(ms) for ms in first[:2]] == [562, 475]
    assert abs(first[2] - first[1]) < 1
    assert [round(ms) for ms in first[3:]] == [539, 468, 475]
    assert [round(found[kv]["prefix_hit_share"], 3) for kv in list(found)[3:]] == [
        0.239,
        0.353,
        0.333,
    ]
    assert [
        round(found[kv]["tpot_ns"]["mean"] / 1e6, 2)
        for kv in ("write_through", "write_through:loading=layers")
    ] == [7.52, 7.42]
    assert [found[kv]["kv"]["loads"] for kv in ("write_through", "lookahead")] == [1950, 763]
    assert found["lookahead"]["kv"]["load_wait_ns"] == 7_133_306_657


@pytest.mark.long
def test_latents_are_what_moves():
    """DeepSeek-V2-Lite caches 512 + 64 numbers of two bytes for each token in each of 27 layers.
    Two prompts alternate in 40 blocks.
    """
    ids = [tuple(range(100 * i, 100 * i + 31)) for i in range(2)]
    requests = [Request(i * 10**9, 500, 3, ids[i % 2], 16) for i in range(4)]
    found = hosim.serve("deepseek-v2-lite", H100, requests, blocks=40, kv="write_through")
    assert found.kv.channels["h2d"].bytes == found.kv.tiers["ddr"].hit_tokens * (512 + 64) * 2 * 27
    assert found.kv.tiers["ddr"].hit_tokens > 0
