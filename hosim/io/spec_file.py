"""The workload spec format, ``hosim.spec/1``: a recipe for a workload.

A spec names an importer and everything that determines its result::

    format: hosim.spec/1
    name: llama-3.1-8b-prefill-4k
    importer: torch_export
    model:
      class: LlamaForCausalLM                   # a model class of transformers
      config: {hidden_size: 4096, ...}          # arguments of its config class; the others keep their defaults
      dtype: bf16
      attention: sdpa
    inputs:
      input_ids: {shape: [1, 4096], dtype: int64}
    versions: {torch: 2.13.0, transformers: 5.23.0}

With ``importer: torch_train`` it makes a training step, which ``training`` describes (all keys are
optional)::

    training: {optimizer: adamw-master, micro_batches: 1, autocast: bf16, checkpoint: true}

Or a spec has the parameters of a builder of :mod:`hosim.io.models`, which needs only hosim::

    format: hosim.spec/1
    name: llama-3.1-8b-train-4k
    builder: {model: llama-3.1-8b, phase: train, sequence: 4096}

``versions`` are those that made the workload file beside the spec. Other versions may trace another
graph; the importer records its versions in ``meta``. ``sha256`` is the digest of that workload
file, unpacked.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter

from hosim.base.files import read
from hosim.io.validators import Format, Name, mapping_type

Dtype = Literal["bf16", "fp16", "fp32", "fp64", "int8", "uint8", "int32", "int64", "bool"]
Extent = Annotated[int, Field(ge=1, le=2**40)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")]

MODEL: Any = mapping_type(
    "ModelModel",
    "",
    {
        "class": Identifier,
        "config": NotRequired[dict[Identifier, Any]],
        "dtype": NotRequired[Literal["bf16", "fp16", "fp32", "fp64"]],
        "attention": NotRequired[Literal["sdpa", "eager"]],
    },
)

INPUT: Any = mapping_type(
    "InputModel",
    "One input tensor of the model.",
    {"shape": Annotated[list[Extent], Field(min_length=1, max_length=8)], "dtype": Dtype},
)

TRAINING: Any = mapping_type(
    "TrainingModel",
    "The training settings of a model; ``checkpoint`` is its own activation checkpointing.",
    {
        "optimizer": NotRequired[Literal["adamw", "adamw-master", "sgd", "sgd-momentum", "none"]],
        "micro_batches": NotRequired[Annotated[int, Field(ge=1, le=1024)]],
        "autocast": NotRequired[Literal["bf16", "fp16"]],
        "checkpoint": NotRequired[bool],
    },
)

SPEC: Any = mapping_type(
    "SpecModel",
    "A recipe of a workload.",
    {
        "format": Literal["hosim.spec/1"],
        "name": Name,
        "importer": Literal["torch_export", "torch_train"],
        "model": MODEL,
        "training": NotRequired[TRAINING],
        "inputs": Annotated[dict[Identifier, INPUT], Field(min_length=1)],
        "versions": NotRequired[dict[Name, Name]],
    },
)

OF_BUILDER: Any = mapping_type(
    "BuiltModel",
    "A recipe of a workload that a builder makes; the builder checks its parameters.",
    {
        "format": Literal["hosim.spec/1"],
        "name": Name,
        "builder": dict[Identifier, Any],
        "sha256": NotRequired[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]],
    },
)

TRACED = Format("spec", lambda: TypeAdapter(SPEC))
BUILT = Format("spec", lambda: TypeAdapter(OF_BUILDER))


def load_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the checked spec in a file. Raises :class:`InputError`, which names the file and the
    path inside it.
    """
    source = os.fspath(path)
    return check_spec(read(source, "spec"), source)


def check_spec(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the checked spec in a mapping; ``source`` names it in errors. Raises
    :class:`InputError`.
    """
    return dict(BUILT.check(data, source) if "builder" in data else TRACED.check(data, source))
