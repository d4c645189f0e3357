"""The files of :mod:`hosim.gate.ci.ci_files` in a repository, and a first file of cases. Nothing
that is there is overwritten.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from hosim.errors import InputError
from hosim.files import write_bytes
from hosim.gate.cases import FILES, load_suite
from hosim.gate.ci.ci_files import HOOKS, WORKFLOW, CiFiles


def begin_cases(config: Path | None, entry: str, hardware: str) -> Path:
    """Write a file of cases with one case, named after the package of its entry; returns its path.
    Raises :class:`InputError` if it is there, and for an entry that cannot be one.
    """
    path = config or Path(FILES[0])
    if path.exists():
        raise InputError("it is there already: add a case to it", source=os.fspath(path))
    root_of(path)
    told = {"entry": entry, "hardware": hardware}
    lines = [f"{key} = {json.dumps(value)}" for key, value in told.items()]
    name = re.split(r"[.:]", entry)[0]
    write_bytes(path, "\n".join([f"[cases.{name}]", *lines, ""]).encode())
    try:
        load_suite(path)
    except InputError:
        path.unlink()
        raise
    return path


def root_of(config: str | Path) -> Path:
    """The repository that a file of cases is in. Raises :class:`InputError` if it is in none."""
    folder = Path(config).resolve().parent
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            return root
    raise InputError(
        "expected a file in a repository of git, which CI could check out: run 'git init'",
        source=os.fspath(config),
    )


def write_ci_files(files: CiFiles, root: Path) -> tuple[list[str], str]:
    """Write the workflow, and the configuration of pre-commit if there is none; returns what was
    written, as told to people, and the hook that is to be added by hand, if any.

    Raises :class:`InputError` for another workflow of that name.
    """
    workflow, hooks = root / WORKFLOW, root / HOOKS
    texts = {workflow: files.workflow} if files.workflow else {}
    if texts and workflow.exists() and workflow.read_text(encoding="utf-8") != files.workflow:
        raise InputError(
            "there is another file of that name: move it away first",
            source=os.path.relpath(workflow),
        )
    there = hooks.read_text(encoding="utf-8") if hooks.exists() else None
    if there is None:
        texts[hooks] = f"repos:\n{files.hook}"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    by_hand = there is not None and files.hook not in there
    return [os.path.relpath(path) for path in texts], files.hook if by_hand else ""
