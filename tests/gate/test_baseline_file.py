"""Baseline files: sorted text that says what was measured, the same from the same, and read back whole."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import machine, offloading, put, step, suite

from hosim.errors import InputError
from hosim.gate import baselines
from hosim.gate.checking import write
from hosim.gate.measure import measure
from hosim.gate.record import Item, Listing, Record
from hosim.result import SEMANTICS


@pytest.fixture
def record(tmp_path: Path) -> Record:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    made = measure(suite(tmp_path, offloads=True).cases[0]).record
    assert made is not None
    return made


def test_it_is_read_back_whole(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    assert baselines.save(record, path)
    again = baselines.load(path)
    assert baselines.to_text(again) == baselines.to_text(record)
    assert set(again.peaks["hbm"].residents.items) == set(record.peaks["hbm"].residents.items)
    assert any(item.until for item in again.peaks["hbm"].residents.items)
    assert not baselines.save(record, path)  # nothing changed


def test_it_says_what_the_replay_says(record: Record) -> None:
    hbm = record.peaks["hbm"]
    assert record.metrics["peak.hbm"] == sum(hbm.composition.values()) == sum(item.value for item in hbm.residents.items)
    assert [item.name for item in hbm.away.items] == ["layers.0.act"]
    assert max(record.curve) == record.metrics["peak.hbm"]
    assert {item.name: item.value for item in record.moved["h2d"].items} == {"layers.0.act": 30}


def test_strange_names_survive(record: Record, tmp_path: Path) -> None:
    names = ['a "b"', "a {until} b", "{0-3}", "{{", "x\ty\x7f", "é.3", " since ", "", "007.7"]
    items = tuple(Item("activation", name, 8, "op.7", "op.8") for name in names)
    strange = replace(record, peaks={'h"b.m': replace(record.peaks["hbm"], residents=Listing(items), op="\\")})
    baselines.save(strange, tmp_path / "x.toml")
    again = baselines.load(tmp_path / "x.toml")
    assert set(again.peaks['h"b.m'].residents.items) == set(items)


def test_long_lists_are_cut_to_the_largest_and_their_sum_is_kept(record: Record, tmp_path: Path) -> None:
    items = tuple(Item("matmul", f"{chr(97 + i // 26)}{chr(97 + i % 26)}", 10 + i) for i in range(baselines.LINES + 40))
    baselines.save(replace(record, durations=Listing(items)), tmp_path / "x.toml")
    kept = baselines.load(tmp_path / "x.toml").durations
    assert set(kept.items) == set(items[40:])
    assert (kept.others, kept.others_value) == (40, sum(item.value for item in items[:40]))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('format = "hosim.baseline/1"', 'format = "hosim.baseline/9"', "newer hosim"),
        ('format = "hosim.baseline/1"', "", "begins with format"),
        (f"semantics = {SEMANTICS}", "semantics = -1", "expected at least 0"),
        ("[machine]", "[machines]", "unknown key 'machines'; did you mean 'machine'"),
        ('"activation 17 ', '"activation x ', "expected a label, a whole number and a name"),
        ("[machine]", "[machine", "broken TOML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(record: Record, tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "x.toml"
    text = baselines.to_text(record).replace("activation 30 ", "activation 17 ")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=expected) as raised:
        baselines.load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    code = (
        "import sys; from pathlib import Path; from gate_toys import suite; from hosim.gate.checking import write; "
        "write(suite(Path(sys.argv[1]), offloads=False))"
    )
    contents = set()
    for seed in ("0", "1", "random"):
        here = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=here, timeout=600)
        path = suite(tmp_path, offloads=False).baseline("step")
        contents.add(path.read_bytes())
        path.unlink()
    write(suite(tmp_path, offloads=False))
    contents.add(path.read_bytes())
    assert len(contents) == 1
