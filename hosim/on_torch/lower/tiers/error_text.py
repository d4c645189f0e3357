"""Texts for errors about a machine's failures and about values, in one line."""

from typing import Any

import torch

from hosim.errors import HosimError
from hosim.on_torch.lower.tiers.transfers import Label


def in_one_line(error: BaseException, culprit: Label | None) -> str:
    """Return the failure and its reason, from the work that was under way and its error.

    >>> in_one_line(OSError(28, "No space left on device"), Label("store of 'w' from hbm to nvme"))
    "store of 'w' from hbm to nvme: No space left on device"
    """
    what = f"{culprit.text}: " if culprit is not None else ""
    if isinstance(error, HosimError):
        return f"{what}{error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{what}{error.strerror}" + (f" ({error.filename})" if error.filename else "")
    reason = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{what}{type(error).__name__}" + (f": {reason}" if reason else "")


def unlike(value: Any, like: torch.Tensor) -> str | None:
    """Return what a value is, if it is no tensor of the shape and dtype of another.

    >>> unlike(torch.zeros(2), torch.zeros(3))
    '(2,) of torch.float32'
    """
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.shape == like.shape and value.dtype == like.dtype:
        return None
    return f"{tuple(value.shape)} of {value.dtype}"
