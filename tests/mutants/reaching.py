"""Which tests reach a mutant: those that run its statement; or, for what runs at import, those that
run code with its name in it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from operators import Mutant
from reached import Reached

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """Where a mutant lies: lines of its file, and what else depends on it if they run at import."""

    lines: frozenset[int]
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    names: frozenset[str] = frozenset()
    anywhere: bool = False


class Reaching:
    """Answers for any mutant of some files."""

    def __init__(self, sources: dict[str, str], reached: Reached) -> None:
        self._trees = {path: ast.parse(text) for path, text in sources.items()}
        self._reached = reached
        self._broken = set(reached.failed)
        self._loads: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for path, tree in self._trees.items():
            for name, line in _loads(tree):
                self._loads[name].append((path, line))

    def tests(self, mutant: Mutant) -> set[str]:
        """The tests that may notice."""
        place = _place(self._trees[mutant.path], mutant.line)
        found = self._reached.tests(mutant.path, _mask(place.lines))
        names = self._names(place.names)
        if place.function is not None and not self._reached.tests(
            mutant.path, _mask(frozenset(_lines_of(place.function.body)))
        ):
            names |= {place.function.name}  # newer than the map: whoever runs what calls it
        for name in names:
            for path, line in self._loads[name]:
                found |= self._reached.tests(path, 1 << line)
        if place.anywhere:
            inside = {n for f in _functions(self._trees[mutant.path]) for n in _lines_of(f.body)}
            found |= self._reached.tests(mutant.path, _mask(frozenset(inside)))
        return found - self._broken

    def _names(self, names: frozenset[str]) -> set[str]:
        """And the names of constants that are made from them."""
        seen, todo = set(names), list(names)
        while todo:
            name = todo.pop()
            for path, line in self._loads[name]:
                for other in _bound_at_import(self._trees[path], line):
                    if other not in seen:
                        seen.add(other)
                        todo.append(other)
        return seen


def _place(tree: ast.Module, line: int) -> Place:
    """Descends to the innermost statement that holds the line."""
    body: list[ast.stmt] = tree.body
    function: _Function | None = None
    names: frozenset[str] = frozenset()
    while True:
        statement = next((s for s in body if _first(s) <= line <= (s.end_lineno or s.lineno)), None)
        if statement is None:
            return Place(frozenset({line}))
        inner = [s for s in _children(statement) if _first(s) <= line <= (s.end_lineno or s.lineno)]
        if isinstance(statement, ast.ClassDef):
            names |= {statement.name}
        if not inner:
            break
        if isinstance(statement, _Function):
            function = statement
        body = inner
    if isinstance(statement, _Function):  # a default
        return Place(frozenset(_lines_of(statement.body)), statement)
    heads = [_first(s) for s in _children(statement)]
    last = (
        max(statement.lineno, min(heads) - 1) if heads else statement.end_lineno or statement.lineno
    )
    lines = frozenset(range(statement.lineno, last + 1))
    if (
        isinstance(statement, ast.If | ast.While | ast.For | ast.With | ast.Try | ast.Match)
        and line > last
    ):  # between its parts
        lines = frozenset({line})
    if function is not None:
        return Place(lines, function)
    bound = frozenset(_targets(statement))
    return Place(frozenset(), None, bound | names, anywhere=not bound)


def _bound_at_import(tree: ast.Module, line: int) -> list[str]:
    for statement in tree.body:
        if statement.lineno <= line <= (statement.end_lineno or 0):
            return _targets(statement)
    return []


def _targets(statement: ast.stmt) -> list[str]:
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else []
    )
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def _first(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _children(statement: ast.stmt) -> list[ast.stmt]:
    """The statements directly inside of another."""
    found: list[ast.stmt] = []
    todo = list(ast.iter_child_nodes(statement))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        elif not isinstance(node, ast.expr):
            todo.extend(ast.iter_child_nodes(node))
    return found


def _functions(tree: ast.AST) -> Iterator[_Function]:
    return (n for n in ast.walk(tree) if isinstance(n, _Function))


def _lines_of(body: list[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _loads(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno


def _mask(lines: frozenset[int]) -> int:
    return sum(1 << line for line in lines)
