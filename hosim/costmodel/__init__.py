"""How long things take on a hardware profile: ops by roofline, transfers by bandwidth and latency."""

from hosim.costmodel.op_time import op_durations
from hosim.costmodel.routes import chunks_of, route, route_ns
from hosim.costmodel.transfer_time import alone_ns, channel_bandwidth, is_pageable, pin_ns, transfer_ns

__all__ = ["alone_ns", "channel_bandwidth", "chunks_of", "is_pageable", "op_durations", "pin_ns", "route", "route_ns", "transfer_ns"]
