"""Models by their names on the Hugging Face hub, as in ``meta-llama/Llama-3.1-8B``: a preset of the
same sizes, or the ``config.json`` that the hub's cache on this machine has. Nothing is downloaded.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hosim.errors import InputError
from hosim.io.models import PRESETS

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = (".json", ".json.gz", ".gguf", ".yaml", ".yml", ".onnx", ".pt2", ".et", ".mindir")
_TUNED = re.compile(r"(-(instruct|chat|hf|it|pt|base|2507))+$")
"""Endings of the names of tuned versions, which have the sizes of the original model."""

_CALLED: Mapping[str, str] = {
    "mistral-7b-v0.3": "mistral-7b",
    "mistral-7b-instruct-v0.3": "mistral-7b",
    "mistral-nemo-base-2407": "mistral-nemo-12b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistral-small-24b-base-2501": "mistral-small-24b",
    "mistral-small-24b-instruct-2501": "mistral-small-24b",
    "mistral-large-instruct-2407": "mistral-large-123b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "mixtral-8x22b-instruct-v0.1": "mixtral-8x22b",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "phi-3-medium-4k-instruct": "phi-3-medium",
    "bloom": "bloom-176b",
    "c4ai-command-r-v01": "command-r-35b",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "vit-base-patch16-224": "vit-b-16",
    "vit-large-patch16-224": "vit-l-16",
    "vit-huge-patch14-224-in21k": "vit-h-14",
}
"""Names that presets have otherwise; the models of the comments in :mod:`hosim.io.models.presets`."""


def is_hub_name(text: str) -> bool:
    """Return whether a text looks like an owner and a model, and names no file.

    >>> is_hub_name("Qwen/Qwen3-8B"), is_hub_name("models/mine.json"), is_hub_name("gpt2")
    (True, False, False)
    """
    return (
        _HUB_NAME.fullmatch(text) is not None
        and not text.endswith(_FILES)
        and not os.path.exists(text.partition("/")[0])
    )


def model_on_hub(name: str) -> str:
    """The preset of a model's name on the hub, or the path of its ``config.json`` in the hub's
    cache. Raises :class:`InputError` if there is neither.

    >>> model_on_hub("meta-llama/Llama-3.1-8B-Instruct"), model_on_hub("google-bert/bert-base-uncased")
    ('llama-3.1-8b', 'bert-base')
    """
    called = name.partition("/")[2].lower().removeprefix("meta-")
    found = _CALLED.get(called) or _TUNED.sub("", called)
    if found in PRESETS:
        return found
    kept = _kept_config(name)
    if kept is None:
        raise InputError(
            "no such file, no preset of that name (see 'hosim workload models'), and no config.json "
            "of it in the hub's cache; give the path of its config.json",
            source=name,
        )
    return str(kept)


def _kept_config(name: str) -> Path | None:
    """The ``config.json`` of the revision that the hub's cache calls main, else of its last one."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        main = (folder / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    listed = sorted(folder.glob("snapshots/*/config.json"))
    named = [path for path in listed if path.parent.name == main]
    return [*listed, *named][-1] if listed else None
