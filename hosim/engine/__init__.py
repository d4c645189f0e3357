"""The discrete-event engine: replays any plan on a machine, and is the only user of simpy.

:func:`replay` and :func:`replay_stages` are the ways in. Inside, time and the order of events are :mod:`~hosim.engine.clock`'s, the order
within an instant is :mod:`~hosim.engine.replay`'s. A :mod:`~hosim.engine.device` has streams (:mod:`~hosim.engine.stream`) and a
:mod:`~hosim.engine.device_memory`: ledgers, copies, issued cache ops, and the queues of its :mod:`~hosim.engine.channels`, whose
transfers flow at the rates that :mod:`~hosim.engine.link_groups` sets. One process a stream and a channel (or a group of channels that
share bandwidth), none for an op.

Several devices are several :class:`~hosim.engine.device.DeviceReplay` over one clock: an instant is settled by the same four steps, each
over all of them, and channels that share a fabric across devices are one :class:`~hosim.engine.link_groups.LinkGroup`. What goes over
several channels is a route (:mod:`~hosim.engine.multi_hop`), whose chunks are transfers of each. What some transfers take beyond others,
for their size or the host memory they use, is :mod:`~hosim.engine.transfer_overheads`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.budget import parse_budget
    from hosim.engine.channels import ChannelQueue, IssuedTransfer, build_channels
    from hosim.engine.clock import SteppedClock
    from hosim.engine.compiled_graph import DIES, compile_graph
    from hosim.engine.compiled_plan import Hop
    from hosim.engine.flow_table import UncoveredError
    from hosim.engine.ledger import Ledger
    from hosim.engine.link_groups import drive_channels
    from hosim.engine.loop_cells import ENDED, ILLEGAL, LATE, NEVER, STOPPED, STUCK
    from hosim.engine.program_table import ProgramTable, TableMove
    from hosim.engine.replay import replay, replay_stages
    from hosim.engine.resident_step import most_needed, resident_step
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "budget": "parse_budget",
            "channels": "ChannelQueue IssuedTransfer build_channels",
            "clock": "SteppedClock",
            "compiled_graph": "DIES compile_graph",
            "compiled_plan": "Hop",
            "flow_table": "UncoveredError",
            "ledger": "Ledger",
            "link_groups": "drive_channels",
            "loop_cells": "ENDED ILLEGAL LATE NEVER STOPPED STUCK",
            "program_table": "ProgramTable TableMove",
            "replay": "replay replay_stages",
            "resident_step": "most_needed resident_step",
        },
    )

__all__ = [
    "DIES", "ENDED", "ILLEGAL", "LATE", "NEVER", "STOPPED", "STUCK", "ChannelQueue", "Hop", "IssuedTransfer", "Ledger", "ProgramTable",
    "SteppedClock", "TableMove", "UncoveredError", "build_channels", "compile_graph", "drive_channels", "most_needed", "parse_budget",
    "replay", "replay_stages", "resident_step",
]  # fmt: skip
