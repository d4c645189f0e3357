"""The host as a process (docs/contract.md, rule 23), worked out by hand; a byte takes a
nanosecond.
"""

from dataclasses import replace

from both_engines import replay
from by_hand import machine, plan, replayed, workload
from rendered import facts

from hosim.cache_plan import begin_segments
from hosim.data.runtime import Runtime, RuntimeFigure


def under(blocks=(), pins=(), pins_once=False, segments=False, **figures):
    """A machine under a runtime of these figures."""
    found = {name: RuntimeFigure(float(value)) for name, value in figures.items()}
    flags = {"pins_once": pins_once, "segments": segments}
    return replace(
        machine(), software=Runtime("by hand", "", blocks=blocks, pins=pins, **flags, **found)
    )


def test_an_op_starts_when_its_call_is_over():
    """Calls of 10 ns are over at 10, 20 and 30.

    f runs from 10 to 13 and g from 20 to 70, each as its call is over; that of h has been over for
    40 ns when g ends.
    """
    graph = workload({}, {"f": {"ns": 3}, "g": {"ns": 50}, "h": {"ns": 4}})
    done = replayed(plan(graph), under(host=10))
    assert done.ops == {"f": (10, 13), "g": (20, 70), "h": (70, 74)}
    assert done.stalls == {"runtime": 10 + 7}
    assert done.result.busy_ns == 57


def test_calls_of_copies_stand_where_their_cache_ops_do():
    """Calls: the prefetch of a, over at 10; f at 20; the prefetch of b, after f, at 30; g at 40.

    a flows from 10 to 30, and f, called by 20, starts then: 10 ns wait for the prefetch. f ends at
    35; b's call was over at 30, so it is issued at 35 and flows until 55: g waits 5 ns for its
    call, until 40, and 15 for b.
    """
    graph = workload(
        {"a": (20, "parameter", "ddr"), "b": (20, "parameter", "ddr")},
        {"f": {"ns": 5, "inputs": ["a"]}, "g": {"ns": 5, "inputs": ["b"]}},
    )
    moves = [("prefetch a", None), ("prefetch b", "f"), ("detach a", "f"), ("detach b", "g")]
    done = replayed(plan(graph, *moves), under(host=10))
    assert done.moves == [("prefetch", "a", 10, 10, 30), ("prefetch", "b", 35, 35, 55)]
    assert done.ops == {"f": (30, 35), "g": (55, 60)}
    assert done.stalls == {"runtime": 20 + 5, "transfer": 10 + 15}


def test_the_call_of_a_copy_takes_more_than_that_of_an_op():
    """Calls: the prefetch of a, over at 3 + 7 = 10; f at 13; the prefetch of b, after f, at 23; g at
    26.

    a flows from 10 to 30 and f runs until 35, when b, called long before, is issued: it flows until
    55. f waits 13 ns for its call and 17 for a, g 20 for b.
    """
    graph = workload(
        {"a": (20, "parameter", "ddr"), "b": (20, "parameter", "ddr")},
        {"f": {"ns": 5, "inputs": ["a"]}, "g": {"ns": 5, "inputs": ["b"]}},
    )
    moves = [("prefetch a", None), ("prefetch b", "f"), ("detach a", "f"), ("detach b", "g")]
    done = replayed(plan(graph, *moves), under(host=3, host_copy=7))
    assert done.moves == [("prefetch", "a", 10, 10, 30), ("prefetch", "b", 35, 35, 55)]
    assert done.ops == {"f": (30, 35), "g": (55, 60)}
    assert done.stalls == {"runtime": 13, "transfer": 17 + 20}


def test_a_copy_whose_op_has_ended_waits_for_its_call():
    """f runs from 10 to 12. The call of the store after it is over at 20, and so is that of g at
    30: the store flows from 20 to 40.
    """
    graph = workload(
        {"a": (20, "parameter", "hbm")}, {"f": {"ns": 2, "inputs": ["a"]}, "g": {"ns": 1}}
    )
    done = replayed(plan(graph, ("store a", "f"), ("detach a ddr", "g")), under(host=10))
    assert done.moves == [("store", "a", 20, 20, 40)]
    assert done.ops == {"f": (10, 12), "g": (30, 31)}


def test_a_copy_that_blocks_lets_nothing_run_beside_it():
    """Without a cost of calls: a flows from 0 to 20 while the host waits, so f and g are called at
    20.

    The prefetch of b stands after f, which ends at 25. It flows until 45, and only then g is
    called, which reads nothing of it.
    """
    graph = workload(
        {"a": (20, "parameter", "ddr"), "b": (20, "parameter", "ddr")},
        {"f": {"ns": 5, "inputs": ["a"]}, "g": {"ns": 30}, "h": {"ns": 5, "inputs": ["b"]}},
    )
    moves = [("prefetch a", None), ("prefetch b", "f"), ("detach a", "f"), ("detach b", "h")]
    free, held = (
        replayed(plan(graph, *moves), under(host=0, ahead=100, blocks=blocks))
        for blocks in ((), ("prefetch",))
    )
    assert free.ops == {"f": (20, 25), "g": (25, 55), "h": (55, 60)}
    assert held.ops == {"f": (20, 25), "g": (45, 75), "h": (75, 80)}
    assert held.stalls == {"runtime": 20 + 20}


def test_an_op_that_blocks_is_read_by_the_host():
    """.item() of f's result: the host goes on when it has ended at 30 (20 + 10), and the call of g
    is over at 40.
    """
    graph = workload({}, {"f": {"ns": 15}, "item": {"ns": 5, "kind": "item"}, "g": {"ns": 5}})
    done = replayed(plan(graph), under(host=10, blocks=("item",)))
    assert done.ops == {"f": (10, 25), "item": (25, 30), "g": (40, 45)}


def test_a_host_is_so_many_ops_ahead_at_most():
    """Two ops ahead: the call of the third begins when the first has ended, at 30, that of the
    fourth when the second has, at 50.
    """
    graph = workload({}, {name: {"ns": 20} for name in "fghi"})
    done = replayed(plan(graph), under(host=10, ahead=2))
    assert done.ops == {"f": (10, 30), "g": (30, 50), "h": (50, 70), "i": (70, 90)}
    once = replayed(
        plan(graph), under(host=10, ahead=1)
    )  # one: each op waits for the call that began when the one before had ended
    assert once.ops == {"f": (10, 30), "g": (40, 60), "h": (70, 90), "i": (100, 120)}


def test_ops_between_cache_ops_are_one_call():
    """Each op reads a weight of its own, that of i is a. Segments: f and g, called by 10; the
    prefetch of a, after g, by 20; h by 30; i, which waits for a, by 40; j and k by 50, after the
    last use of a.

    a is issued when g ends at 20 and flows until 40. h runs from 30 to 35, i from 40, j from 50.
    One by one the calls are over at 10, 20, 30 (a), 40, 50, 60 and 70: k ends at 75. With a on the
    device k ends at 65, and with one call, over at 10, at 40.
    """
    homes = {"ddr": [("prefetch a", "g"), ("detach a", "i")], "hbm": []}
    runs = {}
    for home, moves in homes.items():
        weights = {f: "a" if f == "i" else f"of {f}" for f in "fghijk"}
        ops = {f: {"ns": 5, "inputs": [weight]} for f, weight in weights.items()}
        tensors = dict.fromkeys(weights.values(), (10, "parameter", "hbm"))
        tensors["a"] = (20, "parameter", home)
        the_plan = plan(workload(tensors, ops), *moves)
        for segments in (False, True):
            runs[home, segments] = replayed(the_plan, under(host=10, segments=segments))
    done = runs["ddr", True]
    assert done.moves == [("prefetch", "a", 20, 20, 40)]
    assert done.ops == {
        "f": (10, 15),
        "g": (15, 20),
        "h": (30, 35),
        "i": (40, 45),
        "j": (50, 55),
        "k": (55, 60),
    }
    assert done.stalls == {"runtime": 10 + 10 + 5 + 5}
    ends = {key: run.ops["k"][1] for key, run in runs.items()}
    assert ends == {("ddr", False): 75, ("ddr", True): 60, ("hbm", False): 65, ("hbm", True): 40}


def test_where_segments_begin():
    """a comes up, s and b go down at time 0. f waits for a, g not any more; h writes s, while it
    may be read; i need not wait to read b; j is the last one to use s, and k to use a.
    """
    reads = {"e": "", "f": "a", "g": "a", "h": "", "i": "b", "j": "s", "k": "ab", "l": ""}
    ops = {name: {"ns": 1, "inputs": [*read]} for name, read in reads.items()}
    ops["h"]["mutates"] = ["s"]
    tensors = {"a": (5, "parameter", "ddr")} | dict.fromkeys("sb", (5, "buffer", "hbm"))
    moves = ("prefetch a", None), ("store s", None), ("store b", None)
    begins = begin_segments(plan(workload(tensors, ops), *moves), "hbm", ())
    assert [name for name, begun in zip(ops, begins, strict=True) if begun] == list("efhkl")


def test_what_is_in_no_segment():
    """f and g are called by 10; item by 20, which the host reads at its end, 25; h by 35, then u,
    which the workload says is launched alone, by 45, and i and j by 55.

    One op ahead, the call of f, g and h waits for none of them.
    """
    ops = {name: {"ns": 5} for name in ("f", "g", "item", "h", "u", "i", "j")}
    ops["item"]["kind"] = "item"
    graph = replace(workload({}, ops), meta={"launched_alone": ["u", "of another graph"]})
    done = replayed(plan(graph), under(host=10, segments=True, blocks=("item",)))
    assert done.ops == {
        "f": (10, 15),
        "g": (15, 20),
        "item": (20, 25),
        "h": (35, 40),
        "u": (45, 50),
        "i": (55, 60),
        "j": (60, 65),
    }
    few = plan(workload({}, {name: {"ns": 20} for name in "fgh"}))
    assert replayed(few, under(host=10, segments=True, ahead=1)).ops["h"] == (50, 70)


def test_a_gather_waits_until_an_earlier_one_is_used_up():
    """One gather ahead: the second is called when f, which reads the first, has ended at 30, and
    the third when g has at 60.

    Without a limit the three gathers follow one another on their stream, and take room together.
    """
    tensors = {f"w{n}": (30, "activation") for n in range(3)}
    ops = {}
    for n, user in enumerate("fgh"):
        ops[f"gather{n}"] = {"kind": "all_gather", "ns": 10, "outputs": [f"w{n}"], "stream": "comm"}
        ops[user] = {"ns": 20, "inputs": [f"w{n}"]}
    graph = workload(tensors, ops)
    free, limited = (replayed(plan(graph), under(ahead=100, gathers=gathers)) for gathers in (0, 1))
    assert [free.ops[f"gather{n}"] for n in range(3)] == [(0, 10), (10, 20), (20, 30)]
    assert [limited.ops[f"gather{n}"] for n in range(3)] == [(0, 10), (30, 40), (60, 70)]
    assert (free.result.peak_bytes["hbm"], limited.result.peak_bytes["hbm"]) == (90, 30)


def test_copies_down_of_activations_are_so_many_at_most():
    """f, g, h and i take 10 ns each, and make 30 bytes that are stored, but for i.

    Without a limit h ends at 30 when the first store does not yet (10 to 40), and i runs until 40:
    90 bytes at once. One store under way: at g's end, at 20, the host waits until the first one has
    ended at 40; that of g runs from 40 to 70, and h from 40 to 50. Then i waits until 70. The state
    s is stored beside them from 50 on, after the store of h was called, and nobody waits for it.
    """
    tensors = dict.fromkeys(("a", "b", "c"), (30, "activation"))
    graph = workload(
        {**tensors, "s": (10, "optimizer_state", "hbm")},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 10, "outputs": ["b"]},
            "h": {"ns": 10, "outputs": ["c"], "inputs": ["s"]},
            "i": {"ns": 10},
            "j": {"ns": 10, "inputs": ["a", "b", "c"]},
        },
    )
    moves = [("store a", "f"), ("store b", "g"), ("store c", "h"), ("store s", "h")]
    free, limited = (
        replayed(plan(graph, *moves), under(host=0, ahead=100, stores=n)) for n in (0, 1)
    )
    assert free.ops["i"] == (30, 40)
    assert limited.ops == {"f": (0, 10), "g": (10, 20), "h": (40, 50), "i": (70, 80), "j": (80, 90)}
    assert limited.stalls == {"runtime": 20 + 20}


def test_pinning_takes_the_host_a_constant_and_its_bytes():
    """Pinning a takes 5 ns and 20 at 2 bytes a nanosecond: its prefetch is issued at 15 and flows
    until 35; f, called at once, waits.

    That of b, 10 bytes, stands after f: the host has pinned it at 15 + 10 = 25, and f ends at 40. g
    is called at 25.
    """
    graph = workload(
        {"a": (20, "parameter", "ddr"), "b": (10, "parameter", "ddr")},
        {"f": {"ns": 5, "inputs": ["a"]}, "g": {"ns": 5, "inputs": ["b"]}},
    )
    moves = [("prefetch a", None), ("prefetch b", "f"), ("detach a", "f"), ("detach b", "g")]
    done = replayed(plan(graph, *moves), under(pins=("prefetch",), pin=5, pin_rate=2 * 10**9))
    assert done.moves == [("prefetch", "a", 15, 15, 35), ("prefetch", "b", 40, 40, 50)]
    assert done.ops == {"f": (35, 40), "g": (50, 55)}
    assert done.stalls == {"runtime": 15, "transfer": 20 + 10}
    once = under(pins=("prefetch",), pins_once=True, pin=5, pin_rate=2 * 10**9)
    repeated = replayed(plan(graph, *moves), once)
    assert repeated.moves == [("prefetch", "a", 0, 0, 20), ("prefetch", "b", 25, 25, 35)]
    assert repeated.stalls == {"transfer": 20 + 10}
    (line,) = [line for line in repeated.result.notes if line.startswith("pinning: ")]
    assert "25 ns, 30 B" in facts(line)


def test_a_host_that_waits_finds_freed_memory_in_program_order():
    """Each gathered tensor is used on another stream, so that its block is free once its user has
    ended.

    A host without end allocates all three before that: 90 bytes. One that is a gather ahead
    allocates w1 when f has ended at 30, and w2 when g has at 60: 30 bytes.
    """
    tensors = {f"w{n}": (30, "activation") for n in range(3)}
    ops = {}
    for n, user in enumerate("fgh"):
        ops[f"gather{n}"] = {"kind": "all_gather", "ns": 10, "outputs": [f"w{n}"], "stream": "comm"}
        ops[user] = {"ns": 20, "inputs": [f"w{n}"]}
    the_plan = plan(workload(tensors, ops))
    told = [
        replay(the_plan, hardware, account="program").allocator.peak_reserved_bytes
        for hardware in (machine(), under(ahead=100), under(gathers=1), under(blocks=("any",)))
    ]
    assert told == [90, 90, 30, 30]


def test_a_setting_that_names_no_op_of_the_workload_is_told():
    """No op gathers, and none is an item; the copies that it also waits for are named by no op."""
    the_plan = plan(workload({}, {"f": {"ns": 5}}))
    notes = replayed(the_plan, under(gathers=2, blocks=("prefetch", "item"))).result.notes
    gathers, blocks = [
        note for note in notes if note.startswith("runtime: ") and " of by hand" in note
    ]
    assert gathers.endswith("all_gather or all_gather_into_tensor")
    assert "item" in blocks
    assert "prefetch" not in blocks
