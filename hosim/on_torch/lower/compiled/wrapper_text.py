"""The calls of a program that inductor compiled, read from the text that inductor writes for it.

Inductor's text is a straight line of Python: it allocates buffers, names views of them, and calls
kernels and ops of torch. Here it is cut into *calls*: each computes once, allocates what it writes
first, and names the views that it needs. Nothing of a call is changed, so its results are
inductor's to the bit. A line that is none of these is an error: it might do what nobody planned
for.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hosim.errors import InputError

READ, WRITTEN, UPDATED, GATHERED = "read", "written", "updated", "gathered"
"""The use of an argument by a kernel; of one that is gathered it reads single rows."""

_ALLOCATES = re.compile(r"empty_strided(_\w+)?$")
_VIEW = "reinterpret_tensor"
CHECKS = "assert_"
"""The names of functions that check values: their layouts, alignment or dtypes."""
_Made = tuple[str, list[str], tuple[str, ...], list[str]]
"""A call: its function, its lines, what it takes, and what is there afterwards."""
_ROLES = {"in_ptr": READ, "out_ptr": WRITTEN, "in_out_ptr": UPDATED}


@dataclass(frozen=True, slots=True)
class WrapperCall:
    """Lines of the text that compute once.

    ``takes`` are the values that the lines need from before, ``gives`` those that lines after them
    need. ``function`` is what is called, as the text has it.
    """

    function: str
    lines: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrapperText:
    """A program: ``inputs`` by position, its calls in order, and ``results``, calls that compute
    nothing and give one value each.

    ``items`` are values that are one of several results of a call: the name of these, and which.
    ``kernels`` say what each compiled kernel does with its arguments.
    """

    inputs: tuple[str, ...]
    calls: tuple[WrapperCall, ...]
    items: Mapping[str, tuple[str, int]]
    results: tuple[WrapperCall, ...]
    kernels: Mapping[str, tuple[str, ...]]


def read_wrapper(source: str) -> WrapperText:
    """The calls of a program that inductor has written for the CPU. Raises :class:`InputError` for
    a line that is not understood.
    """
    tree = ast.parse(source)
    function = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == "call"
        ),
        None,
    )
    if function is None:
        raise InputError(
            "inductor's program has no function 'call'; this version of torch writes another text "
            "than hosim reads"
        )
    kernels = {
        name: roles
        for node in tree.body
        if (found := _kernel(node)) is not None
        for name, roles in [found]
    }
    return _Cutting(kernels).read(function.body)


def _kernel(node: ast.stmt) -> tuple[str, tuple[str, ...]] | None:
    """The name of a C++ kernel and what it does with its arguments."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(
                func=ast.Attribute(attr="cpp_pybinding"),
                args=[ast.List(), ast.Constant(value=str(code)), *_],
            ),
        ):
            return name, tuple(_roles(code))
    return None


def _roles(code: str) -> Iterator[str]:
    """Yield what a C++ kernel does with each argument, by its declaration: inductor calls them
    ``in_ptr0``, ``out_ptr0`` or ``in_out_ptr0``.
    """
    declared = re.search(r"\bkernel\((.*?)\)", code, re.DOTALL)
    if declared is None:
        raise InputError("a kernel of inductor's program has no declaration that hosim reads")
    for argument in declared[1].split(","):
        name = argument.split()[-1].lstrip("*") if argument.strip() else ""
        role = _ROLES.get(name.rstrip("0123456789"))
        if role is None:
            raise InputError(
                f"a kernel of inductor's program has an argument {name!r}; expected tensors of "
                "fixed sizes"
            )
        uses = re.findall(rf"\b{name}\b(.*)", code[declared.end() :])
        yield (
            GATHERED
            if role == READ and uses and all(re.search(r"\btmp\d", use) for use in uses)
            else role
        )


@dataclass(eq=False)
class _Cutting:
    """Goes through the lines once.

    ``fresh`` are allocations and ``views`` are views that no call has needed yet, by name;
    ``known`` are inputs and what calls have given.
    """

    kernels: Mapping[str, tuple[str, ...]]
    known: dict[str, int] = field(default_factory=dict)
    """By name the call that gives it, -1 for an input."""
    fresh: dict[str, str] = field(default_factory=dict)
    views: dict[str, ast.Assign] = field(default_factory=dict)
    items: dict[str, tuple[str, int]] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)
    made: list[_Made] = field(default_factory=list)

    def read(self, body: Sequence[ast.stmt]) -> WrapperText:
        inputs: tuple[str, ...] = ()
        results: list[_Made] = []
        for line in body:
            match line:
                case ast.Assign(
                    targets=[ast.Tuple(elts=names) | ast.List(elts=names)],
                    value=ast.Name(id="args"),
                ):
                    inputs = tuple(ast.unparse(name) for name in names)
                    self.known.update(dict.fromkeys(inputs, -1))
                case ast.Return(value=ast.Tuple(elts=values)):
                    results = [self._result(value) for value in values]
                case _:
                    self._line(line)
        needed = {name for _, _, takes, _ in (*self.made, *results) for name in takes}
        needed |= {base for name, (base, _) in self.items.items() if name in needed}
        return WrapperText(
            inputs,
            tuple(_call(one, needed) for one in self.made),
            self.items,
            tuple(_call(one, {"result"}) for one in results),
            self.kernels,
        )

    def _line(self, line: ast.stmt) -> None:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)]) if (
                name in self.known or name in self.fresh or name in self.views
            ):
                raise _unknown(line)
            case (
                ast.Delete()
                | ast.Expr(value=ast.Constant())
                | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="args"))))
            ):
                return  # when a buffer ends is known from its uses
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=check), args=[ast.Name() | ast.Tuple(), *_])
            ) if check.startswith(CHECKS):
                self._check(line)
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=function))
            ) if _ALLOCATES.match(function):
                self.fresh[name] = ast.unparse(line)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Name(id=base), slice=ast.Constant(value=int(i))),
            ):
                if base not in self.several:
                    raise _unknown(line)
                self.items[name], self.known[name] = (base, i), self.known[base]
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Name() | ast.Call(func=ast.Name(id="reinterpret_tensor")),
            ):
                self.views[name] = line
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self._made(line, call, name)
            case ast.Expr(value=ast.Call() as call):
                self._made(line, call, None)
            case _:
                raise _unknown(line)

    def _made(self, line: ast.stmt, call: ast.Call, name: str | None) -> None:
        """A line that calls something: a call of its own."""
        function = ast.unparse(call.func)
        if function not in self.kernels and not function.startswith(
            ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.")
        ):
            raise _unknown(line)
        lines, takes, made = self._needs(call)
        self.made.append(
            (function, [*lines, ast.unparse(line)], takes, made + ([name] if name else []))
        )
        self.known.update(dict.fromkeys(made, len(self.made) - 1))
        if name is not None:
            self.known[name] = len(self.made) - 1
            self.several.add(name)

    def _check(self, line: ast.stmt) -> None:
        """A check of what one call has given goes with it; those of inputs are left out, since they
        are checked when they are given.
        """
        lines, takes, _ = self._needs(line)
        makers = {self.known[name] for name in takes}
        if len(makers) == 1 and min(makers) >= 0:
            items = [(name, *self.items[name]) for name in takes if name in self.items]
            self.made[makers.pop()][1].extend(
                [*[f"{name} = {base}[{i}]" for name, base, i in items], *lines, ast.unparse(line)]
            )

    def _needs(self, part: ast.AST) -> tuple[list[str], tuple[str, ...], list[str]]:
        """The lines that make what a part of the text needs, the values that they take, and the
        buffers that they allocate.
        """
        lines: dict[str, None] = {}
        takes: dict[str, None] = {}
        made: list[str] = []

        def need(name: str) -> None:
            if name in self.views:
                for inner in _names(self.views[name].value):
                    need(inner)
                lines[ast.unparse(self.views[name])] = None
            elif name in self.fresh:
                lines[self.fresh.pop(name)] = None
                made.append(name)
                local.add(name)
            elif name in self.known and name not in local:
                takes[name] = None

        local: set[str] = set()
        for name in _names(part):
            need(name)
        return list(lines), tuple(takes), made

    def _result(self, value: ast.expr) -> _Made:
        lines, takes, _ = self._needs(value)
        return "", [*lines, f"result = {ast.unparse(value)}"], takes, ["result"]


def _call(one: _Made, needed: set[str]) -> WrapperCall:
    function, lines, takes, there = one
    return WrapperCall(
        function, tuple(lines), takes, tuple(name for name in there if name in needed)
    )


def _names(part: ast.AST) -> Iterator[str]:
    """The names that a part of the text reads, in its order."""
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _unknown(line: ast.stmt) -> InputError:
    text = ast.unparse(line).splitlines()[0]
    return InputError(
        f"inductor's program has a line that hosim cannot plan: {text[:120]}; offload the model "
        "uncompiled"
    )
