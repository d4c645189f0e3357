"""Compare the bytes of a builder's weights with those of the checkpoint that the config
belongs to.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hosim.graph import Graph
from hosim.io.models.config_keys import Keys
from hosim.units import LARGEST, human_percent, human_size

INDEX = "model.safetensors.index.json"
"""The key under which a config keeps the contents of its checkpoint's index."""

WEIGHTS_OF_MODELS = frozenset({"parameter", "expert"})
"""The kinds of tensors that a checkpoint has."""
_TOLERANCE = 0.02
_ASKED = ("dtype", "weights", "group", "packed", "activations")


def stated_bytes(keys: Keys) -> int:
    """The bytes of all weights in the files of a checkpoint; 0 if they are not stated. Raises
    :class:`InputError`.
    """
    metadata = keys.inside(INDEX).inside("metadata")
    found = metadata.value("total_size")
    metadata.refuse(
        "total_size",
        found is not None and (type(found) is not int or not 0 < found <= LARGEST),
        f"expected a number of bytes, got {found!r}",
    )
    return found or 0


def other_bytes(
    model: object, given: Mapping[str, Any], build: Callable[[str, Mapping[str, Any]], Graph]
) -> tuple[str, ...]:
    """Return a line if the weights of the whole model, packed as in the run, differ by more than 2
    % from those of its checkpoint; else nothing.
    """
    stated = stated_bytes(Keys(model)) if isinstance(model, Mapping) else 0
    if not stated or not isinstance(model, Mapping):
        return ()
    whole = {key: value for key, value in model.items() if key != INDEX}
    graph = build("whole", {"model": whole, **{key: given[key] for key in _ASKED if key in given}})
    built = sum([tensor.size_bytes for tensor in graph.tensors if tensor.kind in WEIGHTS_OF_MODELS])
    if abs(built - stated) <= _TOLERANCE * stated:
        return ()
    more = (
        human_percent(built / stated - 1, signed=True)
        if built < 2 * stated
        else f"{built / stated:.3g}x"
    )
    return (
        f"weights as the checkpoint's files have them: {human_size(stated)}; as built "
        f"{human_size(built)} ({more})",
    )
