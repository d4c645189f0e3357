"""Memory from before a recording: the weights that operators' arguments show, told apart by
modules, gradients and order.
"""

from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, graph_of, memory, span, trace
from rendered import facts

from hosim.engine import read_budget
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Compute, Hardware, Tier
from hosim.notes import notes

MACHINE = Hardware(
    "Toy", (Tier("hbm", 1 << 30, 10**12, "device"),), (), Compute({}), device_tier="hbm"
)
SIZE = 64 * 64 * 4


def linear(
    at: float,
    number: int,
    kernels: int = 1,
    shapes: Any = ([8, 64], [64, 64]),
    name: str = "aten::mm",
    **more: Any,
) -> list[dict]:
    """A product with weights of 16 KiB, 20 us long, and its kernels."""
    events = [
        span(
            "cpu_op",
            name,
            at,
            18,
            **{"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)},
            **more,
        )
    ]
    for k in range(kernels):
        events += [
            call("cudaLaunchKernel", at + 1 + 4 * k, 2, number + k),
            device_op(KERNEL, "gemm", at + 5 + 4 * k, 2, number + k),
        ]
    return events


def module(at: float, name: str, us: float = 20) -> dict:
    return span("python_function", f"nn.Module: {name}", at - 1, us)


def of(resident: int, *events: dict) -> Graph:
    """A recording that begins with so many bytes."""
    return graph_of(trace(memory(-5, 512, 1, resident + 512), *events))


def uses(graph: Graph) -> dict[str, list[int]]:
    names = {i: t.name for i, t in enumerate(graph.tensors) if t.kind in ("parameter", "buffer")}
    return {
        name: [place for place, op in enumerate(graph.ops) if i in op.inputs]
        for i, name in names.items()
    }


def test_calls_of_one_module_use_the_same_weights() -> None:
    """Linear_0 is called twice, and launches two kernels the first time; Linear_1 has weights of
    the same extents. 1,024 bytes are left.
    """
    calls = [
        module(0, "Linear_0"),
        *linear(0, 1, 2),
        module(30, "Linear_1"),
        *linear(30, 3),
        module(60, "Linear_0"),
        *linear(60, 4),
    ]
    graph = of(2 * SIZE + 1024, *calls)
    assert uses(graph) == {
        "allocated_before": [0, 1, 2, 3],
        "before0.Linear_0": [0, 1, 3],
        "before1.Linear_1": [2],
    }
    assert graph.meta["unknown_uses_bytes"] == 1024
    assert ("not modelled", "1.00 KiB") in [(note.about, facts(note.line)) for note in notes(graph)]
    assert [t.size_bytes for t in graph.tensors[:3]] == [1024, SIZE, SIZE]


def test_without_modules_each_product_takes_other_weights() -> None:
    graph = of(2 * SIZE, *linear(0, 1), *linear(30, 2))
    assert uses(graph) == {"before0.mm": [0], "before1.mm": [1]}
    steps = [span("user_annotation", f"ProfilerStep#{n}", 30 * n - 1, 28) for n in (0, 1)]
    again = of(SIZE, *steps, *linear(0, 1), *linear(30, 2))  # the first product of either step
    assert uses(again) == {"before0.mm": [0, 1]}


def test_more_bytes_than_there_were_are_a_contradiction() -> None:
    graph = of(2 * SIZE - 512, *linear(0, 1), *linear(30, 2))
    assert uses(graph) == {"allocated_before": [0, 1]}
    assert graph.meta["unknown_uses_bytes"] == 2 * SIZE - 512


def test_an_embedding_and_a_product_may_share_their_weights() -> None:
    """Of 100 rows of 64, 25,600 bytes: there is room for one of them, not for two."""
    lookup = linear(0, 1, shapes=([100, 64], [], [8]), name="aten::index_select")
    graph = of(25_600, *lookup, *linear(30, 2, shapes=([8, 64], [64, 100])))
    assert uses(graph) == {"before0.index_select": [0, 1]}
    apart = of(2 * 25_600, *lookup, *linear(30, 2, shapes=([8, 64], [64, 100])))
    assert uses(apart) == {"before0.index_select": [0], "before1.mm": [1]}


def test_a_gradient_uses_the_weights_of_its_operator() -> None:
    """Two products of the same extents; the gradients come in reverse order, on another thread,
    with the numbers of their operators.
    """
    backward = [
        span(
            "cpu_op",
            "autograd::engine::evaluate_function: MmBackward0",
            at,
            19,
            **{"Sequence number": n},
        )
        for at, n in ((60, 8), (90, 7))
    ]
    forward = [*linear(0, 1, **{"Sequence number": 7}), *linear(30, 2, **{"Sequence number": 8})]
    graph = of(2 * SIZE, *forward, backward[0], *linear(60, 3), backward[1], *linear(90, 4))
    assert uses(graph) == {"before0.mm": [0, 3], "before1.mm": [1, 2]}


def test_an_optimizer_on_lists_uses_all_weights() -> None:
    optimizer = linear(60, 3, shapes=([[64, 64], [64, 64]],), name="aten::_foreach_add_")
    optimizer[0]["args"]["Input type"] = ["TensorList"]
    graph = of(2 * SIZE, *linear(0, 1), *linear(30, 2), *optimizer)
    assert uses(graph) == {"before0.mm": [0, 2], "before1.mm": [1, 2]}


def test_kernels_from_before_are_the_end_of_an_iteration_if_they_are_its_kernels() -> None:
    """``gemm`` was launched before the recording, whose last op is a ``gemm``; a kernel of another
    name says nothing.
    """
    stray = device_op(KERNEL, "gemm", -4, 3, 99)
    calls = [*linear(0, 1), *linear(30, 2)]
    assert uses(of(2 * SIZE, stray, *calls)) == {"before0.mm": [1], "before1.mm": [0, 2]}
    other = of(2 * SIZE, stray | {"name": "other"}, *calls)
    assert uses(other) == {"before0.mm": [1], "before1.mm": [2]}
    assert other.meta["unknown_uses_share"] == pytest.approx(3 / 7, abs=1e-3)


def test_less_than_the_peak_is_refused_where_too_much_is_unknown() -> None:
    """1,024 of 33,792 bytes unknown is answered; 16 KiB of 33,280 is not, nor 3 of 7 us of kernels.
    All of it is always answered.
    """
    known = of(2 * SIZE + 1024, *linear(0, 1), *linear(30, 2))
    assert read_budget("75%").of(known, MACHINE)[0] < 2 * SIZE + 1024
    half = of(2 * SIZE, *linear(0, 1))
    with pytest.raises(InputError) as caught:
        read_budget("75%").of(half, MACHINE)
    assert str(caught.value) == (
        "toy: no answer below the peak of 32.5 KiB: which ops use 16.0 KiB of it, allocated "
        "before the recording, is not recorded "
        "(at most 25 % may be unknown); record shapes and modules, or give --execution-trace"
    )
    assert read_budget("100%").of(half, MACHINE)[0] == 2 * SIZE + 512
    stray = of(2 * SIZE, device_op(KERNEL, "other", -4, 3, 99), *linear(0, 1), *linear(30, 2))
    with pytest.raises(InputError) as caught:
        read_budget(100).of(stray, MACHINE)
    assert (
        "what kernels use that take 43 % of the time, and have no recorded operator, is not known"
        in str(caught.value)
    )


def test_what_is_freed_at_the_end_and_not_used_there_is_an_output() -> None:
    """The last product takes ``b`` (2,048 bytes, as its first operand), and not ``a``, which is
    freed with it.
    """
    early = [
        memory(-4, 4096, 2, 4608),
        *linear(0, 1),
        memory(25, 2048, 3, 6656),
        *linear(30, 2),
        *linear(60, 3),
    ]
    graph = of(0, *early, memory(90, -4096, 2, 2560), memory(91, -2048, 3, 512))
    assert {t.size_bytes: t.kind for t in graph.tensors} == {
        512: "output",
        4096: "output",
        2048: "activation",
    }
