"""The house itself: one name for one class, one name for one file, no circle of imports, no file that outgrows its subject."""

import ast
from collections import Counter
from pathlib import Path

import grimp
import networkx

import hosim

PACKAGE = Path(hosim.__file__).parent
FILES = {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}

LINES = 400
"""How long a file may be, docstrings of functions and classes aside. One that is longer has more than one subject."""


def classes() -> Counter[str]:
    """How many classes have a name, those inside functions and classes among them."""
    return Counter(node.name for tree in FILES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_no_two_classes_have_one_name() -> None:
    assert [name for name, count in classes().items() if count > 1] == []


def test_no_two_files_have_one_name() -> None:
    names = Counter(file.name for file in FILES if file.name not in ("__init__.py", "__main__.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_circle_of_imports() -> None:
    """Imports for the type checker and inside functions count: what cannot be read from one end is one file, or three."""
    modules = grimp.build_graph("hosim", exclude_type_checking_imports=False, cache_dir=None)
    edges = ((module, imported) for module in modules.modules for imported in modules.find_modules_directly_imported_by(module))
    assert [sorted(found) for found in networkx.strongly_connected_components(networkx.DiGraph(edges)) if len(found) > 1] == []


def lines_of(file: Path) -> int:
    """How many lines a file has, less those of the docstrings of its functions and classes: pages are made of these."""
    documented = [node for node in ast.walk(FILES[file]) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    return len(file.read_text().splitlines()) - sum(one.end_lineno - one.lineno + 1 for one in docstrings)


def test_no_file_is_long() -> None:
    assert {str(file.relative_to(PACKAGE)): length for file in FILES if (length := lines_of(file)) > LINES} == {}
