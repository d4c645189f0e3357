"""Work of the kit by name: what fails is noted in ``failed.json`` until it succeeds, and costs
nothing of the others.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hosim.errors import HosimError, InputError
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.output_files import say, write_json
from hosim.validate.kit import FORMAT, read_json

FAILED = "failed.json"


class Attempts:
    """Work in a folder. ``failed`` has a line for each that did not succeed.

    ``minutes`` is how long after ``since_s`` of :func:`time.monotonic` work may begin; ``None`` is
    no limit.
    """

    def __init__(self, out: Path, since_s: float, minutes: float | None = None) -> None:
        self.failed: list[str] = []
        self._out = out
        self._until_s = None if minutes is None else since_s + 60 * minutes

    def may_begin(self, name: str) -> bool:
        """Return whether there is time for work of this name; if not, that is noted."""
        is_over = self._until_s is not None and time.monotonic() >= self._until_s
        self._note(
            name,
            "not begun, as the time was up; the same command goes on with it" if is_over else None,
        )
        return not is_over

    def do(self, name: str, work: Callable[[], object], device: Device | None = None) -> None:
        """Do ``work``, which has this name, and note it if it fails; then return unused memory of
        the ``device``.

        Errors of torch and of runs are noted, and so is a full memory: a kernel that a machine
        lacks must not end the rest. Raises :class:`InputError` for a damaged folder.
        """
        if not self.may_begin(name):
            return
        say(name)
        reason = None
        try:
            work()
        except InputError:
            raise
        except (
            HosimError,
            RuntimeError,
            MemoryError,
            OSError,
        ) as problem:  # torch's errors, such as of memory, are RuntimeErrors
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        finally:
            gc.collect()
            with contextlib.suppress(RuntimeError):  # a GPU that has failed says so at every call
                if device is not None:
                    device.empty_caches()
        self._note(name, reason)

    def _note(self, name: str, reason: str | None) -> None:
        before = noted_failures(self._out)
        noted = {key: text for key, text in before.items() if key != name}
        if reason is not None:
            noted[name] = reason
            self.failed.append(f"{name}: {reason}")
            say(self.failed[-1])
        if noted:
            write_json(self._out / FAILED, {"format": FORMAT, "failed": noted})
        elif before:
            (self._out / FAILED).unlink()


def noted_failures(out: Path) -> Mapping[str, str]:
    """Return the attempts that have failed in a folder and not succeeded since: the reason by name.
    Raises :class:`InputError` for a damaged file.
    """
    path = out / FAILED
    if not path.exists():
        return {}
    noted = read_json(path, ["failed"])["failed"]
    if not isinstance(noted, dict) or not all(isinstance(text, str) for text in noted.values()):
        raise InputError("expected the reasons by name", source=str(path), where="failed")
    return noted
