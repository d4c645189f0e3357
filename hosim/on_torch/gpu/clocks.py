"""Clocks, temperature and power of an NVIDIA GPU while something runs, as ``nvidia-smi`` says
them.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence

FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
    "clocks_throttle_reasons.active",
)
"""MHz, MHz, degrees Celsius, watts, and a mask of reasons for lower clocks."""

_COMMAND = (
    "nvidia-smi",
    f"--query-gpu={','.join(FIELDS)}",
    "--format=csv,noheader,nounits",
    "--loop-ms=100",
)


@contextlib.contextmanager
def sampled(
    kind: str, index: int, samples: list[dict[str, str]], command: Sequence[str] = _COMMAND
) -> Iterator[None]:
    """Append a sample for each 100 ms inside to ``samples``; none where there is no ``nvidia-smi``,
    or no CUDA device (``kind``).
    """
    watcher = None
    if kind == "cuda":
        with contextlib.suppress(OSError):
            watcher = subprocess.Popen(
                [*command, f"--id={index}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
    try:
        yield
    finally:
        if watcher is not None:
            watcher.terminate()
            text, _ = watcher.communicate()
            samples += [row for line in text.splitlines() if (row := _row(line)) is not None]


def _row(line: str) -> dict[str, str] | None:
    """One line; ``None`` for one that was cut off."""
    values = [value.strip() for value in line.split(",")]
    return dict(zip(FIELDS, values, strict=True)) if len(values) == len(FIELDS) else None
