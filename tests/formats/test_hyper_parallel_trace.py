"""Activation traces of hyper-parallel: what a storage becomes, and one clear line for each kind of
damage.
"""

import json
from math import nextafter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosim.analysis import static_peak
from hosim.errors import HosimError, InputError
from hosim.graph import Graph
from hosim.io import load_any


def op(
    i: int, reads: list[int], writes: list[int], ms: float = 0.5, name: str = "mm.default"
) -> dict[str, Any]:
    accesses = [
        {"op_id": i, "storage_id": s, "kind": kind}
        for kind, sids in (("READ", reads), ("WRITE", writes))
        for s in sids
    ]
    return {"name": name, "duration_ms": ms, "accesses": accesses}


GOOD: dict[str, Any] = {
    "ops": [
        op(0, [], [3]),
        op(1, [3], [4], 1.25, "relu_.default"),
        op(2, [4], [3]),
        op(3, [9], [5]),
        op(4, [3, 5], [5]),
    ],
    "storage_sizes": {"3": 40, "4": 8, "5": 16, "9": 100, "77": 1000},
    "retained_sids": [5],
    "memory_limit_bytes": 50,
    "d2h_bandwidth_gbps": 8.0,
    "h2d_bandwidth_gbps": 16.0,
}


def read(folder: Path, document: Any) -> Graph:
    (folder / "trace.json").write_text(
        document if isinstance(document, str) else json.dumps(document)
    )
    return load_any(folder / "trace.json")


def test_storages_are_tensors(tmp_path: Path) -> None:
    graph = read(tmp_path, GOOD)
    assert graph.name == "trace"
    assert [(t.name, t.size_bytes, t.kind, t.persistent) for t in graph.tensors] == [
        ("storage3", 40, "activation", False),
        ("storage4", 8, "activation", False),
        ("storage9", 100, "input", False),  # read before anything wrote it
        ("storage5", 16, "output", False),  # still referenced at the end
    ]
    # a later write works in place; storage 77 is never accessed
    assert [(o.inputs, o.outputs, o.mutates) for o in graph.ops] == [
        ((), (0,), ()),
        ((0,), (1,), ()),
        ((1,), (), (0,)),
        ((2,), (3,), ()),
        ((0,), (), (3,)),
    ]
    assert [(o.name, o.kind, o.duration_ns) for o in graph.ops[:2]] == [
        ("mm.default.0", "matmul", 500_000),
        ("relu_.default.1", "elementwise", 1_250_000),
    ]
    assert static_peak(graph).bytes == 156
    assert graph.meta["h2d_bytes_per_s"] == 16 * 2**30


def test_only_ops_and_sizes_are_needed(tmp_path: Path) -> None:
    document = {key: GOOD[key] for key in ("ops", "storage_sizes")} | {"retained_sids": []}
    assert [t.kind for t in read(tmp_path, document).tensors] == [
        "activation",
        "activation",
        "input",
        "activation",
    ]


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(GOOD))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (changed("ops", value=[]), "ops: expected a list of at least one op"),
        (changed("ops", 1, value=3), "ops[1]: expected an object"),
        (changed("ops", 1, "name", value=""), "ops[1].name: expected a name"),
        (
            changed("ops", 1, "duration_ms", value=-1),
            "ops[1].duration_ms: expected milliseconds of at least 0",
        ),
        (changed("ops", 1, "duration_ms", value=True), "ops[1].duration_ms: expected milliseconds"),
        (
            changed("ops", 1, "duration_ms", value=10**400),
            "ops[1].duration_ms: expected milliseconds",
        ),
        (
            changed("ops", 1, "duration_ms", value=2**60 / 10**6),
            "ops[1].duration_ms: expected milliseconds",
        ),
        (json.dumps(GOOD).replace("1.25", "NaN"), "ops[1].duration_ms: expected milliseconds"),
        (changed("ops", 1, "accesses", value={}), "ops[1].accesses: expected a list of accesses"),
        (changed("ops", 1, "accesses", 0, value="x"), "ops[1].accesses[0]: expected an object"),
        (
            changed("ops", 1, "accesses", 0, "op_id", value=2),
            "ops[1].accesses[0].op_id: expected the number of its op, 1, got 2",
        ),
        (
            changed("ops", 1, "accesses", 0, "kind", value="read"),
            "ops[1].accesses[0].kind: expected READ or WRITE, got 'read'",
        ),
        (
            changed("ops", 1, "accesses", 0, "kind", value=[1]),
            "ops[1].accesses[0].kind: expected READ or WRITE",
        ),
        (
            changed("ops", 1, "accesses", 0, "storage_id", value=None),
            "ops[1].accesses[0].storage_id: expected a whole number",
        ),
        (
            changed("ops", 1, "accesses", 0, "storage_id", value=8),
            "ops[1].accesses[0].storage_id: storage 8 has no size",
        ),
        (
            changed("storage_sizes", value=[40]),
            "storage_sizes: expected an object of bytes by storage id",
        ),
        (changed("storage_sizes", "x", value=1), "storage_sizes.x: expected a storage id"),
        (
            changed("storage_sizes", "03", value=1),
            "storage_sizes.03: expected every storage id once",
        ),
        (
            changed("storage_sizes", "4", value=1.5),
            "storage_sizes.4: expected a whole number of at least 0",
        ),
        (
            changed("storage_sizes", "4", value=2**60),
            "storage_sizes.4: expected a whole number of at least 0",
        ),
        (changed("retained_sids", value=5), "retained_sids: expected a list of storage ids"),
        (changed("retained_sids", 0, value="5"), "retained_sids[0]: expected a whole number"),
        (
            changed("memory_limit_bytes", value=-1),
            "memory_limit_bytes: expected a whole number of at least 0",
        ),
        (changed("h2d_bandwidth_gbps", value=0), "h2d_bandwidth_gbps: expected GiB/s above 0"),
        (changed("h2d_bandwidth_gbps", value=2**30), "h2d_bandwidth_gbps: expected GiB/s above 0"),
        (changed("d2h_bandwidth_gbps", value="8"), "d2h_bandwidth_gbps: expected GiB/s above 0"),
        (json.dumps(GOOD)[:-30], "damaged JSON of an activation trace"),
    ],
    ids=lambda value: (
        value[:40].replace(" ", "-")
        if isinstance(value, str) and not value.startswith("{")
        else "file"
    ),
)
def test_damage_is_named_with_its_place(tmp_path: Path, document: Any, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, document)
    assert str(raised.value).startswith(f"{tmp_path / 'trace.json'}: {expected}")


def test_the_largest_and_the_smallest_figures_are_read(tmp_path: Path) -> None:
    document = changed("storage_sizes", value={"0": 0, "3": 1, "4": 2**60 - 1, "5": 1, "9": 1})
    document["ops"][0]["duration_ms"] = 0
    document["ops"][1]["duration_ms"] = nextafter(2**60 / 10**6, 0)
    document["ops"][2] = op(2, [4], [0])
    document |= {"h2d_bandwidth_gbps": 2**30 - 1, "d2h_bandwidth_gbps": 0.5}
    graph = read(tmp_path, document)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert (sizes["storage0"], sizes["storage4"]) == (0, 2**60 - 1)
    assert graph.ops[0].duration_ns == 0
    assert 2**60 - 2**20 < graph.ops[1].duration_ns < 2**60
    assert graph.meta["h2d_bytes_per_s"] == 2**60 - 2**30
    assert graph.meta["d2h_bytes_per_s"] == 2**29


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_files_import_or_say_why(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(json.dumps(GOOD).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    (tmp_path / "trace.json").write_bytes(bytes(content))
    try:
        graph = load_any(tmp_path / "trace.json")
    except HosimError as error:
        assert "\n" not in str(error)
    else:
        assert graph.ops
