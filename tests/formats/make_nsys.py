"""SQLite exports of Nsight Systems, written from a record: the tables and numbers of NVIDIA's
published schema (2024).

No export of a real run was at hand when the reader was written; what it is tested on is what this
script writes.
"""

import sqlite3

# Columns whose name ends in ! are never null.
ACTIVITY = [
    "start!",
    "end!",
    "deviceId!",
    "contextId!",
    "greenContextId",
    "streamId!",
    "correlationId",
    "globalPid",
]
SCHEMA = {
    "StringIds": ["id!", "value!"],
    "TARGET_INFO_GPU": [
        *("vmId!", "id!", "name", "totalMemory", "smCount", "cuDevice"),
        *("maxWarpsPerSm", "threadsPerWarp", "maxRegistersPerSm", "maxShmemPerSm"),
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *(*ACTIVITY, "demangledName!", "shortName!", "mangledName"),
        *("registersPerThread!", "staticSharedMemory!", "dynamicSharedMemory!"),
        *("gridX!", "gridY!", "gridZ!", "blockX!", "blockY!", "blockZ!"),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [*ACTIVITY, "bytes!", "copyKind!", "srcKind", "dstKind"],
    "CUPTI_ACTIVITY_KIND_MEMSET": [*ACTIVITY, "value!", "bytes!", "memKind"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        "start!",
        "end!",
        "eventClass!",
        "globalTid",
        "correlationId",
        "nameId!",
        "returnValue!",
    ],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [*ACTIVITY, "syncType!", "eventId!", "eventSyncId"],
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ["timestamp", *ACTIVITY[2:], "eventId!", "eventSyncId"],
    "CUDA_GPU_MEMORY_USAGE_EVENTS": [
        *(
            "start!",
            "globalPid!",
            "deviceId!",
            "contextId!",
            "address!",
            "pc!",
            "bytes!",
            "memKind!",
            "memoryOperationType!",
            "name",
        ),
    ],
    "NVTX_EVENTS": ["start!", "end", "eventType!", "text", "globalTid", "textId"],
}
TEXTS = {"name", "text"}  # StringIds.value takes text without being told
MEMORY = {
    "pageable": 0,
    "pinned": 1,
    "device": 2,
    "array": 3,
    "managed": 4,
    "host": None,
    "unknown": 7,
}
COPIES = {"h2d": 1, "d2h": 2, "d2d": 8, "h2h": 9}
SYNCS = {"event_sync": 1, "wait": 2, "stream_sync": 3, "device_sync": 4}
NO_STREAM = (1 << 32) - 1


def declared(column):
    name, never_null = column.rstrip("!"), column.endswith("!")
    return f'"{name}" {"TEXT" if name in TEXTS else "INTEGER"}{" NOT NULL" * never_null}'


class Export:
    """An export being written. ``version`` is what the names of calls end in, as CUPTI names
    them.
    """

    def __init__(self, path, pid=1234, version="_v3020", drop=()):
        self.path = path
        self.process = pid << 24
        self.version = version
        self.strings = {}
        self.db = sqlite3.connect(path)
        for table in SCHEMA.keys() - set(drop):
            self.db.execute(f"CREATE TABLE {table} ({', '.join(map(declared, SCHEMA[table]))})")

    def add(self, table, **values):
        columns = ", ".join(f'"{name}"' for name in values)
        self.db.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})",
            tuple(values.values()),
        )

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def op(self, op):
        where = {
            "deviceId": op.device,
            "contextId": 1,
            "streamId": op.stream,
            "correlationId": op.correlation,
            "globalPid": self.process,
        }
        where |= {"start": op.start_ns, "end": op.end_ns}
        if op.kind == "kernel":
            name = self.string(op.name)
            extents = dict(
                zip(
                    ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
                    (*op.grid, *op.block) or (1,) * 6,
                    strict=True,
                )
            )
            room = {
                "registersPerThread": op.registers or 0,
                "staticSharedMemory": op.shared_bytes or 0,
                "dynamicSharedMemory": 0,
            }
            self.add(
                "CUPTI_ACTIVITY_KIND_KERNEL",
                **where,
                demangledName=name,
                shortName=name,
                **extents,
                **room,
            )
        elif op.kind == "copy":
            ends = {"srcKind": MEMORY[op.source], "dstKind": MEMORY[op.target]}
            self.add(
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                **where,
                bytes=op.size_bytes,
                copyKind=COPIES[op.direction],
                **ends,
            )
        else:
            self.add(
                "CUPTI_ACTIVITY_KIND_MEMSET", **where, value=0, bytes=op.size_bytes or 0, memKind=2
            )

    def call(self, call):
        name, thread = (
            self.string(call.name + self.version),
            self.process | (int(call.thread) & 0xFFFFFF),
        )
        values = {
            "start": call.start_ns,
            "end": call.end_ns,
            "correlationId": call.correlation,
            "nameId": name,
            "globalTid": thread,
        }
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **values, eventClass=0, returnValue=0)

    def sync(self, role, start, end, correlation, stream=None, event=0, number=None):
        stream = NO_STREAM if stream is None else stream
        values = {
            "start": start,
            "end": end,
            "correlationId": correlation,
            "streamId": stream,
            "eventId": event,
            "eventSyncId": number,
        }
        self.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **values,
            deviceId=0,
            contextId=1,
            globalPid=self.process,
            syncType=SYNCS[role],
        )

    def record(self, correlation, stream, event, number=None):
        values = {
            "correlationId": correlation,
            "streamId": stream,
            "eventId": event,
            "eventSyncId": number,
        }
        self.add(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            **values,
            timestamp=0,
            deviceId=0,
            contextId=1,
            globalPid=self.process,
        )

    def memory(self, time, address, size, kind="device"):
        values = {
            "start": time,
            "address": address,
            "bytes": abs(size),
            "memKind": MEMORY[kind],
            "memoryOperationType": int(size < 0),
        }
        self.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            **values,
            globalPid=self.process,
            deviceId=0,
            contextId=1,
            pc=0,
        )

    def trace(self, trace):
        """All of a record but its CPU ops and memory; syncs as far as they name a record."""
        for op in trace.ops:
            self.op(op)
        for call in trace.calls:
            self.call(call)
        roles = {call.correlation: call.role for call in trace.calls}
        for sync in trace.syncs:
            role = roles.get(sync.correlation)
            if role in SYNCS:
                self.sync(
                    role,
                    sync.start_ns,
                    sync.end_ns,
                    sync.correlation,
                    sync.stream,
                    sync.record or 0,
                    sync.record,
                )
        for record, stream in sorted(
            {(s.record, s.on_stream) for s in trace.syncs if s.record is not None}
        ):
            self.record(record, stream, record, record)
        for index, info in trace.devices.items():
            values = {
                "name": info.name,
                "totalMemory": info.memory_bytes,
                "smCount": info.multiprocessors,
            }
            values |= {
                "maxWarpsPerSm": (info.threads or 0) // 32,
                "threadsPerWarp": 32,
                "maxRegistersPerSm": info.registers,
            }
            values |= {"maxShmemPerSm": info.shared_bytes}
            self.add("TARGET_INFO_GPU", vmId=0, id=index, cuDevice=index, **values)
        return self

    def close(self):
        self.db.commit()
        self.db.close()
        return self.path
