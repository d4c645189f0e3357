"""Validation of files: pydantic's validators over typed dictionaries, with each error as one line.

Validators take and return dictionaries, so that a file of 100,000 ops needs no object for each.
They are strict: ``true``, ``1.5`` and ``"12"`` are not integers, and unknown keys are errors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    with_config,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from hosim.base.files import check_format, did_you_mean
from hosim.errors import InputError, UnitError
from hosim.units import LARGEST, parse_compute, parse_frequency, parse_rate, parse_size, parse_time

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0, le=LARGEST)]
"""A number of bytes, nanoseconds or FLOP that fits in a signed 64-bit integer."""

Name = Annotated[str, Field(min_length=1)]

_NUMBER = r"^\s*\+?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"


def _read_by(parse: Callable[[object], int]) -> PlainValidator:
    """A validator that reads text with a unit as an integer."""

    def check(value: object) -> int:
        try:
            return parse(value)
        except UnitError as error:
            raise PydanticCustomError("quantity", "{message}", {"message": error.message}) from None

    return PlainValidator(check)


def _written(unit: str, example: str) -> WithJsonSchema:
    """The JSON Schema of text with a unit, given as a regular expression."""
    return WithJsonSchema(
        {"type": "string", "pattern": f"{_NUMBER}{unit}\\s*$", "examples": [example]}
    )


Size = Annotated[int, _read_by(parse_size), _written("([kMGTPE]i?)?B", "80 GiB")]
Rate = Annotated[int, _read_by(parse_rate), _written("([kMGTPE]i?)?B/s", "55 GB/s")]
Time = Annotated[int, _read_by(parse_time), _written("(ns|us|µs|ms|s|min)", "10 us")]
ComputeRate = Annotated[int, _read_by(parse_compute), _written("[kMGTPE]?FLOP/s", "989 TFLOP/s")]

Frequency = Annotated[int, _read_by(parse_frequency), _written("[kMG]?Hz", "1.41 GHz")]


def mapping_type(name: str, about: str, keys: dict[str, Any]) -> Any:
    """Return the type of a mapping with exactly these keys, for pydantic; ``name`` and ``about``
    appear in its JSON Schema.
    """
    model = TypedDict(name, keys)  # type: ignore[misc]
    model.__doc__ = about or None
    return with_config(STRICT)(model)


class Format(Generic[T]):
    """A file format: its model, as a validator that is made on first use, and as a JSON Schema."""

    def __init__(self, kind: str, model: Callable[[], TypeAdapter[T]]) -> None:
        self.kind = kind
        self._make = model
        self._adapter: TypeAdapter[T] | None = None

    @property
    def adapter(self) -> TypeAdapter[T]:
        """The validator."""
        if self._adapter is None:
            self._adapter = self._make()
        return self._adapter

    def check(self, data: object, source: str | None) -> T:
        """Return ``data``, checked. Raises :class:`InputError` with the path of the first error."""
        check_format(data, self.kind, source)
        try:
            return self.adapter.validate_python(data)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=True)
            message, where = _explain(_first_told(details), self.schema())
            more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
            raise InputError(message + more, source=source, where=where) from None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the model."""
        return self.adapter.json_schema()


def _first_told(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Return the first error; for a key that is missing because it is misspelt, return the error
    about its spelling.
    """
    first = errors[0]
    if first["type"] == "missing":
        *mapping, key = first["loc"]
        for error in errors:
            *place, unknown = error["loc"]
            if (error["type"], place) == ("extra_forbidden", mapping) and did_you_mean(
                str(unknown), [str(key)]
            ):
                return error
    return first


def path_of(loc: tuple[int | str, ...]) -> str:
    """Return a path inside a file as text.

    >>> path_of(("ops", 3, "inputs", 0))
    'ops[3].inputs[0]'
    >>> path_of(("ops", 3, "also_on", ""))
    "ops[3].also_on['']"
    """
    parts = (
        f"[{step!r}]" if step == "" or isinstance(step, int) else f".{step}"
        for step in loc
        if step != "[key]"
    )
    return "".join(parts).removeprefix(".")


_EXPECTED = {
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "int_parsing_size": "expected an integer up to 2^63-1",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": "expected text",
    "string_unicode": "expected text",
    "string_too_short": "expected text that is not empty",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "dict_type": "expected a mapping",
    "literal_error": "expected {expected}",
    "greater_than": "expected a number above {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
}


def _explain(error: ErrorDetails, schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return a pydantic error as (expected and found values, path)."""
    kind, loc, where = error["type"], error["loc"], path_of(error["loc"])
    if kind == "quantity":
        return error["msg"], where
    known = _keys(schema, loc[:-1])
    if kind == "missing":
        return f"missing; expected the keys {', '.join(known)}" if known else "missing", where
    if kind == "extra_forbidden":
        hint = did_you_mean(str(loc[-1]), known) or f" (known: {', '.join(known)})"
        return f"unknown key {loc[-1]!r}{hint}", where
    context = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in error.get("ctx", {}).items()
    }
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else error["msg"]
    if kind == "less_than_equal" and context.get("le") == LARGEST:
        expected = "expected an integer up to 2^63-1"
    return f"{expected}, got {_found(error['input'])}", where


def _found(value: object) -> str:
    """Return a short text of the value found, in the file's own terms."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def _keys(schema: Mapping[str, Any], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the schema has at ``loc``."""
    node = schema
    for step in (*loc, None):
        for option in node.get("anyOf", ()):
            node = option if option.get("type") != "null" else node
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        if isinstance(step, int):
            node = node.get("items", {})
        elif step is not None:
            node = node.get("properties", {}).get(step) or node.get("additionalProperties") or {}
    return list(node.get("properties", {}))
