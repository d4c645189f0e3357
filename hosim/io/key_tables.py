"""Tables of keys: a dataclass, and the mapping that represents it in a file.

A table gives the check of the mapping (pydantic's validator, and the JSON Schema), its reader and
its writer. A mapping is read after it was checked. Errors that only reading finds, such as an
unknown name, are an :class:`InputError` with the path inside the file.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, Literal, NotRequired, Optional, TypeVar

from pydantic import TypeAdapter

from hosim.base.files import format_of, unknown_name
from hosim.errors import InputError
from hosim.io.validators import Count, Name, mapping_type

T = TypeVar("T")

REQUIRED: Any = object()
"""Stands for a missing default."""


def same(value: Any) -> Any:
    """Return a value that is the same in the file."""
    return value


@dataclass(frozen=True)
class Kind:
    """The form of a value in a file: the type for the check, and the functions that write and read
    it.
    """

    type: Any
    write: Callable[[Any], Any] = same
    read: Callable[[Any], Any] = same


TEXT, NAME, COUNT, FLAG = Kind(str), Kind(Name), Kind(Count), Kind(bool)


def literal(*values: str) -> Kind:
    """One of these texts."""
    return Kind(Literal[values])


@dataclass(frozen=True)
class Key:
    """A key of a mapping. It is read into the argument ``attribute``, and written from that
    attribute or from the result of ``get``.

    A missing key has the ``default``, in the form of the file, or else that of the argument.
    Without either it is ``required``, unless that is given. With ``brief`` the key is not written
    if it has its default.
    """

    name: str
    kind: Kind
    attribute: str = ""
    get: Callable[[Any], Any] | None = None
    default: Any = REQUIRED
    brief: bool = False
    required: bool | None = None
    is_read: bool = True
    is_written: bool = True


def keys(kind: Kind, *names: str, **options: Any) -> list[Key]:
    """Keys that differ only in their names."""
    return [Key(name, kind, **options) for name in names]


def note(name: str, kind: Kind = TEXT) -> Key:
    """A key for readers of the file only, which is neither read nor written."""
    return Key(name, kind, is_read=False, is_written=False)


def constant(name: str, kind: Kind, get: Callable[[Any], Any]) -> Key:
    """A key that every file has and that :meth:`KeyTable.read` does not need."""
    return Key(name, kind, get=get, required=True, is_read=False)


def format_key(kind: str) -> Key:
    """The first key of every file of a kind."""
    return constant("format", literal(format_of(kind)), lambda _: format_of(kind))


class KeyTable(Generic[T]):
    """A table of the keys of an object that ``made`` makes: a dataclass, or a function with
    defaults of its own. ``make`` is a faster alternative.

    ``name`` and ``about`` are those of the mapping in the JSON Schema.
    """

    def __init__(
        self,
        name: str,
        about: str,
        made: Callable[..., T],
        *keys: Key,
        make: Callable[..., T] | None = None,
    ) -> None:
        self._name = name
        self._about = about
        self._keys = keys
        self._make = make or made
        defaults = _defaults(made)
        self._default = {
            key.name: defaults.get(key.attribute or key.name, key.default) for key in self._keys
        }
        self._read = [
            (key.name, key.attribute or key.name, key.kind.read, key.default)
            for key in self._keys
            if key.is_read
        ]
        self._write = [
            (
                key.name,
                key.get or attrgetter(key.attribute or key.name),
                key.kind.write,
                key.brief,
                self._default[key.name],
            )
            for key in self._keys
            if key.is_written
        ]

    @cached_property
    def model(self) -> Any:
        """The type of the mapping, for pydantic."""
        keys = {}
        for key in self._keys:
            missing = key.is_read and self._default[key.name] is REQUIRED
            required = missing if key.required is None else key.required
            keys[key.name] = key.kind.type if required else NotRequired[key.kind.type]
        return mapping_type(self._name, self._about, keys)

    @property
    def adapter(self) -> TypeAdapter[Any]:
        """The validator of a mapping."""
        return TypeAdapter(self.model)

    @property
    def kind(self) -> Kind:
        """The form of the mapping as the value of a key."""
        return Kind(self.model, self.write, self.read)

    def read(self, data: Mapping[str, Any], **more: Any) -> T:
        """Return the object that a checked mapping describes; ``more`` are arguments that the
        mapping does not have. Raises :class:`InputError` with the path inside it.
        """
        name = ""
        try:
            for name, attribute, read, default in self._read:
                value = data.get(name, default)
                if value is not REQUIRED:
                    more[attribute] = value if read is same else read(value)
        except InputError as error:
            raise inside(name, error) from None
        return self._make(**more)

    def write(self, value: T) -> dict[str, Any]:
        """Return the mapping, with its keys in the order of the table."""
        data = {}
        for name, get, write, brief, default in self._write:
            found = get(value)
            if not brief or found != default:
                data[name] = found if write is same else write(found)
        return data


def _defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the arguments that have one."""
    if not is_dataclass(make):
        return {
            p.name: p.default
            for p in inspect.signature(make).parameters.values()
            if p.default is not p.empty
        }
    factories = {
        f.name: f.default_factory() for f in fields(make) if f.default_factory is not MISSING
    }
    return factories | {f.name: f.default for f in fields(make) if f.default is not MISSING}


def inside(step: str | int, error: InputError) -> InputError:
    """Return the error of a value at ``step``, with its path one step longer."""
    where = error.where or ""
    first = f"[{step}]" if isinstance(step, int) else step
    return InputError(
        error.message,
        where=f"{first}.{where}" if where and not where.startswith("[") else first + where,
    )


def optional(kind: Kind) -> Kind:
    """A value or ``null``."""

    def unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return (
            same if function is same else lambda value: None if value is None else function(value)
        )

    return Kind(Optional[kind.type], unless_none(kind.write), unless_none(kind.read))  # noqa: UP045  # not every type has an |


def several(kind: Kind) -> Kind:
    """A tuple, which is a list in the file."""

    def read(values: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            found.extend(map(kind.read, values))
        except InputError as error:
            raise inside(len(found), error) from None
        return tuple(found)

    def write(values: Iterable[Any]) -> list[Any]:
        return list(map(kind.write, values))

    return Kind(
        list[kind.type],  # type: ignore[name-defined]
        list if kind.write is same else write,
        tuple if kind.read is same else read,
    )


def mapping(kind: Kind, names: Any = str) -> Kind:
    """A mapping of names to values."""

    def through(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return (
            dict
            if function is same
            else lambda values: {name: function(value) for name, value in values.items()}
        )

    return Kind(dict[names, kind.type], through(kind.write), through(kind.read))  # type: ignore[name-defined]


def by_name(table: KeyTable[Any]) -> Kind:
    """A tuple of named objects, which is a mapping of their names to the rest in the file."""
    return Kind(
        dict[Name, table.model],  # type: ignore[name-defined]
        lambda values: {value.name: table.write(value) for value in values},
        lambda data: tuple([table.read(entry, name=name) for name, entry in data.items()]),
    )


@dataclass(frozen=True)
class Names:
    """Positions of tensors or ops, which are names in a file. ``listed`` has the objects, ``at``
    the positions by name.
    """

    what: str
    at: Mapping[str, int]
    listed: Sequence[Any] = ()

    @property
    def one(self) -> Kind:
        """A position, which is a name in the file."""
        return Kind(str, lambda position: self.listed[position].name, self.position)

    @property
    def many(self) -> Kind:
        """Positions, which are a list of names in the file."""
        at, listed = self.at, self.listed

        def read(names: Sequence[str]) -> tuple[int, ...]:
            try:
                return tuple([at[name] for name in names])
            except KeyError:
                return several(self.one).read(names)  # type: ignore[no-any-return]  # which says what is wrong with which one

        return Kind(list[str], lambda positions: [listed[p].name for p in positions], read)

    def position(self, name: str) -> int:
        """Return the position of a name. Raises :class:`InputError` for an unknown one."""
        if name not in self.at:
            raise InputError(unknown_name(self.what, name, self.at))
        return self.at[name]
