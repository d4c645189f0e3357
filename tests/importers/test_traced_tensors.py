"""Tensors of execution traces: what a record reaches, and which storage an id means."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hosim.io.importers.torch_programs import Storages, TracedTensor, recorded_calls


def traced_tensors(
    value: object, shape: object = None, strides: object = None
) -> tuple[TracedTensor, ...]:
    """What a call of an execution trace takes whose one argument is this."""
    given = {"values": [value], "shapes": [shape], "strides": [strides], "types": ["Tensor(float)"]}
    none = {"values": [], "shapes": [], "types": []}
    attrs = [{"name": "rf_id", "value": 1}, {"name": "tid", "value": 1}]
    node = {
        "id": 2,
        "ctrl_deps": 1,
        "name": "aten::exp",
        "inputs": given,
        "outputs": none,
        "attrs": attrs,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "nodes": [node]}))
        (call,) = recorded_calls(path)
    return call.inputs


T = [9, 5, 2, 12, 4, "cuda:0"]


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [
        (None, None, 12),
        ([3, 4], [4, 1], 12),
        ([3, 4], [1, 0], 3),  # expanded: one element is seen four times
        ([2, 6], [100, 1], 106),
        ([3, 4], [4], 12),
        ([3, 4], None, 12),
        ([3, -1], [4, 1], 12),
        ([3, "4"], [4, 1], 12),
        ([3, 0], [4, 1], 9),
    ],
)
def test_reach(shape: object, strides: object, elements: int) -> None:
    assert traced_tensors(T, shape, strides) == (
        TracedTensor(5, (2 + elements) * 4, "cuda:0", 4 * min(elements, 12)),
    )


def test_an_empty_tensor_reaches_its_offset() -> None:
    assert traced_tensors([9, 5, 2, 0, 4, "cpu"], [3, 4], [4, 1]) == (TracedTensor(5, 8, "cpu"),)


def test_tensors_in_lists() -> None:
    other = [9, 6, 0, 1, 8, "cpu"]
    found = traced_tensors([T, 3, [other, "x"]], [[3, 4], [], [[1], []]], [[1, 0], [], [[1], []]])
    assert found == (TracedTensor(5, 20, "cuda:0", 12), TracedTensor(6, 8, "cpu", 8))
    assert traced_tensors([T, other], [[3, 4]], [[1, 0], [1]]) == (
        TracedTensor(5, 56, "cuda:0", 48),
        TracedTensor(6, 8, "cpu", 8),
    )
    assert traced_tensors((tuple(T),)) == (TracedTensor(5, 56, "cuda:0", 48),)
    assert traced_tensors(3) == ()


def test_records_that_are_no_tensors() -> None:
    for place in range(1, 5):
        assert traced_tensors([*T[:place], -1, *T[place + 1 :]]) == ()
    assert traced_tensors([*T[:2], 1.5, *T[3:]]) == ()
    assert traced_tensors([*T[:5], None]) == ()
    assert traced_tensors([*T, 7]) == ()
    assert traced_tensors([-9, *T[1:]]) != ()  # the tensor's own id does not matter
    at, below = 1 << 60, (1 << 60) - 1
    assert traced_tensors([9, at, 0, 1, 1, ""]) == traced_tensors([9, 0, 0, at, 1, ""]) == ()
    assert traced_tensors([9, below, 0, below, 1, ""]) == (TracedTensor(below, below, "", below),)


def test_where_a_tensor_lies() -> None:
    assert [TracedTensor(0, 0, d).on_accelerator for d in ("", "cpu", "meta", "cuda:0", "npu")] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_storages() -> None:
    storages = Storages()
    small, large, other = TracedTensor(5, 8, ""), TracedTensor(5, 20, ""), TracedTensor(6, 4, "")
    assert not storages.knows(small)
    assert [
        storages.existing(small),
        storages.existing(large),
        storages.existing(small),
        storages.fresh(other),
    ] == [0, 0, 0, 1]
    assert storages.knows(small)
    assert [storages.fresh(small), storages.existing(large)] == [2, 2]
    assert (storages.sizes, storages.at_start) == ([20, 4, 20], [True, False, False])
