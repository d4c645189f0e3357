"""Recording kit for a GPU machine: it runs a decoder under offload schemes and records what hosim is compared with.

It imports torch, numpy and the standard library, and nothing of hosim, so that it runs where hosim is not installed:
``python -m hosim.record all --out DIR``, or ``python hosim/record all --out DIR`` from a copy of this folder alone.

One run is a *mode* (``prefill`` or ``train``), a sequence length and a *scheme*. Its folder holds ``run.json`` (the scheme's moves, wall
times, losses, peaks), ``trace.json.gz`` (Kineto, trimmed to what hosim reads) and ``memory.json.gz`` (the allocator's history). The machine
is in ``meta.json``, its channels in ``bandwidth.json``.
"""
