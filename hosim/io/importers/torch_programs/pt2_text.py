"""Checks of the texts in a ``.pt2`` archive: size expressions and descriptions of containers. No
text is evaluated.

torch gives size expressions to sympy, which runs them as Python, and looks up the modules that a
description of containers names. hosim needs neither: it takes a size from the number beside the
expression. A text with anything that is not listed here could make another program run code when it
reads the file, so hosim refuses the file.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from hosim.errors import InputError
from hosim.limits import within
from hosim.units import LARGEST

# -- single values ---------------------------------------------------------------------------------
# Checks of single values in the JSON of a ``.pt2`` archive. Each returns the value, or raises an
# error that names its place, ``where``.


def _shown(data: Any) -> str:
    if isinstance(data, list):
        return "a list"
    return "an object" if isinstance(data, dict) else ascii(data)[:40]


def _checked(data: Any, is_valid: bool, expected: str, where: str) -> Any:
    if not is_valid:
        raise InputError(f"expected {expected}, got {_shown(data)}", where=where)
    return data


def whole(data: Any, where: str) -> int:
    """Return ``data`` if it is an integer of 64 bits."""
    fits = type(data) is int and -LARGEST - 1 <= data <= LARGEST
    return int(_checked(data, fits, "an integer of 64 bits", where))


def number(data: Any, where: str) -> float:
    """Return ``data`` as a float. torch writes infinities and NaN as words."""
    if isinstance(data, int):
        return float(whole(data, where))
    known = isinstance(data, float) or data in ("Infinity", "-Infinity", "NaN")
    return float(_checked(data, known, "a number", where))


def flag(data: Any, where: str) -> bool:
    """Return ``data`` if it is true or false."""
    return bool(_checked(data, isinstance(data, bool), "true or false", where))


def text(data: Any, where: str, *, any_length: bool = False) -> str:
    """Return ``data`` if it is text, and no longer than a name may be (or, with ``any_length``, of
    any length).
    """
    found = str(_checked(data, isinstance(data, str), "text", where))
    if not any_length:
        within("name_length", len(found), where=where)
    return found


def texts(data: Any, where: str) -> None:
    """Raise :class:`InputError` unless ``data`` is a list of texts."""
    for item in items(data, where):
        text(item, where, any_length=True)


def word(data: Any, where: str) -> str:
    """Return ``data`` if it is the name of a value. It must be an identifier of Python, because
    torch writes Python code with it.
    """
    is_word = isinstance(data, str) and data.isidentifier()
    return text(_checked(data, is_word, "the name of a value", where), where)


def items(data: Any, where: str) -> Sequence[Any]:
    """Return ``data`` as a list if it is one."""
    return list(_checked(data, isinstance(data, list), "a list", where))


def mapping(data: Any, where: str) -> dict[str, Any]:
    """Return ``data`` as a dict if it is an object."""
    return dict(_checked(data, isinstance(data, dict), "an object", where))


def fields(
    data: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return ``data`` as a dict if it is an object that has the required keys and no key beyond the
    optional ones.
    """
    found = mapping(data, where)
    for key in found:
        if key not in required and key not in optional:
            raise InputError(
                f"unknown key {key[:40]!r}; write it again with torch 2.13", where=where
            )
    for key in required:
        if key not in found:
            raise InputError(
                f"key {key!r} is missing; write it again with torch.export.save", where=where
            )
    return found


def only(data: Any, where: str) -> tuple[str, Any]:
    """Return the key and the value of an object that has one key."""
    found = mapping(data, where)
    if len(found) != 1:
        raise InputError(f"expected an object with one key, got {len(found)}", where=where)
    return next(iter(found.items()))


# -- size expressions ------------------------------------------------------------------------------


_FUNCTIONS = frozenset(
    # as sympy writes them
    (
        "Add",
        "Mul",
        "Pow",
        "Mod",
        "Max",
        "Min",
        "Abs",
        "floor",
        "ceiling",
        "sqrt",
        "sign",
        "log",
        "exp",
        "Integer",
        "Rational",
        "Float",
    )
) | {
    *(
        "Equality",
        "Unequality",
        "GreaterThan",
        "LessThan",
        "StrictGreaterThan",
        "StrictLessThan",
        "Eq",
        "Ne",
        "Ge",
        "Le",
        "Gt",
        "Lt",
    ),
    *("And", "Or", "Not", "Xor", "ITE", "Piecewise", "ExprCondPair", "Tuple"),
    # as torch adds them
    *(
        "FloorDiv",
        "ModularIndexing",
        "Where",
        "PythonMod",
        "CleanDiv",
        "CeilToInt",
        "FloorToInt",
        "CeilDiv",
        "LShift",
        "RShift",
    ),
    *(
        "PowByNatural",
        "FloatPow",
        "FloatTrueDiv",
        "IntTrueDiv",
        "IsNonOverlappingAndDenseIndicator",
        "TruncToFloat",
        "TruncToInt",
    ),
    *(
        "RoundToInt",
        "RoundDecimal",
        "ToFloat",
        "Identity",
        "OpaqueUnaryFn_sqrt",
        "OpaqueUnaryFn_log2",
        "OpaqueUnaryFn_exp",
    ),
    *("BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor"),
}
"""The functions that an expression may call, beside ``Symbol``."""

_ASSUMPTIONS = frozenset(
    (
        "positive",
        "negative",
        "nonnegative",
        "nonpositive",
        "zero",
        "nonzero",
        "integer",
        "real",
        "finite",
        "commutative",
        "rational",
    )
) | {"extended_real", "even", "odd"}
_SYMBOL = re.compile(r"[a-z]{1,4}\d{1,19}", re.ASCII)
_ONE_SYMBOL = re.compile(
    r"""([a-z]{1,4}\d{1,19})|Symbol\(['"]([a-z]{1,4}\d{1,19})['"](?:, \w+=(?:True|False))*\)""",
    re.ASCII,
)
_CONSTANTS = frozenset(("true", "false", "oo", "int_oo", "zoo", "nan"))
_CHARACTERS = re.compile(r"[\w\s+\-*/%<>=!&|~(),.'\"]*", re.ASCII)
_LONGEST = 100_000
_OPERATORS = (
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.Load,
)
_NO_OPERATORS = (ast.MatMult, ast.In, ast.NotIn, ast.Is, ast.IsNot)


def check_expression(text: str, where: str) -> None:
    """Raise :class:`InputError` unless ``text`` is arithmetic on numbers and symbols, such as
    ``Mul(Integer(2), Symbol('s0'))``.

    >>> check_expression("Mul(Integer(2), Symbol('s0', positive=True, integer=True))", "a")
    >>> check_expression("open('x')", "a")
    Traceback (most recent call last):
    hosim.errors.InputError: a: size expression "open('x')" is not plain arithmetic; export the program again
    """
    refused = InputError(
        f"size expression {text[:60]!r} is not plain arithmetic; export the program again",
        where=where,
    )
    if len(text) > _LONGEST or "__" in text or not _CHARACTERS.fullmatch(text):
        raise refused
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on odd spellings such as "1if"
            tree = ast.parse(text.strip(), mode="eval")
        allowed = _is_arithmetic(tree.body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise refused from None
    if not allowed:
        raise refused


def symbol_of(text: str) -> str:
    """Return the symbol if a checked expression is one, else an empty text.

    >>> symbol_of("Symbol('s0', positive=True)"), symbol_of("Mul(Integer(2), Symbol('s0'))")
    ('s0', '')
    """
    found = _ONE_SYMBOL.fullmatch(text.strip())
    return found[1] or found[2] if found else ""


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return (
            _is_symbol(node)
            if isinstance(node.func, ast.Name) and node.func.id == "Symbol"
            else _is_function(node)
        )
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (bool, int, float))
    if isinstance(node, ast.Name):
        return bool(_SYMBOL.fullmatch(node.id)) or node.id in _CONSTANTS
    if not isinstance(node, _OPERATORS) or isinstance(node, _NO_OPERATORS):
        return False
    return all([_is_arithmetic(part) for part in ast.iter_child_nodes(node)])


def _is_symbol(call: ast.Call) -> bool:
    """Return whether a call is ``Symbol("s0", positive=True)``."""
    return (
        len(call.args) == 1
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
        and bool(_SYMBOL.fullmatch(call.args[0].value))
        and all(
            [
                k.arg in _ASSUMPTIONS
                and isinstance(k.value, ast.Constant)
                and isinstance(k.value.value, bool)
                for k in call.keywords
            ]
        )
    )


def _is_function(call: ast.Call) -> bool:
    """Return whether a call is of a listed function, with arithmetic as its arguments. sympy
    writes ``Float('1.5', precision=53)``, whose arguments are numbers as text.
    """
    if not isinstance(call.func, ast.Name) or call.func.id not in _FUNCTIONS:
        return False
    if call.func.id == "Float":
        words = [
            *call.args,
            *(keyword.value for keyword in call.keywords if keyword.arg in ("precision", "dps")),
        ]
        numbers = all(
            [
                isinstance(w, ast.Constant) and re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", str(w.value))
                for w in words
            ]
        )
        return numbers and len(words) == len(call.args) + len(call.keywords)
    return not call.keywords and all([_is_arithmetic(one) for one in call.args])


_SEQUENCES = {"builtins.tuple", "builtins.list", "torch.Size"}
_MAPPINGS = {"builtins.dict", "collections.OrderedDict"}
_FACTORIES = [
    ("builtins", name) for name in ("list", "tuple", "dict", "set", "int", "float", "str", "bool")
]
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_OF_TRANSFORMERS = re.compile(r"transformers(\.[A-Za-z]\w*)+", re.ASCII)


def check_containers(text: str, where: str) -> None:
    """Raise :class:`InputError` unless ``text`` describes containers of Python or outputs of
    ``transformers``, as torch writes them.

    >>> check_containers(
    ...     '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]', "a"
    ... )
    """
    try:
        found = json.loads(text)
        allowed = (
            isinstance(found, list)
            and len(found) == 2
            and found[0] == 1
            and _is_container(found[1])
        )
    except (ValueError, RecursionError):
        allowed = False
    if not allowed:
        message = (
            f"the containers {text[:60]!r} are not tuples, lists, dicts or outputs of "
            "transformers; export a program with those"
        )
        raise InputError(message, where=where)


def _is_container(node: Any) -> bool:
    if (
        not isinstance(node, dict)
        or set(node) != {"type", "context", "children_spec"}
        or not isinstance(node["children_spec"], list)
    ):
        return False
    kind, children = node["type"], node["children_spec"]
    if kind is None:
        return node["context"] is None and not children
    return (
        isinstance(kind, str)
        and _is_context(kind, node["context"])
        and all([_is_container(child) for child in children])
    )


def _is_context(kind: str, context: Any) -> bool:
    """Return whether the context of a description fits its type: the keys of a dict,
    for instance.
    """
    if kind == "collections.namedtuple":
        return isinstance(context, str) and bool(_DOTTED.fullmatch(context))
    value = json.loads(context) if isinstance(context, str) else context
    if kind in _SEQUENCES:
        return value is None
    if kind in _MAPPINGS:
        return isinstance(value, list) and _is_plain(value)
    if kind == "collections.deque":
        return value is None or isinstance(value, int)
    if kind == "collections.defaultdict":
        if not isinstance(value, dict) or set(value) != {
            "default_factory_module",
            "default_factory_name",
            "dict_context",
        }:
            return False
        factory, keys = (
            (value["default_factory_module"], value["default_factory_name"]),
            value["dict_context"],
        )
        return factory in _FACTORIES and isinstance(keys, list) and _is_plain(keys)
    return bool(_OF_TRANSFORMERS.fullmatch(kind)) and _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Return whether no key in a value has two underscores: torch marks with them what
    it imports.
    """
    if isinstance(value, dict):
        return all(["__" not in key and _is_plain(item) for key, item in value.items()])
    if isinstance(value, list):
        return all([_is_plain(item) for item in value])
    return value is None or isinstance(value, (str, int, float))
