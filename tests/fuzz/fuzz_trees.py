"""Changes to data that has a structure: a tree of lists and members, read from JSON, YAML, TOML, CSV and pickles, and written again."""

from __future__ import annotations

import csv
import io
import json
import pickle
import tomllib
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import yaml
from fuzz_values import TEXTS, Raw, extreme_value, other_text, other_value


class Members(list[list[Any]]):
    """The members of an object as pairs of key and value, so that a key may come twice, and the order may change."""


def tree_of(value: Any) -> Any:
    """Dicts as members."""
    if isinstance(value, dict):
        return Members([key, tree_of(inner)] for key, inner in value.items())
    return [tree_of(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(tree: Any) -> Any:
    """Members as dicts, raw text as text."""
    if isinstance(tree, Members):
        return {key if isinstance(key, str | int) else str(key): plain(inner) for key, inner in tree}
    if isinstance(tree, list):
        return [plain(inner) for inner in tree]
    return _unraw(tree) if isinstance(tree, Raw) else tree


def _unraw(text: Raw) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return str(text)


def slots(tree: Any) -> list[tuple[Any, int]]:
    """Every place of a value: its list or pair, and the index there."""
    found, todo = [], [tree]
    while todo:
        container = todo.pop()
        if not isinstance(container, list):
            continue
        if isinstance(container, Members):
            places = [(pair, 1) for pair in container]
        else:
            places = [(container, i) for i in range(len(container))]
        found += places
        todo += [holder[i] for holder, i in places]
    return found


def change(draw: Random, tree: Any) -> Any:
    """The tree with one change."""
    places = slots(tree)
    if not places:
        return other_value(draw, tree)
    holder, at = draw.choice(places)
    way = draw.randrange(20)
    if way < 8:
        holder[at] = other_value(draw, holder[at])
    elif way < 11:
        other, i = draw.choice(places)
        holder[at] = deepcopy(other[i])
    elif way == 11:
        holder[at] = draw.choice(([holder[at]], Members([["x", holder[at]]]), [holder[at], holder[at]], []))
    else:
        _change_container(draw, draw.choice([c for c in _containers(tree) if c] or [holder]), way)
    return tree


def extreme(draw: Random, tree: Any) -> Any:
    """The tree with one value at the edge of its type. Each key is as likely as the others, however often it comes."""
    by_key: dict[str, list[tuple[Any, int]]] = {}
    todo: list[tuple[Any, str]] = [(tree, "")]
    while todo:
        container, key = todo.pop()
        named = isinstance(container, Members)
        for i, pair in enumerate(container):
            holder, at = (pair, 1) if named else (container, i)
            inner = str(pair[0]) if named else key
            if isinstance(holder[at], list) and holder[at]:
                todo.append((holder[at], inner))
            else:
                by_key.setdefault(inner, []).append((holder, at))
    if by_key:
        holder, at = draw.choice(by_key[draw.choice(sorted(by_key))])
        holder[at] = extreme_value(draw, holder[at])
    return tree


def _containers(tree: Any) -> list[Any]:
    return [tree, *(holder[i] for holder, i in slots(tree) if isinstance(holder[i], list))]


def _change_container(draw: Random, container: list[Any], way: int) -> None:
    at = draw.randrange(len(container))
    if way < 14:
        del container[at]
    elif way < 16:
        container.insert(draw.randrange(len(container) + 1), deepcopy(container[at]))
    elif way == 16 and isinstance(container, Members):
        key = container[at][0]
        container[at][0] = draw.choice((draw.choice(container)[0], other_text(draw, str(key)), draw.choice(TEXTS)))
    elif way == 17:
        container.reverse() if draw.random() < 0.5 else draw.shuffle(container)
    elif way == 18 and isinstance(container, Members):
        container.append([draw.choice(TEXTS), other_value(draw, 0)])
    else:
        container += [deepcopy(container[at]) for _ in range(draw.choice((1, 3, 40)))]


# ---- JSON


def read_json(content: bytes) -> Any:
    """The tree in a text of JSON."""
    return json.loads(content, object_pairs_hook=lambda pairs: Members(map(list, pairs)))


def json_text(tree: Any) -> str:
    """A tree as JSON; raw text stands in it as it is."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Members):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {json_text(inner)}" for key, inner in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(json_text, tree)) + "]"
    return json.dumps(tree)


def changed_json(draw: Random, content: bytes) -> bytes:
    return json_text(_changed(draw, read_json(content))).encode()


def changed_yaml(draw: Random, content: bytes) -> bytes:
    """As block or flow style."""
    tree = _changed(draw, tree_of(yaml.safe_load(content)))
    if draw.random() < 0.5:
        return json_text(tree).encode()
    return yaml.safe_dump(plain(tree), sort_keys=False, allow_unicode=draw.random() < 0.5).encode("utf-8", "surrogatepass")


# ---- TOML


def toml_text(tree: Members) -> str:
    """A tree as TOML with tables inside lines."""
    return "".join(f"{_toml_key(key)} = {_toml(inner)}\n" for key, inner in tree)


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))


def _toml(tree: Any) -> str:
    if isinstance(tree, Raw):
        return str(tree).replace("NaN", "nan").replace("Infinity", "inf")
    if isinstance(tree, Members):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml(inner)}" for key, inner in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_toml, tree)) + "]"
    return "nan" if tree is None else json.dumps(tree).replace("\\ud", "\\\\ud")


def changed_toml(draw: Random, content: bytes) -> bytes:
    tree = _changed(draw, tree_of(tomllib.loads(content.decode())))
    return toml_text(tree if isinstance(tree, Members) else Members([["x", tree]])).encode("utf-8", "surrogatepass")


# ---- CSV and lines


def changed_csv(draw: Random, content: bytes) -> bytes:
    """Rows and cells; a cell is text, so numbers are tried as text."""
    tree = _changed(draw, [list(row) for row in csv.reader(io.StringIO(content.decode(), newline=""))])
    out = io.StringIO()
    rows = [
        [_cell(cell) for cell in row] if isinstance(row, list) else [_cell(row)] for row in (tree if isinstance(tree, list) else [tree])
    ]
    for row in rows:
        try:
            csv.writer(out, lineterminator=draw.choice(("\n", "\r\n"))).writerow(row)
        except csv.Error:
            out.write(",".join(row) + "\n")
    return out.getvalue().encode("utf-8", "surrogatepass")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def changed_lines(draw: Random, content: bytes) -> bytes:
    """Lines, and the words in them."""
    tree: list[Any] = [line.split(" ") for line in content.decode().split("\n")]
    return "\n".join(
        " ".join(map(_cell, line)) if isinstance(line, list) else _cell(line) for line in _listed(_changed(draw, tree))
    ).encode("utf-8", "surrogatepass")


def _listed(tree: Any) -> list[Any]:
    return tree if isinstance(tree, list) else [tree]


# ---- pickle


class Calls:
    """What a hostile pickle calls when it is read."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        import os

        return os.system, ("touch canary",)


def changed_pickle(draw: Random, content: bytes) -> bytes:
    """Values, the protocol, and sometimes a call."""
    value = plain(_changed(draw, tree_of(pickle.loads(content))))
    if draw.random() < 0.1:
        value = draw.choice(([value, Calls()], {"segments": Calls()}, Calls(), {"segments": [], "device_traces": [[Calls()]]}))
    return pickle.dumps(value, draw.randrange(pickle.HIGHEST_PROTOCOL + 1))


def _changed(draw: Random, tree: Any) -> Any:
    """The tree with one to four changes; of one in four times a single value is at the edge of its type."""
    if draw.random() < 0.25 and isinstance(tree, list):
        return extreme(draw, tree)
    for _ in range(draw.choice((1, 1, 1, 1, 2, 4))):
        tree = change(draw, tree)
    return tree
