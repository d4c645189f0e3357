"""Collectives that nobody says the time of: every command and every result names them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hosim
from hosim.analysis.costmodel import guessed_collectives, op_durations
from hosim.cli.main import app
from hosim.edits import COLLECTIVE_KINDS
from hosim.graph import GraphBuilder
from hosim.hardware import Fabric
from hosim.io import load_hardware, result_from_dict, result_to_dict, save_workload
from hosim.io.models import build
from hosim.shipped import find_hardware, hardware

MIB = 1 << 20
SHARED = {"model": "gpt2", "phase": "train", "sequence": 32, "data": 4, "zero": 3, "layers": 2}
SAID = "timed as if links between devices were as fast as hbm, since nothing says how fast they are"


def machine(name):
    return load_hardware(find_hardware(name))


def summing(kind="all_reduce", duration_ns=None, size=16 * MIB, **more):
    """An op that takes 1 ms, and a collective over 16 MiB."""
    b = GraphBuilder("summing")
    b.tensor("x", size, "input")
    b.op("f", "matmul", inputs=["x"], outputs=[], duration_ns=1_000_000)
    b.op("sum", kind, mutates=["x"], bytes_accessed=2 * size, duration_ns=duration_ns, **more)
    return b.build()


def test_a_collective_over_links_that_nobody_describes_is_a_guess():
    """16 MiB are read and written at the bandwidth of memory: ten times as fast as over PCIe."""
    graph, there = summing(), machine("t4")
    assert guessed_collectives(graph, there) == (1,)
    taken_s = op_durations(graph, there)[1] / 1e9
    assert 16 * MIB / taken_s > 9 * 12e9  # PCIe 3.0 has some 12 GB/s after all overheads


@pytest.mark.parametrize("kind", sorted(COLLECTIVE_KINDS))
def test_kinds_of_collectives(kind):
    assert guessed_collectives(summing(kind), machine("toy")) == (
        () if kind in {"wait_tensor", "barrier"} else (1,)
    )


def test_what_is_known_is_no_guess():
    there = machine("t4")
    assert guessed_collectives(summing(duration_ns=5), there) == ()
    assert guessed_collectives(summing(size=0), there) == ()
    assert guessed_collectives(summing("softmax"), there) == ()
    timed = summing(kernel="all_reduce", sizes=(4, 16 * MIB))
    assert guessed_collectives(timed, there) == (1,)
    assert guessed_collectives(timed, machine("h100-80gb-sxm")) == ()  # its profile has links
    assert (
        guessed_collectives(timed, machine("rtx-4090")) == ()
    )  # and this one a fabric that collectives cross
    joined = replace(machine("toy"), fabrics=(Fabric("nvlink", 10**9, (), collectives=1),))
    assert guessed_collectives(timed, joined) == ()  # rule 19
    assert guessed_collectives(summing("send"), joined) == ()
    assert guessed_collectives(summing("broadcast"), joined) == (1,)  # nobody says what it sends


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("scope", "sharers"), [("device", 1), ("host", 4)])
def test_a_collective_takes_at_least_what_its_bytes_take_over_the_links(devices, scope, sharers):
    """Of 1,000 B each of four devices sends 1,500 in an all-reduce, twice over a fabric of 12 GB/s:
    at 6 GB/s, or less if shared.
    """
    links = Fabric("pcie", 12 * 10**9, (), scope=scope, collectives=2)
    there = replace(machine("toy"), fabrics=(Fabric("idle", 1, ()), links), devices=devices)
    graph = summing(kernel="all_reduce", sizes=(4, 1000), size=1000)
    assert op_durations(graph, there)[1] == max(
        2000 * 10**9 // there.device.bandwidth_bytes_per_s, 250 * min(devices, sharers)
    )
    assert (
        op_durations(
            summing(kernel="all_reduce", sizes=(4, 1000), size=1000, duration_ns=9), there
        )[1]
        == 9
    )
    assert (
        op_durations(summing("wait_tensor", size=1000), there)[1]
        == op_durations(summing("wait_tensor", size=1000), machine("toy"))[1]
    )


def first_token_ns(there, tensor):
    served = hosim.serve(
        {"model": "llama-3.1-8b", "tensor": tensor},
        there,
        "poisson:rate=0.2:count=2:prompt=1500:output=4",
    )
    return served.summary()["ttft_ns"]["mean"], served.about.get("guessed_collectives")


def test_a_server_counts_the_links_between_its_devices():
    """Each layer sums 1,500 tokens of 4,096 bf16 twice: 12.3 MB that each of two devices sends over
    PCIe both ways, at 19 GB/s.

    Without the links of the profile's processor, by which these collectives would be kernels.
    """
    card = machine("rtx-4090")
    card = replace(
        card,
        compute=replace(
            card.compute, processor=replace(card.compute.processor, link_bytes_per_s=0)
        ),
    )
    (pcie,) = [fabric for fabric in card.fabrics if fabric.collectives]
    wide = replace(
        card,
        fabrics=tuple(
            replace(f, bandwidth_bytes_per_s=10**15) if f is pcie else f for f in card.fabrics
        ),
    )
    sent_s = 2 * 32 * 1500 * 4096 * 2 / (pcie.bandwidth_bytes_per_s / pcie.collectives)
    alone_s = 2 * 32 * 2 * 1500 * 4096 * 2 / card.device.bandwidth_bytes_per_s
    (ours, guessed), (alone, _) = first_token_ns(card, 2), first_token_ns(wide, 2)
    assert ours - alone == pytest.approx((sent_s - alone_s) * 1e9, rel=0.15)
    assert guessed is None
    assert first_token_ns(card, 1) == first_token_ns(wide, 1)


@pytest.mark.parametrize(("name", "said"), [("t4", 65), ("h100", None)])
def test_a_server_says_which_collectives_are_guesses(name, said, monkeypatch):
    assert first_token_ns(name, 2)[1] == said
    asked = [
        "serve",
        "llama-3.1-8b",
        "-H",
        name,
        "--tensor",
        "2",
        "--requests",
        "poisson:rate=0.2:count=2:prompt=150:output=4",
    ]
    monkeypatch.setenv("COLUMNS", "400")
    outcome = CliRunner().invoke(app, asked)
    assert outcome.exit_code == 0, outcome.output
    assert ("Guessed: 65 collectives (" in outcome.output) == (said is not None)


def test_built_workloads_on_every_profile():
    """Where a profile has links, or a fabric that collectives cross, their time is known; with
    ``link`` it is everywhere.
    """
    graph, linked = build("shared", SHARED), build("shared", {**SHARED, "link": "25 GB/s"})
    count = sum(op.kind in COLLECTIVE_KINDS for op in graph.ops)
    assert count > 2
    for name in hardware():
        there = machine(name)
        has_links = (
            there.compute.processor is not None and there.compute.processor.link_bytes_per_s > 0
        )
        is_crossed = any(fabric.collectives for fabric in there.fabrics)
        assert len(guessed_collectives(graph, there)) == (
            0 if has_links or is_crossed else count
        ), name
        assert guessed_collectives(linked, there) == ()


COMMANDS = {
    "plan": ["plan", "w.json", "-H", "toy", "-p", "resident", "-o", "plan.json"],
    "compare": ["compare-policies", "w.json", "-H", "toy", "--policies", "resident"],
    "replay": ["replay", "plan.json", "w.json", "-H", "toy"],
    "sweep": [
        "sweep",
        "w.json",
        "-H",
        "toy",
        "-p",
        "resident",
        "--vary",
        "tiers.hbm.bandwidth=1..2TB/s:2",
        "-j",
        "1",
    ],
    "fit": [
        "fit",
        "w.json",
        "-H",
        "toy",
        "-p",
        "resident",
        "--largest",
        "budget=80..100B:3",
        "--slowdown",
        "2",
    ],
    "blame": ["blame", "w.json", "-H", "toy", "-p", "resident"],
    "frontier": ["frontier", "w.json", "-H", "toy", "-p", "resident"],
    "robustness": ["robustness", "w.json", "-H", "toy", "--policies", "resident", "-n", "2"],
    "machines": ["compare-policies", "w.json", "-H", "toy,h100-80gb-sxm", "--policies", "resident"],
}


JSON = {
    **{name: [*asked, "--json"] for name, asked in COMMANDS.items() if name != "plan"},
    "explain": ["plan", "w.json", "-H", "toy", "-p", "resident", "--explain", "--json"],
    "diff": ["diff", "plan.json", "layerwise", "-w", "w.json", "-H", "toy", "--json"],
}


@pytest.mark.parametrize("command", JSON)
def test_the_json_of_every_command_has_every_note(command, tmp_path: Path, monkeypatch):
    """What the workload leaves out, what its builder assumes, ops that nobody knows, and guesses
    about the machine.
    """
    monkeypatch.chdir(tmp_path)
    graph = summing(kernel="all_reduce", sizes=(4, 64), size=64)
    ops = (replace(graph.ops[0], duration_ns=None), graph.ops[1])
    meta = {
        "left_out": ["a head"],
        "assumed": ["states of 4 B"],
        "missing": ["a branch"],
        "unknown_ops": ["f"],
    }
    noted = replace(graph, ops=ops, meta=meta)
    save_workload(noted, tmp_path / "w.json")
    hosim.save_plan(hosim.Plan(noted), tmp_path / "plan.json")
    outcome = CliRunner().invoke(app, ["-q", *JSON[command]])
    assert outcome.exit_code == 0, outcome.output
    notes = json.loads(outcome.stdout)["notes"]
    assert {"not modelled: a head", "assumed: states of 4 B", "not in the file: a branch"} <= set(
        notes
    )
    assert [
        sum(line.startswith(about) for line in notes) for about in ("unknown: 1 op", "guessed: ")
    ] == [1, 1]


def test_requests_that_are_served_say_so():
    """In the summary, and in the frames of runs and of studies."""
    model, requests = (
        {"model": "gpt2", "tensor": 2, "layers": 1},
        "poisson:rate=2:count=2:prompt=8:output=2",
    )
    served = hosim.serve(model, "t4", requests)
    frames = [served.frame()]
    frames += [hosim.serve_sweep(model, "t4", requests, vary={"blocks": [90, 99]}, jobs=1)]
    frames += [hosim.serve_frontier(model, "t4", requests, vary={"blocks": [90, 99]}, jobs=1)]
    frames += [
        hosim.serve_fit(
            model, "t4", requests, smallest="blocks=90..99:2", within="ttft.p95=9s"
        ).frame
    ]
    for notes in (served.summary()["notes"], *(frame.attrs["notes"] for frame in frames)):
        assert [SAID in line for line in notes] == [True]
    assert "notes" not in hosim.serve(model, "h100", requests).summary()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_so(command, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    timed = summing(kernel="all_reduce", sizes=(4, 64), size=64)
    save_workload(timed, tmp_path / "w.json")
    hosim.save_plan(hosim.Plan(timed), tmp_path / "plan.json")
    outcome = CliRunner().invoke(app, COMMANDS[command])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count(SAID) == 1
    assert ("on toy, 1 collective" in outcome.output) == (
        command == "machines"
    )  # and not on the H100
    save_workload(
        summing(kernel="all_reduce", sizes=(4, 64), size=64, duration_ns=7), tmp_path / "w.json"
    )
    outcome = CliRunner().invoke(app, COMMANDS[command])
    assert outcome.exit_code == 0, outcome.output
    assert SAID not in outcome.output


def test_a_result_says_so_and_is_read_again(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for duration_ns, expected in ((None, 1), (5, None)):
        save_workload(summing(duration_ns=duration_ns, size=64), tmp_path / "w.json")
        (said,) = json.loads(CliRunner().invoke(app, [*COMMANDS["compare"], "--json"]).stdout)[
            "results"
        ]
        assert said.get("guessed_collectives") == expected
        result = result_from_dict(said)
        assert result.guessed_collectives == expected
        assert result_to_dict(result) == said


def test_tables_of_python_say_so():
    graph = summing(size=64)
    for table in (
        hosim.compare(graph, "toy", "resident"),
        hosim.sweep(graph, "toy", "resident", vary="budget=100B", jobs=1),
    ):
        assert any(SAID in note for note in table.attrs["notes"])
    asked = graph, "toy", "resident"
    found = (
        hosim.frontier(*asked, points=2, refine=0),
        hosim.fit(*asked, largest="budget=80..100B:2"),
        hosim.blame(*asked),
    )
    for table in (
        *(one.frame for one in found),
        found[2].price_frame,
        hosim.robustness(*asked, runs=2),
    ):
        assert any(SAID in note for note in table.attrs["notes"])
    table = hosim.compare(graph, ["toy", "t4"], "resident")
    assert [note[:20] for note in table.attrs["notes"] if SAID in note] == [
        "guessed: on toy, 1 c",
        "guessed: on t4, 1 co",
    ]


def test_stages_say_so(monkeypatch):
    """Two micro-batches on two stages: each is sent forward, and its gradient back."""
    monkeypatch.setenv("COLUMNS", "400")
    asked = "gpt2:phase=train:sequence=8:pipeline=2:micro_batches=2:layers=2"
    for link, guessed in (("", True), (":link=25GB/s", False)):
        outcome = CliRunner().invoke(
            app, ["pipeline", asked + link, "-H", "h100", "-p", "resident"]
        )
        assert outcome.exit_code == 0, outcome.output
        assert (SAID in outcome.output) == guessed
