"""Stages of a pipeline, by hand: sends and receives tie graphs that run on devices of their own
(docs/contract.md, rule 21).

``pipeline`` writes the passes of :func:`hosim.io.models.pipeline_schedule.passes` as toy graphs: what
arrives is received on one stream, what leaves is sent on another one. A byte takes a nanosecond on
a channel of 1 GB/s.
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import GB, machine, plan, workload

from hosim.engine import replay_stages
from hosim.errors import InputError
from hosim.hardware import Compute, Fabric
from hosim.io.models import bubble, passes

SEND, RECEIVE = {"kind": "send", "stream": "out"}, {"kind": "recv", "stream": "in"}
ON_CPU = {
    "ns": None,
    "inputs": ["s"],
    "bytes_accessed": 100,
    "dtype": "fp32",
    "processor": "ddr",
    "stream": "cpu",
}


def stage_graph(schedule: str, stages: int, stage: int, count: int, f: int, b: int, sent: int = 0):
    """One stage: forward passes of ``f`` ns, backward passes of ``b`` ns, and messages of ``sent``
    ns between them, of 1 B each.
    """
    tensors, ops, before = {}, {}, []
    for each in passes(schedule, stages, stage, count):
        m = each.micro_batch
        name, there, here = (
            (f"B{m}", stage - 1, stage + 1) if each.backward else (f"F{m}", stage + 1, stage - 1)
        )
        made, got = f"of {name}", f"to {name}"
        tensors[made] = (1,)
        reads = [f"of F{m}"] if each.backward else []
        if 0 <= here < stages:
            tensors[got] = (1,)
            ops[f"get {name}"] = {
                "ns": sent,
                "outputs": [got],
                "deps": before,
                "message": f"{name}{min(stage, here)}",
                **RECEIVE,
            }
            reads.append(got)
        ops[name] = {"ns": b if each.backward else f, "inputs": reads, "outputs": [made]}
        if 0 <= there < stages:
            ops[f"put {name}"] = {
                "ns": sent,
                "inputs": [made],
                "message": f"{name}{min(stage, there)}",
                **SEND,
            }
        before = [name]  # a receive is posted once what was launched before it has run
    return workload(tensors, ops)


def pipeline(schedule: str, times: list[tuple[int, int]], count: int, sent: int = 0, **of_machine):
    """The result of stages with these forward and backward times, and by stage its ops as {name:
    (start, end)}.
    """
    graphs = [
        stage_graph(schedule, len(times), s, count, f, b, sent) for s, (f, b) in enumerate(times)
    ]
    return run(
        [plan(graph) for graph in graphs], replace(machine(**of_machine), devices=len(times))
    )


def run(plans, hardware):
    result = replay_stages(plans, hardware, record=True)
    bare = replay_stages(plans, hardware)
    assert (bare.whole, bare.bubble_ns) == (replace(result.whole, replay_s=0), result.bubble_ns)
    found = []
    for each, one in zip(plans, result.stages, strict=True):
        line = one.timeline
        found.append(
            {
                op.name: (line.op_start_ns[i], line.op_end_ns[i])
                for i, op in enumerate(each.graph.ops)
            }
        )
    return result, found


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "count", "f", "b"), [(2, 3, 10, 20), (4, 8, 10, 20), (3, 1, 5, 5), (4, 2, 7, 11)]
)
def test_equal_stages_take_what_megatron_says(schedule, stages, count, f, b):
    # m + p - 1 passes forward and back, of which each stage waits p - 1: the bubble is (p - 1) / m
    # of the computation.
    result, _ = pipeline(schedule, [(f, b)] * stages, count)
    assert result.step_ns == (count + stages - 1) * (f + b)
    assert result.bubble_ns == ((stages - 1) * (f + b),) * stages
    assert result.bubble_ns[0] / result.stages[0].busy_ns == pytest.approx(bubble(stages, count))
    assert [one.busy_ns for one in result.stages] == [count * (f + b)] * stages


def test_gpipe_of_two_stages():
    # Messages take 4. Stage 0 computes F0 0-10, F1 10-20, F2 20-30. Stage 1 asks for the next as
    # soon as it has computed: F0 14-24, then it gets F1 24-28, which stage 0 sends from 20 on. F1
    # 28-38, F2 comes 38-42, 42-52. B0 52-72, B1 72-92, B2 92-112 on stage 1; stage 0 has asked for
    # B0 at 30. It gets B0 72-76, computes 76-96, gets B1 96-100 (sent from 92 on), 100-120, B2
    # 120-124, 124-144.
    result, (first, last) = pipeline("gpipe", [(10, 20), (10, 20)], 3, sent=4)
    assert [first[name] for name in ("F0", "F1", "F2")] == [(0, 10), (10, 20), (20, 30)]
    assert [first[f"put F{m}"] for m in range(3)] == [(10, 14), (20, 28), (30, 42)]
    assert [last[f"get F{m}"] for m in range(3)] == [(0, 14), (24, 28), (38, 42)]
    assert [last[name] for name in ("F0", "F1", "F2")] == [(14, 24), (28, 38), (42, 52)]
    assert [last[name] for name in ("B0", "B1", "B2")] == [(52, 72), (72, 92), (92, 112)]
    assert [last[f"put B{m}"] for m in range(3)] == [(72, 76), (92, 100), (112, 124)]
    assert [first[name] for name in ("B0", "B1", "B2")] == [(76, 96), (100, 120), (124, 144)]
    assert result.step_ns == 144
    # Stage 0 waits for B0 from 30 to 72; that the messages take 4 each is no bubble. Stage 1 waits
    # 10 for F0. It ends at 124, 20 before the step. From its last op, 112, on it waits to be heard
    # until 120.
    assert result.bubble_ns == (42, 10 + 8 + 20)
    assert [one.peers_ns for one in result.stages] == [4 + 8 + 42, 10 + 4 + 8]


def test_1f1b_of_two_stages():
    # Messages take 4. Stage 0: F0 0-10, F1 10-20, then asks for B0. Stage 1: F0 14-24, B0 24-44;
    # asks for F1 at 44: 44-48, F1 48-58, B1 58-78. Stage 0 gets B0 44-48, computes 48-68, F2 68-78,
    # gets B1 78-82, computes 82-102. Stage 1 asks for F2 at 78: gets it 78-82, F2 82-92, B2 92-112.
    # Stage 0 asks for B2 at 102: 112-116, B2 116-136.
    result, (first, last) = pipeline("1f1b", [(10, 20), (10, 20)], 3, sent=4)
    assert [first[n] for n in ("F0", "F1", "B0", "F2", "B1", "B2")] == [
        (0, 10),
        (10, 20),
        (48, 68),
        (68, 78),
        (82, 102),
        (116, 136),
    ]
    assert [last[n] for n in ("F0", "B0", "F1", "B1", "F2", "B2")] == [
        (14, 24),
        (24, 44),
        (48, 58),
        (58, 78),
        (82, 92),
        (92, 112),
    ]
    assert (first["put F1"], last["get F1"]) == ((20, 48), (44, 48))
    # Stage 0 waits 24 for B0 and 10 for B2, not for B1; stage 1 waits 10 for F0 and, done at 116,
    # 20 for the step to end.
    assert result.bubble_ns == (24 + 10, 10 + 20)


def test_a_slow_stage_sets_the_pace():
    # The second of three takes 30 each way, the others 10. GPipe, 3 micro-batches, messages take
    # nothing: it computes from 10 to 100, back from 110 (stage 2 has F2 100-110 and then all of it,
    # B0 110-120) to 200, and stage 0 ends 10 later.
    result, (_, slow, last) = pipeline("gpipe", [(10, 10), (30, 30), (10, 10)], 3)
    assert [slow[name] for name in ("F0", "F1", "F2", "B0", "B1", "B2")] == [
        (10, 40),
        (40, 70),
        (70, 100),
        (120, 150),
        (150, 180),
        (180, 210),
    ]
    assert last["B0"] == (110, 120)
    assert result.step_ns == 220
    # The slow one waits 10 at first, 20 for B0, and 10 at the end. The others compute for 60 of the
    # 220.
    assert result.bubble_ns == (160, 40, 160)


def test_room_is_held_while_a_send_waits():
    # x, 30 B, is held from 0, when f begins, until it is sent, though nobody needs it after 10: g
    # on the other stage takes until 100.
    first = workload(
        {"x": (30,)},
        {
            "f": {"ns": 10, "outputs": ["x"]},
            "put": {"ns": 5, "inputs": ["x"], "message": "x", **SEND},
        },
    )
    last = workload(
        {"x": (30,)},
        {
            "g": {"ns": 100},
            "get": {"ns": 5, "outputs": ["x"], "deps": ["g"], "message": "x", **RECEIVE},
        },
    )
    result, (there, here) = run([plan(first), plan(last)], replace(machine(), devices=2))
    assert (there["put"], here["get"]) == ((10, 105), (100, 105))
    held = [
        (r.start_ns, r.end_ns) for r in result.stages[0].timeline.residencies if r.tier == "hbm"
    ]
    assert held == [(0, 105)]
    assert result.bubble_ns == (
        90,
        0,
    )  # what a send waits after the last op is a bubble: from 10 to 100


def test_stages_share_a_channel_to_one_host():
    # w, 40 B a stage, over a root of 1 B/ns: 80 ns for both. Alone each would have it by 40.
    def stage(kind, stream):
        moved = {"outputs": ["x"]} if kind == "recv" else {"inputs": ["x"]}
        return workload(
            {
                "w": (40, "parameter", "ddr"),
                "x": (30, "activation" if kind == "recv" else "parameter"),
            },
            {
                "f": {"ns": 5, "inputs": ["w"]},
                "m": {
                    "ns": 10,
                    "kind": kind,
                    "stream": stream,
                    "message": "x",
                    "deps": ["f"],
                    **moved,
                },
            },
        )

    plans = [plan(stage(kind, "out"), ("prefetch w", None)) for kind in ("send", "recv")]
    result, both = run(
        plans,
        replace(machine(fabric=GB), devices=2, fabrics=(Fabric("root", GB, ("h2d",), "host"),)),
    )
    assert both == [{"f": (80, 85), "m": (85, 95)}] * 2
    assert [replay(each, machine(fabric=GB)).makespan_ns for each in plans] == [55, 55]
    assert result.bubble_ns == (0, 0)


def test_what_is_sent_and_copies_on_one_link():
    # 30 B in 15 ns want 2 B/ns of the sender's bus of 2, beside the copy of w, 40 B, that wants 2,
    # too: both have 1. By 30 the message is through; on the other device nothing else flows, but it
    # ends with the sender.
    first = workload(
        {"w": (40, "parameter", "ddr"), "x": (30, "parameter")},
        {"put": {"ns": 15, "inputs": ["x"], "message": "x", **SEND}},
    )
    last = workload({"x": (30,)}, {"get": {"ns": 15, "outputs": ["x"], "message": "x", **RECEIVE}})
    hardware = replace(
        machine(h2d=2 * GB), fabrics=(Fabric("bus", 2 * GB, ("h2d",), "device", 1),), devices=2
    )
    result, (there, here) = run([plan(first, ("prefetch w", None)), plan(last)], hardware)
    assert (there["put"], here["get"]) == ((0, 30), (0, 30))
    assert [one.slowed_ns for one in result.stages] == [15, 15]


@pytest.mark.parametrize("of", [(), ("h2d",)], ids=["no channel", "a channel"])
def test_messages_of_two_streams_share_a_link(of):
    # Each message of 40 B would take 40 ns alone, all that a link of 1 B/ns carries: both at once
    # take 80.
    ways = {"x": "one", "y": "two"}
    first = workload(
        dict.fromkeys(ways, (40, "parameter")),
        {
            f"put {m}": {"ns": 40, "inputs": [m], "message": m, "kind": "send", "stream": stream}
            for m, stream in ways.items()
        },
    )
    last = workload(
        dict.fromkeys(ways, (40,)),
        {
            f"get {m}": {"ns": 40, "outputs": [m], "message": m, "kind": "recv", "stream": stream}
            for m, stream in ways.items()
        },
    )
    result, found = run(
        [plan(first), plan(last)],
        replace(machine(), fabrics=(Fabric("link", GB, of, "device", 1),), devices=2),
    )
    assert found == [{f"{verb} {m}": (0, 80) for m in ways} for verb in ("put", "get")]
    assert [one.slowed_ns for one in result.stages] == [80, 80]


def test_an_exchange_takes_as_long_as_its_longest_op():
    # The table's gradient is summed on the first stage and the last: 20 ns there, 30 here, from
    # when both have come to it.
    def stage(before, ns):
        together = {
            "ns": ns,
            "kind": "all_reduce",
            "kernel": "all_reduce",
            "sizes": (2, 40),
            "message": "table",
        }
        return plan(workload({}, {"f": {"ns": before}, "sum": together}))

    result, (first, other, last) = run(
        [stage(10, 20), plan(workload({}, {"f": {"ns": 7}})), stage(25, 30)],
        replace(machine(), devices=3),
    )
    assert (first["sum"], last["sum"], other["f"]) == ((10, 55), (25, 55), (0, 7))
    assert [(one.peers_ns, one.busy_ns) for one in result.stages] == [(15, 55), (0, 7), (0, 55)]
    assert [one.slowed_ns for one in result.stages] == [10, None, None]


def test_the_stage_that_has_no_room_is_named():
    # x does not fit into 20 B on the second stage, so that the first waits in vain for it.
    first = workload(
        {"x": (30, "parameter")}, {"put": {"ns": 5, "inputs": ["x"], "message": "x", **SEND}}
    )
    last = workload(
        {"x": (30,), "y": (80, "parameter")},
        {"get": {"ns": 5, "outputs": ["x"], "message": "x", **RECEIVE}},
    )
    result = replay_stages([plan(first), plan(last)], replace(machine(), devices=2))
    assert result.error.startswith("out of memory on stage 1: op 'get' wants 30 B of hbm")
    assert (
        result.stages[0].error
        == "out of memory on stage 0: op 'put' waits in vain for other devices"
    )
    assert (result.step_ns, result.bubble) == (None, None)
    full = replay_stages([plan(first), plan(last)], replace(machine(hbm=70), devices=2))
    assert full.error.startswith("out of memory on stage 1: the initial residents of hbm take 80 B")
    assert (
        full.stages[0].error == "out of memory on stage 0: the step waits in vain for other devices"
    )


def pair(send=None, receive=None, size=30):
    """A stage that sends 30 B and one that receives ``size``, each with other fields; ``None``
    leaves the stage without.
    """
    first = (
        {"put": {"ns": 5, "inputs": ["x"], "message": "x", **SEND, **send}}
        if send is not None
        else {"f": {"ns": 1}}
    )
    last = (
        {"get": {"ns": 5, "outputs": ["x"], "message": "x", **RECEIVE, **receive}}
        if receive is not None
        else {"f": {"ns": 1}}
    )
    return [plan(workload({"x": (30, "parameter")}, first)), plan(workload({"x": (size,)}, last))]


@pytest.mark.parametrize(
    ("plans", "said"),
    [
        (pair({}), "stage 0: no other stage receives the message 'x' of the send 'put'"),
        (pair(None, {}), "stage 1: no other stage sends the message 'x' of the recv 'get'"),
        (pair({"message": ""}, {}), "stage 0: the send 'put' has no message"),
        (
            pair({}, {}, 31),
            "has 30 B where 'put' of stage 0 sends it, and 31 B where 'get' of stage 1 receives it",
        ),
        (pair({}, {"kind": "send"}), "expected one send and one recv of the message 'x'"),
        (pair({"kind": "matmul"}, {}), "op 'put' of kind 'matmul' has a message"),
        (
            pair({"kind": "all_reduce"}, {"kind": "broadcast"}),
            "not the same kind, kernel and sizes",
        ),
    ],
)
def test_messages_that_do_not_fit(plans, said):
    with pytest.raises(InputError, match=r"^stage [01]: ") as raised:
        replay_stages(plans, replace(machine(), devices=2))
    assert said in str(raised.value)


def test_a_message_twice_in_a_stage():
    both = {
        "put": {"ns": 1, "inputs": ["x"], "message": "x", **SEND},
        "again": {"ns": 1, "inputs": ["x"], "message": "x", **SEND},
    }
    with pytest.raises(
        InputError, match="stage 0: the ops 'put' and 'again' have the same message 'x'"
    ):
        replay_stages(
            [plan(workload({"x": (30, "parameter")}, both)), *pair({}, {})[1:]],
            replace(machine(), devices=2),
        )


def test_stages_that_wait_for_ever_are_refused():
    # On one stream each, both send first: neither comes to its receive.
    def stage(mine, other):
        ops = {
            f"put {mine}": {
                "ns": 1,
                "kind": "send",
                "inputs": ["x"],
                "message": mine,
                "stream": "comm",
            },
            f"get {other}": {
                "ns": 1,
                "kind": "recv",
                "outputs": ["y"],
                "message": other,
                "stream": "comm",
            },
        }
        return plan(workload({"x": (3, "parameter"), "y": (3,)}, ops))

    with pytest.raises(InputError) as raised:
        replay_stages([stage("a", "b"), stage("b", "a")], replace(machine(), devices=2))
    assert (
        "'put a' of stage 0 waits for 'get a' of stage 1, 'put b' of stage 1 waits for 'get b' of "
        "stage 0; send and" in str(raised.value)
    )


def test_stages_whose_results_need_one_another_are_refused():
    # Each computes what it sends from what it receives. Streams do not help.
    def stage(mine, other):
        ops = {
            "get": {"ns": 1, "outputs": ["y"], "message": other, **RECEIVE},
            "f": {"ns": 1, "inputs": ["y"], "outputs": ["x"]},
            "put": {"ns": 1, "inputs": ["x"], "message": mine, **SEND},
        }
        return plan(workload({"x": (3,), "y": (3,)}, ops))

    with pytest.raises(
        InputError,
        match=r"'get' of stage 0 waits for 'put' of stage 1, 'get' of stage 1 waits for 'put' of "
        r"stage 0; send",
    ):
        replay_stages([stage("a", "b"), stage("b", "a")], replace(machine(), devices=2))


def test_copies_do_not_slow_a_send_down():
    # put reads hbm as fast as it goes, 10,000 B in 10 ns; w comes up from 30 to 70, while put waits
    # until 60, and while it sends.
    first = workload(
        {"w": (40, "parameter", "ddr"), "x": (30, "parameter")},
        {
            "f": {"ns": 10},
            "put": {
                "ns": 10,
                "kind": "send",
                "inputs": ["x"],
                "message": "x",
                "bytes_accessed": 10_000,
            },
            "e": {"ns": 30, "stream": "aside"},
        },
    )
    last = workload(
        {"x": (30,)},
        {"g": {"ns": 60}, "get": {"ns": 10, "kind": "recv", "outputs": ["x"], "message": "x"}},
    )
    plans = [plan(first, ("prefetch w", "e"), ("detach w", "e")), plan(last)]
    result, (there, here) = run(plans, replace(machine(), devices=2))
    assert [(x.start_ns, x.end_ns) for x in result.stages[0].timeline.transfers] == [(30, 70)]
    assert (there["put"], here["get"]) == ((10, 70), (60, 70))
    assert [one.slowed_ns for one in result.stages] == [None, None]


def test_a_machine_of_another_size():
    with pytest.raises(
        InputError,
        match="expected a machine of one device for each of 2 stages or more, got 1 for 2",
    ):
        replay_stages(pair({}, {}), machine())


@pytest.mark.parametrize(("both", "first"), [(False, 12), (True, 24)])
def test_a_stage_that_computes_alone_on_a_tier_has_all_of_its_processor(both, first):
    # The 100 bytes of u are 10 ns at 10 a nanosecond. w's 20 flow 0..4 at 5 a nanosecond, half of
    # what ddr has: u has done 2 of its 10 by then and ends at 12. Where both stages compute there,
    # each has 5 a nanosecond, u takes 20, and both copy w: 10 in all, 5 of each part, so that
    # nothing of u is done by 4, and it ends at 24.
    graph = workload(
        {"w": (20, "parameter", "ddr"), "s": (40, "optimizer_state", "ddr"), "x": (1,)},
        {
            "u": dict(ON_CPU),
            "out": {"ns": 1, "outputs": ["x"]},
            "put": {"ns": 0, "inputs": ["x"], "message": "x", **SEND},
        },
    )
    other = workload(
        {"w": (20, "parameter", "ddr"), "s": (40, "optimizer_state", "ddr"), "x": (1,)},
        {
            "get": {"ns": 0, "outputs": ["x"], "message": "x", **RECEIVE},
            **({"u": dict(ON_CPU)} if both else {}),
        },
    )
    hardware = machine(h2d=5 * GB)
    ddr = replace(hardware.tiers[1], bandwidth_bytes_per_s=10 * GB, compute=Compute({"fp32": GB}))
    hardware = replace(hardware, tiers=(hardware.tiers[0], ddr), devices=2)
    plans = [plan(graph, ("prefetch w", None))]
    plans.append(plan(other, ("prefetch w", None)) if both else plan(other))
    _, found = run(plans, hardware)
    assert found[0]["u"] == (0, first)
