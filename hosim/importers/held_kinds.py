"""Kinds of what a torch program holds, by its names."""

from __future__ import annotations

_PACKED = frozenset(("qweight", "qzeros", "scales", "g_idx"))
"""The names of tensors of GPTQ and AWQ."""


def kind_of(role: str, name: str) -> str:
    """The kind of a parameter, buffer or input: a parameter whose qualified name has a part
    ``experts`` is an ``expert``.

    What GPTQ and AWQ register as buffers are parameters: packed weights, zeros, scales, and which
    group a row belongs to.

    >>> (
    ...     kind_of("parameter", "layers.0.experts.1.weight"),
    ...     kind_of("buffer", "layers.0.q_proj.qweight"),
    ... )
    ('expert', 'parameter')
    """
    *_, last = parts = name.split(".")
    role = "parameter" if role == "buffer" and last in _PACKED else role
    return "expert" if role == "parameter" and "experts" in parts else role
