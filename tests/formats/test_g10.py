"""The importer of the G10 simulator's graphs: a handmade step, the published inputs, damaged
files.
"""

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosim.analysis import static_peak
from hosim.errors import HosimError, InputError
from hosim.formats import import_g10, is_g10
from hosim.graph import Graph
from hosim.measured_on import measured_on

PAGE = 4096
GLOBAL = {1, 5, 6, 7}
PAGES = {0: 4, 1: 2, 2: 3, 3: 3, 4: 2, 5: 1, 6: 2, 7: 1, 8: 9, 9: 5}
"""A step of one layer: 0 the batch, 1 its weight, 2 the activation, 3 its gradient, 4 the weight's,
5 running statistics, 6 a moment that only the update uses, 7 a constant, 8 workspace; 9 is used by
nothing.
"""

STEP = [
    ("BatchNorm2d_Forward", 12, [0, 1, 5], [2, 5]),
    ("makeLoss", 1, [2, 7], [3]),
    ("Linear_Backward_Weight", 1, [3, 0], [4, 8]),
    ("Add_MultiGredient", 1, [4, 3], [4]),
    ("Power_Backward", 1, [3], [3]),
    ("Power_Backward", 1, [0], [4]),
    ("Apply_Grad", 1, [4, 1, 6], [1, 6]),
]


def tensor_line(t: int) -> str:
    size, begin = PAGES[t] * PAGE, t * 10**6
    return (
        f"tensor{t} Is weight (global)?: {int(t in GLOBAL)}, Size in byte: {size}, "
        f"Range:{begin}--{begin + size}"
    )


def kernel_lines(
    position: int, name: str, cycles: int, inputs: list[int], outputs: list[int]
) -> list[str]:
    shape = ["(8,3,4,4)"] if position == 0 else []
    parent = (
        "Parent Layer ID:0; Name:BatchNorm2d"
        if position == 0
        else f"Parent OP ID:{position}; Name: Dot"
    )
    head = [
        f"Kernel ID: {position}, Name: {name}",
        parent,
        f"Execution Time: {cycles}",
        *shape,
        "Input Tensors:",
    ]
    return [
        *head,
        *map(tensor_line, inputs),
        "Output Tensors:",
        *map(tensor_line, outputs),
        "_" * 68,
    ]


TENSORS = [tensor_line(t) for t in PAGES]
KERNELS = [line for position, kernel in enumerate(STEP) for line in kernel_lines(position, *kernel)]


def write(folder: Path, tensors: list[str] = TENSORS, kernels: list[str] = KERNELS) -> Path:
    (folder / "tensors.config").write_text("\n".join(tensors) + "\n")
    (folder / "kernels.config").write_text("\n".join(kernels) + "\n")
    return folder


def names(graph: Graph, positions: tuple[int, ...]) -> list[str]:
    return [graph.tensors[t].name for t in positions]


def walked_peak(graph: Graph) -> int:
    """Largest sum of live bytes, by walking the ops with a plain set: what is there at the start,
    produced, last used.
    """
    live, peak = set(graph.initial), 0
    for i, op in enumerate(graph.ops):
        live.update(op.uses)
        peak = max(peak, sum(graph.tensors[t].size_bytes for t in live) + op.workspace_bytes)
        live -= {t for t in op.uses if graph.users[t][-1] == i and not graph.survives[t]}
    return peak


def test_a_step(tmp_path: Path) -> None:
    graph = import_g10(write(tmp_path))
    assert graph.name == tmp_path.name
    assert measured_on(graph) == "g10-a100-40gb"
    assert {t.name: t.kind for t in graph.tensors} == {
        "tensor0": "input",
        "tensor1": "parameter",
        "tensor2": "activation",
        "tensor3": "gradient",
        "tensor4": "gradient",
        "tensor5": "buffer",
        "tensor6": "optimizer_state",
        "tensor7": "buffer",
    }
    assert [t.name for t in graph.tensors if t.persistent] == [
        "tensor1",
        "tensor5",
        "tensor6",
        "tensor7",
    ]
    assert names(graph, graph.initial) == ["tensor0", "tensor1", "tensor5", "tensor6", "tensor7"]
    assert all(
        t.size_bytes == PAGES[int(t.name.removeprefix("tensor"))] * PAGE for t in graph.tensors
    )
    operands = [
        (
            op.name,
            *(names(graph, of) for of in (op.inputs, op.outputs, op.mutates)),
            op.workspace_bytes,
        )
        for op in graph.ops
    ]
    assert operands == [
        ("BatchNorm2d_Forward.0", ["tensor0", "tensor1"], ["tensor2"], ["tensor5"], 0),
        ("makeLoss.1", ["tensor2", "tensor7"], ["tensor3"], [], 0),
        ("Linear_Backward_Weight.2", ["tensor3", "tensor0"], ["tensor4"], [], 9 * PAGE),
        ("Add_MultiGredient.3", ["tensor3"], [], ["tensor4"], 0),
        ("Power_Backward.4", [], [], ["tensor3"], 0),
        (
            "Power_Backward.5",
            ["tensor0"],
            [],
            ["tensor4"],
            0,
        ),  # an output that is there already is written in place
        ("Apply_Grad.6", ["tensor4"], [], ["tensor1", "tensor6"], 0),
    ]
    # 12 cycles of 1.2 GHz are 10 ns; from there on a cycle is 5/6 ns: ends at 10 5/6, 11 4/6, 12
    # 3/6, 13 2/6, 14 1/6 and 15
    assert [op.duration_ns for op in graph.ops] == [10, 1, 1, 1, 0, 1, 1]
    assert {op.stream for op in graph.ops} == {"compute"}
    # In Linear_Backward_Weight: 6 pages of globals, the batch 4, two gradients 3 + 2, workspace 9
    assert walked_peak(graph) == 24 * PAGE


def test_another_clock(tmp_path: Path) -> None:
    graph = import_g10(write(tmp_path), clock_hz=600_000_000)
    assert measured_on(graph) is None
    assert sum(op.duration_ns or 0 for op in graph.ops) == 30


def test_gzipped_is_the_same(tmp_path: Path) -> None:
    plain = import_g10(write(tmp_path))
    for path in list(tmp_path.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert is_g10(tmp_path)
    assert import_g10(tmp_path) == plain


def test_who_is_one(tmp_path: Path) -> None:
    assert not is_g10(tmp_path)
    assert not is_g10(tmp_path / "absent")
    write(tmp_path)
    assert is_g10(tmp_path)
    assert not is_g10(tmp_path / "tensors.config")
    (tmp_path / "tensors.config").unlink()
    assert is_g10(tmp_path)  # half of one: the importer says what is missing


@pytest.mark.parametrize("missing", ["tensors", "kernels"])
def test_missing_file(tmp_path: Path, missing: str) -> None:
    (write(tmp_path) / f"{missing}.config").unlink()
    with pytest.raises(InputError, match=rf"{missing}\.config or {missing}\.config\.gz"):
        import_g10(tmp_path)


def edited(lines: list[str], number: int, text: str | None) -> list[str]:
    """The lines with the one of that number, from 1, replaced, or the file cut off before it."""
    return lines[: number - 1] + ([] if text is None else [text, *lines[number:]])


@pytest.mark.parametrize(
    ("file", "number", "text", "expected"),
    [
        (
            "tensors",
            3,
            "tensor2 Is weight (global)?: 0, Size in byte: 12k, Range:0--12288",
            "a tensor",
        ),
        (
            "tensors",
            3,
            "tensor2 Is weight (global)?: 0, Size in byte: 12288, Range:0--12287",
            "4 KiB",
        ),
        ("tensors", 3, TENSORS[1], "each tensor once"),
        ("tensors", 3, "x" * 10**6, "got 'xxx"),
        (
            "tensors",
            3,
            f"tensor2 Is weight (global)?: 0, Size in byte: {'9' * 5000}, Range:0--1",
            "a tensor",
        ),
        ("kernels", 1, "Kernel ID: 1, Name: makeLoss", "Kernel ID: 0"),
        ("kernels", 2, "Parent: 0", "Parent OP ID"),
        ("kernels", 3, "Execution Time: -1", "Execution Time: <cycles>"),
        ("kernels", 3, "Execution Time: 0", "above 0"),
        ("kernels", 5, "Inputs:", "Input Tensors:"),
        ("kernels", 7, TENSORS[0], "each tensor of a list once"),
        (
            "kernels",
            7,
            TENSORS[1].replace("(global)?: 1", "(global)?: 0"),
            "tensor1 as tensors.config has it",
        ),
        (
            "kernels",
            7,
            TENSORS[1].replace("tensor1", "tensor77"),
            "tensor77 as tensors.config has it",
        ),
        ("kernels", 12, None, "cut off"),
        ("kernels", 6, None, "cut off"),
    ],
)
def test_damage_is_named_with_file_and_line(
    tmp_path: Path, file: str, number: int, text: str | None, expected: str
) -> None:
    lines = {"tensors": TENSORS, "kernels": KERNELS}
    lines[file] = edited(lines[file], number, text)
    with pytest.raises(InputError) as raised:
        import_g10(write(tmp_path, **lines))
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / file}.config: line {number}: expected ")
    assert expected in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe", b"\x1f\x8b\x08"])
@pytest.mark.parametrize(
    "name", ["tensors.config", "kernels.config", "tensors.config.gz", "kernels.config.gz"]
)
def test_not_even_text(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path)
    (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name.removesuffix(".gz")):
        import_g10(tmp_path)


def test_cut_gzip(tmp_path: Path) -> None:
    path = write(tmp_path) / "kernels.config"
    (tmp_path / "kernels.config.gz").write_bytes(gzip.compress(path.read_bytes())[:-12])
    path.unlink()
    with pytest.raises(InputError, match="damaged gzip file"):
        import_g10(tmp_path)


def edit(draw: st.DrawFn, lines: list[str]) -> list[str]:
    """One line dropped, doubled, copied elsewhere, replaced by another, or with a few characters
    changed.
    """
    at = draw(st.integers(0, len(lines) - 1))
    line = lines[at]
    match draw(st.sampled_from(["drop", "double", "copy", "replace", "change"])):
        case "drop":
            return lines[:at] + lines[at + 1 :]
        case "double":
            return [*lines[:at], line, *lines[at:]]
        case "copy":
            to = draw(st.integers(0, len(lines)))
            return [*lines[:to], line, *lines[to:]]
        case "replace":
            return [*lines[:at], draw(st.sampled_from(TENSORS + KERNELS)), *lines[at + 1 :]]
    where = draw(st.integers(0, len(line)))
    return [
        *lines[:at],
        line[:where] + draw(st.text(max_size=12)) + line[where + 1 :],
        *lines[at + 1 :],
    ]


@st.composite
def edits(draw: st.DrawFn, lines: list[str]) -> list[str]:
    for _ in range(draw(st.integers(0, 3))):
        lines = edit(draw, lines)
    return lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tensors=edits(TENSORS), kernels=edits(KERNELS))
def test_edited_files_import_or_say_why(
    tmp_path: Path, tensors: list[str], kernels: list[str]
) -> None:
    (tmp_path / "tensors.config").write_bytes("\n".join(tensors).encode(errors="surrogatepass"))
    (tmp_path / "kernels.config").write_bytes("\n".join(kernels).encode(errors="surrogatepass"))
    message, graph = "", None
    try:
        graph = import_g10(tmp_path)
    except HosimError as error:
        message = str(error)
    if graph is None:
        assert message.startswith(str(tmp_path))
        assert "\n" not in message
    else:
        assert len(graph.ops) == sum(
            line.startswith("Kernel ID") for line in "\n".join(kernels).split("\n")
        )


@pytest.mark.parametrize(
    ("name", "cycles", "ops", "peak_gib", "largest_op_bytes"),
    [
        ("bert_256", 8_742_558_777, 1369, 47.76, 2_415_919_104),
        ("vit_1024", 3_919_374_961, 1489, 45.93, 1_654_132_736),
    ],
)
def test_published_inputs(
    shared: Path,
    name: str,
    cycles: int,
    ops: int,
    peak_gib: float,
    largest_op_bytes: int,
    compared: Callable[..., None],
) -> None:
    folder = shared / "data" / "g10" / name
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: it holds the published graph that this test reads")
    graph = import_g10(folder)
    assert len(graph.ops) == ops
    # The published "ideal" iteration time, in cycles, is the sum of the kernel times.
    compared(
        "G10",
        name,
        "ideal iteration, ns",
        round(cycles / 1.2),
        sum(op.duration_ns or 0 for op in graph.ops),
    )
    compared("G10", name, "peak, GiB", peak_gib, static_peak(graph).bytes / 2**30, slack=0.005)
    assert static_peak(graph).bytes == walked_peak(graph)
    assert (
        max(
            sum(graph.tensors[t].size_bytes for t in op.uses) + op.workspace_bytes
            for op in graph.ops
        )
        == largest_op_bytes
    )
    # Every weight but the constant exponent is updated, and nothing is read from outside the step
    # but small inputs and the images.
    assert Counter(t.kind for t in graph.tensors)["buffer"] == 1
    assert all(t.persistent == (t.kind in ("parameter", "buffer")) for t in graph.tensors)
