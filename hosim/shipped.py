"""The workloads, hardware profiles and notebooks that come with hosim, by name.

In a checkout they are in ``workloads/``, ``hardware_profiles/`` and ``notebooks/`` beside the
package, in a wheel inside it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from hosim.base.files import did_you_mean, name_of_file
from hosim.errors import InputError
from hosim.plain_text import one_line

_PACKAGE = Path(__file__).resolve().parent
_LISTED = 240
"""Characters of a list of names in an error, at most; the whole error has at most 400."""
_FEW = 4
"""The most names that an error suggests."""
_WORKLOADS = (
    ".json.gz",
    ".json",
    ".yaml",
)  # a workload before the spec it was made from; a builder's spec is alone, and quick
_HARDWARE = (".yaml",)
ALIASES = {
    "a100": "a100-80gb-sxm",
    "a100-40gb": "a100-40gb-sxm",
    "b200": "b200-180gb-sxm",
    "b300": "b300-288gb-sxm",
    "gb200": "gb200-186gb",
    "gh200": "gh200-96gb",
    "h20": "h20-96gb",
    "h100": "h100-80gb-sxm",
    "h200": "h200-141gb-sxm",
    "mi300x": "mi300x-192gb",
    "v100": "v100-32gb",
    "3090": "rtx-3090",
    "rtx3090": "rtx-3090",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "5090": "rtx-5090",
    "rtx5090": "rtx-5090",
    "910b": "ascend-910b",
    "910b3": "ascend-910b3",
    "910c": "ascend-910c-supernode",
    "ascend-910c": "ascend-910c-supernode",
}
"""Short names of shipped hardware profiles."""


def workloads() -> list[str]:
    """Names of the shipped workloads, sorted."""
    return sorted(_files("workloads", _WORKLOADS))


def hardware() -> list[str]:
    """Names of the shipped hardware profiles, sorted."""
    return sorted(_files("hardware_profiles", _HARDWARE))


def workload_path(name: str) -> Path:
    """The file of a shipped workload. Raises :class:`InputError` if there is none of that name."""
    return _shipped("workload", name, _files("workloads", _WORKLOADS))


def hardware_path(name: str) -> Path:
    """The file of a shipped hardware profile. Raises :class:`InputError` if there is none of that
    name.
    """
    return _shipped(
        "hardware profile",
        ALIASES.get(name.lower(), name),
        _files("hardware_profiles", _HARDWARE),
        ALIASES,
    )


def runtimes() -> list[str]:
    """Names of the shipped runtimes, sorted."""
    return sorted(_files("runtimes", _HARDWARE))


def find_runtime(text: str) -> Path:
    """The file of a runtime by its path, or by its name among the shipped ones. Raises
    :class:`InputError` if it is neither.
    """
    text = name_of_file(text)
    return Path(text) if is_path(text) else _shipped("runtime", text, _files("runtimes", _HARDWARE))


def notebook_paths() -> list[Path]:
    """The notebooks that come with hosim, sorted, then the data that they read. Raises
    :class:`InputError` if they were not installed.
    """
    found = [
        path
        for ending in (".ipynb", ".gz")
        for path in sorted(_files("notebooks", (ending,)).values())
    ]
    if not found:
        raise InputError(
            "this installation of hosim has no notebooks: install it from its wheel or its "
            "repository",
            source="notebooks",
        )
    return found


def is_shipped(path: Path) -> bool:
    """Return whether a file is one of the shipped workloads, hardware profiles or runtimes."""
    folder = path.resolve().parent
    return folder.name in ("workloads", "hardware_profiles", "runtimes") and folder.parent in (
        _PACKAGE,
        _PACKAGE.parent,
    )


def find_workload(text: str) -> Path:
    """Find a workload by its path, or by its name among the shipped ones.

    Parameters
    ----------
    text
        A path or a name. A path wins if both exist; of a folder's bare name, the shipped workload
        does.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        If it is neither; lists the shipped names.

    References
    ----------
    ``docs/formats.md`` describes the files.

    Examples
    --------
    >>> find_workload("llama-3.1-8b-prefill-4k").name
    'llama-3.1-8b-prefill-4k.json.gz'
    """
    text = name_of_file(text)
    return (
        Path(text)
        if is_path(text) or (os.path.isdir(text) and text not in workloads())
        else workload_path(text)
    )


def find_hardware(text: str) -> Path:
    """Find a hardware profile by its path, or by its name among the shipped ones.

    Parameters
    ----------
    text
        A path, a name, or a short name of :data:`ALIASES`. A path wins if both exist.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        If it is neither; lists the shipped names.

    References
    ----------
    ``docs/formats.md`` describes the files.

    Examples
    --------
    >>> find_hardware("toy").name, find_hardware("h100").name
    ('toy.yaml', 'h100-80gb-sxm.yaml')
    """
    text = name_of_file(text)
    if os.path.isdir(text) and text not in hardware() and text.lower() not in ALIASES:
        raise InputError("this is a folder: name a hardware profile, which is a file", source=text)
    if "," in text and not is_path(text):
        raise InputError(
            "expected one machine, got several: name one of them", source=one_line(text, 100)
        )
    return Path(text) if is_path(text) else hardware_path(text)


def is_path(text: str) -> bool:
    """Return whether a text is the path of something that exists."""
    # a folder of the same name beside the user must not hide a shipped file: a folder counts only
    # when spelled as a path
    try:
        path = Path(text)
        return path.exists() and (not path.is_dir() or "/" in text or text in (".", ".."))
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


def _files(folder: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The files of the folder, in the first place that has it, by name without suffix."""
    for place in (_PACKAGE / folder, _PACKAGE.parent / folder):
        if place.is_dir():
            listed = sorted(place.iterdir())
            return {
                p.name.removesuffix(suffix): p
                for suffix in reversed(suffixes)
                for p in listed
                if p.name.endswith(suffix)
            }
    return {}


def _shipped(what: str, name: str, known: dict[str, Path], aliases: Iterable[str] = ()) -> Path:
    if name in known:
        return known[name]
    names = ", ".join(sorted(known)) or "none"
    listed = names if len(names) <= _LISTED else f"{len(known)}, see 'hosim {what.split()[0]} list'"
    raise InputError(
        f"no file and no shipped {what} of that name{_meant(name, known, aliases)} (shipped: "
        f"{listed})",
        source=one_line(name, 100) or "''",
    )


def _meant(name: str, known: Iterable[str], aliases: Iterable[str]) -> str:
    """The names that begin so, if these are a few; else the nearest one, of the short names as
    well.
    """
    longer = [repr(one) for one in sorted(known) if one.startswith(name.lower())]
    if name and 0 < len(longer) <= _FEW:
        return (
            "; did you mean "
            f"{' or '.join([', '.join(longer[:-1]), longer[-1]] if len(longer) > 1 else longer)}?"
        )
    return did_you_mean(name, [*known, *aliases])
