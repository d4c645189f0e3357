"""Ops that a captured step has in the place of those that tracing recorded, which only say what
they make. Imports torch.
"""

from collections.abc import Callable
from typing import Any

import torch

from hosim.io.importers.torch_programs import OwnOp

IN_ORDER = (torch.Tag.nondeterministic_seeded,)
"""Tags of ops that run once each, in the order of the step, as random ones do."""


class StepOp(OwnOp):
    """A function as the target of a node. ``begins`` says that it only begins something, and
    returns what to wait for.
    """

    __module__ = "hosim_step"

    def __init__(
        self, name: str, function: Callable[..., Any], *, tags: Any = IN_ORDER, begins: bool = False
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.tags = tags
        self.begins = begins
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the function."""
        return self._function(*args, **kwargs)

    def __str__(self) -> str:
        return self.__name__
