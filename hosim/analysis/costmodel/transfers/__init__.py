"""The durations of transfers: routes over channels, shared bandwidth, collectives."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.costmodel.transfers.collective_traffic import (
        PASSES,
        bytes_per_s_over_links,
        crossed_fabrics,
        first_of_group,
        meeting_ranks,
        sent_bytes,
    )
    from hosim.analysis.costmodel.transfers.fair_sharing import NS_PER_S, Link, max_min_rates
    from hosim.analysis.costmodel.transfers.routes import (
        chunks_of,
        route,
        route_ns,
        slowest_hop,
        way_ns,
    )
    from hosim.analysis.costmodel.transfers.transfer_time import (
        alone_ns,
        ceiling,
        channel_bandwidth,
        is_pageable,
        may_be_slower,
        pin_ns,
        taken_as_pinned,
        transfer_ns,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "collective_traffic": "PASSES bytes_per_s_over_links crossed_fabrics first_of_group "
            "meeting_ranks sent_bytes",
            "fair_sharing": "Link NS_PER_S max_min_rates",
            "routes": "chunks_of route route_ns slowest_hop way_ns",
            "transfer_time": "alone_ns ceiling channel_bandwidth is_pageable may_be_slower pin_ns "
            "taken_as_pinned transfer_ns",
        },
    )

__all__ = [
    "NS_PER_S", "PASSES", "Link", "alone_ns", "bytes_per_s_over_links", "ceiling",
    "channel_bandwidth", "chunks_of", "crossed_fabrics", "first_of_group", "is_pageable",
    "max_min_rates", "may_be_slower", "meeting_ranks", "pin_ns", "route", "route_ns", "sent_bytes",
    "slowest_hop", "taken_as_pinned", "transfer_ns", "way_ns",
]  # fmt: skip
