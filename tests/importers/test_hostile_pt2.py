"""Archives that would make a reader execute what they say, or take all of its memory: each is
refused in one line, and nothing runs.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pt2_files import (
    CODE,
    ENUM,
    IMPORTING,
    LEAF,
    MODEL,
    Records,
    constant,
    containers,
    edited,
    extra_node,
    legacy_layout,
    model_of_another_ending,
    named,
    nodes_of,
    pickled_examples,
    pickled_weight,
    records_in,
    size_that_calls,
    write_archive,
)
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from small_models import Tied  # noqa: E402

from hosim.cli.main import app  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.io.importers.torch_programs import import_pt2  # noqa: E402


class Counting(Tied):
    """One with a buffer, which it writes to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, tokens):
        self.seen.add_(1)
        return super().forward(tokens)


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Records:
    """The records of an archive as ``torch.export.save`` writes it."""
    path = tmp_path_factory.mktemp("honest") / "tied.pt2"
    torch.export.save(
        torch.export.export(Counting(), (torch.zeros(8, dtype=torch.int64),), strict=False), path
    )
    return records_in(path)


def refused(path: Path) -> str:
    """The one line with which ``hosim import`` refuses a file."""
    done = CliRunner().invoke(app, ["import", str(path), "-o", str(path.with_name("out.json"))])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert not path.with_name("out.json").exists()
    (line,) = done.stderr.splitlines()
    assert line.isprintable()
    assert len(line) < 400 + len(str(path))
    assert path.name in line
    return line


MARK = {"as_string": "MARK"}

HOSTILE = {
    "a size that is a call": (size_that_calls, "is not plain arithmetic"),
    "a constant under capitals of the folder": (
        constant("opaque_obj_0", "DATA/constants/"),
        "DATA/constants/opaque_obj_0 would make torch",
    ),
    "a constant under capitals of the name": (
        constant("OPAQUE_OBJ_0"),
        "OPAQUE_OBJ_0 would make torch run code",
    ),
    "a constant under the other slash": (
        constant("opaque_obj_0", "data\\constants\\"),
        "opaque_obj_0 would make torch run code",
    ),
    "a pickled constant": (
        constant("opaque_obj_0"),
        "data/constants/opaque_obj_0 would make torch run code",
    ),
    "a pickled weight": (pickled_weight, "mix.bias: is a pickle"),
    "pickled example inputs": (
        pickled_examples,
        "would run code from this file .it names 'posix mkdir",
    ),
    "a model of another ending": (
        model_of_another_ending,
        "models/model.text would be a second program",
    ),
    "the layout of old versions": (legacy_layout, "holds no exported program"),
    "containers that import a module": (
        containers(IMPORTING),
        "module_call_graph.out_spec: the containers .* are not tuples",
    ),
    "containers that import an enum": (containers(ENUM), "containers .* are not tuples"),
    "a name that is code": (named("add_", CODE), "expected the name of a value"),
    "an op that writes a file": (
        extra_node(
            "torch.ops.aten.from_file.default",
            [{"as_tensor": {"name": "more"}}],
            filename=MARK,
            shared={"as_bool": True},
            size={"as_int": 16},
        ),
        "from_file.default the text 'filename'",
    ),
    "an op that prints": (
        extra_node("torch.ops.aten._print.default", [], s=MARK),
        "_print.default the text 's'",
    ),
    "an op of another library": (
        extra_node("torch.ops.c10d.barrier.default", []),
        "is of a library that hosim does not run from a file",
    ),
    "an op for scripts": (
        extra_node("torch.ops.aten.save.default", [], filename=MARK),
        "'torch.ops.aten.save.default', which is not a registered op",
    ),
    "a function of torch": (
        extra_node("torch.load", [], f=MARK),
        "target 'torch.load' is not a registered op",
    ),
    "a library": (
        lambda records, mark: records.update({"data/aotinductor/model/model.so": b"\x7fELF"}),
        "model.so would make torch run code",
    ),
    "a key that nobody knows": (edited(lambda model: model.update(extra=1)), "unknown key 'extra'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_in_a_file_is_executed(name, honest, tmp_path, monkeypatch):
    change, expected = HOSTILE[name]
    mark = tmp_path / "mark"
    (tmp_path / "marking.py").write_text(f"import os\nos.mkdir({str(mark)!r})\ndef make(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    records = dict(honest)
    change(records, mark)
    line = refused(
        write_archive(
            tmp_path / "bad.pt2", records, "" if name.startswith("the layout") else "tied/"
        )
    )
    assert not mark.exists()
    assert "marking" not in sys.modules
    with pytest.raises(InputError, match=expected):
        import_pt2(tmp_path / "bad.pt2")
    assert line


def patched(path: Path, at: int, fmt: str, value: int) -> None:
    """Replace a number in a file."""
    content = bytearray(path.read_bytes())
    struct.pack_into(fmt, content, at, value)
    path.write_bytes(content)


def entry(path: Path, number: int, *, central: bool) -> int:
    """The position of an entry in the directory, or of what precedes its data."""
    content = path.read_bytes()
    at = struct.unpack_from("<I", content, len(content) - 6)[0] - 1 if central else -1
    for _ in range(number + 1):
        at = content.index(b"PK\x01\x02" if central else b"PK\x03\x04", at + 1)
    return at


AMBIGUOUS = {
    "two of one name": (lambda path: twice(path, MODEL), "is there twice"),
    "two names that differ in case": (lambda path: twice(path, MODEL.upper()), "is there twice"),
    "another name before the data": (
        lambda path: patched(path, entry(path, 0, central=False) + 30, "<B", ord("u")),
        "not what its directory says",
    ),
    "another size before the data": (
        lambda path: patched(path, entry(path, 0, central=False) + 22, "<I", 1),
        "not what its directory says",
    ),
    "a directory that counts too few": (
        lambda path: patched(path, path.stat().st_size - 12, "<H", 1),
        "no directory at its end",
    ),
    "an encrypted record": (lambda path: encrypted(path), "is encrypted"),
    "two records that share bytes": (
        lambda path: patched(
            path, entry(path, 1, central=True) + 42, "<I", entry(path, 0, central=False)
        ),
        "not what its directory says",
    ),
    "something after the end": (
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        "no directory at its end",
    ),
    "something between": (lambda path: shifted(path), "its directory is not where it says"),
}


def twice(path: Path, name: str) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(f"tied/{name}"), b"{}")


def encrypted(path: Path) -> None:
    patched(path, entry(path, 0, central=True) + 8, "<H", 1)
    patched(path, entry(path, 0, central=False) + 6, "<H", 1)


def shifted(path: Path) -> None:
    content = path.read_bytes()
    start = struct.unpack_from("<I", content, len(content) - 6)[0]
    path.write_bytes(content[:start] + b"x" + content[start:])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_archive_on_which_readers_disagree(name, honest, tmp_path):
    change, expected = AMBIGUOUS[name]
    path = write_archive(tmp_path / "bad.pt2", honest)
    change(path)
    assert expected in refused(path)


def steps_of_a_gru(path: Path, steps: int) -> Path:
    """A program that runs a GRU over so many steps, as its file says."""
    torch.export.save(
        torch.export.export(Recurrent(), (torch.zeros(17, 1, 2),), strict=False), path
    )
    records = {
        name: content.replace(b'"as_int": 17}', b'"as_int": %d}' % steps)
        for name, content in records_in(path).items()
    }
    return write_archive(path, records)


class Recurrent(torch.nn.Module):
    """A GRU as an op of its own."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(6, 2), torch.zeros(6, 2)])

    def forward(self, x):
        return torch.gru(
            x, torch.zeros(1, 1, 2), list(self.weights), False, 1, 0.0, False, False, False
        )[0]


def test_an_op_that_launches_a_kernel_for_each_of_many_steps(tmp_path, monkeypatch):
    assert f"expected at most 100000 kernels, got {10**9};" in refused(
        steps_of_a_gru(tmp_path / "bad.pt2", 10**9)
    )
    monkeypatch.setenv("HOSIM_LIMITS", "kernels=500")  # each step is some ten of them
    assert "expected at most 500 kernels, got more;" in refused(
        steps_of_a_gru(tmp_path / "bad.pt2", 100)
    )
    monkeypatch.delenv("HOSIM_LIMITS")
    assert len(import_pt2(steps_of_a_gru(tmp_path / "good.pt2", 17)).ops) == 2


def test_a_compressed_record_is_not_unpacked(honest, tmp_path):
    bomb = {**honest, MODEL: b" " * 10_000_000}
    path = write_archive(tmp_path / "bad.pt2", bomb, method=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    assert "is compressed, which torch never does" in refused(path)


def test_a_large_program_is_refused_by_its_size(honest, tmp_path, monkeypatch):
    monkeypatch.setenv("HOSIM_LIMITS", "unpacked_bytes=4KiB")
    path = write_archive(tmp_path / "bad.pt2", honest)
    assert "expected at most 4KiB after unpacking" in refused(path)


@pytest.mark.parametrize(
    ("limits", "message"),
    [("values=100", "at most 100 values"), ("nesting_depth=4", "at most 4 levels of nesting")],
)
def test_a_program_is_refused_before_its_values_are_objects(
    honest, tmp_path, monkeypatch, limits, message
):
    monkeypatch.setenv("HOSIM_LIMITS", limits)
    path = write_archive(tmp_path / "bad.pt2", honest)
    assert f"bad.pt2: models/model.json: expected {message}" in refused(path)


def test_a_weight_is_never_read(honest, tmp_path):
    """The checksum of a weight is wrong, which only who reads it can tell."""
    path = write_archive(tmp_path / "good.pt2", honest)
    content = path.read_bytes()
    name = next(
        name
        for name in honest
        if name.startswith("data/weights/weight_") and len(honest[name]) == 1024
    )
    at = content.index(honest[name])
    path.write_bytes(content[:at] + bytes(1024) + content[at + 1024 :])
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        archive.read(f"tied/{name}")
    assert import_pt2(path).tensors


HUGE = {
    "a power": (
        [
            extra_node(
                "_operator.pow",
                [{"as_sym_int": {"as_name": "number"}}],
                a={"as_int": 10},
                b={"as_int": 10**9},
            )
        ],
        "to the power of 1000000000",
    ),
    "a product": (
        [
            extra_node(
                "_operator.mul",
                [{"as_sym_int": {"as_name": "number"}}],
                a={"as_int": 2**62},
                b={"as_int": 2**62},
            )
        ],
        "gives a size beyond 64 bits",
    ),
    "a list": (
        [
            extra_node(
                "_operator.mul",
                [{"as_sym_int": {"as_name": "number"}}],
                a={"as_ints": [0]},
                b={"as_int": 2**62},
            )
        ],
        "does arithmetic on sizes with immutable_list",
    ),
    "a tensor in pieces": (
        [
            edited(
                lambda model: nodes_of(model).append(
                    {
                        "target": "torch.ops.aten.unbind.int",
                        "inputs": [
                            {"name": "self", "arg": {"as_tensor": {"name": "tokens"}}, "kind": 1}
                        ],
                        "outputs": [{"as_tensors": [{"name": "piece"}]}],
                        "metadata": {},
                        "name": "unbind",
                    }
                )
            )
        ],
        "gives 8 tensors, but the program has names for 1",
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_what_one_node_makes_is_bounded(name, honest, tmp_path):
    changes, expected = HUGE[name]
    records = dict(honest)
    for change in changes:
        change(records, tmp_path)
    assert expected in refused(write_archive(tmp_path / "bad.pt2", records))


DAMAGED = {
    "a value from nowhere": (
        lambda model: nodes_of(model)[1]["inputs"][0]["arg"]["as_tensor"].update(name="nowhere"),
        "uses 'nowhere'",
    ),
    "a value made twice": (
        lambda model: nodes_of(model).append(nodes_of(model)[1]),
        "every value of the graph to be made once",
    ),
    "a size below zero": (
        lambda model: tensor(model, "tokens")["sizes"][0].update(as_int=-1),
        "none of them below 0",
    ),
    "a size of 70 bits": (
        lambda model: tensor(model, "tokens")["sizes"][0].update(as_int=2**70),
        "expected an integer of 64 bits",
    ),
    "a size that is text": (
        lambda model: tensor(model, "tokens")["sizes"][0].update(as_int="8"),
        "expected an integer of 64 bits",
    ),
    "another schema": (lambda model: model["schema_version"].update(major=9), "expected schema 8"),
    "an unknown dtype": (
        lambda model: tensor(model, "tokens").update(dtype=99),
        "unknown dtype 99",
    ),
    "a sparse tensor": (lambda model: tensor(model, "tokens").update(layout=1), "is not strided"),
    "nodes that are no list": (
        lambda model: model["graph_module"]["graph"].update(nodes={}),
        "expected a list, got an object",
    ),
    "a custom object": (
        lambda model: nodes_of(model)[0]["inputs"][0].update(
            arg={"as_custom_obj": {"name": "a", "class_fqn": "b"}}
        ),
        "the argument is 'as_custom_obj'",
    ),
    "a complex number of texts": (
        lambda model: nodes_of(model)[0]["inputs"][0].update(
            arg={"as_complex": {"real": 1, "imag": "2"}}
        ),
        "graph.nodes[0]: expected a number, got '2'",
    ),
    "an argument that the op lacks": (
        lambda model: nodes_of(model)[0]["inputs"][0].update(name="selves"),
        "an argument 'selves'",
    ),
    "an input less": (
        lambda model: model["graph_module"]["signature"]["input_specs"].pop(),
        "as many inputs and outputs",
    ),
    "an unknown input": (
        lambda model: model["graph_module"]["signature"]["input_specs"].append({"token": {}}),
        "the input is 'token'",
    ),
    "an op that is none": (
        lambda model: nodes_of(model)[0].update(target="torch.ops.aten.nothing.default"),
        "is not a registered op",
    ),
    "a higher-order op": (
        lambda model: nodes_of(model)[0].update(target="torch.ops.higher_order.cond"),
        "the higher-order op 'cond'",
    ),
}


def tensor(model, name):
    return model["graph_module"]["graph"]["tensor_values"][name]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_program_against_the_schema(name, honest, tmp_path):
    change, expected = DAMAGED[name]
    records = dict(honest)
    edited(change)(records, tmp_path)
    assert expected in refused(write_archive(tmp_path / "bad.pt2", records))


def test_a_weight_larger_than_its_record(honest, tmp_path):
    name = next(
        name
        for name in honest
        if name.startswith("data/weights/weight_") and len(honest[name]) == 1024
    )
    assert "is larger than its record of 8 bytes" in refused(
        write_archive(tmp_path / "bad.pt2", {**honest, name: bytes(8)})
    )


def test_it_is_judged_before_torch_is_imported(honest, tmp_path):
    """A process that cannot import torch refuses the file for what is in it."""
    records = dict(honest)
    size_that_calls(records, tmp_path / "mark")
    path = write_archive(tmp_path / "bad.pt2", records)
    code = "import sys; sys.modules['torch'] = None; from hosim.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "import", str(path), "-o", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not plain arithmetic" in done.stderr


def test_extra_files_of_the_user_are_let_be(honest, tmp_path):
    path = write_archive(tmp_path / "good.pt2", {**honest, "extra/notes/about it.txt": b"hello"})
    assert import_pt2(path).ops
    for name in ("extra/../models/model.json", "extra//a", "extra/.a", "extra/a\nb"):
        refused(write_archive(tmp_path / "bad.pt2", {**honest, name: b""}))


def test_a_folder_of_any_name(honest, tmp_path):
    for folder in ("modèle 2/", "archive/"):
        assert import_pt2(write_archive(tmp_path / "good.pt2", honest, folder)).ops
    for folder in ("../", "a\\b/", "/"):
        refused(write_archive(tmp_path / "bad.pt2", honest, folder))


def test_containers_of_python_and_transformers(honest, tmp_path):
    for kind, context in (
        ("builtins.list", "null"),
        ("builtins.dict", '["a"]'),
        ("collections.OrderedDict", '["a"]'),
        ("collections.namedtuple", "a.B"),
        (
            "collections.defaultdict",
            {
                "default_factory_module": "builtins",
                "default_factory_name": "list",
                "dict_context": ["a"],
            },
        ),
        ("transformers.modeling_outputs.CausalLMOutputWithPast", '["logits"]'),
    ):
        records = dict(honest)
        containers({"type": kind, "context": context, "children_spec": [LEAF]})(records, tmp_path)
        assert import_pt2(write_archive(tmp_path / "good.pt2", records)).ops
