"""Baseline files: sorted text that says what was measured, the same from the same, and read back
whole.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gate_toys import machine, offloading, put, step, suite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosim.errors import InputError
from hosim.gate import measure, write
from hosim.gate.records import (
    LINES,
    Item,
    Listing,
    Measured,
    PeakRecord,
    Record,
    brief,
    graph_record,
    read_matrix,
    read_record,
    record_text,
    save_matrix,
    save_record,
    source_digest,
)
from hosim.graph import Graph, Op, Tensor
from hosim.result import SEMANTICS


@pytest.fixture
def record(tmp_path: Path) -> Record:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    made = measure(suite(tmp_path, offloads=True).cases[0]).record
    assert made is not None
    return made


def test_it_is_read_back_whole(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    assert save_record(record, path)
    again = read_record(path)
    assert record_text(again) == record_text(record)
    assert set(again.peaks["hbm"].residents.items) == set(record.peaks["hbm"].residents.items)
    assert any(item.until for item in again.peaks["hbm"].residents.items)
    assert not save_record(record, path)  # nothing changed


TEXT = """\
# Written by hosim: what one simulated step needs. Review a change of it like code; 'hosim baseline update' writes it again.
format = "hosim.baseline/1"
case = "step"
hosim = "0.5"
semantics = 7
machine = "toy-3524ac3c"
budget = "2 kB"
fingerprints = {graph = "0a", plan = "1b"}

[versions]
"planner" = 3

[asked]
"policy" = "a \\"b\\""
"workload" = "w.json"

[metrics]
"makespan" = 1500  # 1.50 us
"moved.h2d" = 0  # 0 B
"peak.hbm" = 2048  # 2.00 KiB

[peaks."ddr"]

[peaks."ddr".composition]

[peaks."hbm"]
op = "l.1.f"

[peaks."hbm".composition]
"activation" = 24  # 24 B
"workspace" = 5  # 5 B

[peaks."hbm".residents]
items = [
  "activation 8 l.{0-1}.a {since} l.{}.f {until} l.{+1}.g",  # 2 x 8 B = 16 B
  "activation 8 z",  # 8 B
  "workspace 5 l.1.f",  # 5 B
]
others = [2, 7]  # 2 more: 7 B

[peaks."hbm".away]
items = [
  "parameter 3 p",  # 3 B
]

[moved."h2d"]
items = [
  "parameter 3 p",  # 3 B
]

[stalls]
items = [
  "transfer 1500 l.0.f",  # 1.50 us
]

[durations]
items = [
  "add 11 x",  # 11 ns
  "matmul 10 l.{0-1}.f",  # 2 x 10 ns = 20 ns
]
"""

MACHINE = f"""\
{TEXT.splitlines()[0]}
format = "hosim.machine/1"

[machine]
"devices" = "1"
"name" = "toy"
"""


def test_its_text_in_full(tmp_path: Path) -> None:
    held = (
        Item("activation", "l.0.a", 8, "l.0.f", "l.1.g"),
        Item("activation", "l.1.a", 8, "l.1.f", "l.2.g"),
        Item("activation", "z", 8),
        Item("workspace", "l.1.f", 5),
    )
    written = Record(
        case="step",
        asked={"workload": "w.json", "policy": 'a "b"'},
        fingerprints={"plan": "1b", "graph": "0a"},
        metrics={"peak.hbm": 2048, "makespan": 1500, "moved.h2d": 0},
        machine={"name": "toy", "devices": "1", "budget": "2 kB"},
        peaks={
            "hbm": PeakRecord(
                "l.1.f",
                {"workspace": 5, "activation": 24},
                Listing(held, 2, 7),
                Listing((Item("parameter", "p", 3),)),
            ),
            "ddr": PeakRecord(None, {}, Listing()),
        },
        moved={"h2d": Listing((Item("parameter", "p", 3),))},
        stalls=Listing((Item("transfer", "l.0.f", 1500),)),
        durations=Listing(
            (Item("add", "x", 11), Item("matmul", "l.0.f", 10), Item("matmul", "l.1.f", 10))
        ),
        curve=(1, 2),
        hosim="0.5",
        versions={"replay": 7, "planner": 3},
    )
    assert record_text(written) == TEXT
    path = tmp_path / "below" / "x.toml"
    assert save_record(written, path)
    assert read_record(path) == replace(written, curve=())
    (kept,) = (path.parent / "machines").iterdir()
    assert (kept.name, kept.read_text()) == ("toy-3524ac3c.toml", MACHINE)
    assert save_record(written, path, curve=True)
    assert read_record(path) == written


def test_a_baseline_of_before_has_its_machine_and_its_curve(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    lines = record_text(record, curve=True).splitlines()
    tables = {"machine": record.machine, "fingerprints": record.fingerprints}
    old = [line for line in lines if line.split(" ")[0] not in (*tables, "budget")]
    for name, values in tables.items():
        old += [f"[{name}]", *(f'"{key}" = "{value}"' for key, value in values.items())]
    path.write_text("\n".join(old))
    again = read_record(path)
    assert (again.machine, again.fingerprints) == (record.machine, record.fingerprints)
    assert again.curve == record.curve


def test_machines_are_kept_once_and_go_with_the_last_baseline(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    cases = suite(tmp_path, offloads=True)
    two = replace(cases, cases=(cases.cases[0], replace(cases.cases[0], name="other")))
    first = write(two)
    assert [path.parent.name for path in first] == ["hosim-baselines"] * 2 + ["machines"]
    put(tmp_path, offloading(step()), machine(h2d=2), offloads=True)
    changed = write(two, ["step"])
    assert len(changed) == 2  # the other baseline still names the first machine
    assert (first[2].is_file(), changed[1].is_file()) == (True, True)
    assert write(two) == [first[1], first[2]]
    assert not first[2].exists()
    changed[1].unlink()
    with pytest.raises(InputError, match=r"machine: there is no .*'hosim baseline update' writes"):
        read_record(cases.baseline("step"))


@pytest.mark.parametrize("name", ["../small", "a/b", "a.toml", "\x00"])
def test_a_machine_is_a_file_of_its_folder(record: Record, tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.toml"
    text = re.sub(
        'machine = "[^"]*"', lambda _: f"machine = {json.dumps(name)}", record_text(record)
    )
    path.write_text(text)
    with pytest.raises(InputError, match="machine: expected"):
        read_record(path)


def test_branches_that_change_one_case_collide_in_one_line(record: Record) -> None:
    """Git merges what differs in lines apart: what both did is only known when it is measured."""
    prints = {key: f"{value[:-1]}x" for key, value in record.fingerprints.items()}
    was, now = (
        record_text(one).splitlines() for one in (record, replace(record, fingerprints=prints))
    )
    assert [now.index(line) for line in now if line not in was] == [7]


WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.sampled_from(["layer norm", "a%20b", " {until} ", "\x00"]),
)
LISTINGS = st.lists(
    st.builds(Item, WORDS, WORDS, st.integers(1, 99), st.just(""), st.just("")), max_size=5
).map(
    lambda items: Listing(
        tuple(sorted(set(items), key=lambda item: (item.label, item.value, item.name)))
    )
)


def graph_of(name: str) -> Graph:
    """An op and a tensor of one name, which it reads twice over."""
    return Graph(
        "g", (Tensor(name, 1, "input"), Tensor(f"{name}1", 1, "input")), (Op(name, name, (0, 1)),)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, LISTINGS, LISTINGS, LISTINGS)
def test_whatever_things_are_called_it_is_read_back(
    record: Record, name: str, held: Listing, moved: Listing, stalls: Listing
) -> None:
    written = replace(
        record,
        metrics={f"peak.{name}": 3, f"moved.{name}": 0},
        machine={name: name},
        peaks={name: PeakRecord(name, {name: 3}, held, moved)},
        moved={name: moved} if moved.items else {},
        stalls=stalls,
        durations=held,
        graph=replace(
            graph_record(graph_of(name))[0], tensors=held, workspaces=moved, times=stalls, others=3
        ),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        save_record(written, path)
        again = read_record(path)
        assert record_text(again) == record_text(written)
        assert set(again.durations.items) == set(held.items)
        assert again.graph.shapes == written.graph.shapes
        assert set(again.graph.tensors.items) == set(held.items)
        assert (again.metrics, again.peaks[name].composition, again.moved.keys()) == (
            written.metrics,
            {name: 3},
            written.moved.keys(),
        )
        save_matrix(
            {f"m/{name}": Measured(replace(record, metrics=written.metrics))},
            path,
            hosim="1",
            versions={"replay": 1},
        )


def test_half_a_character_is_read_back_as_its_number(record: Record, tmp_path: Path) -> None:
    """TOML cannot hold it."""
    save_record(
        replace(record, metrics={f"peak.{chr(0xD800 + k)}": k for k in (1, 2)}), tmp_path / "x.toml"
    )
    assert read_record(tmp_path / "x.toml").metrics == {"peak.\\ud801": 1, "peak.\\ud802": 2}


def test_a_list_is_cut_by_value_then_by_name(tmp_path: Path, record: Record) -> None:
    """Of the last three lines, the names of one value that come first; two of ``b`` are in one
    line. What was left out before is added.
    """
    large = tuple(
        Item("m", f"{chr(97 + i // 26)}{chr(97 + i % 26)}", 100 + i) for i in range(LINES - 3)
    )
    items = tuple(
        Item("m", name, value)
        for name, value in (("c", 5), ("d", 5), ("e", 5), ("b.0", 6), ("b.1", 6), ("a", 1))
    )
    text = record_text(replace(record, durations=Listing((*large, *items), 4, 2)))
    small = [
        line
        for line in text.partition("[durations]\n")[2].partition("\n\n")[0].splitlines()
        if not line.startswith('  "m 1')
    ]
    assert small == [
        "items = [",
        '  "m 6 b.{0-1}",  # 2 x 6 ns = 12 ns',
        '  "m 5 c",  # 5 ns',
        '  "m 5 d",  # 5 ns',
        "]",
        "others = [6, 8]  # 6 more: 8 ns",
    ]


def test_the_lines_of_a_matrix_in_full(tmp_path: Path) -> None:
    prints, metrics = (
        {"graph": "1", "machine": "2", "plan": "3", "source": "4"},
        {"peak.hbm": 2048, "peak.ddr": 0, "makespan": 1500, "moved.h2d": 3},
    )
    one = brief("m/b/x", {}, prints, metrics, hosim="0.5", versions={"replay": 7, "planner": 3})
    path = tmp_path / "m.toml"
    assert save_matrix(
        {"m/b/x": Measured(one), 'm/a "q"': Measured(None, "too large")},
        path,
        hosim="0.5",
        versions={"replay": 7, "planner": 3},
    )
    assert path.read_text() == (
        f"{TEXT.splitlines()[0]}\n"
        'format = "hosim.baselines/1"\nhosim = "0.5"\nsemantics = 7\n\n[versions]\n"planner" = '
        "3\n\n[cases]\n"
        '"a \\"q\\"" = "does not fit"\n'
        '"b/x" = "makespan 1500 moved.h2d 3 peak.hbm 2048 graph 1 machine 2 plan 3 source 4"  # '
        "1.50 us, hbm 2.00 KiB\n"
    )
    again = read_matrix(path, "m")
    assert again == {
        'm/a "q"': Measured(None, "does not fit"),
        "m/b/x": Measured(
            replace(one, metrics={name: value for name, value in metrics.items() if value})
        ),
    }
    path.write_text(path.read_text().replace(" plan 3", ""))
    with pytest.raises(InputError) as refused:
        read_matrix(path, "m")
    assert str(refused.value) == (
        f"{path}: cases.b/x: expected metrics with whole numbers and fingerprints, or 'does not "
        "fit', got 'makespan 1500 moved.h2d 3 "
        "peak.hbm 2048 graph 1 machine 2 source 4'; 'hosim baseline update' writes it again"
    )


def test_a_folder_that_cannot_be_made(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as refused:
        save_record(record, tmp_path / "file" / "below" / "x.toml")
    assert str(refused.value) == f"{tmp_path}/file/below: cannot be created: Not a directory"


def test_it_says_what_the_replay_says(record: Record) -> None:
    hbm = record.peaks["hbm"]
    assert (
        record.metrics["peak.hbm"]
        == sum(hbm.composition.values())
        == sum(item.value for item in hbm.residents.items)
    )
    assert [item.name for item in hbm.away.items] == ["layers.0.act"]
    assert max(record.curve) == record.metrics["peak.hbm"]
    assert {item.name: item.value for item in record.moved["h2d"].items} == {"layers.0.act": 30}


def test_strange_names_survive(record: Record, tmp_path: Path) -> None:
    names = ['a "b"', "a {until} b", "{0-3}", "{{", "x\ty\x7f", "é.3", " since ", "", "007.7"]
    items = tuple(Item("activation", name, 8, "op.7", "op.8") for name in names)
    strange = replace(
        record, peaks={'h"b.m': replace(record.peaks["hbm"], residents=Listing(items), op="\\")}
    )
    save_record(strange, tmp_path / "x.toml")
    again = read_record(tmp_path / "x.toml")
    assert set(again.peaks['h"b.m'].residents.items) == set(items)


def test_long_lists_are_cut_to_the_largest_and_their_sum_is_kept(
    record: Record, tmp_path: Path
) -> None:
    items = tuple(
        Item("matmul", f"{chr(97 + i // 26)}{chr(97 + i % 26)}", 10 + i) for i in range(LINES + 40)
    )
    save_record(replace(record, durations=Listing(items)), tmp_path / "x.toml")
    kept = read_record(tmp_path / "x.toml").durations
    assert set(kept.items) == set(items[40:])
    assert (kept.others, kept.others_value) == (40, sum(item.value for item in items[:40]))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('format = "hosim.baseline/1"', 'format = "hosim.baseline/9"', "newer hosim"),
        ('format = "hosim.baseline/1"', "", "begins with format"),
        (f"semantics = {SEMANTICS}", "semantics = -1", "expected at least 0"),
        ("machine = ", "machines = ", "unknown key 'machines'; did you mean 'machine'"),
        ('"activation 17 ', '"activation x ', "expected a label, a whole number and a name"),
        ("[asked]", "[asked", "broken TOML"),
        (
            "[asked]",
            "<<<<<<< HEAD\n[asked]",
            "line [0-9]+: a merge conflict: .*'hosim baseline update'",
        ),
        ('  "4 matmul ', '  "x matmul ', r"graph\.shapes.*expected a whole number and an op"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    record: Record, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = tmp_path / "x.toml"
    save_record(record, path)
    text = record_text(record).replace("activation 30 ", "activation 17 ")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=expected) as raised:
        read_record(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_digest_of_a_folder_is_of_names_and_contents(tmp_path: Path) -> None:
    """128 bits: of the text before it, then of each file in order its name and its own digest."""
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "z").write_bytes(b"first")
    (folder / "b").write_bytes(b"second")
    files = ((b"model/a/z", b"first"), (b"model/b", b"second"))
    parts = [b"\0" + name + b"\0" + hashlib.sha256(held).digest() for name, held in files]
    assert source_digest(folder, "x") == hashlib.sha256(b"x" + b"".join(parts)).hexdigest()[:32]


def test_it_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    code = (
        "import sys; from pathlib import Path; from gate_toys import suite; from "
        "hosim.gate.checking import write; "
        "write(suite(Path(sys.argv[1]), offloads=False))"
    )
    contents = set()
    for seed in ("1", "2"):
        here = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        }
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, env=here, timeout=600
        )
        path = suite(tmp_path, offloads=False).baseline("step")
        contents.add(path.read_bytes())
        path.unlink()
    write(suite(tmp_path, offloads=False))
    contents.add(path.read_bytes())
    assert len(contents) == 1
