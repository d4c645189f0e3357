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


MODULES = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}


def calls_import(tree: ast.AST) -> bool:
    """Whether a file imports by a string."""
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(called & {"import_module", "__import__"})


def named_in_strings(tree: ast.AST) -> set[str]:
    """The modules of hosim that a file imports by strings: ``module:function``, and names of modules where ``import_module`` is called."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = {text.partition(":")[0] for text in texts if ":" in text}
    return (found | texts if calls_import(tree) else found) & set(MODULES)


def test_no_circle_of_imports() -> None:
    """Imports for the type checker, inside functions and by strings count: what cannot be read from one end is one file, or three."""
    modules = grimp.build_graph("hosim", exclude_type_checking_imports=False, cache_dir=None)
    edges = [(module, imported) for module in modules.modules for imported in modules.find_modules_directly_imported_by(module)]
    edges += [(module, named) for module, file in MODULES.items() for named in named_in_strings(FILES[file])]
    assert [sorted(found) for found in networkx.strongly_connected_components(networkx.DiGraph(edges)) if len(found) > 1] == []


DYNAMIC = {"gate/imports.py", "lazy_names.py", "lower/hyper_parallel_planner.py", "policies/policy.py"}
"""Files that import by a string, from: the user's project, a room's façade (checked below), another library, and ``module:function``."""


def test_no_other_file_imports_by_a_string() -> None:
    assert {str(file.relative_to(PACKAGE)) for file, tree in FILES.items() if calls_import(tree)} == DYNAMIC


def test_strings_that_import_are_read() -> None:
    assert named_in_strings(ast.parse('HOME = "hosim.io"\nimportlib.import_module(HOME)')) == {"hosim.io"}
    assert named_in_strings(ast.parse('make("hosim.policies.own.layerwise:plan")')) == {"hosim.policies.own.layerwise"}
    assert named_in_strings(ast.parse('GROUP = "hosim.policies"')) == set()


def lines_of(file: Path) -> int:
    """How many lines a file has, less those of the docstrings of its functions and classes: pages are made of these."""
    documented = [node for node in ast.walk(FILES[file]) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    return len(file.read_text().splitlines()) - sum(one.end_lineno - one.lineno + 1 for one in docstrings)


def test_no_file_is_long() -> None:
    assert {str(file.relative_to(PACKAGE)): length for file in FILES if (length := lines_of(file)) > LINES} == {}
