"""Runs of the decoder under simple schemes, each recorded into a folder of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hosim.errors import InputError
from hosim.on_torch.gpu import profiled
from hosim.on_torch.gpu.clocks import sampled
from hosim.on_torch.gpu.functional_decoder import Config
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.output_files import write_json
from hosim.on_torch.gpu.schemes import Workload
from hosim.validate.kit import FORMAT, SCHEMES


@dataclass(frozen=True)
class RecordingRun:
    """One thing to record."""

    config: str
    mode: str
    length: int
    scheme: str
    batch: int
    iterations: int
    profiled: int
    seed: int

    @property
    def name(self) -> str:
        """The folder's."""
        return f"{self.config}-{self.mode}-{self.length}-{self.scheme}"


def record_run(
    device: Device, config: Config, run: RecordingRun, out: Path, *, smallest_offload: int
) -> None:
    """Record one run into its folder, as a whole or not at all."""
    with new_folder(out / run.name) as folder:
        _measure(device, config, run, folder, smallest_offload)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` that becomes it if all goes well, and goes away if not. Raises
    :class:`InputError`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot create the folder: {error.strerror}", source=str(path)) from error
    try:
        yield folder
        folder.chmod(0o755)
        os.replace(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    device: Device, config: Config, run: RecordingRun, folder: Path, smallest_offload: int
) -> None:
    """Two steps to warm up, timed steps without a profiler, steps under the profiler, steps under
    the allocator's history.
    """
    work = Workload(
        device,
        config,
        SCHEMES[run.scheme],
        train=run.mode == "train",
        length=run.length,
        batch=run.batch,
        seed=run.seed,
        smallest_offload=smallest_offload,
    )
    losses = [work.step() for _ in range(2)]
    device.synchronize()
    device.reset_peaks()

    def step() -> None:
        work.mover.take_moves()
        losses.append(work.step())

    clocks: list[dict[str, str]] = []
    with sampled(device.kind, device.torch_device.index or 0, clocks):
        wall_ns = profiled.timed(device, step, run.iterations)
    moves = work.mover.take_moves()
    peaks = device.peaks()
    profiled_ns = profiled.write_trace(device, step, run.profiled, folder)
    history = profiled.write_history(device, step, run.profiled, folder)
    content = {
        "format": FORMAT,
        "run": asdict(run),
        "wall_ns": wall_ns,
        "profiled_wall_ns": profiled_ns,
        "losses": losses,
        "memory": peaks,
        "memory_history": history,
        "moves": moves,
        "clocks": clocks,
    }
    write_json(folder / "run.json", content)
