"""The files of the kit for GPU machines."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.kit.kit_files import (
        FORMAT,
        BandwidthSweep,
        KitRun,
        SweptCopies,
        bandwidth_sweep,
        kit_run,
        measured_device,
        model_sizes,
        read_json,
        whole,
    )
    from hosim.validate.kit.offload_schemes import SCHEMES, SMALLEST_OFFLOAD, OffloadScheme
    from hosim.validate.kit.swept_channels import swept_channels
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "kit_files": "BandwidthSweep FORMAT KitRun SweptCopies bandwidth_sweep kit_run "
            "measured_device model_sizes read_json whole",
            "offload_schemes": "OffloadScheme SCHEMES SMALLEST_OFFLOAD",
            "swept_channels": "swept_channels",
        },
    )

__all__ = [
    "FORMAT", "SCHEMES", "SMALLEST_OFFLOAD", "BandwidthSweep", "KitRun", "OffloadScheme",
    "SweptCopies", "bandwidth_sweep", "kit_run", "measured_device", "model_sizes", "read_json",
    "swept_channels", "whole",
]  # fmt: skip
