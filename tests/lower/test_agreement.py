"""Runs of the executor beside replays: the order of transfers and ops, what runs at the same time,
and what a run's record says.

How long runs take beside their replays is measured by ``agreement.py`` and ``make bench``.
"""

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from layers import Layers, lowered, machine, program_of, streamed, values_of  # noqa: E402
from slow_clock import Clock, use  # noqa: E402

from hosim.engine import replay  # noqa: E402
from hosim.hardware import Channel  # noqa: E402
from hosim.on_torch.lower import Executor  # noqa: E402
from hosim.on_torch.lower.devices import CpuDevice  # noqa: E402
from hosim.on_torch.lower.tiers import Done, Label, measured, timeline_of  # noqa: E402
from hosim.report.timelines import trace  # noqa: E402
from hosim.result import Stall  # noqa: E402

WIDTH = 16  # a weight has 1,024 bytes
MODEL, X = Layers(4, WIDTH), torch.ones(4, WIDTH)
PROGRAM = program_of(MODEL, X)  # eight ops: a product and a relu, four times
with torch.no_grad():
    WANTED = MODEL(X)


def plan_of(lead, activations):
    plan = streamed(PROGRAM, lead=lead)
    kinds = {"parameter", "activation"} if activations else {"parameter"}
    return replace(
        plan,
        cache_ops=tuple(c for c in plan.cache_ops if PROGRAM.graph.tensors[c.tensor].kind in kinds),
    )


def recorded(plan, device, kind=Executor):
    """The timeline of a run on the device's machine, whose results are the model's."""
    values = values_of(PROGRAM, MODEL, X)
    with kind(lowered(PROGRAM, plan), device.hardware, device) as executor:
        executor.place({n: v for n, v in values.items() if v is not X})
        results = executor.run({n: v for n, v in values.items() if v is X}, record=True)
        assert torch.equal(results[0], WANTED)
        return executor.timeline


def test_routes_are_those_of_the_replay():
    # From nvme by ddr 1,024 bytes take 2 ns a hop, but 11 where ddr's memory has no more for
    # copies; by cxl 3. No op is measured: by cxl.
    hbm, ddr, nvme = machine().tiers
    half = 5 * 10**11
    channels = (
        *machine().channels,
        Channel("n2c", "nvme", "cxl", half),
        Channel("c2d", "cxl", "hbm", half),
    )
    hardware = replace(
        machine(),
        tiers=(hbm, ddr, nvme, replace(ddr, name="cxl", bandwidth_bytes_per_s=10**12)),
        channels=channels,
    )
    plan = streamed(PROGRAM, "nvme", lead=4)
    replayed, real = (
        replay(plan, hardware, record=True).timeline,
        recorded(plan, CpuDevice(hardware)),
    )
    ours, theirs = ({(x.cache_op, x.channel) for x in t.transfers} for t in (replayed, real))
    assert ours == theirs
    assert {"n2c", "c2d"} <= {channel for _, channel in theirs}


def test_chunks_of_one_cache_op_take_one_engine_of_each_channel():
    channels = tuple(replace(c, engines=2, latency_ns=10**6) for c in machine().channels)
    hardware = replace(machine(), channels=channels, chunk_bytes=256)
    real = recorded(streamed(PROGRAM, "nvme", lead=4), CpuDevice(hardware, throttle=True))
    by_hop = {}
    for x in real.transfers:
        by_hop.setdefault((x.cache_op, x.channel), []).append((x.start_ns, x.end_ns))
    assert max(map(len, by_hop.values())) == 4  # of 1,024 bytes
    for spans in by_hop.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("lead", [1, 2, 4])
@pytest.mark.parametrize("activations", [False, True])
def test_transfers_are_in_the_order_of_the_replay_and_ops_behind_those_that_they_wait_for(
    lead, activations
):
    plan = plan_of(lead, activations)
    replayed, real = (
        replay(plan, machine(), record=True).timeline,
        recorded(plan, CpuDevice(machine())),
    )
    for channel in ("h2d", "d2h"):
        ours, theirs = (
            [(x.cache_op, x.tensor, x.bytes) for x in t.transfers if x.channel == channel]
            for t in (replayed, real)
        )
        assert ours == theirs
    ends = {x.cache_op: x.end_ns for x in real.transfers}
    for x in real.transfers:
        after = plan.cache_ops[x.cache_op].after
        assert x.start_ns >= x.issue_ns >= (real.op_end_ns[after] if after >= 0 else 0)
    for k, c in enumerate(plan.cache_ops):
        users = [i for i in plan.graph.users[c.tensor] if i > c.after]
        if c.op == "prefetch" and users:
            assert real.op_start_ns[users[0]] >= ends[k]


def test_a_transfer_runs_while_ops_do():
    """The copy of the third weight and the second product meet in the middle of both; either alone
    gives up in the end.
    """
    meet = threading.Barrier(2, timeout=600)
    copies = []

    class Meeting(Executor):
        def _call_op(self, node):
            if node.name == "mm_1":
                meet.wait()
            return super()._call_op(node)

    class Device(CpuDevice):
        def move(self, channel, *arguments):
            copies.append(channel)
            if len(copies) == 3:
                meet.wait()
            super().move(channel, *arguments)

    real = recorded(plan_of(2, False), Device(machine()), Meeting)
    third, second = real.transfers[2], [op.name for op in PROGRAM.graph.ops].index("mm_1")
    assert third.start_ns < real.op_end_ns[second]
    assert real.op_start_ns[second] < third.end_ns


def test_what_a_run_takes_where_transfers_and_ops_take_turns(monkeypatch):
    clock = Clock()
    use(monkeypatch, clock, clock.sleep)

    class Timed(Executor):
        def _call_op(self, node):
            clock.now_ns += 5000
            return super()._call_op(node)

    slow, plan = machine(10**9, latency=1000), plan_of(1, False)
    with Timed(
        lowered(PROGRAM, plan), slow, CpuDevice(slow, throttle=True, synchronous=True)
    ) as executor:
        executor.place({n: v for n, v in values_of(PROGRAM, MODEL, X).items() if v is not X})
        executor.run({"x": X}, record=True)
        real = measured(replay(plan, slow, record=True), executor.timeline)
    # A weight comes in 1000 + 1024 ns; then its product, the next weight and the relu: 5000 + 2024
    # + 5000, and no next one at the end.
    assert real.timeline.op_start_ns == (2024, 9048, 14048, 21072, 26072, 33096, 38096, 43096)
    assert (real.makespan_ns, real.busy_ns, real.drain_ns) == (4 * 2024 + 8 * 5000, 8 * 5000, 0)


def test_a_record_as_a_timeline_and_a_result():
    # Op 0 runs 100..150; a store 150..180, of which the queue knew at 150; op 2 was free to run at
    # 160 and waits until 200 for the prefetch 170..198 of the tensor that it reads, submitted
    # behind what ended at 155; the store's last transfer ends behind all ops.
    plan = plan_of(1, False)
    record = [
        Done(Label("op", op=2), "compute", 0, 160, 200, 240),
        Done(Label("store", cache_op=0, size_bytes=7), "d2h", 150, 90, 150, 260),
        Done(Label("op", op=0), "compute", 0, 100, 100, 150),
        Done(Label("prefetch", cache_op=1, size_bytes=9), "h2d", 155, 90, 170, 198),
        Done(Label("something else"), "compute", 0, 240, 240, 241),
    ]
    timeline = timeline_of(plan, record)
    assert timeline.op_start_ns[:3] == (0, -1, 100)
    assert timeline.op_end_ns[:3] == (50, -1, 140)
    assert timeline.stalls == (Stall(2, "transfer", 60, 100, transfer=1),)
    found = [
        (x.cache_op, x.tensor, x.channel, x.bytes, x.issue_ns, x.start_ns, x.end_ns)
        for x in timeline.transfers
    ]
    tensors = [plan.cache_ops[k].tensor for k in (0, 1)]
    assert found == [(0, tensors[0], "d2h", 7, 50, 50, 160), (1, tensors[1], "h2d", 9, 55, 70, 98)]
    ran = replace(timeline, op_start_ns=(0, 100), op_end_ns=(50, 140))
    result = measured(replay(plan, machine()), ran)
    assert (result.makespan_ns, result.busy_ns, result.stall_ns["transfer"], result.drain_ns) == (
        160,
        90,
        40,
        20,
    )


@pytest.mark.parametrize(
    ("prefetch", "blamed"),
    [
        (Done(Label("prefetch", cache_op=1), "h2d", 0, 0, 10, 61), 0),
        (
            Done(Label("prefetch", cache_op=1), "h2d", 0, 0, 10, 60),
            None,
        ),  # it had ended when the wait began
        (
            Done(Label("prefetch", cache_op=1), "h2d", 0, 0, 10, 81),
            None,
        ),  # it ended when the op ran already
        (
            Done(Label("prefetch", cache_op=3), "h2d", 0, 0, 10, 70),
            None,
        ),  # of a tensor that the op does not use
    ],
)
def test_a_measured_wait_is_blamed_on_what_ended_in_it(prefetch, blamed):
    """Op 2 reads the tensor of cache op 1 and waits 60..80."""
    record = [
        Done(Label("op", op=0), "compute", 0, 0, 0, 60),
        prefetch,
        Done(Label("op", op=2), "compute", 0, 60, 80, 90),
    ]
    assert timeline_of(plan_of(1, False), record).stalls == (Stall(2, "transfer", 60, 80, blamed),)


def test_a_measured_run_can_be_shown_as_a_replay_can():
    plan = plan_of(1, True)
    real = measured(replay(plan, machine(), record=True), recorded(plan, CpuDevice(machine())))
    slices = [event for event in trace(plan, machine(), real)["traceEvents"] if event["ph"] == "X"]
    assert {event["name"] for event in slices if event["cat"] == "op"} == {
        op.name for op in plan.graph.ops
    }
    assert sum(event["cat"] == "transfer" for event in slices) == len(
        [c for c in plan.cache_ops if c.op != "detach"]
    )
