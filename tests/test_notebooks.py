"""Every notebook runs, and says what its kept outputs say."""

import ast
import copy
import re
from pathlib import Path
from types import ModuleType

import pytest

import hosim

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
QUICK = {"01-quick-start"}
"""The others take too long for every run of the tests."""
_VARIES = re.compile(r"0x[0-9a-f]+")


def test_there_are_notebooks():
    assert NOTEBOOKS


def case(path):
    """Some take too long for every run of the tests."""
    return pytest.param(
        path,
        id=path.stem,
        marks=[pytest.mark.slow, *([] if path.stem in QUICK else [pytest.mark.long])],
    )


@pytest.mark.parametrize("path", [case(path) for path in NOTEBOOKS])
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_a_notebook_says_what_it_said(path, root):
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    run = copy.deepcopy(kept)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(run, timeout=600, resources={"metadata": {"path": str(root)}}).execute()
    for number, (now, before) in enumerate(zip(run.cells, kept.cells, strict=True)):
        if now.cell_type == "code":
            assert texts(now) == texts(before), (
                f"cell {number} of {path.name}; run it again and look at what changed"
            )
            assert pictures(now) == pictures(before)


def test_notebooks_take_public_names_alone():
    """What they take is there, too: most of them run too seldom to tell."""
    for path in NOTEBOOKS:
        cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        nodes = list(ast.walk(ast.parse("\n".join(cells))))
        names = {}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), names)
                modules = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not [m for m in modules if m and m.startswith("hosim.")], path.name
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found = names.get(node.value.id)
                public = hosim.__all__ if found is hosim else dir(found)
                assert not isinstance(found, ModuleType) or node.attr in public, path.name


def texts(cell):
    """What a cell printed and showed as text or table; what it printed in several pieces is joined,
    for where they break is chance.
    """
    said, stream = [], None
    for output in cell.outputs:
        assert output.output_type != "error"
        before, stream = stream, output.get("name")
        if stream is not None and stream == before:
            said[-1] += output.text
        elif output.output_type == "stream":
            said.append(output.text)
        else:
            said += [
                text
                for kind, text in sorted(output.data.items())
                if kind in ("text/plain", "text/html")
            ]
    return [_VARIES.sub("0x", text) for text in said]


def test_pieces_of_one_stream_are_one_text():
    def said(*pieces):
        return texts(
            nbformat.v4.new_code_cell(
                outputs=[
                    nbformat.v4.new_output("stream", name=name, text=text) for name, text in pieces
                ]
            )
        )

    assert (
        said(("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d"))
        == ["a\nb\n", "c", "d"]
        != said(("stdout", "a\n"))
    )


def pictures(cell):
    kinds = [kind for output in cell.outputs for kind in output.get("data", {})]
    return sum(kind.startswith("image/") for kind in kinds)
