"""The mutants of a module: small changes of its text, each of which some test should notice.

Left alone are docstrings, annotations, imports, decorators, f-strings, ``if TYPE_CHECKING``, dunder
constants, prose (``help=``) and keywords that only guard (``strict=`` of zip, ``encoding=``), with
their values.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

COMPARISONS = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",), ast.NotEq: ("==",),
    ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
}  # fmt: skip
"""The boundary moved, and the opposite."""
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}
UNTOUCHED_KEYWORDS = {"strict", "encoding", "help", "metavar", "epilog"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file: the bytes ``[start, end)`` become ``text``. ``line`` is where the
    change begins.
    """

    path: str
    line: int
    start: int
    end: int
    text: str
    operator: str

    def apply(self, source: str) -> str:
        """The whole file, changed."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()

    def shown(self, source: str) -> str:
        """The change as one line: what was there, and what is there now."""
        old, new = source.split("\n"), self.apply(source).split("\n")
        last = source.encode()[: self.end].decode().count("\n") + 1
        after = new[self.line - 1 : last + len(new) - len(old)]
        was, now = (
            " ".join(line.strip() for line in lines) for lines in (old[self.line - 1 : last], after)
        )
        return f"{was}  ->  {now}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of the text. A few may not parse, or change nothing: see
    :func:`differs`.
    """
    found = {(m.start, m.end, m.text): m for m in _Finder(path, source).of(ast.parse(source))}
    return [m for _, m in sorted(found.items())]


def differs(mutant: Mutant, source: str) -> bool:
    """Whether the file as changed is Python, and other Python than before."""
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder:
    """Walks a file; ``_in_function`` says whether statements run when called rather than at
    import.
    """

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._raw = source.encode()
        self._starts = [0, *accumulate(len(line) for line in self._raw.splitlines(keepends=True))]
        lines = source.splitlines(keepends=True)
        self._tokens = []
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.OP, tokenize.NAME):
                row, column = token.start
                self._tokens.append(
                    (self._starts[row - 1] + len(lines[row - 1][:column].encode()), token.string)
                )

    def of(self, tree: ast.Module) -> Iterator[Mutant]:
        for statement in tree.body:
            yield from self._statement(statement, in_function=None)

    # -- statements
    # ----------------------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt, in_function: dict[str, int] | None) -> Iterator[Mutant]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._within(
                    [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
                )
                bindings = _bindings(node)
                for inner in node.body:
                    yield from self._statement(inner, bindings)
                return
            case ast.ClassDef():
                for inner in node.body:
                    yield from self._statement(inner, None)
                return
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                return
            case (
                ast.If(test=ast.Name(id="TYPE_CHECKING"))
                | ast.If(test=ast.Compare(left=ast.Name(id="__name__")))
            ):
                return
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
                return
            case ast.Assign(value=ast.BinOp(op=ast.BitOr())) | ast.AnnAssign(value=None) if (
                in_function is None
            ):
                return  # an alias of types; a field
            case ast.AnnAssign(value=ast.expr() as value):
                yield from self._within([value])
            case ast.AugAssign(op=op):
                yield from self._arithmetic(
                    op, self._end(node.target), self._start(node.value), suffix="="
                )
        if in_function is not None:
            if _can_be_dropped(node, in_function):
                yield self._mutant(self._start(node), self._end(node), "pass", "statement")
            if (
                isinstance(node, ast.Return)
                and node.value is not None
                and not isinstance(node.value, ast.Constant)
            ):
                yield self._mutant(self._start(node.value), self._end(node.value), "None", "return")
        if not isinstance(node, ast.AnnAssign):
            for part in ast.iter_child_nodes(node):
                yield from (
                    self._statement(part, in_function)
                    if isinstance(part, ast.stmt)
                    else self._part(part, in_function)
                )

    def _part(self, node: ast.AST, in_function: dict[str, int] | None) -> Iterator[Mutant]:
        """What of a statement is not a statement: expressions, and the handlers, cases and items
        that hold both kinds.
        """
        if isinstance(node, ast.expr):
            yield from self._expression(node)
            return
        for part in ast.iter_child_nodes(node):
            yield from (
                self._statement(part, in_function)
                if isinstance(part, ast.stmt)
                else self._part(part, in_function)
            )

    # -- expressions
    # ----------------------------------------------------------------------------------------------

    def _within(self, nodes: list[ast.expr]) -> Iterator[Mutant]:
        for node in nodes:
            yield from self._expression(node)

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr():
                return
            case ast.Constant(value=bool() as value):
                yield self._mutant(self._start(node), self._end(node), str(not value), "boolean")
            case (
                ast.Constant(value=int() | float())
                | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()))
            ):
                value = ast.literal_eval(node)
                yield self._mutant(self._start(node), self._end(node), repr(value + 1), "constant")
                return
            case ast.UnaryOp(op=ast.Not()):
                yield self._mutant(
                    self._start(node), self._end(node), f"({self._text(node.operand)})", "negation"
                )
            case ast.Compare():
                for op, (left, right) in zip(
                    node.ops, pairwise([node.left, *node.comparators]), strict=True
                ):
                    start, end = self._operator(self._end(left), self._start(right))
                    for other in COMPARISONS[type(op)]:
                        yield self._mutant(start, end, other, "comparison")
            case ast.BoolOp():
                for left, right in pairwise(node.values):
                    start, end = self._operator(self._end(left), self._start(right))
                    yield self._mutant(
                        start, end, "or" if isinstance(node.op, ast.And) else "and", "and/or"
                    )
            case ast.BinOp() if not (_is_text(node.left) or _is_text(node.right)):
                yield from self._arithmetic(node.op, self._end(node.left), self._start(node.right))
            case ast.IfExp():
                for arm in (node.body, node.orelse):
                    yield self._mutant(
                        self._start(node), self._end(node), f"({self._text(arm)})", "arm"
                    )
            case ast.Subscript(slice=ast.Constant(value=0) as index):
                yield self._mutant(self._start(index), self._end(index), "-1", "end")
            case ast.Call():
                yield from self._call(node)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                yield from self._expression(part)
            elif isinstance(part, ast.keyword) and part.arg in UNTOUCHED_KEYWORDS:
                continue
            elif not isinstance(
                part, ast.expr_context | ast.operator | ast.boolop | ast.unaryop | ast.cmpop
            ):
                yield from self._part(part, None)

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in EXTREMES:
            yield self._mutant(
                self._start(node.func), self._end(node.func), EXTREMES[name], "min/max"
            )
        if name == "sorted" and not any(k.arg == "reverse" for k in node.keywords):
            yield self._mutant(self._end(node) - 1, self._end(node) - 1, ", reverse=True", "order")
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in UNTOUCHED_KEYWORDS:
                yield self._mutant(*self._argument(keyword), "", "keyword")

    def _arithmetic(
        self, op: ast.operator, start: int, end: int, suffix: str = ""
    ) -> Iterator[Mutant]:
        if type(op) in ARITHMETIC:
            at, until = self._operator(start, end)
            yield self._mutant(at, until, ARITHMETIC[type(op)][1] + suffix, "arithmetic")

    # -- places
    # ----------------------------------------------------------------------------------------------

    def _mutant(self, start: int, end: int, text: str, operator: str) -> Mutant:
        return Mutant(self._path, bisect_right(self._starts, start), start, end, text, operator)

    def _start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        return self._raw[self._start(node) : self._end(node)].decode()

    def _operator(self, start: int, end: int) -> tuple[int, int]:
        """Where the operator lies between two operands, whose parentheses are no part of them."""
        words = [(at, word) for at, word in self._tokens_in(start, end) if word not in "()"]
        return words[0][0], words[-1][0] + len(words[-1][1])

    def _argument(self, node: ast.keyword) -> tuple[int, int]:
        """Where a keyword argument lies, with its parentheses and one comma."""
        start, end = self._start(node), self._end(node)
        open_ = sum(word == "(" for _, word in self._tokens_in(start, self._start(node.value)))
        for at, word in self._tokens_in(end, len(self._raw)):
            if word == ")" and open_:
                open_, end = open_ - 1, at + 1
            elif word == ",":
                return start, at + 1
            else:
                break
        before = self._tokens_in(0, start)[-1]
        return (before[0], end) if before[1] == "," else (start, end)

    def _tokens_in(self, start: int, end: int) -> list[tuple[int, str]]:
        key: Callable[[tuple[int, str]], int] = lambda token: token[0]  # noqa: E731
        return self._tokens[
            bisect_right(self._tokens, start - 1, key=key) : bisect_right(
                self._tokens, end - 1, key=key
            )
        ]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _bindings(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, int]:
    """How often a function binds each name."""
    counts: dict[str, int] = {}
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    for name in [a.arg for a in arguments] + [
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _can_be_dropped(node: ast.stmt, bindings: dict[str, int]) -> bool:
    """Whether something is left without the statement: to drop the only one that binds a name is an
    error at its first use.
    """
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return True
        case ast.Assign(targets=targets):
            names = [
                n.id
                for target in targets
                for n in ast.walk(target)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
            return all(bindings.get(name, 2) > 1 for name in names)
    return False
