"""Make a workload from its spec (``hosim.spec/1``, see :mod:`hosim.io.spec_file`).

:mod:`hosim.io.models` makes the workload of a spec with a ``builder``. With the importer
``torch_export``, a model of ``transformers`` is built only from its config, on the meta device
(without making or downloading weights), and exported with ``torch.export.export(model, (), inputs,
strict=False)``. ``torch_train`` traces a training step of the same model instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

from hosim.base.files import did_you_mean
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import importers, models, runtimes
from hosim.io.importers import torch_programs
from hosim.limits import limit, refusal, within

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_FOREIGN_KEYS = frozenset(
    (
        "attn_implementation",
        "experts_implementation",
        "auto_map",
        "trust_remote_code",
        "quantization_config",
    )
) | {
    *(
        "backbone",
        "use_pretrained_backbone",
        "use_timm_backbone",
        "name_or_path",
        "use_kernels",
        "kernel_config",
    ),
}
"""Keys of a config, or of one inside it, with which transformers would fetch code or weights, or
run another model than the named class.
"""

_REPEATED = re.compile(r"layer|depth|block|stage|codebook")
"""Keys of a config for the number of repeated parts."""

_READ_BY_GETATTR = {"head_dim"}
"""Keys that models look for although not every config class declares them (Qwen3-MoE: 128, where
hidden_size / heads is 64).
"""


def import_spec(path: str | os.PathLike[str]) -> Graph:
    """Return the graph that the spec at ``path`` describes.

    Equal specs and equal versions of torch and transformers give equal graphs; ``meta`` has these
    versions. Raises :class:`InputError`.
    """
    from hosim.io.spec_file import load_spec

    source = os.fspath(path)
    return make(load_spec(source), source)


def make(spec: Mapping[str, Any], source: str) -> Graph:
    """Return the graph that a spec describes, like :func:`import_spec`; ``source`` names the spec
    in errors and in ``meta``.
    """
    if "builder" in spec:
        return _built(spec, source)
    try:
        if "training" in spec and spec["importer"] != "torch_train":
            raise InputError(
                "only the importer torch_train takes it; expected importer: torch_train",
                where="training",
            )
        _check_repeated(spec["model"].get("config", {}), "model.config")
        _require_transformers()
        import transformers

        meta = {
            "transformers": transformers.__version__,
            "model": spec["model"],
            "inputs": spec["inputs"],
            "spec": os.path.basename(source),
        }
        if spec["importer"] == "torch_train":
            return _trained(spec, meta)
        return torch_programs.import_exported(
            export_model(spec["model"], spec["inputs"]), name=spec["name"], meta=meta
        )
    except InputError as error:
        raise (
            error if error.source else InputError(error.message, source=source, where=error.where)
        ) from error


def _built(spec: Mapping[str, Any], source: str) -> Graph:
    parameters = importers.builder_parameters(spec["builder"], os.path.dirname(source))
    try:
        return models.build(spec["name"], runtimes.with_runtime(parameters))
    except InputError as error:
        raise InputError(
            error.message,
            source=source,
            where=f"builder.{error.where}" if error.where else "builder",
        ) from None


def _trained(spec: Mapping[str, Any], meta: Mapping[str, Any]) -> Graph:
    model, training = spec["model"], spec.get("training", {})
    options = {
        key: training[key] for key in ("optimizer", "micro_batches", "autocast") if key in training
    }

    def make() -> Any:
        module = _module(model, torch_programs.dtype_of(model.get("dtype", "bf16"))).train()
        if training.get("checkpoint"):
            enable = (
                getattr(module, "activation_checkpointing_enable", None)
                or module.gradient_checkpointing_enable
            )  # before 6
            enable({"use_reentrant": False})
        return module

    return torch_programs.import_training(
        make,
        _arguments(spec["inputs"]),
        name=spec["name"],
        meta={**meta, "training": training},
        **options,
    )


def _require_transformers() -> None:
    torch_programs.require_torch()
    if find_spec("transformers") is None:
        raise InputError(
            "this spec needs transformers, which is not installed; run: pip install 'hosim[torch]'"
        )


def _arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {
        name: torch.empty(
            tensor["shape"], dtype=torch_programs.dtype_of(tensor["dtype"]), device="meta"
        )
        for name, tensor in inputs.items()
    }


def export_model(model: Mapping[str, Any], inputs: Mapping[str, Any]) -> ExportedProgram:
    """Return the exported program of a spec's ``model``, called with its ``inputs``, on the meta
    device.
    """
    _require_transformers()
    module = _module(model, torch_programs.dtype_of(model.get("dtype", "bf16")))
    return torch_programs.exported(module, (), _arguments(inputs), model["class"])


def _module(model: Mapping[str, Any], dtype: Any) -> Any:
    import torch
    import transformers

    name = model["class"]
    try:
        cls: Any = getattr(transformers, name)
    except (AttributeError, ImportError):
        raise InputError(
            f"transformers has no model {name!r}{did_you_mean(name, dir(transformers))}",
            where="model.class",
        ) from None
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not is_model or cls.config_class is None:
        raise InputError(
            f"{name!r} is not a model class of transformers, such as LlamaForCausalLM",
            where="model.class",
        )
    config = model.get("config", {})
    _refuse_foreign(config, "model.config")
    _known_keys(cls.config_class, config)
    try:
        made = cls.config_class(**config, attn_implementation=model.get("attention", "sdpa"))
        with torch.device("meta"), torch_programs.default_dtype(dtype), _counted_modules():
            return cls(made).eval()
    except InputError:
        raise
    except Exception as error:  # config classes and models raise all kinds of errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{name} cannot be built from this config: {reason[:200]}", where="model.config"
        ) from error


@contextmanager
def _counted_modules() -> Iterator[None]:
    """Raise the refusal as soon as more modules have been made than the limit allows: many keys of
    a config can cause that.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    most, made = limit("model_parts"), count(1)

    def note(*_: Any) -> None:
        if next(made) > most:
            raise refusal("model_parts", where="model.config")

    handle = register_module_module_registration_hook(note)
    try:
        yield
    finally:
        handle.remove()


def _check_repeated(value: Any, where: str, key: str = "") -> None:
    """Raise the refusal for a config with too many layers before anything is imported, because
    config classes make lists of that length.
    """
    if isinstance(value, Mapping):
        for inner, inside in value.items():
            _check_repeated(inside, f"{where}.{inner}", str(inner))
    elif isinstance(value, list):
        for inside in value:
            _check_repeated(inside, where, key)
    elif (
        isinstance(value, int)
        and _REPEATED.search(key)
        and not key.endswith(("_size", "_dim", "_id"))
    ):
        within("layers", value, where=where)


def _refuse_foreign(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            if key in _FOREIGN_KEYS or str(key).startswith("_"):
                raise InputError(
                    f"key {key!r} is not allowed in a spec; expected sizes and switches of the "
                    "model",
                    where=f"{where}.{key}",
                )
            _refuse_foreign(inside, f"{where}.{key}")
    elif isinstance(value, list):
        for inside in value:
            _refuse_foreign(inside, where)


def _known_keys(config_class: Any, config: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` for a key that the config class does not know but would silently
    accept.
    """
    known = set(config_class().to_dict()) | _READ_BY_GETATTR
    for key in config:
        if key not in known and key not in config_class.attribute_map:
            raise InputError(
                f"unknown key {key!r} of {config_class.__name__}{did_you_mean(key, known)}",
                where=f"model.config.{key}",
            )
