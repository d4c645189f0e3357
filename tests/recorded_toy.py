"""A recording as the kit would make it on an imaginary GPU: a decoder of four layers with round
times, everything resident.

On the device, in microseconds: embedding 10, each layer 2 x 100 forward and 2 x 200 backward, head
10 each way, embedding backward 10; updates 10, 50 a layer, 10. The host is far ahead. A layer keeps
one block from its first forward kernel to its backward pass, and has one for itself in between. In
prefill the kept blocks live to the end.
"""

import gzip
import json

from kineto_toys import KERNEL, call, device_op, memory, span, trace

LAYERS = 4
START_BYTES = 100_000_000
TEMPORARY = 50_000
SWEEP_SIZES = [4096, 1 << 20, 1 << 30]


def phases(train):
    layers = range(LAYERS)
    forward = [
        ("embedding.forward", [10]),
        *((f"layer.{i}.forward", [100, 100]) for i in layers),
        ("head.forward", [10]),
    ]
    backward = [
        ("head.backward", [10]),
        *((f"layer.{i}.backward", [200, 200]) for i in reversed(layers)),
        ("embedding.backward", [10]),
    ]
    update = [
        ("embedding.update", [10]),
        *((f"layer.{i}.update", [50]) for i in layers),
        ("head.update", [10]),
    ]
    return [*forward, *backward, *update] if train else forward


def recorded(train, kept_bytes, steps=2):
    """The trace: ``steps`` equal steps, each after the device has come to rest."""
    events, host, level, correlation = [], 1000, START_BYTES, 0

    def changed(size, address):
        nonlocal level
        level += size
        events.append(memory(host, size, address, level))

    for _ in range(steps):
        events.append(span("user_annotation", "hosim.step", host, 0.5))
        device = host + 100
        for name, kernels in phases(train):
            host += 1
            events.append(span("user_annotation", f"hosim.{name}", host, 0.5))
            kind, _, rest = name.partition(".")
            layer, _, part = rest.partition(".")
            forward = kind == "layer" and part == "forward"
            for position, duration in enumerate(kernels):
                host += 1
                if forward and position == 0:
                    changed(kept_bytes, 0x10000000 * (1 + int(layer)))
                    host += 1
                    changed(TEMPORARY, 0x1000)
                correlation += 1
                host += 1
                events.append(call("cudaLaunchKernel", host, 0.5, correlation))
                events.append(device_op(KERNEL, f"{kind} {part}", device, duration, correlation))
                device += duration
            host += 1
            if forward:
                changed(-TEMPORARY, 0x1000)
            if kind == "layer" and part == "backward":
                changed(-kept_bytes, 0x10000000 * (1 + int(layer)))
        if not train:
            for layer in range(LAYERS):
                host += 1
                changed(-kept_bytes, 0x10000000 * (1 + layer))
        host = device + 100
    return trace(*events)


def sweep(bytes_per_us, both=None):
    """Channels of one speed for every size; ``both``: the speed of each while the other is busy."""
    rows = [
        {"direction": d, "pinned": True, "bytes": size, "ns": [round(size * 1000 / bytes_per_us)]}
        for d in ("h2d", "d2h")
        for size in SWEEP_SIZES
    ]
    rows.append(
        {
            "direction": "both",
            "pinned": True,
            "bytes": 1 << 30,
            "ns": [round((1 << 30) * 1000 / (both or bytes_per_us))],
        }
    )
    return {"format": "hosim.gpu/1", "copies": rows}


def write(folder, train, kept_bytes, layer_parameters, bandwidth, runs):
    """The folder of a recording; ``runs`` are wall times and peaks by scheme."""
    mode = "train" if train else "prefill"
    meta = {"format": "hosim.gpu/1", "dry_run": False, "device": {"name": "Toy"}}
    meta |= {"models": {"toy": {"layer_parameters": layer_parameters}}, "smallest_offload_bytes": 1}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "bandwidth.json").write_text(json.dumps(bandwidth))
    for scheme, (wall_ns, peak) in runs.items():
        run = folder / f"toy-{mode}-64-{scheme}"
        run.mkdir()
        content = {
            "format": "hosim.gpu/1",
            "wall_ns": wall_ns,
            "memory": {"max_memory_allocated": peak, "max_memory_reserved": peak},
        }
        (run / "run.json").write_text(json.dumps(content))
    (folder / f"toy-{mode}-64-resident" / "trace.json.gz").write_bytes(
        gzip.compress(json.dumps(recorded(train, kept_bytes)).encode())
    )
    return folder
