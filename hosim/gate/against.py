"""Baselines of another revision: its files are taken out of git, and its own cases are measured
there.

Nothing of them is committed or merged. What was measured is kept by content
(:mod:`hosim.gate.kept_graphs`).
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from hosim import shipped
from hosim.analysis import digest
from hosim.errors import HosimError, InputError
from hosim.gate.cases import Suite, load_suite
from hosim.gate.imports import code_digest
from hosim.gate.kept_graphs import keep_text, kept_text
from hosim.gate.records import source_digest

Writing = Callable[[Suite, Iterable[str]], object]
"""Writes the baselines of the named cases of a suite."""


@contextmanager
def baselines_at(
    revision: str, suite: Suite, names: Sequence[str], kept: Path | None, write: Writing
) -> Iterator[tuple[Suite, str]]:
    """The suite with the baselines of a revision, and what could not be measured there, in words,
    if anything.

    ``names`` are those of the cases that are wanted; without any, all that the revision has.
    Raises :class:`InputError` where there is no git, no such revision, or the suite lies in no
    repository.
    """
    config = Path(suite.source).resolve()
    root = Path(_git(config.parent, "rev-parse", "--show-toplevel").decode().strip())
    tree = (
        _git(
            root,
            "rev-parse",
            "--verify",
            "--end-of-options",
            f"{revision}^{{tree}}",
            said=f"no revision {revision!r}",
        )
        .decode()
        .strip()
    )
    ours = [
        shipped.hardware_path(shipped.hardware()[0]).parent,
        shipped.workload_path(shipped.workloads()[0]).parent,
    ]
    key = digest(
        tree,
        code_digest(),
        *map(source_digest, ours),
        config.relative_to(root).as_posix(),
        *sorted(names),
    )
    with TemporaryDirectory(prefix="hosim-") as folder:
        made = Path(folder) / "baselines"
        text = kept_text(kept, key) if kept is not None else None
        made.mkdir()
        failed = ""
        if text is None:
            failed = _measure(
                root, tree, config.relative_to(root), names, made, Path(folder) / "tree", write
            )
        for name, content in json.loads(text or "{}").items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(content)
        if text is None and kept is not None and not failed:
            keep_text(
                json.dumps(
                    {
                        path.relative_to(made).as_posix(): path.read_text()
                        for path in sorted(made.rglob("*.toml"))
                    }
                ),
                kept,
                key,
            )
        yield replace(suite, baselines=made), failed


def _measure(
    root: Path,
    tree: str,
    config: Path,
    names: Sequence[str],
    made: Path,
    place: Path,
    write: Writing,
) -> str:
    """Write the baselines of a tree into ``made``; returns what went wrong."""
    with tarfile.open(fileobj=BytesIO(_git(root, "archive", "--format=tar", tree))) as packed:
        packed.extractall(place, filter="data")
    if not (place / config).is_file():
        return f"it has no {config.as_posix()}"
    try:
        there = replace(load_suite(place / config), baselines=made)
        if listed := [case.name for case in there.cases if not names or case.name in names]:
            write(there, listed)
    except HosimError as error:
        return str(error).replace(f"{place}{os.sep}", "")
    return ""


def _git(folder: Path, *arguments: str, said: str = "") -> bytes:
    source = "--against"
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(folder), *arguments], capture_output=True, check=False
        )
    except OSError as error:
        raise InputError(f"git cannot be run: {error.strerror}", source=source) from None
    if done.returncode:
        told = said or (done.stderr.decode(errors="replace").strip().splitlines() or ["failed"])[-1]
        raise InputError(
            f"{told}; expected a branch, tag or commit of the repository that {folder} is in",
            source=source,
        )
    return done.stdout
