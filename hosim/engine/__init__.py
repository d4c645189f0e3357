"""The discrete-event engine: replays any plan on a machine, and is the only user of simpy.

:func:`replay` is the way in. Inside, time and the order of events are :mod:`~hosim.engine.clock`'s, the order within an instant is
:mod:`~hosim.engine.replay`'s. A :mod:`~hosim.engine.device` has streams (:mod:`~hosim.engine.stream`) and a
:mod:`~hosim.engine.memory`: ledgers, copies, issued cache ops, and the queues of its :mod:`~hosim.engine.channels`, whose transfers flow at
the rates of :mod:`~hosim.engine.flow`. One process a stream and a channel (or a group of channels that share bandwidth), none for an op.

What is still to come has its place:

- *Several devices* are several :class:`~hosim.engine.device.Device` over one clock. An instant is settled by the same four steps,
  each over all devices (in the order of issue for transfers); channels that share a fabric across devices are one
  :class:`~hosim.engine.channels.LinkGroup`, which knows links by name and not by device.
- *Routes* are transfers of several hops: :class:`~hosim.engine.program.Way` would name the channels one after the other instead of
  one, and a cache op would put its chunks into their queues one by one; ``pending`` already lets only the first cache op of a
  tensor proceed.
"""

from hosim.engine.replay import replay

__all__ = ["replay"]
