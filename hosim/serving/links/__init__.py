"""The channels and links of a serving run: transfers that queue, and flow at max-min fair rates, on
simpy's clock.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.links.channel_queue import ChannelQueue, IssuedTransfer, build_channels
    from hosim.serving.links.clock import SteppedClock
    from hosim.serving.links.link_groups import drive_channels
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "channel_queue": "ChannelQueue IssuedTransfer build_channels",
            "clock": "SteppedClock",
            "link_groups": "drive_channels",
        },
    )

__all__ = [
    "ChannelQueue",
    "IssuedTransfer",
    "SteppedClock",
    "build_channels",
    "drive_channels",
]
