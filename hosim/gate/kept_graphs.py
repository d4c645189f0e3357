"""Graphs kept in a folder, each with a signature: one that somebody else put there, or changed, is
not believed.

A signature is made with a key that only the user can read: ``$HOSIM_CACHE_KEY``, or a file of
random bytes beside the user's other state, never in the folder itself, which may be shared or
restored from elsewhere. Without a key nothing is kept.
"""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from hosim.base.collector import no_collection
from hosim.base.files import parse, read_bytes, to_text, write_bytes
from hosim.errors import HosimError
from hosim.graph import Graph
from hosim.io import workload_from_dict, workload_to_dict

_KEY_BYTES = 32


def kept_graph(folder: Path, name: str) -> Graph | None:
    """The graph of that name; ``None`` if there is none, or it is not what this user's hosim has
    kept under this name.
    """
    text = kept_text(folder, name)
    if text is None:
        return None
    with suppress(HosimError), no_collection():
        return workload_from_dict(parse(text, f"{folder / name}.json"))
    return None


def keep_graph(graph: Graph, folder: Path, name: str) -> None:
    """Keep a graph under a name. A folder that cannot be written to only costs time later."""
    keep_text(to_text(workload_to_dict(graph)), folder, name)


def kept_text(folder: Path, name: str) -> str | None:
    """Like :func:`kept_graph`, for a text."""
    key = _signing_key()
    with suppress(OSError, HosimError, ValueError):
        signature, _, text = read_bytes(os.fspath(folder / name)).partition(b"\n")
        if key is not None and hmac.compare_digest(signature, _signature(key, name, text)):
            return text.decode()
    return None


def keep_text(text: str, folder: Path, name: str) -> None:
    """Like :func:`keep_graph`, for a text."""
    key = _signing_key()
    if key is None:
        return
    with suppress(OSError, HosimError):
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, _signature(key, name, text.encode()) + b"\n" + text.encode())


def _signature(key: bytes, name: str, text: bytes) -> bytes:
    return hmac.digest(key, name.encode() + b"\n" + text, "sha256").hex().encode()


def _signing_key() -> bytes | None:
    """The user's key, made when it is first asked for; ``None`` where it cannot be kept from
    others.
    """
    if given := os.environ.get("HOSIM_CACHE_KEY"):
        return given.encode()
    state = os.environ.get("XDG_STATE_HOME")
    try:
        file = (Path(state) if state else Path.home() / ".local" / "state") / "hosim" / "cache.key"
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(
                os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as stream:
                stream.write(secrets.token_bytes(_KEY_BYTES))
        status = file.stat()
        if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            return None
        key = file.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return key if len(key) == _KEY_BYTES else None
