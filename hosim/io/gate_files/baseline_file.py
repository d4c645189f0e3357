"""The baseline formats, in TOML: ``hosim.baseline/1``, one case in lines to review,
``hosim.baselines/1``, one line per case, and ``hosim.machine/1``, a machine that cases name.

:mod:`hosim.gate.records.baselines`, :mod:`hosim.gate.records.matrix_file` and
:mod:`hosim.gate.records.machine_file` explain the lines.
"""

import os
from typing import Annotated, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from hosim.io.gate_files.cases_file import read_toml
from hosim.io.validators import STRICT, Count, Format, Name

Others = Annotated[list[Count], Field(min_length=2, max_length=2)]
"""The number of items that are not listed, and their sum."""


@with_config(STRICT)
class ListingModel(TypedDict):
    """Items as ``LABEL VALUE NAME``, names folded."""

    items: NotRequired[list[str]]
    others: NotRequired[Others]


@with_config(STRICT)
class PeakModel(TypedDict):
    """A tier at its peak."""

    op: NotRequired[str]
    composition: NotRequired[dict[Name, Count]]
    residents: NotRequired[ListingModel]
    away: NotRequired[ListingModel]


@with_config(STRICT)
class GraphModel(TypedDict):
    """A graph; each of ``shapes`` is ``COUNT OP``."""

    tensors: NotRequired[ListingModel]
    workspaces: NotRequired[ListingModel]
    times: NotRequired[ListingModel]
    flops: NotRequired[ListingModel]
    shapes: NotRequired[list[str]]
    other_shapes: NotRequired[Count]
    again: NotRequired[dict[Name, Count]]


@with_config(STRICT)
class FingerprintsModel(TypedDict):
    """Fingerprints of the graph and of the plan, without names."""

    graph: Name
    plan: Name
    source: NotRequired[Name]
    requests: NotRequired[Name]


@with_config(STRICT)
class BaselineModel(TypedDict):
    """One measured case; ``machine`` is the name of its file or, in older files, its contents."""

    format: Literal["hosim.baseline/1"]
    case: str
    hosim: Name
    semantics: Count
    versions: NotRequired[dict[Name, Count]]
    asked: dict[Name, str]
    fingerprints: FingerprintsModel
    metrics: dict[Name, Count]
    machine: NotRequired[dict[Name, str] | Name]
    budget: NotRequired[Name]
    curve: NotRequired[list[Count]]
    draws: NotRequired[list[Count]]
    ceiling: NotRequired[Count]
    notes: NotRequired[list[str]]
    peaks: NotRequired[dict[Name, PeakModel]]
    moved: NotRequired[dict[Name, ListingModel]]
    stalls: NotRequired[ListingModel]
    durations: NotRequired[ListingModel]
    graph: NotRequired[GraphModel]


@with_config(STRICT)
class BaselinesModel(TypedDict):
    """The measured cases of a matrix, each as ``METRIC VALUE ...``."""

    format: Literal["hosim.baselines/1"]
    hosim: Name
    semantics: Count
    versions: NotRequired[dict[Name, Count]]
    cases: dict[Name, Name]


@with_config(STRICT)
class MachineModel(TypedDict):
    """A hardware profile, flat, as text."""

    format: Literal["hosim.machine/1"]
    machine: dict[Name, str]


MACHINE = Format("machine", lambda: TypeAdapter(MachineModel))

MATRIX = Format("baselines", lambda: TypeAdapter(BaselinesModel))

FORMAT = Format("baseline", lambda: TypeAdapter(BaselineModel))


def load_baseline(path: str | os.PathLike[str]) -> BaselineModel:
    """Return the checked baseline in a file. Raises :class:`InputError`, which names the file and
    the path inside it.
    """
    source = os.fspath(path)
    return FORMAT.check(read_toml(source), source)


def load_baselines(path: str | os.PathLike[str]) -> BaselinesModel:
    """Return the checked baselines of a matrix. Raises :class:`InputError`, which names the file
    and the path inside it.
    """
    source = os.fspath(path)
    return MATRIX.check(read_toml(source), source)


def load_machine(path: str | os.PathLike[str]) -> MachineModel:
    """Return the checked machine in a file. Raises :class:`InputError`, which names the file and
    the path inside it.
    """
    source = os.fspath(path)
    return MACHINE.check(read_toml(source), source)
