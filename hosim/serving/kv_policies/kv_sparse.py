"""Written through; and of sequences whose attention reads few blocks, the others are below alone
where blocks of the device lack.

What stays in the device, and what comes up for a step, :mod:`hosim.serving.blocks.sparse_reading`
says.
"""

from __future__ import annotations

from hosim.serving.kv_policies.kv_rules import KvRules


def rules(
    hit: float | None, change: float | None, resident: int | None, predicted: bool
) -> KvRules:
    """The rules; the parameters are those of
    :func:`~hosim.serving.blocks.sparse_reading.sparse_reads`.
    """
    return _Sparse()


class _Sparse(KvRules):
    through = True
