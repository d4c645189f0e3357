"""Exports of Nsight Systems: what is read from tables in the published schema, and what is said of
others.

No real export was at hand: `make_nsys` writes them, from recordings of PyTorch's profiler and by
hand.
"""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from make_nsys import Export

from hosim.errors import InputError
from hosim.formats import is_nsys
from hosim.formats.nsight import plain_tables, read_nsys
from hosim.io.importers.recordings import (
    DeviceInfo,
    DeviceOp,
    HostCall,
    SyncRecord,
    parse_kineto,
    read_kineto,
)
from hosim.validate import Measurements, calibrate, validate
from hosim.validate.recorded_steps import structural_replay, structure
from hosim.validate.snapshots import replay_memory


def kernel(start, end, correlation=1, stream=7, device=0, name="gemm"):
    return DeviceOp(
        "kernel", name, device, stream, start, end, correlation, grid=(4, 1, 1), block=(128, 1, 1)
    )


def call(name, start, end, correlation, thread="55"):
    return HostCall(name, "other", thread, start, end, correlation)


def comparable(trace):
    """What an export can hold of a record."""
    calls = sorted(
        (c.start_ns, -c.end_ns, c.name, c.role, int(c.thread) & 0xFFFFFF, c.correlation)
        for c in trace.calls
    )
    return sorted(map(op_of(trace), trace.ops)), calls


def op_of(trace):
    def described(op):
        launch = trace.calls[op.call].correlation if op.call is not None else None
        name = op.name if op.kind == "kernel" else ""
        size = None if op.kind == "kernel" else op.size_bytes or 0
        return (
            op.kind,
            op.start_ns,
            op.end_ns,
            op.device,
            op.stream,
            op.correlation,
            launch,
            name,
            size,
            op.direction,
            op.source,
            op.target,
        )

    return described


@pytest.mark.parametrize(
    "name", ["alexnet", "h100_vit_falconsai", "event_sync_multi_stream", "triton_tiny"]
)
def test_a_recording_comes_back_from_an_export(shared, tmp_path, name):
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    trace = read_kineto(path)
    first = min(entry.start_ns for entries in (trace.ops, trace.calls) for entry in entries)
    back = read_nsys(Export(tmp_path / f"{name}.sqlite").trace(trace).close())
    assert back.origin_ns == first
    moved = replace(
        trace,
        ops=tuple(
            replace(op, start_ns=op.start_ns - first, end_ns=op.end_ns - first) for op in trace.ops
        ),
        calls=tuple(
            replace(c, start_ns=c.start_ns - first, end_ns=c.end_ns - first) for c in trace.calls
        ),
    )
    assert comparable(back) == comparable(moved)
    assert back.devices == trace.devices
    assert back.cpu_ops == ()


def test_the_replay_of_an_export_is_that_of_the_recording(shared, tmp_path):
    path = shared / "data" / "traces" / "event_sync_multi_stream.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    trace = read_kineto(path)
    there, back = (
        structural_replay(structure(t))
        for t in (trace, read_nsys(Export(tmp_path / "x.sqlite").trace(trace).close()))
    )
    assert (back.simulated_ns, back.measured_ns, back.stream_waits) == (
        there.simulated_ns,
        there.measured_ns,
        there.stream_waits,
    )


def test_waits_find_the_record_of_their_event(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    for op in (kernel(10, 50, 1), kernel(60, 90, 4, stream=8)):
        export.op(op)
    for made in (
        call("cudaLaunchKernel", 1, 3, 1),
        call("cudaEventRecord", 4, 5, 2),
        call("cudaStreamWaitEvent", 6, 7, 3),
        call("cudaLaunchKernel", 8, 9, 4),
        call("cudaEventRecord", 10, 11, 5),
        call("cudaStreamSynchronize", 12, 95, 6),
        call("cudaDeviceSynchronize", 96, 97, 7),
        call("cudaEventSynchronize", 98, 99, 8),
    ):
        export.call(made)
    export.record(2, 7, event=1)
    export.record(5, 8, event=1)
    export.sync("wait", 6, 7, 3, stream=8, event=1)
    export.sync("stream_sync", 12, 95, 6, stream=8)
    export.sync("device_sync", 96, 97, 7)
    export.sync("event_sync", 98, 99, 8, event=1)
    trace = read_nsys(export.close())
    assert [(s.name, s.stream, s.on_stream, s.record) for s in trace.syncs] == [
        ("Stream Wait Event", 8, 7, 2),  # the last record of the event before the wait
        ("Stream Sync", 8, None, None),
        ("Context Sync", None, None, None),
        ("Event Sync", None, 8, 5),
    ]
    assert [c.role for c in trace.calls] == [
        "launch",
        "record",
        "wait",
        "launch",
        "record",
        "stream_sync",
        "device_sync",
        "event_sync",
    ]
    assert trace.calls[0].name == "cudaLaunchKernel"
    assert structural_replay(structure(trace)).stream_waits == 1


def test_waits_whose_events_are_not_listed_are_left_to_be_inferred(tmp_path):
    export = Export(tmp_path / "x.sqlite", drop=("CUPTI_ACTIVITY_KIND_CUDA_EVENT",))
    export.op(kernel(10, 50))
    export.sync("stream_sync", 12, 95, 6, stream=8)
    export.db.commit()
    assert len(read_nsys(tmp_path / "x.sqlite").syncs) == 1
    export.sync("wait", 6, 7, 3, stream=8, event=1)
    assert read_nsys(export.close()).syncs == ()


def test_memory_of_the_driver_is_replayed_from_nothing(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    export.op(kernel(100, 200))
    export.memory(90, 4096, 1000)
    export.memory(95, 8192, 500, kind="pinned")
    export.memory(120, 16384, 3000)
    export.memory(130, 4096, -1000)
    trace = read_nsys(export.close())
    assert [(e.device_type, e.size_bytes, e.time_ns) for e in trace.memory] == [
        (1, 1000, 0),
        (0, 500, 5),
        (1, 3000, 30),
        (1, -1000, 40),
    ]
    replay = replay_memory(trace)
    assert list(replay.simulated_bytes) == [1000, 4000, 3000]
    assert replay.measured_peak_bytes is None


def test_copies_say_direction_and_kind_of_memory(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    rows = [
        (1, 0, 2),
        (2, 2, 1),
        (8, 2, 2),
        (10, 2, 2),
        (11, 4, 4),
        (12, 4, 4),
        (1, None, None),
        (0, 1, 2),
        (99, None, None),
    ]
    for i, (kind, source, target) in enumerate(rows):
        values = {
            "start": i,
            "end": i + 1,
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
            "correlationId": i,
            "globalPid": export.process,
        }
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **values,
            bytes=64,
            copyKind=kind,
            srcKind=source,
            dstKind=target,
        )
    trace = read_nsys(export.close())
    assert [(op.direction, op.source, op.target) for op in trace.ops] == [
        ("h2d", "pageable", "device"),
        ("d2h", "device", "pinned"),
        ("d2d", "device", "device"),
        ("d2d", "device", "device"),
        ("h2d", "managed", "device"),
        ("d2h", "device", "managed"),
        ("h2d", "host", "device"),
        ("h2d", "pinned", "device"),
        ("h2h", "unknown", "unknown"),
    ]
    assert trace.ops[0].name == "Memcpy HtoD (Pageable -> Device)"
    assert [op.name for op in trace.ops if op.migration] == [
        "Migration of managed memory, HtoD (Managed -> Device)",
        "Migration of managed memory, DtoH (Device -> Managed)",
    ]


def test_migrations_by_page_faults_are_named_and_fit_no_channel(tmp_path):
    """Nobody launches them: a recording is not said to begin late because of them, and a profile
    gets no channel of them.
    """
    export = Export(tmp_path / "x.sqlite")
    moves = {
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "globalPid": export.process,
        "bytes": 1 << 20,
        "srcKind": 4,
        "dstKind": 4,
    }
    for at in range(1, 21):
        export.call(call("cudaLaunchKernel", 1000 * at, 1000 * at + 3, at))
        export.op(kernel(1000 * at + 10, 1000 * at + 200, at))
        start = 1000 * at + 90_000
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **moves,
            start=start,
            end=start + 500,
            correlationId=0,
            copyKind=11 + at % 2,
        )
    for at, size in ((1, 1 << 20), (2, 1 << 21)):
        times = {"start": 30_000 * at, "end": 30_000 * at + size // 100, "correlationId": 100 + at}
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **{**moves, **times, "bytes": size, "copyKind": 1, "srcKind": 1, "dstKind": 2},
        )
    trace = read_nsys(export.close())
    verdict = validate(tmp_path / "x.sqlite").verdict
    causes = [span.cause for span in verdict.spans]
    assert any("page faults" in cause for cause in causes)
    fitted = calibrate(Measurements((trace,), ()))
    assert list(fitted.ways) == [("h2d", "pinned")]
    assert any(line.startswith("channels: 20 migrations") for line in fitted.missing)


def test_every_field_of_an_export(tmp_path):
    export = Export(tmp_path / "x.sqlite", version="_v3020_ptsz")
    at = {"deviceId": 1, "contextId": 1, "streamId": 7, "globalPid": export.process}
    long, short = export.string("void gemm<float>(int)"), export.string("gemm")
    extents = {"gridX": 1, "gridY": 2, "gridZ": 3, "blockX": 4, "blockY": 5, "blockZ": 6}
    room = {"registersPerThread": 32, "staticSharedMemory": 100, "dynamicSharedMemory": 11}
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    export.add(
        table,
        **at,
        start=1010,
        end=1020,
        correlationId=1,
        demangledName=long,
        shortName=short,
        **extents,
        **room,
    )
    export.add(
        table,
        **at,
        start=1010,
        end=1030,
        correlationId=None,
        demangledName=99,
        shortName=short,
        **extents,
        **room,
    )
    export.add(
        table,
        **at,
        start=1040,
        end=1040,
        correlationId=9,
        demangledName=98,
        shortName=99,
        **extents,
        **room,
    )
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        **at,
        start=1050,
        end=1051,
        correlationId=2,
        value=0,
        bytes=64,
        memKind=2,
    )
    export.call(call("cudaLaunchKernel", 1003, 1005, 1, thread=str((1 << 24) - 1)))
    export.call(call("cudaMemsetAsync", 1003, 1009, 2))
    values = {
        "start": 1001,
        "end": 1002,
        "correlationId": None,
        "nameId": 77,
        "globalTid": None,
        "eventClass": 0,
        "returnValue": 0,
    }
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", **values)
    export.sync("stream_sync", 1000, 1001, 5, stream=8)
    export.db.execute("UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET syncType = 9, streamId = -1")
    gpu = {"vmId": 0, "totalMemory": 80, "smCount": 4, "maxWarpsPerSm": 64, "threadsPerWarp": 32}
    export.add(
        "TARGET_INFO_GPU", id=0, name="A", cuDevice=1, maxRegistersPerSm=5, maxShmemPerSm=6, **gpu
    )
    export.add(
        "TARGET_INFO_GPU",
        id=3,
        name="B",
        cuDevice=None,
        maxRegistersPerSm=None,
        maxShmemPerSm=None,
        **gpu | {"maxWarpsPerSm": None},
    )
    export.add("TARGET_INFO_GPU", id=4, name=None, cuDevice=None, **gpu)
    trace = read_nsys(export.close())
    shape = {"grid": (1, 2, 3), "block": (4, 5, 6), "registers": 32, "shared_bytes": 111}
    assert trace.ops == (
        DeviceOp("kernel", "gemm", 1, 7, 10, 30, None, None, **shape),  # the longer one first
        DeviceOp("kernel", "void gemm<float>(int)", 1, 7, 10, 20, 1, 1, **shape),
        DeviceOp("kernel", "kernel", 1, 7, 40, 40, 9, None, **shape),
        DeviceOp("memset", "Memset", 1, 7, 50, 51, 2, 0, 64),
    )
    assert trace.calls == (
        HostCall("cudaMemsetAsync", "memset", "55", 3, 9, 2),
        HostCall("cudaLaunchKernel", "launch", str((1 << 24) - 1), 3, 5, 1),
    )
    assert trace.syncs == (SyncRecord("Sync", 0, None, 0, 1, 5, None, None),)
    assert trace.devices == {
        1: DeviceInfo("A", 80, 4, 2048, 5, 6),
        3: DeviceInfo("B", 80, 4, None, None, None),
    }
    assert (trace.name, trace.origin_ns, trace.memory, trace.annotations) == ("x", 1000, (), ())


def test_a_wait_finds_a_record_by_its_number_or_by_order(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    export.op(kernel(10, 50, 1))
    for correlation, stream, number in ((5, 8, 52), (2, 7, 51), (9, 9, 53)):
        export.record(correlation, stream, event=1, number=number)
    for i, (correlation, number) in enumerate(
        [(6, None), (6, 53), (6, 99), (2, None), (None, None), (5, 51)]
    ):
        export.sync("wait", i, i + 1, correlation, stream=20, event=1, number=number)
    export.sync("wait", 8, 9, 6, stream=20, event=2)  # of this event no record is listed
    trace = read_nsys(export.close())
    # by order: the last record before the wait; a wait without a number of its own comes after all
    assert [(s.record, s.on_stream) for s in trace.syncs] == [
        (5, 8),
        (9, 9),
        (5, 8),
        (None, None),
        (9, 9),
        (2, 7),
        (None, None),
    ]


def test_of_several_processes_it_is_the_busiest(tmp_path):
    export = Export(tmp_path / "x.sqlite", pid=1)
    export.op(kernel(10, 20, 1, name="once"))
    export.call(call("cudaLaunchKernel", 1, 2, 1))
    export.process = 2 << 24
    for i in range(3):
        export.op(kernel(30 + i, 31 + i, i, name="often"))
        export.call(call("cudaLaunchKernel", 3, 4, i, thread="77"))
    trace = read_nsys(export.close())
    assert {op.name for op in trace.ops} == {"often"}
    assert {c.thread for c in trace.calls} == {"77"}


def test_ranges_become_annotations(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    export.op(kernel(100, 200))
    step = export.string("step")
    thread = export.process | 5
    export.add("NVTX_EVENTS", start=50, end=250, eventType=59, text="outer", globalTid=thread)
    export.add("NVTX_EVENTS", start=60, end=200, eventType=60, textId=step, globalTid=thread)
    export.add("NVTX_EVENTS", start=70, end=None, eventType=34, text="a mark", globalTid=thread)
    trace = read_nsys(export.close())
    assert [(a.name, a.thread, a.start_ns, a.end_ns) for a in trace.annotations] == [
        ("outer", "5", 0, 200),
        ("step", "5", 10, 150),
    ]


def test_the_recorded_step_of_the_profiler_reads_the_same(tmp_path):
    from kineto_toys import step

    trace = parse_kineto(step(), "toy")
    assert is_nsys(Export(tmp_path / "x.sqlite").trace(trace).close().read_bytes())
    back = read_nsys(tmp_path / "x.sqlite")
    assert [op.call for op in back.ops] == [op.call for op in trace.ops]


def write(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


STRINGS = "CREATE TABLE StringIds (id INTEGER, value TEXT)"
KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId)"


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            ["CREATE TABLE other (x INTEGER)"],
            "expected the table StringIds; write it with: nsys export",
        ),
        ([STRINGS], "no kernel, copy or memset of a device was recorded"),
        (
            [STRINGS, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)"],
            "CUPTI_ACTIVITY_KIND_KERNEL: expected the column deviceId",
        ),
        (
            [STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 'late', 0, 7)"],
            "expected a whole number, got 'late'",
        ),
        (
            [STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (9, 1, 0, 7)"],
            "expected an end after the start",
        ),
        (
            [STRINGS, KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (NULL, 1, 0, 7)"],
            "expected a whole number, got 'None'",
        ),
    ],
)
def test_other_databases_are_refused_in_one_line(tmp_path, statements, message):
    path = write(tmp_path / "x.sqlite", *statements)
    with pytest.raises(InputError, match=message) as caught:
        read_nsys(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_damaged_and_missing_files_are_refused_in_one_line(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    for i in range(200):
        export.op(kernel(i, i + 1, i, name=f"kernel {i}"))
    data = export.close().read_bytes()
    for name, content in {
        "cut": data[: len(data) // 2],
        "text": b"hello",
        "empty": b"",
        "noise": data[:100] + bytes(5000),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: "):
            read_nsys(tmp_path / name)
    with pytest.raises(InputError, match=r"nowhere: no such file$"):
        read_nsys(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_an_error_of_sqlite_whose_text_is_no_unicode_is_one_of_the_file(tmp_path):
    path = write(tmp_path / "x.sqlite", STRINGS, "CREATE TABLE OTHER (a)")
    data = path.read_bytes()
    named = data.replace(b"tableOTHEROTHER", b"tableOTH\xff\xfeOTH\xff\xfe")
    damaged = named.replace(b"CREATE TABLE OTHER", b"CREATE TABEL OTHER")
    assert len({data, named, damaged}) == 3
    path.write_bytes(damaged)
    with pytest.raises(InputError) as refused:
        read_nsys(path)
    assert (
        str(refused.value)
        == f"{path}: cannot be read as an SQLite export of Nsight Systems: damaged: its text is "
        "not UTF-8"
    )


def test_the_export_is_not_changed(tmp_path):
    export = Export(tmp_path / "x.sqlite")
    export.op(kernel(1, 2))
    before = export.close().read_bytes()
    read_nsys(tmp_path / "x.sqlite")
    assert (tmp_path / "x.sqlite").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"x.sqlite"}


def tables(path, *statements):
    """A small export, after these statements."""
    export = Export(path)
    export.op(kernel(0, 5))
    export.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


COUNTING = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000000) "
    "SELECT x AS id, x AS value FROM c"
)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (
            ("DROP TABLE StringIds", f"CREATE VIEW StringIds AS {COUNTING}"),
            "StringIds: expected a plain table, got a view",
        ),
        (
            ("DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts5(id, value)"),
            "StringIds: expected a plain table",
        ),
        (
            ("ALTER TABLE StringIds ADD COLUMN more AS (hex(zeroblob(99999999)))",),
            "StringIds: expected stored columns",
        ),
        (
            ("CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",),
            "StringIds: .* got a trigger",
        ),
        (
            ("DROP TABLE StringIds", "CREATE TABLE stringids (id, value)"),
            "StringIds: expected a plain table",
        ),
    ],
)
def test_what_is_computed_when_it_is_read_is_refused(tmp_path, statements, expected):
    path = tables(tmp_path / "a.sqlite", *statements)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"a.sqlite: {expected}"):
        read_nsys(path)
    assert path.read_bytes() == before


def test_what_is_not_read_may_be_computed(tmp_path):
    path = tables(
        tmp_path / "a.sqlite",
        f"CREATE VIEW other AS {COUNTING}",
        "CREATE INDEX i ON StringIds(value)",
    )
    assert read_nsys(path).ops


def test_a_file_that_takes_too_many_steps(tmp_path, monkeypatch):
    path = tables(tmp_path / "a.sqlite", "INSERT INTO StringIds SELECT id, value FROM StringIds "
        "LEFT JOIN (WITH RECURSIVE c(x) AS "
                  "(SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9999) SELECT x FROM c)")  # fmt: skip
    assert read_nsys(path).ops
    monkeypatch.setattr("hosim.formats.nsight.sqlite_tables._STEPS", 0)
    monkeypatch.setattr("hosim.formats.nsight.sqlite_tables._STEPS_A_BYTE", 0)
    with pytest.raises(InputError, match="takes more steps to read than its size explains"):
        read_nsys(path)


def test_only_the_named_tables_can_be_had(tmp_path):
    path = tables(tmp_path / "a.sqlite", "CREATE TABLE other (a)")
    with plain_tables(path, ["StringIds"]) as (connection, columns):
        assert columns == {"StringIds": {"id", "value"}}
        for statement in (
            "SELECT a FROM other",
            "ATTACH 'b' AS b",
            "SELECT load_extension('x')",
            "PRAGMA writable_schema = ON",
            "VACUUM",
        ):
            with pytest.raises(sqlite3.DatabaseError):
                connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            "records=300",
            r"x\.sqlite: CUPTI_ACTIVITY_KIND_KERNEL: expected at most 300 records, got more; "
            r'HOSIM_LIMITS="records=600"',
        ),
        (
            "unpacked_bytes=1000",
            r"x\.sqlite: StringIds: expected at most 1kB after unpacking, got more",
        ),
        ("database_bytes=8KiB", r"x\.sqlite: expected at most 8KiB in a database, got \S+; "),
    ],
)
def test_more_rows_or_text_than_allowed(tmp_path, monkeypatch, limits, message):
    """200 kernels with names of their own are 400 rows, and names of 6 to 10 bytes."""
    export = Export(tmp_path / "x.sqlite")
    for i in range(200):
        export.op(kernel(i, i + 1, i, name=f"kernel {i}"))
    export.close()
    assert len(read_nsys(tmp_path / "x.sqlite").ops) == 200
    monkeypatch.setenv("HOSIM_LIMITS", limits)
    with pytest.raises(InputError, match=message):
        read_nsys(tmp_path / "x.sqlite")
