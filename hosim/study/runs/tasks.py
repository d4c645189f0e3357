"""Compute one point of a sweep in any process: a task goes in, a row comes out.

A task has the question as bytes. A worker unpacks them once and keeps the question, so it needs no
file and reads no graph twice.
"""

import hashlib
import inspect
import json
import pickle
import zlib
from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from hosim.analysis import canonical
from hosim.engine import read_budget
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.plain_text import one_line
from hosim.study.asked import Settings, Value
from hosim.study.rows_of_answers import FEASIBLE, figure_columns, figures
from hosim.study.runs.run_policy import unplanned
from hosim.study.runs.scenario import Question, failure, recipe
from hosim.version import __version__

_KEPT = 4
_unpacked: OrderedDict[str, Question] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Packed:
    """A question as bytes. ``digest`` is a fingerprint of the question, equal in every process;
    ``key`` is a fingerprint of the bytes.

    The digest covers a policy function's source text, but not the code that it calls.
    """

    digest: str
    key: str
    content: bytes

    def question(self) -> Question:
        """Return the question; the process keeps the last :data:`_KEPT` that it unpacked."""
        if self.key not in _unpacked:
            _unpacked[self.key] = pickle.loads(zlib.decompress(self.content))
            while len(_unpacked) > _KEPT:
                _unpacked.popitem(last=False)
        return _unpacked[self.key]


def pack(question: Question) -> Packed:
    """Pack the question as bytes, without data derived from its graph. Raises :class:`InputError`
    for a policy that cannot be pickled.
    """
    graph = question.graph
    bare = replace(question, graph=Graph(graph.name, graph.tensors, graph.ops, graph.meta))
    try:
        content = zlib.compress(_dumped(bare), 1)
    except (pickle.PicklingError, RecursionError, TypeError) as error:
        why = "has values that cannot go to another process"
        raise InputError(
            f"a policy of your own {why}: {one_line(str(error), 100)}", source="policy"
        ) from None
    packed = Packed(digest(question), hashlib.sha256(content).hexdigest(), content)
    _unpacked[packed.key] = question  # this process need not unpack it
    return packed


def _dumped(question: Question) -> bytes:
    """Pickle a question. A worker cannot import a notebook's function, so the pickle contains the
    function itself.
    """
    if any(choice.given is not None for choice in (question.choice, *question.others)):
        from joblib import wrap_non_picklable_objects

        return pickle.dumps(
            wrap_non_picklable_objects(question, keep_wrapper=False), pickle.HIGHEST_PROTOCOL
        )
    return pickle.dumps(question, pickle.HIGHEST_PROTOCOL)


def digest(question: Question) -> str:
    """Return a fingerprint of everything that the answer depends on, including hosim's version. It
    is equal in every process and run.
    """
    graph, choice = question.graph.derived(canonical), question.choice
    said = [
        __version__,
        graph.name,
        repr(graph.tensors),
        repr(graph.ops),
        json.dumps(recipe(graph), sort_keys=True),
        f"Hardware({', '.join(f'{f.name}={getattr(question.hardware, f.name)!r}' for f in fields(question.hardware))})",
        choice.label,
        json.dumps(dict(choice.parameters), sort_keys=True),
        repr(read_budget(question.budget).asked),
        *(["rescale"] if question.rescale else []),
        *(_source(one.given.make) for one in (choice, *question.others) if one.given is not None),
    ]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]


def _source(make: Any) -> str:
    """Return a function's source text and its bound values, so that another function's row is not
    taken for this one's.
    """
    made_with = [
        getattr(make, name, None) for name in ("args", "keywords", "__defaults__", "__kwdefaults__")
    ]
    enclosed = [cell.cell_contents for cell in getattr(make, "__closure__", None) or ()]
    function = getattr(make, "func", make)
    text = repr((made_with, enclosed, None if inspect.isfunction(function) else make))
    try:
        return text + inspect.getsource(function)
    except (OSError, TypeError):
        return text


def point_key(asked: str, settings: Settings) -> str:
    """Return the key of a point's row: a fingerprint of the question's digest and the settings."""
    return hashlib.sha256(
        f"{asked}\0{json.dumps(dict(settings), sort_keys=True)}".encode()
    ).hexdigest()[:16]


class AnyTask(Protocol):
    """A point that a runner can compute in any process: its key and the changed fields."""

    @property
    def key(self) -> str:
        """The key of the point's row."""

    @property
    def settings(self) -> Settings:
        """The changed fields."""

    def solved(self) -> dict[str, Value]:
        """The row: ``point`` and the figures. Whatever goes wrong is its ``error``, never an
        exception.
        """

    def failed(self, error: str) -> dict[str, Value]:
        """The row of a point that has no result."""


def solve(task: AnyTask) -> dict[str, Value]:
    """Return the row of a task. Runners call this function in other processes."""
    return task.solved()


@dataclass(frozen=True, slots=True)
class Task:
    """One point: its key, the question, and the changed fields."""

    key: str
    packed: Packed
    settings: Settings

    def solved(self) -> dict[str, Value]:
        """The row: ``point`` and the figures. Whatever goes wrong is its ``error``, never an
        exception.
        """
        return _solved(self)

    def failed(self, error: str) -> dict[str, Value]:
        """The row of a point that has no result."""
        return _failed(self, error)


def _solved(task: Task) -> dict[str, Value]:
    """Return the row of a task: ``point`` and the figures. Any exception becomes its ``error``.

    Unless the policy found no plan, the figures are then empty.
    """
    question = task.packed.question()
    try:
        asked = question.with_settings(task.settings)
        try:
            result = asked.answer()
        except InfeasibleError as error:
            result = unplanned(
                asked.graph, asked.hardware, asked.choice, asked.budget_bytes, str(error)
            )
        return {"point": task.key, **figures(result, question.hardware)}
    except Exception as error:  # one point's failure must not end a sweep of thousands
        return _failed(task, failure(error))


def _failed(task: Task, error: str) -> dict[str, Value]:
    """Return the row of a task that has no result."""
    question = task.packed.question()
    row: dict[str, Value] = dict.fromkeys(figure_columns(question.hardware))
    named: dict[str, Value] = {
        "workload": question.graph.name,
        "hardware": question.hardware.name,
        "policy": task.settings.get("policy", question.choice.label),
    }
    return {"point": task.key, **row, **named, FEASIBLE: False, "error": error}
