"""``hosim.record``: a trace, the allocator's history and the peaks of any code of torch. Imports
torch when called.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosim.errors import InputError


@contextmanager
def record(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Record what runs inside: training or inference, on a GPU if torch finds one.

    Run the step once or twice before, so that nothing is loaded or tuned in the recording, and a
    few times inside. After an error inside, nothing is written.

    Parameters
    ----------
    folder
        Where to write; it must not exist, or be empty. It gets ``trace.json.gz`` (torch's profiler,
        with shapes and memory), ``memory.json.gz`` (the history of the CUDA allocator; not on a
        CPU) and ``run.json`` (time and peaks in nanoseconds and bytes).

    Returns
    -------
    Iterator
        A context manager, which gives nothing.

    Raises
    ------
    InputError
        If torch is not installed, or the folder holds something already or cannot be made.

    References
    ----------
    ``docs/executor.md`` says which commands read the files.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with record(os.path.join(folder, "step")):
    ...         loss = torch.ones(8, 8, requires_grad=True).sum()
    ...         loss.backward()
    ...     sorted(os.listdir(os.path.join(folder, "step")))
    ['run.json', 'trace.json.gz']
    """
    from hosim.io.importers.torch_programs import require_torch

    require_torch()
    import torch

    from hosim.on_torch.gpu import profiled
    from hosim.on_torch.gpu.gpu_seam import CpuBackend, CudaBackend
    from hosim.on_torch.gpu.output_files import write_json
    from hosim.on_torch.gpu.scheme_runs import new_folder
    from hosim.validate.kit import FORMAT

    path = Path(folder)
    try:
        if path.exists() and any(path.iterdir()):
            raise InputError(
                "the folder holds something already; give another one", source=str(path)
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be a folder: {error.strerror}", source=str(path)) from error
    device = CudaBackend(torch.cuda.current_device()) if torch.cuda.is_available() else CpuBackend()
    snapshots: list[object] = []
    with new_folder(
        path
    ) as beside:  # before the step, so that a folder that cannot be made costs no recording
        device.synchronize()
        device.reset_peaks()
        with profiled.profiler(device, modules=True) as recorded, device.history(snapshots):
            start = time.perf_counter_ns()
            yield
            device.synchronize()
            wall_ns = time.perf_counter_ns() - start
        profiled.save_trace(recorded, beside)
        profiled.save_history(snapshots, beside)
        write_json(
            beside / "run.json",
            {
                "format": FORMAT,
                "wall_ns": [wall_ns],
                "memory": device.peaks(),
                "device": device.describe(),
            },
        )
