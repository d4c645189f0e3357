"""Facts about ops that torch declares beforehand. Imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LOOKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def looks(op: Any) -> bool:
    """Return whether an op looks at what a tensor contains, so that the host waits for it."""
    return bool(_LOOKS.intersection(op.tags))


def draws_or_writes(op: Any) -> bool:
    """Return whether an op may draw random numbers, or writes what it is given."""
    return op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags


def by_name(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, without those that are left to their defaults."""
    return {one.name: given for one, given in zip(op._schema.arguments, args, strict=False)} | {
        **kwargs
    }
