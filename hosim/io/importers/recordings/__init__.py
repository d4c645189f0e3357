"""Readers of profilers' recordings (Kineto, Nsight Systems) and of tables of measured
kernel times.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.importers.recordings.kernel_tables import (
        KernelTable,
        measured_times,
        of_machine,
        read_kernel_tables,
        tables_text,
    )
    from hosim.io.importers.recordings.kineto import call_role, parse_kineto, read_kineto
    from hosim.io.importers.recordings.kineto_before import ended_before
    from hosim.io.importers.recordings.kineto_events import (
        MODULE,
        Annotation,
        CpuOp,
        DeviceInfo,
        DeviceOp,
        HostCall,
        KinetoTrace,
        MemoryEvent,
        SyncRecord,
    )
    from hosim.io.importers.recordings.kineto_waits import (
        CLOCK_STEP_NS,
        ProgramOrder,
        StreamId,
        Waits,
        blocks,
        program_order,
        stream_of,
        waits,
    )
    from hosim.io.importers.recordings.kineto_workload import (
        RecordedBlock,
        blocks_of,
        device_of_blocks,
        import_kineto,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "kernel_tables": "KernelTable measured_times of_machine read_kernel_tables tables_text",
            "kineto": "call_role parse_kineto read_kineto",
            "kineto_before": "ended_before",
            "kineto_events": "Annotation CpuOp DeviceInfo DeviceOp HostCall KinetoTrace MODULE "
            "MemoryEvent SyncRecord",
            "kineto_waits": "CLOCK_STEP_NS ProgramOrder StreamId Waits blocks program_order stream_of "
            "waits",
            "kineto_workload": "RecordedBlock blocks_of device_of_blocks import_kineto",
        },
    )

__all__ = [
    "CLOCK_STEP_NS", "MODULE", "Annotation", "CpuOp", "DeviceInfo", "DeviceOp", "HostCall",
    "KernelTable", "KinetoTrace", "MemoryEvent", "ProgramOrder", "RecordedBlock", "StreamId",
    "SyncRecord", "Waits", "blocks", "blocks_of", "call_role", "device_of_blocks", "ended_before",
    "import_kineto", "measured_times", "of_machine", "parse_kineto", "program_order",
    "read_kernel_tables", "read_kineto", "stream_of", "tables_text", "waits",
]  # fmt: skip
