"""Programs in .pt2 files: the same graph as in memory, and nothing of the file executed."""

import json
import os
import pickle
import zipfile

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from hosim.errors import InputError  # noqa: E402
from hosim.importers import load_any  # noqa: E402
from hosim.importers.torch_export import import_exported, import_pt2  # noqa: E402


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).relu_())


def save(path, device="cpu"):
    """A program of :class:`Tied`, and its file."""
    with torch.device(device):
        program = torch.export.export(Tied(), (torch.zeros(8, dtype=torch.int64),), strict=False)
    torch.export.save(program, path)
    return program


def rewritten(path, **changes):
    """A copy of an archive with the files that end in a name of ``changes`` replaced, or added."""
    target = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            for end, change in changes.items():
                content = change(content) if name.endswith(end) else content
            copy.writestr(name, content)
    return target


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_file_gives_the_graph_of_its_program(tmp_path, device):
    path = tmp_path / "tied.pt2"
    program = save(path, device)
    graph = import_pt2(path)
    assert graph == import_exported(program, name="tied") == load_any(path)
    assert graph.meta["file"] == "tied.pt2"
    assert sorted(t.size_bytes for t in graph.tensors if t.kind == "parameter") == [64, 1024, 4096]


@pytest.mark.parametrize("keep", [0, 4, 100, -30])
def test_a_damaged_file(tmp_path, keep):
    path = tmp_path / "tied.pt2"
    save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"tied\.pt2: (damaged|this archive holds no exported program, or is damaged)"):
        import_pt2(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        import_pt2(tmp_path / "none.pt2")


def test_a_zip_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        archive.writestr("a/hello.txt", "hello")
    with pytest.raises(InputError, match="holds no exported program"):
        load_any(tmp_path / "a.pt2")


def test_a_program_that_torch_cannot_read(tmp_path):
    save(tmp_path / "tied.pt2")
    changed = rewritten(
        tmp_path / "tied.pt2", **{"models/model.json": lambda content: content.replace(b'"graph_module"', b'"grph_module"')}
    )
    with pytest.raises(InputError, match=r"changed.pt2: torch cannot load this program"):
        import_pt2(changed)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_is_not_executed(tmp_path):
    save(tmp_path / "tied.pt2")
    trap = tmp_path / "sprung"
    torch.save(Trap(str(trap)), tmp_path / "trap.pt")
    poison = (tmp_path / "trap.pt").read_bytes()
    with pytest.raises(InputError, match="torch cannot load this program"):
        import_pt2(rewritten(tmp_path / "tied.pt2", **{"sample_inputs/model.pt": lambda _: poison}))
    assert not trap.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("name", ["data/constants/custom_obj_0", "data/constants/opaque_obj_0", "data/aotinductor/model/model.so"])
def test_foreign_code_is_refused(tmp_path, name):
    save(tmp_path / "tied.pt2")
    with zipfile.ZipFile(tmp_path / "tied.pt2", "a") as archive:
        archive.writestr(f"tied/{name}", pickle.dumps(Trap(str(tmp_path / "sprung"))))
    with pytest.raises(InputError, match=f"{name} would make torch run code"):
        import_pt2(tmp_path / "tied.pt2")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "target", ["torch.hub.load", "torch.load", "builtins.eval", "_operator.attrgetter.__call__", "math.__loader__.load_module"]
)
def test_a_target_that_is_no_op_is_refused(tmp_path, target):
    save(tmp_path / "tied.pt2")

    def change(content):
        model = json.loads(content)
        model["graph_module"]["graph"]["nodes"][0]["target"] = target
        return json.dumps(model).encode()

    with pytest.raises(InputError, match="is not a registered op"):
        import_pt2(rewritten(tmp_path / "tied.pt2", **{"models/model.json": change}))


def test_a_size_expression_that_is_code_is_refused(tmp_path):
    save(tmp_path / "tied.pt2")

    def change(content):
        return json.dumps({**json.loads(content), "extra": {"expr_str": "__import__('os').getpid()"}}).encode()

    with pytest.raises(InputError, match="is not plain arithmetic"):
        import_pt2(rewritten(tmp_path / "tied.pt2", **{"models/model.json": change}))
