"""The house itself: one name for one class, for one file of a room; no circle of imports, no file
that outgrows its subject.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import grimp
import networkx
import pytest

import hosim

PACKAGE = Path(hosim.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))

LINES = 600
"""How long a file may be, docstrings of functions and classes aside. One that is longer has more
than one subject.
"""


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def classes() -> Counter[str]:
    """How many classes have a name, those inside functions and classes among them."""
    return Counter(
        node.name
        for file in FILES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
    )


def test_no_two_classes_have_one_name() -> None:
    assert [name for name, count in classes().items() if count > 1] == []


def test_no_two_files_of_a_room_have_one_name() -> None:
    """A room is a folder of ``hosim/`` with all that is in it."""
    places = [
        file.relative_to(PACKAGE).parts
        for file in FILES
        if file.name not in ("__init__.py", "__main__.py")
    ]
    assert [
        place
        for place, count in Counter((parts[0], parts[-1]) for parts in places).items()
        if count > 1
    ] == []


MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in FILES
}


def calls_import(tree: ast.AST) -> bool:
    """Whether a file imports by a string."""
    called = {
        ast.unparse(node.func).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    return bool(called & {"import_module", "__import__"})


def named_in_strings(tree: ast.AST) -> set[str]:
    """The modules of hosim that a file imports by strings: ``module:function``, and names of
    modules where ``import_module`` is called.
    """
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    found = {text.partition(":")[0] for text in texts if re.fullmatch(r"[\w.]+:\w+", text)}
    return (found | texts if calls_import(tree) else found) & set(MODULES)


def test_no_circle_of_imports() -> None:
    """Imports for the type checker, inside functions and by strings count: what cannot be read from
    one end is one file, or three.
    """
    modules = grimp.build_graph("hosim", exclude_type_checking_imports=False, cache_dir=None)
    edges = [
        (module, imported)
        for module in modules.modules
        for imported in modules.find_modules_directly_imported_by(module)
    ]
    edges += [
        (module, named)
        for module, file in MODULES.items()
        for named in named_in_strings(parsed(file))
    ]
    assert [
        sorted(found)
        for found in networkx.strongly_connected_components(networkx.DiGraph(edges))
        if len(found) > 1
    ] == []


DYNAMIC = {
    "extensions.py",
    "formats/bridges/hyper_parallel_planner.py",
    "gate/imports.py",
    "lazy_names.py",
    "policies/policy.py",
}
"""Files that import by a string, from: a room beside the core, another library, the user's project,
a room's façade (checked below), and ``module:function``.
"""


def test_no_other_file_imports_by_a_string() -> None:
    assert {
        str(file.relative_to(PACKAGE)) for file in FILES if calls_import(parsed(file))
    } == DYNAMIC


def test_strings_that_import_are_read() -> None:
    assert named_in_strings(ast.parse('HOME = "hosim.io"\nimportlib.import_module(HOME)')) == {
        "hosim.io"
    }
    assert named_in_strings(ast.parse('make("hosim.policies.own.layerwise:plan")')) == {
        "hosim.policies.own.layerwise"
    }
    assert named_in_strings(ast.parse('GROUP = "hosim.policies"')) == set()


ROOMS = {
    module: file
    for module, file in MODULES.items()
    if "lazy_names(" in file.read_text() and file.name == "__init__.py" and module != "hosim"
}
"""The packages that have a façade: their ``__init__.py`` says what others use. One without is a
part of the room that it lies in.
"""

NAMES = 30
"""The most names of a façade."""

LEFT = ast.literal_eval((Path(__file__).parent / "inner_imports.txt").read_text())
"""How many names of inner modules each file of hosim and of the tests still imports. It may only
shrink: do not add to it.
"""


def room_of(module: str) -> str:
    """The innermost room that a module lies in; empty at the top."""
    while module and module not in ROOMS:
        module = module.rpartition(".")[0]
    return module


@cache
def exports(room: str) -> dict[str, str]:
    """What a façade has for the type checker: names, and the modules that they come from."""
    block = next(node for node in parsed(ROOMS[room]).body if isinstance(node, ast.If))
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a file, those inside of others among them, without their expressions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


def inner_imports(tree: ast.AST, here: str) -> list[str]:
    """The names that a file imports from inside of rooms that it is not in itself; a module counts
    as one.
    """
    found = []
    for node in statements(tree):
        named = []
        if isinstance(node, ast.ImportFrom) and node.module:
            named = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [(alias.name, "") for alias in node.names]
        for module, name in named:
            if f"{module}.{name}" in MODULES and not (module in ROOMS and name in exports(module)):
                module, name = f"{module}.{name}", ""
            room = room_of(module)
            if room and module not in ROOMS and not f"{here}.".startswith(f"{room}."):
                found.append(f"{module}.{name}".rstrip("."))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_facade_says_one_thing_three_times(room: str) -> None:
    """What the type checker reads, what is imported and ``__all__`` are the same names, at most 30,
    of modules of the room.
    """
    package = import_module(room)
    told = exports(room)
    if "__getattr__" in told:
        del told["__getattr__"]
    assert sorted(package.__all__) == sorted(told)
    assert len(told) <= NAMES
    assert [name for name, module in told.items() if not module.startswith(f"{room}.")] == []
    assert [
        name
        for name, module in told.items()
        if getattr(package, name) is not getattr(import_module(module), name)
    ] == []


def test_what_is_taken_from_a_facade_is_one_of_its_names() -> None:
    """A room in a façade's folder is no attribute of it until somebody has imported it."""
    found = []
    for file in FILES:
        rooms = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in parsed(file).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" in ROOMS
        }
        found += [
            f"{file.relative_to(PACKAGE)}:{node.lineno} {node.value.id}.{node.attr}"
            for node in (ast.walk(parsed(file)) if rooms else ())
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in rooms
            and node.attr not in exports(rooms[node.value.id])
        ]
    assert found == []


def test_no_file_imports_what_is_inside_another_room() -> None:
    """Rooms and tests import façades. What is left is listed, and the list may only shrink."""
    files = [*MODULES.items(), *(("", file) for file in sorted((ROOT / "tests").rglob("*.py")))]
    found = {
        str(file.relative_to(ROOT)): len(inner)
        for module, file in files
        if (inner := inner_imports(parsed(file), module))
    }
    assert {name: count for name, count in found.items() if count > LEFT.get(name, 0)} == {}, (
        "import the façade; docs are in CONTRIBUTING.md"
    )
    assert {name: count for name, count in LEFT.items() if count > found.get(name, 0)} == {}, (
        "it shrank: write the smaller count"
    )


def lines_of(file: Path) -> int:
    """How many lines a file has, less those of the docstrings of its functions and classes: pages
    are made of these.
    """
    documented = [
        node for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    return len(file.read_text().splitlines()) - sum(
        one.end_lineno - one.lineno + 1 for one in docstrings
    )


def test_no_file_is_long() -> None:
    assert {
        str(file.relative_to(PACKAGE)): length
        for file in FILES
        if (length := lines_of(file)) > LINES
    } == {}
