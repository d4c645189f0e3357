"""Small files whose functions call each other: what they become is counted before it is written
out, in ONNX and in MindIR.
"""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mindir_toys import mindir, text
from mindir_toys import primitive as mindir_node
from mindir_toys import value as mindir_value
from onnx import helper
from onnx_toys import FLOAT, model, value

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import load_any


def onnx_tower(folder: Path, calls: list[int], last: tuple[str, str] = ("Relu", "")) -> Path:
    """Functions F0, F1 ..: F0 calls F1 ``calls[0]`` times in a row, and the last one is
    ``calls[-1]`` times the ``last`` operator.
    """
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    functions = []
    for level, count in enumerate(calls):
        inner = last if level == len(calls) - 1 else (f"F{level + 1}", "own")
        names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
        nodes = [helper.make_node(inner[0], [a], [b], domain=inner[1]) for a, b in pairwise(names)]
        functions.append(helper.make_function("own", f"F{level}", ["x"], ["y"], nodes, opset))
    nodes = [helper.make_node("F0", ["x"], ["y"], domain="own")]
    content = model(
        nodes,
        [value("x", FLOAT, 2)],
        [value("y", FLOAT, 2)],
        functions=functions,
        opsets=[helper.make_opsetid("own", 1)],
    )
    (folder / "tower.onnx").write_bytes(content)
    return folder / "tower.onnx"


def mindir_tower(folder: Path, calls: list[int]) -> Path:
    """The same in MindIR."""

    def call(inside: str, source: str, target: str) -> bytes:
        if inside == "Relu":
            return mindir_node(b"ReLU", [source.encode()], 2, output=target.encode())
        return text(
            1,
            text(1, source.encode())
            + text(2, target.encode())
            + text(4, b"REF::" + inside.encode()),
        )

    functions = b""
    for level, count in enumerate(calls):
        inner = "Relu" if level == len(calls) - 1 else f"F{level + 1}"
        names = [f"a{level}", *(f"t{level}_{i}" for i in range(count))]
        nodes = b"".join(call(inner, a, b) for a, b in pairwise(names))
        functions += text(
            8,
            text(2, b"F%d" % level)
            + mindir_value(5, names[0].encode(), 2)
            + nodes
            + mindir_value(6, names[-1].encode()),
        )
    graph = mindir_value(5, b"x", 2) + call("F0", "x", "y") + mindir_value(6, b"y", 2)
    (folder / "tower.mindir").write_bytes(
        text(1, b"1.1") + text(2, b"MindSpore") + text(7, graph) + functions
    )
    return folder / "tower.mindir"


TOWERS = pytest.mark.parametrize("tower", [onnx_tower, mindir_tower])


def ops_of(graph: Graph) -> int:
    return len(graph.ops)


@TOWERS
@given(calls=st.lists(st.integers(1, 3), min_size=1, max_size=4), allowed=st.integers(1, 30))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_functions_are_written_out_up_to_the_limit(
    tower, calls: list[int], allowed: int, tmp_path: Path
) -> None:
    path, product = tower(tmp_path, calls), 1
    for count in calls:
        product *= count
    assert ops_of(load_any(path)) == product
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSIM_LIMITS", f"nodes={allowed}")
        if product <= allowed:  # MindIR counts the nodes that call as well
            assert tower is mindir_tower or ops_of(load_any(path)) == product
        else:
            with pytest.raises(InputError, match=r"expected at most \d+ nodes, got more"):
                load_any(path)


@pytest.mark.parametrize(("tower", "allowed"), [(onnx_tower, 100_000), (mindir_tower, 10_000)])
def test_ten_to_the_power_of_twelve_nodes_are_never_written_out(
    tower, allowed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX under the limit that there is, MindIR under a smaller one."""
    if tower is mindir_tower:
        monkeypatch.setenv("HOSIM_LIMITS", f"nodes={allowed}")
    path = tower(tmp_path, [10] * 12)
    assert path.stat().st_size < 12_000
    with pytest.raises(
        InputError,
        match=f'expected at most {allowed} nodes, got more; HOSIM_LIMITS="nodes={2 * allowed}"',
    ):
        load_any(path)


def test_functions_that_call_each_other_in_a_circle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"F[01]: function calls itself, directly or indirectly"):
        load_any(onnx_tower(tmp_path, [1, 1], ("F0", "own")))


def test_functions_that_call_each_other_too_deep(tmp_path: Path) -> None:
    for tower in (onnx_tower, mindir_tower):
        with pytest.raises(InputError, match="expected at most 200 levels of nesting, got 201"):
            load_any(tower(tmp_path, [1] * 201))


def test_tuples_of_tuples_are_counted_before_they_are_unfolded(tmp_path: Path) -> None:
    names = [b"x", *(b"t%d" % i for i in range(60))]
    tuples = b"".join(mindir_node(b"MakeTuple", [a, a], output=b) for a, b in pairwise(names))
    graph = (
        mindir_value(5, b"x", 2)
        + tuples
        + mindir_node(b"ReLU", [names[-1]], 2)
        + mindir_value(6, b"y", 2)
    )
    with pytest.raises(InputError, match="expected at most 1000000 records, got more"):
        load_any(mindir(tmp_path, graph))


@pytest.mark.parametrize("micro_batches", [20_000, 999_999])
def test_micro_batches_are_counted_before_they_are_built(
    tmp_path: Path, micro_batches: int
) -> None:
    builder = f"{{model: gpt2, phase: train, micro_batches: {micro_batches}}}"
    (tmp_path / "w.yaml").write_text(f"format: hosim.spec/1\nname: x\nbuilder: {builder}\n")
    with pytest.raises(
        InputError,
        match=r"builder\.micro_batches: expected at most 1000000 records, got "
        rf"{micro_batches * 12 * 40}; ",
    ):
        load_any(tmp_path / "w.yaml")
