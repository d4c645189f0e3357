"""One thing that is wrong, and what it is about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken ``rule``, in one line that names op and tensor, and their positions where there are
    any.

    ``cache_op`` is a position in :attr:`hosim.cache_plan.Plan.cache_ops`.
    """

    rule: str
    message: str
    op: int | None = None
    tensor: int | None = None
    cache_op: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
