"""One point of a sweep, wherever it is computed: a task goes out, a row comes back.

A task carries the question as bytes, which a worker unpacks once and keeps: it needs no file, and
reads no graph twice.
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
    """A question as bytes; ``digest`` is a fingerprint of the question, the same in every process,
    ``key`` one of the bytes.

    The digest of a function is that of its text, which does not say all that it does.
    """

    digest: str
    key: str
    content: bytes

    def question(self) -> Question:
        """The question, unpacked at most once per process."""
        if self.key not in _unpacked:
            _unpacked[self.key] = pickle.loads(zlib.decompress(self.content))
            while len(_unpacked) > _KEPT:
                _unpacked.popitem(last=False)
        return _unpacked[self.key]


def pack(question: Question) -> Packed:
    """The question as bytes, without what is derived from its graph."""
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
    _unpacked[packed.key] = question  # the process that asks need not unpack
    return packed


def _dumped(question: Question) -> bytes:
    """A function of a notebook is in no module that a worker could import, so it goes along
    whole.
    """
    if any(choice.given is not None for choice in (question.choice, *question.others)):
        from joblib import wrap_non_picklable_objects

        return pickle.dumps(
            wrap_non_picklable_objects(question, keep_wrapper=False), pickle.HIGHEST_PROTOCOL
        )
    return pickle.dumps(question, pickle.HIGHEST_PROTOCOL)


def digest(question: Question) -> str:
    """A fingerprint of everything that the answer depends on, including hosim's version; the same
    in every process and run.
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
    """The text of somebody's function, and the values that it was made with: a row that another has
    computed is not this one's.
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
    """The key of a point's row: a fingerprint of the question (its digest) and the settings."""
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
    """The row of a task."""
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
    """The row of a task: ``point`` and the figures. Whatever goes wrong is its ``error``, never an
    exception.

    An error that says nothing about the policy (an invalid value, a bug) leaves the figures empty.
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
    """The row of a task that has no result."""
    question = task.packed.question()
    row: dict[str, Value] = dict.fromkeys(figure_columns(question.hardware))
    named: dict[str, Value] = {
        "workload": question.graph.name,
        "hardware": question.hardware.name,
        "policy": task.settings.get("policy", question.choice.label),
    }
    return {"point": task.key, **row, **named, FEASIBLE: False, "error": error}
