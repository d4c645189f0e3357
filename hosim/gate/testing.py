"""The object that the fixture ``hosim_gate`` gives to a test."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hosim.errors import HosimError, InputError
from hosim.gate.cases import FOLDER, Case, kind_of
from hosim.gate.imports import graph_of_model, kept_in
from hosim.gate.judged_metrics import PEAK, parse_tolerances
from hosim.gate.measured_case import measure, measure_graph
from hosim.gate.records import SUFFIX, Measured, Record, confined, read_record, save_record
from hosim.gate.reports import details, headline
from hosim.gate.verdicts import judge
from hosim.graph import Graph
from hosim.units import human_size, parse_share, parse_size
from hosim.validate import Validation, validate
from hosim.validate.replay_verdicts import complaint


def assert_explained(trace: str | os.PathLike[str], *, max_error: str = "1%") -> Validation:
    """Fail unless the replay matches the recording, with errors of the makespan and the starts of
    at most ``max_error`` of its span.

    Returns the validation, as ``hosim validate`` makes it.
    """
    __tracebackhide__ = True
    try:
        bound = parse_share(max_error)
        found = validate(trace)
    except HosimError as error:
        pytest.fail(str(error), pytrace=False)
    said = complaint(found.verdict, bound)
    if said:
        pytest.fail(f"{os.fspath(trace)}: {said}", pytrace=False)
    return found


_ASKED = tuple(f.name for f in fields(Case) if f.name not in ("name", "folder", "tolerances"))

_WRITTEN = pytest.StashKey[dict[Path, Record]]()
_SHOWN = 8
"""The most resident tensors that a failure names."""


class SimulatedStep:
    """One step of a model, or of the marker's workload, on the machine that the marker ``hosim``
    names.

    It is planned and replayed once, at the first assertion. ``folder`` is the test's folder.
    ``update`` rewrites baselines; ``written`` has the ones that tests of this run have written.
    """

    def __init__(self, case: Case, folder: Path, update: bool, written: dict[Path, Record]) -> None:
        self._case = case
        self._folder = folder
        self._update = update
        self._written = written
        self._compared: dict[str, list[Record]] = {}
        self._graph: Graph | None = None
        self._measured: Measured | None = None

    def model(
        self, model: Any, inputs: Any = (), loss: Any = None, optimizer: Any = None
    ) -> SimulatedStep:
        """Take a torch model called with ``inputs`` (a tuple, one tensor, or a dictionary by name),
        or a :class:`hosim.Graph`; with an optimizer, a training step of the model that
        differentiates ``loss(model, inputs)``.
        """
        __tracebackhide__ = True
        try:
            self._graph = (
                model
                if isinstance(model, Graph)
                else graph_of_model(
                    model, inputs, loss, optimizer, name=self._case.name, source="model"
                )
            )
        except HosimError as error:
            _fail(str(error))
        self._measured = None
        return self

    def workload(self, workload: str) -> SimulatedStep:
        """Take a workload: a path, relative to the test's folder, or a shipped name."""
        self._case = replace(self._case, workload=workload, entry=None)
        self._graph = self._measured = None
        return self

    @property
    def metrics(self) -> Mapping[str, int]:
        """The metrics of :mod:`hosim.gate.judged_metrics`: peaks in bytes by tier (``peak.hbm``),
        ``makespan`` in nanoseconds, and others.
        """
        __tracebackhide__ = True
        return self._record().metrics

    def assert_peak_below(self, size: str, tier: str | None = None) -> None:
        """Fail unless the tier (by default the device tier) always holds less than ``size``, such
        as ``38 GiB``. For the device tier this must also hold in 9 of 10 draws.
        """
        __tracebackhide__ = True
        record = self._record()
        name = tier or record.machine["device_tier"]
        try:
            bound = parse_size(size)
        except InputError as error:
            _fail(str(error))
        metric = f"{PEAK}.{name}"
        if metric not in record.metrics:
            _fail(
                f"unknown tier {name!r}; the machine has "
                f"{', '.join(m.removeprefix(f'{PEAK}.') for m in record.metrics if m.startswith(PEAK))}"
            )
        peak = record.metrics[metric]
        most = record.ceiling if peak < bound and metric == record.device_peak else peak
        if most < bound:
            return
        drawn = " in draws of what is uncertain" if most > peak else ""
        lines = [f"peak of {name} is {human_size(most)} ({most:,} B){drawn}, not below {size}"]
        if name in record.peaks:
            lines += _residents(record, name)
        _fail("\n".join(lines))

    def assert_matches_baseline(
        self,
        name: str | None = None,
        *,
        tolerance: Mapping[str, str | Mapping[str, str]] | None = None,
        strict: bool = False,
    ) -> None:
        """Fail, with the reasons, if a metric is worse than the baseline by more than its
        tolerance.

        The baseline is a file in ``hosim-baselines`` beside the test, named after the test or
        ``name``; for the test's second model, the number 2 follows the name. ``tolerance`` is as in
        ``hosim.toml``: ``{"peak": "64 MiB", "makespan": "2%"}``. ``strict`` also fails on
        improvements.
        """
        __tracebackhide__ = True
        record = self._record()
        called = self._numbered(name or self._case.name, record)
        path = self._folder / FOLDER / f"{_file_name(called)}{SUFFIX}"
        try:
            given = parse_tolerances(tolerance or {}, "assert_matches_baseline")
            confined(path.parent, self._folder, str(path.parent))
            if self._update:
                there = self._written.setdefault(path, record)
                if (there.computed, there.metrics) != (record.computed, record.metrics):
                    _fail(
                        f"{there.case} has written another model to {path}: give this baseline a "
                        "name of its own"
                    )
                save_record(record, path)
                return
            if not path.is_file():
                _fail(f"no baseline {path}; pytest --hosim-update writes it")
            before = read_record(path)
        except HosimError as error:
            _fail(str(error))
        assert self._measured is not None
        found = judge(called, Measured(before), self._measured, {**self._case.tolerances, **given})
        if found.fails(strict):
            _fail(
                "\n".join(
                    [
                        headline(found),
                        *details(found),
                        "if this change is intended, run pytest --hosim-update and commit the "
                        "baseline",
                    ]
                )
            )

    def _numbered(self, name: str, record: Record) -> str:
        """Return the name, with a number from its second model on."""
        compared = self._compared.setdefault(name, [])
        if not any(record is one for one in compared):
            compared.append(record)
        number = 1 + next(k for k, one in enumerate(compared) if one is record)
        return name if number == 1 else f"{name}-{number}"

    def _record(self) -> Record:
        __tracebackhide__ = True
        if self._measured is None:
            try:
                self._measured = self._measure()
            except HosimError as error:
                _fail(str(error))
        if self._measured.record is None:
            _fail(f"does not fit: {self._measured.error}")
        return self._measured.record

    def _measure(self) -> Measured:
        if self._graph is not None:
            return measure_graph(self._case, self._graph, kept=kept_in())
        if self._case.workload is None and self._case.entry is None and self._case.serve is None:
            raise InputError(
                "nothing to measure: call hosim_gate.model(model, inputs), or give the marker a "
                "workload",
                source="hosim_gate",
            )
        return measure(self._case, kept_in())


def gate_of(item: pytest.Item, update: bool) -> SimulatedStep:
    """Return the gate of a test from its marker. Fails the test if the marker is missing or
    invalid.
    """
    __tracebackhide__ = True
    marker = item.get_closest_marker("hosim")
    if marker is None:
        _fail(
            "the fixture hosim_gate needs a marker such as "
            '@pytest.mark.hosim(hardware="h100-80gb-sxm", budget="40 GiB")'
        )
    given = dict(marker.kwargs)
    tolerance = given.pop("tolerance", {})
    unknown = [*map(repr, marker.args), *(key for key in given if key not in _ASKED)]
    if unknown or "hardware" not in given:
        _fail(
            f"the marker hosim takes hardware=... and {', '.join(_ASKED[1:])}, tolerance; got "
            f"{', '.join(unknown) or 'no hardware'}"
        )
    folder = item.path.parent
    name = f"{item.path.stem}.{item.nodeid.partition('::')[2].replace('::', '.')}"
    try:
        tolerances = parse_tolerances(tolerance, "marker hosim")
        if "serve" in given:
            kind_of("serve").check(given, "marker hosim", "serve")
    except InputError as error:
        _fail(str(error))
    return SimulatedStep(
        Case(name, folder=str(folder), tolerances=tolerances, **given),
        folder,
        update,
        item.config.stash.setdefault(_WRITTEN, {}),
    )


def _file_name(name: str) -> str:
    """Return a valid file name: characters that a file system may refuse are replaced, and a digest
    keeps names distinct.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    return (
        plain
        if plain == name
        else f"{plain.strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    )


def _residents(record: Record, tier: str) -> list[str]:
    """Return the tensors that a tier holds at its peak, the largest first."""
    peak = record.peaks[tier]
    held = sorted(peak.residents.items, key=lambda item: (-item.value, item.name))
    lines = [f"at op `{peak.op}` it holds:"] if peak.op is not None else ["it holds:"]
    lines += [
        f"  `{item.name}` ({item.label.replace('_', ' ')}) {human_size(item.value)}"
        for item in held[:_SHOWN]
    ]
    rest = held[_SHOWN:]
    return lines + (
        [f"  and {len(rest)} more: {human_size(sum(item.value for item in rest))}"] if rest else []
    )


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    pytest.fail(message, pytrace=False)
