"""A pytest plugin that records which lines of hosim each test reaches; coverage.py counts the
lines.

A context of coverage.py is a test, or work that several tests share: a fixture of a wider scope, a
value that ``functools.cache`` keeps, the import of a test file. Each context is written as one line
of JSON with the shared ones it made use of, beside coverage's own files.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import settings

FOLDER = "HOSIM_MUTANTS_RECORDS"
"""The environment variable that names the folder for the records."""
CONTEXT = "HOSIM_MUTANTS_CONTEXT"
"""The one that names the context to processes that a test starts."""

EXAMPLES = 15
"""Of hypothesis: enough to reach the lines that a property is about."""


class Contexts:
    """The contexts that are open, innermost last, and what each has used."""

    def __init__(self) -> None:
        self.open: list[str] = [""]
        self.uses: dict[str, set[str]] = {"": set()}
        self._numbers = 0

    def unique(self, name: str) -> str:
        """A name that no other process gives."""
        self._numbers += 1
        return f"{name}#{os.getpid()}.{self._numbers}"

    def use(self, name: str) -> None:
        """Notes that the innermost context makes use of a shared one."""
        self.uses[self.open[-1]].add(name)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Lines reached meanwhile count for this context alone."""
        self.open.append(name)
        self.uses.setdefault(name, set())
        _switch(name)
        try:
            yield
        finally:
            self.open.pop()
            _switch(self.open[-1])


CONTEXTS = Contexts()
_ALREADY: dict[Any, str] = {}
"""By fixture, the context of its present value."""


def _switch(name: str) -> None:
    running = Coverage.current()
    if running is not None:
        running.switch_context(name)
    os.environ[CONTEXT] = name


def _cpu_s() -> float:
    """CPU time of this process and of those that it has waited for: a busy machine changes it
    little.
    """
    return sum(os.times()[:4])


def _write(name: str, **more: object) -> None:
    with Path(os.environ[FOLDER], f"records-{os.getpid()}.jsonl").open("a") as file:
        print(
            json.dumps({"context": name, "uses": sorted(CONTEXTS.uses.pop(name, ())), **more}),
            file=file,
        )


def _tracked(kept: Callable[..., Any]) -> Callable[..., Any]:
    """``functools.lru_cache`` whose misses in hosim and its tests are contexts of their own that
    later hits make use of.
    """
    here = os.getcwd()

    def decorate(
        function: Callable[..., Any], maxsize: int | None, typed: bool
    ) -> Callable[..., Any]:
        if not getattr(getattr(function, "__code__", None), "co_filename", "").startswith(here):
            return kept(maxsize, typed)(function)
        contexts: dict[Any, str] = {}

        def missed(*args: Any, **kwargs: Any) -> Any:
            name = CONTEXTS.unique(f"cache {function.__module__}.{function.__qualname__}")
            contexts[functools._make_key(args, kwargs, typed)] = name
            with CONTEXTS.of(name):
                value = function(*args, **kwargs)
            _write(name)
            return value

        inner = kept(maxsize, typed)(missed)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            value = inner(*args, **kwargs)
            name = contexts.get(functools._make_key(args, kwargs, typed))
            if name is not None:
                CONTEXTS.use(name)
            return value

        call.cache_clear, call.cache_info = inner.cache_clear, inner.cache_info  # type: ignore[attr-defined]
        return call

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Callable[..., Any]:
        if callable(maxsize):
            return decorate(maxsize, 128, typed)
        return lambda function: decorate(function, maxsize, typed)

    return lru_cache


functools.lru_cache = _tracked(functools.lru_cache)  # type: ignore[assignment]
functools.cache = lambda function: functools.lru_cache(None)(function)  # type: ignore[assignment]


def pytest_collection() -> None:
    settings.register_profile("map", settings(), max_examples=EXAMPLES)
    settings.load_profile("map")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = set(Path(os.environ[FOLDER], "known.txt").read_text().splitlines())
    items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    if not isinstance(collector, pytest.Module):
        return (yield)
    name = f"module {collector.nodeid}"
    with CONTEXTS.of(name):
        report = yield
    _write(name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    name = _ALREADY[fixturedef] = CONTEXTS.unique(
        f"fixture {fixturedef.baseid}::{fixturedef.argname}"
    )
    with CONTEXTS.of(name):
        value = yield
    _write(name)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, Any, Any]:
    begun = _cpu_s()
    with CONTEXTS.of(item.nodeid):
        done = yield
    info = item._fixtureinfo
    for name in item.fixturenames:
        used = _ALREADY.get(info.name2fixturedefs.get(name, (None,))[-1])
        if used is not None:
            CONTEXTS.uses[item.nodeid].add(used)
    CONTEXTS.uses[item.nodeid].add(f"module {item.nodeid.partition('::')[0]}")
    failed = item.stash.get(_FAILED, False)
    _write(item.nodeid, test=True, seconds=round(_cpu_s() - begun, 3), failed=failed)
    return done


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def pytest_sessionfinish() -> None:
    running = Coverage.current()
    if running is not None:
        running.stop()
        running.save()
