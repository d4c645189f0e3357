"""Every integer field of a public object takes what Python counts with, numpy's and pandas'
integers, and refuses all else by its name.
"""

from decimal import Decimal
from math import inf, nan, prod

import numpy as np
import pandas as pd
import pytest

import hosim
from hosim.errors import HosimError
from hosim.hardware import Channel, Compute, Fabric, Tier
from hosim.jitter import Jitter
from hosim.serving.requests import Request

GOOD = [
    np.int64(5),
    np.uint8(5),
    np.prod(np.array([5, 1])),
    pd.Series([5])[0],
    pd.array([5], dtype="Int64")[0],
    np.array(5),
    prod((5,)),
]
BAD = [nan, inf, 1.5, 2.0, True, np.True_, "5", None, [5], pd.NA, np.float64(5), Decimal(5), 5j]


def built(size=64, also_on=None, **figures):
    b = hosim.GraphBuilder("g")
    b.tensor("x", size, "input")
    b.op(
        "o",
        "matmul",
        inputs=["x"],
        duration_ns=figures.pop("duration_ns", 5),
        also_on=also_on,
        **figures,
    )
    return b.build()


def loaded(**changed):
    return hosim.replay(hosim.plan(built(), "h100", "resident", **changed))


FIELDS = {
    "tensor x, size_bytes": lambda n: built(n).tensors[0].size_bytes,
    "op o, duration_ns": lambda n: built(duration_ns=n).ops[0].duration_ns,
    "op o, flops": lambda n: built(flops=n).ops[0].flops,
    "op o, bytes_accessed": lambda n: built(bytes_accessed=n).ops[0].bytes_accessed,
    "op o, workspace_bytes": lambda n: built(workspace_bytes=n).ops[0].workspace_bytes,
    "op o, also_on": lambda n: built(also_on={"ddr": n}).ops[0].also_on[0][1],
    "op o, sizes": lambda n: built(sizes=(n,)).ops[0].sizes[0],
    "tensor y, size_bytes": lambda n: hosim.Tensor("y", n).size_bytes,
    "op p, flops": lambda n: hosim.Op("p", "matmul", flops=n).flops,
    "op p, inputs": lambda n: hosim.Op("p", "matmul", inputs=(0, n)).inputs[1],
    "op p, duration_ns": lambda n: hosim.Op("p", "matmul", duration_ns=n).duration_ns,
    "cache op prefetch, tensor": lambda n: hosim.CacheOp("prefetch", n, "ddr", "hbm").tensor,
    "cache op prefetch, after": lambda n: hosim.CacheOp("prefetch", 0, "ddr", "hbm", n).after,
    "tier hbm, capacity_bytes": lambda n: Tier("hbm", n, 1).capacity_bytes,
    "channel h2d, latency_ns": lambda n: Channel("h2d", "a", "b", 1, n).latency_ns,
    "channel h2d, curve": lambda n: Channel("h2d", "a", "b", 1, curve=((1, n),)).curve[0][1],
    "channel h2d, beside": lambda n: Channel("h2d", "a", "b", 1, beside=(("d2h", n),)).beside[0][1],
    "fabric pcie, bandwidth_bytes_per_s": lambda n: Fabric("pcie", n, ()).bandwidth_bytes_per_s,
    "compute, peak_flops": lambda n: Compute({"bf16": n}).peak_flops["bf16"],
    "request, prompt_tokens": lambda n: Request(0, n, 1).prompt_tokens,
    "request, prefix": lambda n: Request(0, 1, 1, (n,)).prefix[0],
    "jitter, seed": lambda n: Jitter(seed=n).seed,
}
NOTHING = {"op o, duration_ns", "op p, duration_ns", "op o, also_on"}
"""Fields that may be ``None``."""


@pytest.mark.parametrize("field", FIELDS)
def test_whole_numbers_are_taken_and_others_refused_by_name(field):
    for good in GOOD:
        found = FIELDS[field](good)
        assert (type(found), found) == (int, 5)
    for bad in BAD:
        if (bad is None and field in NOTHING) or (
            isinstance(bad, list)
            and field.partition(", ")[2] in ("inputs", "curve", "prefix", "beside")
        ):
            continue
        with pytest.raises(HosimError) as caught:
            FIELDS[field](bad)
        assert str(caught.value).startswith(f"{field}: expected a whole number")
        assert repr(bad)[:20] in str(caught.value)


def test_a_duration_of_a_column_with_a_gap_is_refused_when_it_is_given():
    """Such a column is one of floats, so its first figure is none already."""
    table = pd.DataFrame({"op": ["a", "b", "c"], "ns": [1000, None, 3000]})
    b = hosim.GraphBuilder("g")
    b.tensor("x", 64, "input")
    for row in table.itertuples():
        with pytest.raises(HosimError, match=f"^op {row.op}, duration_ns: expected a whole number"):
            b.op(row.op, "matmul", inputs=["x"], duration_ns=row.ns)


def test_zero_is_a_duration_and_what_numpy_counts_is_written_and_read(tmp_path):
    graph = built(np.prod((4, 16)), duration_ns=0)
    hosim.save_workload(graph, tmp_path / "g.json")
    assert hosim.load_workload(tmp_path / "g.json") == graph
    assert loaded().peak_bytes["hbm"] == 64
    with pytest.raises(HosimError, match="expected an integer up to 9223372036854775807"):
        Tier("hbm", 10**30, 1)


def test_ops_without_a_duration_or_work_are_said():
    graph = hosim.load(built(duration_ns=None))
    frame = hosim.compare(graph, "h100", "resident")
    assert any(note.startswith("untimed: 1 op ") for note in frame.attrs["notes"])
    for figures in (
        {"duration_ns": 0},
        {"duration_ns": None, "flops": 1},
        {"duration_ns": None, "bytes_accessed": 1},
    ):
        frame = hosim.compare(built(**figures), "h100", "resident")
        assert not any(note.startswith("untimed") for note in frame.attrs.get("notes", []))
