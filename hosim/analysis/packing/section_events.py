"""The tensors that start and those that end at the borders of sections of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SectionEvents:
    """The tensors that start, and those that end, where each section starts; the last entry is the
    end of the last section.
    """

    starting: tuple[tuple[int, ...], ...]
    ending: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, first: Sequence[int], last: Sequence[int]) -> SectionEvents:
        """The events of tensors that live over sections ``[first, last)``."""
        starting: list[list[int]] = [[] for _ in range(max(last) + 1)]
        ending: list[list[int]] = [[] for _ in starting]
        for tensor, (start, end) in enumerate(zip(first, last, strict=True)):
            starting[start].append(tensor)
            ending[end].append(tensor)
        return cls(tuple(map(tuple, starting)), tuple(map(tuple, ending)))

    def free(self, size: Sequence[int], target: int) -> list[int]:
        """Return the free memory in each section, out of ``target``."""
        left = target
        result = []
        for starting, ending in zip(self.starting[:-1], self.ending[:-1], strict=True):
            left += sum(size[tensor] for tensor in ending) - sum(
                size[tensor] for tensor in starting
            )
            result.append(left)
        return result
