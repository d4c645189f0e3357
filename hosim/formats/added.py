"""Everything that this room adds to the core (:mod:`hosim.extensions`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hosim import formats as room

if TYPE_CHECKING:
    from hosim.base.files.formats import Source
    from hosim.graph import Graph


def formats() -> Mapping[str, Mapping[str, Callable[[Source], bool]]]:
    """Return the recognisers of its formats, by title, under the format of the core before which
    they are tried.
    """
    return {
        "PyTorch profile (Kineto)": {"G10 folder": lambda source: room.is_g10(source.path)},
        "config.json of transformers": {
            "Chakra trace": lambda source: room.is_chakra(source.head),
            "inductor graph": lambda source: room.is_inductor(source.head),
            "hyper-parallel trace": lambda source: room.is_hyper_parallel(source.head),
        },
        "ONNX model": {"MindIR model": lambda source: room.is_mindir(source.head)},
    }


def loaders() -> Mapping[str, Callable[[Path], Graph]]:
    """Return the loader of each format."""
    return {
        "G10 folder": lambda path: room.import_g10(path),
        "Chakra trace": lambda path: room.import_chakra(path),
        "inductor graph": lambda path: room.import_inductor(path),
        "hyper-parallel trace": lambda path: room.import_hyper_parallel(path),
        "MindIR model": lambda path: room.import_mindir(path),
    }


def recordings() -> Sequence[tuple[Callable[[bytes], bool], Callable[..., Any]]]:
    """Return pairs of a recogniser of a recording, by the file's first bytes, and its reader."""
    from hosim.formats.nsight import read_nsys

    return [(room.is_nsys, read_nsys)]


def commands() -> Mapping[str, Mapping[str, tuple[Callable[..., None], str, Sequence[str]]]]:
    """Return its commands with their sections and examples, under the command of the core before
    which help lists them.
    """
    from hosim.formats.cmd_export import export

    examples = (
        "hosim export bert-large-train -H h100 -b 75% --mindspore -o offload.sh",
        'eval "$(hosim export bert-large-train -H ascend-910c-supernode -b 20GiB --mindspore)"',
    )
    return {"validate": {"export": (export, "Bring models and measurements", examples)}}
