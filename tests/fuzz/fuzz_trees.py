"""Changes to data that has a structure: a tree of lists and members, read from JSON, YAML, TOML,
CSV and pickles, and written again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import pickle
import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import yaml
from fuzz_values import TEXTS, Raw, extreme_value, other_text, other_value


class Members(list[list[Any]]):
    """The members of an object as pairs of key and value, so that a key may come twice, and the
    order may change.
    """


def tree_of(value: Any) -> Any:
    """Dicts as members."""
    if isinstance(value, dict):
        return Members([key, tree_of(inner)] for key, inner in value.items())
    return [tree_of(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(tree: Any) -> Any:
    """Members as dicts, raw text as text."""
    if isinstance(tree, Members):
        return {
            key if isinstance(key, str | int) else str(key): plain(inner) for key, inner in tree
        }
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
        holder[at] = draw.choice(
            ([holder[at]], Members([["x", holder[at]]]), [holder[at], holder[at]], [])
        )
    else:
        _change_container(draw, draw.choice([c for c in _containers(tree) if c] or [holder]), way)
    return tree


def extreme(draw: Random, tree: Any) -> Any:
    """The tree with one value at the edge of its type. Each key is as likely as the others, however
    often it comes.
    """
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
        container[at][0] = draw.choice(
            (draw.choice(container)[0], other_text(draw, str(key)), draw.choice(TEXTS))
        )
    elif way == 17:
        container.reverse() if draw.random() < 0.5 else draw.shuffle(container)
    elif way == 18 and isinstance(container, Members):
        container.append([draw.choice(TEXTS), other_value(draw, 0)])
    else:
        container += [deepcopy(container[at]) for _ in range(draw.choice((1, 3, 40)))]


# ---- JSON


def read_json(content: bytes) -> Any:
    """The tree in a text of JSON."""
    try:
        return json.loads(content, object_pairs_hook=lambda pairs: Members(map(list, pairs)))
    except RecursionError:  # nested deeply by a change before
        return Members([])


def json_text(tree: Any) -> str:
    """A tree as JSON; raw text stands in it as it is."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Members):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(key))}: {json_text(inner)}" for key, inner in tree)
            + "}"
        )
    if isinstance(tree, list):
        return "[" + ", ".join(map(json_text, tree)) + "]"
    return json.dumps(tree)


def changed_json(draw: Random, content: bytes) -> bytes:
    return json_text(_changed(draw, read_json(content))).encode()


def changed_json_line(draw: Random, content: bytes) -> bytes:
    """One line of lines of JSON, changed; one that was broken before stays."""
    lines = content.splitlines() or [b"{}"]
    at = draw.randrange(len(lines))
    with contextlib.suppress(ValueError, RecursionError):
        lines[at] = changed_json(draw, lines[at])
    return b"\n".join(lines)


def mildly_changed_json(draw: Random, content: bytes) -> bytes:
    """Valid more often than not: lists in another order, shorter and longer, numbers a little off,
    values of one key swapped.
    """
    tree = read_json(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        _mild(draw, tree)
    return json_text(tree).encode()


def _mild(draw: Random, tree: Any) -> None:
    """Changes the tree a little."""
    way = draw.randrange(5)
    lists = [c for c in _containers(tree) if c and isinstance(c, list)]
    if not any([isinstance(c, Members) for c in lists]):
        return  # the only element of the outermost list was deleted
    if way < 2:
        by_key: dict[str, list[list[Any]]] = {}
        for pair in [pair for c in lists if isinstance(c, Members) for pair in c]:
            by_key.setdefault(pair[0], []).append(pair)
        one, other = (draw.choice(by_key[draw.choice(sorted(by_key))]) for _ in range(2))
        if way == 0 and one[0] == other[0] and type(one[1]) is type(other[1]):
            one[1], other[1] = other[1], one[1]
        elif isinstance(one[1], int | float):
            one[1] += (
                draw.choice((1, -1, 0.5))
                if isinstance(one[1], float)
                else draw.choice((1, -1, 7, 100))
            )
        return
    plain_lists = [c for c in lists if not isinstance(c, Members)] or lists
    chosen = draw.choice(plain_lists)
    at = draw.randrange(len(chosen))
    if way == 2:
        draw.shuffle(chosen)
    elif way == 3:
        del chosen[at]
    else:
        chosen.insert(draw.randrange(len(chosen) + 1), deepcopy(chosen[at]))


def changed_yaml(draw: Random, content: bytes) -> bytes:
    """As block or flow style."""
    tree = _changed(draw, tree_of(yaml.safe_load(content)))
    if draw.random() < 0.5:
        return json_text(tree).encode()
    return yaml.safe_dump(plain(tree), sort_keys=False, allow_unicode=draw.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )


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
    return toml_text(tree if isinstance(tree, Members) else Members([["x", tree]])).encode(
        "utf-8", "surrogatepass"
    )


# ---- CSV and lines


def changed_csv(draw: Random, content: bytes) -> bytes:
    """Rows and cells; a cell is text, so numbers are tried as text."""
    tree = _changed(
        draw, [list(row) for row in csv.reader(io.StringIO(content.decode(), newline=""))]
    )
    out = io.StringIO()
    rows = [
        [_cell(cell) for cell in row] if isinstance(row, list) else [_cell(row)]
        for row in (tree if isinstance(tree, list) else [tree])
    ]
    for row in rows:
        try:
            csv.writer(out, lineterminator=draw.choice(("\n", "\r\n"))).writerow(row)
        except csv.Error:
            out.write(",".join(row) + "\n")
    return out.getvalue().encode("utf-8", "surrogatepass")


def changed_table(draw: Random, content: bytes) -> bytes:
    """A table that is valid more often than not: rows in another order, twice or gone, numbers
    replaced, cells of a column swapped.
    """
    header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    for _ in range(draw.choice((1, 1, 2, 3))):
        way, row, column = draw.randrange(5), draw.choice(rows), draw.randrange(len(header))
        filled = [i for i, cell in enumerate(row) if cell.replace(".", "", 1).isdigit()]
        if way < 3:
            _rearrange(draw, rows, row, way)
        elif way == 3 and filled:
            row[draw.choice(filled)] = draw.choice(
                (
                    "0",
                    "1",
                    "2",
                    "3",
                    "7",
                    "0.5",
                    "1e-9",
                    "1000",
                    "65537",
                    "1e6",
                    "1e9",
                    "1e12",
                    "9e14",
                )
            )
        elif way == 4:
            other = draw.choice(rows)
            row[column], other[column] = other[column], row[column]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue().encode()


def _rearrange(draw: Random, items: list[list[str]], item: list[str], way: int) -> None:
    """Items in another order (0), one twice (1) or gone (2)."""
    if way == 0:
        draw.shuffle(items)
    elif way == 1:
        items.insert(draw.randrange(len(items) + 1), list(item))
    elif len(items) > 1:
        items.remove(item)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def changed_lines(draw: Random, content: bytes) -> bytes:
    """Lines, and the words in them."""
    tree: list[Any] = [line.split(" ") for line in content.decode().split("\n")]
    return "\n".join(
        " ".join(map(_cell, line)) if isinstance(line, list) else _cell(line)
        for line in _listed(_changed(draw, tree))
    ).encode("utf-8", "surrogatepass")


def changed_kernels(draw: Random, content: bytes) -> bytes:
    """Of the kernels of the G10 simulator, valid more often than not: their order, number, times,
    names and tensors; numbered again.
    """
    bar = re.compile("^_+\n", re.MULTILINE)
    text = content.decode()
    kernels = [kernel.splitlines() for kernel in bar.split(text) if kernel.strip()]
    if not text.startswith("Kernel"):
        return changed_lines(draw, content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        kernel, way = draw.choice(kernels), draw.randrange(6)
        tensors = [i for i, line in enumerate(kernel) if line.startswith("tensor")]
        if way < 3:
            _rearrange(draw, kernels, kernel, way)
        elif way == 3:
            kernel[:] = [
                re.sub(
                    r"^(Execution Time: )\d+",
                    rf"\g<1>{draw.choice((0, 1, 7, 10**6, 10**12))}",
                    line,
                )
                for line in kernel
            ]
        elif way == 4 and tensors:
            del kernel[draw.choice(tensors)]
        elif tensors:
            other = draw.choice(kernels)
            kernel.insert(
                draw.choice(tensors),
                draw.choice(
                    [line for line in other if line.startswith("tensor")] or [kernel[tensors[0]]]
                ),
            )
    numbered = [
        [re.sub(r"^Kernel ID: \d+", f"Kernel ID: {i}", line) for line in kernel]
        for i, kernel in enumerate(kernels)
    ]
    return "".join("\n".join(kernel) + "\n" + "_" * 68 + "\n" for kernel in numbered).encode()


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
        value = draw.choice(
            (
                [value, Calls()],
                {"segments": Calls()},
                Calls(),
                {"segments": [], "device_traces": [[Calls()]]},
            )
        )
    return pickle.dumps(value, draw.randrange(pickle.HIGHEST_PROTOCOL + 1))


def _changed(draw: Random, tree: Any) -> Any:
    """The tree with one to four changes; of one in four times a single value is at the edge of its
    type.
    """
    if draw.random() < 0.25 and isinstance(tree, list):
        return extreme(draw, tree)
    for _ in range(draw.choice((1, 1, 1, 1, 2, 4))):
        tree = change(draw, tree)
    return tree
