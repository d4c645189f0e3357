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

from hosim.engine.replay import replay, replay_stages

__all__ = ["replay", "replay_stages"]
